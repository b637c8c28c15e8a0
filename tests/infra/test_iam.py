"""IAM, decided by a simulator: the calls that functions and the command make, against the policies in the template.

The calls are those that tests/integration record: action, table and real keys. What was recorded is allowed; the same
call with another key, without a key, on another table, and a scan are denied.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import permissions
import pytest
from policy_sentry.querying.actions import get_action_data
from tally.operation import Table

import counters
import operations
from dev.base.engine import Engine
from tally.dynamo.client import Store, dynamodb_client
from tests.conftest import fresh_tables
from tests.infra.conftest import ROOT
from tests.infra.template import Template, listed
from tests.integration import test_consumers as of_consumers
from tests.integration import test_needs as of_functions
from tests.integration.conftest import invoker
from tests.patience import PATIENCE_S

Json = dict[str, Any]
OPERATOR = "operator"
ALLOWED_MIN, DENIED_MIN = 350, 1_500
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

    on_tables = [one for one in statements if all(name.startswith("dynamodb:") for name in listed(one["Action"]))]
    return {"Version": "2012-10-17", "Statement": json.loads(json.dumps(on_tables), object_hook=resolved)}


@pytest.fixture
def recorded(
    engine: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> dict[str, set[tuple[str, Table, frozenset[str]]]]:
    """By policy: what the tests of needs record, run once more with tables of their own."""
    found: dict[str, set[tuple[str, Table, frozenset[str]]]] = {}

    def record(policy: str, test: Any, *subject: Any, **fixtures: Any) -> None:
        client = dynamodb_client(endpoint_url=engine.endpoint)
        store = Store(client, fresh_tables(client))
        of_functions.Recorder.made.clear()
        with pytest.MonkeyPatch.context() as patch:
            given = {"store": store, "invoke": invoker(store), "consume": of_consumers.consuming(store)}
            given |= {"engine": engine, "monkeypatch": patch, "capsys": capsys, "tmp_path": tmp_path}
            wanted = test.__code__.co_varnames[: test.__code__.co_argcount]
            test(*subject, **{name: given[name] for name in wanted if name in given})
        client.close()
        for recorder in of_functions.Recorder.made:
            found.setdefault(policy, set()).update(recorder.calls)

    for operation in operations.OPERATIONS:
        record(operation.function, of_functions.test_an_operation_does_what_it_declares_and_no_more, operation)
    for consumer in operations.CONSUMERS:
        record(consumer.function, of_consumers.test_a_consumer_does_what_it_declares_and_no_more, consumer)
    record("sweep", of_functions.test_the_sweep_does_what_its_schedule_declares_and_no_more)
    record(OPERATOR, of_functions.test_the_command_does_what_its_policy_allows)
    return found


def variants(request: Request, prefixes: dict[Table, set[str]], needs: permissions.Needs) -> Iterator[Request]:
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
    for prefix in prefixes[table]:
        if not any(prefix == one or (one.endswith("#") and prefix.startswith(one)) for one in granted):
            yield on(frozenset({f"{prefix}9f3a" if prefix.endswith("#") else prefix}))
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


def test_what_is_needed_is_allowed_and_everything_near_it_is_denied(
    dev: Template, recorded: dict[str, set[tuple[str, Table, frozenset[str]]]]
) -> None:
    needs = permissions.of_functions(counters.COUNTERS) | {OPERATOR: permissions.of_operator(counters.COUNTERS)}
    prefixes: dict[Table, set[str]] = {table: set() for table in Table}
    for need in frozenset().union(*needs.values()):
        prefixes[need.table].add(need.prefix)
    needed = {
        Request(policy, action, logical(table), keys or None)
        for policy, calls in recorded.items()
        for action, table, keys in calls
    }
    foreign = {
        variant for request in needed if request.keys for variant in variants(request, prefixes, needs[request.policy])
    }
    asked = [*needed, *foreign]
    decisions = dict(zip(asked, decide(policies(dev), asked), strict=True))
    assert [request for request in needed if decisions[request] != "Allowed"] == []
    assert [request for request in foreign if decisions[request] != "ImplicitlyDenied"] == []
    assert {name for name, calls in recorded.items() if calls} == {name for name, wanted in needs.items() if wanted}
    print(f"decided {len(asked)}: {len(needed)} allowed, {len(foreign)} denied")
    assert len(needed) >= ALLOWED_MIN
    assert len(foreign) >= DENIED_MIN


def test_every_action_with_a_condition_on_keys_supports_it(dev: Template) -> None:
    """IAM ignores no condition: with a key that an action does not know, the statement never allows it."""
    conditioned = {
        action
        for rule in policies(dev).values()
        for statement in rule["Statement"]
        if "dynamodb:LeadingKeys" in json.dumps(statement.get("Condition", {}))
        for action in listed(statement["Action"])
    }
    assert len(conditioned) >= 7
    for action in conditioned:
        service, _, name = action.partition(":")
        described = get_action_data(service, name)[service]
        assert all("dynamodb:LeadingKeys" in one["condition_keys"] for one in described), action
