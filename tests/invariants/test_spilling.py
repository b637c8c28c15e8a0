"""Changes that spill, by declaration or because their tally is hot, are counted once."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import pytest

import counters
from tally import observe
from tally.counter import Counter
from tally.counting import batch, children, tallies
from tally.counting.children import TOMBSTONE_KEPT_S
from tally.counting.receipts import PENDING_KEPT_S, ChangeAnswer
from tally.drift import recount
from tally.dynamo.client import Call
from tally.dynamo.contention import BREAKER_OPEN_S, BREAKER_THROTTLED_S, SPILL_RETRIES_MAX, Breaker
from tally.dynamo.keys import Item, removal_pair_of
from tally.errors import ChangeRefusedError, NotFoundError, StoreBusyError
from tests import faults
from tests.faults import Fault
from tests.invariants.world import POST, VIDEO, World, before_transactions

PAGES = Counter("pages", prefix="PAG", sort_key="TOTAL", attribute="number", visible="soon")
ONE_SHARD = Counter("one", prefix="ONE", sort_key="TOTAL", attribute="number", max_shards=1)
# The partition keys of both tallies, by which breaker and spread know them.
PLAYS_OF_VIDEO, LIKES_OF_POST = counters.PLAYS.partition_start + VIDEO, counters.LIKES.partition_start + POST
CONFLICTS_UNTIL_SPILL = [faults.CONFLICT] * (SPILL_RETRIES_MAX + 1)
CONFLICT_OF_REQUEST = faults.error_answer("TransactionConflictException")  # without a reason for each write
CONTENTION = [faults.CONFLICT, faults.THROTTLED_TRANSACTION, faults.THROTTLE, CONFLICT_OF_REQUEST]
LOST_RESPONSES = [faults.LOSE_RESPONSE, faults.FAIL_AFTER, faults.TRUNCATE]
STAMPED_ATTRIBUTES = [("at", "nonce"), ("at",), ("nonce",), ()]  # a like that somebody put by hand may lack stamps


@pytest.fixture
def hot(world: World) -> World:
    """A world with a post. The tallies of the video's plays and of the post's likes are hot."""
    world.write_post()
    for tally in (PLAYS_OF_VIDEO, LIKES_OF_POST):
        world.store.breaker.trip(tally)
    world.proxy.clear_requests()
    return world


@pytest.fixture(params=[counters.LIKES, counters.MEMBERS], ids=lambda counter: counter.name)
def hot_children(hot: World, request: pytest.FixtureRequest) -> World:
    """A hot world whose children are likes, and a hot world whose children are members."""
    hot.child_counter = request.param
    hot.store.breaker.trip(hot.child_counter.partition_start + POST)
    return hot


@pytest.fixture
def now_s(world: World) -> list[float]:
    """The time of the breaker's clock, which a test may move."""
    now_s = [100.0]
    world.store = replace(world.store, breaker=Breaker(clock=lambda: now_s[0]))
    return now_s


def attempts_before_spill(fault: Fault) -> int:
    """Returns how many transactions are sent before a spill. Throttling spills at once, but the SDK sends a throttled
    request three times."""
    return {faults.THROTTLE: 3, faults.THROTTLED_TRANSACTION: 1}.get(fault, SPILL_RETRIES_MAX + 1)


each_contention = pytest.mark.parametrize(
    "fault", CONTENTION, ids=["conflict", "throttled", "table throttled", "conflict of the request"]
)


def test_a_change_of_a_counter_that_is_visible_soon_writes_only_a_receipt_for_the_rollup(world: World) -> None:
    body, replayed = world.play("key-1", amount=7, counter=PAGES)
    assert (body["visible"], replayed) == ("soon", False)
    assert world.items() == []
    receipt = world.receipt()
    assert {name: receipt[name] for name in ("counter", "target", "amount", "rollup")} == {
        "counter": {"S": "pages"}, "target": {"S": VIDEO}, "amount": {"N": "7"}, "rollup": {"BOOL": True},
    }  # fmt: skip
    # Nobody has signed in, so the receipt must have the day of the play, and not the minute.
    assert int(receipt["at"]["N"]) % tallies.MINUTES_PER_DAY == 0
    assert json.loads(receipt["data"]["S"]) == body
    assert int(receipt["expiration"]["N"]) - time.time() > PENDING_KEPT_S - 60
    assert PENDING_KEPT_S >= 8 * 24 * 3600, "a rebuild may need a receipt for eight days"


@pytest.mark.parametrize("fault", [faults.THROTTLE, faults.CONFLICT], ids=lambda fault: fault.kind.name.lower())
def test_a_receipt_that_meets_contention_is_retried_until_the_deadline(world: World, fault: Fault) -> None:
    world.proxy.plan = faults.script({"PutItem": [fault] * 4})
    assert world.play("key-1", counter=PAGES)[1] is False
    assert world.tally_after_rollup(PAGES) == 1
    world.proxy.plan = faults.always(fault)
    with pytest.raises(StoreBusyError):
        world.play("key-2", counter=PAGES, call=world.with_deadline(0.2)[1])
    assert world.tally_after_rollup(PAGES) == 1


@each_contention
def test_a_change_in_conflict_spills_after_some_retries_and_a_throttled_change_at_once(
    world: World, fault: Fault
) -> None:
    world.proxy.plan = faults.always(fault, "TransactWriteItems")
    body, replayed = world.play("key-1", amount=5)
    assert (body["visible"], replayed) == ("soon", False)
    assert len(world.requests("TransactWriteItems")) == attempts_before_spill(fault)
    assert world.items() == []
    assert world.receipt()["rollup"] == {"BOOL": True}
    assert world.tally_after_rollup() == 5
    world.proxy.plan = faults.no_faults
    assert world.play("key-1", amount=5) == (body, True)


def test_changes_spill_while_the_breaker_is_open_and_one_change_probes_when_it_is_half_open(
    world: World, now_s: list[float]
) -> None:
    world.proxy.plan = faults.script({"TransactWriteItems": CONFLICTS_UNTIL_SPILL * 2})
    visible = [world.play(f"a-{number}")[0]["visible"] for number in range(3)]
    assert len(world.requests("TransactWriteItems")) == len(CONFLICTS_UNTIL_SPILL)
    now_s[0] += BREAKER_OPEN_S
    visible += [world.play(f"b-{number}")[0]["visible"] for number in range(3)]  # the first change probes and fails
    assert len(world.requests("TransactWriteItems")) == 2 * len(CONFLICTS_UNTIL_SPILL)
    assert visible == ["soon"] * 6
    now_s[0] += BREAKER_OPEN_S
    assert [world.play(f"c-{number}")[0]["visible"] for number in range(3)] == ["now"] * 3
    assert (world.tally(), world.tally_after_rollup()) == (3, 3 + 6)


def test_a_replay_closes_a_half_open_breaker(world: World, now_s: list[float]) -> None:
    world.play("key-1")
    world.store.breaker.trip(PLAYS_OF_VIDEO)
    now_s[0] += BREAKER_OPEN_S
    assert world.play("key-1")[1] is True
    assert not world.store.breaker.is_open(PLAYS_OF_VIDEO)


@pytest.mark.parametrize("fault", LOST_RESPONSES, ids=lambda fault: fault.kind.name.lower())
@pytest.mark.parametrize("keeps_tokens", [True, False], ids=["tokens", "no tokens"])
def test_a_change_that_was_committed_before_its_retries_meet_conflicts_is_counted_once(
    world: World, fault: Fault, keeps_tokens: bool
) -> None:
    """The first response is lost, and every retry is in conflict. The spill then finds the receipt of its own call, so
    the caller gets the first answer, and not a replay."""
    world.proxy.strip_tokens = not keeps_tokens
    world.proxy.plan = faults.script({"TransactWriteItems": [fault, *CONFLICTS_UNTIL_SPILL]})
    assert world.play("key-1") == ({"video_id": VIDEO, "counted": True, "visible": "now"}, False)
    assert (world.tally(), world.tally_after_rollup()) == (1, 1)


def test_a_counter_with_a_limit_or_numbered_or_with_one_shard_never_spills(world: World) -> None:
    world.proxy.plan = faults.always(faults.CONFLICT, "TransactWriteItems")
    # STOCK has a floor, TICKET is numbered, and CONTEST has a floor and is numbered.
    for counter, amount in ((counters.STOCK, 1), (counters.TICKET, 1), (counters.CONTEST, -1), (ONE_SHARD, 1)):
        world.store.breaker.trip(counter.partition_start + VIDEO)
        with pytest.raises(StoreBusyError):
            world.play("key-1", amount=amount, counter=counter, call=world.with_deadline(0.1)[1], operation="increment")
    assert world.items() == world.receipts() == []


def test_a_metric_counts_spilled_changes(hot: World, capsys: pytest.CaptureFixture[str]) -> None:
    with observe.metrics():
        hot.play("key-1")
        hot.like("ann")
        hot.like("ann")
        count_batch(hot, VIDEO, "other")
    [line] = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert line["Spilled"] == [3.0]  # the play, the first like, and the plays of the hot video in the batch


@pytest.mark.parametrize("key", [None, "key-1"], ids=["no key", "key"])
def test_a_like_in_lasting_conflict_writes_only_its_child(world: World, key: str | None) -> None:
    world.write_post()
    world.proxy.plan = faults.script({"TransactWriteItems": CONFLICTS_UNTIL_SPILL})
    body, replayed = world.like("ann", key=key)
    assert (body, replayed) == ({"present": True, "changed": True, "visible": "soon"}, False)
    assert world.likes() == (0, {"ann"})
    (child,) = world.spilled_children()
    assert child["at"]["N"].isdigit()
    assert len(world.receipts()) == (1 if key else 0)
    assert world.like("ann", key=key)[0]["changed"] is bool(key)  # the replay of the key, or no change
    assert world.tally_after_rollup(counters.LIKES, POST) == 1


@pytest.mark.parametrize("key", [None, "key-1"], ids=["no key", "key"])
def test_a_like_of_a_hot_post_that_does_not_exist_is_not_found_and_writes_nothing(hot: World, key: str | None) -> None:
    hot.store.breaker.trip(counters.LIKES.partition_start + "missing")
    with pytest.raises(NotFoundError):
        hot.like("ann", "missing", key=key)
    assert hot.items(counters.LIKES.partition_start + "missing") == hot.receipts() == []


def test_a_like_spills_if_the_creation_of_its_shard_is_in_lasting_conflict(world: World) -> None:
    world.write_post()
    world.store.spread.widen(LIKES_OF_POST, 16)

    def plan(operation: str, body: bytes, number: int) -> Fault | None:
        # Only the creation of a shard also checks that the post exists.
        return faults.CONFLICT if b'"ConditionCheck"' in body else None

    world.proxy.plan = plan
    for user in range(12):
        assert world.like(f"user-{user}")[0]["changed"] is True
    assert world.tally_after_rollup(counters.LIKES, POST) == 12
    assert world.shards(counters.LIKES, POST).keys() == {"META"}


def test_an_unlike_does_not_spill(hot: World) -> None:
    hot.like("ann")
    hot.proxy.plan = faults.always(faults.CONFLICT, "TransactWriteItems")
    with pytest.raises(StoreBusyError):
        hot.unlike("ann", call=hot.with_deadline(0.2, "ann")[1])
    assert hot.likes() == (0, {"ann"})


def test_a_spilled_child_that_is_deleted_before_its_rollup_leaves_the_tally_right(hot_children: World) -> None:
    hot_children.like("ann")
    assert hot_children.unlike("ann")[0] == {"present": False, "changed": True, "visible": "now"}
    assert hot_children.likes() == (-1, set())
    # A read never shows a negative number.
    assert tallies.read(hot_children.call(), hot_children.child_counter, POST) == 0
    assert hot_children.tally_after_rollup(hot_children.child_counter, POST) == 0
    hot_children.like("ann")
    assert hot_children.tally_after_rollup(hot_children.child_counter, POST) == 1


def test_the_tombstone_of_a_spilled_like_is_not_a_like(hot_children: World) -> None:
    """The tombstone stops a late copy of the like. No read, list or count has the tombstone, which expires by TTL."""
    hot_children.like("ann")
    hot_children.like("bob")
    hot_children.unlike("ann")
    tombstone = stored_child(hot_children)
    assert tombstone.keys() == {"PK", "SK", "gone", "at", "rollup", "nonce", "expiration"}
    assert int(tombstone["expiration"]["N"]) - time.time() == pytest.approx(TOMBSTONE_KEPT_S, abs=5)
    assert children.has_child(hot_children.call(), hot_children.child_counter, POST, "ann") is False
    first_page, following = children.list_children(hot_children.call(), hot_children.child_counter, POST, 1, None)
    assert (first_page, following is not None) == ([], True), "the page of one item has only the tombstone"
    page_of_children, _ = children.list_children(hot_children.call(), hot_children.child_counter, POST, 5, None)
    assert [child.name for child in page_of_children] == ["bob"]
    assert recount.recount(hot_children.store, hot_children.child_counter, POST, time.time()).children == 1
    assert hot_children.unlike("ann")[0]["changed"] is False
    assert hot_children.unlike("ann", key="key-1")[0]["changed"] is False
    assert hot_children.likes() == (-1, {"bob"})  # the rollup has not added the two likes


def test_a_like_over_a_tombstone_is_visible_now_and_moves_the_tally_once(hot_children: World) -> None:
    """The rollup reads new items only, so a like over a tombstone does not spill."""
    hot_children.like("ann")
    hot_children.unlike("ann")
    assert hot_children.like("ann")[0] == {"present": True, "changed": True, "visible": "now"}
    assert hot_children.like("ann")[0]["changed"] is False
    assert hot_children.likes() == (0, {"ann"})
    assert hot_children.tally_after_rollup(hot_children.child_counter, POST) == 1


def test_two_likes_over_a_tombstone_count_once(hot: World) -> None:
    hot.like("ann")
    hot.unlike("ann")
    # The first request for the second like has read the tombstone, and writes after the second request.
    request = children._ChildRequest(hot.call(), counters.LIKES, POST, "ann", True, {}, replaces=stored_child(hot))
    hot.like("ann")
    with pytest.raises(ChangeRefusedError):
        children._put(request, None)
    assert hot.likes() == (0, {"ann"})


def test_an_unlike_leaves_no_tombstone_if_the_spilled_like_is_older_than_tombstones_live(hot: World) -> None:
    hot.like("ann")
    put_at = tallies.minute_now(hot.call()) - TOMBSTONE_KEPT_S // 60 - 1
    hot.put(stored_child(hot) | {"at": {"N": str(put_at)}})
    hot.unlike("ann")
    assert [item["SK"]["S"] for item in hot.items(LIKES_OF_POST) if "LIKE" in item["SK"]["S"]] == []


def stored_child(world: World) -> Item:
    """Returns the child of ann, or its tombstone."""
    key = f"{world.child_counter.child}ann"
    (item,) = (item for item in world.items(world.child_counter.partition_start + POST) if item["SK"]["S"] == key)
    return item


def without(item: Item, *names: str) -> Item:
    return {name: value for name, value in item.items() if name not in names}


def test_the_pair_name_of_a_removal_depends_only_on_sort_key_minute_and_nonce_of_the_child() -> None:
    child = {"PK": {"S": "p"}, "SK": {"S": "s"}, "at": {"N": "1"}, "nonce": {"S": "n"}, "likedAt": {"N": "7"}}
    with_other_values = [child | {"SK": {"S": "t"}}, child | {"at": {"N": "2"}}, child | {"nonce": {"S": "m"}}]
    with_missing_values = [without(child, "at"), without(child, "nonce"), {}]
    assert len({removal_pair_of(item) for item in (child, *with_other_values, *with_missing_values)}) == 1 + 3 + 3
    assert removal_pair_of(child) == removal_pair_of(without(child, "PK", "likedAt"))
    assert removal_pair_of(child | {"at": {"S": "1"}}) == removal_pair_of(without(child, "at")), "a text is no minute"


@pytest.mark.parametrize("stamps", STAMPED_ATTRIBUTES)
@pytest.mark.parametrize("new_stamps", [*STAMPED_ATTRIBUTES, None])
def test_an_unlike_is_stamped_with_its_minute_and_the_pair_name_of_the_like_that_it_removes(
    world: World, stamps: tuple[str, ...], new_stamps: tuple[str, ...] | None
) -> None:
    """`stamps`: the stamps of the like that the unlike reads. `new_stamps`: the stamps of another like, which replaces
    this like before the write of the unlike; None: no like replaces this like."""
    world.write_post()
    world.like("ann")
    unstamped = without(stored_child(world), "at", "nonce")
    first = unstamped | {name: value for name, value in (("at", {"N": "1"}), ("nonce", {"S": "a"})) if name in stamps}
    world.put(first)
    if new_stamps is None:
        removed_like = first
    else:
        removed_like = unstamped | {
            name: value for name, value in (("at", {"N": "1"}), ("nonce", {"S": "b"})) if name in new_stamps
        }
        world.proxy.plan = before_transactions({0: lambda: world.put(removed_like)})
    assert world.unlike("ann")[0]["changed"] is True
    assert world.likes() == (0, set())
    (meta,) = (item for item in world.items(LIKES_OF_POST) if item["SK"]["S"] == "META")
    assert time.time() // 60 - 1 <= int(meta["at"]["N"]) <= time.time() // 60
    assert str(meta["nonce"]["S"]).startswith(f"-{removal_pair_of(removed_like)}.")


def test_every_write_of_a_tally_has_a_new_nonce(world: World) -> None:
    nonces: list[str] = []
    for counter, amount in ((counters.PLAYS, 1), (counters.STOCK, 1), (counters.TICKET, 1)):
        for number in range(3):
            world.play(
                f"{counter.name}-{number}", amount=amount, counter=counter, operation="increment", call=world.call()
            )
            (item,) = world.items(counter.partition_start + VIDEO)
            nonces.append(item["nonce"]["S"])
    assert len(set(nonces)) == 9
    assert {len(nonce) for nonce in nonces} == {8}, "the nonce of a change has no prefix"


def count_batch(world: World, *videos: str, also: Counter | None = None, call: Call | None = None) -> ChangeAnswer:
    """Counts a batch: 3 plays of each video, and 2 for VIDEO on the counter `also`. Equal batches have the same key."""
    entries = [{"counter": "plays", "id": video} for video in videos for _ in range(3)]
    entries += [{"counter": also.name, "id": VIDEO, "amount": 2}] if also else []
    declared = counters.COUNTERS | ({also.name: also} if also else {})
    changes = batch.parse_batch(entries, declared, time.time(), soon=False)
    return batch.count(call or world.call("ann"), changes, operation="change", key=f"of {videos} {also}", soon=False)


def visible(answer: ChangeAnswer) -> str:
    return str(answer.body["visible"])


def test_in_a_batch_of_tallies_visible_now_and_soon_the_tallies_visible_now_move_at_once(world: World) -> None:
    assert visible(count_batch(world, VIDEO, also=PAGES)) == "soon"
    assert (world.tally(), world.tally(PAGES), world.tally_after_rollup(PAGES)) == (3, 0, 2)


@each_contention
def test_a_batch_in_conflict_spills_after_some_retries_and_a_throttled_batch_at_once(
    world: World, fault: Fault
) -> None:
    world.proxy.plan = faults.script({"TransactWriteItems": [fault] * attempts_before_spill(fault)})
    first = count_batch(world, VIDEO)
    assert visible(first) == "soon"
    assert len(world.requests("TransactWriteItems")) == attempts_before_spill(fault)
    assert world.items() == []
    assert world.tally_after_rollup() == 3
    assert world.store.breaker.is_open(PLAYS_OF_VIDEO)
    assert count_batch(world, VIDEO) == (first.body, True)


@pytest.mark.parametrize("fault", [faults.CONFLICT, CONFLICT_OF_REQUEST], ids=str)
def test_a_batch_in_a_short_conflict_is_retried_and_spreads_its_tally(world: World, fault: Fault) -> None:
    world.proxy.plan = faults.script({"TransactWriteItems": [fault] * 2})
    assert visible(count_batch(world, VIDEO)) == "now"
    assert world.tally() == 3
    assert world.store.spread.width(PLAYS_OF_VIDEO) > 1


def test_a_batch_spills_the_change_of_a_hot_tally_without_a_try(hot: World) -> None:
    assert visible(count_batch(hot, VIDEO, "cold")) == "soon"
    assert len(hot.requests("TransactWriteItems")) == 1
    assert (hot.tally(), hot.tally_after_rollup(), hot.tally(id_="cold")) == (0, 3, 3)


def test_a_batch_opens_the_breaker_only_of_the_tally_in_conflict(world: World) -> None:
    # The last write of the transaction, which is the write of the other video, is in conflict.
    world.proxy.plan = faults.script({"TransactWriteItems": CONFLICTS_UNTIL_SPILL})
    assert visible(count_batch(world, VIDEO, "other")) == "soon"
    assert (world.tally(), world.tally(id_="other")) == (0, 0)
    assert world.store.breaker.is_open("VID#other")
    assert not world.store.breaker.is_open(PLAYS_OF_VIDEO)


def test_a_batch_spills_only_the_change_of_the_throttled_tally_whose_breaker_stays_open_for_long(
    world: World, now_s: list[float]
) -> None:
    world.proxy.plan = faults.script({"TransactWriteItems": [faults.THROTTLED_TRANSACTION]})
    assert visible(count_batch(world, VIDEO, "other")) == "soon"
    assert (world.tally(), world.tally(id_="other"), world.tally_after_rollup(id_="other")) == (3, 0, 3)
    assert world.store.spread.width("VID#other") == 1
    assert not world.store.breaker.is_open(PLAYS_OF_VIDEO)
    now_s[0] += BREAKER_THROTTLED_S - 1
    assert world.store.breaker.is_open("VID#other")


def test_a_throttled_receipt_is_retried_and_opens_no_breaker(world: World) -> None:
    throttled_receipt = Fault(faults.FaultKind.THROTTLED_TRANSACTION, at=0)  # the receipt is the first write
    world.proxy.plan = faults.script({"TransactWriteItems": [throttled_receipt] * SPILL_RETRIES_MAX})
    timed, call = world.with_deadline(9, "ann")
    assert visible(count_batch(timed, VIDEO, call=call)) == "now"
    assert timed.store.clock() > 0, "the call has paused before its retries"
    # After the retries the batch spills. The receipt alone is not a transaction, so it meets no fault.
    world.proxy.plan = faults.always(throttled_receipt, "TransactWriteItems")
    assert visible(count_batch(world, "other")) == "soon"
    assert not world.store.breaker.is_open(PLAYS_OF_VIDEO)
    assert not world.store.breaker.is_open("VID#other")


def test_a_throttled_change_that_may_not_spill_is_retried(world: World) -> None:
    world.proxy.plan = faults.script({"TransactWriteItems": [faults.THROTTLED_TRANSACTION] * SPILL_RETRIES_MAX * 2})
    assert visible(count_batch(world, also=ONE_SHARD)) == "now"
    assert world.tally(ONE_SHARD) == 2


def test_a_committed_batch_closes_the_half_open_breaker_of_its_tally(world: World, now_s: list[float]) -> None:
    world.store.breaker.trip(PLAYS_OF_VIDEO)
    now_s[0] += BREAKER_OPEN_S
    assert visible(count_batch(world, VIDEO)) == "now"
    assert world.play("next")[0]["visible"] == "now"
