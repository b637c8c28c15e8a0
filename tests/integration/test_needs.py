"""Each operation requests exactly the access to tables that it declares, which is what its role grants.

Without these tests only AWS would show a missing grant. For example, CDK's `grant_write_data` does not grant
`ConditionCheckItem`.
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
    """Yields the action, the table, and the key or the whole item, for each item that an API call names."""
    if action == "TransactWriteItems":
        for write in parameters["TransactItems"]:
            ((kind, target),) = write.items()
            yield TRANSACTION_ACTIONS[kind], target["TableName"], target.get("Key") or target["Item"]
    elif action == "BatchGetItem":
        for table, request in parameters["RequestItems"].items():
            for key in request["Keys"]:
                yield action, table, key
    elif action in ("Scan", "DescribeTable"):
        return  # not recorded: a role grants these actions on a whole table
    elif action == "Query":
        yield action, parameters["TableName"], {"PK": parameters["ExpressionAttributeValues"][":pk"]}
    else:
        yield action, parameters["TableName"], parameters.get("Key") or parameters["Item"]


class Recorder:
    """Records the needs that a client's requests show: an action, a table, and the prefix of a partition key."""

    def __init__(self, store: Store) -> None:
        self.needs: set[Need] = set()
        settings = store.settings
        self._tables = {
            settings.counts_table: Table.COUNTS,
            settings.receipts_table: Table.RECEIPTS,
            settings.ledger_table: Table.LEDGER,
            settings.salts_table: Table.SALTS,
        }
        if not isinstance(store.client, SyncWire):  # test_team_numbers.RecordingWire calls `note` itself
            store.client.meta.events.register("provide-client-params.dynamodb", self._record)

    def _record(self, params: dict[str, Any], model: Any, **_: Any) -> None:
        self.note(model.name, params)

    def note(self, action: str, parameters: dict[str, Any]) -> None:
        """Record a request. Requests to a team's own table are not recorded."""
        for item_action, table, key in _accesses(action, parameters):
            if table in self._tables:
                partition_key = (key.get("PK") or key["id"])["S"]
                self.needs.add(Need(item_action, self._tables[table], self.prefix(partition_key)))

    def prefix(self, partition_key: str) -> str:
        """Returns the start of the partition key that a role's condition names."""
        if partition_key.startswith("CHECKPOINT#"):
            return partition_key  # a consumer's role names the consumer's own checkpoints
        return partition_key[: partition_key.index("#") + 1] if "#" in partition_key else partition_key


MUG_OF_ALICE: dict[str, Any] = {"counter": "stock", "id": "mug", "caller": "alice"}
OLD_CALLS: dict[str, Any] = {
    **MUG_OF_ALICE,
    "counter": "calls",
    "id": "before",
}  # for the hold of hold_before_redeclaration
PAGE = "https://example.com/a"
SECRET = "a-secret-of-22-characters-or-more"
MISSING_HOLD = "1700000000-AAAAAAAAAAAAAAAA"
HOLDABLE = [counter for counter in counters.COUNTERS.values() if counter.takes_holds]
DECLARED = Declarations(Path(), counters.COUNTERS, counters.PAGES)
ROUTES = routes_by_function(OPERATIONS, counters.COUNTERS)
FUNCTION_OPERATIONS = [
    (name, operation)
    for name, routes in ROUTES.items()
    for operation in operations_of_function(name, routes, OPERATIONS, counters.COUNTERS)
]  # fmt: skip

Scenario = Iterator[None]
"""Steps of a test. The steps before the first `yield` prepare, and are not recorded."""


@dataclass
class World:
    """One operation of one function, with the counters that the operation and the function both serve."""

    operation: Operation
    counters: Sequence[Counter]
    invoke: Invoke
    """Invokes the function."""
    prepare: Invoke
    """Invokes any function."""
    store: Store
    pass_a_minute: Callable[[], None]
    """Moves the clock 61 s ahead, so that a hold of one minute expires."""

    def call(self, **fields: Any) -> dict[str, Any]:
        """Call the operation as alice."""
        return self.invoke({"operation": self.operation.name, "caller": "alice", **fields})

    def post(self) -> None:
        """Write the post that likes need."""
        self.prepare.direct("put_post", id="a91f", body="x", caller="alice")


def change_child(world: World) -> Scenario:
    """Put each child several times, then remove it: without a key, with new keys, and with used keys. Put children on
    other shards, and spill one child."""
    world.post()
    suffix = world.operation.name.partition("_")[2]
    name_fields = {"child": ["name"], "mine": [], "anonymous": ["secret"]}[suffix]
    yield
    for counter in world.counters:
        member: dict[str, Any] = {"counter": counter.name, "id": "a91f", "caller": "bob", "value": True}
        member |= dict.fromkeys(name_fields, SECRET)
        for key in ({}, {"idempotency_key": f"first-{events.KEY}"}):
            for verb in ("put", "put", "delete", "delete"):
                event = {**member, "operation": f"{verb}_{suffix}", **key}
                world.invoke(event)
                world.invoke(event | {"idempotency_key": f"{verb}-again-{events.KEY}"})
        put = {**member, "operation": f"put_{suffix}"}
        for user in ("carol", "dave", "erin"):
            world.store.spread.widen(f"{counter.prefix}#a91f", 16)
            world.invoke({**put, "caller": user, **dict.fromkeys(name_fields, SECRET + user)})
        world.store.breaker.trip(f"{counter.prefix}#a91f")
        world.invoke({**put, "caller": "fred", **dict.fromkeys(name_fields, f"{SECRET}fred")})


def remove_parent(world: World) -> Scenario:
    """Remove a parent with a child, the same parent once more, and a parent without children."""
    world.post()
    for counter in world.counters:
        world.prepare.direct("put_child", counter=counter.name, id="a91f", name="bob", caller="shop")
    yield
    for counter in world.counters:
        for parent in ("a91f", "a91f", "none"):
            world.call(counter=counter.name, id=parent)


def visit(world: World) -> Scenario:
    """Visit as a person and as a crawler."""
    yield
    for agent in ("Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0", "Googlebot/2.1"):
        world.call(url=PAGE, user_agent=agent, idempotency_key=secrets.token_hex(16))


def increment(world: World) -> Scenario:
    """Increment every counter, replay the increment, and send a batch. `contest` gives out its last number, and refuses
    the second increment. Stock refuses more than an expired hold gives back."""
    for counter in world.counters:
        if counter.numbered and counter.floor is not None:
            one_left = {counter.attribute: {"N": str(counter.floor - (counter.delta or 0))}, "version": {"N": "1"}}
            key = {"PK": {"S": counter.partition_start + "x"}, "SK": {"S": counter.sort_key}}
            world.store.client.put_item(TableName=world.store.settings.counts_table, Item={**key, **one_left})
    leave_5_and_hold_4(world.prepare)
    world.pass_a_minute()
    yield
    for counter in world.counters:
        event = {"operation": "increment", "counter": counter.name, "id": "x", "caller": "alice"}
        for key in ("first", "first", "second"):
            world.invoke(event | {"amount": counter.delta or 1, "idempotency_key": key, "value": True})
        repeated = event | {"amount": counter.delta or 1, "idempotency_key": "again"}
        world.invoke({"batch": [repeated, repeated, {**repeated, "idempotency_key": "more"}]})
    for amount in (-7, -8):  # 1 is free, and an expired hold gives 4 back: both are refused
        world.invoke({**MUG_OF_ALICE, "operation": "increment", "amount": amount, "idempotency_key": f"{amount}"})


def change(world: World) -> Scenario:
    """Make batches that are visible now and soon, and batches that stock refuses after the release of a hold."""
    leave_5_and_hold_4(world.prepare)
    world.pass_a_minute()
    yield
    order = [{"counter": counter.name, "id": "mug", "amount": counter.delta or 1} for counter in world.counters]
    purchase = [{"counter": "stock", "id": "mug", "amount": -7}, {"counter": "plays", "id": "mug"}]
    for number, changes in enumerate((order, order[:1], purchase, purchase)):
        world.call(changes=changes, idempotency_key=f"key-{number}", visible="soon" if number == 1 else "now")


def void(world: World) -> Scenario:
    """Void a change of each counter. For stock, an expired hold must be released first."""
    mug = {"id": "mug", "caller": "alice"}
    for counter in world.counters:
        amount = 1 if counter.ceiling is None else -1  # so the void moves toward the limit
        entry = {"counter": counter.name, "id": "mug", "amount": counter.delta or amount}
        key = f"of-{counter.name}"
        world.prepare.direct("increment", **entry, idempotency_key=key, caller="alice")
        world.prepare.direct("change", changes=[entry], idempotency_key=key, caller="alice")
    hold_answer = world.prepare.direct("hold", counter="stock", **mug, amount=2, ttl_s=60, idempotency_key="cart")
    assert hold_answer["status"] == 201
    world.pass_a_minute()
    yield
    for counter in world.counters:
        target = {"counter": counter.name, "id": "mug"} if world.operation.name == "void" else {}
        assert world.call(**target, key=f"of-{counter.name}")["status"] == 200


def read(world: World) -> Scenario:
    """Read each counter, or all counters in one request. The series are summed up to minute 10 of this hour."""
    world.post()
    store_progress(world.store, 10, progress.hour_of(world.store.settings, int(time.time() // 60)))
    names = {field.name for field in world.operation.fields}
    yield
    if "of" in names:
        of = [f"{name}:{PAGE if counter.pages else 'a91f'}" for name, counter in counters.COUNTERS.items()]
        secret = {"secret": SECRET} if "secret" in names else {}
        world.call(of="plays:a91f" if "by" in names else of, **secret)
    for counter in world.counters if "counter" in names else ():
        fields = {"counter": counter.name, "id": PAGE if counter.pages else "a91f", "name": "bob", "secret": SECRET}
        world.call(**{name: value for name, value in fields.items() if name in names})


def set_counter(world: World) -> Scenario:
    """Set stock below its floor. Set every counter, replay the change, and name a version that no tally has."""
    yield
    world.call(**MUG_OF_ALICE, value=-1, version=0, idempotency_key="below")
    for counter in world.counters:
        for version in (0, 0, 7):
            world.call(counter=counter.name, id="x", value=1, version=version, idempotency_key="key")


def hold(world: World) -> Scenario:
    """Place a hold of an amount that an expired hold must give back, a hold that is refused, and a replay."""
    for counter in HOLDABLE:
        leave_5_and_hold_4(world.prepare, counter)
    world.pass_a_minute()
    yield
    for counter in HOLDABLE:
        holds_to_place = (counter.start + 5, "all"), (2, "more"), (counter.start + 5, "all")
        statuses = [place_hold(world.invoke, amount, counter, key)["status"] for amount, key in holds_to_place]
        assert statuses == [201, 409, 201]


def settle(world: World) -> Scenario:
    """Settle holds: in time, a second time, after they expired, and, for a commit, with too high an amount. Settle a
    missing hold, and a hold whose release meets a limit."""
    holds_in_time = {counter.name: leave_5_and_hold_4(world.prepare, counter) for counter in HOLDABLE}
    late_holds = {counter.name: place_hold(world.prepare, 1, counter)["body"]["hold"] for counter in HOLDABLE}
    old_hold = hold_before_redeclaration(world.store)
    fill_calls(world)
    yield
    world.call(**OLD_CALLS, hold=old_hold)
    too_much = {"amount": AMOUNT_MAX} if world.operation.name == "commit_hold" else {}
    for counter, hold_id in holds_in_time.items():
        if too_much:
            assert world.call(**{**MUG_OF_ALICE, "counter": counter}, hold=hold_id, **too_much)["status"] == 409
        for id_ in (hold_id, hold_id, MISSING_HOLD):
            world.call(**{**MUG_OF_ALICE, "counter": counter}, hold=id_)
    world.pass_a_minute()
    for counter, hold_id in late_holds.items():
        world.call(**{**MUG_OF_ALICE, "counter": counter}, hold=hold_id)


def change_hold(world: World) -> Scenario:
    """Change the amount and the time of holds. Ask for too high an amount, and replay a change. Change an expired hold,
    a missing hold, and a hold whose new amount fits only after the release of an expired hold."""
    holds_of = {counter.name: leave_5_and_hold_4(world.prepare, counter) for counter in HOLDABLE}
    late_holds = {counter.name: place_hold(world.prepare, 1, counter)["body"]["hold"] for counter in HOLDABLE}
    yield
    number = itertools.count()

    def change(counter: str, hold: str, key: object = None, **fields: int) -> Any:
        key = f"key-{next(number) if key is None else key}"
        return world.call(**{**MUG_OF_ALICE, "counter": counter}, hold=hold, idempotency_key=key, **fields)["status"]

    for name, hold_id in holds_of.items():
        assert [change(name, hold_id, amount=amount, ttl_s=600) for amount in (2, 4, AMOUNT_MAX)] == [200, 200, 409]
        assert change(name, hold_id, "again", ttl_s=900) == change(name, hold_id, "again", ttl_s=900) == 200
        assert change(name, MISSING_HOLD, ttl_s=900) == 404
    world.pass_a_minute()
    for name, hold_id in holds_of.items():
        assert change(name, hold_id, amount=5) == 200, "the amount of an expired hold is released first"
    assert {change(name, hold_id, amount=1) for name, hold_id in late_holds.items()} == {409}


def void_hold(world: World) -> Scenario:
    """Void committed holds twice. Void a hold that is not committed, a missing hold, and a hold whose void is
    refused until another hold has expired."""
    committed = {counter.name: leave_5_and_hold_4(world.prepare, counter) for counter in HOLDABLE}
    uncommitted_holds = {counter.name: place_hold(world.prepare, 1, counter)["body"]["hold"] for counter in HOLDABLE}
    old_hold = hold_before_redeclaration(world.store)
    to_commit = [*((name, MUG_OF_ALICE["id"], hold) for name, hold in committed.items()), ("calls", "before", old_hold)]
    for name, id_, hold in to_commit:
        world.prepare({**MUG_OF_ALICE, "operation": "commit_hold", "counter": name, "id": id_, "hold": hold})
    fill_calls(world)
    yield
    world.call(**OLD_CALLS, hold=old_hold)
    for counter, hold in committed.items():
        for hold_id in (hold, hold, uncommitted_holds[counter], MISSING_HOLD):
            world.call(**{**MUG_OF_ALICE, "counter": counter}, hold=hold_id)
    world.pass_a_minute()
    assert world.call(**OLD_CALLS, hold=old_hold)["status"] == 200


def place_hold(invoke: Invoke, amount: int, counter: Counter = counters.STOCK, key: str = "") -> dict[str, Any]:
    """Place a hold of one minute, and return the answer."""
    key = key or secrets.token_hex(8)
    fields = {**MUG_OF_ALICE, "counter": counter.name, "amount": amount, "ttl_s": 60, "idempotency_key": key}
    return invoke({**fields, "operation": "hold"})


def leave_5_and_hold_4(invoke: Invoke, counter: Counter = counters.STOCK) -> str:
    """Add 5 to a stock, or count up to 5 below a ceiling. Then hold 4 of the 5. Returns the hold's id."""
    amount = 5 if counter.ceiling is None else counter.ceiling - 5
    fields = {**MUG_OF_ALICE, "counter": counter.name, "amount": amount, "idempotency_key": secrets.token_hex(8)}
    invoke({**fields, "operation": "increment"})
    return str(place_hold(invoke, 4, counter)["body"]["hold"])


def hold_before_redeclaration(store: Store) -> str:
    """Place a hold under a declaration of `calls` with a floor in place of the ceiling. The hold subtracts 4. So its
    release or void adds 4, and meets the ceiling after `fill_calls`."""
    old_calls = replace(counters.CALLS, floor=-9, ceiling=None, notify=None)
    process = Call(replace(store, limit_cache={}))
    tally = periods.tally_id(old_calls, "before", time.time())
    return str(holds.place(process, old_calls, tally, 4, 60, operation="hold", key=secrets.token_hex(8)).body["hold"])


def fill_calls(world: World) -> None:
    """Bring `calls` from -4, after the old hold, to its ceiling, with an increment and a new hold of 4. While the new
    hold lasts, the old hold cannot be released."""
    event, amount = {**OLD_CALLS, "idempotency_key": "fill"}, counters.CALLS.ceiling or 0
    increment_answer = world.prepare({**event, "operation": "increment", "amount": amount})
    hold_answer = world.prepare({**event, "operation": "hold", "amount": 4, "ttl_s": 60})
    assert (increment_answer["status"], hold_answer["status"]) == (200, 201)


def store_progress(store: Store, minute: int, hour: int) -> int:
    """Store that the series are summed up to this minute of the hour. Returns the minute, since 1970."""
    minutes = progress.minutes_of(store.settings, hour)
    state = progress.Progress(since=minutes[0] - 600, through=minutes[minute], hour=hour)
    item = progress.PROGRESS | items.to_wire(state.values)
    store.client.put_item(TableName=store.settings.ledger_table, Item=item)
    return minutes[minute]


def invoke_sample(world: World) -> Scenario:
    """Invoke the operation's sample event twice. The second `put_post` edits the post."""
    if world.operation.name in ("get_post", "delete_post"):
        world.prepare.direct("put_post", id="7c20", body="x", caller="alice")
    yield
    for body in ({}, {"body": "two"} if world.operation.name == "put_post" else {}):
        world.invoke(events.direct(world.operation.name, caller="alice", **body))


SCENARIOS: dict[str, Callable[[World], Scenario]] = {
    **dict.fromkeys(
        ("put_child", "delete_child", "put_mine", "delete_mine", "put_anonymous", "delete_anonymous"), change_child
    ),
    **dict.fromkeys(
        ("get_child", "list_children", "get_mine", "list_mine", "get_anonymous", "list_anonymous",
         "get_tallies", "get_any_tallies", "get_counter",
         "get_details", "get_counter_badge", "get_series", "get_any_series", "get_top", "get_any_top"), read,
    ),
    **dict.fromkeys(("commit_hold", "release_hold"), settle),
    "change_hold": change_hold, "void_hold": void_hold,
    "remove_parent": remove_parent, "visit": visit, "increment": increment, "change": change,
    "set_counter": set_counter, "hold": hold, "void": void, "void_changes": void,
}  # fmt: skip


@pytest.mark.parametrize(
    ("function", "operation"),
    FUNCTION_OPERATIONS,
    ids=[f"{name}-{operation.name}" for name, operation in FUNCTION_OPERATIONS],
)
def test_an_operation_needs_exactly_what_it_declares(
    function: str, operation: Operation, invoke: Invoke, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each function that serves the operation is a case, because a function with fewer counters needs less. If a
    limit may refuse, a limit must refuse in the scenario, because only then the code looks for expired holds."""
    refusals: list[LimitReachedError] = []
    init = LimitReachedError.__init__

    def record_refusal(error: LimitReachedError, detail: str, **members: Any) -> None:
        refusals.append(error)
        init(error, detail, **members)

    monkeypatch.setattr(LimitReachedError, "__init__", record_refusal)

    def pass_a_minute() -> None:
        monkeypatch.setattr(clock, "now_s", lambda: time.time() + 61)

    served_counters = operation.served_counters(counters_of_function(function, ROUTES[function], counters.COUNTERS))
    invoke_function = partial(invoke, function=function)
    steps = SCENARIOS.get(operation.name, invoke_sample)(
        World(operation, served_counters, invoke_function, invoke, store, pass_a_minute)  # type: ignore[arg-type]
    )
    next(steps)
    store.limit_cache.clear()  # as in a new process
    recorder = Recorder(store)
    list(steps)
    assert recorder.needs == operation.needs(served_counters)
    may_refuse = LimitReachedError in operation.raises and any(counter.may_settle_holds for counter in served_counters)
    assert bool(refusals) >= may_refuse, "no limit refused, so no expired hold was looked for"


def test_a_visit_beyond_a_ceiling_looks_for_expired_holds(
    invoke: Invoke, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A counter of visitors takes no holds, so the hold is from an earlier declaration of the counter."""
    active = Counter("active", prefix="APP", sort_key="ACTIVE", attribute="n", unique=True, period="year", ceiling=1)
    monkeypatch.setitem(counters.COUNTERS, active.name, active)
    tally, old_active = periods.tally_id(active, "site", time.time()), replace(active, unique=False, delta=None)
    holds.place(Call(replace(store, limit_cache={})), old_active, tally, 1, 60, operation="hold", key="key")
    monkeypatch.setattr(clock, "now_s", lambda: time.time() + 61)
    visit = partial(invoke.direct, "add_visitor", counter=active.name, id="site", caller="ann")
    recorder = Recorder(store)
    assert [visit(visitor=visitor)["status"] for visitor in ("ann", "bob")] == [200, 409]
    assert recorder.needs == events.BY_NAME["add_visitor"].needs([active])


class OneShard:
    """Fake streams that have one shard each, and no records."""

    def list_shards(self, table: str) -> ShardTree:
        return {f"shardId-{table}": None}

    def records_after(self, *_: object) -> Iterator[list[Any]]:
        return iter(())


def put_minute_to_judge(store: Store) -> None:
    """Store a closed minute: the tally `even` does not drift, drift of `begins` begins, and drift of `ends` ends.

    Also store that the bookkeeper is two days behind. A stream keeps a record for a day, so the sweep stores a loss.
    """
    now_s = int(time.time())
    minute = mark_judged(store, minutes_ahead=-5) + 1
    expected_and_observed = {"even": (1, 1), "begins": (0, 1), "ends": (3, 0)}
    entries = [segments.JournalEntry("plays", name, "", *amounts) for name, amounts in expected_and_observed.items()]
    segment = segments.segment_write(store.settings, minute, 0, "shardId-counts#1", entries, now_s)
    store.client.put_item(**segment["Put"])
    stalled = {"bookkeeper_passed_s": now_s - 2 * 24 * 3600}
    expected: items.Expected = {"bookkeeper_passed_s": None}
    write = items.update_write(store.settings.ledger_table, watermark.WATERMARK_KEY, stalled, expected=expected)
    assert try_commit(store, [write])
    put_drift_row(store, "plays", "ends", 3, minutes_ago=0)


def put_minute_to_sum_up(store: Store) -> None:
    """Store a play in the last minute of an hour. The series have the hour's other minutes."""
    hour = progress.hour_of(store.settings, watermark.read(store).judged) - 1
    minute = store_progress(store, 58, hour) + 1
    segment = segments.segment_write(
        store.settings, minute, 0, "s#1", [segments.JournalEntry("plays", "v", "", 1, 1)], int(time.time())
    )
    store.client.put_item(**segment["Put"])


WITH_CHILDREN = [counter for counter in counters.COUNTERS.values() if counter.counts_children]


def remove_parents(store: Store) -> None:
    """Remove two parents of each counter with children. The next sweep removes children of `a91f`, and ends the
    removal of `ended`."""
    call = Call(store, "alice")
    for counter in WITH_CHILDREN:
        if counter.parent_required:
            for post in ("a91f", "ended"):
                posts.write_post(call, counter, post, "x")
        for present in (True, False):
            children.set_child(call, counter, "ended", "bob", present)
        children.set_child(call, counter, "a91f", "bob", True)
        store.breaker.trip(f"{counter.prefix}#a91f")
        children.set_child(call, counter, "a91f", "carol", True)
        for parent in ("a91f", "ended"):
            remove = posts.delete_post if counter.parent_required else deletion.remove_parent
            assert remove(call, counter, parent)
        key = tallies.key(counter, "a91f", 3)  # as if the removal had died before it marked this shard
        store.client.delete_item(TableName=store.settings.counts_table, Key=key)
    ledger = store.settings.ledger_table
    for row in store.client.scan(TableName=ledger)["Items"]:
        if row["PK"]["S"] == "DELETED" and row["target"]["S"] == "ended":  # as after a sweep that found no child
            store.client.put_item(TableName=ledger, Item=row | {"found_nothing": {"BOOL": True}})


@pytest.mark.usefixtures("midday")
def test_the_sweep_needs_exactly_what_its_schedule_declares(
    invoke: Invoke, store: Store, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another judge adds 7 to a drift row between the judge's read and write of the row, so the judge reads again."""
    for counter in HOLDABLE:
        leave_5_and_hold_4(invoke, counter)
    hold_before_redeclaration(store)
    remove_parents(store)
    monkeypatch.setattr(clock, "now_s", lambda: time.time() + 61)
    put_minute_to_judge(store)
    put_minute_to_sum_up(store)
    put_event_to_send(store)
    recorder = Recorder(store)
    rival = Store(dynamodb_client(endpoint_url=engine.endpoint), store.settings)

    def write_first(**_: Any) -> None:
        put_drift_row(rival, "plays", "begins", 7)

    store.client.meta.events.register("after-call.dynamodb.BatchGetItem", write_first)
    store_with_bus = replace(store, settings=store.settings._replace(event_bus="bus"))
    result = Sweep(counters.COUNTERS, store_with_bus, OneShard(), Bus("bus", AcceptingBus))({}, LambdaContext())  # type: ignore[arg-type]
    expected = {"events_sent": 1, "minutes": 3}  # the minutes from 4 ago to 2 ago; the last waits for late commits
    expected |= {"released": len(HOLDABLE) + 1, "uneven": 2, "children_removed": 2 * len(WITH_CHILDREN)}
    expected["parents_removed"] = len(WITH_CHILDREN)
    assert {name: result[name] for name in expected} == expected
    assert result["hours"] == 2  # sums of one hour: of the video, and of all videos
    assert [(drift.target, drift.drift) for drift in rows.all_rows(store)] == [("begins", 1 + 7)]
    assert recorder.needs == DECLARED.needs["sweep"]


class AcceptingBus:
    """A bus that accepts every event."""

    def put_events(self, Entries: list[Any]) -> Any:
        return {"Entries": [{"EventId": "1"} for _ in Entries]}


def put_event_to_send(store: Store) -> None:
    """Store an event that the bookkeeper has not sent."""
    event = Event("ab" * 16, int(time.time() - 100) * 1000, {"event": "ab" * 16})
    store.client.put_item(**event.as_write(store.settings)["Put"])


def put_faults(invoke: Invoke, store: Store, objects: dead_letters.DeadLetterBucket) -> None:
    """Store a post whose tally is wrong, a tally that was wrong before the ledger began, a video that drifts, a receipt
    that the rollup did not add, and a dead letter of each consumer."""
    old_tally = tallies.key(counters.LIKES, "old", 0) | {"likeTally": {"N": "5"}, "authorId": {"S": "ann"}}
    store.client.put_item(TableName=store.settings.counts_table, Item=old_tally)
    invoke.direct("put_post", id="a91f", body="x", caller="alice")
    invoke.direct("put_mine", counter="likes", id="a91f", caller="bob")
    edit(store, tallies.key(counters.LIKES, "a91f", 0), "likeTally", 2)
    mark_judged(store)  # a repair waits until the present minute is judged
    put_drift_row(store, "likes", "a91f", 2)
    put_drift_row(store, "plays", "9f3a", -3)
    record = stream_records.play(7, "9f3a", writer_minute=28_000_000)
    minute_of_change = int(time.time()) // 60 - 3 * tallies.MINUTES_PER_DAY  # the stream has dropped its record
    lost_change = stream_records.play(8, "lost", writer_minute=minute_of_change)["dynamodb"]
    store.client.put_item(TableName=store.settings.receipts_table, Item=lost_change["NewImage"])
    for consumer in ("rollup", "bookkeeper"):
        write = dead_letters.store_and_mark(
            Call(store), objects, consumer, "receipts", "shardId-0", "7", record, "for a test"
        )
        store.client.put_item(**write["Put"])


def test_the_command_needs_only_what_its_policy_allows(
    invoke: Invoke, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Runs every command, except those that call functions, scan a team's table, or restore."""
    plays, likes = tmp_path / "plays.csv", tmp_path / "likes.csv"
    plays.write_text("id,value\nnew,9\n")
    readings = tmp_path / "readings.csv"
    hour_s = int(time.time()) // 3600 * 3600
    readings.write_text(f"id,value,at\n9f3a,1,{hour_s - 3600}\n9f3a,2,{hour_s}\n")
    likes.write_text("post,user,liked_at\na91f,carol,1700000000\n")
    bucket = Bucket()
    objects = dead_letters.DeadLetterBucket("bucket", lambda: bucket)
    put_faults(invoke, store, objects)
    leave_5_and_hold_4(invoke)
    mark_judged(store)
    # The judge is 5 minutes ahead, and a redrive books on an unjudged minute, so the clock moves 10 minutes ahead. A
    # Reconciler has the real clock, because it took `now_s` at import. So a repair need not wait for the judge.
    monkeypatch.setattr(clock, "now_s", lambda: time.time() + 600)
    assert reconcile.Reconciler(store).clock() == pytest.approx(time.time(), abs=60)
    store_progress(store, 10, progress.hour_of(store.settings, int(time.time() // 60)))
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
        "series plays 9f3a": 0, "top plays": 0, "watch plays 9f3a": 0, "events": 0, "receipt plays 9f3a k": 1,
    }.items():  # fmt: skip
        arguments = commands.parse_arguments(line.split(), commands.parser(counters.COUNTERS))
        assert commands.command_named(arguments.command).run(arguments, stack) == code, (line, capsys.readouterr())
    assert bucket.objects == {}, "the repair has applied and deleted both dead letters"
    assert recorder.needs <= operator_needs(counters.COUNTERS)
    assert {(need.action, need.prefix) for need in recorder.needs} >= {
        ("UpdateItem", "POST#"), ("UpdateItem", "VID#"), ("UpdateItem", "DRIFT"), ("DeleteItem", "DEADLETTER"),
        ("PutItem", "SEGMENT#"), ("PutItem", "HISTORY#"), ("PutItem", "DELETED"), ("DeleteItem", "HOLDS#"),
        ("DeleteItem", "POST#"), ("Query", "SERIES#"), ("Query", "TOP#"),
    }  # fmt: skip
