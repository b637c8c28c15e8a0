"""The streams in the stack: how they reach their consumers."""

from __future__ import annotations

import json

import pytest

from tests.infra.mappings import mappings, properties
from tests.infra.template import Json, Template, listed

FILTERS = {  # written out a second time: the consumers depend on them
    ("rollup", "ReceiptsTable"): [{"eventName": ["INSERT", "MODIFY"]}],
    ("rollup", "CountsTable"): [
        {"eventName": ["INSERT"]},
        {"dynamodb": {"Keys": {"PK": {"S": [{"prefix": "HEARTBEAT#"}]}}}},
    ],
    ("bookkeeper", "ReceiptsTable"): [{"eventName": ["INSERT", "MODIFY"]}],
    ("bookkeeper", "CountsTable"): [],
}


def test_filters_look_at_the_kind_of_change_and_let_heartbeats_through(dev: Template) -> None:
    """test_described.py has who reads which stream, and how."""
    found = {which: one.get("FilterCriteria", {"Filters": []})["Filters"] for which, one in properties(dev).items()}
    assert {which: [json.loads(one["Pattern"]) for one in filters] for which, filters in found.items()} == FILTERS


LIKE: Json = {"Keys": {"PK": {"S": "POST#a"}, "SK": {"S": "LIKE#USER#b"}}}
HEARTBEAT: Json = {"Keys": {"PK": {"S": "HEARTBEAT#7"}, "SK": {"S": "HEARTBEAT"}}}


@pytest.mark.parametrize(
    ("record", "does"),
    [
        ({"eventName": "INSERT", "dynamodb": LIKE}, True),
        ({"eventName": "MODIFY", "dynamodb": LIKE}, False),
        ({"eventName": "REMOVE", "dynamodb": LIKE}, False),
        ({"eventName": "INSERT", "dynamodb": HEARTBEAT}, True),
        ({"eventName": "MODIFY", "dynamodb": HEARTBEAT}, True),
        ({"eventName": "MODIFY", "dynamodb": {"Keys": {"PK": {"S": "HEARTBEAT"}}}}, False),
        ({"eventName": "MODIFY", "dynamodb": {"Keys": {"PK": {"N": "7"}}}}, False),
        ({"eventName": "INSERT", "dynamodb": {"Keys": {"PK": {"N": "7"}}}}, True),
        ({"eventName": "INSERT", "dynamodb": {}}, True),
        ({"eventName": "INSERT"}, True),
    ],
)
def test_the_rollup_gets_new_children_heartbeats_and_every_malformed_insert(
    dev: Template, record: Json, does: bool
) -> None:
    """Through the local stack's filter, which the template's own patterns go into."""
    assert mappings(dev)["rollup", "CountsTable"].takes(record) is does


def test_a_mapping_waits_for_the_right_to_read(dev: Template) -> None:
    """CloudFormation makes the role first, then function, version and alias, and last the mapping."""
    for module in ("rollup", "bookkeeper"):
        function = dev.resources[dev.functions()[module]]
        role = dev.resources[function["Properties"]["Role"]["Fn::GetAtt"][0]]
        [policy] = role["Properties"]["Policies"]
        allowed = [listed(one["Action"]) for one in policy["PolicyDocument"]["Statement"]]
        assert any("dynamodb:GetRecords" in actions for actions in allowed)


def test_roles_have_no_policies_beside_them(prod: Template) -> None:
    """Each would be one of the 500 resources of a stack, of which a team may have others."""
    assert not prod.of_type("AWS::IAM::Policy")
