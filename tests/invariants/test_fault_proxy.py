"""Each fault of the proxy does what its name says. Otherwise the tests under faults would prove nothing."""

from __future__ import annotations

import time
from typing import Any

import pytest
from botocore.exceptions import BotoCoreError, ClientError, ConnectionClosedError, ReadTimeoutError

from tests import faults
from tests.faults import Fault, FaultKind
from tests.invariants.world import World

pytestmark = pytest.mark.long  # only the tests use the proxy, so its tests need not run each time

LATE_S = 0.05
FAULTS: dict[FaultKind, Fault] = {
    **{kind: Fault(kind) for kind in FaultKind},
    FaultKind.DELAY: faults.delay(LATE_S),
    FaultKind.LATE_ANSWER: faults.late_answer(LATE_S),
    FaultKind.CONDITION_AND_CONFLICT: faults.condition_and_conflict(failed_at=0, conflict_at=1),
}
REACHES_ENGINE = {
    FaultKind.LOSE_RESPONSE, FaultKind.SILENCE, FaultKind.FAIL_AFTER, FaultKind.ERROR_AFTER, FaultKind.TRUNCATE,
    FaultKind.DELAY, FaultKind.LATE_ANSWER,
}  # fmt: skip
ERROR_CODES = {
    FaultKind.FAIL_AFTER: "InternalServerError",
    FaultKind.FAIL_BEFORE: "InternalServerError",
    FaultKind.THROTTLE: "ProvisionedThroughputExceededException",
    FaultKind.CONFLICT: "TransactionCanceledException",
    FaultKind.THROTTLED_TRANSACTION: "TransactionCanceledException",
    FaultKind.CONDITION_AND_CONFLICT: "TransactionCanceledException",
    FaultKind.ERROR_BEFORE: "TransactionConflict",
    FaultKind.ERROR_AFTER: "TransactionConflict",
}
SDK_ERRORS = {
    FaultKind.LOSE_RESPONSE: ConnectionClosedError,
    FaultKind.DROP_BEFORE: ConnectionClosedError,
    FaultKind.SILENCE: ReadTimeoutError,
    FaultKind.HANG_BEFORE: ReadTimeoutError,
}


def add_to_two_items(world: World) -> None:
    """Commit one transaction that adds 1 to each of two items."""
    writes: list[Any] = [
        {
            "TableName": world.store.settings.counts_table,
            "Key": {"PK": {"S": "X"}, "SK": {"S": sort_key}},
            "UpdateExpression": "ADD #number :one",
            "ExpressionAttributeNames": {"#number": "number"},
            "ExpressionAttributeValues": {":one": {"N": "1"}},
        }
        for sort_key in ("a", "b")
    ]
    world.store.client.transact_write_items(TransactItems=[{"Update": write} for write in writes])


@pytest.mark.parametrize("kind", FaultKind, ids=lambda kind: kind.name.lower())
def test_each_fault_forwards_or_stops_the_request_and_gives_the_client_its_error(
    make_world: Any, kind: FaultKind
) -> None:
    world: World = make_world(hasty=kind in (FaultKind.SILENCE, FaultKind.HANG_BEFORE))
    world.proxy.plan = faults.always(FAULTS[kind])
    error: Any = None
    began_s = time.monotonic()
    try:
        add_to_two_items(world)
    except (ClientError, BotoCoreError) as raised:
        error = raised
    took_s = time.monotonic() - began_s
    assert len(world.items()) == (2 if kind in REACHES_ENGINE else 0)
    assert all(request.forwarded is (kind in REACHES_ENGINE) for request in world.proxy.requests)
    assert world.proxy.count_injected(FAULTS[kind], "TransactWriteItems") == len(world.proxy.requests) >= 1
    if kind in ERROR_CODES:
        assert error.response["Error"]["Code"] == ERROR_CODES[kind]
    elif kind in (FaultKind.DELAY, FaultKind.LATE_ANSWER):
        assert (error, took_s >= LATE_S) == (None, True)
    elif kind is not FaultKind.TRUNCATE:  # the SDK may accept a truncated answer after its last retry
        assert isinstance(error, SDK_ERRORS[kind])
