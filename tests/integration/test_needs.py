"""What each operation does to the tables, recorded as it runs, is what it declares and so what its role grants.

AWS alone would tell otherwise: `grant_write_data`, for one, lacks `ConditionCheckItem`.
"""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

import counters
from tally.api.needs import Need, Table
from tally.api.operation import Operation, counters_of_function, operations_of_function, routes_by_function
from tally.cdk.operator import operator_needs
from tally.cli import commands, watch
from tally.cli.connection import Stack
from tally.contract.declarations import OPERATIONS, Declarations
from tally.counter import AMOUNT_MAX, Counter
from tally.counting import children, deletion, holds, periods, posts, tallies
from tally.dev.base.engine import Engine
from tally.drift import rows
from tally.dynamo import clock, items
from tally.dynamo.client import Call, Store, dynamodb_client
from tally.dynamo.shards import ShardTree
from tally.dynamo.transactions import try_commit
from tally.errors import LimitReachedError
from tally.maintenance import reconcile
from tally.operations.sweep import Sweep
from tally.series import progress
from tally.streams import dead_letters, segments, watermark
from tally.streams.events import Bus, Event
from tests import events
from tests.contexts import LambdaContext
from tests.integration.command.numbers import edit, mark_judged, put_drift_row
from tests.integration.conftest import Invoke
from tests.invariants import stream_records
from tests.invariants.streaming import Bucket
from tests.sync_wire import SyncWire

pytestmark = pytest.mark.sdk
TRANSACTION_ACTIONS = {
    "Put": "PutItem",
    "Update": "UpdateItem",
    "Delete": "DeleteItem",
    "ConditionCheck": "ConditionCheckItem",
}


def _accesses(action: str, parameters: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(action, table, key or item) of each item that one API call touches."""
    if action == "TransactWriteItems":
        for write in parameters["TransactItems"]:
            ((kind, target),) = write.items()
            yield TRANSACTION_ACTIONS[kind], target["TableName"], target.get("Key") or target["Item"]
    elif action == "BatchGetItem":
        for table, request in parameters["RequestItems"].items():
            for key in request["Keys"]:
                yield action, table, key
    elif action in ("Scan", "DescribeTable"):
        return  # of all keys: it is granted by itself
    elif action == "Query":
        yield action, parameters["TableName"], {"PK": parameters["ExpressionAttributeValues"][":pk"]}
    else:
        yield action, parameters["TableName"], parameters.get("Key") or parameters["Item"]


class Recorder:
    """Records what a client asks of the tables, as needs."""

    def __init__(self, store: Store) -> None:
        self.needs: set[Need] = set()
        settings = store.settings
        self._tables = {
            settings.counts_table: Table.COUNTS,
            settings.receipts_table: Table.RECEIPTS,
            settings.ledger_table: Table.LEDGER,
            settings.salts_table: Table.SALTS,
        }
        if not isinstance(store.client, SyncWire):
            store.client.meta.events.register("provide-client-params.dynamodb", self._record)

    def _record(self, params: dict[str, Any], model: Any, **_: Any) -> None:
        self.note(model.name, params)

    def note(self, action: str, parameters: dict[str, Any]) -> None:
        """Record a request. What a team's own table is asked for is none of these needs."""
        for done, table, key in _accesses(action, parameters):
            if table in self._tables:
                partition_key = (key.get("PK") or key["id"])["S"]
                self.needs.add(Need(done, self._tables[table], self.prefix(partition_key)))

    def prefix(self, partition_key: str) -> str:
        """What a role's condition on the key would have to begin with."""
        if partition_key.startswith("CHECKPOINT#"):
            return partition_key  # there are four, and not everybody reads all of them
        return partition_key[: partition_key.index("#") + 1] if "#" in partition_key else partition_key


STOCK: dict[str, Any] = {"counter": "stock", "id": "mug", "caller": "alice"}
PAGE = "https://example.com/a"
SECRET = "a-secret-of-22-characters-or-more"
NO_HOLD = "1700000000-AAAAAAAAAAAAAAAA"
HOLDABLE = [counter for counter in counters.COUNTERS.values() if counter.takes_holds]
DECLARED = Declarations(Path(), counters.COUNTERS, counters.PAGES)
FUNCTIONS = routes_by_function(OPERATIONS, counters.COUNTERS)
FUNCTION_OPERATIONS = [
    (name, operation)
    for name, routes in FUNCTIONS.items()
    for operation in operations_of_function(name, routes, OPERATIONS, counters.COUNTERS)
]  # fmt: skip

Scenario = Iterator[None]
"""What is done up to the first `yield` prepares, and is not recorded."""


@dataclass
class World:
    """One operation of one function, with the counters that both serve."""

    operation: Operation
    counters: Sequence[Counter]
    invoke: Invoke
    """Sends to that function."""
    prepare: Invoke
    store: Store
    pass_a_minute: Callable[[], None]

    def do(self, **fields: Any) -> dict[str, Any]:
        """Call the operation."""
        return self.invoke({"operation": self.operation.name, "caller": "alice", **fields})

    def post(self) -> None:
        """The post that likes need."""
        self.prepare.direct("put_post", id="a91f", body="x", caller="alice")


def changed_child(world: World) -> Scenario:
    """Put and removed, again, with and without a key, on the first shard and on new ones, and written alone."""
    world.post()
    suffix = world.operation.name.partition("_")[2]
    named = {"child": ["name"], "mine": [], "anonymous": ["secret"]}[suffix]
    yield
    for counter in world.counters:
        member: dict[str, Any] = {"counter": counter.name, "id": "a91f", "caller": "bob", "value": True}
        member |= dict.fromkeys(named, SECRET)
        for key in ({}, {"idempotency_key": f"first-{events.KEY}"}):
            for verb in ("put", "put", "delete", "delete"):
                event = {**member, "operation": f"{verb}_{suffix}", **key}
                world.invoke(event)
                world.invoke(event | {"idempotency_key": f"{verb}-again-{events.KEY}"})
        put = {**member, "operation": f"put_{suffix}"}
        for user in ("carol", "dave", "erin"):
            world.store.spread.widen(f"{counter.prefix}#a91f", 16)
            world.invoke({**put, "caller": user, **dict.fromkeys(named, SECRET + user)})
        world.store.breaker.trip(f"{counter.prefix}#a91f")
        world.invoke({**put, "caller": "fred", **dict.fromkeys(named, f"{SECRET}fred")})


def removed(world: World) -> Scenario:
    """Parents with children and without; again."""
    world.post()
    for counter in world.counters:
        world.prepare.direct("put_child", counter=counter.name, id="a91f", name="bob", caller="shop")
    yield
    for counter in world.counters:
        for parent in ("a91f", "a91f", "none"):
            world.do(counter=counter.name, id=parent)


def visit(world: World) -> Scenario:
    """By a person and by a crawler."""
    yield
    for agent in ("Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0", "Googlebot/2.1"):
        world.do(url=PAGE, user_agent=agent, idempotency_key=secrets.token_hex(16))


def increment(world: World) -> Scenario:
    """Every counter, up to its end: the last number given, given again, refused; stock after expired holds; a batch."""
    for counter in world.counters:
        if counter.numbered and counter.floor is not None:
            last = {counter.attribute: {"N": str(counter.floor - (counter.delta or 0))}, "version": {"N": "1"}}
            key = {"PK": {"S": counter.partition_start + "x"}, "SK": {"S": counter.sort_key}}
            world.store.client.put_item(TableName=world.store.settings.counts_table, Item={**key, **last})
    stocked_and_held(world.prepare)
    world.pass_a_minute()
    yield
    for counter in world.counters:
        event = {"operation": "increment", "counter": counter.name, "id": "x", "caller": "alice"}
        for key in ("first", "first", "second"):
            world.invoke(event | {"amount": counter.delta or 1, "idempotency_key": key, "value": True})
        again = event | {"amount": counter.delta or 1, "idempotency_key": "again"}
        world.invoke({"batch": [again, again, {**again, "idempotency_key": "more"}]})
    for amount in (-7, -8):
        world.invoke({**STOCK, "operation": "increment", "amount": amount, "idempotency_key": f"{amount}"})


def change(world: World) -> Scenario:
    """Now, soon and under heat; stock after expired holds; refused."""
    stocked_and_held(world.prepare)
    world.pass_a_minute()
    yield
    order = [{"counter": one.name, "id": "mug", "amount": one.delta or 1} for one in world.counters]
    taken = [{"counter": "stock", "id": "mug", "amount": -7}, {"counter": "plays", "id": "mug"}]
    for number, changes in enumerate((order, order[:1], taken, taken)):
        world.do(changes=changes, idempotency_key=f"key-{number}", visible="soon" if number == 1 else "now")


def void(world: World) -> Scenario:
    """Of each counter; there is room once an expired hold is given back."""
    given = {"id": "mug", "caller": "alice"}
    for counter in world.counters:
        judged = 1 if counter.ceiling is None else -1
        entry = {"counter": counter.name, "id": "mug", "amount": counter.delta or judged}
        key = f"of-{counter.name}"
        world.prepare.direct("increment", **entry, idempotency_key=key, caller="alice")
        world.prepare.direct("change", changes=[entry], idempotency_key=key, caller="alice")
    held = world.prepare.direct("hold", counter="stock", **given, amount=2, ttl_s=60, idempotency_key="cart")
    assert held["status"] == 201
    world.pass_a_minute()
    yield
    for counter in world.counters:
        of = {"counter": counter.name, "id": "mug"} if world.operation.name == "void" else {}
        assert world.do(**of, key=f"of-{counter.name}")["status"] == 200


def read(world: World) -> Scenario:
    """Every counter, or all together; a page by its URL; hours that are over, and one that runs."""
    world.post()
    folded_up_to(world.store, 10, progress.hour_of(world.store.settings, int(time.time() // 60)))
    names = {field.name for field in world.operation.fields}
    yield
    if "of" in names:
        of = [f"{name}:{PAGE if one.pages else 'a91f'}" for name, one in counters.COUNTERS.items()]
        secret = {"secret": SECRET} if "secret" in names else {}
        world.do(of="plays:a91f" if "by" in names else of, **secret)
    for counter in world.counters if "counter" in names else ():
        given = {"counter": counter.name, "id": PAGE if counter.pages else "a91f", "name": "bob", "secret": SECRET}
        world.do(**{name: value for name, value in given.items() if name in names})


def set_counter(world: World) -> Scenario:
    """Every counter: set, again, and when it has moved; beyond a limit."""
    yield
    world.do(**STOCK, value=-1, version=0, idempotency_key="below")
    for counter in world.counters:
        for version in (0, 0, 7):
            world.do(counter=counter.name, id="x", value=1, version=version, idempotency_key="key")


def hold(world: World) -> Scenario:
    """Taken, taken of expired ones, refused, asked for again."""
    for counter in HOLDABLE:
        stocked_and_held(world.prepare, counter)
    world.pass_a_minute()
    yield
    for counter in HOLDABLE:
        asked = (counter.start + 5, "all"), (2, "more"), (counter.start + 5, "all")
        assert [held(world.invoke, amount, counter, key)["status"] for amount, key in asked] == [201, 409, 201]


def settle(world: World) -> Scenario:
    """Beyond what is left, in time, again, too late, and of no hold at all; what comes back beyond a limit."""
    in_time = {one.name: stocked_and_held(world.prepare, one) for one in HOLDABLE}
    late = {one.name: held(world.prepare, 1, one)["body"]["hold"] for one in HOLDABLE}
    before = held_as_stock(world.store)
    at_its_ceiling(world)
    yield
    world.do(**{**STOCK, "id": "before", "counter": "calls"}, hold=before)
    more = {"amount": AMOUNT_MAX} if world.operation.name == "commit_hold" else {}
    for counter, held_ in in_time.items():
        if more:
            assert world.do(**{**STOCK, "counter": counter}, hold=held_, **more)["status"] == 409
        for one in (held_, held_, NO_HOLD):
            world.do(**{**STOCK, "counter": counter}, hold=one)
    world.pass_a_minute()
    for counter, held_ in late.items():
        world.do(**{**STOCK, "counter": counter}, hold=held_)


def change_hold(world: World) -> Scenario:
    """Less, more than is left, longer, with the room of expired holds, again, too late, and of no hold at all."""
    holds_of = {one.name: stocked_and_held(world.prepare, one) for one in HOLDABLE}
    late = {one.name: held(world.prepare, 1, one)["body"]["hold"] for one in HOLDABLE}
    yield
    number = itertools.count()

    def change(counter: str, hold: str, key: object = None, **how: int) -> Any:
        key = f"key-{next(number) if key is None else key}"
        return world.do(**{**STOCK, "counter": counter}, hold=hold, idempotency_key=key, **how)["status"]

    for name, held_ in holds_of.items():
        assert [change(name, held_, amount=amount, ttl_s=600) for amount in (2, 4, AMOUNT_MAX)] == [200, 200, 409]
        assert change(name, held_, "again", ttl_s=900) == change(name, held_, "again", ttl_s=900) == 200
        assert change(name, NO_HOLD, ttl_s=900) == 404
    world.pass_a_minute()
    for name, held_ in holds_of.items():
        assert change(name, held_, amount=5) == 200, "an expired hold has made room"
    assert {change(name, held_, amount=1) for name, held_ in late.items()} == {409}


def void_hold(world: World) -> Scenario:
    """What is committed, again, what is held, and no hold at all; what comes back beyond a limit."""
    done, open_ = (
        {one.name: stocked_and_held(world.prepare, one) for one in HOLDABLE},
        {one.name: held(world.prepare, 1, one)["body"]["hold"] for one in HOLDABLE},
    )
    before = held_as_stock(world.store)
    for name, id_, hold in [*((name, STOCK["id"], hold) for name, hold in done.items()), ("calls", "before", before)]:
        world.prepare({**STOCK, "operation": "commit_hold", "counter": name, "id": id_, "hold": hold})
    at_its_ceiling(world)
    yield
    world.do(**{**STOCK, "id": "before", "counter": "calls"}, hold=before)
    for counter, hold in done.items():
        for one in (hold, hold, open_[counter], NO_HOLD):
            world.do(**{**STOCK, "counter": counter}, hold=one)
    world.pass_a_minute()
    assert world.do(**{**STOCK, "id": "before", "counter": "calls"}, hold=before)["status"] == 200


def held(invoke: Invoke, amount: int, of: Counter = counters.STOCK, key: str = "") -> dict[str, Any]:
    """Hold some stock for a minute."""
    key = key or secrets.token_hex(8)
    asked = {**STOCK, "counter": of.name, "amount": amount, "ttl_s": 60, "idempotency_key": key}
    return invoke({**asked, "operation": "hold"})


def stocked_and_held(invoke: Invoke, of: Counter = counters.STOCK) -> str:
    """Stock 5 more, or leave 5 of a quota, and hold 4 of them; the hold's id."""
    amount = 5 if of.ceiling is None else of.ceiling - 5
    more = {**STOCK, "counter": of.name, "amount": amount, "idempotency_key": secrets.token_hex(8)}
    invoke({**more, "operation": "increment"})
    return str(held(invoke, 4, of)["body"]["hold"])


def held_as_stock(store: Store) -> str:
    """Calls were a stock when this was held: what comes back meets the limit of the id."""
    was, process = replace(counters.CALLS, floor=-9, ceiling=None, notify=None), Call(replace(store, limit_cache={}))
    tally = periods.tally_id(was, "before", time.time())
    return str(holds.place(process, was, tally, 4, 60, operation="hold", key=secrets.token_hex(8)).body["hold"])


def at_its_ceiling(world: World) -> None:
    """Nothing more of what was held as of a stock comes back, until a hold of as much expires."""
    id_, amount = {**STOCK, "counter": "calls", "id": "before"}, counters.CALLS.ceiling or 0
    taken = world.prepare({**id_, "operation": "increment", "amount": amount, "idempotency_key": "more"})
    held_ = world.prepare({**id_, "operation": "hold", "amount": 4, "ttl_s": 60, "idempotency_key": "held"})
    assert (taken["status"], held_["status"]) == (200, 201)


def folded_up_to(store: Store, minute: int, hour: int) -> int:
    """The series are folded up to this minute of the hour; the minute, since 1970."""
    minutes = progress.minutes_of(store.settings, hour)
    far = progress.Progress(since=minutes[0] - 600, through=minutes[minute], hour=hour)
    item = progress.PROGRESS | items.to_wire(far.values)
    store.client.put_item(TableName=store.settings.ledger_table, Item=item)
    return minutes[minute]


def plain(world: World) -> Scenario:
    """The sample; a post is written, and edited."""
    if world.operation.name in ("get_post", "delete_post"):
        world.prepare.direct("put_post", id="7c20", body="x", caller="alice")
    yield
    for body in ({}, {"body": "two"} if world.operation.name == "put_post" else {}):
        world.invoke(events.direct(world.operation.name, caller="alice", **body))


SCENARIOS: dict[str, Callable[[World], Scenario]] = {
    **dict.fromkeys(
        ("put_child", "delete_child", "put_mine", "delete_mine", "put_anonymous", "delete_anonymous"), changed_child
    ),
    **dict.fromkeys(
        ("get_child", "list_children", "get_mine", "list_mine", "get_anonymous", "list_anonymous",
         "get_tallies", "get_any_tallies", "get_counter",
         "get_details", "get_counter_badge", "get_series", "get_any_series", "get_top", "get_any_top"), read,
    ),
    **dict.fromkeys(("commit_hold", "release_hold"), settle),
    "change_hold": change_hold, "void_hold": void_hold,
    "remove_parent": removed, "visit": visit, "increment": increment, "change": change, "set_counter": set_counter,
    "hold": hold, "void": void, "void_changes": void,
}  # fmt: skip


@pytest.mark.parametrize(
    ("function", "operation"), FUNCTION_OPERATIONS, ids=[f"{name}-{one.name}" for name, one in FUNCTION_OPERATIONS]
)
def test_an_operation_does_what_it_declares_and_no_more(
    function: str, operation: Operation, invoke: Invoke, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By each function that serves it: that of open counters needs less. What limits may refuse meets a refusal."""
    refusals: list[LimitReachedError] = []
    made = LimitReachedError.__init__

    def refuse(error: LimitReachedError, detail: str, **members: Any) -> None:
        refusals.append(error)
        made(error, detail, **members)

    monkeypatch.setattr(LimitReachedError, "__init__", refuse)

    def pass_a_minute() -> None:
        monkeypatch.setattr(clock, "now_s", lambda: time.time() + 61)

    served = operation.served_counters(counters_of_function(function, FUNCTIONS[function], counters.COUNTERS))
    by_function = partial(invoke, function=function)
    steps = SCENARIOS.get(operation.name, plain)(
        World(operation, served, by_function, invoke, store, pass_a_minute)  # type: ignore[arg-type]
    )
    next(steps)
    store.limit_cache.clear()  # its process has seen none
    recorder = Recorder(store)
    list(steps)
    assert recorder.needs == operation.needs(served)
    limited = LimitReachedError in operation.raises and any(counter.may_settle_holds for counter in served)
    assert bool(refusals) >= limited, "a refusal looks for expired holds"


def test_a_visitor_whom_a_ceiling_refuses_looks_for_expired_holds(
    invoke: Invoke, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hold is left from when the counter counted no visitors."""
    active = Counter("active", prefix="APP", sort_key="ACTIVE", attribute="n", unique=True, period="year", ceiling=1)
    monkeypatch.setitem(counters.COUNTERS, active.name, active)
    tally, was = periods.tally_id(active, "site", time.time()), replace(active, unique=False, delta=None)
    holds.place(Call(replace(store, limit_cache={})), was, tally, 1, 60, operation="hold", key="key")
    monkeypatch.setattr(clock, "now_s", lambda: time.time() + 61)
    visit = partial(invoke.direct, "add_visitor", counter=active.name, id="site", caller="ann")
    recorder = Recorder(store)
    assert [visit(visitor=visitor)["status"] for visitor in ("ann", "bob")] == [200, 409]
    assert recorder.needs == events.BY_NAME["add_visitor"].needs([active])


class OneShard:
    """The streams' shards: one of each, without a heartbeat so far."""

    def list_shards(self, table: str) -> ShardTree:
        return {f"shardId-{table}": None}

    def records_after(self, *_: object) -> Iterator[list[Any]]:
        return iter(())


def something_to_judge(store: Store) -> None:
    """A closed minute: one tally that comes out even, one that begins to drift, and one that ends to.

    And a day that the bookkeeper has not provably passed.
    """
    now_s = int(time.time())
    minute = mark_judged(store, ahead=-5) + 1
    booked = {"even": (1, 1), "begins": (0, 1), "ends": (3, 0)}
    entries = [segments.JournalEntry("plays", name, "", *amounts) for name, amounts in booked.items()]
    page = segments.segment_write(store.settings, minute, 0, "shardId-counts#1", entries, now_s)
    store.client.put_item(**page["Put"])
    stalled = {"bookkeeper_passed_s": now_s - 2 * 24 * 3600}
    was: items.Expected = {"bookkeeper_passed_s": None}
    assert try_commit(
        store, [items.update_write(store.settings.ledger_table, watermark.WATERMARK_KEY, stalled, expected=was)]
    )
    put_drift_row(store, "plays", "ends", 3, ago=0)


def something_to_fold(store: Store) -> None:
    """The last minute of an hour."""
    hour = progress.hour_of(store.settings, watermark.last_judged_minute(store)) - 1
    minute = folded_up_to(store, 58, hour) + 1
    page = segments.segment_write(
        store.settings, minute, 0, "s#1", [segments.JournalEntry("plays", "v", "", 1, 1)], int(time.time())
    )
    store.client.put_item(**page["Put"])


WITH_CHILDREN = [counter for counter in counters.COUNTERS.values() if counter.counts_children]


def something_removed(store: Store) -> None:
    """Of each counter with children, two parents: one whose removal has died, and one that is at its end."""
    call = Call(store, "alice")
    for counter in WITH_CHILDREN:
        if counter.parent_required:
            for post in ("a91f", "ended"):
                posts.write_post(call, counter, post, "x")
        for there in (True, False):
            children.set_child(call, counter, "ended", "bob", there)
        children.set_child(call, counter, "a91f", "bob", True)
        store.breaker.trip(f"{counter.prefix}#a91f")
        children.set_child(call, counter, "a91f", "carol", True)
        for parent in ("a91f", "ended"):
            remove = posts.delete_post if counter.parent_required else deletion.remove_parent
            assert remove(call, counter, parent)
        key = tallies.key(counter, "a91f", 3)
        store.client.delete_item(TableName=store.settings.counts_table, Key=key)
    ledger = store.settings.ledger_table
    for row in store.client.scan(TableName=ledger)["Items"]:
        if row["PK"]["S"] == "DELETED" and row["target"]["S"] == "ended":
            store.client.put_item(TableName=ledger, Item=row | {"calm": {"BOOL": True}})


@pytest.mark.usefixtures("midday")
def test_the_sweep_does_what_its_schedule_declares_and_no_more(
    invoke: Invoke, store: Store, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another judge writes a row between its look and its write: it looks again. A removal has died before it marked
    the shards, and one of the children was written alone; another parent is at its end."""
    for counter in HOLDABLE:
        stocked_and_held(invoke, counter)
    held_as_stock(store)
    something_removed(store)
    monkeypatch.setattr(clock, "now_s", lambda: time.time() + 61)
    something_to_judge(store)
    something_to_fold(store)
    something_to_send(store)
    recorder = Recorder(store)
    rival = Store(dynamodb_client(endpoint_url=engine.endpoint), store.settings)

    def overtake(**_: Any) -> None:
        put_drift_row(rival, "plays", "begins", 7)

    store.client.meta.events.register("after-call.dynamodb.BatchGetItem", overtake)
    sending = replace(store, settings=store.settings._replace(event_bus="bus"))
    swept = Sweep(counters.COUNTERS, sending, OneShard(), Bus("bus", AcceptingBus))({}, LambdaContext())  # type: ignore[arg-type]
    wanted = {"events_sent": 1}
    wanted |= {"returned": len(HOLDABLE) + 1, "minutes": 3, "uneven": 2, "children_removed": 2 * len(WITH_CHILDREN)}
    wanted["parents_removed"] = len(WITH_CHILDREN)
    assert {name: swept[name] for name in wanted} == wanted
    assert swept["hours"] == 2  # of the tally, and of all together
    assert [(drift.target, drift.drift) for drift in rows.all_rows(store)] == [("begins", 8)]
    assert recorder.needs == DECLARED.needs["sweep"]


class AcceptingBus:
    """A bus that refuses nothing."""

    def put_events(self, Entries: list[Any]) -> Any:
        return {"Entries": [{"EventId": "1"} for _ in Entries]}


def something_to_send(store: Store) -> None:
    """An event that the bookkeeper has not sent."""
    left = Event("ab" * 16, int(time.time() - 100) * 1000, {"event": "ab" * 16})
    store.client.put_item(**left.as_write(store.settings)["Put"])


def something_to_mend(invoke: Invoke, store: Store, objects: dead_letters.DeadLetterBucket) -> None:
    """A post with a like and a tally that is off, one that was off before the ledger began, a video that drifts, and a
    receipt for each consumer to redrive."""
    old = tallies.key(counters.LIKES, "old", 0) | {"likeTally": {"N": "5"}, "authorId": {"S": "ann"}}
    store.client.put_item(TableName=store.settings.counts_table, Item=old)
    invoke.direct("put_post", id="a91f", body="x", caller="alice")
    invoke.direct("put_mine", counter="likes", id="a91f", caller="bob")
    edit(store, tallies.key(counters.LIKES, "a91f", 0), "likeTally", 2)
    mark_judged(store)  # a repair waits until the present minute is judged
    put_drift_row(store, "likes", "a91f", 2)
    put_drift_row(store, "plays", "9f3a", -3)
    record = stream_records.play(7, "9f3a", at=28_000_000)
    lost = stream_records.play(8, "lost", at=int(time.time()) // 60 - 3 * tallies.MINUTES_PER_DAY)["dynamodb"][
        "NewImage"
    ]
    store.client.put_item(TableName=store.settings.receipts_table, Item=lost)
    for consumer in ("rollup", "bookkeeper"):
        marker = dead_letters.store_and_mark(
            Call(store), objects, consumer, "receipts", "shardId-0", "7", record, "for a test"
        )
        store.client.put_item(**marker["Put"])


def test_the_command_does_what_its_policy_allows(
    invoke: Invoke, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each command once."""
    plays, likes = tmp_path / "plays.csv", tmp_path / "likes.csv"
    plays.write_text("id,value\nnew,9\n")
    readings = tmp_path / "readings.csv"
    hour_s = int(time.time()) // 3600 * 3600
    readings.write_text(f"id,value,at\n9f3a,1,{hour_s - 3600}\n9f3a,2,{hour_s}\n")
    likes.write_text("post,user,liked_at\na91f,carol,1700000000\n")
    bucket = Bucket()
    objects = dead_letters.DeadLetterBucket("bucket", lambda: bucket)
    something_to_mend(invoke, store, objects)
    stocked_and_held(invoke)
    mark_judged(store)
    repairs_at_s = reconcile.Reconciler(store).clock  # bound at the import, which a command does late
    monkeypatch.setattr(clock, "now_s", lambda: time.time() + 600)  # what is judged is ahead of the clock
    assert reconcile.Reconciler(store).clock() == pytest.approx(repairs_at_s(), abs=60)
    folded_up_to(store, 10, progress.hour_of(store.settings, int(time.time() // 60)))
    monkeypatch.setattr(watch, "time", SimpleNamespace(time=time.time, sleep=Mock(side_effect=KeyboardInterrupt)))
    recorder = Recorder(store)
    stack = Stack(store, objects, counters.COUNTERS)
    for line, code in {
        "status": 1, "get likes a91f": 0, "check": 1, "check --only drift": 1,
        "repair --by ann --why test --yes": 0, "history a91f": 0, f"shadow plays {readings}": 1,
        f"import {likes} --children likes --yes --by ann --why test": 0, "export plays": 0,
        f"import {plays} --counter plays --yes --by ann --why test": 0, "history --imports": 0,
        f"import {plays} --counter contest --yes --by ann --why test": 0,
        "forget --user bob": 1, "forget --user bob --yes --by ann --why test": 0,
        "forget --user alice --yes --by ann --why test": 0, "history --user alice": 0,
        "series plays 9f3a": 0, "top plays": 0, "watch plays 9f3a": 0, "receipt plays 9f3a k": 1,
    }.items():  # fmt: skip
        given = commands.parse_arguments(line.split(), commands.parser(counters.COUNTERS))
        assert commands.command_named(given.command).run(given, stack) == code, (line, capsys.readouterr())
    assert bucket.objects == {}
    assert recorder.needs <= operator_needs(counters.COUNTERS)
    assert {(need.action, need.prefix) for need in recorder.needs} >= {
        ("UpdateItem", "POST#"), ("UpdateItem", "VID#"), ("UpdateItem", "DRIFT"), ("DeleteItem", "DEADLETTER"),
        ("PutItem", "SEGMENT#"), ("PutItem", "HISTORY#"), ("PutItem", "DELETED"), ("DeleteItem", "HOLDS#"),
        ("DeleteItem", "POST#"), ("Query", "SERIES#"), ("Query", "TOP#"),
    }  # fmt: skip
