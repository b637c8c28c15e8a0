"""Numbers that a team keeps itself, on the engine: those that are off are named, and nobody writes them."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from tally.counter import WATCHED_MAX, Watched
from tally.dev.base.engine import Engine
from tally.drift import rows
from tally.dynamo.client import Store
from tally.items import Items
from tally.maintenance.reconcile import Reconciler, RepairNotReadyError
from tally.team import faults, scan_state, watch
from tally.team.team_numbers import STRETCHES_MAX, STRETCHES_PER_WRITE_MAX, stretch_s
from tests.invariants.team_table import LATER_S, Team
from tests.sync_wire import SyncWire

OF = Items("social", partition_prefix="POST#", sort_key="SK", sort_prefix="LIKE#")
POST_LIKES = Watched("post_likes", table="social", attribute="likeTally", items=OF, at="META")
COUNTERS = {POST_LIKES.name: POST_LIKES}
POSTS, LIKES = 60, 3
STRETCH_S = stretch_s(POST_LIKES)


@pytest.fixture
def social(store: Store, engine: Engine) -> Team:
    wire = store.client
    assert isinstance(wire, SyncWire)
    return Team(store, wire, COUNTERS, "social", engine.endpoint)


def post(social: Team, name: str, likes: int, tally: int | None = None) -> None:
    """A post with some likes, and the number that the team keeps of them."""
    social.put(f"POST#{name}", "META", title={"S": name}, likeTally={"N": str(likes if tally is None else tally)})
    for number in range(likes):
        social.put(f"POST#{name}", f"LIKE#USER#{number}")


def off(social: Team) -> dict[str, int]:
    """The sweep looks, some minutes later; by how much which numbers are off now."""
    social.drain()
    social.sweep_later()
    watch.check_numbers(social.store, COUNTERS, time.time() + LATER_S, until_s=time.monotonic() + 60)
    return {row.target: row.drift for row in rows.all_rows(social.store)}


def test_those_that_were_off_before_are_named(social: Team) -> None:
    wrong = {f"p{number}": number % 3 - 1 or 7 for number in range(0, POSTS, 9)}
    for number in range(POSTS):
        post(social, f"p{number}", LIKES, LIKES + wrong.get(f"p{number}", 0))
    assert off(social) == {}  # nobody counts yet
    social.count("post_likes")
    assert off(social) == wrong
    numbers = {f"p{number}": LIKES for number in range(POSTS)} | {"~-numbers": POSTS}
    assert social.numbers("post_likes") == social.truth("post_likes") == numbers


def test_one_record_moves_all_that_hold_a_number_against_a_table(social: Team) -> None:
    """In one transaction, which may have up to 100 writes: a scan of each is open, and none has met the item."""
    names = [f"w{number}" for number in range(WATCHED_MAX)]
    social.counters = {one: Watched(one, table="social", attribute="likeTally", items=OF, at="META") for one in names}
    social.handler = social.process()
    post(social, "a", 0, 5)
    social.drain()
    for name in names:
        social.begin_scan(name)
    social.put("POST#a", "META", likeTally={"S": "5"})
    social.drain()
    assert (social.bucket.objects, [social.recount(one).difference("~-kept").recount for one in names]) == (
        {}, [1] * WATCHED_MAX,
    )  # fmt: skip


def test_an_edit_is_named_until_the_team_repairs_it(social: Team) -> None:
    social.count("post_likes")
    post(social, "a", 2)
    post(social, "b", 2, 5)
    assert off(social) == {"b": 3}
    with pytest.raises(RepairNotReadyError, match="post_likes b: likeTally in social is the team's to repair"):
        Reconciler(social.store).repair(POST_LIKES, "b", "ann", "a test")
    assert social.item("POST#b", "META")["likeTally"] == {"N": "5"}
    social.put("POST#b", "META", likeTally={"N": "2"})
    assert off(social) == {}
    social.delete("POST#a", "LIKE#USER#0")
    assert off(social) == {"a": 1}
    social.delete("POST#a", "META")
    assert off(social) == {}


@pytest.mark.parametrize("lines", [False, True])
def test_an_attribute_of_that_name_in_other_items_is_not_the_number(social: Team, lines: bool) -> None:
    """20 right numbers, and as many as there are items that have such an attribute, too."""
    for number in range(20):
        post(social, f"p{number}", LIKES)
    social.drain()
    social.count("post_likes")
    for number in range(20):
        social.put(f"POST#p{number}", "META", likeTally={"N": str(LIKES + 1)})
        social.put(f"POST#p{number}", "LIKE#USER#new", **({"likeTally": {"N": "7"}} if lines else {}))
        social.put(f"POST#p{number}", "STATS", likeTally={"N": "70"})
    assert off(social) == {}
    social.put("POST#p7", "LIKE#USER#other", likeTally={"N": "7"})
    assert off(social) == {"p7": -1}


def test_more_patience_asks_for_no_scan(social: Team) -> None:
    post(social, "a", 2, 5)
    social.count("post_likes")
    for changed in ({"within_s": 120}, {"within_s": 120, "same_transaction": True}, {"within_s": 5}):
        of = POST_LIKES.items
        assert of is not None
        assert of.watch is not None
        social.counters = {"post_likes": replace(POST_LIKES, items=replace(of, watch=replace(of.watch, **changed)))}
        social.handler = social.process()
        assert social.read("post_likes", "a") == 2
        social.put("POST#a", f"LIKE#USER#{changed}")
        social.drain()
        social.delete("POST#a", f"LIKE#USER#{changed}")
        assert off(social) == {"a": 3}


def test_changes_in_flight_are_not_drift(social: Team) -> None:
    """The consumer has passed the item, and the number follows within a minute."""
    social.count("post_likes")
    post(social, "a", 2, 1)
    social.drain()
    (shard,) = social.shards.values()
    now_s = shard.records[-1]["dynamodb"]["ApproximateCreationDateTime"]  # DynamoDB Local has whole minutes
    key = scan_state.passed_key("social")
    ledger = social.store.settings.ledger_table
    for passed_s, named in ((now_s, {}), (now_s + 30, {}), (now_s + 80, {"a": -1})):
        social.wire.put_item(TableName=ledger, Item={**key, "passed": {"N": str(int(passed_s))}})
        watch.check_numbers(social.store, COUNTERS, passed_s + LATER_S, until_s=time.monotonic() + 60)
        assert {row.target: row.drift for row in rows.all_rows(social.store)} == named


def test_only_groups_of_the_team_are_looked_at(social: Team) -> None:
    social.count("post_likes")
    post(social, "a", 2)
    social.put("POST#b", "META", likeTally={"S": "two"})
    social.drain()
    ledger = social.wire.scan(TableName=social.store.settings.ledger_table)["Items"]
    assert {item["target"]["S"] for item in ledger if item["PK"]["S"].startswith("WATCHED#")} == {"a"}
    assert social.numbers("post_likes") == {"a": 2, "~-kept": 1, "~-numbers": 1}


def test_a_group_without_recent_changes_is_not_listed_for_checks(social: Team) -> None:
    social.count("post_likes")
    post(social, "a", 2)
    assert off(social) == {}
    left = social.wire.scan(TableName=social.store.settings.ledger_table)["Items"]
    assert not [item for item in left if item["PK"]["S"].startswith("WATCHED#")]
    (tally,) = social.tally_items("post_likes", "a")
    assert not [name for name in tally if name.startswith(("up#", "down#"))]


def busy(social: Team, minutes: int, since_s: float) -> None:
    """The group `a` has moved in each stretch of that time."""
    first = int(since_s) // STRETCH_S + 1
    moved = {
        f"{way}#{(first + number) * STRETCH_S}": {"N": "1"} for way in ("up", "down") for number in range(minutes * 6)
    }
    (tally,) = social.tally_items("post_likes", "a")
    social.wire.put_item(TableName=social.store.settings.counts_table, Item={**tally, **moved})


def stretches(social: Team) -> list[int]:
    """How many there are, and what they come to: up and down."""
    (tally,) = social.tally_items("post_likes", "a")
    ways = [[int(tally[name]["N"]) for name in tally if name.startswith(way)] for way in ("up#", "down#")]
    return [sum(map(len, ways)), *map(sum, ways)]


def test_stretches_of_hours_are_removed_though_no_write_holds_them_all(social: Team) -> None:
    """No sweep was there to do it. The number is looked at all the same."""
    social.count("post_likes")
    post(social, "a", 2, 5)
    social.drain()
    busy(social, 90, time.time() - 2 * 3600)
    before, looks = stretches(social)[0], 0
    while stretches(social)[0]:
        social.put("POST#a", "META", likeTally={"N": str(4 + looks % 2)})  # it is listed again
        assert off(social) == {"a": 2 + looks % 2}
        looks += 1
    assert looks == -(-before // STRETCHES_PER_WRITE_MAX) > 1


@pytest.mark.parametrize("counted", [True, False])
def test_stretches_are_few_however_long_a_dead_letter_or_a_scan_takes(social: Team, counted: bool) -> None:
    """And what is in flight stays so: nothing is reported of it."""
    social.count("post_likes")
    post(social, "a", 2, 5)
    social.drain()
    busy(social, 90, scan_state.passed_s(social.store, "social"))
    if not counted:
        scan_state.invalidate(social.store, scan_state.read_scan(social.store, "post_likes"))
    for _ in range(8):
        watch.check_numbers(social.store, COUNTERS, time.time(), until_s=time.monotonic() + 60)
    there, up, down = stretches(social)
    assert (there <= 2 * STRETCHES_MAX < 2 * 540, up >= 540, down >= 540) == (True, True, True)
    assert list(rows.all_rows(social.store)) == []


def test_a_scan_finds_the_number_that_a_lost_record_had(social: Team) -> None:
    social.count("post_likes")
    for name in ("a", "gone"):
        post(social, name, 2)
    assert off(social) == {}
    social.put("POST#a", "META", likeTally={"N": "9"})
    social.delete("POST#gone", "META")
    social.delete("POST#gone", "LIKE#USER#0")
    list(social.stream.read_new())  # lost
    social.count("post_likes")
    assert off(social) == {"a": 7}


def test_a_record_knows_better_than_what_a_scan_has_read(social: Team) -> None:
    """Before the page is added, and between the look at the numbers and the setting of them."""
    post(social, "a", 2)
    recount = social.begin_scan("post_likes")
    (page,) = recount._pages()
    social.put("POST#a", "META", likeTally={"N": "3"})
    social.drain()
    recount._add(page, len(page))
    assert scan_state.end(social.store, recount.scan, time.time())
    social.sweep_later()
    seen = next(one for one in recount.all_differences() if one.group == "a")
    assert seen.first_item[recount.scan.team_number_attribute] == {"N": "3"}
    social.put("POST#a", "META", likeTally={"N": "4"})
    social.drain()
    assert not recount.set_number(seen)
    assert recount.set_number(recount.difference("a"))
    recount.close(counted=True)
    assert off(social) == {"a": 2}


@pytest.mark.parametrize("scanned", [True, False])
def test_a_number_that_cannot_be_held_against_a_count_is_reported_and_not_watched(social: Team, scanned: bool) -> None:
    if not scanned:
        social.count("post_likes")
    social.put("POST#a", "META", likeTally={"N": "1.5"})
    social.put("POST#a", "LIKE#USER#0")
    social.drain()
    if scanned:
        social.count("post_likes")
    assert off(social) == {}
    (fault,) = faults.read_faults(social.store, COUNTERS["post_likes"])
    assert (fault.kind, fault.items, fault.example) == ("kept", 1, "POST#a, META: likeTally is 1.5: declare scale=1")
    social.put("POST#a", "META", likeTally={"N": "3"})
    social.drain()
    assert (off(social), list(faults.read_faults(social.store, COUNTERS["post_likes"]))) == ({"a": 2}, [])


def test_no_group_is_reported_while_the_scan_is_invalid(social: Team) -> None:
    social.count("post_likes")
    post(social, "a", 2, 5)
    social.drain()
    scan_state.invalidate(social.store, scan_state.read_scan(social.store, "post_likes"))
    assert off(social) == {}


def test_written_together_an_edit_is_confirmed_after_some_minutes(social: Team) -> None:
    """What stands between the two records of a transaction does not stand for minutes."""
    together = Watched(
        "post_likes", table="social", attribute="likeTally", at="META", same_transaction=True, items=replace(OF)
    )
    social.counters = {"post_likes": together}
    social.handler = social.process()
    social.count("post_likes")
    post(social, "a", 2, 4)
    social.drain()
    social.sweep_later()
    watch.check_numbers(social.store, social.counters, time.time() + LATER_S, until_s=time.monotonic() + 60)
    (row,) = rows.all_rows(social.store)
    assert (row.drift, row.changes != ()) == (2, True)
