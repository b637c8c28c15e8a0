"""The cost of changes and reads: capacity units as the engine reports them, and the requests that the proxy saw."""

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
LONGEST_USER = "u" * fields.USER_BYTES_MAX
LONGEST = Counter(
    "c" * 32, prefix="LONGEST", sort_key="LONGEST", attribute="longest", ceiling=fields.AMOUNT_MAX, period="minute",
    keep_periods=5,
)  # fmt: skip
SHARDS = counters.PLAYS.max_shards


@pytest.mark.parametrize("change", ["play", "visit", "like", "unlike", "hold"])
def test_a_receipt_with_the_longest_ids_and_key_or_a_page_of_600_bytes_costs_one_unit(
    world: World, change: str
) -> None:
    """A receipt names its page once. With the longest page that Tally accepts, a receipt costs 2 units."""
    if change == "visit":
        page = fields.page("https://example.com/" + "p" * 580, "url", counters.PAGES)
        increments.count(world.call(), Increment(counters.VISITS, page, 1, "visit", LONGEST_KEY, {"counted": True}))
    elif change == "play":
        call = world.call(fields.user(LONGEST_USER, "caller"))
        world.play(LONGEST_KEY, LONGEST_ID, -fields.AMOUNT_MAX, call=call)
    elif change == "hold":  # the receipt of a hold has counter, id and period twice, and the id of the hold
        call = world.call(fields.user(LONGEST_USER, "caller"))
        tally = periods.tally_id(LONGEST, LONGEST_ID, time.time())
        holds.place(call, LONGEST, tally, fields.AMOUNT_MAX, fields.HOLD_TTL_MAX_S, operation="hold", key=LONGEST_KEY)
    else:
        world.write_post(LONGEST_ID)
        getattr(world, change)(fields.user(LONGEST_USER, "caller"), LONGEST_ID, LONGEST_KEY)
    table = world.store.settings.receipts_table
    answer = world.raw.put_item(TableName=table, Item=world.receipt(), ReturnConsumedCapacity="TOTAL")
    assert answer["ConsumedCapacity"]["CapacityUnits"] == 1


COMMIT, READ, SPILL = ("TransactWriteItems", 4.0), ("GetItem", 1.0), ("PutItem", 1.0)
COMMIT_WITH_RECEIPT = ("TransactWriteItems", 6.0)
# Of each kind of change: the change, and the operation and the units of each request.
COSTS: dict[str, tuple[Callable[[World], object], list[tuple[str, float]]]] = {
    "now": (lambda world: world.play("new"), [COMMIT]),
    "soon": (lambda world: world.play("new", counter=counters.VISITS), [SPILL]),
    "spilled": (lambda world: make_hot(world).play("new"), [SPILL]),
    "number": (
        lambda world: world.play("new", counter=counters.TICKET, operation="increment"),
        [("Query", 1.0), COMMIT],
    ),
    "like": (lambda world: world.like("ann"), [COMMIT]),
    "like with a key": (lambda world: world.like("ann", key="new"), [COMMIT_WITH_RECEIPT]),
    "member": (lambda world: use_members(world).like("ann"), [COMMIT]),
    "member with a key": (lambda world: use_members(world).like("ann", key="new"), [COMMIT_WITH_RECEIPT]),
    "unlike": (lambda world: world.unlike("bob"), [READ, COMMIT]),
    "unlike with a key": (lambda world: world.unlike("bob", key="new"), [READ, COMMIT_WITH_RECEIPT]),
    "removed member": (lambda world: use_members(world).unlike("cy"), [READ, COMMIT]),
    "spilled member": (lambda world: use_members(make_hot(world)).like("ann"), [READ, SPILL]),
    "spilled like": (lambda world: make_hot(world).like("ann"), [READ, SPILL]),
    "spilled like with a key": (lambda world: make_hot(world).like("ann", key="new"), [READ, COMMIT]),
}


def use_members(world: World) -> World:
    """Let `like` and `unlike` put and remove the members of a workspace. Returns the world."""
    world.child_counter = counters.MEMBERS
    return world


def make_hot(world: World) -> World:
    """Make the video, the post and the workspace so hot that their changes spill. Returns the world."""
    for tally in (f"VID#{VIDEO}", f"POST#{POST}", f"WORKSPACE#{POST}"):
        world.store.breaker.trip(tally)
    return world


@pytest.mark.parametrize(("change", "costs"), COSTS.values(), ids=COSTS.keys())
def test_each_kind_of_change_costs_the_requests_and_units_of_its_design(
    world: World, change: Callable[[World], object], costs: list[tuple[str, float]]
) -> None:
    world.write_post()
    world.play("earlier")
    world.like("bob")
    use_members(world).like("cy")
    world.child_counter = counters.LIKES
    world.proxy.clear_requests()
    with world.measure_units() as measured:
        change(world)
    assert measured == costs
    assert [request.operation for request in world.proxy.requests] == [operation for operation, _ in costs]


def test_a_like_costs_the_same_with_the_longest_text_of_a_post(world: World) -> None:
    world.write_post(text="x" * fields.TEXT_BYTES_MAX)
    with world.measure_units() as measured:
        world.like("ann")
        world.unlike("ann")
        world.like("ann", key="key-1")
    assert [units for name, units in measured if name != "GetItem"] == [4, 4, 4 + 2]  # a receipt costs 2 more


def test_a_read_is_one_request_of_one_unit_with_all_shards_and_50_likes(world: World) -> None:
    world.write_post(text="x" * 1000)
    post, video = {"PK": {"S": f"POST#{POST}"}}, {"PK": {"S": f"VID#{VIDEO}"}}
    for shard in range(SHARDS):
        number = {"play_count": {"N": "1000000"}, "at": {"N": "29000000"}}
        world.put({**video, "SK": {"S": counters.PLAYS.shard_key(shard)}, **number})
    for shard in range(1, SHARDS):
        world.put({**post, "SK": {"S": f"META#{shard}"}, "likeTally": {"N": "2"}})
    for user in range(50):
        world.put({**post, "SK": {"S": f"LIKE#USER#{user}"}, "likedAt": {"N": "1"}})
    world.proxy.clear_requests()
    with world.measure_units() as measured:
        assert world.read_plays() == SHARDS * 1_000_000
        assert world.read_post()["likes"] == 2 * (SHARDS - 1)
    assert measured == [("Query", 1.0)] * 2  # the likes are not read
    assert [request.operation for request in world.proxy.requests] == ["Query"] * 2
    assert [request["ConsistentRead"] for request in world.requests()] == [True, True]


def test_the_calculator_has_the_costs_that_the_benchmark_claims() -> None:
    assert cost.KINDS["now"].writes == claimed("plays", designs.NOW.name, "WCU")
    assert cost.KINDS["soon"].writes == claimed("plays", designs.SOON.name, "WCU")
    for kind, commit in (("hold", budgets.COMMIT), ("hold, other amount", budgets.COMMIT_OTHER)):
        hold_and_commit = claimed("budgets", budgets.HOLD, "WCU") + claimed("budgets", commit, "WCU")
        assert (cost.KINDS[kind].writes, cost.KINDS[kind].reads) == (hold_and_commit, claimed("budgets", commit, "RCU"))
    # A quiet minute costs two heartbeats, four checkpoints, and the judge. `make bench` measures the sum.
    assert claimed("edits", "a quiet minute, one shard in each stream", "WCU") == cost.JUDGE_WRITES + 2 + 4
    # 1,000 visits of different pages cost the receipts, the rollup, the journal of both streams, and the judge.
    visits = 1000 + cost.rollup_units(1000) + 2 * cost.booking_units(1000) + 1
    claim = claimed("journal", journal.VISIT, "WCU")
    assert 0.95 * claim < visits / 1000 <= claim, "the claim is an upper bound, and a close one"


def test_the_calculator_has_the_measured_costs_of_a_rolled_up_and_a_booked_batch() -> None:
    assert cost.rollup_units(10) == pytest.approx(consumers.rollup_cost(10), rel=0.08)
    chance = random.Random(1995)
    ids = [str(uuid.UUID(int=chance.getrandbits(128))) for _ in range(300)]
    booked = 2 * cost.booking_units(300) + 1  # a batch of receipts, a batch of tallies, and the judge's watermark
    assert booked == pytest.approx(journal.track_plays(ids), rel=0.15)


def test_a_read_of_which_of_50_posts_a_user_likes_costs_50_units(world: World) -> None:
    with world.measure_units() as measured:
        children.parents_with_child(world.call(), {Tally(counters.LIKES, f"p{number}"): "ann" for number in range(50)})
    assert measured == [("BatchGetItem", 50.0)]
