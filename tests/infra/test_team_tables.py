"""Team tables in a stack: unusable tables are refused, streams reach the consumer, and roles have few rights."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from aws_cdk import App, Stack
from aws_cdk import aws_dynamodb as dynamodb
from aws_cdk import aws_kms as kms
from aws_cdk.assertions import Annotations

from tally.api.needs import Table
from tally.cdk import OptionsError, Tally
from tally.contract.declarations import Declarations
from tally.contract.deployment import Surroundings
from tally.contract.deployment_document import deployment_document
from tally.dev.stack.template import parse
from tally.settings import parse_team_tables
from tests.infra.conftest import UNBUNDLED
from tests.infra.mappings import mappings
from tests.infra.template import Json, Template, as_list, as_text

COUNTERS = """
from tally.counter import ANYONE, Counter, declared
from tally.items import Items

OPEN = Items("shop", partition_prefix="CUSTOMER#", sort_key="SK", sort_prefix="ORDER#", where={"status": "open"})
ORDERS = Counter("orders", prefix="CUSTOMER", sort_key="ORDERS", attribute="orders", read=ANYONE, items=OPEN)
DOCKED = Items("store", partition_prefix="DOCK#", heartbeats=True)
CRATES = Counter("crates", prefix="DOCK", sort_key="CRATES", attribute="crates", items=DOCKED)
COUNTERS = declared([ORDERS, CRATES])
"""
PK, SK = (dynamodb.Attribute(name=name, type=dynamodb.AttributeType.STRING) for name in ("PK", "SK"))
IMAGES, NEW, KEYS = (dynamodb.StreamViewType[name] for name in ("NEW_AND_OLD_IMAGES", "NEW_IMAGE", "KEYS_ONLY"))
IMPORTED_ARN = "arn:aws:dynamodb:eu-west-1:123456789012:table/shop"
HASH_CHARACTERS = "0123456789ABCDEF"  # CDK adds a hash to the id of a table, and these tests remove the hash


@pytest.fixture(scope="module")
def counters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("counters") / "counters.py"
    path.write_text(COUNTERS)
    return path


def empty_stack(folder: Path) -> Stack:
    return Stack(App(outdir=str(folder), context=UNBUNDLED, analytics_reporting=False), "Shop")


def table(stack: Stack, id_: str, stream: dynamodb.StreamViewType | None = IMAGES, **options: Any) -> dynamodb.Table:
    return dynamodb.Table(stack, id_, **{"partition_key": PK, "sort_key": SK, "stream": stream, **options})


def synthesize(stack: Stack, folder: Path) -> Template:
    app = stack.node.root
    assert isinstance(app, App)
    app.synth()
    return Template(folder, id="Shop")


@pytest.fixture(scope="module")
def shop(counters: Path, tmp_path_factory: pytest.TempPathFactory) -> Template:
    """A stack with two team tables. The table Orders has a customer-managed key. The stream of Store has only keys."""
    folder = tmp_path_factory.mktemp("shop")
    stack = empty_stack(folder)
    key = kms.Key(stack, "Key")
    tables = {"shop": table(stack, "Orders", encryption_key=key), "store": table(stack, "Store", KEYS)}
    Tally(stack, "Tally", counters=counters, tables=tables, canary=False)
    return synthesize(stack, folder)


UNUSABLE_TABLES: dict[str, tuple[Any, str]] = {
    "no table": (
        lambda stack: {"store": table(stack, "Store")},
        r"counter 'orders' counts items of the table 'shop': give the construct tables=\{'shop': …\}",
    ),
    "no stream": (
        lambda stack: {"shop": table(stack, "Orders", None)},
        "the table has no stream: give it a stream with NEW_AND_",
    ),
    "no stream of a global table": (
        lambda stack: {"shop": dynamodb.TableV2(stack, "Orders", partition_key=PK, sort_key=SK)},
        "the table 'shop' cannot be counted: the table has no stream",
    ),
    "new images alone": (
        lambda stack: {"shop": table(stack, "Orders", NEW)},
        "the table's stream has NEW_IMAGE, and counter 'orders' needs NEW_AND_OLD_IMAGES",
    ),
    "keys alone": (
        lambda stack: {"shop": dynamodb.TableV2(stack, "Orders", partition_key=PK, sort_key=SK, dynamo_stream=KEYS)},
        "the table's stream has KEYS_ONLY, and counter 'orders' needs",
    ),
    "another key": (
        lambda stack: {"shop": table(stack, "Orders", partition_key=SK, sort_key=PK)},
        "counter 'orders' names the keys PK and SK, but the table has SK and PK",
    ),
    "no sort key": (
        lambda stack: {"shop": dynamodb.Table(stack, "Orders", partition_key=PK, stream=IMAGES)},
        "counter 'orders' names the keys PK and SK, but the table has PK",
    ),
    "one table twice": (
        lambda stack: dict.fromkeys(("shop", "store"), table(stack, "Orders")),
        "tables has one table as 'shop' and as 'store': give the table one name",
    ),
    "imported without its stream": (
        lambda stack: {"shop": dynamodb.Table.from_table_arn(stack, "Orders", IMPORTED_ARN)},
        "the table has no stream: import the table with table_stream_arn",
    ),
}


@pytest.mark.parametrize("case", UNUSABLE_TABLES)
def test_a_table_whose_items_cannot_be_counted_is_refused(case: str, counters: Path, tmp_path: Path) -> None:
    make_tables, message = UNUSABLE_TABLES[case]
    stack = empty_stack(tmp_path)
    with pytest.raises(OptionsError, match=message) as refused:
        Tally(stack, "Tally", counters=counters, tables=make_tables(stack))
    assert "\n" not in str(refused.value)


def test_a_table_that_is_imported_with_its_stream_counts_and_an_uncounted_table_gives_a_warning(
    counters: Path, tmp_path: Path
) -> None:
    stack = empty_stack(tmp_path)
    stream = f"{IMPORTED_ARN}/stream/2026-11-25T00:00:00.000"
    shop = dynamodb.Table.from_table_attributes(stack, "Orders", table_arn=IMPORTED_ARN, table_stream_arn=stream)
    tables = {"shop": shop, "store": table(stack, "Store"), "other": table(stack, "Other")}
    Tally(stack, "Tally", counters=counters, tables=tables)
    warnings = Annotations.from_stack(stack)
    warnings.has_warning("/Shop/Tally", "tables has 'other': no counter counts its items [ack: tally:table-other]")
    stack_mappings = synthesize(stack, tmp_path).of_type("AWS::Lambda::EventSourceMapping").values()
    sources = [mapping["Properties"]["EventSourceArn"] for mapping in stack_mappings]
    assert stream in sources
    assert len(sources) == 4 + 2, "the rollup and the bookkeeper read two streams each, and items reads two tables"


def test_the_streams_reach_the_consumer_as_in_the_local_stack(shop: Template, counters: Path) -> None:
    deployed = [mapping for mapping in mappings(shop).values() if mapping.function == "items"]
    assert {mapping.table.rstrip(HASH_CHARACTERS) for mapping in deployed} == {"Orders", "Store"}
    tables = {table: table.value for table in Table}
    surroundings = Surroundings("Tally", "v", tables, streams=dict.fromkeys(Table, "s"), dead_letters="bucket")
    document = deployment_document(Declarations.load(counters), surroundings, config="", client="")
    local = [mapping for mapping in parse(document).mappings if mapping.counters]
    # For each counter: the partition key, the sort key (if the counter needs it), whether the counter needs images.
    assert {mapping.table: mapping.counters for mapping in local} == {
        "shop": {"orders": ("PK", "SK", True)},
        "store": {"crates": ("PK", None, False)},
    }
    without_differences = {"name": "", "table": "", "counters": None}
    settings = [vars(mapping) | without_differences for mapping in (*local, *deployed)]
    assert all(one == settings[0] for one in settings)


def mapping_properties(template: Template) -> dict[str, Json]:
    """Returns a copy of the properties of the mappings, by their logical ids."""
    return {
        name: {**mapping["Properties"]} for name, mapping in template.of_type("AWS::Lambda::EventSourceMapping").items()
    }


def test_the_bookkeeper_gathers_records_for_half_a_minute_unless_a_counter_notifies(
    shop: Template, counters: Path, tmp_path: Path
) -> None:
    """A new window must not replace the mapping, because a new mapping begins at the oldest record of the stream."""
    seconds = {(mapping.function, mapping.batch_window_s) for mapping in mappings(shop).values()}
    assert seconds == {("rollup", 1), ("bookkeeper", 30), ("items", 1)}
    notifying = tmp_path / "counters.py"
    notifying.write_text(
        counters.read_text()
        + "from tally.notify import Notify\n"
        + 'SEATS = Counter("seats", prefix="SEAT", sort_key="N", attribute="n", delta=1, notify=Notify(at=(10,)))\n'
        + "COUNTERS = declared([ORDERS, CRATES, SEATS])\n"
    )
    stack = empty_stack(tmp_path / "out")
    tables = {
        "shop": table(stack, "Orders", encryption_key=kms.Key(stack, "Key")),
        "store": table(stack, "Store", KEYS),
    }
    Tally(stack, "Tally", counters=notifying, tables=tables, canary=False)
    template = synthesize(stack, tmp_path / "out")
    assert {mapping.batch_window_s for mapping in mappings(template).values()} == {1}
    before, after = mapping_properties(shop), mapping_properties(template)
    for properties in (*before.values(), *after.values()):
        properties["MaximumBatchingWindowInSeconds"] = 0
    assert before == after, "no mapping is replaced"


def test_only_functions_that_read_team_tables_know_the_tables_names(shop: Template) -> None:
    tables_by_function = {}
    for module, name in shop.functions().items():
        variable = shop.resources[name]["Properties"]["Environment"]["Variables"].get("TALLY_TEAM_TABLES")
        if variable:
            tables_by_function[module] = parse_team_tables(as_text(variable))
    tables = {name.rstrip(HASH_CHARACTERS): name for name in shop.of_type("AWS::DynamoDB::Table")}
    team_tables = {
        logical: (f"${{{tables[id_]}}}", f"${{{tables[id_]}.StreamArn}}")
        for logical, id_ in (("shop", "Orders"), ("store", "Store"))
    }
    assert tables_by_function == {"items": team_tables, "sweep": team_tables}
    assert parse_team_tables(as_text(shop.outputs["TallyTeamTables"]["Value"])) == team_tables


def rights_on_team_tables(statements: list[Json], shop: Template) -> dict[str, set[str]]:
    """Returns the allowed actions on team tables and their encryption keys, such as those on `Orders.StreamArn`."""
    actions: dict[str, set[str]] = {}
    for statement in statements:
        for resource in as_list(statement["Resource"]):
            reference = re.match(rf"\$\{{(Orders|Store|Key)[{HASH_CHARACTERS}]+([^}}]*)\}}(.*)", as_text(resource))
            if reference:
                actions.setdefault("".join(reference.groups()), set()).update(as_list(statement["Action"]))
    return actions


READ_STREAM = {"dynamodb:DescribeStream", "dynamodb:GetRecords", "dynamodb:GetShardIterator"}
DECRYPT = {"kms:Decrypt", "kms:DescribeKey"}
# One statement has the actions of tables and of keys. Each resource ignores the actions that it does not know.
SCAN = {"dynamodb:DescribeTable", "dynamodb:Query", "dynamodb:Scan", *DECRYPT}


def test_the_consumer_reads_the_streams_and_only_recounts_read_the_team_tables(shop: Template) -> None:
    """The sweep recounts items in spot checks, and operators by the command.

    The sweep also reads the streams' quiet shards, and writes heartbeats, but no other items.
    """
    streams: Mapping[str, set[str]] = {
        "Orders.StreamArn": READ_STREAM,
        "Store.StreamArn": READ_STREAM,
        "Key.Arn": DECRYPT,
    }
    allowed = {
        module: rights_on_team_tables(list(shop.statements(name)), shop) for module, name in shop.functions().items()
    }
    assert {module: rights for module, rights in allowed.items() if rights} == {
        "items": streams,
        "sweep": {**streams, "Orders.Arn": SCAN, "Store.Arn": {*SCAN, "dynamodb:PutItem"}, "Key.Arn": SCAN},
    }
    [put] = [
        statement
        for statement in shop.statements(shop.functions()["sweep"])
        if "Store" in as_text(as_list(statement["Resource"])[0])
        and as_list(statement["Action"]) == ["dynamodb:PutItem"]
    ]
    assert put["Condition"]["ForAllValues:StringLike"] == {"dynamodb:LeadingKeys": ["HEARTBEAT#*"]}
    assert put["Condition"]["Null"] == {"dynamodb:LeadingKeys": "false"}
    assert not shop.of_type("AWS::IAM::Policy"), "a role has all its policies inline"
    [operator] = [
        policy["Properties"]["PolicyDocument"]["Statement"]
        for name, policy in shop.of_type("AWS::IAM::ManagedPolicy").items()
        if "Operator" in name
    ]
    assert rights_on_team_tables(operator, shop) == {"Orders.Arn": SCAN, "Store.Arn": SCAN, "Key.Arn": SCAN}


def test_a_team_table_without_writes_sets_no_alarm_off(shop: Template) -> None:
    """Its stream may have no data, unlike the streams of the rollup, which have heartbeats.

    If the consumer does not read records, the alarm on the watermark's age goes off.
    """
    missing_data = {
        name.partition("-Tally-")[2]: alarm["TreatMissingData"]
        for alarm in (resource["Properties"] for resource in shop.of_type("AWS::CloudWatch::Alarm").values())
        if (name := str(alarm["AlarmName"])).endswith("-items") or name.endswith("iterator-age-rollup")
    }
    assert missing_data == {
        "iterator-age-items": "notBreaching",
        "iterator-age-rollup": "missing",
        "watermark-age-items": "ignore",
        "dead-letters-items": "notBreaching",
    }


def test_a_stack_that_counts_only_items_has_no_alarm_on_write_units(shop: Template) -> None:
    """Such a stack has no route that writes, and the alarm's threshold depends on the busiest of these routes."""
    names = [alarm["Properties"]["AlarmName"] for alarm in shop.of_type("AWS::CloudWatch::Alarm").values()]
    assert "Shop-Tally-traffic" in names
    assert "Shop-Tally-write-units" not in names


def test_the_sweep_goes_live_after_the_consumer_and_its_mappings(shop: Template) -> None:
    sweep = shop.resources[shop.alias_of(shop.functions()["sweep"])]
    mapped = [
        name
        for name, mapping in shop.of_type("AWS::Lambda::EventSourceMapping").items()
        if mapping["Properties"]["FunctionName"] == {"Ref": shop.alias_of(shop.functions()["items"])}
    ]
    assert len(mapped) == 2
    assert {shop.alias_of(shop.functions()["items"]), *mapped} <= set(sweep["DependsOn"])
