"""The rollup gets only heartbeats and spilled changes. `as_of` advances, and no change is lost."""

from __future__ import annotations

from typing import Any

import pytest

from tests.delivery import Record
from tests.invariants.deployment import PLAYS, Deployment, deployed

LAG_S_MAX = 180  # how far `as_of` may lag: two sweeps and a minute


def _record_rollup_batches(world: Deployment, monkeypatch: pytest.MonkeyPatch) -> list[Record]:
    """Returns a list, to which each later record for the rollup is added."""
    received, invoke = list[Record](), world._invoke

    def invoke_and_record(consumer: str, shard: Any, batch: list[Record]) -> bool:
        received.extend(batch if consumer == "rollup" else ())
        return invoke(consumer, shard, batch)

    monkeypatch.setattr(world, "_invoke", invoke_and_record)
    return received


def test_heartbeats_advance_as_of_while_no_change_spills(monkeypatch: pytest.MonkeyPatch) -> None:
    with deployed() as world:
        received = _record_rollup_batches(world, monkeypatch)
        world.post()
        for turn in range(36):
            world.play(f"v{turn}")
            world.like(f"u{turn}")
            world.sleep(10)
            assert world.now_s - (world.as_of() or 0) <= LAG_S_MAX
        images = [record["dynamodb"]["NewImage"] for record in received]
        assert images, "the rollup gets heartbeats"
        assert all("heartbeat" in str(image).lower() for image in images)
        world.run_without_drift()


def test_as_of_does_not_pass_a_stalled_rollup_nor_its_spilled_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rollup that reports nothing proves nothing, whether a change has spilled or not."""
    with deployed() as world:
        received = _record_rollup_batches(world, monkeypatch)
        world.stall("rollup", "receipts")
        stalled_s = world.now_s
        for _ in range(4):
            world.play()
            world.run(1)
        world.spill(times=3)
        world.run(4)
        assert (world.as_of() or 0) <= stalled_s
        assert world.tally(PLAYS, "v") == 4
        world.resume()
        world.run(4)
        assert world.tally(PLAYS, "v") == 4 + 3
        assert (world.as_of() or 0) > stalled_s + 4 * 60, "as_of has passed the plays"
        assert sum("rollup" in record["dynamodb"]["NewImage"] for record in received) == 3
        world.run_without_drift()


@pytest.mark.parametrize("attribute", [{"S": "true"}, {"BOOL": False}, {"M": {}}])
def test_a_receipt_with_an_unknown_rollup_attribute_is_drift(attribute: dict[str, Any]) -> None:
    """The bookkeeper gets every receipt, and expects its change in the tally. The rollup never adds the change."""
    with deployed() as world:
        world.play()
        [receipt] = [item for item in world.scan("receipts") if item["id"]["S"].startswith("tally#")]
        forged = receipt | {"id": {"S": "tally#other"}, "nonce": {"S": "other"}, "rollup": attribute}
        world.raw.put_item(TableName=world.settings.receipts_table, Item=forged)
        world.wire.written_tables.add(world.settings.receipts_table)
        world.run_until_judged()
        assert world.tally(PLAYS, "v") == 1
        assert world.drifts() == {("plays", "v"): -1}
