"""The items of a team's own table, on the engine and its streams: counted exactly, whatever happens at once."""

from __future__ import annotations

import json
import os
import random
import time
from dataclasses import dataclass, replace
from typing import Any

import pytest

from tally.counter import COUNTERS_PER_TABLE_MAX, Counter
from tally.counting import tallies
from tally.dev.base.engine import Engine
from tally.drift import rows
from tally.dynamo.client import Call, Store
from tally.dynamo.shards import StreamShards, streams_client
from tally.dynamo.transactions import TRANSACTION_ITEMS_MAX, try_commit
from tally.errors import NotCountedError, StoreRefusedError
from tally.items import Items
from tally.maintenance.reconcile import Reconciler, repair_writes
from tally.streams import dead_letters, watermark
from tally.streams.dead_letters import DeadLetterBucket, RedriveOutcome
from tally.streams.record import CounterIndex
from tally.team import consumer, faults, first_seen, progress, scan_state, watch
from tally.team.recounts import STALE_MAX, Recount
from tally.team.scan_reader import ScanAbandonedError, UncountableError
from tests.contexts import LambdaContext
from tests.invariants.processes import Crash, WatchedClient, client_that_dies, interrupted_client
from tests.invariants.simulation import Clock
from tests.invariants.streaming import EngineStreams
from tests.invariants.team_table import LATER_S, Team
from tests.invariants.team_turns import COUNTERS, ORDERS_NUMBER, Turns, random_write
from tests.sync_wire import SyncWire
from tests.tiers import in_long

FIRST, _, END = os.environ.get("SCHEDULES", "6").rpartition(":")
SEEDS = range(int(FIRST or 0), int(END))
SEEDS_LONG = [] if "SCHEDULES" in os.environ else in_long(range(6, 500))
TURNS = 200


@pytest.fixture
def team(store: Store, engine: Engine) -> Team:
    wire = store.client
    assert isinstance(wire, SyncWire)
    return Team(store, wire, COUNTERS, "shop", engine.endpoint)


SHARED = {"status": {"S": "open"}}


def opened(total: str = "12", **more: Any) -> dict[str, Any]:
    return {"status": {"S": "open"}, "total": {"N": total}, **more}


def count_all(team: Team) -> None:
    for name in team.counters:
        team.count(name)


def everything(team: Team) -> dict[str, dict[str, int]]:
    return {name: numbers for name in team.counters if (numbers := team.numbers(name))}


def redeclared(team: Team, **counters: Counter) -> None:
    """The consumer is deployed with other declarations."""
    team.counters = {**team.counters, **counters}
    team.handler = team.process()


def other(name: str, **changes: Any) -> Counter:
    of = COUNTERS[name].items
    assert of is not None
    return replace(COUNTERS[name], items=replace(of, **changes))


def edit(team: Team, name: str, group: str, amount: int) -> None:
    counter = COUNTERS[name]
    team.wire.update_item(
        TableName=team.store.settings.counts_table, Key=tallies.key(counter, group, 0),
        UpdateExpression="ADD #n :amount", ExpressionAttributeNames={"#n": counter.attribute},
        ExpressionAttributeValues={":amount": {"N": str(amount)}},
    )  # fmt: skip


def off(recount: Recount) -> dict[str, int]:
    """By how much which numbers are off, by a scan that is settled."""
    return {one.group: one.excess for one in recount.all_differences() if one.excess}


def sets(recount: Recount) -> None:
    for one in recount.all_differences():
        assert recount.set_number(one)
    recount.close(counted=True)


def poisoned(team: Team) -> None:
    """The next record is one that nobody can read."""
    team.read_stream()
    (shard,) = team.shards.values()
    shard.records[shard.position]["dynamodb"].pop("NewImage")
    team.drain()


# ---- live ----


def test_it_says_live_what_sql_would_say(team: Team, clock: Clock) -> None:
    count_all(team)
    chance = random.Random(2)
    for _ in range(200):
        pk, sk, attributes = random_write(chance)
        if attributes is None:
            team.delete(pk, sk)
        else:
            team.put(pk, sk, **attributes)
    team.drain()
    for name in COUNTERS:
        assert team.numbers(name) == team.truth(name) != {}


def test_a_move_between_groups_and_a_removal_by_ttl_count(team: Team) -> None:
    count_all(team)
    for queue in ("it", "hr desk"):
        team.put("TICKET#1", "META", **SHARED, queue={"S": queue})
    team.put("CUSTOMER#a", "ORDER#1", **opened("12.5"))
    team.drain()
    assert everything(team) == {"tickets": {"hr~20desk": 1}, "open": {"a": 1}, "spent": {"a": 125}, "all": {"a": 1}}
    team.delete("CUSTOMER#a", "ORDER#1")
    team.read_stream()
    for shard in team.shards.values():  # as DynamoDB's own removal by TTL says it
        for record in shard.records[shard.position :]:
            record["userIdentity"] = {"type": "Service", "principalId": "dynamodb.amazonaws.com"}
    team.drain()
    assert everything(team) == {"tickets": {"hr~20desk": 1}}


def test_a_stream_of_keys_alone_counts_by_keys_and_sets_aside_what_needs_images(team: Team) -> None:
    for counters, letters in (({"all": COUNTERS["all"]}, 0), (COUNTERS, 1)):
        team.counters = counters
        team.handler = team.process()
        count_all(team)
        team.put("CUSTOMER#a", f"ORDER#{letters}", **opened())
        team.put("CUSTOMER#a", "PROFILE")
        team.read_stream()
        for shard in team.shards.values():
            for record in shard.records:
                record["dynamodb"].pop("NewImage", None)
        team.drain()
        assert (team.numbers("all"), len(team.bucket.objects)) == ({"a": 1}, letters)


def test_a_poison_record_delays_the_passed_time_but_no_other_record(team: Team) -> None:
    count_all(team)
    before_s = scan_state.passed_s(team.store, "shop")
    for number in range(3):
        team.put("CUSTOMER#a", f"ORDER#{number}", **opened())
    team.read_stream()
    (shard,) = team.shards.values()
    del shard.records[1]["dynamodb"]["NewImage"]
    team.drain()
    assert (team.numbers("all"), len(team.bucket.objects)) == ({"a": 2}, 1)
    team.sweep_later(LATER_S + 300)
    assert scan_state.passed_s(team.store, "shop") <= max(before_s, time.time())


@pytest.mark.parametrize("bad", ["0.05", "1E+20"])
def test_an_item_that_cannot_be_counted_is_reported_and_its_correction_is_a_move(team: Team, bad: str) -> None:
    count_all(team)
    kind = "large" if "E" in bad else "decimals"
    team.put("CUSTOMER#b", "ORDER#1", **opened("3"))
    for turn in range(2):
        team.put("CUSTOMER#a", "ORDER#9", **opened(bad))
        team.drain()
        assert team.numbers("spent") == {"b": 30, f"~-{kind}": 1}
        (fault,) = faults.read_faults(team.store, COUNTERS["spent"])
        assert (fault.kind, fault.items, fault.example[:31]) == (kind, 1, "CUSTOMER#a, ORDER#9: total is " + bad[0])
        if turn:
            team.delete("CUSTOMER#a", "ORDER#9")
        else:
            team.put("CUSTOMER#a", "ORDER#9", **opened("5"))
        team.drain()
        assert (team.numbers("spent"), list(faults.read_faults(team.store, COUNTERS["spent"]))) == (
            team.truth("spent"),
            [],
        )
    assert (team.numbers("spent"), team.bucket.objects) == ({"b": 30}, {})


def test_a_scan_counts_and_names_what_cannot_be_counted(team: Team) -> None:
    for number in range(60):
        team.put(f"CUSTOMER#{number}", "ORDER#1", **opened("0.05" if number % 3 else "5"))
    team.drain()
    team.count("spent")
    (fault,) = faults.read_faults(team.store, COUNTERS["spent"])
    assert (fault.kind, fault.items, ": total is 0.05: declare scale=2" in fault.example) == ("decimals", 40, True)
    assert team.numbers("spent") == team.truth("spent")


def test_a_sweep_beside_a_scan_leaves_the_examples_that_the_scan_found(team: Team) -> None:
    """The numbers of the faults are 0 until the scan ends."""
    spent = COUNTERS["spent"]
    team.put("CUSTOMER#a", "ORDER#1", **opened("0.05"))
    team.drain()
    recount = team.begin_scan("spent")
    list(recount.run_steps())
    assert list(faults.read_faults(team.store, spent, remove_stale=True)) == []
    team.drain()
    team.sweep_later()
    assert recount.set_many(list(recount.all_differences())) == []
    recount.close(counted=True)
    (fault,) = faults.read_faults(team.store, spent)
    assert (fault.items, fault.example) == (1, "CUSTOMER#a, ORDER#1: total is 0.05: declare scale=2")
    assert scan_state.begin(team.store, spent, time.time(), ["a"], spot=True)  # it takes no fault
    team.delete("CUSTOMER#a", "ORDER#1")
    team.drain()
    assert list(faults.read_faults(team.store, spent, remove_stale=True)) == []
    assert not any("example" in item for item in team.wire.scan(TableName=team.store.settings.counts_table)["Items"])


def test_an_item_that_comes_to_have_a_fault_in_place_of_another_one_is_the_example(team: Team) -> None:
    count_all(team)
    team.put("CUSTOMER#a", "ORDER#1", **opened("0.05"))
    team.drain()
    team.put("CUSTOMER#a", "ORDER#1", **opened("5"))
    team.put("CUSTOMER#b", "ORDER#2", **opened("0.07"))
    team.drain()
    (fault,) = faults.read_faults(team.store, COUNTERS["spent"])
    assert (fault.items, fault.example[:19]) == (1, "CUSTOMER#b, ORDER#2")


def test_a_check_of_a_fault_reads_the_whole_table(team: Team) -> None:
    count_all(team)
    for number in range(4):
        team.put(f"CUSTOMER#{number}", "ORDER#1", **opened("0.05"))
    team.drain()
    recount = team.begin_scan("spent", "~-decimals")
    team.finish_reading(recount)
    assert (recount.difference("~-decimals").number, recount.difference("~-decimals").excess) == (4, 0)


def many(team: Team) -> Recount:
    """A scan of 250 customers with an order each, which has ended."""
    for number in range(250):
        team.put(f"CUSTOMER#c{number}", "ORDER#1", **opened())
    team.drain()
    recount = team.begin_scan("all")
    team.finish_reading(recount)
    return recount


def test_numbers_are_set_a_hundred_at_once(team: Team) -> None:
    recount = many(team)
    client = WatchedClient(team.wire)
    recount = replace(recount, store=replace(team.store, client=client))
    assert recount.set_many(list(recount.all_differences())) == []
    assert (team.numbers("all"), client.writes) == (team.truth("all"), 3)
    again = list(recount.all_differences())
    assert [one.group for one in recount.set_many(again) if not one.is_set] == []
    assert (team.numbers("all"), client.writes) == (team.truth("all"), 3)


def test_nothing_is_set_at_once_when_the_scan_is_over_or_numbers_stand(team: Team) -> None:
    """One that stands may have a drift that somebody notes meanwhile: `set` looks at each."""
    recount = many(team)
    off = list(recount.all_differences())
    assert scan_state.close(team.store, recount.scan, COUNTERS["all"].items_digest)
    assert recount.set_many(off) == off
    assert team.numbers("all") == {}
    standing = team.begin_scan("all")
    team.finish_reading(standing)
    off = list(standing.all_differences())
    assert standing.set_many(off) == off
    assert team.numbers("all") == {}
    assert standing.set_number(off[0])


def test_a_number_with_a_drift_is_set_alone_and_its_drift_goes(team: Team) -> None:
    """A repair of that drift would move the number a second time."""
    recount = many(team)
    row = rows.read_row(team.store, "all", "c7")
    assert try_commit(team.store, [rows.recount_write(team.store, row, 5, time.time())])
    left = recount.set_many(list(recount.all_differences()))
    assert [one.group for one in left] == ["c7"]
    assert recount.set_number(left[0])
    assert (list(rows.all_rows(team.store)), team.numbers("all")) == ([], team.truth("all"))


def test_no_difference_is_drift_before_the_scan_has_set_the_numbers(team: Team) -> None:
    """They are about to be set: a repair would move them a second time."""
    recount = many(team)
    off = next(recount.all_differences())
    assert not recount.report_drift(off)
    assert list(rows.all_rows(team.store)) == []


def test_items_that_move_make_no_drift_of_the_journal(team: Team) -> None:
    """Tally's own judge leaves them out."""
    both = EngineStreams(team.store, team.wire)
    for handler in both.handlers.values():
        handler.declared = CounterIndex(team.counters)
    count_all(team)
    for number in range(5):
        team.put("CUSTOMER#a", f"ORDER#{number}", **opened())
    team.drain()
    edit(team, "open", "a", 3)
    both.drain()
    assert (both.ledger(), both.dead_letter_sequences()) == ({}, {"rollup": set(), "bookkeeper": set()})


# ---- the scan, and what it sets ----


def test_nothing_is_shown_before_what_is_there_is_counted(team: Team) -> None:
    team.put("CUSTOMER#a", "ORDER#1", **opened())
    team.drain()  # it counts nothing yet
    recount = team.begin_scan("open")
    for _ in recount.run_steps():
        team.put("CUSTOMER#a", "ORDER#2", **opened())
        with pytest.raises(NotCountedError, match="run `tally scan open`"):
            team.read("open", "a")
    assert not recount.is_complete()
    team.drain()
    team.sweep_later()
    assert recount.is_complete()
    with pytest.raises(NotCountedError):
        team.read("open", "a")
    sets(recount)
    assert team.read("open", "a") == 2


@pytest.mark.parametrize("groups", [(), ("a",)])
def test_a_recount_finds_exactly_the_error_under_traffic_and_a_repair_takes_it_off(
    team: Team, groups: tuple[str, ...]
) -> None:
    count_all(team)
    for number in range(6):
        team.put(f"CUSTOMER#{'ab'[number % 2]}", f"ORDER#{number}", **opened())
    team.drain()
    edit(team, "spent", "a", 7)
    edit(team, "spent", "b", -3)
    recount = team.begin_scan("spent", *groups)
    for step, _ in enumerate(recount.run_steps()):
        team.put("CUSTOMER#a", f"ORDER#{step}", **opened("1"))
        team.delete("CUSTOMER#b", f"ORDER#{step + 1}")
    team.drain()
    team.sweep_later()
    assert recount.is_complete()
    for turn in range(3):
        team.put("CUSTOMER#a", f"LATER#{turn}", **opened())
        team.put("CUSTOMER#a", f"ORDER#{turn}", **opened("3"))
        team.drain()
        found = {group: recount.difference(group).excess for group in groups} or off(recount)
        assert found == {"a": 7} | ({} if groups else {"b": -3})
    for one in list(map(recount.difference, groups) if groups else recount.all_differences()):
        assert recount.report_drift(one)
    recount.close()
    team.wire.put_item(
        TableName=team.store.settings.ledger_table,
        Item=watermark.WATERMARK_KEY | {"judged": {"N": str(10**9)}, "began_s": {"N": "1"}, "written_s": {"N": "1"}},
    )
    reconciler = Reconciler(team.store)
    for row in list(rows.all_rows(team.store)):
        done = reconciler.repair(COUNTERS["spent"], row.target, "ann", "a test")
        assert done is not None
        assert done.difference == -found.pop(row.target)
    assert (found, list(rows.all_rows(team.store))) == ({}, [])
    team.count("all")
    recount = team.begin_scan("spent", *groups)
    team.finish_reading(recount)
    assert [recount.difference(group).excess for group in "ab"] == [
        0,
        0 if not groups else recount.difference("b").excess,
    ]


def test_a_number_is_set_once_by_whoever_dies_and_looks_again(team: Team) -> None:
    """Killed before it or after it, and beside another one that has looked before."""
    team.put("CUSTOMER#a", "ORDER#1", **opened())
    team.drain()  # it counts nothing yet
    for at, committed in ((0, False), (0, True)):
        edit(team, "spent", "a", 40)
        recount = team.begin_scan("spent")
        team.finish_reading(recount)
        looked = recount.difference("a")
        dying = replace(recount, store=replace(team.store, client=client_that_dies(team.wire, at, committed=committed)))
        with pytest.raises(Crash):
            dying.set_number(dying.difference("a"))
        if committed:
            assert not recount.set_number(looked)
        sets(recount)
        assert team.numbers("spent") == team.truth("spent") == {"a": 120}


def test_two_who_set_a_number_at_once_set_it_once(team: Team) -> None:
    team.put("CUSTOMER#a", "ORDER#1", **opened())
    team.drain()  # it counts nothing yet
    recount = team.begin_scan("spent")
    team.finish_reading(recount)
    looked = recount.difference("a")
    client = interrupted_client(team.wire, 0, lambda: recount.set_number(looked))
    assert not replace(recount, store=replace(team.store, client=client)).set_number(looked)
    edit(team, "spent", "a", 5)  # for the next scan
    sets(recount)
    assert team.numbers("spent") == {"a": 125}


@pytest.mark.parametrize("settle", ["set_number", "report_drift"])
def test_a_repair_between_the_look_and_what_is_made_of_it_is_not_repeated(team: Team, settle: str) -> None:
    count_all(team)
    team.put("CUSTOMER#a", "ORDER#1", **opened())
    team.drain()
    edit(team, "spent", "a", 40)
    recount = team.begin_scan("spent")
    team.finish_reading(recount)
    (looked,) = recount.all_differences()
    assert recount.report_drift(looked)
    (again,) = recount.all_differences()
    repaired = Reconciler(team.store).find(COUNTERS["spent"], "a")
    assert try_commit(
        team.store, repair_writes(team.store, replace(repaired, difference=-40, confirmed=40), "ann", "why", 0)
    )
    for found in (looked, again):
        assert not getattr(recount, settle)(found)
    assert off(recount) == {}
    assert getattr(recount, settle)(recount.difference("a"))
    assert (team.numbers("spent"), list(rows.all_rows(team.store))) == ({"a": 120}, [])


def test_a_table_with_binary_keys_is_not_counted(team: Team) -> None:
    recount = team.begin_scan("open")
    recount.table_description["AttributeDefinitions"][0]["AttributeType"] = "B"
    with pytest.raises(UncountableError, match="are binary"):
        next(recount.run_steps())


def test_a_scan_forgets_the_drift_of_numbers_that_were_kept_elsewhere(team: Team) -> None:
    """A repair would take it off a number that never had it."""
    count_all(team)
    edit(team, "open", "a", 7)
    recount = team.begin_scan("open")
    team.finish_reading(recount)
    assert all(recount.report_drift(one) for one in recount.all_differences())
    assert [row.drift for row in rows.all_rows(team.store)] == [7]
    redeclared(team, open=replace(COUNTERS["open"], prefix="ELSEWHERE"))
    team.count("open")
    assert (list(rows.all_rows(team.store)), team.numbers("open")) == ([], {})


def test_a_drift_that_a_recount_does_not_find_is_deleted_days_later(team: Team) -> None:
    for found in (5, 0):
        row = rows.read_row(team.store, "open", "a")
        assert try_commit(team.store, [rows.recount_write(team.store, row, found, time.time())])
    (item,) = [one for one in team.wire.scan(TableName=team.store.settings.ledger_table)["Items"] if "drift" in one]
    assert (item["drift"], "expiration" in item, list(rows.all_rows(team.store))) == ({"N": "0"}, True, [])


@pytest.mark.parametrize("settle", ["set_number", "report_drift"])
def test_the_result_of_a_scan_that_is_not_open_is_neither_set_nor_reported(team: Team, settle: str) -> None:
    """Its recount moves no more: what was written since would be drift."""
    count_all(team)
    recount = team.begin_scan("all")
    team.finish_reading(recount)
    newer = team.begin_scan("all")
    team.put("CUSTOMER#a", "ORDER#1", **opened())
    team.drain()
    (stale,) = recount.all_differences()
    assert stale.excess == 1
    with pytest.raises(ScanAbandonedError):
        getattr(recount, settle)(stale)
    newer.close()
    for closed in (recount, newer):
        with pytest.raises(ScanAbandonedError):
            getattr(closed, settle)(stale)
        with pytest.raises(ScanAbandonedError):
            closed.is_complete()
    assert (team.numbers("all"), list(rows.all_rows(team.store))) == ({"a": 1}, [])


def test_a_scan_of_weeks_ago_settles_nothing(team: Team) -> None:
    """Markers that it needs expire: a record of such an item would be skipped, or count twice."""
    count_all(team)
    recount = team.begin_scan("all")
    team.finish_reading(recount)
    for later_s, holds in ((first_seen.SCAN_VALID_S - 60, True), (first_seen.SCAN_VALID_S, False)):
        late = replace(recount, now_s=lambda later_s=later_s: recount.scan.began_s + later_s)
        if holds:
            assert late.is_complete()
        else:
            with pytest.raises(ScanAbandonedError):
                late.is_complete()


def test_a_scan_that_another_one_has_replaced_adds_nothing_and_ends_nothing(team: Team) -> None:
    team.put("CUSTOMER#a", "ORDER#1", **opened())
    team.drain()
    first = team.begin_scan("all")
    second = team.begin_scan("all")
    with pytest.raises(ScanAbandonedError):
        list(first.run_steps())
    with pytest.raises(ScanAbandonedError):
        first.close(counted=True)
    assert not scan_state.end(team.store, first.scan, time.time())
    team.finish_reading(second)
    with pytest.raises(ScanAbandonedError):  # it has ended: a late page adds nothing
        list(replace(second, store=team.store).run_steps())
    sets(second)
    assert team.numbers("all") == {"a": 1}


def test_recounts_of_old_scans_do_not_pile_up(team: Team) -> None:
    count_all(team)
    team.put("CUSTOMER#a", "ORDER#1", **opened())
    for _ in range(STALE_MAX + 2):
        recount = team.begin_scan("all")
        team.finish_reading(recount)
        found = recount.difference("a")
        recount.close()
    assert found.has_stale_recounts
    newest = team.begin_scan("all")
    team.finish_reading(newest)
    recount.remove_stale("a")
    assert (newest.difference("a").excess, newest.difference("a").has_stale_recounts) == (0, False)
    left = {name for item in team.tally_items("all", "a") for name in item if name.startswith(scan_state.RECOUNT_START)}
    assert left == {recount.scan.recount_attribute, newest.scan.recount_attribute}


def test_a_counter_by_another_name_begins_with_no_recount_of_the_old_one(team: Team, clock: Clock) -> None:
    team.put("CUSTOMER#a", "ORDER#1", **opened())
    team.drain()
    count_all(team)
    clock.pass_s(60)
    renamed = replace(COUNTERS["all"], name="every")
    team.counters = {"every": renamed}
    team.handler = team.process()
    team.put("CUSTOMER#a", "ORDER#2", **opened())
    team.drain()  # it counts nothing yet
    team.count("every")
    assert team.numbers("every") == {"a": 2}


def test_the_markers_of_a_scan_are_no_more_than_its_items(team: Team) -> None:
    """Without an open scan a record writes a number and a checkpoint."""
    count_all(team)
    watched = WatchedClient(team.wire)
    team.handler = team.process(watched)
    team.put("CUSTOMER#a", "ORDER#1", **opened())
    team.drain()
    ((_, sent),) = watched.sent
    assert len(sent["TransactItems"]) == 4  # three numbers
    team.begin_scan("all", "a")
    for group, size in (("a", 5), ("b", 4)):
        watched.sent.clear()
        team.put(f"CUSTOMER#{group}", "ORDER#2", **opened())
        team.drain()
        ((_, sent),) = watched.sent
        assert len(sent["TransactItems"]) == size


def test_a_run_knows_what_the_one_before_it_did_to_markers(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    """The markers are read once for a batch of many runs."""
    monkeypatch.setattr(consumer, "ITEMS_MAX", 3)
    team.count("tickets")
    team.put("TICKET#1", "META", **SHARED, queue={"S": "it"})
    team.drain()
    recount = team.begin_scan("tickets")
    for _ in recount.run_steps():
        pass
    for queue in ("hr", "ops"):
        team.put("TICKET#1", "META", **SHARED, queue={"S": queue})
    team.drain()
    team.sweep_later()
    assert (recount.is_complete(), off(recount), team.numbers("tickets")) == (True, {}, {"ops": 1})


def test_a_record_moves_every_counter_of_its_table_at_once(team: Team) -> None:
    """Each from one group to another one, while a scan of each is open."""
    of = Items("shop", partition_prefix="TICKET#", group_by="queue")
    names = [f"c{number}" for number in range(COUNTERS_PER_TABLE_MAX)]
    team.counters = {one: Counter(one, prefix=one.upper(), sort_key="N", attribute="n", items=of) for one in names}
    team.handler = team.process()
    for name in team.counters:
        team.begin_scan(name)
    for queue in ("it", "hr"):
        team.put("TICKET#1", "META", queue={"S": queue})
    team.drain()
    assert (len(everything(team)), team.numbers("c0"), team.bucket.objects) == (COUNTERS_PER_TABLE_MAX, {"hr": 1}, {})


def test_a_batch_of_many_groups_is_as_many_transactions_as_it_takes(team: Team) -> None:
    team.begin_scan("all")
    team.count("open")
    for number in range(70):
        team.put(f"CUSTOMER#{number}", "ORDER#1", **opened())
    watched = WatchedClient(team.wire)
    team.handler = team.process(watched)
    team.drain()
    sizes = [len(sent["TransactItems"]) for _, sent in watched.sent]
    assert (len(sizes), max(sizes) <= TRANSACTION_ITEMS_MAX) == (3, True)
    assert team.numbers("open") == team.truth("open")


# ---- others meanwhile ----


def test_a_batch_that_overlaps_another_one_counts_by_the_newest_scan(team: Team) -> None:
    """It was invoked before the scan began, and sleeps while another one takes its first record."""
    team.count("spent")
    for total in ("5", "7"):
        team.put("CUSTOMER#a", "ORDER#1", **opened(total))
    team.read_stream()
    (shard,) = team.shards.values()
    client, begun = WatchedClient(team.wire, frozenset({"get_item"})), list[Recount]()

    def before(number: int, name: str, parameters: dict[str, Any]) -> None:
        if parameters["Key"]["PK"]["S"].startswith("CHECKPOINT#items") and not begun:
            begun.append(team.begin_scan("spent"))
            assert shard.invoke(shard.batch(1), LambdaContext()) is None

    client.before = before
    assert shard.invoke(shard.batch(2), LambdaContext(), team.process(client)) is None
    shard.advance(None)
    team.finish_reading(begun[0])
    assert (off(begun[0]), team.numbers("spent")) == ({}, {"a": 70})


def test_an_item_that_moves_into_a_group_that_is_counted_again_and_out_is_in_it_once(team: Team) -> None:
    team.count("tickets")
    for number, queue in enumerate(["it", "hr", "it", "hr"]):
        team.put(f"TICKET#{number}", "META", **SHARED, queue={"S": queue})
    team.drain()
    recount = team.begin_scan("tickets", "it")
    steps = replace(recount, page_items=1).run_steps()
    for number, queue in ((0, "hr"), (3, "it"), (2, "hr"), (2, "it"), (1, "it"), (1, "hr")):
        team.put(f"TICKET#{number}", "META", **SHARED, queue={"S": queue})
        next(steps, None)
        team.drain()
    assert next(steps, None) is None
    team.sweep_later()
    assert recount.is_complete()
    assert (recount.difference("it").excess, recount.difference("it").number) == (0, 2)
    beside = tallies.read_shards(Call(team.store), recount.counter, "hr")
    assert not any(recount.scan.recount_attribute in shard for shard in beside), "the scan is of one group"


def test_another_declaration_spoils_the_number_before_it_skips_anything(team: Team) -> None:
    """Rolled back, the old number is not shown, though it is that of the declaration."""
    count_all(team)
    changed = other("open", where={"status": "closed"})
    redeclared(team, open=changed)
    client, spoiled = WatchedClient(team.wire), list[bool]()

    def before(number: int, name: str, parameters: dict[str, Any]) -> None:
        if name == "transact_write_items":
            spoiled.append(not scan_state.read_scan(team.store, "open").counted_by)

    client.before = before
    team.handler = team.process(client)
    team.put("CUSTOMER#a", "ORDER#1", **opened())
    team.drain()
    assert spoiled == [True]
    redeclared(team, open=COUNTERS["open"])
    team.put("CUSTOMER#a", "ORDER#2", **opened())
    team.drain()
    with pytest.raises(NotCountedError):
        team.read("open", "a")
    assert team.read("all", "a") == 2
    team.count("open")
    assert team.read("open", "a") == 2


def test_a_consumer_of_an_old_declaration_gives_the_scan_of_a_new_one_up(team: Team) -> None:
    count_all(team)
    old = team.handler
    changed = other("open", where={})
    redeclared(team, open=changed)
    recount = team.begin_scan("open")
    team.put("CUSTOMER#a", "ORDER#1", **opened())
    team.handler = old
    team.drain()
    with pytest.raises(ScanAbandonedError):
        list(recount.run_steps())
    assert scan_state.read_scan(team.store, "open").closed
    team.handler = team.process()
    team.count("open")
    assert team.numbers("open") == {"a": 1}


def test_a_counter_that_is_gone_and_comes_back_shows_no_old_number(team: Team) -> None:
    count_all(team)
    team.counters = {name: one for name, one in COUNTERS.items() if name != "open"}
    team.handler = team.process()
    team.put("CUSTOMER#a", "ORDER#1", **opened())
    team.drain()
    team.counters = COUNTERS
    with pytest.raises(NotCountedError):
        team.read("open", "a")


def test_a_dead_letter_holds_a_scan_up_and_its_redrive_moves_the_number_alone(team: Team) -> None:
    recount = team.begin_scan("open")
    team.put("CUSTOMER#a", "ORDER#1", **opened())
    poisoned(team)
    for _ in recount.run_steps():
        pass
    team.sweep_later()
    assert not recount.is_complete()
    recount.close()
    call = Call(team.store)
    (letter,) = dead_letters.list_markers(call)
    (name,) = team.bucket.objects
    kept = json.loads(team.bucket.objects[name])
    kept["record"]["dynamodb"]["NewImage"] = team.item("CUSTOMER#a", "ORDER#1")
    team.bucket.objects[name] = json.dumps(kept).encode()
    recount = team.begin_scan("open")
    consumers = {consumer.NAME: consumer.items_consumer(team.counters)}
    outcome = dead_letters.redrive(
        call, DeadLetterBucket("bucket", lambda: team.bucket), consumers, CounterIndex(team.counters), letter
    )
    assert outcome == (RedriveOutcome.APPLIED, "")
    assert everything(team) == {"open": {"a": 1}, "spent": {"a": 120}, "all": {"a": 1}}
    team.finish_reading(recount)
    assert off(recount) == {}


def test_records_that_are_lost_or_of_another_stream_spoil_the_numbers(team: Team) -> None:
    own = team.store.settings.team_tables["shop"]
    for later_s, stream in ((LATER_S + 25 * 3600, own.stream), (LATER_S, f"{own.stream}-2")):
        count_all(team)
        recount = team.begin_scan("all")
        team.sweep_later()
        assert team.read("all", "a") == 0
        moved = {"shop": own._replace(stream=stream)}
        store = replace(team.store, settings=team.store.settings._replace(team_tables=moved))
        with pytest.raises(StoreRefusedError):
            progress.note_progress(store, NoShards(), COUNTERS, "shop", time.time() + later_s)  # type: ignore[arg-type]
        with pytest.raises(NotCountedError):
            team.read("all", "a")
        with pytest.raises(ScanAbandonedError):
            recount.is_complete()
        team.sweep_later(later_s)


@pytest.mark.parametrize("status", ["DISABLING", "DISABLED"])
def test_a_stream_that_is_off_spoils_the_numbers_and_passes_nothing(team: Team, status: str) -> None:
    """It is readable for a day, and shows no record. What is written meanwhile is in no stream."""
    count_all(team)
    shards = StreamShards(
        {"shop": team.stream.arn}, lambda: TurnedOff(streams_client(endpoint_url=team.endpoint), status)
    )
    before_s = scan_state.passed_s(team.store, "shop")
    progress.note_progress(team.store, shards, COUNTERS, "shop", time.time() + 2 * LATER_S)
    assert scan_state.passed_s(team.store, "shop") == before_s
    with pytest.raises(NotCountedError):
        team.read("all", "a")


def test_a_dead_letter_that_waits_for_days_takes_no_number_away(team: Team) -> None:
    """It is kept. What came behind it is passed, though `as_of` is not."""
    count_all(team)
    before_s = scan_state.passed_s(team.store, "shop")
    team.put("CUSTOMER#a", "ORDER#1", **opened())
    poisoned(team)
    for hours in range(0, 72, 12):
        team.sweep_later(LATER_S + hours * 3600)
        assert team.read("all", "a") == 0
    assert scan_state.passed_s(team.store, "shop") == before_s
    team.sweep_later(LATER_S + 96 * 3600)  # the sweep was off for a day
    with pytest.raises(NotCountedError):
        team.read("all", "a")


def test_a_loss_spoils_also_what_is_counted_meanwhile(team: Team) -> None:
    recount = team.begin_scan("all")
    team.finish_reading(recount)
    client = interrupted_client(team.wire, 0, lambda: recount.close(counted=True))
    scan_state.invalidate_until_done(replace(team.store, client=client), "all")
    assert scan_state.read_scan(team.store, "all").counted_by == ""


@dataclass
class TurnedOff:
    """A client of streams that are off."""

    client: Any
    status: str

    def describe_stream(self, **asked: Any) -> dict[str, Any]:
        described = self.client.describe_stream(**asked)["StreamDescription"]
        return {"StreamDescription": {**described, "StreamStatus": self.status}}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.client, name)


class NoShards:
    """A stream that is not there."""

    def list_shards(self, table: str) -> dict[str, Any]:
        raise StoreRefusedError("there is no such stream")


# ---- everything at once ----


def forget_markers(team: Team) -> None:
    """DynamoDB has removed the markers."""
    ledger = team.store.settings.ledger_table
    for item in team.wire.scan(TableName=ledger)["Items"]:
        if item["PK"]["S"].startswith("SEEN#"):
            team.wire.delete_item(TableName=ledger, Key={"PK": item["PK"], "SK": item["SK"]})


@pytest.mark.parametrize("seed", [*SEEDS, *SEEDS_LONG])
def test_whatever_happens_at_once_a_number_that_is_shown_is_right(
    team: Team, seed: int, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Items that are good and bad, corrected, moved and deleted; consumers and scans that die. `SCHEDULES=500` runs so
    many seeds."""
    monkeypatch.setattr(consumer, "ITEMS_MAX", 12)
    redeclared(team, kept=ORDERS_NUMBER)
    turns = Turns(team, random.Random(seed), clock)
    for _ in range(40):
        turns.write()
    for shard in turns.shards:
        del shard.records[: len(shard.records) // 2]  # the stream was not on then
    counters = team.counters
    for name in counters if seed % 2 else ():
        turns.count(name)
    for _ in range(TURNS):
        turns.turn()
    turns.rest()
    shown = [
        name
        for name, counter in counters.items()
        if scan_state.read_scan(team.store, name).counted_by == counter.items_digest
    ]
    assert not seed % 2 or len(shown) == len(counters)
    for name in shown:
        assert team.numbers(name) == team.truth(name), name
    for name in counters:
        turns.count(name)
    for _ in range(30):
        turns.write()
    forget_markers(team)
    turns.rest()
    for name in counters:
        assert team.numbers(name) == team.truth(name), name
    assert team.bucket.objects == {}
    of = ORDERS_NUMBER.items
    assert of is not None
    kept = dict(number for item in team.items() if (number := of.team_number(item)))
    assert {group: watch.team_number(team.store, ORDERS_NUMBER, group) for group in "abc"} == {
        group: kept.get(group) for group in "abc"
    }
