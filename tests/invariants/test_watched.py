"""Tally compares team numbers with a count of the items, reports wrong numbers and never writes a team number."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from itertools import cycle

import pytest

from tally.counter import WATCHED_MAX, WATCHED_WRITES, Watched
from tally.dev.base.engine import Engine
from tally.drift import rows
from tally.dynamo.client import Store
from tally.items import Items
from tally.maintenance.reconcile import Reconciler, RepairNotReadyError
from tally.team import faults, scan_state, watch
from tally.team.team_numbers import STRETCHES_MAX, STRETCHES_PER_WRITE_MAX, stretch_s
from tests.invariants.processes import WatchedClient
from tests.invariants.team_table import LATER_S, Team, make_team

LIKE_ITEMS = Items("social", partition_prefix="POST#", sort_key="SK", sort_prefix="LIKE#")
POST_LIKES = Watched("post_likes", table="social", attribute="likeTally", items=LIKE_ITEMS, at="META")
COUNTERS = {POST_LIKES.name: POST_LIKES}
POSTS, LIKES = 60, 3  # how many posts, and how many likes of each
STRETCH_S = stretch_s(POST_LIKES)  # a tally stores by how much its number moved in each stretch of so many seconds


@pytest.fixture
def social(store: Store, engine: Engine) -> Team:
    return make_team(store, engine, COUNTERS, "social")


def put_post(social: Team, name: str, likes: int, team_number: int | None = None) -> None:
    """Puts a post with some likes. `team_number`: the number that the team stores; None: the right number."""
    number = likes if team_number is None else team_number
    social.put(f"POST#{name}", "META", title={"S": name}, likeTally={"N": str(number)})
    for number in range(likes):
        social.put(f"POST#{name}", f"LIKE#USER#{number}")


def excesses_after_sweep(social: Team) -> dict[str, int]:
    """Runs a sweep some minutes later. Returns the excess of each wrong number, by its group."""
    social.drain()
    social.sweep_later()
    watch.check_numbers(social.store, COUNTERS, time.time() + LATER_S, until_s=time.monotonic() + 60)
    return {row.target: row.drift for row in rows.all_rows(social.store)}


def test_a_number_that_was_wrong_before_the_first_scan_is_reported(social: Team) -> None:
    # Every ninth number is wrong.
    excesses = {f"p{number}": excess for number, excess in zip(range(0, POSTS, 9), cycle([-1, 1, 7]), strict=False)}
    for number in range(POSTS):
        put_post(social, f"p{number}", LIKES, LIKES + excesses.get(f"p{number}", 0))
    assert excesses_after_sweep(social) == {}  # before the first scan there is no count
    social.count("post_likes")
    assert excesses_after_sweep(social) == excesses
    numbers = {f"p{number}": LIKES for number in range(POSTS)} | {"~-numbers": POSTS}  # POSTS posts have a team number
    assert social.numbers("post_likes") == social.truth("post_likes") == numbers


def test_one_record_moves_every_watched_number_of_its_table(social: Team) -> None:
    """With WATCHED_MAX numbers, the transaction of one record has at most DynamoDB's 100 writes. The most writes are
    needed if the item moves to another group, while the scan of each number is open and has not read the item. A number
    that is a text moves the item to the group `~-unreadable`."""
    names = [f"w{number}" for number in range(WATCHED_MAX)]
    social.deploy(
        {name: Watched(name, table="social", attribute="likeTally", items=LIKE_ITEMS, at="META") for name in names}
    )
    put_post(social, "a", 0, 5)
    social.drain()
    for name in names:
        social.begin_scan(name)
    client = WatchedClient(social.wire)
    social.handler = social.process(client)
    social.put("POST#a", "META", likeTally={"S": "5"})
    social.drain()
    ((_, transaction),) = client.calls
    assert len(transaction["TransactItems"]) == WATCHED_MAX * WATCHED_WRITES + 1, "the checkpoint, too"
    assert social.bucket.objects == {}
    assert [social.recount(name).difference("~-unreadable").recount for name in names] == [1] * WATCHED_MAX


def test_an_edit_is_reported_until_the_team_repairs_it(social: Team) -> None:
    social.count("post_likes")
    put_post(social, "a", 2)
    put_post(social, "b", 2, 5)
    assert excesses_after_sweep(social) == {"b": 3}
    with pytest.raises(RepairNotReadyError, match="post_likes b: likeTally in social is the team's to repair"):
        Reconciler(social.store).repair(POST_LIKES, "b", "ann", "a test")
    assert social.item("POST#b", "META")["likeTally"] == {"N": "5"}
    social.put("POST#b", "META", likeTally={"N": "2"})
    assert excesses_after_sweep(social) == {}
    social.delete("POST#a", "LIKE#USER#0")
    assert excesses_after_sweep(social) == {"a": 1}
    social.delete("POST#a", "META")
    assert excesses_after_sweep(social) == {}


@pytest.mark.parametrize("in_likes", [False, True])
def test_an_attribute_with_the_same_name_in_other_items_is_not_the_team_number(social: Team, in_likes: bool) -> None:
    """20 team numbers are right. 20 other items, or 40 if `in_likes`, have an attribute with the name of the number."""
    for number in range(20):
        put_post(social, f"p{number}", LIKES)
    social.drain()
    social.count("post_likes")
    for number in range(20):
        social.put(f"POST#p{number}", "META", likeTally={"N": str(LIKES + 1)})
        social.put(f"POST#p{number}", "LIKE#USER#new", **({"likeTally": {"N": "7"}} if in_likes else {}))
        social.put(f"POST#p{number}", "STATS", likeTally={"N": "70"})
    assert excesses_after_sweep(social) == {}
    social.put("POST#p7", "LIKE#USER#other", likeTally={"N": "7"})  # one more like than the team number says
    assert excesses_after_sweep(social) == {"p7": -1}


def test_a_change_of_within_s_or_same_transaction_needs_no_new_scan(social: Team) -> None:
    put_post(social, "a", 2, 5)
    social.count("post_likes")
    for changes in ({"within_s": 120}, {"within_s": 120, "same_transaction": True}, {"within_s": 5}):
        items = POST_LIKES.items
        assert items is not None
        assert items.watch is not None
        changed_items = replace(items, watch=replace(items.watch, **changes))
        social.deploy({"post_likes": replace(POST_LIKES, items=changed_items)})
        assert social.read("post_likes", "a") == 2
        social.put("POST#a", f"LIKE#USER#{changes}")  # a change lists the group for a check
        social.drain()
        social.delete("POST#a", f"LIKE#USER#{changes}")
        assert excesses_after_sweep(social) == {"a": 3}


def test_a_number_that_follows_its_items_within_a_minute_does_not_drift(social: Team) -> None:
    """The consumer has passed the item, and the team writes the number up to a minute later."""
    social.count("post_likes")
    put_post(social, "a", 2, 1)
    social.drain()
    (shard,) = social.shards.values()
    made_s = shard.records[-1]["dynamodb"]["ApproximateCreationDateTime"]  # DynamoDB Local rounds times to minutes
    key = scan_state.passed_key("social")
    ledger = social.store.settings.ledger_table
    for passed_s, drift in ((made_s, {}), (made_s + 30, {}), (made_s + 80, {"a": -1})):  # `within_s` is 60
        social.wire.put_item(TableName=ledger, Item={**key, "passed": {"N": str(int(passed_s))}})
        watch.check_numbers(social.store, COUNTERS, passed_s + LATER_S, until_s=time.monotonic() + 60)
        assert {row.target: row.drift for row in rows.all_rows(social.store)} == drift


def test_a_group_whose_number_is_unreadable_is_not_listed_for_checks(social: Team) -> None:
    social.count("post_likes")
    put_post(social, "a", 2)
    social.put("POST#b", "META", likeTally={"S": "two"})
    social.drain()
    ledger = social.wire.scan(TableName=social.store.settings.ledger_table)["Items"]
    assert {item["target"]["S"] for item in ledger if item["PK"]["S"].startswith("WATCHED#")} == {"a"}
    assert social.numbers("post_likes") == {"a": 2, "~-unreadable": 1, "~-numbers": 1}


def test_a_group_without_recent_changes_is_not_listed_for_checks(social: Team) -> None:
    social.count("post_likes")
    put_post(social, "a", 2)
    assert excesses_after_sweep(social) == {}
    ledger = social.wire.scan(TableName=social.store.settings.ledger_table)["Items"]
    assert not [item for item in ledger if item["PK"]["S"].startswith("WATCHED#")]
    (tally,) = social.tally_items("post_likes", "a")
    assert not [name for name in tally if name.startswith(("up#", "down#"))]


def store_moves(social: Team, minutes: int, since_s: float) -> None:
    """Stores that the number of group `a` moved up and down in each stretch of `minutes` from `since_s` on."""
    first_stretch = int(since_s) // STRETCH_S + 1
    times_s = [(first_stretch + number) * STRETCH_S for number in range(minutes * 60 // STRETCH_S)]
    moves = {f"{direction}#{time_s}": {"N": "1"} for direction in ("up", "down") for time_s in times_s}
    (tally,) = social.tally_items("post_likes", "a")
    social.wire.put_item(TableName=social.store.settings.counts_table, Item={**tally, **moves})


def stretches(social: Team) -> list[int]:
    """Returns the number of stored stretches, the sum of the moves up and the sum of the moves down."""
    (tally,) = social.tally_items("post_likes", "a")
    moves = [[int(tally[name]["N"]) for name in tally if name.startswith(direction)] for direction in ("up#", "down#")]
    return [sum(map(len, moves)), *map(sum, moves)]


def test_sweeps_remove_many_old_stretches_in_several_writes_and_check_the_number_each_time(social: Team) -> None:
    social.count("post_likes")
    put_post(social, "a", 2, 5)
    social.drain()
    store_moves(social, 90, time.time() - 2 * 3600)
    stretch_count, sweeps = stretches(social)[0], 0
    while stretches(social)[0]:
        social.put("POST#a", "META", likeTally={"N": str(4 + sweeps % 2)})  # the put lists the group for a check
        assert excesses_after_sweep(social) == {"a": 2 + sweeps % 2}
        sweeps += 1
    assert sweeps == math.ceil(stretch_count / STRETCHES_PER_WRITE_MAX) > 1


@pytest.mark.parametrize("cause", ["a dead letter stops the watermark", "the scan is not complete"])
def test_a_tally_has_few_stretches_however_long_a_dead_letter_or_a_scan_takes(social: Team, cause: str) -> None:
    """90 minutes have 540 stretches, all too new to be removed. The moves add up as before, and are not drift."""
    social.count("post_likes")
    put_post(social, "a", 2, 5)
    social.drain()
    store_moves(social, 90, scan_state.passed_s(social.store, "social"))
    if cause == "the scan is not complete":
        scan_state.invalidate(social.store, scan_state.read_scan(social.store, "post_likes"))
    for _ in range(8):  # one write cannot merge all stretches
        watch.check_numbers(social.store, COUNTERS, time.time(), until_s=time.monotonic() + 60)
    stretch_count, up, down = stretches(social)
    assert (stretch_count <= 2 * STRETCHES_MAX < 2 * 540, up >= 540, down >= 540) == (True, True, True)
    assert list(rows.all_rows(social.store)) == []


def test_a_scan_reads_a_team_number_whose_record_was_lost(social: Team) -> None:
    social.count("post_likes")
    for name in ("a", "gone"):
        put_post(social, name, 2)
    assert excesses_after_sweep(social) == {}
    social.put("POST#a", "META", likeTally={"N": "9"})
    social.delete("POST#gone", "META")
    social.delete("POST#gone", "LIKE#USER#0")
    list(social.stream.read_new())  # the consumer never gets these records
    social.count("post_likes")
    assert excesses_after_sweep(social) == {"a": 7}


def test_a_record_replaces_the_team_number_that_an_older_scan_page_read(social: Team) -> None:
    """One record comes before the page is added, and another record before the number is set."""
    put_post(social, "a", 2)
    recount = social.begin_scan("post_likes")
    (page,) = recount._pages()
    social.put("POST#a", "META", likeTally={"N": "3"})
    social.drain()
    recount._add(page, len(page))
    assert scan_state.end(social.store, recount.scan, time.time())
    social.sweep_later()
    difference = next(row for row in recount.all_differences() if row.group == "a")
    assert difference.first_item[recount.scan.team_number_attribute] == {"N": "3"}
    social.put("POST#a", "META", likeTally={"N": "4"})
    social.drain()
    assert not recount.set_number(difference)
    assert recount.set_number(recount.difference("a"))
    recount.close(has_counted_all=True)
    assert excesses_after_sweep(social) == {"a": 2}


@pytest.mark.parametrize("is_scanned", [True, False])
def test_a_team_number_that_is_not_a_whole_number_is_a_fault_and_not_compared(social: Team, is_scanned: bool) -> None:
    if not is_scanned:
        social.count("post_likes")
    social.put("POST#a", "META", likeTally={"N": "1.5"})
    social.put("POST#a", "LIKE#USER#0")
    social.drain()
    if is_scanned:
        social.count("post_likes")
    assert excesses_after_sweep(social) == {}
    (fault,) = faults.read_faults(social.store, COUNTERS["post_likes"])
    expected = ("unreadable", 1, "POST#a, META: likeTally is 1.5: declare scale=1")
    assert (fault.kind, fault.items, fault.example) == expected
    social.put("POST#a", "META", likeTally={"N": "3"})
    social.drain()
    assert excesses_after_sweep(social) == {"a": 2}
    assert list(faults.read_faults(social.store, COUNTERS["post_likes"])) == []


def test_no_group_is_reported_while_its_items_are_not_counted(social: Team) -> None:
    social.count("post_likes")
    put_post(social, "a", 2, 5)
    social.drain()
    scan_state.invalidate(social.store, scan_state.read_scan(social.store, "post_likes"))
    assert excesses_after_sweep(social) == {}


def test_an_edit_of_a_number_that_is_written_with_its_items_is_confirmed_after_some_minutes(social: Team) -> None:
    """A difference between the two records of one transaction does not last for minutes, but an edit does."""
    same_transaction = Watched(
        "post_likes", table="social", attribute="likeTally", at="META", same_transaction=True, items=LIKE_ITEMS
    )
    social.deploy({"post_likes": same_transaction})
    social.count("post_likes")
    put_post(social, "a", 2, 4)
    social.drain()
    social.sweep_later()
    watch.check_numbers(social.store, social.counters, time.time() + LATER_S, until_s=time.monotonic() + 60)
    (row,) = rows.all_rows(social.store)
    is_confirmed_at_once = row.changes == ()
    assert (row.drift, is_confirmed_at_once) == (2, False)
