"""A synthesized template, and the parts of it that tests compare."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Json = dict[str, Any]
_QUERY = re.compile(
    r"""SELECT MAX\((?P<metric>\w+)\) FROM SCHEMA\("(?P<namespace>\w+)", (?P<by>\w+), service\)"""
    r""" WHERE service = '(?P<service>[\w-]+)' GROUP BY (?P=by) ORDER BY MAX\(\) DESC"""
)
EACH = "each"
"""The value of a dimension in `queried_metrics`, because a query reads the metrics of all values of the dimension."""


def queried_metrics(alarm: Json) -> list[tuple[str, str, dict[str, str]]]:
    """Returns (namespace, metric, dimensions) of the metrics in an alarm's query; empty if the alarm has no query."""
    queries = [_QUERY.fullmatch(entry.get("Expression", "")) for entry in alarm.get("Metrics", ())]
    return [
        (query["namespace"], query["metric"], {"service": query["service"], query["by"]: EACH})
        for query in queries
        if query
    ]


class Template:
    """The template of one stack, in a folder that CDK wrote. `body`: replaces the content of the template's file.

    `id`: the stack's id in the app, with which the file's name begins. Methods call a resource by its logical id.
    """

    def __init__(self, folder: Path, body: Json | None = None, id: str = "Tally") -> None:
        self.id = id
        self.folder = folder
        self.path = folder / f"{id}.template.json"
        self.text = self.path.read_text()
        self.body: Json = body or json.loads(self.text)
        self.resources: dict[str, Json] = self.body["Resources"]
        self.outputs: Json = self.body["Outputs"]

    @property
    def stack(self) -> str:
        """The name of the stack."""
        manifest = json.loads((self.folder / "manifest.json").read_text())
        return str(manifest["artifacts"][self.id]["properties"]["stackName"])

    def with_changes(self, change: Callable[[dict[str, Json]], object]) -> Template:
        """Returns a copy, after `change` has changed its resources."""
        body = copy.deepcopy(self.body)
        change(body["Resources"])
        return Template(self.folder, body, self.id)

    def of_type(self, type_: str) -> dict[str, Json]:
        """Returns the resources of a type, by their logical ids."""
        return {name: resource for name, resource in self.resources.items() if resource["Type"] == type_}

    def only(self, type_: str) -> Json:
        """Returns the properties of the only resource of a type."""
        [resource] = self.of_type(type_).values()
        properties: Json = resource["Properties"]
        return properties

    def only_name(self, type_: str) -> str:
        """Returns the logical id of the only resource of a type."""
        [name] = self.of_type(type_)
        return name

    def dashboard(self) -> Json:
        """Returns the body of the only dashboard, with references as `as_text` spells them."""
        body: Json = json.loads(as_text(self.only("AWS::CloudWatch::Dashboard")["DashboardBody"]))
        return body

    def widgets(self) -> list[Json]:
        """Returns the widgets of the dashboard; empty if the stack has no dashboard."""
        return self.dashboard()["widgets"] if self.of_type("AWS::CloudWatch::Dashboard") else []

    def functions(self) -> dict[str, str]:
        """Returns the logical ids of Tally's functions, by module: `reads` of the handler `handlers.reads`.

        A stack may have functions that are not Tally's.
        """
        functions = self.of_type("AWS::Lambda::Function").items()
        handlers = {function["Properties"]["Handler"]: name for name, function in functions}
        prefix = "handlers."
        return {handler.removeprefix(prefix): name for handler, name in handlers.items() if handler.startswith(prefix)}

    def alias_of(self, function: str) -> str:
        """Returns the logical id of the only alias of a function."""
        aliases = self.of_type("AWS::Lambda::Alias").items()
        [name] = [name for name, alias in aliases if alias["Properties"]["FunctionName"] == {"Ref": function}]
        return name

    def routes(self) -> dict[str, Json]:
        """Returns the properties of the routes, by their keys."""
        routes = [route["Properties"] for route in self.of_type("AWS::ApiGatewayV2::Route").values()]
        return {route["RouteKey"]: route for route in routes}

    def statements(self, function: str) -> Iterator[Json]:
        """Yields every statement of a function's role, in any of its policies."""
        role = self.resources[function]["Properties"]["Role"]["Fn::GetAtt"][0]
        properties = self.resources[role]["Properties"]
        assert not properties.get("ManagedPolicyArns"), "a template does not show the statements of AWS's own policies"
        for policy in properties.get("Policies", []):
            yield from policy["PolicyDocument"]["Statement"]
        for type_ in ("AWS::IAM::Policy", "AWS::IAM::ManagedPolicy", "AWS::IAM::RolePolicy"):
            for policy in self.of_type(type_).values():
                attached = policy["Properties"].get("Roles") or [policy["Properties"].get("RoleName")]
                if {"Ref": role} in attached:
                    yield from policy["Properties"]["PolicyDocument"]["Statement"]


def as_text(value: Any) -> str:
    """Returns a value as text: `${CountsTable}` for a `Ref`, `${Function.Arn}` for a `Fn::GetAtt`."""
    match value:
        case str():
            return value
        case {"Ref": name}:
            return f"${{{name}}}"
        case {"Fn::GetAtt": [name, attribute]}:
            return f"${{{name}.{attribute}}}"
        case {"Fn::Join": [separator, parts]}:
            return str(separator).join(as_text(part) for part in parts)
    raise AssertionError(f"neither text nor a reference: {value}")


def as_list(value: Any) -> list[Any]:
    """Returns a list of a value that CloudFormation writes alone or in a list."""
    return value if isinstance(value, list) else [value]
