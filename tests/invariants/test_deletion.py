"""A removed parent is gone at once, and its children go in the background: no drift, whatever dies and is late."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
from botocore.exceptions import ClientError

import counters
import tally.operations.children
from tally.counter import Counter
from tally.counting import children, deletion, posts, read_many, tallies
from tally.counting.children import TOMBSTONE_KEPT_S
from tally.counting.deletion import MARKS_S_MAX, SweptParents
from tally.counting.tallies import TOMBSTONE, Tally
from tally.dynamo import keys
from tally.dynamo.client import CALL_TIME_DEFAULT_S, Call, Store
from tally.dynamo.contention import Breaker, Spread
from tally.dynamo.keys import Item
from tally.errors import (
    CounterRetiredError,
    ForbiddenError,
    NotFoundError,
    ParentRemovedError,
    StoreUnreachableError,
    TallyError,
)
from tally.maintenance import imports
from tests import faults
from tests.invariants.deployment import Deployment
from tests.invariants.world import FixedShard, World, acting_before, killing_at
from tests.tiers import in_long

FOREVER = float("inf")
ID = "p"
WAIT_S = 60  # instead of 15 minutes, each of which would be judged
WRITES = ("PutItem", "UpdateItem", "DeleteItem", "TransactWriteItems")


@dataclass
class Family:
    """A parent and its children in a deployment whose minutes are judged."""

    counter: Counter
    world: World
    deployment: Deployment

    @property
    def store(self) -> Store:
        return self.deployment.store

    @property
    def refusal(self) -> type[TallyError]:
        """What a change of a child of a removed parent raises: a post is as if it had never been."""
        return NotFoundError if self.counter.parent_required else ParentRemovedError

    def make(self, number: int = 0, id_: str = ID) -> None:
        """A parent with children on each of its shards in turn."""
        if self.counter.parent_required:
            self.deployment.post(post=id_)
        for user in range(number):
            self.put(f"u{user}", id_=id_, store=self.on(user % 16, id_))

    def put(self, user: str, there: bool = True, id_: str = ID, store: Store | None = None) -> dict[str, Any]:
        return children.set_child(Call(store or self.store), self.counter, id_, user, there)[0]

    def on(self, shard: int, id_: str = ID) -> Store:
        """The store of another process, whose changes go to this shard, past the proxy."""
        spread = Spread(random=FixedShard(shard))
        for _ in range(5):
            spread.widen(self.counter.partition_start + id_, 32)
        return replace(self.store, client=self.deployment.wire, spread=spread)

    def elsewhere(self, id_: str = ID) -> None:
        """The next change goes to a shard at random."""
        self.store.spread.widen(self.counter.partition_start + id_, 16)

    def remove(self, id_: str = ID, call: Call | None = None) -> bool:
        call = call or Call(self.store, "author")
        if self.counter.parent_required:
            return posts.delete_post(call, self.counter, id_)
        return deletion.remove_parent(call, self.counter, id_)

    def sweep(self, until_s: float = FOREVER) -> SweptParents:
        return deletion.sweep(self.store, counters.COUNTERS, until_s)

    def stored(self) -> list[Item]:
        """What is left of the parent, but for what TTL removes."""
        items = self.world.items(self.counter.partition_start + ID)
        return [item for item in items if "expiration" not in item]

    def there(self, id_: str = ID) -> set[str]:
        return self.world.likes(id_)[1]

    def rows(self) -> list[str]:
        return [item["SK"]["S"] for item in self.world.rows("DELETED")]

    def number(self) -> int:
        """What readers are told, whichever way they ask."""
        call, tally = Call(self.store), Tally(self.counter, ID)
        (number,) = {tallies.read(call, *tally), read_many.read(call, [tally])[tally]["value"]}
        return number

    def shows(self) -> tuple[int, list[str], bool]:
        """The number, the names of children, and whether `u1` is there."""
        call = Call(self.store)
        found, _ = children.list_children(call, self.counter, ID, 100, None)
        return self.number(), [name for name, _ in found], children.has_child(call, self.counter, ID, "u1")

    def ended(self) -> None:
        """After the wait the parent is removed for good, and its id is free."""
        for _ in range(3):
            self.sweep()
            self.deployment.deliver()
            self.deployment.skip(WAIT_S)
        assert (self.stored(), self.rows()) == ([], [])
        self.deployment.assert_no_drift()
        self.make(2)
        assert self.shows() == (2, ["u0", "u1"], True)


@pytest.fixture(params=[counters.LIKES, counters.MEMBERS], ids=lambda counter: counter.name)
def family(
    world: World, deployment: Deployment, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Family:
    """Likes of a post, and members of a workspace, which nobody makes."""
    monkeypatch.setattr(deletion, "TOMBSTONE_KEPT_S", WAIT_S)
    world.child_counter = request.param
    return Family(request.param, world, deployment)


only_likes = pytest.mark.parametrize("family", [counters.LIKES], indirect=True, ids=["likes"])
only_members = pytest.mark.parametrize("family", [counters.MEMBERS], indirect=True, ids=["members"])


@only_likes
def test_only_the_author_deletes_a_post_and_its_text_goes_with_it(family: Family) -> None:
    with pytest.raises(NotFoundError):
        family.remove()
    family.make(3)
    with pytest.raises(ForbiddenError):
        family.remove(call=Call(family.store, "u1"))
    assert [family.remove(), family.remove()] == [True, False]
    with pytest.raises(NotFoundError):
        family.remove(call=Call(family.store, "u1"))
    assert len(family.rows()) == 1
    with pytest.raises(NotFoundError):
        posts.read_post(Call(family.store), family.counter, ID)
    assert not [item for item in family.stored() if "body" in item]
    serves = tally.operations.children.remove_parent.serves
    assert (serves(counters.LIKES), serves(counters.MEMBERS)) == (False, True), "a service would leave the text"


@only_members
def test_a_parent_without_anything_or_of_a_retired_counter_is_not_removed_and_one_without_a_tally_is(
    family: Family,
) -> None:
    assert family.remove() is False
    assert (family.stored(), family.rows()) == ([], [])
    family.deployment.spill_like("ann", family.counter)
    assert [family.remove(), family.remove()] == [True, False]
    assert family.shows() == (0, [], False)
    family.sweep()
    family.deployment.run(1)
    family.ended()
    with pytest.raises(CounterRetiredError):
        deletion.remove_parent(Call(family.store), replace(family.counter, retired=True), ID)
    assert family.shows()[0] == 2


def test_removed_parent_is_gone_at_once_and_its_id_is_taken_until_its_children_are_gone(family: Family) -> None:
    family.make(6)
    call, again = Call(family.store, "author"), partial(family.put, "again")
    assert [family.remove(call=call), family.remove(call=call), family.remove()] == [True, True, False], "by the nonce"
    if family.counter.parent_required:
        again = partial(posts.write_post, call, family.counter, ID, "again")
        for look in (children.has_child, children.list_children):
            with pytest.raises(NotFoundError):
                look(call, family.counter, ID, *(("u1",) if look is children.has_child else (10, None)))
        assert family.number() == 0
    else:
        assert family.shows() == (0, [], False)
    before = family.world.items()
    for user in ("u1", "u2", "new"):
        for there, key in ((True, None), (True, "key-1"), (False, None), (False, "key-2")):
            if there or user != "new":
                family.elsewhere()
                with pytest.raises(family.refusal):
                    family.world._set(user, ID, there, key, Call(family.store, user))
    hot = replace(family.store, breaker=Breaker())
    hot.breaker.trip(family.counter.partition_start + ID)
    with pytest.raises(family.refusal):  # written alone
        family.put("new", store=hot)
    chunk = imports.Chunk(0, [imports.ChildRow(1, ID, "new", 1)])
    assert imports.import_children(Call(family.store), family.counter, "run", chunk)["missing"] == [1]
    assert family.world.items() == before
    for _ in range(3):
        with pytest.raises(ParentRemovedError, match="quarter of an hour"):
            again()
        family.sweep()
    family.ended()


def test_children_go_with_the_tally_and_nothing_drifts_all_the_while(family: Family) -> None:
    family.make(70)
    calm = replace(family.store, spread=Spread())
    for user in range(0, 30, 2):  # on the first shard, whose tally is below zero then
        family.put(f"u{user}", False, store=calm)
    for user in range(5):
        family.deployment.spill_like(f"alone{user}", family.counter)
    family.remove()
    family.deployment.run(1)
    assert min(family.world.shards(family.counter, ID).values()) < 0
    assert family.sweep() == SweptParents(60, 0, 0, True)
    assert family.there() == set()
    assert family.sweep() == SweptParents(0, 0, 0, True), "it waits"
    family.deployment.assert_no_drift()
    assert family.world.tally(family.counter, ID) == 0
    assert family.sweep() == SweptParents(0, 1, 0, True)
    family.ended()


def test_removal_and_sweeps_that_are_killed_at_every_request_lose_nothing(family: Family) -> None:
    """What comes next goes on with what it finds."""
    family.make(100)
    for at in range(40):
        with killing_at(family.store, at, before=bool(at % 2)) as made:
            family.remove()
        marked = [item for item in family.stored() if TOMBSTONE in item]
        assert bool(marked) == bool(family.rows()), "neither without the other"
        if len(made) < at:
            break
    else:
        pytest.fail("it never came to its end")
    for turn in range(99):
        with killing_at(family.store, turn // 2 % 5, before=bool(turn % 2)):
            family.sweep()
        family.deployment.deliver()
        tally, users = family.world.likes(ID)
        assert tally == len(users)
        assert family.deployment.drifts() == {}
        if turn % 5 == 4:
            family.deployment.run(1)
        if not family.rows():
            break
    family.ended()


@pytest.mark.parametrize("marked", [0, 7], ids=["no shard", "half the shards"])
def test_sweep_marks_the_shards_that_a_removal_which_died_left_open(family: Family, marked: int) -> None:
    family.make(9)
    with killing_at(family.store, 2 + family.counter.parent_required + marked, before=True):
        family.remove()
    assert family.sweep().children == 9
    for shard in range(1, 16):
        family.elsewhere()
        with pytest.raises(family.refusal):
            family.put(f"late{shard}")
    family.ended()


@only_likes
def test_like_that_makes_a_shard_while_the_post_is_being_deleted_is_refused(family: Family) -> None:
    """`META` is marked, and the shard is not there yet."""
    family.make()
    family.world.proxy.plan = faults.always(faults.FAIL_BEFORE, "UpdateItem")
    with pytest.raises(StoreUnreachableError):
        family.remove()
    for _ in range(20):
        family.elsewhere()
        with pytest.raises(NotFoundError):
            family.put("late")
    assert family.there() == set()


def test_copies_that_arrive_late_bring_nothing_back(family: Family) -> None:
    family.make()
    family.put("a")
    changes = [partial(family.put, "b")]
    if family.counter.parent_required:
        changes.append(partial(posts.write_post, Call(family.store, "author"), family.counter, ID, "edit"))
    family.world.proxy.plan = faults.always(faults.FAIL_BEFORE, "TransactWriteItems")  # under way all the while
    for change in changes:
        with pytest.raises(StoreUnreachableError):
            change()
    family.world.proxy.plan = faults.no_faults
    sent = {json.dumps(body["TransactItems"]) for body in family.world.sent("TransactWriteItems")}
    partition = family.counter.partition_start + ID
    copies = [{"TransactItems": json.loads(items)} for items in sent if f'"{partition}"' in items]
    assert len(copies) == (4 if family.counter.parent_required else 2)  # created, put; an edit and another child
    family.remove()
    for _ in range(2):
        for copy in copies:
            with pytest.raises(ClientError, match="Conditional"):
                family.world.raw.transact_write_items(**copy)
        family.sweep()
    assert {item["SK"]["S"].partition("#")[0] for item in family.stored()} == {family.counter.sort_key}
    family.ended()


@pytest.mark.parametrize("left", [2, 0])
def test_spilled_child_that_arrives_late_is_removed_too(family: Family, left: int) -> None:
    """It was decided before the removal: nothing in its write notices. So the sweep waits, also if no child is left."""
    family.make(2)
    for user in range(2 - left):
        family.put(f"u{user}", there=False)
    family.remove()
    assert family.sweep() == SweptParents(left, 0, 0, True)
    family.deployment.spill_like("late", family.counter)
    family.deployment.run(1)
    family.deployment.skip(WAIT_S)
    assert family.sweep() == SweptParents(1, 0, 0, True), "it waits once more"
    family.deployment.assert_no_drift()
    family.ended()


def test_tally_that_moves_at_the_very_end_is_not_removed(family: Family) -> None:
    """As when the rollup adds a child that it was behind with."""
    family.make(1)
    family.remove()
    family.sweep()
    family.deployment.skip(WAIT_S)
    family.world.proxy.forget()
    late = tallies.add_write(Call(family.store), family.counter, ID, 3, 1, 0, nonce_prefix=tallies.ROLLUP_NONCE_START)
    level = {0: lambda: family.world.raw.update_item(**late)}
    family.world.proxy.plan = acting_before(level)
    assert family.sweep() == SweptParents(0, 0, 1, True)
    assert family.world.tally(family.counter, ID) == 1
    assert len(family.rows()) == 1


@only_members
def test_sweep_stops_in_time_and_parents_of_all_counters_take_turns(family: Family) -> None:
    """Each transaction takes a second."""
    posts_of = replace(family, counter=counters.LIKES)
    posts_of.make(80, "big")
    family.make(20, "small")
    posts_of.remove("big")
    family.remove("small")
    family.world.proxy.forget()
    done = partial(family.world.sent, "TransactWriteItems")
    slow = replace(family.store, clock=lambda: len(done()))

    def left() -> list[int]:
        return [len([item for item in family.world.items(key) if "likedAt" in item])
                for key in ("POST#big", "WORKSPACE#small")]  # fmt: skip

    assert deletion.sweep(slow, counters.COUNTERS, 2) == SweptParents(32, 0, 0, False)
    assert left() == [64, 4]
    assert deletion.sweep(slow, counters.COUNTERS, 4) == SweptParents(20, 0, 0, False)
    assert left() == [48, 0]
    assert deletion.sweep(slow, counters.COUNTERS, 99).finished
    assert left() == [0, 0]
    family.deployment.assert_no_drift()


@only_members
def test_a_parent_that_drifts_waits_for_its_repair_and_does_not_delay_other_parents(
    family: Family, caplog: pytest.LogCaptureFixture
) -> None:
    for id_ in ("off", ID):
        family.make(5, id_)
    family.deployment.edit(7, family.counter, "off")
    for id_ in ("off", ID):
        family.remove(id_)
    assert family.sweep().children == 10
    family.deployment.skip(WAIT_S)
    assert family.sweep() == SweptParents(0, 1, 1, True)
    assert "removed parent has a tally" in caplog.text
    assert len(family.rows()) == 1
    family.deployment.run(14)
    assert family.deployment.reconciler().repair(family.counter, "off", "ann", "an edit") is not None
    family.deployment.skip(WAIT_S)
    assert family.sweep() == SweptParents(0, 1, 0, True)
    assert family.rows() == []


@only_likes
def test_repair_of_a_parent_that_is_removed_meanwhile_makes_no_item(family: Family) -> None:
    """It would be a `META` without an author, which nobody could read or write."""
    family.make(5)
    family.deployment.edit(7)
    family.deployment.run(14)
    family.remove()
    assert family.sweep().children == 5
    edited = partial(family.deployment.edit, -7)

    def end() -> None:
        edited()
        family.deployment.clock.now_s += WAIT_S
        assert deletion.sweep(family.on(0), counters.COUNTERS, FOREVER).parents == 1

    family.world.proxy.forget()
    family.world.proxy.plan = acting_before({0: end})
    family.deployment.reconciler(family.store.client).repair(family.counter, ID, "ann", "an edit")
    assert [item["SK"]["S"] for item in family.stored()] == ["META#1"]


@only_members
def test_broken_rows_and_a_parent_that_somebody_put_back_stop_nothing(family: Family) -> None:
    family.make(3)
    family.remove()
    ledger, raw = family.store.settings.ledger_table, family.world.raw
    raw.put_item(TableName=ledger, Item=keys.key("DELETED", "000000000001#x"))
    for id_, counter in (("back", family.counter), ("old", replace(family.counter, name="undeclared"))):
        raw.put_item(
            TableName=ledger,
            Item=deletion._removal_row_write(family.store, Tally(counter, id_), 1, found_nothing=True)["Put"]["Item"],
        )
    family.make(1, "back")
    assert family.sweep() == SweptParents(3, 0, 2, True)
    assert family.there("back") == {"u0"}
    assert [row for row in family.rows() if row.endswith("#back")] == []
    family.world.proxy.plan = faults.always(faults.error_answer("ValidationException"), "Query")
    assert family.sweep() == SweptParents(0, 0, 0, False), "it cannot read, and says so"


@pytest.mark.parametrize("who", ["call", "sweep"])
def test_nobody_makes_a_shard_long_after_the_removal(family: Family, who: str) -> None:
    """A sweep may be about to remove them all: one that is made after that would refuse children of the next parent."""
    assert MARKS_S_MAX + CALL_TIME_DEFAULT_S < TOMBSTONE_KEPT_S
    family.make(1)
    if who == "sweep":
        with killing_at(family.store, 4, before=True):
            family.remove()
    family.world.proxy.forget()
    family.world.proxy.plan = acting_before({3: lambda: family.deployment.skip(MARKS_S_MAX + 1)}, "UpdateItem")
    family.sweep() if who == "sweep" else family.remove()
    assert len(family.world.sent("UpdateItem")) == 4, "the process stood still over the fourth"
    assert family.remove() is False
    assert len(family.world.sent("UpdateItem")) == 4


@only_members
def test_shards_of_a_declaration_that_had_more_are_removed_too(family: Family) -> None:
    wide = replace(family.counter, max_shards=20)
    family.make(3)
    children.set_child(Call(family.on(19)), wide, ID, "wide", True)
    assert f"{wide.sort_key}#19" in family.world.shards(wide, ID)
    family.remove()
    assert family.sweep().children == 4
    family.ended()


@pytest.mark.parametrize("lost", [faults.LOSE_RESPONSE, *in_long([None])])
@pytest.mark.parametrize("there", [True, False], ids=["put", "removed"])
def test_changes_of_children_at_any_moment_of_a_removal_leave_nothing(
    family: Family, there: bool, lost: faults.Fault | None
) -> None:
    """One before each write of the removal and of the sweep, on the last shard: counted until that is marked."""
    family.make(30)
    rival, counted = family.on(15), list[bool]()

    def change(name: str, body: bytes, number: int) -> faults.Fault | None:
        if name not in WRITES:
            return None
        try:
            answer = family.put(f"u{len(counted) + 30 * there}", there, store=rival)
            counted.append(answer["changed"])
        except family.refusal:
            counted.append(False)
        return lost if len(counted) % 5 == 1 else None

    family.world.proxy.plan = change
    assert family.remove() is True
    marked = len(counted)
    family.sweep()
    family.world.proxy.plan = faults.no_faults
    assert counted == [True] * marked + [False] * (len(counted) - marked)
    assert len(counted) > marked > 15
    tally, users = family.world.likes(ID)
    assert (tally, users) == (0, set())
    family.deployment.assert_no_drift()
    family.ended()


@only_likes
@pytest.mark.long
def test_removal_costs_what_the_docs_say(family: Family) -> None:
    family.deployment.post(16)
    with family.world.capacity() as measured:
        family.remove()
    assert sum(units for name, units in measured if name != "GetItem") == 6 + 15
    with family.world.capacity() as measured:
        family.sweep()
    assert sum(units for name, units in measured if name == "TransactWriteItems") == 16 * 4 + 4
    family.deployment.skip(WAIT_S)
    with family.world.capacity() as measured:
        family.sweep()
    level, last = 2 * 16, 2 * 17  # the likes were on one shard, and each was taken back on another
    assert sum(units for name, units in measured if name == "TransactWriteItems") == level + last
    assert tallies.read_shards(Call(family.store), family.counter, ID) == []
