"""The journal, hour by hour: traffic is no drift, however late; an edit is, by its amount; a repair takes just that."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

import counters
from local.base.engine import Engine
from tally.counting import tallies
from tally.drift import judge, reconcile, rows
from tally.dynamo import keys
from tally.dynamo.client import Call
from tally.streams import evidence, set_aside
from tally.streams.record import Declared
from tests.invariants.deployment import CONSUMERS
from tests.invariants.processes import Crash, Sleeper, killed
from tests.invariants.schedules import FOREVER_S, Asked, Schedule
from tests.invariants.simulation import CALM, Clock, Stall, World, seeded
from tests.invariants.stream_model import Modelled, position
from tests.invariants.traffic import RESTORED

VIDEO, POST = "v0", "p0"
SEED = 0  # its world begins with several shards of each table
BEGINS_IN = 10  # minutes, from the first sweep to the first judged minute
FOUND_IN = 13  # minutes, from an edit to its confirmed row: up to 7 to the row, 5 that it stands


@contextlib.contextmanager
def begun(sweep_at_s: float) -> Iterator[Schedule]:
    """A calm deployment whose judge has begun: every process does its work at once, in one go.

    `sweep_at_s`: when in its minute the sweep runs.
    """
    clock = Clock()
    with Engine() as engine, seeded(clock, SEED):
        world = World(engine, clock, SEED, CALM)
        assert all(len(shards) >= 2 for shards in world.streams.shards.values())
        made = Schedule(world)
        world.soon(sweep_at_s, made.sweep_roughly)
        made.minutes(BEGINS_IN)
        assert made.first_judged is not None
        yield made
        world.close()


@pytest.fixture
def journal() -> Iterator[Schedule]:
    with begun(0) as made:
        yield made


def settled(journal: Schedule) -> dict[str, int]:
    """Wait until all is judged; what was wrong at any time, which should be nothing."""
    journal.world.stalls.clear()
    journal.rest()
    journal.check_at_rest()
    return dict(journal.bad)


def heavy(journal: Schedule, minutes: int) -> None:
    """Plays, visits, likes, and unlikes of old likes and young ones; every other half minute the keys are hot."""
    for turn in range(2 * minutes):
        for _ in range(2):
            journal.traffic.play(turn % 2 == 0, VIDEO)
        journal.traffic.visit()
        journal.traffic.like(turn % 2 == 0, POST)
        if turn % 3 == 2:
            journal.traffic.unlike()
        journal.minutes(0.5)


def stall(journal: Schedule, minutes: float, *where: str | int | None) -> None:
    """Invoke a consumer no more: of which name, in which table, in which shard; None: every one."""
    now_s = journal.world.clock.now_s
    journal.world.stalls.append(Stall(now_s, now_s + 60 * minutes, *where))  # type: ignore[arg-type]


def shard_of(journal: Schedule, partition: str, sort_key: str) -> tuple[int, Modelled]:
    """The shard of counts that an item's records go to, and which one it is."""
    at = position(keys.key(partition, sort_key))
    for number, shard in enumerate(journal.world.streams.shards["counts"]):
        if shard.is_open and shard.low <= at < shard.high:
            return number, shard
    raise AssertionError


def as_of(journal: Schedule) -> float:
    """What readers are told."""
    evidence._cached = None
    told = evidence.as_of(Call(journal.world.store))
    assert told is not None
    return told


# ---- traffic is no drift ----


def test_half_an_hour_of_heavy_traffic_is_no_drift_at_any_time(journal: Schedule) -> None:
    heavy(journal, 30)
    assert settled(journal) == {}
    assert tallies.read(Call(journal.world.store), counters.PLAYS, VIDEO) == 120


@pytest.mark.parametrize("where", [("rollup", "counts"), ("rollup", "receipts"), ("rollup",), ("drift",)])
def test_consumer_that_lags_20_minutes_is_no_drift_and_hides_none(journal: Schedule, where: tuple[str, ...]) -> None:
    heavy(journal, 3)
    stall(journal, 20, *where)
    heavy(journal, 10)
    journal.traffic.move_tally(("plays", VIDEO), 7)
    heavy(journal, 12)
    assert settled(journal) == {}
    assert journal.drifts() == {("plays", VIDEO): 7}


@pytest.mark.parametrize("consumer", ["rollup", "drift"])
@pytest.mark.parametrize("table", ["counts", "receipts"])
def test_consumer_that_is_stuck_in_one_shard_is_no_drift(journal: Schedule, consumer: str, table: str) -> None:
    """Finding p12: its pulses came through another shard, so it was judged all the same."""
    stall(journal, 40, consumer, table, 0)
    stuck = journal.world.settings.minute(journal.world.clock.now_s)
    heavy(journal, 5)
    journal.minutes(30)
    assert (journal.drifts(), journal.judged() < stuck) == ({}, True)
    assert settled(journal) == {}


def test_both_consumers_that_are_down_for_half_an_hour_are_no_drift(journal: Schedule) -> None:
    stall(journal, 30)
    heavy(journal, 31)
    assert settled(journal) == {}


@pytest.mark.parametrize("stalled_s", [100, 450])
def test_changes_under_way_when_judging_begins_are_no_drift(stalled_s: int) -> None:
    """The first judged minute was ahead of what the consumers had passed: a half that came later stood alone."""
    clock = Clock()
    with Engine() as engine, seeded(clock, SEED):
        world = World(engine, clock, SEED, CALM)
        journal = Schedule(world)
        world.stalls = [Stall(clock.now_s + stalled_s, clock.now_s + 1200, "drift", "counts")]
        world.soon(0, journal.sweep_roughly)
        heavy(journal, 12)
        assert settled(journal) == {}
        world.close()


def test_change_whose_halves_fall_on_two_sides_of_a_minute_is_no_drift(journal: Schedule) -> None:
    heavy(journal, 2)
    journal.world.plan = replace(CALM, gaps=1)  # its records come up to 1.9 s later, one after the other
    for _ in range(3):
        journal.world.run(journal.world.clock.now_s // 60 * 60 + 118.5)
        for _ in range(4):
            journal.traffic.unlike()
            journal.traffic.play(False, VIDEO)
            journal.traffic.like(False, POST)
    assert settled(journal) == {}


def test_change_that_is_committed_half_a_minute_late_is_no_drift(journal: Schedule) -> None:
    for second in (5, 25, 58):
        journal.world.run(journal.world.clock.now_s // 60 * 60 + 60 + second)
        with journal.world.clock.off(-30):
            journal.traffic.play(False, VIDEO)
            journal.traffic.visit()
            journal.traffic.like(True)
    assert settled(journal) == {}


def test_split_shards_are_no_drift(journal: Schedule) -> None:
    for _ in range(6):
        journal.world.streams.split()
        heavy(journal, 3)
    assert settled(journal) == {}


def test_shard_inside_one_item_collection_stops_nothing(journal: Schedule) -> None:
    """No key of the pulses lies there: the sweep reads it."""
    journal.world.streams.carve()
    heavy(journal, 3)
    assert settled(journal) == {}
    assert evidence.read(journal.world.store, journal.world.clock()).item["unreached"] != {"S": "{}"}


def test_expiry_of_a_receipt_is_no_drift(journal: Schedule) -> None:
    journal.traffic.visit()
    journal.minutes(2)
    receipts = journal.world.wire.scan(TableName=journal.world.names["receipts"])["Items"]
    for receipt in receipts:
        key = {"id": receipt["id"]}
        journal.world.wire.delete_item(TableName=journal.world.names["receipts"], Key=key)
    journal.world.written()
    assert settled(journal) == {}


# ---- an edit by hand is found ----


def around_tally(journal: Schedule) -> tuple[str, str, int]:
    journal.traffic.move_tally(("likes", POST), -3)
    return "likes", POST, -3


def around_like(journal: Schedule) -> tuple[str, str, int]:
    """As TTL would, too: a like that vanishes is drift, whoever removed it."""
    journal.traffic.delete_child((POST, journal.traffic.like(False, POST)))
    return "likes", POST, 1


def child_without_tally(journal: Schedule) -> tuple[str, str, int]:
    journal.traffic.add_child(POST)
    return "likes", POST, -1


def tally_without_child(journal: Schedule) -> tuple[str, str, int]:
    journal.traffic.move_tally(("likes", POST), 1, shard=3)
    return "likes", POST, 1


def play_without_receipt(journal: Schedule) -> tuple[str, str, int]:
    """As a plain ADD around the API would, stamps and all."""
    world = journal.world
    at = world.settings.minute(world.clock())
    world.wire.update_item(**tallies.add(Call(world.store), counters.PLAYS, VIDEO, 0, 2, at))
    journal.truth.edits["plays", VIDEO].append((at, 2))
    world.written()
    return "plays", VIDEO, 2


def deleted_tally(journal: Schedule) -> tuple[str, str, int]:
    """One of its items."""
    world = journal.world
    where = {"TableName": world.names["counts"], "Key": tallies.key(counters.PLAYS, VIDEO, 0)}
    amount = int(world.wire.get_item(**where)["Item"]["play_count"]["N"])
    world.wire.delete_item(**where)
    journal.traffic._edited(("plays", VIDEO), -amount)
    return "plays", VIDEO, -amount


EDITS = [around_tally, around_like, child_without_tally, tally_without_child, play_without_receipt, deleted_tally]


@pytest.mark.parametrize("edit", EDITS)
def test_edit_by_hand_is_found_with_its_amount(
    journal: Schedule, edit: Callable[[Schedule], tuple[str, str, int]]
) -> None:
    for _ in range(3):
        journal.traffic.play(False, VIDEO)
    heavy(journal, 2)
    counter, target, amount = edit(journal)
    heavy(journal, 3)
    assert settled(journal) == {}
    assert journal.drifts() == {(counter, target): amount}


@pytest.mark.parametrize("by", ["", "+", "~60.", "-0123456789ab."])
def test_old_image_that_is_put_back_is_found(journal: Schedule, by: str) -> None:
    """It has the nonce of a change, of the rollup, a repair or an unlike, and a minute that is judged long since."""
    heavy(journal, 2)
    journal.traffic.restore(by)
    heavy(journal, 2)
    assert settled(journal) == {}
    (((counter, target), drift),) = journal.drifts().items()
    assert (counter, target.startswith(RESTORED), drift) == ("visits", True, drift)


def test_edit_is_listed_in_six_and_a_half_minutes_in_the_median_and_confirmed_in_twelve() -> None:
    """It depends on where in a minute the edit is, and the sweep."""
    listed_s: list[float] = []
    confirmed_s: list[float] = []
    for sweep_at_s in (10, 30, 50):
        with begun(sweep_at_s) as journal:
            edited_s = journal.world.clock.now_s
            for second in range(0, 60, 7):
                journal.world.run(edited_s + second)
                journal.traffic.move_tally(("plays", f"v{second}"), 50)
            seen_s = watched(journal, FOUND_IN * 60)
            assert len(seen_s) == 2 * len(range(0, 60, 7))
            for (target, is_confirmed), at_s in seen_s.items():
                (confirmed_s if is_confirmed else listed_s).append(at_s - edited_s - int(target[1:]))
    assert statistics.median(listed_s) <= 6.5 * 60
    assert statistics.median(confirmed_s) <= 12 * 60


def watched(journal: Schedule, seconds: int) -> dict[tuple[str, bool], float]:
    """When each drift was first listed, and when it was first confirmed: by target."""
    found: dict[tuple[str, bool], float] = {}
    for _ in range(0, seconds, 5):
        journal.world.run(journal.world.clock.now_s + 5)
        seen = evidence.read(journal.world.store, journal.world.clock())
        for _, row in rows.every(journal.world.store):
            for state in {False, row.confirmed(seen)}:
                found.setdefault((row.target, state), journal.world.clock.now_s)
    return found


def confirmed(journal: Schedule) -> bool:
    """Whether the play's drift is."""
    seen = evidence.read(journal.world.store, journal.world.clock())
    row = rows.read(journal.world.store, "plays", VIDEO)
    return row is not None and row.confirmed(seen)


# ---- `as_of` ----


@pytest.mark.parametrize("table", ["counts", "receipts"])
def test_as_of_stops_where_the_rollup_is_stuck_in_one_shard(journal: Schedule, table: str) -> None:
    """Finding p11: it said that numbers were complete up to five seconds ago."""
    stuck_s = journal.world.clock.now_s
    stall(journal, 10, "rollup", table, 1)
    heavy(journal, 9)
    assert stuck_s - 180 <= as_of(journal) <= stuck_s
    journal.minutes(4)
    assert as_of(journal) >= journal.world.clock.now_s - 180


def test_as_of_stops_with_the_sweep_and_the_consumers(journal: Schedule) -> None:
    """Finding p16."""
    died_s = journal.world.clock.now_s
    journal.sweeping = False
    stall(journal, 120)
    journal.minutes(120)
    assert as_of(journal) <= died_s


def test_as_of_is_never_ahead_of_a_visit_that_no_consumer_saw(journal: Schedule) -> None:
    """Finding p17: nothing seemed to be left to do, because nobody looked."""
    heavy(journal, 2)
    stall(journal, 10, "rollup")
    journal.traffic.visit()
    accepted_s = journal.world.clock.now_s
    for _ in range(40):
        journal.minutes(0.25)
        assert as_of(journal) <= accepted_s


def test_shard_that_is_not_listed_yet_holds_as_of_up(journal: Schedule) -> None:
    """One child of a split is listed, the other one not yet: a visit waits there that the rollup has not seen."""
    world = journal.world
    (parent, *_) = world.streams.open_shards("receipts")
    world.streams.split_at(parent, (parent.low + parent.high) / 2)
    first, second = world.streams.shards["receipts"][-2:]
    second.listed_s = world.clock.now_s + 50
    stall(journal, 5, "rollup", "receipts", world.streams.shards["receipts"].index(second))
    while not second.records:
        journal.traffic.visit()
        world.run(world.clock.now_s + 2)
    oldest_s = min(world.truth.alone.values())
    for _ in range(10):
        world.run(world.clock.now_s + 10)
        journal.sweep()
        world.written()
        assert as_of(journal) <= oldest_s
    assert first.records


# ---- the judge ----


@pytest.mark.parametrize(("at", "committed"), [(at, committed) for at in range(6) for committed in (False, True)])
def test_judge_that_is_killed_at_any_write_is_finished_by_the_next(journal: Schedule, at: int, committed: bool) -> None:
    quiet = three_edits(journal)
    with pytest.raises(Crash):
        judge_all(journal, killed(journal.world.wire, quiet + at, committed=committed))
    journal.sweeping = True
    assert settled(journal) == {}


@pytest.mark.parametrize("at", range(6))
def test_judge_that_wakes_up_late_changes_nothing(journal: Schedule, at: int) -> None:
    """Also when the rows that it read were judged, repaired and judged again meanwhile."""
    quiet = three_edits(journal)
    sleeper = Sleeper(journal.world.wire, quiet + at, lambda client: judge_all(journal, client))
    assert sleeper.asleep
    journal.sweeping = True
    journal.minutes(FOUND_IN)
    for tally in journal.drifts():
        assert journal.repair(tally)
    journal.world.written()
    sleeper.wake()
    assert settled(journal) == {}
    assert journal.drifts() == {}


def three_edits(journal: Schedule) -> int:
    """Edits on three minutes, two of them of one tally; nobody has judged them yet.

    How many minutes before them are to be judged: each is a write. A minute of the three is a row, and a write.
    """
    journal.sweeping = False
    quiet = journal.world.settings.minute(journal.world.clock.now_s) - journal.judged() - 1
    for tally, amount in ((("plays", VIDEO), 5), (("likes", POST), 3), (("plays", VIDEO), -2)):
        journal.traffic.move_tally(tally, amount)
        journal.minutes(1)
    for _ in range(6):  # the evidence grows, and nobody judges
        journal.minutes(1)
        now_s = journal.world.clock()
        evidence.renew(journal.world.store, journal.world.shards, evidence.read(journal.world.store, now_s), now_s)
        journal.world.written()
    journal.minutes(1)
    return quiet


def judge_all(journal: Schedule, client: object) -> None:
    """What the sweep judges now."""
    store, now_s = journal.store(client), journal.world.clock()
    judge.judge(store, evidence.read(store, now_s), now_s, until_s=FOREVER_S)


# ---- repairs ----


def test_repair_takes_back_an_edit_while_likes_arrive(journal: Schedule) -> None:
    heavy(journal, 2)
    journal.traffic.move_tally(("likes", POST), 50)
    heavy(journal, FOUND_IN)
    assert journal.drifts() == {("likes", POST): 50}
    assert journal.repair(("likes", POST))
    journal.world.written()
    heavy(journal, 3)
    assert settled(journal) == {}
    assert journal.drifts() == {}


def test_repair_while_the_consumers_stand_still_adds_nothing_twice(journal: Schedule) -> None:
    """Finding p1: a spilled like was under way; the repair added it, and then the rollup."""
    heavy(journal, 2)
    stall(journal, 15)
    journal.traffic.like(True, POST)
    journal.minutes(3)
    asked = journal.ask(("likes", POST))
    for _ in range(20):
        journal.minutes(1)
        with contextlib.suppress(reconcile.NotProvenError):
            assert journal.mend(("likes", POST), asked) is None
    assert journal.mend(("likes", POST), asked) is None
    assert settled(journal) == {}
    assert journal.drifts() == {}


def test_edit_that_is_undone_before_the_repair_is_not_repaired(journal: Schedule) -> None:
    """Finding p7: the row said -5, and the ledger knew better."""
    for _ in range(10):
        journal.traffic.play(False, VIDEO)
    journal.traffic.move_tally(("plays", VIDEO), -5)
    journal.minutes(FOUND_IN)
    journal.traffic.move_tally(("plays", VIDEO), 5)
    journal.world.run(journal.world.clock.now_s + 20)  # it is delivered, and not judged
    assert confirmed(journal)
    assert journal.repair(("plays", VIDEO)) is None
    assert settled(journal) == {}
    assert journal.drifts() == {}
    assert tallies.read(Call(journal.world.store), counters.PLAYS, VIDEO) == 10


def test_record_that_is_set_aside_is_not_repaired_and_redriven(journal: Schedule) -> None:
    """Finding p10: the two runbooks of one record added it twice."""
    world = journal.world
    world.wire.put_item(TableName=world.names["counts"], Item=broken("STATS#TOTAL"))
    for number in range(1, counters.PLAYS.max_shards):
        world.wire.put_item(TableName=world.names["counts"], Item=broken(f"STATS#TOTAL#{number}"))
    world.forget()
    journal.traffic.play(True, "broken")
    journal.minutes(1)
    (marker,) = set_aside.listed(Call(world.store))
    for item in world.wire.scan(TableName=world.names["counts"])["Items"]:
        if item["PK"]["S"] == "VID#broken":
            world.wire.delete_item(TableName=world.names["counts"], Key=keys.key("VID#broken", item["SK"]["S"]))
    world.forget()
    journal.minutes(FOUND_IN)
    assert journal.drifts() == {("plays", "broken"): -1}
    with pytest.raises(reconcile.NotProvenError):
        journal.repair(("plays", "broken"))
    declared = Declared(counters.COUNTERS, world.settings.minute_s)
    objects, judged = set_aside.Objects("bucket", lambda: world.bucket), journal.judged()
    set_aside.redrive(Call(world.store), objects, CONSUMERS, declared, marker, judged)
    world.written()
    journal.minutes(8)
    assert journal.drifts() == {}
    assert journal.repair(("plays", "broken")) is None
    assert tallies.read(Call(world.store), counters.PLAYS, "broken") == 1


def broken(sort_key: str) -> dict[str, dict[str, str]]:
    """A tally item that DynamoDB adds nothing to."""
    return {**keys.key("VID#broken", sort_key), "play_count": {"S": "oops"}}


def test_drift_is_not_repaired_before_it_is_confirmed(journal: Schedule) -> None:
    journal.traffic.move_tally(("plays", VIDEO), 5)
    while not journal.drifts():
        journal.minutes(1)
    with pytest.raises(reconcile.NotProvenError):
        journal.mend(("plays", VIDEO), Asked())


@pytest.mark.parametrize("committed", [False, True])
def test_repair_that_dies_is_done_once(journal: Schedule, committed: bool) -> None:
    journal.traffic.move_tally(("plays", VIDEO), 5)
    journal.minutes(FOUND_IN)
    with pytest.raises(Crash):
        journal.repair(("plays", VIDEO), killed(journal.world.wire, 0, committed=committed))
    assert (journal.repair(("plays", VIDEO)) is None) == committed
    journal.world.written()
    assert settled(journal) == {}
    assert journal.drifts() == {}
    assert tallies.read(Call(journal.world.store), counters.PLAYS, VIDEO) == 0


def test_two_repairs_at_once_take_it_back_once(journal: Schedule) -> None:
    journal.traffic.move_tally(("plays", VIDEO), 5)
    journal.minutes(FOUND_IN)
    asked = journal.ask(("plays", VIDEO))
    journal.wait(asked)
    sleeper = Sleeper(journal.world.wire, 0, lambda client: journal.mend(("plays", VIDEO), asked, client))
    assert journal.mend(("plays", VIDEO), asked)
    sleeper.wake()
    journal.world.written()
    assert settled(journal) == {}
    assert journal.drifts() == {}


@pytest.mark.parametrize("how", ["repaired", "undone"])
def test_count_that_comes_to_the_same_for_another_reason_repairs_nothing(journal: Schedule, how: str) -> None:
    """What the first count found is gone, and what the second one finds is not judged yet: it would be in the row."""
    user = journal.traffic.add_child(POST)
    journal.minutes(FOUND_IN)
    asked = journal.ask(("likes", POST))
    assert asked.counted == 1
    if how == "repaired":
        assert journal.repair(("likes", POST))
        journal.world.written()
    else:
        journal.traffic.delete_child((POST, user))
        journal.minutes(10)
    journal.traffic.add_child(POST)
    with pytest.raises(reconcile.NotProvenError):
        journal.mend(("likes", POST), asked)
    assert settled(journal) == {}
    assert journal.drifts() == {("likes", POST): -1}
