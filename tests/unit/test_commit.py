"""Which answers of a busy store spread a tally over more shards, and that conflicts are metered."""

from __future__ import annotations

import json
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from botocore.exceptions import ClientError

import counters
from tally import observe
from tally.dynamo import transactions
from tally.dynamo.client import Call, Store
from tally.dynamo.transactions import record_conflict
from tally.errors import BUSY_CODES
from tally.settings import Settings


@pytest.mark.parametrize("code", sorted(BUSY_CODES))
def test_busy_answers_are_tried_again_and_only_conflicts_spread(code: str) -> None:
    error = ClientError({"Error": {"Code": code, "Message": "no"}}, "UpdateItem")
    client = SimpleNamespace(transact_write_items=Mock(side_effect=error))
    tried = transactions.send(client, [{}] * 2)  # type: ignore[arg-type]
    assert tried.is_busy
    assert tried.raise_unless_busy() is (code == "TransactionConflictException")
    assert len(set(tried.codes)) == 1
    assert len(tried.codes) == 2, "each write may have been in the way"


def test_conflicts_are_metered(capsys: pytest.CaptureFixture[str]) -> None:
    settings = Settings("counts-of-test", "receipts-of-test", "ledger-of-test", frozenset(), 3600, "test")
    call = Call(Store(None, settings))  # type: ignore[arg-type]
    with observe.metrics():
        for _ in range(2):
            record_conflict(call, counters.PLAYS, "v1")
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["Conflicts"] == [2.0]
