"""A synthesized template, and the questions that tests ask about it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Json = dict[str, Any]


@dataclass(frozen=True)
class Grant:
    """One action on the items of one table whose partition key is like `pattern`."""

    action: str
    table: str
    pattern: str


class Template:
    """The template in a folder that CDK wrote."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "Tally.template.json"
        self.text = self.path.read_text()
        self.body: Json = json.loads(self.text)
        self.resources: dict[str, Json] = self.body["Resources"]
        self.outputs: Json = self.body["Outputs"]

    def of_type(self, type_: str) -> dict[str, Json]:
        """The resources of a type, by their logical ids."""
        return {name: found for name, found in self.resources.items() if found["Type"] == type_}

    def only(self, type_: str) -> Json:
        """The properties of the one resource of a type."""
        [found] = self.of_type(type_).values()
        properties: Json = found["Properties"]
        return properties

    def only_name(self, type_: str) -> str:
        """The logical id of the one resource of a type."""
        [name] = self.of_type(type_)
        return name

    def dashboard(self) -> Json:
        """The widgets of the one dashboard. `{}` replaces references."""
        body = self.only("AWS::CloudWatch::Dashboard")["DashboardBody"]
        parts = body["Fn::Join"][1] if isinstance(body, dict) else [body]
        found: Json = json.loads("".join(part if isinstance(part, str) else "{}" for part in parts))
        return found

    def functions(self) -> dict[str, str]:
        """The logical ids of the functions, by their handlers' modules."""
        return {
            found["Properties"]["Handler"].removeprefix("functions.").removesuffix(".handler"): name
            for name, found in self.of_type("AWS::Lambda::Function").items()
        }

    def alias_of(self, function: str) -> str:
        """The logical id of the one alias of a function."""
        [alias] = [
            name
            for name, found in self.of_type("AWS::Lambda::Alias").items()
            if found["Properties"]["FunctionName"] == {"Ref": function}
        ]
        return alias

    def routes(self) -> dict[str, Json]:
        """The properties of the routes, by their keys."""
        found = [route["Properties"] for route in self.of_type("AWS::ApiGatewayV2::Route").values()]
        return {route["RouteKey"]: route for route in found}

    def statements(self, function: str) -> Iterator[Json]:
        """Every statement of a function's role, in any of its policies."""
        role = self.resources[function]["Properties"]["Role"]["Fn::GetAtt"][0]
        properties = self.resources[role]["Properties"]
        assert not properties.get("ManagedPolicyArns")
        for policy in properties.get("Policies", []):
            yield from policy["PolicyDocument"]["Statement"]
        for type_ in ("AWS::IAM::Policy", "AWS::IAM::ManagedPolicy", "AWS::IAM::RolePolicy"):
            for policy in self.of_type(type_).values():
                attached = policy["Properties"].get("Roles") or [policy["Properties"].get("RoleName")]
                if {"Ref": role} in attached:
                    yield from policy["Properties"]["PolicyDocument"]["Statement"]


def listed(value: Any) -> list[Any]:
    """A value that CloudFormation writes alone or in a list, as a list."""
    return value if isinstance(value, list) else [value]
