"""The streams in the stack: how they reach their consumers."""

from __future__ import annotations

import json

import pytest

from tests.infra.mappings import mappings, properties
from tests.infra.template import Json, Template, as_list

FILTERS = {  # written out a second time: the consumers depend on them
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


def test_filters_let_heartbeats_through_and_to_the_rollup_only_what_waits_for_it(dev: Template) -> None:
    """test_described.py has who reads which stream, and how."""
    found = {which: one.get("FilterCriteria", {"Filters": []})["Filters"] for which, one in properties(dev).items()}
    assert {which: [json.loads(one["Pattern"]) for one in filters] for which, filters in found.items()} == FILTERS


WAITS: Json = {"NewImage": {"rollup": {"BOOL": True}}}
LIKE: Json = {"Keys": {"PK": {"S": "POST#a"}, "SK": {"S": "LIKE#USER#b"}}, "NewImage": {"likedAt": {"N": "1"}}}
HEARTBEAT: Json = {"Keys": {"PK": {"S": "HEARTBEAT#7"}, "SK": {"S": "HEARTBEAT"}}}
RECEIPT: Json = {"Keys": {"id": {"S": "tally#7"}}, "NewImage": {"amount": {"N": "1"}}}
RECEIPT_HEARTBEAT: Json = {"Keys": {"id": {"S": "heartbeat#7"}}, "NewImage": {"at": {"N": "1"}}}


@pytest.mark.parametrize(
    ("table", "change", "kinds"),
    [
        ("Counts", LIKE, ""),
        ("Counts", LIKE | WAITS, "INSERT"),
        ("Counts", {"OldImage": WAITS["NewImage"]}, ""),
        ("Counts", HEARTBEAT, "INSERT MODIFY REMOVE"),
        ("Counts", {"Keys": {"PK": {"S": "HEARTBEAT"}}}, ""),
        ("Counts", {"Keys": {"PK": {"N": "7"}}}, ""),
        ("Counts", {"Keys": {"PK": {"N": "7"}}} | WAITS, "INSERT"),
        ("Receipts", RECEIPT, ""),
        ("Receipts", RECEIPT | WAITS, "INSERT MODIFY"),
        ("Receipts", WAITS, "INSERT MODIFY"),
        ("Receipts", RECEIPT_HEARTBEAT, "INSERT MODIFY REMOVE"),
        *(
            ("Receipts", {"NewImage": {"rollup": other}}, "")
            for other in ({"BOOL": False}, {"S": "true"}, {"N": "1"}, {"NULL": True}, True)
        ),
    ],
)
def test_the_rollup_gets_what_waits_however_malformed_and_heartbeats(
    dev: Template, table: str, change: Json, kinds: str
) -> None:
    """Through the local stack's filter, which the template's own patterns go into."""
    mapping = mappings(dev)["rollup", f"{table}Table"]
    every = ("INSERT", "MODIFY", "REMOVE")
    assert " ".join(kind for kind in every if mapping.takes({"eventName": kind, "dynamodb": change})) == kinds


def test_a_mapping_waits_for_the_right_to_read(dev: Template) -> None:
    """CloudFormation makes the role first, then function, version and alias, and last the mapping."""
    for module in ("rollup", "bookkeeper"):
        function = dev.resources[dev.functions()[module]]
        role = dev.resources[function["Properties"]["Role"]["Fn::GetAtt"][0]]
        [policy] = role["Properties"]["Policies"]
        allowed = [as_list(one["Action"]) for one in policy["PolicyDocument"]["Statement"]]
        assert any("dynamodb:GetRecords" in actions for actions in allowed)


def test_roles_have_no_policies_beside_them(prod: Template) -> None:
    """Each would be one of the 500 resources of a stack, of which a team may have others."""
    assert not prod.of_type("AWS::IAM::Policy")
