"""The event source mappings of the stack, and their filters."""

from __future__ import annotations

import json

import pytest

from tests.infra.mappings import mappings, properties
from tests.infra.template import Json, Template, as_list

FILTERS = {  # to check the declarations: without these filters a consumer would miss records, or get too many
    ("rollup", "ReceiptsTable"): [
        {"eventName": ["INSERT", "MODIFY"], "dynamodb": {"NewImage": {"rollup": {"BOOL": [True]}}}},
        {"dynamodb": {"Keys": {"id": {"S": [{"prefix": "heartbeat#"}]}}}},
    ],
    ("rollup", "CountsTable"): [
        {"eventName": ["INSERT"], "dynamodb": {"NewImage": {"rollup": {"BOOL": [True]}}}},
        {"dynamodb": {"Keys": {"PK": {"S": [{"prefix": "HEARTBEAT#"}]}}}},
    ],
    ("bookkeeper", "ReceiptsTable"): [{"eventName": ["INSERT", "MODIFY"]}],
    ("bookkeeper", "CountsTable"): [],
}


def test_filters_let_heartbeats_through_and_to_the_rollup_only_spilled_changes(dev: Template) -> None:
    """test_described.py checks the other settings of the mappings."""
    filters = {
        key: mapping.get("FilterCriteria", {"Filters": []})["Filters"] for key, mapping in properties(dev).items()
    }
    assert {key: [json.loads(entry["Pattern"]) for entry in listed] for key, listed in filters.items()} == FILTERS


SPILLED: Json = {"NewImage": {"rollup": {"BOOL": True}}}
LIKE: Json = {"Keys": {"PK": {"S": "POST#a"}, "SK": {"S": "LIKE#USER#b"}}, "NewImage": {"likedAt": {"N": "1"}}}
HEARTBEAT: Json = {"Keys": {"PK": {"S": "HEARTBEAT#7"}, "SK": {"S": "HEARTBEAT"}}}
RECEIPT: Json = {"Keys": {"id": {"S": "tally#7"}}, "NewImage": {"amount": {"N": "1"}}}
RECEIPT_HEARTBEAT: Json = {"Keys": {"id": {"S": "heartbeat#7"}}, "NewImage": {"at": {"N": "1"}}}


@pytest.mark.parametrize(
    ("table", "change", "kinds"),
    [
        ("Counts", LIKE, ""),
        ("Counts", LIKE | SPILLED, "INSERT"),
        ("Counts", {"OldImage": SPILLED["NewImage"]}, ""),
        ("Counts", HEARTBEAT, "INSERT MODIFY REMOVE"),
        ("Counts", {"Keys": {"PK": {"S": "HEARTBEAT"}}}, ""),
        ("Counts", {"Keys": {"PK": {"N": "7"}}}, ""),
        ("Counts", {"Keys": {"PK": {"N": "7"}}} | SPILLED, "INSERT"),
        ("Receipts", RECEIPT, ""),
        ("Receipts", RECEIPT | SPILLED, "INSERT MODIFY"),
        ("Receipts", SPILLED, "INSERT MODIFY"),
        ("Receipts", RECEIPT_HEARTBEAT, "INSERT MODIFY REMOVE"),
        *(
            ("Receipts", {"NewImage": {"rollup": malformed}}, "")
            for malformed in ({"BOOL": False}, {"S": "true"}, {"N": "1"}, {"NULL": True}, True)
        ),
    ],
)
def test_the_rollup_gets_heartbeats_and_spilled_changes_even_malformed_ones(
    dev: Template, table: str, change: Json, kinds: str
) -> None:
    """`kinds`: the event names with which a record passes. The local stack's filter reads the template's patterns."""
    mapping = mappings(dev)["rollup", f"{table}Table"]
    all_kinds = ("INSERT", "MODIFY", "REMOVE")
    assert " ".join(kind for kind in all_kinds if mapping.takes({"eventName": kind, "dynamodb": change})) == kinds


def test_the_role_of_a_consumer_has_the_right_to_read_before_the_mapping_exists(dev: Template) -> None:
    """The right is an inline policy. CloudFormation makes the role first, then the function, and the mapping last."""
    for module in ("rollup", "bookkeeper"):
        function = dev.resources[dev.functions()[module]]
        role = dev.resources[function["Properties"]["Role"]["Fn::GetAtt"][0]]
        [policy] = role["Properties"]["Policies"]
        allowed = [as_list(statement["Action"]) for statement in policy["PolicyDocument"]["Statement"]]
        assert any("dynamodb:GetRecords" in actions for actions in allowed)


def test_roles_have_only_inline_policies(prod: Template) -> None:
    """A policy of its own would be one of the 500 resources that a stack may have, with the resources of the team."""
    assert not prod.of_type("AWS::IAM::Policy")
