"""Records that were set aside are redriven: each takes effect once, on the current minute."""

from __future__ import annotations

import json
import time

import pytest

import counters
import faults
from faults import FaultProxy
from tally.counting import tallies
from tally.dynamo.client import Call, Store
from tally.errors import StoreUnreachableError
from tally.streams import record as stream_records
from tally.streams import set_aside
from tally.streams.pages import Entry
from tally.streams.set_aside import Objects
from tests.invariants.stream_records import BAD, MINUTE, SHARD, lossy_world, play
from tests.invariants.streaming import CONSUMERS, LONG, REDECLARED, StreamWorld
from tests.invariants.threads import at_once


@pytest.fixture
def world(store: Store) -> StreamWorld:
    return StreamWorld(store, store.client)


@pytest.fixture
def lossy(store: Store, proxy: FaultProxy) -> StreamWorld:
    return lossy_world(store, proxy)


def aside(world: StreamWorld) -> None:
    """Two plays of a counter that is not declared, set aside."""
    retired = {"counter": {"S": "retired"}}
    world.deliver("rollup", "receipts", SHARD, [play(1, **retired), play(2, amount=5, **retired), play(3)])
    assert world.marked()["rollup"] == {"1", "2"}


def test_a_redriven_record_takes_effect_once_and_is_set_aside_no_more(world: StreamWorld) -> None:
    aside(world)
    assert world.redrive() == ["applied", "applied"]
    assert world.redrive() == []
    assert world.tallies() == {("plays", "v"): 1, ("retired", "v"): 6}
    assert world.bucket.objects == {}
    assert world.rows("SETASIDE") == []


def test_a_record_that_still_cannot_be_applied_stays_and_says_why(world: StreamWorld) -> None:
    world.deliver("rollup", "receipts", SHARD, [BAD, play(51, LONG), play(52, counter={"S": "retired"})])
    call, known = Call(world.store), stream_records.Declared(counters.COUNTERS)
    objects = Objects("bucket", lambda: world.bucket)
    found = [set_aside.redrive(call, objects, CONSUMERS, known, marker, -1) for marker in list(set_aside.listed(call))]
    assert {outcome.value for outcome, _ in found} == {"kept"}
    for (_, why), part in zip(found, ("amount is no whole number", "", "retired"), strict=True):
        assert part in why
    assert world.marked()["rollup"] == {"50", "51", "52"}
    assert world.tallies() == {}


def test_a_tally_item_of_the_wrong_type_is_mended_and_what_it_kept_out_redriven(world: StreamWorld) -> None:
    shards = [tallies.key(counters.PLAYS, "v", shard) for shard in range(counters.PLAYS.max_shards)]
    for key in shards:
        world.raw.put_item(TableName=world.store.settings.counts_table, Item={**key, "play_count": {"S": "x"}})
    assert world.deliver("rollup", "receipts", SHARD, [play(1, "w"), play(2), play(3, "w"), play(4)]) is None
    assert world.marked()["rollup"] == {"2", "4"}
    assert world.redrive() == ["kept", "kept"]
    for key in shards:
        world.raw.put_item(TableName=world.store.settings.counts_table, Item={**key, "play_count": {"N": "1"}})
    assert world.redrive() == ["applied", "applied"]
    assert world.tallies() == {("plays", "w"): 2, ("plays", "v"): len(shards) + 2}


def test_two_who_redrive_at_once_apply_it_once(world: StreamWorld) -> None:
    aside(world)
    marked = list(set_aside.listed(Call(world.store)))
    known, objects = stream_records.Declared(REDECLARED), Objects("bucket", lambda: world.bucket)

    def redrive() -> list[str]:
        call = Call(world.store)
        return [set_aside.redrive(call, objects, CONSUMERS, known, marker, -1)[0].value for marker in marked]

    found = at_once([redrive] * 4)
    assert sorted(outcome for each in found for outcome in each) == ["applied"] * 2 + ["gone"] * 6
    assert world.tallies() == {("plays", "v"): 1, ("retired", "v"): 6}


@pytest.mark.parametrize("times", [1, 3])
def test_a_redrive_whose_answer_is_lost_applies_once(lossy: StreamWorld, proxy: FaultProxy, times: int) -> None:
    aside(lossy)
    proxy.plan = faults.script({"TransactWriteItems": [faults.LOSE_RESPONSE] * times})
    try:
        lossy.redrive()
    except StoreUnreachableError:
        lossy.redrive()
    assert lossy.tallies() == {("plays", "v"): 1, ("retired", "v"): 6}
    assert lossy.marked()["rollup"] == set()


@pytest.mark.parametrize("judged", [-1, 10**9], ids=["as it should", "our clock is behind"])
def test_what_drift_set_aside_is_booked_on_the_current_minute_when_redriven(world: StreamWorld, judged: int) -> None:
    world.deliver("drift", "receipts", SHARD, [play(1, at=10**11), play(2)])
    world.put_judged(judged)
    (key,) = world.bucket.objects
    kept = json.loads(world.bucket.objects[key])
    kept["record"]["dynamodb"]["NewImage"]["at"] = {"N": str(MINUTE)}  # the operator has mended it
    world.bucket.objects[key] = json.dumps(kept).encode()
    assert world.redrive() == ["applied"]
    (first, _, entries), (second, name, redriven) = sorted(world.pages())
    assert entries == redriven == [Entry("plays", "v", "", 1, 0)]
    assert (first, name) == (MINUTE, f"receipts#redrive#drift#{SHARD}#1#1")
    assert 0 <= second - max(int(time.time() // 60) - 1, judged + 2) <= 1


def test_an_object_that_is_gone_is_said(world: StreamWorld) -> None:
    aside(world)
    world.bucket.objects.clear()
    assert world.redrive() == ["kept", "kept"]
