"""What each operation does to the tables, recorded as it runs, is what it declares and so what its role grants.

AWS alone would tell otherwise: `grant_write_data`, for one, lacks `ConditionCheckItem`.
"""

from __future__ import annotations

import io
import secrets
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar
from unittest.mock import Mock

import permissions
import pytest
from tally.operation import Need, Operation, Table

import counters
import operations
from cli import commands, watch
from cli.connection import Connection, Stack
from dev.base.engine import Engine
from functions import sweep
from tally.counter import Counter
from tally.counting import children, deletion, holds, posts, tallies
from tally.drift import rows
from tally.dynamo import items
from tally.dynamo.client import Call, Store, dynamodb_client
from tally.dynamo.shards import Tree
from tally.series import progress
from tally.streams import dead_letters, segments, watermark
from tests.contexts import Context
from tests.events import KEY

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

Invoke = Callable[..., dict[str, Any]]
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
    elif action == "Scan":
        return  # of all keys: it is granted by itself
    elif action == "Query":
        yield action, parameters["TableName"], {"PK": parameters["ExpressionAttributeValues"][":pk"]}
    else:
        yield action, parameters["TableName"], parameters.get("Key") or parameters["Item"]


@pytest.fixture
def client(engine: Engine) -> Iterator[DynamoDBClient]:
    """A test's own: what it registers at its client would be there in the next test."""
    made = dynamodb_client(endpoint_url=engine.endpoint)
    yield made
    made.close()


class Recorder:
    """Records what a client asks of the tables, as needs."""

    made: ClassVar[list[Recorder]] = []
    """Every recorder of this process. tests/infra/test_iam.py decides what they have recorded."""

    def __init__(self, store: Store) -> None:
        self.made.append(self)
        self.needs: set[Need] = set()
        self.calls: set[tuple[str, Table, frozenset[str]]] = set()
        """Action, table, and the partition keys of one request. A scan has none."""
        settings = store.settings
        self._tables = {
            settings.counts_table: Table.COUNTS,
            settings.receipts_table: Table.RECEIPTS,
            settings.ledger_table: Table.LEDGER,
        }
        store.client.meta.events.register("provide-client-params.dynamodb", self._record)

    def _record(self, params: dict[str, Any], model: Any, **_: Any) -> None:
        keys: dict[tuple[str, Table], set[str]] = {}
        for action, table, key in _accesses(model.name, params):
            partition_key = (key.get("PK") or key["id"])["S"]
            self.needs.add(Need(action, self._tables[table], self.prefix(partition_key)))
            keys.setdefault((action, self._tables[table]), set()).add(partition_key)
        if model.name == "Scan":
            keys["Scan", self._tables[params["TableName"]]] = set()
        self.calls |= {(action, table, frozenset(found)) for (action, table), found in keys.items()}

    def prefix(self, partition_key: str) -> str:
        """What a role's condition on the key would have to begin with."""
        if partition_key.startswith("CHECKPOINT#"):
            return partition_key  # there are four, and not everybody reads all of them
        return partition_key[: partition_key.index("#") + 1] if "#" in partition_key else partition_key


ARGUMENTS = {
    "video_id": "9f3a",
    "post_id": "a91f",
    "post_ids": ["a91f", "b"],
    "url": "https://example.com/a",
    "idempotency_key": KEY,
    "body": "one",
    "of": "play",
    "target": "9f3a",
    "targets": ["9f3a"],
    "idempotency_keys": [KEY, KEY],
    "value": True,
}


STOCK: dict[str, Any] = {"counter": "stock", "id": "mug", "caller": "alice"}
NO_HOLD = "1700000000-AAAAAAAAAAAAAAAA"

Scenario = Iterator[None]
"""What is done up to the first `yield` prepares, and is not recorded."""


def like(invoke: Invoke, store: Store, pass_a_minute: Callable[[], None]) -> Scenario:
    """Changes and none, with and without a key, on the first shard and on new ones; unlikes need the same."""
    invoke("posts", {"operation": "put_post", "post_id": "a91f", "body": "x", "caller": "alice"})
    yield
    for key in ({}, {"idempotency_key": "first"}):
        for operation in ("like", "like", "unlike", "unlike"):
            event = {"operation": operation, "post_id": "a91f", "caller": "alice", "value": True} | key
            invoke("likes", event)
            invoke("likes", event | {"idempotency_key": f"{operation}-again"})
    for user in ("bob", "carol", "dave"):
        store.spread.conflict("POST#a91f", 16)
        invoke("likes", {"operation": "like", "post_id": "a91f", "caller": user})


def parents(invoke: Invoke) -> Iterator[tuple[Counter, dict[str, Any]]]:
    """Each counter of children, and what names a child of it; where a parent is needed, it is there."""
    invoke("posts", {"operation": "put_post", "post_id": "a91f", "body": "x", "caller": "alice"})
    for counter in operations.PUT_CHILD.served(counters.COUNTERS):
        yield counter, {"counter": counter.name, "id": "a91f", "child": "bob", "caller": "shop"}


def child(invoke: Invoke, store: Store, pass_a_minute: Callable[[], None]) -> Scenario:
    """Put and removed, again, with and without a key, on new shards, and written alone."""
    found = list(parents(invoke))
    yield
    for counter, member in found:
        for key in ({}, {"idempotency_key": "first"}):
            for operation in ("put_child", "put_child", "delete_child", "delete_child"):
                invoke("likes", {**member, "operation": operation, **key})
                invoke("likes", {**member, "operation": operation, "idempotency_key": f"{operation}-again"})
        for user in ("carol", "dave", "erin"):
            store.spread.conflict(f"{counter.prefix}#a91f", 16)
            invoke("likes", {**member, "operation": "put_child", "child": user})
        store.breaker.trip(f"{counter.prefix}#a91f")
        invoke("likes", {**member, "operation": "put_child", "child": "fred"})


def children_of(invoke: Invoke, store: Store, pass_a_minute: Callable[[], None], operation: Operation) -> Scenario:
    """Of every counter that has some."""
    found = list(parents(invoke))
    yield
    for _, member in found:
        fields = {field.name: member[field.name] for field in operation.fields if field.name in member}
        invoke("likes", {"operation": operation.name, **fields, "caller": "shop"})


def visit(invoke: Invoke, store: Store, pass_a_minute: Callable[[], None]) -> Scenario:
    """By a person and by a crawler."""
    yield
    for agent in ("Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0", "Googlebot/2.1"):
        event = {"operation": "visit", "url": ARGUMENTS["url"], "user_agent": agent}
        invoke("visits", event | {"idempotency_key": secrets.token_hex(16)})


def increment(invoke: Invoke, store: Store, pass_a_minute: Callable[[], None]) -> Scenario:
    """Every counter, up to its end: the last number given, given again, refused; stock after expired holds; a batch."""
    for counter in counters.COUNTERS.values():
        if counter.numbered and counter.floor is not None:
            last = {counter.attribute: {"N": str(counter.floor - (counter.delta or 0))}, "version": {"N": "1"}}
            key = {"PK": {"S": counter.partition_start + "x"}, "SK": {"S": counter.sort_key}}
            store.client.put_item(TableName=store.settings.counts_table, Item={**key, **last})
    stocked_and_held(invoke)
    pass_a_minute()
    yield
    for counter in counters.COUNTERS.values():
        event = {"operation": "increment", "counter": counter.name, "id": "x", "caller": "alice"}
        for key in ("first", "first", "second"):
            invoke("increments", event | {"amount": counter.delta or 1, "idempotency_key": key, "value": True})
    again = {**STOCK, "operation": "increment", "amount": 1, "idempotency_key": "again"}
    invoke("increments", {"batch": [again, again, {**again, "idempotency_key": "more"}]})
    for amount in (-7, -8):
        invoke("increments", {**STOCK, "operation": "increment", "amount": amount, "idempotency_key": f"{amount}"})


def change(invoke: Invoke, store: Store, pass_a_minute: Callable[[], None]) -> Scenario:
    """Now, soon and under heat; stock after expired holds; refused."""
    stocked_and_held(invoke)
    pass_a_minute()
    yield
    named = [name for name, counter in counters.COUNTERS.items() if counter.joins]
    order = [{"counter": name, "id": "mug", "amount": counters.COUNTERS[name].delta or 1} for name in named]
    taken = [{"counter": "stock", "id": "mug", "amount": -7}, {"counter": "plays", "id": "mug"}]
    for number, changes in enumerate((order, order[:1], taken, taken)):
        event = {"operation": "change", "changes": changes, "caller": "alice", "idempotency_key": f"key-{number}"}
        invoke("increments", event | {"visible": "soon" if number == 1 else "now"})


def get_counter(invoke: Invoke, store: Store, pass_a_minute: Callable[[], None]) -> Scenario:
    """Every counter."""
    yield
    for name in counters.COUNTERS:
        invoke("increments", {"operation": "get_counter", "counter": name, "id": "x", "caller": "alice"})


def details(invoke: Invoke, store: Store, pass_a_minute: Callable[[], None]) -> Scenario:
    """Of every counter."""
    yield
    for counter in counters.COUNTERS.values():
        asked = {"counter": counter.name, "id": ARGUMENTS["url"] if counter.pages else "x"}
        invoke("drifts", {"operation": "get_details", **asked, "caller": "alice"})


def many(invoke: Invoke, store: Store, pass_a_minute: Callable[[], None], operation: str) -> Scenario:
    """Of every counter."""
    yield
    of = [f"{name}:{ARGUMENTS['url'] if one.pages else 'x'}" for name, one in counters.COUNTERS.items()]
    invoke("tallies", {"operation": operation, "of": of, "caller": "alice"})


def badge(invoke: Invoke, store: Store, pass_a_minute: Callable[[], None]) -> Scenario:
    """Of every counter."""
    yield
    for name in counters.COUNTERS:
        invoke("tallies", {"operation": "get_counter_badge", "counter": name, "id": "x"})


def set_counter(invoke: Invoke, store: Store, pass_a_minute: Callable[[], None]) -> Scenario:
    """Every counter: set, again, and when it has moved."""
    yield
    for name in counters.COUNTERS:
        event = {"operation": "set_counter", "counter": name, "id": "x", "value": 1, "caller": "alice"}
        for version in (0, 0, 7):
            invoke("increments", event | {"version": version})


def hold(invoke: Invoke, store: Store, pass_a_minute: Callable[[], None]) -> Scenario:
    """Taken, taken of expired ones, refused."""
    stocked_and_held(invoke)
    pass_a_minute()
    yield
    assert [held(invoke, amount)["status"] for amount in (4, 2)] == [201, 409]


def settle(invoke: Invoke, store: Store, pass_a_minute: Callable[[], None], operation: str) -> Scenario:
    """In time, again, too late, and of no hold at all."""
    in_time, late = stocked_and_held(invoke), held(invoke, 1)["body"]["hold_id"]
    yield
    for hold_id in (in_time, in_time, NO_HOLD):
        invoke("holds", {**STOCK, "operation": operation, "hold_id": hold_id})
    pass_a_minute()
    invoke("holds", {**STOCK, "operation": operation, "hold_id": late})


def held(invoke: Invoke, amount: int) -> dict[str, Any]:
    """Hold some stock for a minute."""
    key = secrets.token_hex(8)
    return invoke("holds", {**STOCK, "operation": "hold", "amount": amount, "ttl_s": 60, "idempotency_key": key})


def stocked_and_held(invoke: Invoke) -> str:
    """Stock 5 more and hold 4 of them; the hold's id."""
    key = secrets.token_hex(8)
    invoke("increments", {**STOCK, "operation": "increment", "amount": 5, "idempotency_key": key})
    return str(held(invoke, 4)["body"]["hold_id"])


def series(invoke: Invoke, store: Store, pass_a_minute: Callable[[], None], operation: Operation) -> Scenario:
    """Hours that are over, and one that runs."""
    folded_up_to(store, 10, progress.hour_of(store.settings, int(time.time() // 60)))
    yield
    of = {"video_id": "v", "post_id": "p", "url": ARGUMENTS["url"], "counter": "plays", "id": "v"}
    event = {field.name: of[field.name] for field in operation.fields if field.name in of} | {"caller": "alice"}
    assert invoke("drifts", event | {"operation": operation.name, "by": "day"})["status"] == 200


def folded_up_to(store: Store, minute: int, hour: int) -> int:
    """The series are folded up to this minute of the hour; the minute, since 1970."""
    minutes = progress.minutes_of(store.settings, hour)
    far = progress.Progress(since=minutes[0] - 600, through=minutes[minute], hour=hour)
    item = progress.PROGRESS | items.wire(far.values)
    store.client.put_item(TableName=store.settings.ledger_table, Item=item)
    return minutes[minute]


def plain(invoke: Invoke, store: Store, pass_a_minute: Callable[[], None], operation: Operation) -> Scenario:
    """Once with its arguments; a post is written, and edited."""
    if "post_id" in {field.name for field in operation.fields} and operation is not operations.PUT_POST:
        invoke("posts", {"operation": "put_post", "post_id": "a91f", "body": "x", "caller": "alice"})
    yield
    fields = {field.name: ARGUMENTS[field.name] for field in operation.fields if field.name in ARGUMENTS}
    caller = {"caller": "alice"} if operation.needs_caller else {}
    for body in ({}, {"body": "two"} if "body" in fields else {}):
        invoke(operation.function, {"operation": operation.name, **fields, **caller, **body})


SCENARIOS: dict[str, Callable[..., Scenario]] = {
    "like": like, "unlike": like, "put_child": child, "delete_child": child, "visit": visit,
    "increment": increment, "change": change, "get_counter": get_counter,
    "set_counter": set_counter, "hold": hold,
    "get_child": partial(children_of, operation=operations.GET_CHILD),
    "list_children": partial(children_of, operation=operations.LIST_CHILDREN),
    "get_details": details,
    "get_tallies": partial(many, operation="get_tallies"),
    "get_any_tallies": partial(many, operation="get_any_tallies"),
    "get_counter_badge": badge,
    "commit_hold": partial(settle, operation="commit_hold"),
    "release_hold": partial(settle, operation="release_hold"),
    **{operation.name: partial(series, operation=operation) for operation in operations.ON_SERIES},
}  # fmt: skip


@pytest.mark.parametrize("operation", operations.OPERATIONS, ids=lambda operation: operation.name)
def test_an_operation_does_what_it_declares_and_no_more(
    operation: Operation, invoke: Invoke, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pass_a_minute() -> None:
        monkeypatch.setattr(holds, "time", SimpleNamespace(time=lambda: time.time() + 61))

    scenario = SCENARIOS.get(operation.name, partial(plain, operation=operation))
    steps = scenario(invoke, store, pass_a_minute)
    next(steps)
    recorder = Recorder(store)
    list(steps)
    assert recorder.needs == permissions.of_operations(counters.COUNTERS)[operation]


class OneShard:
    """The streams' shards: one of each, without a heartbeat so far."""

    def listed(self, table: str) -> Tree:
        return {f"shardId-{table}": None}

    def records_after(self, *_: object) -> Iterator[list[Any]]:
        return iter(())


def something_to_judge(store: Store) -> None:
    """A closed minute: one tally that comes out even, one that begins to drift, and one that ends to."""
    now_s = int(time.time())
    minute = judged_up_to_now(store, less=3) + 1
    entries = [segments.Booked("plays", "even", "", 1, 1), segments.Booked("plays", "begins", "", 0, 1)]
    entries.append(segments.Booked("plays", "ends", "", 3, 0))
    page = segments.write(store.settings, minute, 0, "shardId-counts#1", entries, now_s)
    store.client.put_item(**page["Put"])
    drift_row(store, "plays", "ends", 3, minute - 1)


def something_to_fold(store: Store) -> None:
    """The last minute of an hour."""
    hour = progress.hour_of(store.settings, watermark.judged(store)) - 1
    minute = folded_up_to(store, 58, hour) + 1
    page = segments.write(store.settings, minute, 0, "s#1", [segments.Booked("plays", "v", "", 1, 1)], int(time.time()))
    store.client.put_item(**page["Put"])


def judged_up_to_now(store: Store, less: int = 0) -> int:
    """Watermark, and every minute that it closes judged, `less` some; the last one that is."""
    now_s = int(time.time())
    known_s = now_s // 60 * 60 + 5
    judged = known_s // 60 - 2 - less
    facts = {"judged": judged, "known": known_s, "rolled": known_s, "noted": now_s - 60, "began": now_s - 5 * 86400}
    item = watermark.JUDGE | {name: {"N": str(value)} for name, value in facts.items()}
    store.client.put_item(TableName=store.settings.ledger_table, Item=item)
    return judged


def drift_row(store: Store, counter: str, target: str, drift: int, upto: int) -> None:
    numbers = {"drift": drift, "upto": upto, "since": 60 * upto}
    item = {"counter": {"S": counter}, "target": {"S": target}}
    item |= {name: {"N": str(value)} for name, value in numbers.items()}
    store.client.put_item(TableName=store.settings.ledger_table, Item=rows.key(counter, target) | item)


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


def test_the_sweep_does_what_its_schedule_declares_and_no_more(
    invoke: Invoke, store: Store, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another judge writes a row between its look and its write: it looks again. A removal has died before it marked
    the shards, and one of the children was written alone; another parent is at its end."""
    stocked_and_held(invoke)
    something_removed(store)
    monkeypatch.setattr(holds, "time", SimpleNamespace(time=lambda: time.time() + 61))
    monkeypatch.setattr(sweep, "_store", store)
    monkeypatch.setattr(sweep, "_shards", OneShard())
    something_to_judge(store)
    something_to_fold(store)
    recorder = Recorder(store)
    rival = Store(dynamodb_client(endpoint_url=engine.endpoint), store.settings)

    def overtake(**_: Any) -> None:
        drift_row(rival, "plays", "begins", 7, 1)

    store.client.meta.events.register("after-call.dynamodb.BatchGetItem", overtake)
    swept = sweep.handler({}, Context())
    wanted = {"returned": 1, "minutes": 3, "uneven": 2, "children_removed": 2 * len(WITH_CHILDREN)}
    wanted["parents_removed"] = len(WITH_CHILDREN)
    assert {name: swept[name] for name in wanted} == wanted
    assert swept["hours"] == 2  # of the tally, and of all together
    assert [(drift.target, drift.drift) for drift in rows.every(store)] == [("begins", 8)]
    assert recorder.needs == permissions.of_functions(counters.COUNTERS)["sweep"]


class Bucket:
    """S3, as far as dead letters need it."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    def put_object(self, *, Key: str, Body: bytes, **_: Any) -> None:
        self.objects[Key] = Body

    def get_object(self, *, Key: str, **_: Any) -> dict[str, Any]:
        return {"Body": io.BytesIO(self.objects[Key])}

    def delete_object(self, *, Key: str, **_: Any) -> None:
        del self.objects[Key]


def something_to_mend(invoke: Invoke, store: Store, objects: dead_letters.Objects) -> None:
    """A post with a like and a tally that is off, one that was off before the ledger began, a video that drifts, and a
    receipt for each consumer to redrive."""
    old = tallies.key(counters.LIKES, "old", 0) | {"likeTally": {"N": "5"}, "authorId": {"S": "ann"}}
    store.client.put_item(TableName=store.settings.counts_table, Item=old)
    invoke("posts", {"operation": "put_post", "post_id": "a91f", "body": "x", "caller": "alice"})
    invoke("likes", {"operation": "like", "post_id": "a91f", "caller": "bob"})
    store.client.update_item(
        TableName=store.settings.counts_table, Key=tallies.key(counters.LIKES, "a91f", 0),
        UpdateExpression="ADD likeTally :two", ExpressionAttributeValues={":two": {"N": "2"}},
    )  # fmt: skip
    minute = judged_up_to_now(store, less=-4)  # a repair waits until the present minute is judged
    drift_row(store, "likes", "a91f", 2, minute - watermark.SETTLE)
    drift_row(store, "plays", "9f3a", -3, minute - watermark.SETTLE)
    image = {
        "id": {"S": "tally#x"}, "counter": {"S": "plays"}, "target": {"S": "9f3a"}, "amount": {"N": "1"},
        "at": {"N": "28000000"}, "rollup": {"BOOL": True},
    }  # fmt: skip
    record = {
        "eventName": "INSERT",
        "dynamodb": {
            "SequenceNumber": "7",
            "ApproximateCreationDateTime": int(time.time()),
            "NewImage": image,
            "Keys": {"id": image["id"]},
        },
    }
    lost = image | {"target": {"S": "lost"}, "at": {"N": str(int(time.time()) // 60 - 3 * tallies.DAY)}}
    store.client.put_item(TableName=store.settings.receipts_table, Item=lost)
    for consumer in ("rollup", "drift"):
        marker = dead_letters.keep(Call(store), objects, consumer, "receipts", "shardId-0", "7", record, "for a test")
        store.client.put_item(**marker["Put"])


def test_the_command_does_what_its_policy_allows(
    invoke: Invoke, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each command once."""
    plays, likes = tmp_path / "plays.csv", tmp_path / "likes.csv"
    plays.write_text("new,9\n")
    likes.write_text("a91f,carol,1700000000\n")
    bucket = Bucket()
    objects = dead_letters.Objects("bucket", lambda: bucket)
    something_to_mend(invoke, store, objects)
    stocked_and_held(invoke)
    judged_up_to_now(store, less=-5)
    folded_up_to(store, 10, progress.hour_of(store.settings, int(time.time() // 60)))
    monkeypatch.setattr(watch, "time", SimpleNamespace(time=time.time, sleep=Mock(side_effect=KeyboardInterrupt)))
    recorder = Recorder(store)
    stack = Stack(Connection(store, objects), counters.COUNTERS)
    for line, code in {
        "status": 1, "get likes a91f": 0, "check": 1, "check --only drift": 1,
        "repair --by ann --why test --yes": 0, "history a91f": 0,
        f"import {likes} --children likes --yes --by ann --why test": 0, "export plays": 0,
        f"import {plays} --counter plays --yes --by ann --why test": 0, "history --imports": 0,
        f"import {plays} --counter contest --yes --by ann --why test": 0,
        "forget --user bob": 1, "forget --user bob --yes --by ann --why test": 0,
        "forget --user alice --yes --by ann --why test": 0, "history --user alice": 0,
        "series plays 9f3a": 0, "top plays": 0, "watch plays 9f3a": 0,
    }.items():  # fmt: skip
        given = commands.parsed(line.split(), commands.parser(counters.COUNTERS))
        assert commands.COMMANDS[given.command].run(given, stack) == code, (line, capsys.readouterr())
    assert bucket.objects == {}
    assert recorder.needs <= permissions.of_operator(counters.COUNTERS)
    assert {(need.action, need.prefix) for need in recorder.needs} >= {
        ("UpdateItem", "POST#"), ("UpdateItem", "VID#"), ("UpdateItem", "DRIFT"), ("GetItem", "JUDGE"),
        ("DeleteItem", "DEADLETTER"), ("PutItem", "SEGMENT#"), ("PutItem", "HISTORY#"), ("ConditionCheckItem", "DRIFT"),
        ("ConditionCheckItem", "POST#"), ("ConditionCheckItem", "VID#"), ("PutItem", "DELETED"),
        ("DeleteItem", "HOLDS#"), ("PutItem", "HOLDS#"), ("Query", "HOLDS#"), ("DeleteItem", "POST#"),
        ("GetItem", "PROGRESS"), ("Query", "SERIES#"), ("Query", "RUNNING#"), ("Query", "TOP#"),
    }  # fmt: skip
