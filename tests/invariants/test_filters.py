"""The rollup gets heartbeats and what waits for it: `as_of` goes on, and nothing is lost or hidden."""

from __future__ import annotations

from typing import Any

import pytest

from tests.delivery import Record
from tests.invariants.deployment import PLAYS, Deployment, deployed

BEHIND_S = 180  # that `as_of` is at most: two sweeps and a minute, whatever the rollup gets


def _handed(world: Deployment, monkeypatch: pytest.MonkeyPatch) -> list[Record]:
    """The list that grows by what the rollup is handed."""
    handed, invoke = list[Record](), world._invoke

    def noted(consumer: str, shard: Any, batch: list[Record]) -> bool:
        handed.extend(batch if consumer == "rollup" else ())
        return invoke(consumer, shard, batch)

    monkeypatch.setattr(world, "_invoke", noted)
    return handed


def test_as_of_goes_on_by_heartbeats_where_every_change_counts_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with deployed() as world:
        handed = _handed(world, monkeypatch)
        world.post()
        for turn in range(36):
            world.play(f"v{turn}")
            world.like(f"u{turn}")
            world.sleep(10)
            assert world.now_s - (world.as_of() or 0) <= BEHIND_S
        images = [record["dynamodb"]["NewImage"] for record in handed]
        assert images, "heartbeats pass in both streams"
        assert all("heartbeat" in str(image).lower() for image in images)
        world.assert_no_drift()


def test_as_of_waits_for_a_rollup_that_stands_still_and_so_for_what_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing follows from its silence, whether something waits for it or not."""
    with deployed() as world:
        handed = _handed(world, monkeypatch)
        world.stall("rollup", "receipts")
        stood_s = world.now_s
        for _ in range(4):
            world.play()
            world.run(1)
        world.spill(times=3)
        world.run(4)
        assert (world.as_of() or 0) <= stood_s
        assert world.tally(PLAYS, "v") == 4
        world.resume()
        world.run(4)
        assert world.tally(PLAYS, "v") == 7
        assert (world.as_of() or 0) > stood_s + 240
        assert sum("rollup" in record["dynamodb"]["NewImage"] for record in handed) == 3
        world.assert_no_drift()


@pytest.mark.parametrize("mark", [{"S": "true"}, {"BOOL": False}, {"M": {}}])
def test_a_receipt_with_another_mark_is_expected_at_once_and_so_shows_as_drift(mark: dict[str, Any]) -> None:
    """Nobody has ever rolled it up. The bookkeeper gets every receipt."""
    with deployed() as world:
        world.play()
        [receipt] = [item for item in world.scan("receipts") if item["id"]["S"].startswith("tally#")]
        alike = receipt | {"id": {"S": "tally#other"}, "nonce": {"S": "other"}, "rollup": mark}
        world.raw.put_item(TableName=world.settings.receipts_table, Item=alike)
        world.wire.written_tables.add(world.settings.receipts_table)
        world.run(8)
        assert world.tally(PLAYS, "v") == 1
        assert world.drifts() == {("plays", "v"): -1}
