"""How a cancelled transaction is judged, what a receipt looks like, what a busy store costs."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, ReadTimeoutError

import counters
from tally import observe
from tally.counting.receipts import Stamp
from tally.dynamo import transactions
from tally.dynamo.client import Call, Store
from tally.dynamo.contention import Retries
from tally.dynamo.transactions import Sent, pause, spread_wider
from tally.errors import (
    BUSY_CODES,
    StoreBusyError,
    StoreRefusedError,
    StoreUnreachableError,
)
from tally.settings import Settings

OK: dict[str, Any] = {"Code": "None"}
BODY = {"video_id": "v1", "counted": True}


def client_error(code: str, **more: Any) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": "no"}, **more}, "UpdateItem")  # type: ignore[arg-type]


def sent(error: Exception, writes: int = 1) -> Sent:
    """What becomes of writes that are answered with an error."""

    def refuse(**_: Any) -> None:
        raise error

    client = SimpleNamespace(transact_write_items=refuse)
    return transactions.send(client, [{}] * writes)  # type: ignore[arg-type]


def judged(reasons: list[dict[str, Any]], shard: int, *, has_receipt: bool) -> bool:
    error = client_error("TransactionCanceledException", CancellationReasons=reasons)
    return transactions._judged(sent(error, len(reasons)), shard, has_receipt=has_receipt)


@pytest.fixture
def call() -> Call:
    """A call without a store behind it."""
    settings = Settings("counts-of-test", "receipts-of-test", "ledger-of-test", frozenset(), 3600, "test")
    return Call(Store(None, settings))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "reasons",
    [[], [OK, OK], [OK, {"Code": "ValidationError"}], [OK, {"Code": "ItemCollectionSizeLimitExceeded"}], [{}]],
)
@pytest.mark.parametrize("has_receipt", [True, False])
def test_anything_else_is_the_deployments_fault(reasons: list[dict[str, Any]], has_receipt: bool) -> None:
    with pytest.raises(StoreRefusedError):
        judged(reasons, 0, has_receipt=has_receipt)


def test_receipt_is_complete_and_conditional_on_there_being_no_live_one(call: Call) -> None:
    before_s = int(time.time())
    put = Stamp("tally#abc", "hash", 99).receipt(call, BODY, amount={"N": "1"})["Put"]
    assert put["TableName"] == "receipts-of-test"
    assert put["Item"] == {
        "id": {"S": "tally#abc"},
        "status": {"S": "COMPLETED"},
        "data": {"S": json.dumps(BODY, separators=(",", ":"))},
        "validation": {"S": "hash"},
        "expiration": {"N": "99"},
        "nonce": {"S": call.nonce},
        "amount": {"N": "1"},
    }
    assert put["ConditionExpression"] == "attribute_not_exists(id) OR expiration < :now"
    assert before_s <= int(put["ExpressionAttributeValues"][":now"]["N"]) <= time.time()
    assert put["ReturnValuesOnConditionCheckFailure"] == "ALL_OLD"


@pytest.mark.parametrize("code", sorted(BUSY_CODES))
def test_busy_answers_are_tried_again_and_only_conflicts_spread(code: str) -> None:
    conflicts = {"TransactionConflictException", "TransactionInProgressException"}
    tried = sent(client_error(code), writes=2)
    assert tried.busy
    assert tried.conflict_or_raise() is (code in conflicts)
    assert len(set(tried.codes)) == 1
    assert len(tried.codes) == 2, "each write may have been in the way"


@pytest.mark.parametrize(
    ("error", "becomes"),
    [
        (client_error("InternalServerError"), StoreUnreachableError),
        (client_error("AccessDeniedException"), StoreRefusedError),
        (client_error("ResourceNotFoundException"), StoreRefusedError),
        (ReadTimeoutError(endpoint_url="http://x"), StoreUnreachableError),
        (EndpointConnectionError(endpoint_url="http://x"), StoreUnreachableError),
    ],
    ids=str,
)
def test_other_answers_are_not_tried_again(error: Exception, becomes: type[Exception]) -> None:
    with pytest.raises(becomes) as raised:
        sent(error)
    assert raised.value.__cause__ is error


def test_conflicts_are_metered(call: Call, capsys: pytest.CaptureFixture[str]) -> None:
    with observe.metrics():
        for _ in range(2):
            spread_wider(call, counters.PLAYS, "v1")
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["Conflicts"] == [2.0]


def test_last_retry_is_busy_and_says_to_send_it_again_with_the_same_key(call: Call) -> None:
    with pytest.raises(StoreBusyError, match="same key"):
        pause(Retries(time.monotonic() - 1))
