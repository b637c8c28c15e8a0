"""The team's own tables in its stack: what is refused, how their streams reach the consumer, and who may do what."""

from __future__ import annotations

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
IMPORTED = "arn:aws:dynamodb:eu-west-1:123456789012:table/shop"


@pytest.fixture(scope="module")
def counters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("counters") / "counters.py"
    path.write_text(COUNTERS)
    return path


def empty(folder: Path) -> Stack:
    return Stack(App(outdir=str(folder), context=UNBUNDLED, analytics_reporting=False), "Shop")


def table(stack: Stack, id_: str, stream: dynamodb.StreamViewType | None = IMAGES, **how: Any) -> dynamodb.Table:
    return dynamodb.Table(stack, id_, **{"partition_key": PK, "sort_key": SK, "stream": stream, **how})


@pytest.fixture(scope="module")
def shop(counters: Path, tmp_path_factory: pytest.TempPathFactory) -> Template:
    """The orders' table has a key of its own. The keys of the other one say all that is counted."""
    folder = tmp_path_factory.mktemp("shop")
    stack = empty(folder)
    key = kms.Key(stack, "Key")
    tables = {"shop": table(stack, "Orders", encryption_key=key), "store": table(stack, "Store", KEYS)}
    Tally(stack, "Tally", counters=counters, tables=tables, canary=False)
    app = stack.node.root
    assert isinstance(app, App)
    app.synth()
    return Template(folder, id="Shop")


WRONG: dict[str, tuple[Any, str]] = {
    "no table": (
        lambda stack: {"store": table(stack, "Store")},
        r"counter 'orders' counts items of the table 'shop': give the construct tables=\{'shop': …\}",
    ),
    "no stream": (lambda stack: {"shop": table(stack, "Orders", None)}, "it has no stream: give it one with NEW_AND_"),
    "no stream of a global table": (
        lambda stack: {"shop": dynamodb.TableV2(stack, "Orders", partition_key=PK, sort_key=SK)},
        "the table 'shop' cannot be counted: it has no stream",
    ),
    "new images alone": (
        lambda stack: {"shop": table(stack, "Orders", NEW)},
        "its stream has NEW_IMAGE, and counter 'orders' needs NEW_AND_OLD_IMAGES",
    ),
    "keys alone": (
        lambda stack: {
            "shop": dynamodb.TableV2(stack, "Orders", partition_key=PK, sort_key=SK, dynamo_stream=KEYS),
        },
        "its stream has KEYS_ONLY, and counter 'orders' needs",
    ),
    "another key": (
        lambda stack: {"shop": table(stack, "Orders", partition_key=SK, sort_key=PK)},
        "counter 'orders' names the keys PK and SK, but its keys are SK and PK",
    ),
    "no sort key": (
        lambda stack: {"shop": dynamodb.Table(stack, "Orders", partition_key=PK, stream=IMAGES)},
        "counter 'orders' names the keys PK and SK, but its keys are PK",
    ),
    "one table twice": (
        lambda stack: dict.fromkeys(("shop", "store"), table(stack, "Orders")),
        "tables has one table as 'shop' and as 'store': call it by one name",
    ),
    "imported without its stream": (
        lambda stack: {"shop": dynamodb.Table.from_table_arn(stack, "Orders", IMPORTED)},
        "it has no stream: import it with table_stream_arn",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_table_whose_items_cannot_be_counted_is_refused(wrong: str, counters: Path, tmp_path: Path) -> None:
    given, says = WRONG[wrong]
    stack = empty(tmp_path)
    with pytest.raises(OptionsError, match=says) as refused:
        Tally(stack, "Tally", counters=counters, tables=given(stack))
    assert "\n" not in str(refused.value)


def test_a_table_that_is_imported_with_its_stream_is_taken_and_one_that_nobody_counts_is_a_warning(
    counters: Path, tmp_path: Path
) -> None:
    stack = empty(tmp_path)
    stream = f"{IMPORTED}/stream/2026-11-25T00:00:00.000"
    shop = dynamodb.Table.from_table_attributes(stack, "Orders", table_arn=IMPORTED, table_stream_arn=stream)
    tables = {"shop": shop, "store": table(stack, "Store"), "other": table(stack, "Other")}
    Tally(stack, "Tally", counters=counters, tables=tables)
    warnings = Annotations.from_stack(stack)
    warnings.has_warning("/Shop/Tally", "tables has 'other': no counter counts items of it [ack: tally:table-other]")
    app = stack.node.root
    assert isinstance(app, App)
    app.synth()
    made = Template(tmp_path, id="Shop").of_type("AWS::Lambda::EventSourceMapping").values()
    sources = [one["Properties"]["EventSourceArn"] for one in made]
    assert stream in sources
    assert len(sources) == 4 + 2


def test_the_streams_reach_the_consumer_as_in_the_local_stack(shop: Template, counters: Path) -> None:
    found = {of: one for of, one in mappings(shop).items() if one.function == "items"}
    assert {one.table.rstrip("0123456789ABCDEF") for one in found.values()} == {"Orders", "Store"}
    place = Surroundings("Tally", "v", {one: one.value for one in Table}, dict.fromkeys(Table, "s"), "bucket")
    local = [
        one for one in parse(deployment_document(Declarations.load(counters), place, "", "")).mappings if one.counters
    ]
    assert {one.table: one.counters for one in local} == {
        "shop": {"orders": ("PK", "SK", True)},
        "store": {"crates": ("PK", None, False)},
    }
    differ = {"name": "", "table": "", "counters": None}
    assert all(vars(one) | differ == vars(other) | differ for one in local for other in found.values())


def windows(template: Template) -> dict[str, Json]:
    """The properties of the mappings, by their logical ids."""
    found = template.of_type("AWS::Lambda::EventSourceMapping")
    return {name: one["Properties"] for name, one in found.items()}


def test_the_bookkeeper_gathers_records_for_half_a_minute_unless_a_counter_notifies(
    shop: Template, counters: Path, tmp_path: Path
) -> None:
    """A window is changed in place: a mapping that were made again would begin at the oldest record."""
    seconds = {(one.function, one.batch_window_s) for one in mappings(shop).values()}
    assert seconds == {("rollup", 1), ("bookkeeper", 30), ("items", 1)}
    notifying = tmp_path / "counters.py"
    notifying.write_text(
        counters.read_text()
        + "from tally.notify import Notify\n"
        + 'SEATS = Counter("seats", prefix="SEAT", sort_key="N", attribute="n", delta=1, notify=Notify(at=(10,)))\n'
        + "COUNTERS = declared([ORDERS, CRATES, SEATS])\n"
    )
    stack = empty(tmp_path / "out")
    tables = {
        "shop": table(stack, "Orders", encryption_key=kms.Key(stack, "Key")),
        "store": table(stack, "Store", KEYS),
    }
    Tally(stack, "Tally", counters=notifying, tables=tables, canary=False)
    app = stack.node.root
    assert isinstance(app, App)
    app.synth()
    found = Template(tmp_path / "out", id="Shop")
    assert {one.batch_window_s for one in mappings(found).values()} == {1}
    after, window = windows(found), "MaximumBatchingWindowInSeconds"
    assert set(after) == set(windows(shop)), "no mapping is made again"
    for name, before in windows(shop).items():
        assert {**before, window: 0} == {**after[name], window: 0}


def test_who_reads_the_tables_knows_them_and_nobody_else(shop: Template) -> None:
    knowing = {}
    for module, name in shop.functions().items():
        variable = shop.resources[name]["Properties"]["Environment"]["Variables"].get("TALLY_TEAM_TABLES")
        if variable:
            knowing[module] = parse_team_tables(as_text(variable))
    tables = {name.rstrip("0123456789ABCDEF"): name for name in shop.of_type("AWS::DynamoDB::Table")}
    wanted = {
        logical: (f"${{{tables[id_]}}}", f"${{{tables[id_]}.StreamArn}}")
        for logical, id_ in (("shop", "Orders"), ("store", "Store"))
    }
    assert knowing == {"items": wanted, "sweep": wanted}
    assert parse_team_tables(as_text(shop.outputs["TallyTeamTables"]["Value"])) == wanted


def on_own_tables(statements: list[Json], shop: Template) -> dict[str, set[str]]:
    """What statements allow on the team's tables and their keys, by the resource without its hash."""
    own = ("Orders", "Store", "Key")
    found: dict[str, set[str]] = {}
    for statement in statements:
        for resource in as_list(statement["Resource"]):
            name = as_text(resource)
            if name.removeprefix("${").startswith(own):
                short = next(one for one in own if name.removeprefix("${").startswith(one))
                of = f"{short}.{name.rpartition('.')[2].rstrip('}')}"
                found.setdefault(of, set()).update(as_list(statement["Action"]))
    return found


READ_STREAM = {"dynamodb:DescribeStream", "dynamodb:GetRecords", "dynamodb:GetShardIterator"}
DECRYPT = {"kms:Decrypt", "kms:DescribeKey"}


# One statement for tables and keys: AWS looks at the actions that a resource knows.
SCAN = {"dynamodb:DescribeTable", "dynamodb:Query", "dynamodb:Scan", *DECRYPT}


def test_the_consumer_reads_the_streams_and_what_counts_items_again_reads_the_tables(shop: Template) -> None:
    """That is the sweep, by spot checks, and the command. Only heartbeats are written there, where allowed."""
    streams: Mapping[str, set[str]] = {
        "Orders.StreamArn": READ_STREAM,
        "Store.StreamArn": READ_STREAM,
        "Key.Arn": DECRYPT,
    }
    allowed = {module: on_own_tables(list(shop.statements(name)), shop) for module, name in shop.functions().items()}
    assert {module: found for module, found in allowed.items() if found} == {
        "items": streams,
        "sweep": {**streams, "Orders.Arn": SCAN, "Store.Arn": {*SCAN, "dynamodb:PutItem"}, "Key.Arn": SCAN},
    }
    [put] = [
        one
        for one in shop.statements(shop.functions()["sweep"])
        if "Store" in as_text(as_list(one["Resource"])[0]) and as_list(one["Action"]) == ["dynamodb:PutItem"]
    ]
    assert put["Condition"]["ForAllValues:StringLike"] == {"dynamodb:LeadingKeys": ["HEARTBEAT#*"]}
    assert put["Condition"]["Null"] == {"dynamodb:LeadingKeys": "false"}
    assert not shop.of_type("AWS::IAM::Policy"), "a role has all in itself"
    [operator] = [
        found["Properties"]["PolicyDocument"]["Statement"]
        for name, found in shop.of_type("AWS::IAM::ManagedPolicy").items()
        if "Operator" in name
    ]
    assert on_own_tables(operator, shop) == {"Orders.Arn": SCAN, "Store.Arn": SCAN, "Key.Arn": SCAN}


def test_a_table_that_nobody_writes_sets_no_alarm_off(shop: Template) -> None:
    """No heartbeat goes there. That nobody reads a stream shows in the age of what is proven, as for the others."""
    missing = {
        name.partition("-Tally-")[2]: one["TreatMissingData"]
        for one in (found["Properties"] for found in shop.of_type("AWS::CloudWatch::Alarm").values())
        if (name := str(one["AlarmName"])).endswith("-items") or name.endswith("iterator-age-rollup")
    }
    assert missing == {
        "iterator-age-items": "notBreaching",
        "iterator-age-rollup": "missing",
        "watermark-age-items": "ignore",
        "dead-letters-items": "notBreaching",
    }


def test_a_tally_that_counts_items_alone_has_no_alarm_for_writes_of_callers(shop: Template) -> None:
    names = [found["Properties"]["AlarmName"] for found in shop.of_type("AWS::CloudWatch::Alarm").values()]
    assert "Shop-Tally-traffic" in names
    assert "Shop-Tally-write-units" not in names


def test_what_writes_goes_live_after_the_consumer_and_its_mappings(shop: Template) -> None:
    sweep = shop.resources[shop.alias_of(shop.functions()["sweep"])]
    mapped = [
        name
        for name, one in shop.of_type("AWS::Lambda::EventSourceMapping").items()
        if one["Properties"]["FunctionName"] == {"Ref": shop.alias_of(shop.functions()["items"])}
    ]
    assert len(mapped) == 2
    assert {shop.alias_of(shop.functions()["items"]), *mapped} <= set(sweep["DependsOn"])
