"""Tally counts the items of a team's table exactly, in whatever order the team, the consumer and the scans act."""

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
from tally.streams.record import CounterIndex
from tally.team import consumer, faults, first_seen, progress, scan_state, watch
from tally.team.recounts import STALE_MAX, Recount
from tally.team.scan_reader import ScanClosedError, UncountableError
from tests.contexts import LambdaContext
from tests.invariants.processes import Crash, WatchedClient, client_that_dies, interrupted_client
from tests.invariants.simulation import Clock
from tests.invariants.streaming import EngineStreams
from tests.invariants.team_table import LATER_S, Team, make_team
from tests.invariants.team_turns import COUNTERS, ORDERS_NUMBER, TeamSchedule, random_write
from tests.tiers import marked_long

# SCHEDULES=500 runs the random schedules of the seeds 0 to 499, and SCHEDULES=100:500 those from 100 on.
FIRST_SEED, _, END_SEED = os.environ.get("SCHEDULES", "6").rpartition(":")
SEEDS = range(int(FIRST_SEED or 0), int(END_SEED))
SEEDS_LONG = [] if "SCHEDULES" in os.environ else marked_long(range(6, 500))
ACTIONS = 200  # how many random actions a schedule has


@pytest.fixture
def team(store: Store, engine: Engine) -> Team:
    """A team table with orders of customers and with tickets. COUNTERS: `all` and `open` count each customer's orders
    and open orders, `spent` adds up the customer's totals in tenths, and `tickets` counts open tickets by queue."""
    return make_team(store, engine, COUNTERS)


OPEN = {"status": {"S": "open"}}


def open_order(total: str = "12") -> dict[str, Any]:
    """Returns the attributes of an open order. `spent` adds 120 for a total of 12."""
    return {**OPEN, "total": {"N": total}}


def count_all(team: Team) -> None:
    """Runs the first scan of each counter. Before its first scan, a counter counts no record."""
    for name in team.counters:
        team.count(name)


def all_numbers(team: Team) -> dict[str, dict[str, int]]:
    """Returns the numbers of each counter by group, without zeros."""
    return {name: numbers for name in team.counters if (numbers := team.numbers(name))}


def with_items(name: str, **changes: Any) -> Counter:
    """Returns the counter `name` with these changes of its `items`."""
    items = COUNTERS[name].items
    assert items is not None
    return replace(COUNTERS[name], items=replace(items, **changes))


def excesses(recount: Recount) -> dict[str, int]:
    """Returns the excess of each number that is wrong, by its group."""
    return {difference.group: difference.excess for difference in recount.all_differences() if difference.excess}


def set_numbers(recount: Recount) -> None:
    """Sets each number to its recount, and closes the scan, so that the numbers are shown."""
    for difference in recount.all_differences():
        assert recount.set_number(difference)
    recount.close(has_counted_all=True)


def poison_next_record(team: Team) -> None:
    """Delivers the next record without its image, which makes the record a dead letter."""
    team.read_stream()
    (shard,) = team.shards.values()
    shard.records[shard.position]["dynamodb"].pop("NewImage")
    team.drain()


# ---- numbers under traffic ----


def test_numbers_equal_the_sums_of_the_stored_items(team: Team, clock: Clock) -> None:
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


def test_an_item_leaves_the_number_of_its_old_group_and_after_its_ttl_every_number(team: Team) -> None:
    count_all(team)
    for queue in ("it", "hr desk"):  # the name of a group has ~20 in place of a space
        team.put("TICKET#1", "META", **OPEN, queue={"S": queue})
    team.put("CUSTOMER#a", "ORDER#1", **open_order("12.5"))
    team.drain()
    assert all_numbers(team) == {"tickets": {"hr~20desk": 1}, "open": {"a": 1}, "spent": {"a": 125}, "all": {"a": 1}}
    team.delete("CUSTOMER#a", "ORDER#1")
    team.read_stream()
    for shard in team.shards.values():  # DynamoDB marks a removal by TTL like this
        for record in shard.records[shard.position :]:
            record["userIdentity"] = {"type": "Service", "principalId": "dynamodb.amazonaws.com"}
    team.drain()
    assert all_numbers(team) == {"tickets": {"hr~20desk": 1}}


def test_without_images_a_record_counts_if_all_counters_need_only_keys_else_it_is_a_dead_letter(team: Team) -> None:
    for counters, dead_letter_count in (({"all": COUNTERS["all"]}, 0), (COUNTERS, 1)):
        team.deploy(counters)
        count_all(team)
        # Without its image, ORDER#0 counts for `all` alone, and ORDER#1 becomes a dead letter.
        team.put("CUSTOMER#a", f"ORDER#{dead_letter_count}", **open_order())
        team.put("CUSTOMER#a", "PROFILE")  # its key shows that no counter counts it
        team.read_stream()
        for shard in team.shards.values():
            for record in shard.records:
                record["dynamodb"].pop("NewImage", None)
        team.drain()
        assert (team.numbers("all"), len(team.bucket.objects)) == ({"a": 1}, dead_letter_count)


def test_a_poison_record_stops_the_watermark_and_delays_no_other_record(team: Team) -> None:
    count_all(team)
    before_s = scan_state.passed_s(team.store, "shop")
    for number in range(3):
        team.put("CUSTOMER#a", f"ORDER#{number}", **open_order())
    team.read_stream()
    (shard,) = team.shards.values()
    del shard.records[1]["dynamodb"]["NewImage"]
    team.drain()
    assert (team.numbers("all"), len(team.bucket.objects)) == ({"a": 2}, 1)
    team.sweep_later(LATER_S + 300)  # later than the sweeps of `count_all`, so the watermark could advance
    assert scan_state.passed_s(team.store, "shop") == before_s, "the watermark has passed the dead letter"


@pytest.mark.parametrize(("total", "kind"), [("0.05", "decimals"), ("1E+20", "large")])
def test_an_item_that_cannot_be_counted_is_reported_until_the_team_corrects_or_deletes_it(
    team: Team, total: str, kind: str
) -> None:
    count_all(team)
    team.put("CUSTOMER#b", "ORDER#1", **open_order("3"))
    for is_deleted in (False, True):
        team.put("CUSTOMER#a", "ORDER#9", **open_order(total))
        team.drain()
        assert team.numbers("spent") == {"b": 30, f"~-{kind}": 1}  # the number of items with the fault
        (fault,) = faults.read_faults(team.store, COUNTERS["spent"])
        assert (fault.kind, fault.items) == (kind, 1)
        assert fault.example.startswith(f"CUSTOMER#a, ORDER#9: total is {total[0]}")  # the message has 1E+20 in full
        if is_deleted:
            team.delete("CUSTOMER#a", "ORDER#9")
        else:
            team.put("CUSTOMER#a", "ORDER#9", **open_order("5"))
        team.drain()
        assert team.numbers("spent") == team.truth("spent")
        assert list(faults.read_faults(team.store, COUNTERS["spent"])) == []
    assert (team.numbers("spent"), team.bucket.objects) == ({"b": 30}, {})


def test_a_scan_reports_how_many_items_cannot_be_counted_with_an_example(team: Team) -> None:
    for number in range(60):  # two of three orders have too many decimals
        team.put(f"CUSTOMER#{number}", "ORDER#1", **open_order("0.05" if number % 3 else "5"))
    team.drain()
    team.count("spent")
    (fault,) = faults.read_faults(team.store, COUNTERS["spent"])
    assert (fault.kind, fault.items, ": total is 0.05: declare scale=2" in fault.example) == ("decimals", 40, True)
    assert team.numbers("spent") == team.truth("spent")


def test_a_sweep_beside_a_scan_leaves_the_examples_that_the_scan_found(team: Team) -> None:
    """Until the scan sets the numbers, the number of each fault is 0, so that its example looks stale to a sweep."""
    spent = COUNTERS["spent"]
    team.put("CUSTOMER#a", "ORDER#1", **open_order("0.05"))
    team.drain()
    recount = team.begin_scan("spent")
    list(recount.run_steps())  # reads the whole table
    assert list(faults.read_faults(team.store, spent, remove_stale=True)) == []
    team.drain()
    team.sweep_later()
    assert recount.set_many(list(recount.all_differences())) == []
    recount.close(has_counted_all=True)
    (fault,) = faults.read_faults(team.store, spent)
    assert (fault.items, fault.example) == (1, "CUSTOMER#a, ORDER#1: total is 0.05: declare scale=2")
    # A spot check of the group `a` stores no example of a fault, so the sweep removes examples during the check.
    assert scan_state.begin(team.store, spent, time.time(), ["a"], is_spot_check=True)
    team.delete("CUSTOMER#a", "ORDER#1")
    team.drain()
    assert list(faults.read_faults(team.store, spent, remove_stale=True)) == []
    assert not any("example" in item for item in team.wire.scan(TableName=team.store.settings.counts_table)["Items"])


def test_the_example_of_a_fault_is_an_item_that_still_has_the_fault(team: Team) -> None:
    count_all(team)
    team.put("CUSTOMER#a", "ORDER#1", **open_order("0.05"))
    team.drain()
    team.put("CUSTOMER#a", "ORDER#1", **open_order("5"))
    team.put("CUSTOMER#b", "ORDER#2", **open_order("0.07"))
    team.drain()
    (fault,) = faults.read_faults(team.store, COUNTERS["spent"])
    assert (fault.items, fault.example.split(":")[0]) == (1, "CUSTOMER#b, ORDER#2")


def test_a_scan_of_the_group_of_a_fault_reads_the_whole_table(team: Team) -> None:
    count_all(team)
    for number in range(4):
        team.put(f"CUSTOMER#{number}", "ORDER#1", **open_order("0.05"))
    team.drain()
    recount = team.begin_scan("spent", "~-decimals")
    team.finish_reading(recount)
    assert (recount.difference("~-decimals").number, recount.difference("~-decimals").excess) == (4, 0)


def recount_of_250_customers(team: Team) -> Recount:
    """Returns a scan that has read 250 customers with one order each."""
    for number in range(250):
        team.put(f"CUSTOMER#c{number}", "ORDER#1", **open_order())
    team.drain()
    recount = team.begin_scan("all")
    team.finish_reading(recount)
    return recount


def test_set_many_sets_up_to_99_numbers_in_one_transaction_and_each_number_once(team: Team) -> None:
    recount = recount_of_250_customers(team)
    client = WatchedClient(team.wire)
    recount = replace(recount, store=replace(team.store, client=client))
    assert recount.set_many(list(recount.all_differences())) == []
    assert (team.numbers("all"), len(client.calls)) == (team.truth("all"), 3)  # 99, 99 and 52 numbers
    differences = list(recount.all_differences())
    assert all(difference.is_set for difference in recount.set_many(differences))
    assert (team.numbers("all"), len(client.calls)) == (team.truth("all"), 3)


def test_set_many_sets_nothing_after_the_scan_has_closed_or_if_an_earlier_scan_counted_the_items(team: Team) -> None:
    """If the items are counted, another process may note drift. `set_many` checks no drift row, so it sets nothing.
    `items_digest`: of a declaration. A scan stores in `counted_by` the digest by which it has counted all items, and
    the numbers are valid for this declaration alone."""
    recount = recount_of_250_customers(team)
    differences = list(recount.all_differences())
    assert scan_state.close(team.store, recount.scan, COUNTERS["all"].items_digest)
    assert recount.set_many(differences) == differences
    assert team.numbers("all") == {}
    second = team.begin_scan("all")
    team.finish_reading(second)
    differences = list(second.all_differences())
    assert second.set_many(differences) == differences
    assert team.numbers("all") == {}
    assert second.set_number(differences[0])


def test_set_many_leaves_a_number_with_drift_to_set_number_which_deletes_the_drift(team: Team) -> None:
    """If the drift stayed, a repair would move the number a second time."""
    recount = recount_of_250_customers(team)
    row = rows.read_row(team.store, "all", "c7")
    assert try_commit(team.store, [rows.recount_write(team.store, row, 5, time.time())])
    not_set = recount.set_many(list(recount.all_differences()))
    assert [difference.group for difference in not_set] == ["c7"]
    assert recount.set_number(not_set[0])
    assert (list(rows.all_rows(team.store)), team.numbers("all")) == ([], team.truth("all"))


def test_no_difference_is_drift_before_the_scan_has_set_the_numbers(team: Team) -> None:
    """The scan is about to set the numbers, so a repair of the drift would move the numbers a second time."""
    recount = recount_of_250_customers(team)
    assert not recount.report_drift(next(recount.all_differences()))
    assert list(rows.all_rows(team.store)) == []


def test_the_bookkeeper_books_neither_changes_nor_edits_of_a_number_of_team_items(team: Team) -> None:
    """Only a scan finds an edit of such a number by hand."""
    consumers = EngineStreams(team.store, team.wire)
    for handler in consumers.handlers.values():
        handler.declared = CounterIndex(team.counters)
    count_all(team)
    for number in range(5):
        team.put("CUSTOMER#a", f"ORDER#{number}", **open_order())
    team.drain()
    team.add_by_hand("open", "a", 3)
    consumers.drain()
    assert (consumers.ledger(), consumers.dead_letter_sequences()) == ({}, {"rollup": set(), "bookkeeper": set()})


# ---- scans, and the numbers that they set ----


def test_a_number_is_not_shown_before_a_scan_has_counted_the_items_that_were_there(team: Team) -> None:
    team.put("CUSTOMER#a", "ORDER#1", **open_order())
    team.drain()  # the counter counts nothing before its first scan
    recount = team.begin_scan("open")
    for _ in recount.run_steps():
        team.put("CUSTOMER#a", "ORDER#2", **open_order())
        with pytest.raises(NotCountedError, match="run `tally scan open`"):
            team.read("open", "a")
    assert not recount.is_complete()
    team.drain()
    team.sweep_later()
    assert recount.is_complete()
    with pytest.raises(NotCountedError):
        team.read("open", "a")
    set_numbers(recount)
    assert team.read("open", "a") == 2


@pytest.mark.parametrize("groups", [(), ("a",)])
def test_a_recount_under_traffic_finds_the_exact_excess_and_a_repair_removes_the_excess(
    team: Team, groups: tuple[str, ...]
) -> None:
    count_all(team)
    for number in range(6):
        team.put(f"CUSTOMER#{'ab'[number % 2]}", f"ORDER#{number}", **open_order())
    team.drain()
    team.add_by_hand("spent", "a", 7)
    team.add_by_hand("spent", "b", -3)
    recount = team.begin_scan("spent", *groups)
    for step, _ in enumerate(recount.run_steps()):
        team.put("CUSTOMER#a", f"ORDER#{step}", **open_order("1"))
        team.delete("CUSTOMER#b", f"ORDER#{step + 1}")
    team.drain()
    team.sweep_later()
    assert recount.is_complete()
    found_excesses: dict[str, int] = {}
    for turn in range(3):
        team.put("CUSTOMER#a", f"LATER#{turn}", **open_order())  # not an order, so not counted
        team.put("CUSTOMER#a", f"ORDER#{turn}", **open_order("3"))
        team.drain()
        found_excesses = {group: recount.difference(group).excess for group in groups} or excesses(recount)
        assert found_excesses == {"a": 7} | ({} if groups else {"b": -3})  # a scan of `a` does not count `b`
    for difference in list(map(recount.difference, groups) if groups else recount.all_differences()):
        assert recount.report_drift(difference)
    recount.close()
    # The ledger says that every minute is judged, so the repairs do not wait for the judge.
    team.wire.put_item(
        TableName=team.store.settings.ledger_table,
        Item=watermark.WATERMARK_KEY | {"judged": {"N": str(10**9)}, "began_s": {"N": "1"}, "written_s": {"N": "1"}},
    )
    reconciler = Reconciler(team.store)
    for row in list(rows.all_rows(team.store)):
        finding = reconciler.repair(COUNTERS["spent"], row.target, "ann", "a test")
        assert finding is not None
        assert finding.difference == -found_excesses.pop(row.target)
    assert (found_excesses, list(rows.all_rows(team.store))) == ({}, [])
    recount = team.begin_scan("spent", *groups)
    team.finish_reading(recount)
    assert not any(recount.difference(group).excess for group in groups or "ab")


def test_a_number_is_set_once_though_the_process_dies_and_another_process_repeats_its_work(team: Team) -> None:
    """The process dies before its write or after it. Another process has read the difference before the write."""
    team.put("CUSTOMER#a", "ORDER#1", **open_order())
    team.drain()  # the counter counts nothing before its first scan
    for committed in (False, True):
        team.add_by_hand("spent", "a", 40)
        recount = team.begin_scan("spent")
        team.finish_reading(recount)
        stale_difference = recount.difference("a")
        dying = replace(recount, store=replace(team.store, client=client_that_dies(team.wire, 0, committed=committed)))
        with pytest.raises(Crash):
            dying.set_number(dying.difference("a"))
        if committed:
            assert not recount.set_number(stale_difference)
        set_numbers(recount)
        assert team.numbers("spent") == team.truth("spent") == {"a": 120}


def test_two_processes_that_set_a_number_concurrently_set_it_once(team: Team) -> None:
    team.put("CUSTOMER#a", "ORDER#1", **open_order())
    team.drain()  # the counter counts nothing before its first scan
    recount = team.begin_scan("spent")
    team.finish_reading(recount)
    difference = recount.difference("a")
    client = interrupted_client(team.wire, 0, lambda: recount.set_number(difference))
    assert not replace(recount, store=replace(team.store, client=client)).set_number(difference)
    team.add_by_hand("spent", "a", 5)  # this scan has set the number, so only the next scan corrects the edit
    set_numbers(recount)
    assert team.numbers("spent") == {"a": 125}


@pytest.mark.parametrize("method", ["set_number", "report_drift"])  # these methods use a difference
def test_a_difference_that_was_repaired_after_it_was_read_is_not_used(team: Team, method: str) -> None:
    count_all(team)
    team.put("CUSTOMER#a", "ORDER#1", **open_order())
    team.drain()
    team.add_by_hand("spent", "a", 40)
    recount = team.begin_scan("spent")
    team.finish_reading(recount)
    (before_report,) = recount.all_differences()
    assert recount.report_drift(before_report)
    (after_report,) = recount.all_differences()
    finding = Reconciler(team.store).find(COUNTERS["spent"], "a")
    finding = replace(finding, difference=-40, confirmed=40)  # as if every minute were judged
    assert try_commit(team.store, repair_writes(team.store, finding, "ann", "why", 0))
    for difference in (before_report, after_report):
        assert not getattr(recount, method)(difference)
    assert excesses(recount) == {}
    assert getattr(recount, method)(recount.difference("a"))
    assert (team.numbers("spent"), list(rows.all_rows(team.store))) == ({"a": 120}, [])


def test_a_table_with_binary_keys_is_not_counted(team: Team) -> None:
    recount = team.begin_scan("open")
    recount.table_description["AttributeDefinitions"][0]["AttributeType"] = "B"
    with pytest.raises(UncountableError, match="are binary"):
        next(recount.run_steps())


def test_a_scan_deletes_the_drift_of_numbers_that_had_other_keys(team: Team) -> None:
    """After `prefix` has changed, the counter has new numbers. A repair would apply the old drift to a new number."""
    count_all(team)
    team.add_by_hand("open", "a", 7)
    recount = team.begin_scan("open")
    team.finish_reading(recount)
    assert all(map(recount.report_drift, recount.all_differences()))
    assert [row.drift for row in rows.all_rows(team.store)] == [7]
    team.deploy({**team.counters, "open": replace(COUNTERS["open"], prefix="ELSEWHERE")})
    team.count("open")
    assert (list(rows.all_rows(team.store)), team.numbers("open")) == ([], {})


def test_a_drift_row_gets_a_ttl_when_a_recount_finds_no_difference(team: Team) -> None:
    for excess in (5, 0):
        row = rows.read_row(team.store, "open", "a")
        assert try_commit(team.store, [rows.recount_write(team.store, row, excess, time.time())])
    ledger = team.wire.scan(TableName=team.store.settings.ledger_table)["Items"]
    (item,) = [item for item in ledger if "drift" in item]
    assert (item["drift"], "expiration" in item, list(rows.all_rows(team.store))) == ({"N": "0"}, True, [])


@pytest.mark.parametrize("method", ["set_number", "report_drift"])
def test_a_difference_of_a_scan_that_is_not_open_is_neither_set_nor_reported(team: Team, method: str) -> None:
    """Records do not move the recount of a scan that is not open, so each later write would look like drift."""
    count_all(team)
    recount = team.begin_scan("all")
    team.finish_reading(recount)
    newer = team.begin_scan("all")
    team.put("CUSTOMER#a", "ORDER#1", **open_order())
    team.drain()
    (stale,) = recount.all_differences()
    assert stale.excess == 1
    with pytest.raises(ScanClosedError):
        getattr(recount, method)(stale)
    newer.close()
    for not_open in (recount, newer):
        with pytest.raises(ScanClosedError):
            getattr(not_open, method)(stale)
        with pytest.raises(ScanClosedError):
            not_open.is_complete()
    assert (team.numbers("all"), list(rows.all_rows(team.store))) == ({"a": 1}, [])


def test_a_scan_is_abandoned_before_its_markers_may_expire(team: Team) -> None:
    """After the marker of an item has expired, a record of the item would be skipped or counted twice."""
    count_all(team)
    recount = team.begin_scan("all")
    team.finish_reading(recount)
    for later_s, is_valid in ((first_seen.SCAN_VALID_S - 60, True), (first_seen.SCAN_VALID_S, False)):
        later_recount = replace(recount, now_s=lambda later_s=later_s: recount.scan.began_s + later_s)
        if is_valid:
            assert later_recount.is_complete()
        else:
            with pytest.raises(ScanClosedError):
                later_recount.is_complete()


def test_a_scan_that_another_scan_has_replaced_neither_adds_to_a_recount_nor_ends_a_scan(team: Team) -> None:
    team.put("CUSTOMER#a", "ORDER#1", **open_order())
    team.drain()
    first = team.begin_scan("all")
    second = team.begin_scan("all")
    with pytest.raises(ScanClosedError):
        list(first.run_steps())
    with pytest.raises(ScanClosedError):
        first.close(has_counted_all=True)
    assert not scan_state.end(team.store, first.scan, time.time()), "the second scan has ended"
    team.finish_reading(second)
    assert list(second.run_steps()) == [], "a second process of an ended scan adds nothing"
    set_numbers(second)
    assert team.numbers("all") == {"a": 1}


def test_remove_stale_removes_the_recounts_of_older_scans_and_leaves_newer_recounts(team: Team) -> None:
    count_all(team)
    team.put("CUSTOMER#a", "ORDER#1", **open_order())
    for _ in range(STALE_MAX + 2):  # an item may keep STALE_MAX recounts of older scans, and so saves a write
        recount = team.begin_scan("all")
        team.finish_reading(recount)
        difference = recount.difference("a")
        recount.close()
    assert difference.has_stale_recounts
    newest = team.begin_scan("all")
    team.finish_reading(newest)
    recount.remove_stale("a")
    assert (newest.difference("a").excess, newest.difference("a").has_stale_recounts) == (0, False)
    attributes = {name for item in team.tally_items("all", "a") for name in item}
    recounts = {name for name in attributes if name.startswith(scan_state.RECOUNT_PREFIX)}
    assert recounts == {recount.scan.recount_attribute, newest.scan.recount_attribute}


def test_a_renamed_counter_does_not_add_to_the_recount_of_its_old_name(team: Team, clock: Clock) -> None:
    team.put("CUSTOMER#a", "ORDER#1", **open_order())
    team.drain()
    count_all(team)
    clock.pass_s(60)  # the generation of a first scan is its time, so the new scan has another recount attribute
    renamed = replace(COUNTERS["all"], name="every")
    team.deploy({"every": renamed})
    team.put("CUSTOMER#a", "ORDER#2", **open_order())
    team.drain()  # the counter counts nothing before its first scan
    team.count("every")
    assert team.numbers("every") == {"a": 2}


def test_a_record_writes_a_marker_only_for_a_group_of_an_open_scan(team: Team) -> None:
    """Without an open scan, the consumer writes the numbers of a record and a checkpoint."""
    count_all(team)
    watched = WatchedClient(team.wire)
    team.handler = team.process(watched)
    team.put("CUSTOMER#a", "ORDER#1", **open_order())
    team.drain()
    ((_, parameters),) = watched.calls
    assert len(parameters["TransactItems"]) == 4  # the numbers of three counters, and the checkpoint
    team.begin_scan("all", "a")
    for group, writes in (("a", 5), ("b", 4)):
        watched.calls.clear()
        team.put(f"CUSTOMER#{group}", "ORDER#2", **open_order())
        team.drain()
        ((_, parameters),) = watched.calls
        assert len(parameters["TransactItems"]) == writes


def test_a_run_starts_with_the_markers_that_the_previous_run_wrote(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    """The consumer reads the markers of a batch once, before the first run of the batch."""
    monkeypatch.setattr(consumer, "ITEMS_MAX", 3)  # a record writes two groups and a marker, so each record is a run
    team.count("tickets")
    team.put("TICKET#1", "META", **OPEN, queue={"S": "it"})
    team.drain()
    recount = team.begin_scan("tickets")
    list(recount.run_steps())
    for queue in ("hr", "ops"):
        team.put("TICKET#1", "META", **OPEN, queue={"S": queue})
    team.drain()
    team.sweep_later()
    assert (recount.is_complete(), excesses(recount), team.numbers("tickets")) == (True, {}, {"ops": 1})


def test_one_record_moves_the_numbers_of_as_many_counters_as_a_table_may_have(team: Team) -> None:
    """The record has the most effects: for each counter a new group, and a marker, because a scan is open."""
    items = Items("shop", partition_prefix="TICKET#", group_by="queue")
    names = [f"c{number}" for number in range(COUNTERS_PER_TABLE_MAX)]
    team.deploy({name: Counter(name, prefix=name.upper(), sort_key="N", attribute="n", items=items) for name in names})
    for name in team.counters:
        team.begin_scan(name)
    for queue in ("it", "hr"):
        team.put("TICKET#1", "META", queue={"S": queue})
    team.drain()
    assert (len(all_numbers(team)), team.numbers("c0"), team.bucket.objects) == (COUNTERS_PER_TABLE_MAX, {"hr": 1}, {})


def test_a_batch_of_many_groups_is_split_into_transactions(team: Team) -> None:
    team.begin_scan("all")
    team.count("open")
    for number in range(70):
        team.put(f"CUSTOMER#{number}", "ORDER#1", **open_order())
    watched = WatchedClient(team.wire)
    team.handler = team.process(watched)
    team.drain()
    sizes = [len(parameters["TransactItems"]) for _, parameters in watched.calls]
    # Three transactions have 210 writes: 70 markers, and 70 numbers of each of two counters.
    assert (len(sizes), max(sizes) <= TRANSACTION_ITEMS_MAX) == (3, True)
    assert team.numbers("open") == team.truth("open")


# ---- concurrent processes ----


def test_a_batch_that_overlaps_another_batch_counts_by_the_newest_scan(team: Team) -> None:
    """The first batch begins before the scan, and sleeps while a second batch applies the first record."""
    team.count("spent")
    for total in ("5", "7"):
        team.put("CUSTOMER#a", "ORDER#1", **open_order(total))
    team.read_stream()
    (shard,) = team.shards.values()
    client, recounts = WatchedClient(team.wire, frozenset({"get_item"})), list[Recount]()

    def before(number: int, name: str, parameters: dict[str, Any]) -> None:
        if parameters["Key"]["PK"]["S"].startswith("CHECKPOINT#items") and not recounts:
            recounts.append(team.begin_scan("spent"))
            assert shard.invoke(shard.batch(1), LambdaContext()) is None

    client.before = before
    assert shard.invoke(shard.batch(2), LambdaContext(), team.process(client)) is None
    shard.advance(None)
    team.finish_reading(recounts[0])
    assert (excesses(recounts[0]), team.numbers("spent")) == ({}, {"a": 70})


def test_an_item_that_moves_in_and_out_of_a_group_under_recount_is_counted_at_most_once(team: Team) -> None:
    team.count("tickets")
    for number, queue in enumerate(["it", "hr", "it", "hr"]):
        team.put(f"TICKET#{number}", "META", **OPEN, queue={"S": queue})
    team.drain()
    recount = team.begin_scan("tickets", "it")
    steps = replace(recount, page_items=1).run_steps()  # each step reads one ticket
    for number, queue in ((0, "hr"), (3, "it"), (2, "hr"), (2, "it"), (1, "it"), (1, "hr")):
        team.put(f"TICKET#{number}", "META", **OPEN, queue={"S": queue})
        next(steps, None)
        team.drain()
    assert next(steps, None) is None
    team.sweep_later()
    assert recount.is_complete()
    assert (recount.difference("it").excess, recount.difference("it").number) == (0, 2)  # the tickets 2 and 3
    other_group = tallies.read_shards(Call(team.store), recount.counter, "hr")
    assert not any(recount.scan.recount_attribute in shard for shard in other_group), "another group has a recount"


def test_the_consumer_invalidates_the_number_of_a_redeclared_counter_before_it_skips_a_record(team: Team) -> None:
    """After a rollback the old declaration shows no number, because the number misses the skipped record."""
    count_all(team)
    redeclared = with_items("open", where={"status": "closed"})
    team.deploy({**team.counters, "open": redeclared})
    client, invalid = WatchedClient(team.wire), list[bool]()

    def before(number: int, name: str, parameters: dict[str, Any]) -> None:
        if name == "transact_write_items":
            invalid.append(not scan_state.read_scan(team.store, "open").counted_by)

    client.before = before
    team.handler = team.process(client)
    team.put("CUSTOMER#a", "ORDER#1", **open_order())
    team.drain()
    assert invalid == [True]
    team.deploy({**team.counters, "open": COUNTERS["open"]})
    team.put("CUSTOMER#a", "ORDER#2", **open_order())
    team.drain()
    with pytest.raises(NotCountedError):
        team.read("open", "a")
    assert team.read("all", "a") == 2
    team.count("open")
    assert team.read("open", "a") == 2


def test_a_consumer_with_the_old_declaration_abandons_the_scan_of_the_new_declaration(team: Team) -> None:
    count_all(team)
    old_handler = team.handler
    redeclared = with_items("open", where={})
    team.deploy({**team.counters, "open": redeclared})
    recount = team.begin_scan("open")
    team.put("CUSTOMER#a", "ORDER#1", **open_order())
    team.handler = old_handler
    team.drain()
    with pytest.raises(ScanClosedError):
        list(recount.run_steps())
    assert scan_state.read_scan(team.store, "open").closed
    team.handler = team.process()
    team.count("open")
    assert team.numbers("open") == {"a": 1}


def test_a_counter_whose_declaration_was_removed_and_restored_shows_no_old_number(team: Team) -> None:
    count_all(team)
    team.deploy({name: counter for name, counter in COUNTERS.items() if name != "open"})
    team.put("CUSTOMER#a", "ORDER#1", **open_order())
    team.drain()
    team.counters = COUNTERS  # restores the declaration, before a consumer has it
    with pytest.raises(NotCountedError):
        team.read("open", "a")


def test_a_scan_cannot_complete_before_a_dead_letter_is_redriven_and_the_redrive_moves_the_number_once(
    team: Team,
) -> None:
    recount = team.begin_scan("open")
    team.put("CUSTOMER#a", "ORDER#1", **open_order())
    poison_next_record(team)
    list(recount.run_steps())
    team.sweep_later()
    assert not recount.is_complete()
    recount.close()
    (marker,) = dead_letters.list_markers(Call(team.store))
    (name,) = team.bucket.objects
    dead_letter = json.loads(team.bucket.objects[name])
    dead_letter["record"]["dynamodb"]["NewImage"] = team.item("CUSTOMER#a", "ORDER#1")
    team.bucket.objects[name] = json.dumps(dead_letter).encode()
    recount = team.begin_scan("open")
    team.redrive(marker)  # counts the item for each counter, with a scan or without
    assert all_numbers(team) == {"open": {"a": 1}, "spent": {"a": 120}, "all": {"a": 1}}
    team.finish_reading(recount)
    assert excesses(recount) == {}


def test_lost_records_or_a_replaced_stream_invalidate_the_numbers(team: Team) -> None:
    """A stream keeps a record for a day, so if the consumer has not advanced for 25 hours, records may be lost."""
    table = team.store.settings.team_tables["shop"]
    for later_s, stream in ((LATER_S + 25 * 3600, table.stream), (LATER_S, f"{table.stream}-2")):
        count_all(team)
        recount = team.begin_scan("all")
        team.sweep_later()
        assert team.read("all", "a") == 0
        tables = {"shop": table._replace(stream=stream)}
        store = replace(team.store, settings=team.store.settings._replace(team_tables=tables))
        with pytest.raises(StoreRefusedError):  # the sweep has noted the loss before it reads the stream
            progress.note_progress(store, MissingStream(), COUNTERS, "shop", time.time() + later_s)  # type: ignore[arg-type]
        with pytest.raises(NotCountedError):
            team.read("all", "a")
        with pytest.raises(ScanClosedError):
            recount.is_complete()


@pytest.mark.parametrize("status", ["DISABLING", "DISABLED"])
def test_a_stream_that_is_switched_off_invalidates_the_numbers_and_stops_the_watermark(team: Team, status: str) -> None:
    """A stream that is off is readable for a day, but lacks the writes that were made while the stream was off."""
    count_all(team)
    shards = StreamShards(
        {"shop": team.stream.arn}, lambda: StreamsOff(streams_client(endpoint_url=team.endpoint), status)
    )
    before_s = scan_state.passed_s(team.store, "shop")
    progress.note_progress(team.store, shards, COUNTERS, "shop", time.time() + 2 * LATER_S)
    assert scan_state.passed_s(team.store, "shop") == before_s
    with pytest.raises(NotCountedError):
        team.read("all", "a")


def test_numbers_are_shown_while_a_dead_letter_waits_for_days(team: Team) -> None:
    """The bucket keeps the dead letter. The consumer passes later records, though `as_of` does not advance."""
    count_all(team)
    before_s = scan_state.passed_s(team.store, "shop")
    team.put("CUSTOMER#a", "ORDER#1", **open_order())
    poison_next_record(team)
    for hours in range(0, 72, 12):
        team.sweep_later(LATER_S + hours * 3600)
        assert team.read("all", "a") == 0
    assert scan_state.passed_s(team.store, "shop") == before_s
    team.sweep_later(LATER_S + 96 * 3600)  # no sweep for more than a day: records behind the dead letter may be lost
    with pytest.raises(NotCountedError):
        team.read("all", "a")


def test_a_loss_invalidates_the_numbers_though_a_scan_closes_just_before_the_loss_is_written(team: Team) -> None:
    recount = team.begin_scan("all")
    team.finish_reading(recount)
    client = interrupted_client(team.wire, 0, lambda: recount.close(has_counted_all=True))
    scan_state.invalidate_until_done(replace(team.store, client=client), "all")
    assert scan_state.read_scan(team.store, "all").counted_by == ""


@dataclass
class StreamsOff:
    """A client that says of each stream that its status is `status`: DISABLING or DISABLED."""

    client: Any
    status: str

    def describe_stream(self, **parameters: Any) -> dict[str, Any]:
        described = self.client.describe_stream(**parameters)["StreamDescription"]
        return {"StreamDescription": {**described, "StreamStatus": self.status}}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.client, name)


class MissingStream:
    """Reads the shards of a stream that does not exist."""

    def list_shards(self, table: str) -> dict[str, Any]:
        raise StoreRefusedError("there is no such stream")


# ---- random schedules ----


def expire_markers(team: Team) -> None:
    """Removes the markers, as DynamoDB does by TTL."""
    ledger = team.store.settings.ledger_table
    for item in team.wire.scan(TableName=ledger)["Items"]:
        if item["PK"]["S"].startswith("SEEN#"):
            team.wire.delete_item(TableName=ledger, Key={"PK": item["PK"], "SK": item["SK"]})


@pytest.mark.parametrize("seed", [*SEEDS, *SEEDS_LONG])
def test_on_any_schedule_a_number_that_is_shown_is_right(
    team: Team, seed: int, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The team writes, corrects and deletes items that can be counted or not, while consumers and scans die."""
    monkeypatch.setattr(consumer, "ITEMS_MAX", 12)  # so a batch needs several runs
    team.deploy({**team.counters, "profile_orders": ORDERS_NUMBER})
    schedule = TeamSchedule(team, random.Random(seed), clock)
    for _ in range(40):
        schedule.write()
    for shard in schedule.shards:
        del shard.records[: len(shard.records) // 2]  # as if the stream was switched on after these writes
    counters = team.counters
    for name in counters if seed % 2 else ():  # in odd seeds, each number is shown from the beginning
        schedule.count(name)
    for _ in range(ACTIONS):
        schedule.act_at_random()
    schedule.deliver_all()
    shown_counters = [
        name
        for name, counter in counters.items()
        if scan_state.read_scan(team.store, name).counted_by == counter.items_digest
    ]
    assert seed % 2 == 0 or len(shown_counters) == len(counters)
    for name in shown_counters:
        assert team.numbers(name) == team.truth(name), name
    for name in counters:
        schedule.count(name)
    for _ in range(30):
        schedule.write()
    expire_markers(team)
    schedule.deliver_all()
    for name in counters:
        assert team.numbers(name) == team.truth(name), name
    assert team.bucket.objects == {}
    items = ORDERS_NUMBER.items
    assert items is not None
    team_numbers = dict(number for item in team.items() if (number := items.team_number(item)))
    # The team keeps a number of orders in each customer's profile. Tally finds this number, however wrong it is.
    assert {group: watch.team_number(team.store, ORDERS_NUMBER, group) for group in "abc"} == {
        group: team_numbers.get(group) for group in "abc"
    }
