"""This version is deployed over the old ledger: counting goes on, old rows are left alone, nothing is judged twice."""

from __future__ import annotations

from typing import Any

import boto3
import pytest
from botocore.config import Config

from local.base.engine import Engine
from tally.drift.reconcile import Reconciler
from tally.dynamo import keys
from tally.dynamo.client import Store
from tests.invariants.judged import CONSUMERS, LIKES, PLAYS, Deployment

OLD_DRIFT, EDIT, NEW_EDIT = 3, 5, 7
COUNTERS = {"plays": PLAYS, "likes": LIKES}


@pytest.fixture
def old(store: Store, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Deployment:
    """A deployment as the old version leaves it: all is rolled up and booked, a drift is known, a row not judged."""
    config = Config(parameter_validation=False)
    made = Deployment(store, boto3.client("dynamodbstreams", endpoint_url=engine.endpoint, config=config))
    monkeypatch.setattr("time.time", made.clock)
    made.post(likers=2)
    made.play(times=3)
    made.spill(times=2)
    made.deliver()  # the rollup adds what was written alone
    made.edit(EDIT, PLAYS, "v")
    made.deliver()
    for page in (item for item in _ledger(store) if item["PK"]["S"].startswith("PAGE#")):
        store.client.delete_item(TableName=store.settings.ledger_table, Key=keys.key(page["PK"]["S"], page["SK"]["S"]))
    now = {"N": str(int(made.now_s))}
    for consumer in CONSUMERS:
        for table, shard in made.shard.items():
            _old_attributes(made, keys.key(*keys.checkpoint_key(consumer, table, shard)), now)
    row = {"counter": {"S": "plays"}, "target": {"S": "v"}, "observed": {"N": str(EDIT)}, "expected": {"N": "0"}}
    _put(store, keys.key("LEDGER#7", f"{int(made.now_s) // 60:010d}#abc#1") | row | {"booked": now})
    drift = {"counter": {"S": "likes"}, "target": {"S": "p"}, "drift": {"N": str(OLD_DRIFT)}}
    _put(store, _drift_key() | drift | {"since": now, "judged": now, "confirmed": {"BOOL": True}})
    made.edit(OLD_DRIFT)
    made.deliver()
    return made


def _old_attributes(made: Deployment, key: Any, now: Any) -> None:
    """The old version's checkpoint: without a pulse, with `moved`, `late`, `began` and `pending`."""
    made.store.client.update_item(
        TableName=made.store.settings.ledger_table,
        Key=key,
        UpdateExpression="SET moved = :now, late = :now, began = :now, pending = :one REMOVE pulse, rolled",
        ExpressionAttributeValues={":now": now, ":one": {"S": "1"}},
    )


def _drift_key() -> Any:
    return keys.key(keys.DRIFT_KEY, keys.digest("likes", "p"))


def _put(store: Store, item: Any) -> None:
    store.client.put_item(TableName=store.settings.ledger_table, Item=item)


def _ledger(store: Store) -> list[Any]:
    return list(store.client.scan(TableName=store.settings.ledger_table)["Items"])


def test_old_rows_stay_old_drift_is_repaired_and_only_what_is_new_is_judged(old: Deployment) -> None:
    old.run(8)
    assert old.drift() == {("likes", "p"): OLD_DRIFT}
    old.edit(NEW_EDIT, PLAYS, "v")
    old.run(20, lambda: old.play())
    assert old.drift() == {("likes", "p"): OLD_DRIFT, ("plays", "v"): NEW_EDIT}
    assert [item["SK"]["S"] for item in _ledger(old.store) if item["PK"]["S"].startswith("LEDGER#")] != []
    reconciler = Reconciler(old.store, COUNTERS, clock=old.clock, sleep=old.sleep)
    for counter, target in ((LIKES, "p"), (PLAYS, "v")):
        assert reconciler.repair(counter, target, "ann", "the upgrade") is not None
    assert old.tally() == 2
    assert old.tally(PLAYS, "v") == 3 + 2 + 40 + EDIT  # what the old version did not judge, nobody judges
    old.run(12)
    assert old.drift() == {}
