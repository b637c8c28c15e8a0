"""One shard, one key, one record: none of them stops judging and `as_of` for all others, nor lets them run ahead."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError

import counters
from tally.drift import looks
from tally.streams.record import Declared
from tests.engines import new_engine
from tests.invariants import stream_model
from tests.invariants.judged import SEED, VISITS, Deployment, deployed
from tests.invariants.simulation import CALM, Clock, seeded
from tests.invariants.stream_model import Record, Streams
from tests.tiers import in_long

PAGE = "https://example.com/a"
BEHIND_S = 600  # seconds that `as_of` and the judge may be behind: what `status` calls wrong


def told(world: Deployment) -> float:
    found = world.as_of()
    assert found is not None
    return found


def check_on_time(world: Deployment) -> None:
    assert world.now_s - told(world) < BEHIND_S
    assert world.now_s - 60 * (world.judged + 1) < BEHIND_S
    assert looks.lag(world.store).word == "ok"


def test_leaf_of_a_split_that_has_only_changes_stops_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """j1: the likes of a hot post on one side, its tally on the other, where nothing comes that is for the rollup."""
    hot, plain = "POST#hot", stream_model.position

    def position(key: dict[str, dict[str, str]]) -> float:
        if key.get("PK", {}).get("S") == hot:
            return 0.9991 if key["SK"]["S"].startswith("LIKE#") else 0.9996
        return plain(key) * 0.999

    def one_by_one(self: Streams, table: str, shard: str, sequence: str | None) -> Iterator[list[Record]]:
        for answer in records_after(self, table, shard, sequence):
            yield from ([record] for record in answer)

    records_after = Streams.records_after
    monkeypatch.setattr(stream_model, "position", position)
    monkeypatch.setattr(Streams, "records_after", one_by_one)
    with deployed() as world:
        world.streams.split_at(world.streams.open_shards("counts")[0], 0.9995)
        image = {"PK": {"S": hot}, "SK": {"S": "META"}, "likeTally": {"N": "7"}, "nonce": {"S": "n"}, "at": {"N": "1"}}
        key = {name: image[name] for name in ("PK", "SK")}
        for _ in range(50):
            change = {"Keys": key, "NewImage": image, "OldImage": image}
            leaf = world.streams.append("counts", {"eventName": "MODIFY", "dynamodb": change})
        world._wake("bookkeeper", leaf)
        for minutes in (20, 20, 60):
            world.play()
            world.run(minutes)
            check_on_time(world)
        world.edit(50, target="p2")
        world.run(14)
        assert world.drifts() == {("likes", "p2"): 50}


@pytest.mark.parametrize("every", [True, *in_long([False])])
def test_heartbeat_that_is_throttled_stops_nobody(every: bool) -> None:
    """j6: a viral post's partition throttles, and the keys of heartbeats lie there."""
    with deployed(shards=3) as world:
        world.play()
        world.run(5)
        mark = min(world.rows("CHECKPOINT#bookkeeper#counts"), key=lambda mark: str(mark["SK"]["S"]))
        key = mark["heartbeat"]["S"]
        put, refused = world.wire.put_item, list[str]()

        def throttled(**write: Any) -> Any:
            name = {part: value for part, value in write["Item"].items() if part in ("PK", "SK", "id")}
            there = "SK" in name and world.streams._at("counts", stream_model.position(name)).id == mark["SK"]["S"]
            if name.get("PK", {}).get("S") == f"HEARTBEAT#{key}" or (every and there):
                refused.append(key)
                raise ClientError({"Error": {"Code": "ProvisionedThroughputExceededException"}}, "PutItem")
            return put(**write)

        world.wire._made["put_item"] = throttled
        for _ in range(3):
            world.play()
            world.run(10)
            check_on_time(world)
        assert len(refused) >= (30 if every else 1)


@pytest.mark.parametrize("dropped", [False, True], ids=["redriven", "dropped"])
def test_as_of_does_not_pass_a_visit_that_is_a_dead_letter(dropped: bool) -> None:
    """j13: an answer said that every visit before `as_of` is included."""
    with deployed() as world:
        less = Declared({name: counter for name, counter in counters.COUNTERS.items() if name != "visits"})
        world.handlers["rollup"].declared = less
        world.spill(PAGE, 5, VISITS)
        accepted_s = world.now_s
        world.deliver()
        world.handlers["rollup"].declared = Declared(counters.COUNTERS)
        for _ in range(20):
            world.run(0.5)
            assert told(world) <= accepted_s
        if dropped:
            for row in world.rows("DEADLETTER"):
                world.wire.delete_item(
                    TableName=world.settings.ledger_table, Key={name: row[name] for name in ("PK", "SK")}
                )
        else:
            assert world.redrive(counters.COUNTERS) == ["applied"] * 5
        world.written()
        world.run(5)
        check_on_time(world)


@pytest.mark.parametrize("after_s", [0, 8, 70])
def test_edit_in_the_first_minute_of_a_stack_is_found(after_s: int) -> None:
    """A5: the judge began some minutes after the first sweep, and nobody looked at those before."""
    clock = Clock()
    with new_engine() as engine, seeded(clock, SEED):
        world = Deployment(engine, clock, SEED, CALM, 1)
        world.play(times=12)
        world.sleep(after_s)
        world.edit(5, counters.PLAYS, "v")
        world.sleep(100 - after_s)
        world.sweep_each_minute()
        world.run(20)
        assert world.drifts() == {("plays", "v"): 5}
        world.wire.close()


def test_sweep_that_comes_late_for_the_first_time_makes_no_drift() -> None:
    """One half of a change was booked before there was a judge, the other one after it had begun."""
    clock = Clock()
    with new_engine() as engine, seeded(clock, SEED):
        world = Deployment(engine, clock, SEED, CALM, 1)
        world.play(times=3)
        world.sleep(60)
        world.stall("bookkeeper", "counts")
        world.play(times=4)
        world.edit(5, counters.PLAYS, "v")
        world.sleep(12 * 60)
        world.sweep_each_minute()
        world.run(1)
        world.resume()
        world.run(30)
        assert world.drifts() == {("plays", "v"): 5}
        world.wire.close()
