"""This version is deployed over the old ledger: counting goes on, old rows are left alone, nothing is judged twice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tally.dynamo import keys
from tests.invariants.deployment import CONSUMERS
from tests.invariants.judged import LIKES, PLAYS, Deployment, undeployed

OLD_DRIFT, EDIT, NEW_EDIT = 3, 5, 7


@pytest.fixture
def old() -> Iterator[Deployment]:
    """A deployment as the old version leaves it: all is rolled up and booked, a drift is known, a row not judged."""
    with undeployed() as made:
        made.post(likers=2)
        made.play(times=3)
        made.spill(times=2)
        made.deliver()  # the rollup adds what was written alone
        made.edit(EDIT, PLAYS, "v")
        made.deliver()
        for page in (item for item in _ledger(made) if item["PK"]["S"].startswith("SEGMENT#")):
            made.wire.delete_item(TableName=made.settings.ledger_table, Key=keys.key(page["PK"]["S"], page["SK"]["S"]))
        now = {"N": str(int(made.now_s))}
        for consumer in CONSUMERS:
            for table, (shard,) in made.streams.shards.items():
                _old_attributes(made, keys.key(*keys.checkpoint_key(consumer, table, shard.id)), now)
        row = {"counter": {"S": "plays"}, "target": {"S": "v"}, "observed": {"N": str(EDIT)}, "expected": {"N": "0"}}
        _put(made, keys.key("LEDGER#7", f"{int(made.now_s) // 60:010d}#abc#1") | row | {"booked": now})
        drift = {"counter": {"S": "likes"}, "target": {"S": "p"}, "drift": {"N": str(OLD_DRIFT)}}
        _put(made, _drift_key() | drift | {"since": now, "judged": now, "confirmed": {"BOOL": True}})
        made.edit(OLD_DRIFT)
        made.deliver()
        made.sweep_each_minute()
        yield made


def _old_attributes(made: Deployment, key: Any, now: Any) -> None:
    """The old version's checkpoint: without a heartbeat, with `moved`, `late`, `began` and `pending`."""
    made.wire.update_item(
        TableName=made.settings.ledger_table,
        Key=key,
        UpdateExpression="SET moved = :now, late = :now, began = :now, pending = :one REMOVE heartbeat, rolled",
        ExpressionAttributeValues={":now": now, ":one": {"S": "1"}},
    )


def _drift_key() -> Any:
    return keys.key(keys.DRIFT_KEY, keys.digest("likes", "p"))


def _put(made: Deployment, item: Any) -> None:
    made.wire.put_item(TableName=made.settings.ledger_table, Item=item)


def _ledger(made: Deployment) -> list[Any]:
    return list(made.wire.scan(TableName=made.settings.ledger_table)["Items"])


def test_old_rows_stay_old_drift_is_repaired_and_only_what_is_new_is_judged(old: Deployment) -> None:
    old.run(8)
    assert old.drifts() == {("likes", "p"): OLD_DRIFT}
    old.edit(NEW_EDIT, PLAYS, "v")
    old.run(20, lambda: old.play())
    assert old.drifts() == {("likes", "p"): OLD_DRIFT, ("plays", "v"): NEW_EDIT}
    assert [item["SK"]["S"] for item in _ledger(old) if item["PK"]["S"].startswith("LEDGER#")] != []
    reconciler = old.reconciler()
    for counter, target in ((LIKES, "p"), (PLAYS, "v")):
        assert reconciler.repair(counter, target, "ann", "the upgrade") is not None
    assert old.tally() == 2
    assert old.tally(PLAYS, "v") == 3 + 2 + 40 + EDIT  # what the old version did not judge, nobody judges
    old.run(12)
    assert old.drifts() == {}
