"""The three tables: keys, streams, expiry, and that nobody deletes them by mistake."""

from __future__ import annotations

import pytest

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
    assert table(dev, "ReceiptsTable")["StreamSpecification"]["StreamViewType"] == "NEW_IMAGE"
    assert "StreamSpecification" not in table(dev, "LedgerTable")


def test_counts_never_expire_receipts_and_ledger_do(dev: Template) -> None:
    expires = {"AttributeName": "expiration", "Enabled": True}
    assert "TimeToLiveSpecification" not in table(dev, "CountsTable")
    assert table(dev, "ReceiptsTable")["TimeToLiveSpecification"] == expires
    assert table(dev, "LedgerTable")["TimeToLiveSpecification"] == expires


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
