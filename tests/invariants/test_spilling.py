"""Changes that are written alone, rolled up by declaration or because their tally is hot: counted once all the same."""

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
from tally.counting.increments import Increment
from tally.counting.receipts import PENDING_KEPT_S, ChangeAnswer
from tally.drift import recount
from tally.dynamo.client import Call
from tally.dynamo.contention import BREAKER_OPEN_S, BREAKER_THROTTLED_S, SPILL_RETRIES_MAX, Breaker
from tally.dynamo.keys import Item, removal_pair_of
from tally.errors import ChangeRefusedError, NotFoundError, StoreBusyError
from tests import faults
from tests.faults import Fault
from tests.invariants.world import POST, VIDEO, World, acting_before

PAGES = Counter("pages", prefix="PAG", sort_key="TOTAL", attribute="number", visible="soon")
ONE_SHARD = Counter("one", prefix="ONE", sort_key="TOTAL", attribute="number", max_shards=1)
PLAYS, LIKES = counters.PLAYS.partition_start + VIDEO, counters.LIKES.partition_start + POST
HOT = [faults.CONFLICT] * (SPILL_RETRIES_MAX + 1)
BUSY = [
    faults.CONFLICT,
    faults.THROTTLED_TRANSACTION,
    faults.THROTTLE,
    faults.error_answer("TransactionConflictException"),
]
LOST = [faults.LOSE_RESPONSE, faults.FAIL_AFTER, faults.TRUNCATE]
SOON = {"visible": "soon"}
SOME_OF_ALL = {
    faults.CONFLICT: 0.35, faults.THROTTLED_TRANSACTION: 0.1, faults.LOSE_RESPONSE: 0.05, faults.FAIL_AFTER: 0.05,
}  # fmt: skip
STAMPED = [("at", "nonce"), ("at",), ("nonce",), ()]  # tuples: a set has another name in each process
SOME_LOST = {faults.LOSE_RESPONSE: 0.1, faults.FAIL_AFTER: 0.1, faults.FAIL_BEFORE: 0.05, faults.THROTTLE: 0.05}


@pytest.fixture
def hot(world: World) -> World:
    """A world whose video and post are hot, with a post."""
    world.write_post()
    for tally in (PLAYS, LIKES):
        world.store.breaker.trip(tally)
    world.proxy.forget()
    return world


@pytest.fixture(params=[counters.LIKES, counters.MEMBERS], ids=lambda counter: counter.name)
def either_hot(hot: World, request: pytest.FixtureRequest) -> World:
    """A hot world of likes, and one of members."""
    hot.child_counter = request.param
    hot.store.breaker.trip(hot.child_counter.partition_start + POST)
    return hot


@pytest.fixture
def now_s(world: World) -> list[float]:
    """What the clock of the breaker says."""
    now = [100.0]
    world.store = replace(world.store, breaker=Breaker(clock=lambda: now[0]))
    return now


def tries_of(fault: Fault) -> int:
    """The transactions that are sent before a change is written alone: of what is throttled, the SDK's own alone."""
    return {faults.THROTTLE: 3, faults.THROTTLED_TRANSACTION: 1}.get(fault, SPILL_RETRIES_MAX + 1)


each_busy = pytest.mark.parametrize(
    "fault", BUSY, ids=["conflict", "throttled", "table throttled", "conflict of the request"]
)


def page(key: str, amount: int = 1, counter: Counter = PAGES) -> Increment:
    return Increment(counter, VIDEO, amount, "increment", key, {"id": VIDEO})


# ROLLUP


def test_a_rolled_up_change_is_its_receipt_alone_which_says_all_that_the_rollup_needs(world: World) -> None:
    body, replayed = world.play("key-1", amount=7, counter=PAGES)
    assert (body["visible"], replayed) == ("soon", False)
    assert world.items() == []
    receipt = world.receipt()
    assert {name: receipt[name] for name in ("counter", "target", "amount", "rollup")} == {
        "counter": {"S": "pages"}, "target": {"S": VIDEO}, "amount": {"N": "7"}, "rollup": {"BOOL": True},
    }  # fmt: skip
    assert int(receipt["at"]["N"]) % tallies.MINUTES_PER_DAY == 0, "nobody's change: the day is enough"
    assert json.loads(receipt["data"]["S"]) == body
    assert int(receipt["expiration"]["N"]) - time.time() > PENDING_KEPT_S - 60
    assert PENDING_KEPT_S >= 8 * 24 * 3600


@pytest.mark.parametrize("fault", [faults.THROTTLE, faults.CONFLICT], ids=lambda fault: fault.kind.name.lower())
def test_a_rolled_up_change_that_meets_others_is_tried_again_within_its_time(world: World, fault: Fault) -> None:
    world.proxy.plan = faults.script({"PutItem": [fault] * 4})
    assert world.play("key-1", counter=PAGES)[1] is False
    assert world.tally_after_rollup(PAGES) == 1
    world.proxy.plan = faults.always(fault)
    with pytest.raises(StoreBusyError):
        world.play("key-2", counter=PAGES, call=world.with_deadline(0.2)[1])
    assert world.tally_after_rollup(PAGES) == 1


# Increments that spill


@each_busy
def test_a_change_in_others_way_is_written_alone_after_some_retries_and_a_throttled_one_at_once(
    world: World, fault: Fault
) -> None:
    world.proxy.plan = faults.always(fault, "TransactWriteItems")
    body, replayed = world.play("key-1", amount=5)
    assert (body["visible"], replayed) == ("soon", False)
    assert len(world.sent("TransactWriteItems")) == tries_of(fault)
    assert world.items() == []
    assert world.receipt()["rollup"] == {"BOOL": True}
    assert world.tally_after_rollup() == 5
    world.proxy.plan = faults.no_faults
    assert world.play("key-1", amount=5) == (body, True)


def test_a_hot_tally_is_not_tried_until_it_has_cooled_and_then_by_one_change(world: World, now_s: list[float]) -> None:
    world.proxy.plan = faults.script({"TransactWriteItems": HOT * 2})
    seen = [world.play(f"a-{number}")[0]["visible"] for number in range(3)]
    assert len(world.sent("TransactWriteItems")) == len(HOT)
    now_s[0] += BREAKER_OPEN_S
    seen += [world.play(f"b-{number}")[0]["visible"] for number in range(3)]  # the first one tries, in vain
    assert len(world.sent("TransactWriteItems")) == 2 * len(HOT)
    assert seen == ["soon"] * 6
    now_s[0] += BREAKER_OPEN_S
    assert [world.play(f"c-{number}")[0]["visible"] for number in range(3)] == ["now"] * 3
    assert (world.tally(), world.tally_after_rollup()) == (3, 9)


def test_a_refusal_shows_that_a_tally_has_cooled(world: World, now_s: list[float]) -> None:
    world.play("key-1")
    world.store.breaker.trip(PLAYS)
    now_s[0] += BREAKER_OPEN_S
    assert world.play("key-1")[1] is True
    assert not world.store.breaker.is_open(PLAYS)


@pytest.mark.parametrize("fault", LOST, ids=lambda fault: fault.kind.name.lower())
@pytest.mark.parametrize("tokens", [True, False], ids=["tokens", "no tokens"])
def test_a_change_that_landed_before_it_spilled_is_counted_once(world: World, fault: Fault, tokens: bool) -> None:
    """The first answer is lost, and what the retries meet is busy: the receipt stands, and says what was done."""
    world.proxy.strip_tokens = not tokens
    world.proxy.plan = faults.script({"TransactWriteItems": [fault, *HOT]})
    assert world.play("key-1") == ({"video_id": VIDEO, "counted": True, "visible": "now"}, False)
    assert (world.tally(), world.tally_after_rollup()) == (1, 1)


def test_counters_whose_number_decides_or_is_compared_never_spill(world: World) -> None:
    world.proxy.plan = faults.always(faults.CONFLICT, "TransactWriteItems")
    for counter, amount in ((counters.STOCK, 1), (counters.TICKET, 1), (counters.CONTEST, -1), (ONE_SHARD, 1)):
        world.store.breaker.trip(counter.partition_start + VIDEO)
        with pytest.raises(StoreBusyError):
            world.play("key-1", amount=amount, counter=counter, call=world.with_deadline(0.1)[1], operation="increment")
    assert world.items() == world.receipts() == []


def test_spilled_changes_are_in_a_metric(hot: World, capsys: pytest.CaptureFixture[str]) -> None:
    with observe.metrics():
        hot.play("key-1")
        hot.like("ann")
        hot.like("ann")
        together(hot, VIDEO, "other")
    [line] = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert line["Spilled"] == [3.0]


# Likes that spill


@pytest.mark.parametrize("key", [None, "key-1"], ids=["no key", "key"])
def test_a_like_that_keeps_meeting_others_is_its_like_item_alone(world: World, key: str | None) -> None:
    world.write_post()
    world.proxy.plan = faults.script({"TransactWriteItems": HOT})
    body, replayed = world.like("ann", key=key)
    assert (body, replayed) == ({"present": True, "changed": True, **SOON}, False)
    assert world.likes() == (0, {"ann"})
    (child,) = world.spilled_children()
    assert child["at"]["N"].isdigit()
    assert len(world.receipts()) == (1 if key else 0)
    assert world.like("ann", key=key)[0]["changed"] is bool(key)  # the replay of the key, or no change
    assert world.tally_after_rollup(counters.LIKES, POST) == 1


@pytest.mark.parametrize("key", [None, "key-1"], ids=["no key", "key"])
def test_a_hot_like_of_a_missing_post_is_not_found_and_leaves_nothing(hot: World, key: str | None) -> None:
    hot.store.breaker.trip(counters.LIKES.partition_start + "missing")
    with pytest.raises(NotFoundError):
        hot.like("ann", "missing", key=key)
    assert hot.items(counters.LIKES.partition_start + "missing") == hot.receipts() == []


def test_making_a_shard_that_keeps_meeting_others_spills_the_like(world: World) -> None:
    world.write_post()
    world.store.spread.widen(LIKES, 16)

    def plan(operation: str, body: bytes, number: int) -> Fault | None:
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


def test_a_spilled_like_that_is_unliked_before_it_is_rolled_up_ends_right(either_hot: World) -> None:
    either_hot.like("ann")
    assert either_hot.unlike("ann")[0] == {"present": False, "changed": True, "visible": "now"}
    assert either_hot.likes() == (-1, set())
    assert tallies.read(either_hot.call(), either_hot.child_counter, POST) == 0  # never shown below zero
    assert (
        either_hot.tally_after_rollup(either_hot.child_counter, POST) == 0
    )  # once the rollup has seen the like in the stream
    either_hot.like("ann")
    assert either_hot.tally_after_rollup(either_hot.child_counter, POST) == 1


def test_the_tombstone_of_a_spilled_like_is_not_a_like(either_hot: World) -> None:
    """It keeps a late copy of the like out; nobody reads, lists or counts it, and it goes by TTL."""
    either_hot.like("ann")
    either_hot.like("bob")
    either_hot.unlike("ann")
    left = the_like(either_hot)
    assert left.keys() == {"PK", "SK", "gone", "at", "rollup", "nonce", "expiration"}
    assert int(left["expiration"]["N"]) - time.time() == pytest.approx(TOMBSTONE_KEPT_S, abs=5)
    assert children.has_child(either_hot.call(), either_hot.child_counter, POST, "ann") is False
    first, following = children.list_children(either_hot.call(), either_hot.child_counter, POST, 1, None)
    assert (first, following is not None) == ([], True)
    assert [
        name for name, _ in children.list_children(either_hot.call(), either_hot.child_counter, POST, 5, None)[0]
    ] == ["bob"]
    assert recount.recount(either_hot.store, either_hot.child_counter, POST, time.time()).children == 1
    assert either_hot.unlike("ann")[0]["changed"] is False
    assert either_hot.unlike("ann", key="key-1")[0]["changed"] is False
    assert either_hot.likes() == (-1, {"bob"})


def test_a_like_over_what_an_unlike_left_is_visible_at_once_and_moves_the_tally_once(either_hot: World) -> None:
    """The rollup reads new items only, so this like does not spill."""
    either_hot.like("ann")
    either_hot.unlike("ann")
    assert either_hot.like("ann")[0] == {"present": True, "changed": True, "visible": "now"}
    assert either_hot.like("ann")[0]["changed"] is False
    assert either_hot.likes() == (0, {"ann"})
    assert either_hot.tally_after_rollup(either_hot.child_counter, POST) == 1


def test_two_likes_over_what_an_unlike_left_count_once(hot: World) -> None:
    hot.like("ann")
    hot.unlike("ann")
    wish = children._ChildRequest(hot.call(), counters.LIKES, POST, "ann", True, {}, replaces=the_like(hot))
    hot.like("ann")
    with pytest.raises(ChangeRefusedError):
        children._put(wish, None)
    assert hot.likes() == (0, {"ann"})


def test_an_unlike_of_an_old_spilled_like_leaves_nothing(hot: World) -> None:
    hot.like("ann")
    put_at = tallies.minute_now(hot.call()) - TOMBSTONE_KEPT_S // 60 - 1
    hot.put(the_like(hot) | {"at": {"N": str(put_at)}})
    hot.unlike("ann")
    assert [item["SK"]["S"] for item in hot.items(LIKES) if "LIKE" in item["SK"]["S"]] == []


# What is booked


def the_like(world: World) -> Item:
    key = f"{world.child_counter.child}ann"
    (item,) = (item for item in world.items(world.child_counter.partition_start + POST) if item["SK"]["S"] == key)
    return item


def without(item: Item, *names: str) -> Item:
    return {name: value for name, value in item.items() if name not in names}


def test_each_of_what_names_a_like_changes_the_pair_key() -> None:
    child = {"PK": {"S": "p"}, "SK": {"S": "s"}, "at": {"N": "1"}, "nonce": {"S": "n"}, "likedAt": {"N": "7"}}
    others = [child | {"SK": {"S": "t"}}, child | {"at": {"N": "2"}}, child | {"nonce": {"S": "m"}}]
    lacking = [without(child, "at"), without(child, "nonce"), {}]
    assert len({removal_pair_of(item) for item in (child, *others, *lacking)}) == 7
    assert removal_pair_of(child) == removal_pair_of(without(child, "PK", "likedAt"))
    assert removal_pair_of(child | {"at": {"S": "1"}}) == removal_pair_of(without(child, "at"))


@pytest.mark.parametrize("before", STAMPED)
@pytest.mark.parametrize("after", [*STAMPED, None])
def test_an_unlike_is_stamped_with_its_own_minute_and_the_like_that_it_takes_back_also_if_that_changes_meanwhile(
    world: World, before: tuple[str, ...], after: tuple[str, ...] | None
) -> None:
    world.write_post()
    world.like("ann")
    bare = without(the_like(world), "at", "nonce")
    first = bare | {name: value for name, value in (("at", {"N": "1"}), ("nonce", {"S": "a"})) if name in before}
    world.put(first)
    if after is None:
        taken = first
    else:
        taken = bare | {name: value for name, value in (("at", {"N": "1"}), ("nonce", {"S": "b"})) if name in after}
        world.proxy.plan = acting_before({0: lambda: world.put(taken)})
    assert world.unlike("ann")[0]["changed"] is True
    assert world.likes() == (0, set())
    (meta,) = (item for item in world.items(LIKES) if item["SK"]["S"] == "META")
    assert time.time() // 60 - 1 <= int(meta["at"]["N"]) <= time.time() // 60
    assert str(meta["nonce"]["S"]).startswith(f"-{removal_pair_of(taken)}.")


def test_every_write_of_a_tally_has_a_nonce_of_its_own(world: World) -> None:
    seen: list[str] = []
    for counter, amount in ((counters.PLAYS, 1), (counters.STOCK, 1), (counters.TICKET, 1)):
        for number in range(3):
            world.play(
                f"{counter.name}-{number}", amount=amount, counter=counter, operation="increment", call=world.call()
            )
            (item,) = world.items(counter.partition_start + VIDEO)
            seen.append(item["nonce"]["S"])
    assert len(set(seen)) == 9
    assert {len(nonce) for nonce in seen} == {8}


# Many changes under one key


def together(world: World, *videos: str, also: Counter | None = None, call: Call | None = None) -> ChangeAnswer:
    """Three plays of each video under one key, and a change of `also`."""
    sent = [{"counter": "plays", "id": video} for video in videos for _ in range(3)]
    sent += [{"counter": also.name, "id": VIDEO, "amount": 2}] if also else []
    declared = counters.COUNTERS | ({also.name: also} if also else {})
    wanted = batch.parse_batch(sent, declared, time.time(), soon=False)
    return batch.count(call or world.call("ann"), wanted, operation="change", key=f"of {videos} {also}", soon=False)


def visible(counted: ChangeAnswer) -> str:
    return str(counted.body["visible"])


def test_of_both_kinds_those_that_are_visible_now_move(world: World) -> None:
    assert visible(together(world, VIDEO, also=PAGES)) == "soon"
    assert (world.tally(), world.tally(PAGES), world.tally_after_rollup(PAGES)) == (3, 0, 2)


@each_busy
def test_changes_that_keep_meeting_others_are_written_alone_and_throttled_ones_at_once(
    world: World, fault: Fault
) -> None:
    world.proxy.plan = faults.script({"TransactWriteItems": [fault] * tries_of(fault)})
    first = together(world, VIDEO)
    assert visible(first) == "soon"
    assert len(world.sent("TransactWriteItems")) == tries_of(fault)
    assert world.items() == []
    assert world.tally_after_rollup() == 3
    assert world.store.breaker.is_open(PLAYS)
    assert together(world, VIDEO) == (first.body, True)


@pytest.mark.parametrize("fault", [faults.CONFLICT, faults.error_answer("TransactionConflictException")], ids=str)
def test_changes_that_meet_others_are_tried_again_and_spread(world: World, fault: Fault) -> None:
    world.proxy.plan = faults.script({"TransactWriteItems": [fault] * 2})
    assert visible(together(world, VIDEO)) == "now"
    assert world.tally() == 3
    assert world.store.spread.width(PLAYS) > 1


def test_a_hot_tally_waits_from_the_start(hot: World) -> None:
    assert visible(together(hot, VIDEO, "cold")) == "soon"
    assert len(hot.sent("TransactWriteItems")) == 1
    assert (hot.tally(), hot.tally_after_rollup(), hot.tally(id_="cold")) == (0, 3, 3)


def test_only_the_tally_that_was_in_the_way_is_hot(world: World) -> None:
    world.proxy.plan = faults.script({"TransactWriteItems": HOT})  # the last write is in conflict: the other video's
    assert visible(together(world, VIDEO, "other")) == "soon"
    assert (world.tally(), world.tally(id_="other")) == (0, 0)
    assert world.store.breaker.is_open("VID#other")
    assert not world.store.breaker.is_open(PLAYS)


def test_only_the_tally_that_was_throttled_is_written_alone_and_rests_for_long(
    world: World, now_s: list[float]
) -> None:
    world.proxy.plan = faults.script({"TransactWriteItems": [faults.THROTTLED_TRANSACTION]})
    assert visible(together(world, VIDEO, "other")) == "soon"
    assert (world.tally(), world.tally(id_="other"), world.tally_after_rollup(id_="other")) == (3, 0, 3)
    assert world.store.spread.width("VID#other") == 1
    assert not world.store.breaker.is_open(PLAYS)
    now_s[0] += BREAKER_THROTTLED_S - 1
    assert world.store.breaker.is_open("VID#other")


def test_a_receipt_that_is_throttled_waits_and_heats_no_tally(world: World) -> None:
    receipt = Fault(faults.FaultKind.THROTTLED_TRANSACTION, at=0)
    world.proxy.plan = faults.script({"TransactWriteItems": [receipt] * SPILL_RETRIES_MAX})
    rushed, call = world.with_deadline(9, "ann")
    assert visible(together(rushed, VIDEO, call=call)) == "now"
    assert rushed.store.clock() > 0
    world.proxy.plan = faults.always(receipt, "TransactWriteItems")
    assert visible(together(world, "other")) == "soon"
    assert not world.store.breaker.is_open(PLAYS)
    assert not world.store.breaker.is_open("VID#other")


def test_a_change_that_may_not_be_spilled_waits(world: World) -> None:
    world.proxy.plan = faults.script({"TransactWriteItems": [faults.THROTTLED_TRANSACTION] * SPILL_RETRIES_MAX * 2})
    assert visible(together(world, also=ONE_SHARD)) == "now"
    assert world.tally(ONE_SHARD) == 2


def test_changes_that_get_through_close_the_breaker_of_their_tally(world: World, now_s: list[float]) -> None:
    world.store.breaker.trip(PLAYS)
    now_s[0] += BREAKER_OPEN_S
    assert visible(together(world, VIDEO)) == "now"
    assert world.play("next")[0]["visible"] == "now"
