"""What is wrong is found with the right amount and repaired once, while people like."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

import counters
from tally.counter import Counter
from tally.counting import likes, posts, tallies
from tally.drift import history, judge, reconcile, recount, rows
from tally.drift.reconcile import Reconciler
from tally.dynamo import keys
from tally.dynamo.client import Call, Store
from tally.dynamo.keys import Item
from tally.dynamo.transactions import apply_once
from tally.errors import TallyError

LIKES, PLAYS = counters.LIKES, counters.PLAYS
SWEEP_EVERY_S = 10


@dataclass
class Clock:
    """Wall time that passes only while somebody sleeps."""

    now_s: float = field(default_factory=time.time)

    def sleep(self, pause_s: float) -> None:
        self.now_s += max(pause_s, 0.001)

    def __call__(self) -> float:
        return self.now_s


def now_and_then(do: Callable[[float], object]) -> Callable[[float], None]:
    """`do`, but not again before this many seconds of the clock have passed: nothing new would be there to sweep."""
    next_s = 0.0

    def sometimes(clock_s: float) -> None:
        nonlocal next_s
        if clock_s >= next_s:
            next_s = clock_s + SWEEP_EVERY_S
            do(clock_s)

    return sometimes


@pytest.fixture
def reconciler(store: Store) -> Reconciler:
    clock = Clock()
    return Reconciler(store, counters.COUNTERS, clock=clock, sleep=clock.sleep)


def like(store: Store, user: str, liked: bool = True, post: str = "p") -> None:
    operation = "like" if liked else "unlike"
    likes.set_like(Call(store, user), LIKES, post, liked, operation=operation, key=None)


def put_post(store: Store, likers: int = 0, post: str = "p") -> None:
    posts.write_post(Call(store, "author"), LIKES, post, "hello")
    for number in range(likers):
        like(store, f"u{number}", post=post)


def edit(store: Store, amount: int, counter: Counter = LIKES, target: str = "p", shard: int = 0) -> None:
    """Edit a tally manually, around the API."""
    store.client.update_item(
        TableName=store.settings.counts_table,
        Key=tallies.key(counter, target, shard),
        UpdateExpression="ADD #number :amount",
        ExpressionAttributeNames={"#number": counter.attribute},
        ExpressionAttributeValues={":amount": {"N": str(amount)}},
    )


def delete(store: Store, key: Item) -> None:
    store.client.delete_item(TableName=store.settings.counts_table, Key=key)


def put_drift(store: Store, amount: int, counter: Counter = LIKES, target: str = "p") -> None:
    key = rows.key(counter.name, target)
    assert apply_once(store, [judge.drift_write(store, key, {}, counter.name, target, amount, 1_800_000_000)])


def booked(store: Store) -> int:
    """What was booked as expected, over every ledger row."""
    items = store.client.scan(TableName=store.settings.ledger_table, ConsistentRead=True)["Items"]
    return sum(int(item["expected"]["N"]) for item in items if item["PK"]["S"].startswith("LEDGER#"))


def stored(store: Store, counter: Counter = LIKES, target: str = "p") -> int:
    return recount.number(counter, recount.shards_of(Call(store), counter, target))


def test_tally_that_equals_its_children_is_left_alone(store: Store, reconciler: Reconciler) -> None:
    put_post(store, 3)
    assert not reconciler.look(LIKES, "p").differs
    assert reconciler.repair(LIKES, "p", "ann", "why not") is None
    assert list(history.read(store, "likes", "p")) == []


@pytest.mark.parametrize("amount", [5, -2, -7])
def test_tally_edited_by_hand_is_found_and_mended_by_exactly_that(
    store: Store, reconciler: Reconciler, amount: int
) -> None:
    put_post(store, 3)
    edit(store, amount)
    found = reconciler.look(LIKES, "p")
    assert (found.tally, found.children, found.difference) == (3 + amount, 3, -amount)
    repaired = reconciler.repair(LIKES, "p", "ann", "edited by hand")
    assert repaired is not None
    assert repaired.difference == -amount
    assert (stored(store), booked(store)) == (3, -amount)
    (entry,) = history.read(store, "likes", "p")
    expected = {"by": "ann", "why": "edited by hand", "amount": -amount, "before": 3 + amount, "after": 3}
    assert {name: entry[name] for name in expected} == expected
    assert not reconciler.look(LIKES, "p").differs


def test_drift_row_goes_with_the_repair(store: Store, reconciler: Reconciler) -> None:
    put_post(store, 3)
    edit(store, 5)
    put_drift(store, 5)
    assert reconciler.look(LIKES, "p").body["drift"] == 5
    reconciler.repair(LIKES, "p", "ann", "x")
    assert list(rows.every(store)) == []
    assert stored(store) == 3


def test_likes_deleted_around_the_api_are_found(store: Store, reconciler: Reconciler) -> None:
    put_post(store, 4)
    for user in ("u0", "u3"):
        delete(store, keys.key("POST#p", f"LIKE#USER#{user}"))
    assert reconciler.look(LIKES, "p").difference == -2
    reconciler.repair(LIKES, "p", "ann", "x")
    assert stored(store) == 2


def test_children_without_tally_get_one_and_no_post_is_made(store: Store, reconciler: Reconciler) -> None:
    put_post(store, 4)
    for key in ("META", "META.BODY"):
        delete(store, keys.key("POST#p", key))
    assert reconciler.look(LIKES, "p").difference == 4
    reconciler.repair(LIKES, "p", "ann", "x")
    assert set(recount.shards_of(Call(store), LIKES, "p")) == {1}
    assert stored(store) == 4


def test_tally_without_child_is_brought_to_0(store: Store, reconciler: Reconciler) -> None:
    put_post(store)
    edit(store, 9, shard=3)
    reconciler.repair(LIKES, "p", "ann", "x")
    assert stored(store) == 0


def test_drift_without_children_is_taken_back(store: Store, reconciler: Reconciler) -> None:
    edit(store, 7, PLAYS, "v")
    put_drift(store, 5, PLAYS, "v")
    found = reconciler.look(PLAYS, "v")
    assert (found.tally, found.children, found.difference) == (7, None, -5)
    reconciler.repair(PLAYS, "v", "ann", "x")
    assert (stored(store, PLAYS, "v"), booked(store), list(rows.every(store))) == (2, -5, [])


def test_stock_is_not_taken_below_its_floor(store: Store, reconciler: Reconciler) -> None:
    edit(store, 2, counters.STOCK, "mug")
    put_drift(store, 5, counters.STOCK, "mug")
    with pytest.raises(reconcile.OutOfBoundsError, match="at 2 does not take -5"):
        reconciler.repair(counters.STOCK, "mug", "ann", "x")
    assert stored(store, counters.STOCK, "mug") == 2


def test_numbers_that_were_given_are_not_given_again(store: Store, reconciler: Reconciler) -> None:
    edit(store, 9, counters.TICKET, "q")
    put_drift(store, 5, counters.TICKET, "q")
    repaired = reconciler.repair(counters.TICKET, "q", "ann", "five numbers were skipped")
    assert repaired is not None
    assert (stored(store, counters.TICKET, "q"), list(rows.every(store))) == (9, [])
    assert [entry["amount"] for entry in history.read(store, "ticket", "q")] == [0]


def test_numbers_that_would_be_given_again_are_skipped(store: Store, reconciler: Reconciler) -> None:
    edit(store, 4, counters.TICKET, "q")
    put_drift(store, -5, counters.TICKET, "q")
    reconciler.repair(counters.TICKET, "q", "ann", "x")
    assert stored(store, counters.TICKET, "q") == 9


def test_spilled_like_on_its_way_is_no_difference(store: Store, reconciler: Reconciler) -> None:
    """The rollup adds it while the reconciler waits."""
    put_post(store, 2)
    child = {**keys.key("POST#p", "LIKE#USER#late"), "rollup": {"BOOL": True}}
    made_s = int(reconciler.clock())
    child |= {"likedAt": {"N": str(made_s)}, "at": {"N": str(made_s // 60)}, "nonce": {"S": "x"}}
    store.client.put_item(TableName=store.settings.counts_table, Item=child)
    sleeps = []

    def sleep(pause_s: float) -> None:
        reconciler.sleep(pause_s)
        sleeps.append(pause_s)
        if len(sleeps) == 2:
            edit(store, 1, shard=1)  # as the rollup does

    found = Reconciler(store, counters.COUNTERS, clock=reconciler.clock, sleep=sleep).look(LIKES, "p")
    assert (found.difference, found.children) == (0, 3)


def test_difference_must_be_seen_twice_with_the_streams_come_through_between(
    store: Store, reconciler: Reconciler
) -> None:
    """A spilled like was taken back before it was rolled up: the tally is one short until the rollup has come."""
    put_post(store, 2)
    edit(store, -1)
    sleeps = []

    def sleep(pause_s: float) -> None:
        reconciler.sleep(pause_s)
        sleeps.append(pause_s)
        if len(sleeps) == 3:
            edit(store, 1, shard=1)  # as the rollup does

    assert (
        Reconciler(store, counters.COUNTERS, clock=reconciler.clock, sleep=sleep).repair(LIKES, "p", "a", "x") is None
    )


def test_repair_waits_until_the_ledger_has_judged_what_it_carries(store: Store, reconciler: Reconciler) -> None:
    """Else the edit would show as drift after it was repaired."""
    put_post(store, 2)
    edit(store, 5)
    row = tallies.book(store.settings, "likes", "p", int(time.time() // 60), 3, observed=5)["Update"]
    store.client.update_item(**row)
    said: list[str] = []

    @now_and_then
    def sweep(clock_s: float) -> None:
        judge.sweep(store, int(clock_s) - store.settings.settle_s, clock_s, until_s=float("inf"))

    def sleep(pause_s: float) -> None:
        reconciler.sleep(pause_s)
        sweep(reconciler.clock())

    patient = Reconciler(store, counters.COUNTERS, said.append, reconciler.clock, sleep)
    repaired = patient.repair(LIKES, "p", "ann", "x")
    assert repaired is not None
    assert repaired.drift is not None
    assert (stored(store), list(rows.every(store))) == (2, [])
    assert "waiting until its minutes are settled" in said[0]


def test_ledger_that_nobody_judges_is_said_and_nothing_is_mended(store: Store, reconciler: Reconciler) -> None:
    put_post(store, 2)
    edit(store, 5)
    row = tallies.book(store.settings, "likes", "p", int(time.time() // 60), 3, observed=5)["Update"]
    store.client.update_item(**row)
    with pytest.raises(reconcile.RestlessError, match="do its consumers and sweep run"):
        reconciler.repair(LIKES, "p", "ann", "x")
    assert stored(store) == 7


@pytest.mark.parametrize("counter", [LIKES, PLAYS])
def test_two_repairs_at_once_mend_once(store: Store, counter: Counter) -> None:
    """Both have looked before either writes."""
    target = "p" if counter is LIKES else "v"
    put_post(store, 3)
    edit(store, 5, counter, target)
    put_drift(store, 5, counter, target)
    looked = threading.Barrier(2, timeout=20)
    real, results, waited = Reconciler._commit, [], set[int]()

    def commit(self: Reconciler, *found: Any) -> bool:
        if threading.get_ident() not in waited:
            waited.add(threading.get_ident())
            looked.wait()
        return real(self, *found)

    def mend() -> None:
        clock = Clock()
        each = Reconciler(store, counters.COUNTERS, clock=clock, sleep=clock.sleep)
        try:
            results.append(each.repair(counter, target, "ann", "x"))
        except reconcile.RestlessError:  # it waits for the other's repair to come through, and no consumer runs here
            results.append(None)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Reconciler, "_commit", commit)
        both = [threading.Thread(target=mend) for _ in range(2)]
        for each in both:
            each.start()
        for each in both:
            each.join()
    assert sorted(result is not None for result in results) == [False, True]
    assert stored(store, counter, target) == (3 if counter is LIKES else 0)
    assert len(list(history.read(store, counter.name, target))) == 1


@pytest.mark.parametrize("shard", [0, 1, 7])
def test_like_between_the_look_and_the_write_sends_the_repair_back(
    store: Store, reconciler: Reconciler, monkeypatch: pytest.MonkeyPatch, shard: int
) -> None:
    """On the shard that is repaired, on another, and on one that was not there."""
    put_post(store, 3)
    edit(store, 1, shard=1)
    real, tries = Reconciler._commit, []

    def commit(self: Reconciler, *found: Any) -> bool:
        if not tries:
            child = {**keys.key("POST#p", "LIKE#USER#new"), "likedAt": {"N": "1"}, "at": {"N": "0"}}
            store.client.put_item(TableName=store.settings.counts_table, Item=child)
            store.client.update_item(**tallies.add(Call(store), LIKES, "p", shard, 1, 0))
        tries.append(real(self, *found))
        return tries[-1]

    monkeypatch.setattr(Reconciler, "_commit", commit)
    reconciler.repair(LIKES, "p", "ann", "x")
    assert tries == [False, True]
    assert stored(store) == 4


def test_repair_while_people_like_and_unlike_loses_no_like(store: Store) -> None:
    put_post(store, 5)
    edit(store, 11)
    failures: list[TallyError] = []

    def people(number: int) -> None:
        for turn in range(25):
            try:
                like(store, f"w{number}-{turn}")
                if turn % 3 == 0:
                    like(store, f"w{number}-{turn}", liked=False)
            except TallyError as error:
                failures.append(error)
            time.sleep(0.01)

    threads = [threading.Thread(target=people, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    clock = Clock()

    def sleep(pause_s: float) -> None:
        clock.sleep(pause_s)
        time.sleep(0.01)

    Reconciler(store, counters.COUNTERS, clock=clock, sleep=sleep).repair(LIKES, "p", "ann", "x")
    for thread in threads:
        thread.join()
    assert failures == []
    found = recount.recount(Call(store), LIKES, "p")
    assert found is not None
    assert found.tally == found.children == 5 + 4 * (25 - 9)
    assert [entry["amount"] for entry in history.read(store, "likes", "p")] == [-11]


def test_scan_finds_every_family_that_may_differ(store: Store) -> None:
    for number in range(6):
        put_post(store, number, post=f"p{number}")
    edit(store, 2, target="p4")
    delete(store, keys.key("POST#p2", "META"))
    edit(store, 9, PLAYS, "p1")
    found = {family.target: family for page in recount.families(store, counters.COUNTERS) for family in page}
    assert {name: (family.tally, family.children) for name, family in found.items()} == {
        "p0": (0, 0), "p1": (1, 1), "p2": (0, 2), "p3": (3, 3), "p4": (6, 4), "p5": (5, 5),
    }  # fmt: skip
