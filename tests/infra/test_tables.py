"""Tables that were restored, and what a stack takes of them. test_facts.py has the rest."""

from __future__ import annotations

import json
import re

import pytest
from aws_cdk import Stack, assertions

from tally.cdk.names import Names
from tally.cdk.options import Options
from tally.cdk.tables import Tables
from tally.cli.restore import TEMPLATE_SETTINGS
from tests.infra.conftest import Synthesize
from tests.infra.template import Json, Template

TABLES = ("CountsTable", "ReceiptsTable", "LedgerTable")


MOMENT = "20261122T103000"


@pytest.fixture(scope="session")
def restored(synthesize: Synthesize) -> Template:
    return synthesize(stage="prod", tables=f"Tally-prod-{MOMENT}")


def test_cloudformation_can_adopt_restored_tables(prod: Template, restored: Template) -> None:
    """It imports what is new in a template, has a literal name, and is kept. The settings are as before."""
    assert set(restored.of_type("AWS::DynamoDB::Table")) == {f"{name}{MOMENT}" for name in TABLES}
    for name in TABLES:
        adopted = restored.resources[f"{name}{MOMENT}"]
        assert (adopted["DeletionPolicy"], adopted["UpdateReplacePolicy"]) == ("Retain", "Retain")
        kind = name.removesuffix("Table").lower()
        assert adopted["Properties"]["TableName"] == f"Tally-prod-{MOMENT}-{kind}"
        same = {**adopted["Properties"], "TableName": f"Tally-prod-{kind}"}
        assert same == prod.resources[name]["Properties"]


def test_a_restore_from_a_vault_knows_the_settings_of_the_template(restored: Template) -> None:
    """The tables that were copied, and the stack, may be lost."""
    for kind, wanted in TEMPLATE_SETTINGS.items():
        found = restored.resources[f"{kind.capitalize()}Table{MOMENT}"]["Properties"]
        assert found["TimeToLiveSpecification"] == {"AttributeName": wanted.ttl_attribute, "Enabled": True}
        stream = found.get("StreamSpecification", {})
        assert stream == {name: value for name, value in wanted.stream.items() if name != "StreamEnabled"}
        assert found["DeletionProtectionEnabled"] is wanted.protected
        assert found["PointInTimeRecoverySpecification"] == {"PointInTimeRecoveryEnabled": True}


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
