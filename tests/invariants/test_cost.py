"""What changes and reads cost: capacity units as the engine bills them, requests as the proxy saw them."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable

import pytest

import counters
from bench import budgets, consumers, cost, designs, journal
from bench.claims import claimed
from tally import fields
from tally.counter import Counter
from tally.counting import children, holds, increments, periods
from tally.counting.increments import Increment
from tally.counting.tallies import Tally
from tests.invariants.world import POST, VIDEO, World

LONGEST_ID = "~" * fields.ID_CHARACTERS_MAX
LONGEST_KEY = "k" * fields.KEY_CHARACTERS_MAX
LONGEST_USER = "%" * 128
LONGEST = Counter(
    "c" * 32,
    prefix="LONGEST",
    sort_key="LONGEST",
    attribute="longest",
    ceiling=fields.AMOUNT_MAX,
    period="minute",
    keep_periods=5,
)
SHARDS = counters.PLAYS.max_shards


@pytest.mark.parametrize("change", ["play", "visit", "like", "unlike", "hold"])
def test_receipt_with_the_longest_ids_and_key_or_a_page_of_600_bytes_is_under_1_kb(world: World, change: str) -> None:
    """The page stands once in its receipt; the longest ones that are taken cost a unit more."""
    if change == "visit":
        page = fields.page("https://example.com/" + "p" * 580, "url", counters.PAGES)
        increments.count(world.call(), Increment(counters.VISITS, page, 1, "visit", LONGEST_KEY, {"counted": True}))
    elif change == "play":
        call = world.call(fields.user(LONGEST_USER, "caller"))
        world.play(LONGEST_KEY, LONGEST_ID, -fields.AMOUNT_MAX, call=call)
    elif change == "hold":  # it has the counter, the id and the period twice, and the name of the hold
        call = world.call(fields.user(LONGEST_USER, "caller"))
        tally = periods.tally_id(LONGEST, LONGEST_ID, time.time())
        holds.place(call, LONGEST, tally, fields.AMOUNT_MAX, fields.HOLD_TTL_MAX_S, operation="hold", key=LONGEST_KEY)
    else:
        world.write_post(LONGEST_ID)
        getattr(world, change)(fields.user(LONGEST_USER, "caller"), LONGEST_ID, LONGEST_KEY)
    table = world.store.settings.receipts_table
    answer = world.raw.put_item(TableName=table, Item=world.receipt(), ReturnConsumedCapacity="TOTAL")
    assert answer["ConsumedCapacity"]["CapacityUnits"] == 1


NOW, READ, ALONE = ("TransactWriteItems", 4.0), ("GetItem", 1.0), ("PutItem", 1.0)
KEYED = ("TransactWriteItems", 6.0)
COSTS: dict[str, tuple[Callable[[World], object], list[tuple[str, float]]]] = {
    "now": (lambda world: world.play("new"), [NOW]),
    "soon": (lambda world: world.play("new", counter=counters.VISITS), [ALONE]),
    "spilled": (lambda world: heated(world).play("new"), [ALONE]),
    "number": (lambda world: world.play("new", counter=counters.TICKET, operation="increment"), [("Query", 1.0), NOW]),
    "like": (lambda world: world.like("ann"), [NOW]),
    "like with a key": (lambda world: world.like("ann", key="new"), [KEYED]),
    "member": (lambda world: members(world).like("ann"), [NOW]),
    "member with a key": (lambda world: members(world).like("ann", key="new"), [KEYED]),
    "unlike": (lambda world: world.unlike("bob"), [READ, NOW]),
    "unlike with a key": (lambda world: world.unlike("bob", key="new"), [READ, KEYED]),
    "member that goes": (lambda world: members(world).unlike("cy"), [READ, NOW]),
    "spilled member": (lambda world: members(heated(world)).like("ann"), [READ, ALONE]),
    "spilled like": (lambda world: heated(world).like("ann"), [READ, ALONE]),
    "spilled like with a key": (lambda world: heated(world).like("ann", key="new"), [READ, NOW]),
}


def members(world: World) -> World:
    """The world, with `like` and `unlike` for the members of a workspace."""
    world.child_counter = counters.MEMBERS
    return world


def heated(world: World) -> World:
    """The world, with the video and the post so hot that changes of them are written alone."""
    for tally in (f"VID#{VIDEO}", f"POST#{POST}", f"WORKSPACE#{POST}"):
        world.store.breaker.trip(tally)
    return world


@pytest.mark.parametrize(("change", "costs"), COSTS.values(), ids=COSTS.keys())
def test_change_costs_what_the_design_says(
    world: World, change: Callable[[World], object], costs: list[tuple[str, float]]
) -> None:
    world.write_post()
    world.play("earlier")
    world.like("bob")
    members(world).like("cy")
    world.child_counter = counters.LIKES
    world.proxy.forget()
    with world.capacity() as measured:
        change(world)
    assert measured == costs
    assert [request.operation for request in world.proxy.requests] == [operation for operation, _ in costs]


def test_like_costs_the_same_whatever_the_length_of_the_text(world: World) -> None:
    world.write_post(text="x" * fields.TEXT_BYTES_MAX)
    with world.capacity() as measured:
        world.like("ann")
        world.unlike("ann")
        world.like("ann", key="key-1")
    assert [units for name, units in measured if name != "GetItem"] == [4, 4, 6]


def test_read_is_one_request_of_one_unit_whatever_the_number_of_shards_and_likes(world: World) -> None:
    world.write_post(text="x" * 1000)
    post, video = {"PK": {"S": f"POST#{POST}"}}, {"PK": {"S": f"VID#{VIDEO}"}}
    for shard in range(SHARDS):
        number = {"play_count": {"N": "1000000"}, "at": {"N": "29000000"}}
        world.put({**video, "SK": {"S": counters.PLAYS.shard_key(shard)}, **number})
    for shard in range(1, SHARDS):
        world.put({**post, "SK": {"S": f"META#{shard}"}, "likeTally": {"N": "2"}})
    for user in range(50):
        world.put({**post, "SK": {"S": f"LIKE#USER#{user}"}, "likedAt": {"N": "1"}})
    world.proxy.forget()
    with world.capacity() as measured:
        assert world.read_plays() == SHARDS * 1_000_000
        assert world.read_post()["likes"] == 2 * (SHARDS - 1)
    assert measured == [("Query", 1.0)] * 2  # the likes are not read
    assert [request.operation for request in world.proxy.requests] == ["Query"] * 2
    assert [sent["ConsistentRead"] for sent in world.sent()] == [True, True]


def test_the_calculator_and_the_benchmark_claim_the_same() -> None:
    assert cost.KINDS["now"].writes == claimed("plays", designs.NOW.name, "WCU")
    assert cost.KINDS["soon"].writes == claimed("plays", designs.SOON.name, "WCU")
    for kind, commit in (("hold", budgets.COMMIT), ("settled hold", budgets.COMMIT_OTHER)):
        both = claimed("budgets", budgets.HOLD, "WCU") + claimed("budgets", commit, "WCU")
        assert (cost.KINDS[kind].writes, cost.KINDS[kind].reads) == (both, claimed("budgets", commit, "RCU"))
    # Two heartbeats, four checkpoints, and the judge: `make bench` measures it.
    assert claimed("edits", "a quiet minute, one shard in each stream", "WCU") == cost.JUDGE_WRITES + 2 + 4
    # 1,000 visits of pages of their own: the receipt, the rollup, the journal of both streams, the judge.
    visits = 1000 + cost.rollup_units(1000) + 2 * cost.booking_units(1000) + 1
    most = claimed("journal", journal.VISIT, "WCU")
    assert 0.95 * most < visits / 1000 <= most


def test_the_calculator_rolls_up_and_books_a_batch_for_what_it_costs() -> None:
    assert cost.rollup_units(10) == pytest.approx(consumers.rollup_cost(10), rel=0.08)
    chance = random.Random(1995)
    ids = [str(uuid.UUID(int=chance.getrandbits(128))) for _ in range(300)]
    booked = 2 * cost.booking_units(300) + 1  # a batch of receipts, one of tallies, and the note of the judge
    assert booked == pytest.approx(journal.track_plays(ids), rel=0.15)


def test_which_of_50_posts_a_user_likes_costs_a_unit_for_each(world: World) -> None:
    with world.capacity() as measured:
        children.parents_with_child(world.call(), {Tally(counters.LIKES, f"p{number}"): "ann" for number in range(50)})
    assert measured == [("BatchGetItem", 50.0)]
