"""A removed parent is gone at once. The sweep removes the children without drift, though processes die and are late."""

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
from tests.invariants.world import FixedShard, World, before_requests, before_transactions, killing_at
from tests.tiers import marked_long

FOREVER = float("inf")
ID = "p"
WAIT_S = 60  # how long tombstones stay here. In 15 minutes the simulated judge would run 15 times, which is slow
WRITES = ("PutItem", "UpdateItem", "DeleteItem", "TransactWriteItems")


@dataclass
class Family:
    """Parents and children in a deployment whose minutes are judged. Methods without an id are of the parent `ID`."""

    counter: Counter
    world: World
    deployment: Deployment

    @property
    def store(self) -> Store:
        return self.deployment.store

    @property
    def refusal(self) -> type[TallyError]:
        """The error of a change of a child of a removed parent. A removed post is not found."""
        return NotFoundError if self.counter.parent_required else ParentRemovedError

    def make(self, number: int = 0, id_: str = ID) -> None:
        """Make a parent with `number` children, each on the next shard of its tally."""
        if self.counter.parent_required:
            self.deployment.post(post=id_)
        for user in range(number):
            self.put(f"u{user}", id_=id_, store=self.store_on_shard(user % 16, id_))

    def put(self, user: str, present: bool = True, id_: str = ID, store: Store | None = None) -> dict[str, Any]:
        """Put a child, or remove the child if not `present`. Returns the body of the answer."""
        return children.set_child(Call(store or self.store), self.counter, id_, user, present)[0]

    def store_on_shard(self, shard: int, id_: str = ID) -> Store:
        """Returns the store of another process, whose changes go to this shard, without the proxy."""
        spread = Spread(random=FixedShard(shard))
        for _ in range(5):  # each time over twice as many shards, from 1 to 32
            spread.widen(self.counter.partition_start + id_, 32)
        return replace(self.store, client=self.deployment.wire, spread=spread)

    def spread_next_change(self, id_: str = ID) -> None:
        """Let the next change of this process go to one of 16 shards at random."""
        self.store.spread.widen(self.counter.partition_start + id_, 16)

    def remove(self, id_: str = ID, call: Call | None = None) -> bool:
        call = call or Call(self.store, "author")
        if self.counter.parent_required:
            return posts.delete_post(call, self.counter, id_)
        return deletion.remove_parent(call, self.counter, id_)

    def sweep(self, until_s: float = FOREVER) -> SweptParents:
        return deletion.sweep(self.store, counters.COUNTERS, until_s)

    def stored_items(self) -> list[Item]:
        """Returns the stored items of the parent, without the items that TTL removes."""
        items = self.world.items(self.counter.partition_start + ID)
        return [item for item in items if "expiration" not in item]

    def users(self, id_: str = ID) -> set[str]:
        """Returns the names of the stored children."""
        return self.world.likes(id_)[1]

    def removal_rows(self) -> list[str]:
        """Returns the sort keys of the rows by which the sweep knows removed parents."""
        return [item["SK"]["S"] for item in self.world.rows("DELETED")]

    def number(self) -> int:
        """Returns the number that a read of one tally and a read of many tallies answer."""
        call, tally = Call(self.store), Tally(self.counter, ID)
        (number,) = {tallies.read(call, *tally), read_many.read(call, [tally])[tally]["value"]}
        return number

    def answers(self) -> tuple[int, list[str], bool]:
        """Returns what reads answer: the number, the names of the children, and whether `u1` is a child."""
        call = Call(self.store)
        page_of_children, _ = children.list_children(call, self.counter, ID, 100, None)
        return self.number(), [name for name, _ in page_of_children], children.has_child(call, self.counter, ID, "u1")

    def finish_removal(self) -> None:
        """Sweep until the parent is removed. Asserts that no item is left, and that a new parent may have the id."""
        for _ in range(3):
            self.sweep()
            self.deployment.deliver()
            self.deployment.skip(WAIT_S)
        assert (self.stored_items(), self.removal_rows()) == ([], [])
        self.deployment.run_without_drift()
        self.make(2)
        assert self.answers() == (2, ["u0", "u1"], True)


@pytest.fixture(params=[counters.LIKES, counters.MEMBERS], ids=lambda counter: counter.name)
def family(
    world: World, deployment: Deployment, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Family:
    """Likes of a post, and members of a workspace. Nobody has to make the workspace."""
    monkeypatch.setattr(deletion, "TOMBSTONE_KEPT_S", WAIT_S)
    world.child_counter = request.param
    return Family(request.param, world, deployment)


only_likes = pytest.mark.parametrize("family", [counters.LIKES], indirect=True, ids=["likes"])
only_members = pytest.mark.parametrize("family", [counters.MEMBERS], indirect=True, ids=["members"])


@only_likes
def test_only_the_author_deletes_a_post_and_its_text_is_deleted_too(family: Family) -> None:
    with pytest.raises(NotFoundError):
        family.remove()
    family.make(3)
    with pytest.raises(ForbiddenError):
        family.remove(call=Call(family.store, "u1"))
    assert [family.remove(), family.remove()] == [True, False]
    with pytest.raises(NotFoundError):
        family.remove(call=Call(family.store, "u1"))
    assert len(family.removal_rows()) == 1
    with pytest.raises(NotFoundError):
        posts.read_post(Call(family.store), family.counter, ID)
    assert not [item for item in family.stored_items() if "body" in item]
    serves = tally.operations.children.remove_parent.serves
    # This operation would leave the text of a post, so it does not serve LIKES.
    assert (serves(counters.LIKES), serves(counters.MEMBERS)) == (False, True)


@only_members
def test_a_parent_with_a_child_and_no_tally_is_removed_and_an_empty_parent_is_not(family: Family) -> None:
    assert family.remove() is False
    assert (family.stored_items(), family.removal_rows()) == ([], [])
    family.deployment.spill_like("ann", family.counter)
    assert [family.remove(), family.remove()] == [True, False]
    assert family.answers() == (0, [], False)
    family.sweep()
    family.deployment.run(1)
    family.finish_removal()
    with pytest.raises(CounterRetiredError):
        deletion.remove_parent(Call(family.store), replace(family.counter, retired=True), ID)
    assert family.answers()[0] == 2, "the children that `finish_removal` has put"


def test_a_removed_parent_is_gone_at_once_and_its_id_is_taken_until_its_children_are_removed(family: Family) -> None:
    family.make(6)
    call, make_again = Call(family.store, "author"), partial(family.put, "again")
    removals = [family.remove(call=call), family.remove(call=call), family.remove()]
    assert removals == [True, True, False], "a retry of the same call knows its own removal by the nonce"
    if family.counter.parent_required:
        make_again = partial(posts.write_post, call, family.counter, ID, "again")
        with pytest.raises(NotFoundError):
            children.has_child(call, family.counter, ID, "u1")
        with pytest.raises(NotFoundError):
            children.list_children(call, family.counter, ID, 10, None)
        assert family.number() == 0
    else:
        assert family.answers() == (0, [], False)
    items_before = family.world.items()
    for user in ("u1", "u2", "new"):
        for present, key in ((True, None), (True, "key-1"), (False, None), (False, "key-2")):
            if present or user != "new":  # the removal of a child that never existed changes nothing
                family.spread_next_change()
                with pytest.raises(family.refusal):
                    family.world._set(user, ID, present, key, Call(family.store, user))
    hot = replace(family.store, breaker=Breaker())
    hot.breaker.trip(family.counter.partition_start + ID)
    with pytest.raises(family.refusal):  # this put may spill, and spills nothing
        family.put("new", store=hot)
    chunk = imports.Chunk(0, [imports.ChildRow(1, ID, "new", 1)])
    assert imports.import_children(Call(family.store), family.counter, "run", chunk)["missing"] == [1]
    assert family.world.items() == items_before
    for _ in range(3):
        with pytest.raises(ParentRemovedError, match="quarter of an hour"):
            make_again()
        family.sweep()
    family.finish_removal()


def test_the_sweep_removes_children_with_their_tally_and_nothing_drifts(family: Family) -> None:
    family.make(70)
    store_on_shard_0 = replace(family.store, spread=Spread())
    for user in range(0, 30, 2):  # the number of the first shard falls below zero
        family.put(f"u{user}", False, store=store_on_shard_0)
    for user in range(5):
        family.deployment.spill_like(f"spilled{user}", family.counter)
    family.remove()
    family.deployment.run(1)
    assert min(family.world.shards(family.counter, ID).values()) < 0
    assert family.sweep() == SweptParents(children=70 - 15 + 5, parents=0, failed=0, finished=True)
    assert family.users() == set()
    assert family.sweep() == SweptParents(children=0, parents=0, failed=0, finished=True), (
        "the sweep keeps the tombstones"
    )
    family.deployment.run_without_drift()
    assert family.world.tally(family.counter, ID) == 0
    assert family.sweep() == SweptParents(children=0, parents=1, failed=0, finished=True)
    family.finish_removal()


def test_a_removal_and_sweeps_that_are_killed_at_every_request_lose_nothing(family: Family) -> None:
    """Each later process continues from the stored items."""
    family.make(100)
    for request_number in range(40):
        with killing_at(family.store, request_number, before=bool(request_number % 2)) as requests:
            family.remove()
        tombstones = [item for item in family.stored_items() if TOMBSTONE in item]
        assert bool(tombstones) == bool(family.removal_rows()), "tombstones and the sweep's row are stored together"
        if len(requests) < request_number:
            break
    else:
        pytest.fail("the removal never ended")
    for turn in range(99):
        with killing_at(family.store, turn // 2 % 5, before=bool(turn % 2)):  # each of the first five requests
            family.sweep()
        family.deployment.deliver()
        tally, users = family.world.likes(ID)
        assert tally == len(users)
        assert family.deployment.drifts() == {}
        if turn % 5 == 4:
            family.deployment.run(1)  # a minute is WAIT_S, after which a sweep may finish
        if not family.removal_rows():
            break
    family.finish_removal()


@pytest.mark.parametrize("shards_with_tombstone", [0, 7], ids=["no shard", "half the shards"])
def test_the_sweep_puts_tombstones_on_the_shards_that_a_killed_removal_left_out(
    family: Family, shards_with_tombstone: int
) -> None:
    family.make(9)
    requests_before_marks = 2 + family.counter.parent_required  # a read (two of a post), and the mark of shard 0
    with killing_at(family.store, requests_before_marks + shards_with_tombstone, before=True):
        family.remove()
    assert family.sweep().children == 9
    for number in range(15):
        family.spread_next_change()
        with pytest.raises(family.refusal):
            family.put(f"late{number}")
    family.finish_removal()


@only_likes
def test_a_like_that_would_make_a_shard_while_the_post_is_being_deleted_is_refused(family: Family) -> None:
    """The deletion marks `META`, and fails before it puts tombstones in the place of shards that are not stored."""
    family.make()
    family.world.proxy.plan = faults.always(faults.FAIL_BEFORE, "UpdateItem")
    with pytest.raises(StoreUnreachableError):
        family.remove()
    for _ in range(20):
        family.spread_next_change()
        with pytest.raises(NotFoundError):
            family.put("late")
    assert family.users() == set()


def test_late_copies_of_requests_restore_nothing(family: Family) -> None:
    family.make()
    family.put("a")
    changes = [partial(family.put, "b")]
    if family.counter.parent_required:
        changes.append(partial(posts.write_post, Call(family.store, "author"), family.counter, ID, "edit"))
    family.world.proxy.plan = faults.always(faults.FAIL_BEFORE, "TransactWriteItems")  # these requests arrive later
    for change in changes:
        with pytest.raises(StoreUnreachableError):
            change()
    family.world.proxy.plan = faults.no_faults
    requests = {json.dumps(body["TransactItems"]) for body in family.world.requests("TransactWriteItems")}
    partition = family.counter.partition_start + ID
    copies = [{"TransactItems": json.loads(items)} for items in requests if f'"{partition}"' in items]
    # Put `a` and put `b`; for a post also its creation and its edit.
    assert len(copies) == (4 if family.counter.parent_required else 2)
    family.remove()
    for _ in range(2):
        for copy in copies:
            with pytest.raises(ClientError, match="Conditional"):
                family.world.raw.transact_write_items(**copy)
        family.sweep()
    assert {item["SK"]["S"].partition("#")[0] for item in family.stored_items()} == {family.counter.sort_key}
    family.finish_removal()


@pytest.mark.parametrize("children_left", [2, 0])
def test_a_spilled_child_that_arrives_after_the_removal_is_removed_too(family: Family, children_left: int) -> None:
    """The write of a spilled child does not see the tombstones. So the sweep waits, also if no child is left."""
    family.make(2)
    for user in range(2 - children_left):
        family.put(f"u{user}", present=False)
    family.remove()
    assert family.sweep() == SweptParents(children=children_left, parents=0, failed=0, finished=True)
    family.deployment.spill_like("late", family.counter)
    family.deployment.run(1)
    family.deployment.skip(WAIT_S)
    assert family.sweep() == SweptParents(children=1, parents=0, failed=0, finished=True), "the wait starts once more"
    family.deployment.run_without_drift()
    family.finish_removal()


def test_a_tally_that_changes_just_before_its_removal_is_not_removed(family: Family) -> None:
    """The rollup adds a change late, just before the sweep removes the tally."""
    family.make(1)
    family.remove()
    family.sweep()
    family.deployment.skip(WAIT_S)
    one_on_shard_3: dict[str, Any] = {"shard": 3, "amount": 1, "minute": 0, "nonce_prefix": tallies.ROLLUP_NONCE_PREFIX}
    late_write = tallies.add_write(Call(family.store), family.counter, ID, **one_on_shard_3)
    family.world.proxy.plan = before_transactions({0: lambda: family.world.raw.update_item(**late_write)})
    assert family.sweep() == SweptParents(children=0, parents=0, failed=1, finished=True)
    assert family.world.tally(family.counter, ID) == 1
    assert len(family.removal_rows()) == 1


@only_members
def test_a_sweep_stops_at_its_time_limit_and_parents_of_all_counters_take_turns(family: Family) -> None:
    """Each transaction takes a second, and removes a child on each of the 16 shards. `until_s`: 2, then 4, then 99."""
    likes = replace(family, counter=counters.LIKES)
    likes.make(80, "big")
    family.make(20, "small")
    likes.remove("big")
    family.remove("small")
    family.world.proxy.clear_requests()  # so the clock of `slow` begins at 0
    slow = replace(family.store, clock=lambda: len(family.world.requests("TransactWriteItems")))

    def children_left() -> list[int]:
        return [sum("likedAt" in item for item in family.world.items(key)) for key in ("POST#big", "WORKSPACE#small")]

    assert deletion.sweep(slow, counters.COUNTERS, 2) == SweptParents(children=32, parents=0, failed=0, finished=False)
    assert children_left() == [64, 4]
    assert deletion.sweep(slow, counters.COUNTERS, 4) == SweptParents(children=20, parents=0, failed=0, finished=False)
    assert children_left() == [48, 0]
    assert deletion.sweep(slow, counters.COUNTERS, 99).finished
    assert children_left() == [0, 0]
    family.deployment.run_without_drift()


@only_members
def test_a_parent_that_drifts_waits_for_its_repair_and_does_not_delay_other_parents(
    family: Family, caplog: pytest.LogCaptureFixture
) -> None:
    for id_ in ("drifting", ID):
        family.make(5, id_)
    family.deployment.edit(7, family.counter, "drifting")
    for id_ in ("drifting", ID):
        family.remove(id_)
    assert family.sweep().children == 10
    family.deployment.skip(WAIT_S)
    assert family.sweep() == SweptParents(children=0, parents=1, failed=1, finished=True)
    assert "removed parent has a tally" in caplog.text
    assert len(family.removal_rows()) == 1
    family.deployment.run_until_confirmed()
    assert family.deployment.reconciler().repair(family.counter, "drifting", "ann", "an edit") is not None
    family.deployment.skip(WAIT_S)
    assert family.sweep() == SweptParents(children=0, parents=1, failed=0, finished=True)
    assert family.removal_rows() == []


@only_likes
def test_a_repair_of_a_post_that_is_removed_before_the_repair_commits_makes_no_meta_item(family: Family) -> None:
    """A `META` without an author is a post that nobody could read or write. So the repair writes to another shard."""
    family.make(5)
    family.deployment.edit(7)
    family.deployment.run_until_confirmed()
    family.remove()
    assert family.sweep().children == 5

    def remove_for_good() -> None:
        family.deployment.edit(-7)  # the sweep keeps the shards of a tally that is not 0
        family.deployment.clock.now_s += WAIT_S
        without_proxy = replace(family.store, client=family.deployment.wire)
        assert deletion.sweep(without_proxy, counters.COUNTERS, FOREVER).parents == 1

    family.world.proxy.plan = before_transactions({0: remove_for_good})
    family.deployment.reconciler(family.store.client).repair(family.counter, ID, "ann", "an edit")
    assert [item["SK"]["S"] for item in family.stored_items()] == ["META#1"]


@only_members
def test_rows_that_the_sweep_cannot_apply_do_not_stop_other_removals(family: Family) -> None:
    """The sweep deletes the row of a parent that was made anew after its removal. A row without fields and a row of an
    undeclared counter fail, and stay."""
    family.make(3)
    family.remove()
    ledger, raw = family.store.settings.ledger_table, family.world.raw
    raw.put_item(TableName=ledger, Item=keys.key("DELETED", "000000000001#x"))
    for id_, counter in (("remade", family.counter), ("old", replace(family.counter, name="undeclared"))):
        write = deletion._removal_row_write(family.store, Tally(counter, id_), due_s=1, found_nothing=True)
        raw.put_item(**write["Put"])
    family.make(1, "remade")
    assert family.sweep() == SweptParents(children=3, parents=0, failed=2, finished=True)
    assert family.users("remade") == {"u0"}
    assert [row for row in family.removal_rows() if row.endswith("#remade")] == []
    family.world.proxy.plan = faults.always(faults.error_answer("ValidationException"), "Query")
    assert family.sweep() == SweptParents(children=0, parents=0, failed=0, finished=False), (
        "a sweep that cannot read has not finished"
    )


@pytest.mark.parametrize("process", ["call", "sweep"])
def test_no_process_makes_a_shard_with_a_tombstone_long_after_the_removal(family: Family, process: str) -> None:
    """After TOMBSTONE_KEPT_S a sweep removes the tombstones. A later tombstone would refuse children of a new parent.
    So a process puts no tombstone after MARKS_S_MAX."""
    assert MARKS_S_MAX + CALL_TIME_DEFAULT_S < TOMBSTONE_KEPT_S
    family.make(1)
    if process == "sweep":
        with killing_at(family.store, 4, before=True):  # so that the sweep puts the last tombstones
            family.remove()
    family.world.proxy.clear_requests()
    family.world.proxy.plan = before_requests("UpdateItem", {3: lambda: family.deployment.skip(MARKS_S_MAX + 1)})
    family.sweep() if process == "sweep" else family.remove()
    assert len(family.world.requests("UpdateItem")) == 4, "time passed just before the fourth update"
    assert family.remove() is False
    assert len(family.world.requests("UpdateItem")) == 4


@only_members
def test_shards_beyond_the_declared_number_are_removed_too(family: Family) -> None:
    wide = replace(family.counter, max_shards=20)
    family.make(3)
    children.set_child(Call(family.store_on_shard(19)), wide, ID, "wide", True)
    assert f"{wide.sort_key}#19" in family.world.shards(wide, ID)
    family.remove()
    assert family.sweep().children == 4
    family.finish_removal()


@pytest.mark.parametrize("fault", [faults.LOSE_RESPONSE, *marked_long([None])])
@pytest.mark.parametrize("present", [True, False], ids=["put", "removed"])
def test_changes_of_children_at_any_moment_of_a_removal_leave_no_child(
    family: Family, present: bool, fault: faults.Fault | None
) -> None:
    """Before each write of the removal and of the sweep, a child changes on the last shard. The removal puts tombstones
    shard by shard, so changes on the last shard count until the end of the removal."""
    family.make(30)
    other_process, changes_counted = family.store_on_shard(15), list[bool]()

    def change(name: str, body: bytes, number: int) -> faults.Fault | None:
        if name not in WRITES:
            return None
        try:
            # Removes a child that `make` has put, or puts a new child.
            answer = family.put(f"u{len(changes_counted) + 30 * present}", present, store=other_process)
            changes_counted.append(answer["changed"])
        except family.refusal:
            changes_counted.append(False)
        return fault if len(changes_counted) % 5 == 1 else None  # each fifth write of the removal or the sweep

    family.world.proxy.plan = change
    assert family.remove() is True
    during_removal = len(changes_counted)
    family.sweep()
    family.world.proxy.plan = faults.no_faults
    assert changes_counted == [True] * during_removal + [False] * (len(changes_counted) - during_removal)
    assert len(changes_counted) > during_removal > 15
    tally, users = family.world.likes(ID)
    assert (tally, users) == (0, set())
    family.deployment.run_without_drift()
    family.finish_removal()


@only_likes
@pytest.mark.long
def test_a_removal_costs_the_documented_units(family: Family) -> None:
    family.deployment.post(16)
    with family.world.measure_units() as measured:
        family.remove()
    # The parent, the row of the removal, and the text of the post; then a tombstone on each other shard.
    assert sum(units for name, units in measured if name != "GetItem") == 6 + 15
    with family.world.measure_units() as measured:
        family.sweep()
    # A like costs 4 (its delete, and its tally), and the row 4, because its new time is a part of its key.
    assert sum(units for name, units in measured if name == "TransactWriteItems") == 16 * 4 + 4
    family.deployment.skip(WAIT_S)
    with family.world.measure_units() as measured:
        family.sweep()
    # The likes were counted on shard 0 and removed on 16 shards, so a write brings each shard to 0.
    zero_shards, remove_shards_and_row = 2 * 16, 2 * 17
    assert sum(units for name, units in measured if name == "TransactWriteItems") == zero_shards + remove_shards_and_row
    assert tallies.read_shards(Call(family.store), family.counter, ID) == []
