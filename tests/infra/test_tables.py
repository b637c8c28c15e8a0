"""The three tables: keys, streams, expiry, and protection from deletion."""

from __future__ import annotations

import json
import re

import pytest
from aws_cdk import Stack, assertions

from stacks.names import Names
from stacks.options import Options
from stacks.tables import Tables
from tests.infra.conftest import FRUGAL, Synthesize
from tests.infra.template import Json, Template

TABLES = ("CountsTable", "ReceiptsTable", "LedgerTable")


def table(template: Template, name: str) -> Json:
    properties: Json = template.resources[name]["Properties"]
    return properties


def keys(template: Template, name: str) -> dict[str, str]:
    return {key["KeyType"]: key["AttributeName"] for key in table(template, name)["KeySchema"]}


def test_there_are_three_tables_under_names_that_never_change(dev: Template) -> None:
    assert set(dev.of_type("AWS::DynamoDB::Table")) == set(TABLES)
    assert not dev.of_type("AWS::DynamoDB::GlobalTable")


def test_keys(dev: Template) -> None:
    assert keys(dev, "CountsTable") == {"HASH": "PK", "RANGE": "SK"}
    assert keys(dev, "ReceiptsTable") == {"HASH": "id"}
    assert keys(dev, "LedgerTable") == {"HASH": "PK", "RANGE": "SK"}
    for name in TABLES:
        attributes = table(dev, name)["AttributeDefinitions"]
        assert {attribute["AttributeType"] for attribute in attributes} == {"S"}
        assert {attribute["AttributeName"] for attribute in attributes} == set(keys(dev, name).values())


def test_streams(dev: Template) -> None:
    assert table(dev, "CountsTable")["StreamSpecification"]["StreamViewType"] == "NEW_AND_OLD_IMAGES"
    assert table(dev, "ReceiptsTable")["StreamSpecification"]["StreamViewType"] == "NEW_AND_OLD_IMAGES"
    assert "StreamSpecification" not in table(dev, "LedgerTable")


def test_every_table_drops_what_carries_an_expiration(dev: Template) -> None:
    """Of counts, only tallies of a period and heartbeats carry one."""
    expires = {"AttributeName": "expiration", "Enabled": True}
    for name in TABLES:
        assert table(dev, name)["TimeToLiveSpecification"] == expires


@pytest.mark.parametrize("name", TABLES)
def test_every_table(dev: Template, prod: Template, name: str) -> None:
    for template in (dev, prod):
        properties = table(template, name)
        assert properties["BillingMode"] == "PAY_PER_REQUEST"
        assert properties["PointInTimeRecoverySpecification"]["PointInTimeRecoveryEnabled"] is True
        assert "LocalSecondaryIndexes" not in properties, "DynamoDB could not split a hot item collection"
        assert "SSESpecification" not in properties, "DynamoDB's own key: no bill, no limit of KMS"


@pytest.mark.parametrize("name", [*TABLES, "UserPool"])
def test_data_outlives_the_stack_unless_it_is_dev(dev: Template, prod: Template, name: str) -> None:
    for policy in ("DeletionPolicy", "UpdateReplacePolicy"):
        assert dev.resources[name][policy] == "Delete"
        assert prod.resources[name][policy] == "Retain"
    protection = "DeletionProtection" if name == "UserPool" else "DeletionProtectionEnabled"
    assert dev.resources[name]["Properties"][protection] in (False, "INACTIVE")
    assert prod.resources[name]["Properties"][protection] in (True, "ACTIVE")


MOMENT = "20261122T103000"


@pytest.fixture(scope="session")
def restored(synthesize: Synthesize) -> Template:
    return synthesize(stage="prod", tables=f"Tally-prod-{MOMENT}")


def test_tables_have_fixed_names(dev: Template, prod: Template) -> None:
    """So a stack that is deployed again adopts what the last one kept, or the deploy is refused."""
    for stage, template in (("dev", dev), ("prod", prod)):
        names = [table(template, name)["TableName"] for name in TABLES]
        assert names == [f"Tally-{stage}-counts", f"Tally-{stage}-receipts", f"Tally-{stage}-ledger"]


def test_cloudformation_can_adopt_restored_tables(prod: Template, restored: Template) -> None:
    """It imports what is new in a template, has a literal name, and is kept. The settings are as before."""
    assert set(restored.of_type("AWS::DynamoDB::Table")) == {f"{name}{MOMENT}" for name in TABLES}
    for name in TABLES:
        adopted = restored.resources[f"{name}{MOMENT}"]
        assert (adopted["DeletionPolicy"], adopted["UpdateReplacePolicy"]) == ("Retain", "Retain")
        kind = name.removesuffix("Table").lower()
        assert adopted["Properties"]["TableName"] == f"Tally-prod-{MOMENT}-{kind}"
        same = {**adopted["Properties"], "TableName": f"Tally-prod-{kind}"}
        assert same == table(prod, name)


def versions_alike(text: str) -> Json:
    """A template without what a version's logical id ends with: a digest of its function's properties."""
    found: Json = json.loads(re.sub(r"(CurrentVersion[0-9A-F]{8})[0-9a-f]{32}", r"\1", text))
    return found


def test_everything_of_a_stack_follows_its_restored_tables(prod: Template, restored: Template) -> None:
    """Functions, policies, mappings, alarms and outputs: the templates differ in the tables' ids and names alone."""
    moved = json.dumps(prod.body, sort_keys=True)
    for name in TABLES:
        moved = moved.replace(f'"{name}"', f'"{name}{MOMENT}"').replace(f"${{{name}", f"${{{name}{MOMENT}")
        kind = name.removesuffix("Table").lower()
        moved = moved.replace(f'"Tally-prod-{kind}"', f'"Tally-prod-{MOMENT}-{kind}"')
    assert versions_alike(restored.text) == versions_alike(moved)


def test_restored_tables_of_dev_are_kept_too(synthesize: Synthesize) -> None:
    """CloudFormation adopts nothing that it may delete."""
    stack = Stack()
    Tables(stack, "Tables", names=Names("Tally-dev"), options=Options(restored=MOMENT))
    made = assertions.Template.from_stack(stack).find_resources("AWS::DynamoDB::Table")
    assert {found["DeletionPolicy"] for found in made.values()} == {"Retain"}
    assert {found["Properties"]["DeletionProtectionEnabled"] for found in made.values()} == {True}


def test_operators_can_prepare_a_launch(dev: Template, synthesize: Synthesize) -> None:
    """Without an option AWS chooses: nobody can lower a value that has grown."""
    for name in TABLES:
        assert "WarmThroughput" not in table(dev, name)
    template = synthesize(**FRUGAL)
    assert table(template, "CountsTable")["WarmThroughput"] == {"WriteUnitsPerSecond": 20000}
    assert table(template, "ReceiptsTable")["WarmThroughput"] == {"WriteUnitsPerSecond": 20000}
    assert "WarmThroughput" not in table(template, "LedgerTable")


def test_warm_reads_and_writes_go_together_or_alone() -> None:
    stack = Stack()
    tables = Tables(stack, "Tables", names=Names.of(stack), options=Options(warm_writes=5000, warm_reads=15000))
    warm = stack.resolve(tables.counts.node.default_child.warm_throughput)  # type: ignore[union-attr]
    assert warm == {"readUnitsPerSecond": 15000, "writeUnitsPerSecond": 5000}
