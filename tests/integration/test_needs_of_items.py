"""Records the requests to tables when a team's items are counted. The declared needs name exactly these requests.

Only the command, spot checks and heartbeats send requests to the team's table.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tally.api.needs import Table
from tally.cdk.operator import operator_needs
from tally.cli import scan
from tally.counter import Counter, Watched
from tally.dev.base.engine import Engine
from tally.dynamo.client import Store, dynamodb_client
from tally.dynamo.shards import ShardTree
from tally.errors import StoreRefusedError
from tally.items import Items
from tally.operations import items
from tally.operations.sweep import Sweep, needed
from tally.settings import TeamTable
from tally.streams.dead_letters import DeadLetterBucket
from tally.team import scan_state, spot_checks
from tally.team.consumer import ItemsHandler
from tests.contexts import LambdaContext
from tests.integration.command.numbers import mark_judged
from tests.integration.command.team import COUNTERS as TEAM_COUNTERS
from tests.integration.command.team import Team
from tests.integration.test_consumers import ConsumersRecorder
from tests.integration.test_needs import OneShard, Recorder
from tests.invariants.streaming import Bucket
from tests.sync_wire import SyncWire

pytestmark = pytest.mark.sdk
SHOP = TeamTable("Shop-1X", "arn:aws:dynamodb:eu-west-1:123456789012:table/Shop-1X/stream/2026")
OPEN_ORDERS = Items("shop", partition_prefix="CUSTOMER#", sort_key="SK", sort_prefix="ORDER#", where={"status": "open"})
ORDERS = Counter("orders", prefix="CUSTOMER", sort_key="ORDERS", attribute="orders", items=OPEN_ORDERS)
LIKE_ITEMS = Items("shop", partition_prefix="POST#", sort_key="SK", sort_prefix="LIKE#")
LIKED = Watched("liked", table="shop", attribute="likes", at="META", items=LIKE_ITEMS)
COUNTERS = {counter.name: counter for counter in (ORDERS, LIKED)}


@pytest.fixture
def team_store(store: Store) -> Store:
    return Store(store.client, store.settings._replace(team_tables={"shop": SHOP}, spot_check_units=100))


class ShopConsumer:
    """The consumer of the team's table, which gets records without a stream."""

    def __init__(self, store: Store, *counters: Counter) -> None:
        bucket = Bucket()
        objects = DeadLetterBucket("bucket", lambda: bucket)
        self.handler = ItemsHandler({counter.name: counter for counter in counters}, store, objects)
        self.sequence = 0

    def write(self, pk: str, sk: str, *, old: dict[str, Any] | None = None, new: dict[str, Any]) -> None:
        """Deliver a record of this item to the consumer. `old`, `new`: the images without keys; None: the item is new;
        empty: the image lacks its keys, too, so that the record becomes a dead letter."""
        self.sequence += 1
        key = {"PK": {"S": pk}, "SK": {"S": sk}}
        images = {"OldImage": old, "NewImage": new}
        change = {name: {**key, **image} if image else image for name, image in images.items() if image is not None}
        position = {"ApproximateCreationDateTime": time.time(), "SequenceNumber": str(self.sequence)}
        name = "INSERT" if old is None else "MODIFY"
        record = {"eventName": name, "eventID": str(self.sequence), "dynamodb": {"Keys": key, **position, **change}}
        event = {"Records": [record], "shardId": "shardId-1", "eventSourceARN": SHOP.stream}
        assert self.handler(event, LambdaContext()) == {"state": {}, "batchItemFailures": []}


OPEN_ORDER, SHIPPED_ORDER = {"status": {"S": "open"}}, {"status": {"S": "shipped"}}


@pytest.fixture
def table(store: Store) -> Iterator[None]:
    """Makes the team's table, and deletes it at the end."""
    schema: Any = {"AttributeName": "PK", "KeyType": "HASH"}, {"AttributeName": "SK", "KeyType": "RANGE"}
    types: Any = [{"AttributeName": name, "AttributeType": "S"} for name in ("PK", "SK")]
    store.client.create_table(
        TableName=SHOP.name, KeySchema=schema, AttributeDefinitions=types, BillingMode="PAY_PER_REQUEST"
    )
    yield
    store.client.delete_table(TableName=SHOP.name)


def begin_scan(store: Store, counter: Counter) -> scan_state.Scan:
    scan = scan_state.begin(store, counter, time.time())
    assert scan is not None
    return scan


def test_the_consumer_of_items_needs_exactly_what_it_declares(team_store: Store) -> None:
    """Records come during a scan, after the scan, and after a deploy with another declaration of `orders`. One record
    becomes a dead letter."""
    scan = begin_scan(team_store, ORDERS)
    scan_state.close(team_store, begin_scan(team_store, LIKED), LIKED.items_digest)
    recorder, consumer = ConsumersRecorder(team_store), ShopConsumer(team_store, ORDERS, LIKED)
    consumer.write("CUSTOMER#ann", "ORDER#1", new=OPEN_ORDER)
    consumer.write("CUSTOMER#ann", "ORDER#1", old=OPEN_ORDER, new=SHIPPED_ORDER)
    consumer.write("POST#a", "LIKE#ann", new={"at": {"N": "1"}})
    consumer.write("POST#a", "META", new={"likes": {"N": "1"}})
    consumer.write("CUSTOMER#ann", "ORDER#2", new={})
    consumer_needs = set(recorder.needs)  # the end of the scan is the command's, so its needs are not recorded
    assert scan_state.end(team_store, scan, time.time() - scan_state.CLOCK_SLACK * team_store.settings.minute_s - 1)
    recorder.needs = consumer_needs
    consumer.write("CUSTOMER#ann", "ORDER#3", new=OPEN_ORDER)
    other_orders = Counter("orders", prefix="CUSTOMER", sort_key="ORDERS", attribute="orders", items=Items("shop"))
    ShopConsumer(team_store, other_orders, LIKED).write("CUSTOMER#ann", "ORDER#4", new=OPEN_ORDER)
    assert recorder.needs == items.needed(COUNTERS.values())


class TeamStreams(OneShard):
    """Fake streams of Tally's and of team tables. `deleted_streams`: the tables whose stream is deleted."""

    def __init__(self, *deleted_streams: str) -> None:
        self.deleted_streams = deleted_streams

    def list_shards(self, table: str) -> ShardTree:
        if table in self.deleted_streams:
            raise StoreRefusedError("there is no such stream")
        return super().list_shards(table)

    def is_disabled(self, table: str) -> bool:
        return False


class TeamsRecorder(Recorder):
    """Records the requests to Tally's tables as needs, and the operations on the team's table."""

    def __init__(self, store: Store, team_table: str) -> None:
        super().__init__(store)
        self.team_table = team_table
        self.team_operations: set[str] = set()
        self.put_prefixes: set[str] = set()
        """The starts of the partition keys of items that are put into the team's table."""

    def _record(self, params: dict[str, Any], model: Any, **more: Any) -> None:
        if params.get("TableName") == self.team_table:
            self.team_operations.add(model.name)
            self.put_prefixes |= {params["Item"]["PK"]["S"].partition("#")[0]} if "Item" in params else set()
        else:
            super()._record(params, model, **more)


@pytest.mark.usefixtures("table")
def test_the_sweep_of_a_stack_that_counts_only_items_needs_what_it_declares(
    team_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sweep stores how far the consumer has come and what may be lost. The sweep also checks the team's number of
    the post, which stays at 7 for one like, and recounts some groups."""
    for counter in (ORDERS, LIKED):
        scan_state.close(team_store, begin_scan(team_store, counter), counter.items_digest)
    consumer, now = ShopConsumer(team_store, ORDERS, LIKED), time.time
    consumer.write("POST#a", "LIKE#ann", new={"at": {"N": "1"}})
    consumer.write("POST#a", "META", new={"likes": {"N": "7"}})
    order = {"PK": {"S": "CUSTOMER#ann"}, "SK": {"S": "ORDER#1"}, **OPEN_ORDER}
    team_store.client.put_item(TableName=SHOP.name, Item=order)
    like = {"PK": {"S": "POST#a"}, "SK": {"S": "LIKE#ann"}, "at": {"N": "1"}}
    items_by_counter = {"orders": [order], "liked": [like]}  # in place of random items
    monkeypatch.setattr(spot_checks, "random_items", lambda recount, _: items_by_counter[recount.counter.name])
    recorder = TeamsRecorder(team_store, SHOP.name)
    sweeps = []
    for days in (0, 0.1, 3):
        monkeypatch.setattr(time, "time", lambda days=days: now() + days * 24 * 3600)
        sweeps.append(Sweep(COUNTERS, team_store, TeamStreams())({}, LambdaContext()))  # type: ignore[arg-type]
    assert [swept["groups_checked"] for swept in sweeps] == [0, 2, 0], "the second sweep ends two spot checks"
    recorded_needs = {(need.action, need.prefix) for need in recorder.needs}
    assert ("PutItem", "LOST") in recorded_needs, "streams keep no record for 3 days"
    assert recorder.needs <= needed(COUNTERS.values())
    assert recorder.team_operations <= {"DescribeTable", "Scan", "Query"}, "as TeamTables.scan_statements allows"
    assert {(need.action, need.prefix) for need in needed(COUNTERS.values()) - needed([])} <= recorded_needs


def test_a_table_whose_stream_is_deleted_does_not_delay_other_tables(team_store: Store) -> None:
    store = Store(team_store.client, team_store.settings._replace(team_tables={"old": SHOP, "shop": SHOP}))
    old = replace(ORDERS, name="old", sort_key="OLD", items=replace(OPEN_ORDERS, table="old"))
    with pytest.raises(StoreRefusedError):
        Sweep({"old": old, **COUNTERS}, store, TeamStreams("old"))({}, LambdaContext())  # type: ignore[arg-type]
    assert (scan_state.passed_s(store, "old"), scan_state.passed_s(store, "shop") > 0) == (0, True)


@pytest.mark.usefixtures("table")
def test_the_sweep_writes_only_heartbeats_to_a_table_that_is_declared_with_heartbeats(team_store: Store) -> None:
    recorder = TeamsRecorder(team_store, SHOP.name)
    counters = {"orders": replace(ORDERS, items=replace(OPEN_ORDERS, heartbeats=True))}
    Sweep(counters, team_store, TeamStreams())({}, LambdaContext())  # type: ignore[arg-type]
    assert recorder.needs <= needed(counters.values())
    assert (recorder.team_operations, recorder.put_prefixes) == ({"DescribeTable", "PutItem"}, {"HEARTBEAT"})


def test_the_command_needs_for_items_only_what_the_policy_of_operators_allows(
    store: Store, engine: Engine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command scans, compares and repairs all groups and one group, and drops a dead letter."""
    with contextlib.closing(SyncWire(engine.port)) as wire:
        team = Team(store, wire, TEAM_COUNTERS, "shop", engine.endpoint, capsys=capsys)
        monkeypatch.setattr(scan, "time", SimpleNamespace(time=time.time, sleep=team.sleep))
        team.old_orders(9)
        mark_judged(team.store)
        # The command's own client, so that the consumer's requests are not recorded.
        client = dynamodb_client(endpoint_url=engine.endpoint)
        recorder = TeamsRecorder(Store(client, team.store.settings), team.table)
        assert team("scan orders --yes", client)[0] == 0
        team.edit("a", 3)
        mark_judged(team.store)
        signed = "--by ann --why test --yes"
        expected = {"check orders a": 1, f"repair orders a {signed}": 0, "check orders --yes": 0}
        expected |= {"get orders a": 0, "status": 1, "export orders": 0, "history a": 0}
        assert {line: team(line, client)[0] for line in expected} == expected
        team.order("a", 10)
        team.poison()
        expected = {f"repair {signed}": 1, f"repair --only dead-letters --drop {signed}": 0}
        assert {line: team(line, client)[0] for line in expected} == expected
    assert recorder.needs <= operator_needs(team.counters)
    item_needs = {need for need in operator_needs(team.counters) - operator_needs({}) if need.table is Table.LEDGER}
    assert item_needs <= recorder.needs
    assert recorder.team_operations == {"DescribeTable", "Scan", "Query"}, "as TeamTables.scan_statements allows"
