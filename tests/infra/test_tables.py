"""A stack that adopts restored tables. test_facts.py checks the properties that tables have without a restore."""

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
MOMENT = "20261122T103000"  # the restored tables have the data of this moment, and the moment in their names


@pytest.fixture(scope="session")
def restored(synthesize: Synthesize) -> Template:
    return synthesize(stage="prod", tables=f"Tally-prod-{MOMENT}")


def test_cloudformation_can_adopt_restored_tables(prod: Template, restored: Template) -> None:
    """CloudFormation adopts a table if its logical id is new, its name is no reference, and it has a policy Retain."""
    assert set(restored.of_type("AWS::DynamoDB::Table")) == {f"{name}{MOMENT}" for name in TABLES}
    for name in TABLES:
        adopted = restored.resources[f"{name}{MOMENT}"]
        assert (adopted["DeletionPolicy"], adopted["UpdateReplacePolicy"]) == ("Retain", "Retain")
        kind = name.removesuffix("Table").lower()
        assert adopted["Properties"]["TableName"] == f"Tally-prod-{MOMENT}-{kind}"
        renamed = {**adopted["Properties"], "TableName": f"Tally-prod-{kind}"}
        assert renamed == prod.resources[name]["Properties"]


def test_a_restore_from_a_vault_gives_tables_the_settings_of_the_template(restored: Template) -> None:
    """The command `tally restore` has these settings in its code, because tables and stack may be lost."""
    for kind, settings in TEMPLATE_SETTINGS.items():
        properties = restored.resources[f"{kind.capitalize()}Table{MOMENT}"]["Properties"]
        assert properties["TimeToLiveSpecification"] == {"AttributeName": settings.ttl_attribute, "Enabled": True}
        stream = properties.get("StreamSpecification", {})
        assert stream == {name: value for name, value in settings.stream.items() if name != "StreamEnabled"}
        assert properties["DeletionProtectionEnabled"] is settings.is_protected
        assert properties["PointInTimeRecoverySpecification"] == {"PointInTimeRecoveryEnabled": True}


def without_version_digests(text: str) -> Json:
    """Returns a template without the digests at the end of logical ids of versions, which depend on the functions."""
    template: Json = json.loads(re.sub(r"(CurrentVersion[0-9A-F]{8})[0-9a-f]{32}", r"\1", text))
    return template


def test_every_resource_of_a_stack_uses_its_restored_tables(prod: Template, restored: Template) -> None:
    """The templates of a stack before and after a restore differ only in the ids and the names of tables."""
    renamed = json.dumps(prod.body, sort_keys=True)
    for name in TABLES:
        renamed = renamed.replace(f'"{name}"', f'"{name}{MOMENT}"').replace(f"${{{name}", f"${{{name}{MOMENT}")
        kind = name.removesuffix("Table").lower()
        renamed = renamed.replace(f'"Tally-prod-{kind}"', f'"Tally-prod-{MOMENT}-{kind}"')
    assert without_version_digests(restored.text) == without_version_digests(renamed)


def test_a_deleted_stack_of_dev_keeps_its_restored_tables() -> None:
    """CloudFormation does not adopt a table that it may delete."""
    stack = Stack()
    Tables(stack, "Tables", names=Names("Tally-dev"), options=Options(restored=MOMENT))
    tables = assertions.Template.from_stack(stack).find_resources("AWS::DynamoDB::Table")
    assert {table["DeletionPolicy"] for table in tables.values()} == {"Retain"}
    assert {table["Properties"]["DeletionProtectionEnabled"] for table in tables.values()} == {True}
