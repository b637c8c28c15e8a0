"""Of the busy answers, only a conflict spreads a tally over more shards. A metric counts the conflicts."""

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
def test_a_write_with_a_busy_answer_may_be_retried_and_only_a_conflict_is_reported_as_a_conflict(code: str) -> None:
    error = ClientError({"Error": {"Code": code, "Message": "no"}}, "UpdateItem")
    client = SimpleNamespace(transact_write_items=Mock(side_effect=error))
    attempt = transactions.send(client, [{}] * 2)  # type: ignore[arg-type]
    assert attempt.is_busy
    attempt.raise_unless_busy()
    assert attempt.has_conflict is (code == "TransactionConflictException")
    assert len(set(attempt.codes)) == 1
    assert len(attempt.codes) == 2, "the answer does not say which of the two writes had the conflict"


def test_a_metric_counts_conflicts(capsys: pytest.CaptureFixture[str]) -> None:
    settings = Settings("counts-of-test", "receipts-of-test", "ledger-of-test", frozenset(), 3600, "test")
    call = Call(Store(None, settings))  # type: ignore[arg-type]
    with observe.metrics():
        for _ in range(2):
            record_conflict(call, counters.PLAYS, "v1")
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["Conflicts"] == [2.0]
