"""A simulator of IAM compares the needs of functions and of the command with the policies in the template.

A declared need is allowed. The same request with another key, without a key or on another table is denied. Only
operators may scan. tests/integration/test_needs.py checks that the code makes only requests that are declared.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from policy_sentry.querying.actions import get_action_data

from tally.api.needs import Needs, Table
from tally.cdk.operator import operator_needs
from tests.infra.conftest import DECLARED, ROOT
from tests.infra.template import Template, as_list
from tests.patience import PATIENCE_S

Json = dict[str, Any]
OPERATOR = "operator"
FOREIGN_KEY = "SOMEBODY#9f3a"  # a partition key that no declared need has
ALLOWED_SCANS = {(OPERATOR, Table.COUNTS), (OPERATOR, Table.RECEIPTS)}


@dataclass(frozen=True)
class Request:
    """One request. `policy`: its function, or OPERATOR. `table`: a logical id. `keys`: partition keys; None: no key."""

    policy: str
    action: str
    table: str
    keys: frozenset[str] | None

    @property
    def document(self) -> Json:
        """The request as decide.mjs reads it."""
        keys = None if self.keys is None else sorted(self.keys)
        return {"policy": self.policy, "action": f"dynamodb:{self.action}", "resource": arn(self.table), "keys": keys}


def arn(table: str) -> str:
    return f"arn:aws:dynamodb:eu-west-1:123456789012:table/{table}"


def key_with_prefix(prefix: str) -> str:
    """Returns a key with this prefix. A prefix that does not end with the separator is a whole key."""
    return f"{prefix}9f3a" if prefix.endswith("#") else prefix


def logical_id(table: Table) -> str:
    """Returns the logical id of a table, which the requests use as its name."""
    return f"{table.value.capitalize()}Table"


def policies(template: Template) -> dict[str, Json]:
    """Returns the statements on tables of each function's role, by module, and of the operators' policy."""
    [operator] = [
        resource["Properties"]["PolicyDocument"]["Statement"]
        for name, resource in template.of_type("AWS::IAM::ManagedPolicy").items()
        if name.startswith("Operator")
    ]
    by_name = {module: list(template.statements(name)) for module, name in template.functions().items()}
    return {name: policy_on_tables(statements) for name, statements in (by_name | {OPERATOR: operator}).items()}


def policy_on_tables(statements: list[Json]) -> Json:
    """Returns a policy with the statements on DynamoDB. ARNs replace references."""

    def resolve(node: Json) -> Any:
        match node:
            case {"Fn::GetAtt": [table, "Arn"]}:
                return arn(table)
            case {"Fn::GetAtt": [table, "StreamArn"]}:
                return f"{arn(table)}/stream/2026"
        return node

    on_tables = [
        statement for statement in statements
        if all(name.startswith("dynamodb:") for name in as_list(statement["Action"]))
    ]  # fmt: skip
    return {"Version": "2012-10-17", "Statement": json.loads(json.dumps(on_tables), object_hook=resolve)}


def forbidden_variants(request: Request, prefixes: dict[Table, set[str]], needs: Needs) -> Iterator[Request]:
    """Yields variants of a declared request that its policy must deny.

    `prefixes`: by table, the prefixes of the keys that any policy allows. `needs`: what this policy must allow.
    """
    table = next(table for table in Table if logical_id(table) == request.table)
    assert request.keys is not None

    def variant(keys: frozenset[str] | None, name: str = request.table) -> Request:
        return Request(request.policy, request.action, name, keys)

    yield variant(frozenset({FOREIGN_KEY}))
    yield variant(request.keys | {FOREIGN_KEY})
    yield variant(None)
    yield variant(request.keys, "SomebodysTable")
    allowed = [need.prefix for need in needs if (need.action, need.table) == (request.action, table)]
    longer_keys = {f"{prefix}#longer" for prefix in allowed if not prefix.endswith("#")}  # that begin with a whole key
    for prefix in prefixes[table] | longer_keys:
        if not any(prefix == start or (start.endswith("#") and prefix.startswith(start)) for start in allowed):
            yield variant(frozenset({key_with_prefix(prefix)}))
    for other in set(Table) - {table}:
        if not any((need.action, need.table) == (request.action, other) for need in needs):
            yield variant(request.keys, logical_id(other))
    for action in ("Scan", "PartiQLSelect", "DeleteTable", "UpdateTable"):
        if action != "Scan" or (request.policy, table) not in ALLOWED_SCANS:
            yield Request(request.policy, action, request.table, None)


def decide(policies_by_name: dict[str, Json], requests: list[Request]) -> list[str]:
    """Returns the decision on each request, from one process of Node."""
    document = {"policies": policies_by_name, "requests": [request.document for request in requests]}
    run = subprocess.run(
        ["node", str(ROOT / "tests/infra/decide.mjs")], input=json.dumps(document), capture_output=True, text=True,
        timeout=PATIENCE_S,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    decisions: list[str] = json.loads(run.stdout)
    return decisions


def test_each_declared_request_is_allowed_and_each_forbidden_variant_is_denied(dev: Template) -> None:
    needs = DECLARED.needs | {OPERATOR: operator_needs(DECLARED.counters)}
    prefixes: dict[Table, set[str]] = {table: set() for table in Table}
    for need in frozenset().union(*needs.values()):
        prefixes[need.table].add(need.prefix)
    needed = {
        Request(policy, need.action, logical_id(need.table), frozenset({key_with_prefix(need.prefix)}))
        for policy, declared in needs.items()
        for need in declared
    }
    forbidden = {
        variant for request in needed for variant in forbidden_variants(request, prefixes, needs[request.policy])
    }
    needed |= {Request(policy, "Scan", logical_id(table), None) for policy, table in ALLOWED_SCANS}
    requests = [*needed, *forbidden]
    decisions = dict(zip(requests, decide(policies(dev), requests), strict=True))
    assert [request for request in needed if decisions[request] != "Allowed"] == []
    assert [request for request in forbidden if decisions[request] != "ImplicitlyDenied"] == []
    assert needed
    assert len(forbidden) > 5 * len(needed)


def test_every_action_with_a_condition_on_keys_supports_the_condition(dev: Template) -> None:
    """If an action does not support dynamodb:LeadingKeys, IAM never allows the action under this condition."""
    actions = {
        action
        for rule in policies(dev).values()
        for statement in rule["Statement"]
        if "dynamodb:LeadingKeys" in json.dumps(statement.get("Condition", {}))
        for action in as_list(statement["Action"])
    }
    assert {"dynamodb:GetItem", "dynamodb:Query", "dynamodb:PutItem", "dynamodb:UpdateItem"} <= actions
    for action in actions:
        service, _, name = action.partition(":")
        variants = get_action_data(service, name)[service]
        assert all("dynamodb:LeadingKeys" in variant["condition_keys"] for variant in variants), action
