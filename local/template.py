"""Reads the synthesized CloudFormation template: what the local stack is made from, so that it is what is deployed."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from local import synth
from local.errors import LocalError

REGION = "eu-west-1"
ACCOUNT = "000000000000"
_PSEUDO = {
    "AWS::Region": REGION,
    "AWS::AccountId": ACCOUNT,
    "AWS::Partition": "aws",
    "AWS::URLSuffix": "amazonaws.com",
    "AWS::StackName": "Tally-local",
    "AWS::StackId": f"arn:aws:cloudformation:{REGION}:{ACCOUNT}:stack/Tally-local/local",
}
_TABLE_PROPERTIES = (
    "KeySchema",
    "AttributeDefinitions",
    "GlobalSecondaryIndexes",
    "LocalSecondaryIndexes",
    "ProvisionedThroughput",
)
Node = Any
"""A value in a template: JSON."""


@dataclass(frozen=True)
class Table:
    """A table. `name` has at least 11 characters: boto3's stream client wants that of the engine's shard ids."""

    name: str
    arguments: Mapping[str, Any]
    """What create_table takes, but for the name."""
    ttl_attribute: str | None


@dataclass(frozen=True)
class Function:
    """A Lambda function; `name` is its handler's module."""

    name: str
    handler: str
    runtime: str
    environment: Mapping[str, str]
    timeout_s: float
    memory_mb: int


@dataclass(frozen=True)
class Authorizer:
    """A JWT authorizer. The local issuer stands in for `issuer`."""

    issuer: str
    audience: tuple[str, ...]


@dataclass(frozen=True)
class Throttle:
    """How often a route may be called: requests a second in the steady state, and at once."""

    rate_per_s: float
    burst: int


@dataclass(frozen=True)
class Route:
    """A route of the HTTP API and the function behind it. `method` may be ANY."""

    method: str
    path: str
    function: str
    authorizer: Authorizer | None = None
    scopes: tuple[str, ...] = ()
    throttle: Throttle | None = None

    @property
    def key(self) -> str:
        """As API Gateway names it: `POST /videos/{id}/plays`."""
        return f"{self.method} {self.path}" if self.path != "$default" else self.path


@dataclass(frozen=True)
class Cors:
    """What API Gateway answers browsers of other origins."""

    origins: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()
    exposed: tuple[str, ...] = ()
    max_age_s: int | None = None
    credentials: bool = False


@dataclass(frozen=True)
class Schedule:
    """A function that runs every `every_s` seconds."""

    function: str
    every_s: int


@dataclass(frozen=True)
class Template:
    """The stack, read. Tables and functions by their local names."""

    tables: Mapping[str, Table]
    functions: Mapping[str, Function]
    routes: tuple[Route, ...]
    cors: Cors | None = None
    schedules: tuple[Schedule, ...] = ()
    access_log_format: str | None = None

    def table_of(self, variable: str) -> Table:
        """The table that functions find in an environment variable, such as TALLY_COUNTS_TABLE. Raises LocalError."""
        for function in self.functions.values():
            if function.environment.get(variable) in self.tables:
                return self.tables[function.environment[variable]]
        raise LocalError(f"the template has no function with a table in {variable}")


def synthesized() -> Template:
    """The stack as its sources are now. Synthesizes if they changed; safe when two call it at once."""
    return read(synth.assembly())


def read(assembly: Path) -> Template:
    """The stack in a folder that CDK wrote. Raises LocalError."""
    found = sorted(assembly.glob("*.template.json"))
    if len(found) != 1:
        raise LocalError(f"{assembly} holds {len(found)} templates: the local run reads one stack")
    return parse(json.loads(found[0].read_text()))


def parse(document: Mapping[str, Any]) -> Template:
    """The stack in a CloudFormation template. Raises LocalError, naming the resource that cannot be read."""
    return _Reader(document).template()


class _Reader:
    def __init__(self, document: Mapping[str, Any]) -> None:
        self.resources: Mapping[str, Any] = document.get("Resources", {})
        self.parameters: Mapping[str, Any] = document.get("Parameters", {})

    def template(self) -> Template:
        tables = [self._table(id_) for id_ in self._ids("AWS::DynamoDB::Table")]
        functions = [self._function(id_) for id_ in self._function_ids()]
        apis = self._ids("AWS::ApiGatewayV2::Api")
        if len(apis) > 1:
            raise LocalError(f"the template has {len(apis)} HTTP APIs: the local run serves one")
        stages = [self._properties(id_) for id_ in self._ids("AWS::ApiGatewayV2::Stage")]
        stage = stages[0] if stages else {}
        return Template(
            tables={table.name: table for table in tables},
            functions={function.name: function for function in functions},
            routes=tuple(self._route(id_, stage) for id_ in self._ids("AWS::ApiGatewayV2::Route")),
            cors=self._cors(self._properties(apis[0]).get("CorsConfiguration")) if apis else None,
            schedules=tuple(self._schedule(id_) for id_ in self._ids("AWS::Events::Rule")),
            access_log_format=stage.get("AccessLogSettings", {}).get("Format"),
        )

    def _ids(self, kind: str) -> list[str]:
        return [id_ for id_, resource in self.resources.items() if resource["Type"] == kind]

    def _function_ids(self) -> list[str]:
        """Our functions, not those that CDK adds for its own ends: they run on Node."""
        found = self._ids("AWS::Lambda::Function")
        return [id_ for id_ in found if str(self._properties(id_).get("Runtime", "")).startswith("python")]

    def _properties(self, id_: str) -> dict[str, Any]:
        return dict(self.resources[id_].get("Properties", {}))

    def _need(self, id_: str, name: str) -> Node:
        try:
            return self._properties(id_)[name]
        except KeyError:
            raise LocalError(f"the template's {id_} has no {name}") from None

    def _table(self, id_: str) -> Table:
        properties = self._properties(id_)
        self._need(id_, "KeySchema")
        arguments = {name: self.value(properties[name]) for name in _TABLE_PROPERTIES if name in properties}
        if "ProvisionedThroughput" not in arguments:
            arguments["BillingMode"] = "PAY_PER_REQUEST"
        stream = properties.get("StreamSpecification")
        if stream:
            arguments["StreamSpecification"] = {"StreamEnabled": True, "StreamViewType": stream["StreamViewType"]}
        ttl = properties.get("TimeToLiveSpecification", {})
        return Table(self._table_name(id_), arguments, ttl.get("AttributeName") if ttl.get("Enabled") else None)

    def _table_name(self, id_: str) -> str:
        """As CloudFormation makes it, of stack and logical id; always longer than 11 characters."""
        return str(self._properties(id_).get("TableName") or f"{_PSEUDO['AWS::StackName']}-{id_}")

    def _function(self, id_: str) -> Function:
        properties = self._properties(id_)
        variables = properties.get("Environment", {}).get("Variables", {})
        return Function(
            name=self._function_name(id_),
            handler=self._need(id_, "Handler"),
            runtime=self._need(id_, "Runtime"),
            environment={name: str(self.value(value)) for name, value in variables.items()},
            timeout_s=float(properties.get("Timeout", 3)),  # Lambda's defaults
            memory_mb=int(properties.get("MemorySize", 128)),
        )

    def _function_name(self, id_: str) -> str:
        return str(self._need(id_, "Handler")).rpartition(".")[0].replace("/", ".")

    def _route(self, id_: str, stage: Mapping[str, Any]) -> Route:
        properties = self._properties(id_)
        key = str(self._need(id_, "RouteKey"))
        method, _, path = key.rpartition(" ")
        kind = properties.get("AuthorizationType", "NONE")
        if kind not in {"NONE", "JWT"}:
            raise LocalError(f"the route {key} has authorization {kind}: the local run knows JWT only")
        throttle = {**stage.get("DefaultRouteSettings", {}), **stage.get("RouteSettings", {}).get(key, {})}
        rate, burst = throttle.get("ThrottlingRateLimit"), throttle.get("ThrottlingBurstLimit")
        return Route(
            method=method or "ANY",
            path=path,
            function=self._target(id_, key),
            authorizer=self._authorizer(self._reference(properties["AuthorizerId"])) if kind == "JWT" else None,
            scopes=tuple(properties.get("AuthorizationScopes", ())),
            throttle=None if rate is None or burst is None else Throttle(float(rate), int(burst)),
        )

    def _target(self, id_: str, key: str) -> str:
        """The function that a route's integration leads to, through an alias or not."""
        integration = str(self.value(self._need(id_, "Target"))).removeprefix("integrations/")
        if integration not in self.resources:
            raise LocalError(f"the route {key} leads to {integration}, which is not in the template")
        return self._function_behind(self._need(integration, "IntegrationUri"), f"the route {key}")

    def _function_behind(self, node: Node, what: str) -> str:
        target = self._reference(node)
        for _ in range(3):  # alias, version, function
            kind = self.resources[target]["Type"]
            if kind == "AWS::Lambda::Function":
                return self._function_name(target)
            if kind not in {"AWS::Lambda::Alias", "AWS::Lambda::Version"}:
                break
            target = self._reference(self._need(target, "FunctionName"))
        raise LocalError(f"{what} leads to {target}, which is no function that runs here")

    def _schedule(self, id_: str) -> Schedule:
        """A rule of EventBridge that runs a function every so often: `rate(1 minute)`, to one target."""
        expression = str(self._need(id_, "ScheduleExpression"))
        rate = re.fullmatch(r"rate\((\d+) (minute|hour|day)s?\)", expression)
        if rate is None:
            raise LocalError(f"the rule {id_} runs at {expression!r}, which the local run cannot read")
        every_s = int(rate[1]) * {"minute": 60, "hour": 3600, "day": 86400}[rate[2]]
        [target] = self._need(id_, "Targets")
        return Schedule(self._function_behind(target["Arn"], f"the rule {id_}"), every_s)

    def _authorizer(self, id_: str) -> Authorizer:
        jwt = self._need(id_, "JwtConfiguration")
        return Authorizer(str(self.value(jwt["Issuer"])), tuple(str(self.value(entry)) for entry in jwt["Audience"]))

    def _cors(self, cors: Mapping[str, Any] | None) -> Cors | None:
        if not cors:
            return None
        lists = {name: tuple(self.value(cors.get(f"Allow{name}", []))) for name in ("Origins", "Methods", "Headers")}
        return Cors(
            lists["Origins"],
            lists["Methods"],
            lists["Headers"],
            tuple(self.value(cors.get("ExposeHeaders", []))),
            cors.get("MaxAge"),
            bool(cors.get("AllowCredentials")),
        )

    def _reference(self, node: Node) -> str:
        """The logical id that a Ref or GetAtt names; of a Join, the last such: an ARN ends in what it is of."""
        match node:
            case {"Ref": str(id_)} if id_ in self.resources:
                return id_
            case {"Fn::GetAtt": [str(id_), _]} if id_ in self.resources:
                return id_
            case {"Fn::Join": [_, list(parts)]}:
                for part in reversed(parts):
                    if isinstance(part, dict) and not str(part.get("Ref", "")).startswith("AWS::"):
                        return self._reference(part)
        raise LocalError(f"the template refers to something that the local run cannot find: {json.dumps(node)[:200]}")

    def value(self, node: Node) -> Node:
        """A value with its references resolved to what they are here. Raises LocalError."""
        match node:
            case {"Ref": str(id_)} if len(node) == 1:
                return self._ref(id_)
            case {"Fn::GetAtt": [str(id_), str(attribute)]}:
                return self._attribute(id_, attribute)
            case {"Fn::Join": [str(separator), list(parts)]}:
                return separator.join(str(self.value(part)) for part in parts)
            case {"Fn::Sub": str(text)}:
                return re.sub(r"\$\{([^}!]+)\}", lambda found: self._substitute(found[1]), text)
            case {"Fn::Select": [index, parts]}:
                return self.value(self.value(parts)[int(index)])
            case {"Fn::Split": [str(separator), text]}:
                return str(self.value(text)).split(separator)
            case dict():
                unknown = next((name for name in node if name.startswith("Fn::") or name == "Condition"), None)
                if unknown:
                    raise LocalError(f"the template uses {unknown}, which the local run cannot read")
                return {name: self.value(entry) for name, entry in node.items()}
            case list():
                return [self.value(entry) for entry in node]
        return node

    def _substitute(self, name: str) -> str:
        id_, dot, attribute = name.partition(".")
        return str(self._attribute(id_, attribute) if dot else self._ref(id_))

    def _ref(self, id_: str) -> Node:
        if id_ in _PSEUDO:
            return _PSEUDO[id_]
        if id_ in self.parameters:
            return self.parameters[id_].get("Default", "")
        if id_ not in self.resources:
            raise LocalError(f"the template refers to {id_}, which is not in it")
        match self.resources[id_]["Type"]:
            case "AWS::DynamoDB::Table":
                return self._table_name(id_)
            case "AWS::Lambda::Function":
                return self._function_name(id_)
        return id_  # something that runs only on AWS: its logical id stands in for its name

    def _attribute(self, id_: str, attribute: str) -> Node:
        if id_ not in self.resources:
            raise LocalError(f"the template refers to {id_}, which is not in it")
        match self.resources[id_]["Type"], attribute:
            case "AWS::DynamoDB::Table", "Arn":
                return f"arn:aws:dynamodb:{REGION}:{ACCOUNT}:table/{self._table_name(id_)}"
            case "AWS::Lambda::Function", "Arn":
                return f"arn:aws:lambda:{REGION}:{ACCOUNT}:function:{self._function_name(id_)}"
        return f"{id_}.{attribute}"
