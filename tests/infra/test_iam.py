"""IAM, decided by a simulator: what functions and the command need, against the policies in the template.

What is declared as a need is allowed; the same call with another key, without a key, on another table, and a scan are
denied. tests/integration/test_needs.py holds that the code calls nothing that is not declared.
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
OF_OTHERS = "SOMEBODY#9f3a"
SCANNED = {(OPERATOR, Table.COUNTS), (OPERATOR, Table.RECEIPTS)}


@dataclass(frozen=True)
class Request:
    """One request of a function or of the operator. `keys`: the partition keys; None if it names none."""

    policy: str
    action: str
    table: str
    keys: frozenset[str] | None

    @property
    def document(self) -> Json:
        """As decide.mjs takes it."""
        keys = None if self.keys is None else sorted(self.keys)
        return {"policy": self.policy, "action": f"dynamodb:{self.action}", "resource": arn(self.table), "keys": keys}


def arn(table: str) -> str:
    return f"arn:aws:dynamodb:eu-west-1:123456789012:table/{table}"


def like(prefix: str) -> str:
    """A key that begins with a prefix; a prefix that does not end in the separator is a whole key."""
    return f"{prefix}9f3a" if prefix.endswith("#") else prefix


def logical(table: Table) -> str:
    """The logical id of a table, which stands for its name."""
    return f"{table.value.capitalize()}Table"


def policies(template: Template) -> dict[str, Json]:
    """What each role, and the operators' policy, says of tables."""
    [operator] = [
        found["Properties"]["PolicyDocument"]["Statement"]
        for name, found in template.of_type("AWS::IAM::ManagedPolicy").items()
        if name.startswith("Operator")
    ]
    by_name = {module: list(template.statements(name)) for module, name in template.functions().items()}
    return {name: document(statements) for name, statements in (by_name | {OPERATOR: operator}).items()}


def document(statements: list[Json]) -> Json:
    """A policy of the statements on DynamoDB, with ARNs for references."""

    def resolved(node: Json) -> Any:
        match node:
            case {"Fn::GetAtt": [table, "Arn"]}:
                return arn(table)
            case {"Fn::GetAtt": [table, "StreamArn"]}:
                return f"{arn(table)}/stream/2026"
        return node

    on_tables = [one for one in statements if all(name.startswith("dynamodb:") for name in as_list(one["Action"]))]
    return {"Version": "2012-10-17", "Statement": json.loads(json.dumps(on_tables), object_hook=resolved)}


def variants(request: Request, prefixes: dict[Table, set[str]], needs: Needs) -> Iterator[Request]:
    """The same call, as nothing may make it."""
    table = next(one for one in Table if logical(one) == request.table)
    assert request.keys is not None

    def on(keys: frozenset[str] | None, name: str = request.table) -> Request:
        return Request(request.policy, request.action, name, keys)

    yield on(frozenset({OF_OTHERS}))
    yield on(request.keys | {OF_OTHERS})
    yield on(None)
    yield on(request.keys, "SomebodysTable")
    granted = [need.prefix for need in needs if (need.action, need.table) == (request.action, table)]
    longer = {f"{prefix}#longer" for prefix in granted if not prefix.endswith("#")}
    for prefix in prefixes[table] | longer:
        if not any(prefix == one or (one.endswith("#") and prefix.startswith(one)) for one in granted):
            yield on(frozenset({like(prefix)}))
    for other in set(Table) - {table}:
        if not any((need.action, need.table) == (request.action, other) for need in needs):
            yield on(request.keys, logical(other))
    for action in ("Scan", "PartiQLSelect", "DeleteTable", "UpdateTable"):
        if action != "Scan" or (request.policy, table) not in SCANNED:
            yield Request(request.policy, action, request.table, None)


def decide(rules: dict[str, Json], requests: list[Request]) -> list[str]:
    """The decision of each request, in one process of Node."""
    given = {"policies": rules, "requests": [request.document for request in requests]}
    run = subprocess.run(
        ["node", str(ROOT / "tests" / "infra" / "decide.mjs")], input=json.dumps(given), capture_output=True, text=True,
        timeout=PATIENCE_S,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    found: list[str] = json.loads(run.stdout)
    return found


def test_what_is_needed_is_allowed_and_everything_near_it_is_denied(dev: Template) -> None:
    needs = DECLARED.needs | {OPERATOR: operator_needs(DECLARED.counters)}
    prefixes: dict[Table, set[str]] = {table: set() for table in Table}
    for need in frozenset().union(*needs.values()):
        prefixes[need.table].add(need.prefix)
    needed = {
        Request(policy, need.action, logical(need.table), frozenset({like(need.prefix)}))
        for policy, found in needs.items()
        for need in found
    }
    foreign = {variant for request in needed for variant in variants(request, prefixes, needs[request.policy])}
    needed |= {Request(policy, "Scan", logical(table), None) for policy, table in SCANNED}
    asked = [*needed, *foreign]
    decisions = dict(zip(asked, decide(policies(dev), asked), strict=True))
    assert [request for request in needed if decisions[request] != "Allowed"] == []
    assert [request for request in foreign if decisions[request] != "ImplicitlyDenied"] == []
    assert needed
    assert len(foreign) > 5 * len(needed)


def test_every_action_with_a_condition_on_keys_supports_it(dev: Template) -> None:
    """IAM ignores no condition: with a key that an action does not know, the statement never allows it."""
    conditioned = {
        action
        for rule in policies(dev).values()
        for statement in rule["Statement"]
        if "dynamodb:LeadingKeys" in json.dumps(statement.get("Condition", {}))
        for action in as_list(statement["Action"])
    }
    assert len(conditioned) >= 7
    for action in conditioned:
        service, _, name = action.partition(":")
        described = get_action_data(service, name)[service]
        assert all("dynamodb:LeadingKeys" in one["condition_keys"] for one in described), action
