"""Reads the synthesized CloudFormation template, so that the local stack is the one that `cdk deploy` makes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ..base.errors import LocalError
from . import synth
from .cloudformation import Document, stream_stand_in
from .mappings import StreamMapping, read_mapping


@dataclass(frozen=True)
class Table:
    """A table. `name` has at least 11 characters: the engine's shard ids contain it, and boto3 checks their length."""

    name: str
    arguments: Mapping[str, Any]
    """The arguments of create_table, except the name."""
    ttl_attribute: str | None


@dataclass(frozen=True)
class Function:
    """A Lambda function; `name` is its handler's."""

    name: str
    handler: str
    runtime: str
    environment: Mapping[str, str]
    timeout_s: float
    memory_mb: int


@dataclass(frozen=True)
class Authorizer:
    """A JWT authorizer. The local issuer replaces `issuer`."""

    issuer: str
    audience: tuple[str, ...]


@dataclass(frozen=True)
class Throttle:
    """The limits of a route: requests a second, and requests at once."""

    rate_per_s: float
    burst: int


@dataclass(frozen=True)
class Route:
    """A route of the HTTP API and the function behind it."""

    method: str
    path: str
    function: str
    authorizer: Authorizer | None = None
    scopes: tuple[str, ...] = ()
    throttle: Throttle | None = None

    @property
    def key(self) -> str:
        """API Gateway's name of it: `POST /videos/{id}/plays`."""
        return f"{self.method} {self.path}"


@dataclass(frozen=True)
class Cors:
    """API Gateway's settings for browsers of other origins."""

    origins: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()
    exposed: tuple[str, ...] = ()
    max_age_s: int | None = None


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
    mappings: tuple[StreamMapping, ...] = ()
    buckets: tuple[str, ...] = ()
    access_log_format: str | None = None
    outputs: Mapping[str, str] = field(default_factory=dict)
    """Those that the template spells out."""
    warnings: tuple[str, ...] = ()
    """What is odd about the counters, though the stack is right."""

    def with_streams(self, arns: Mapping[str, str]) -> Template:
        """The same stack, whose functions know their tables' streams. `arns`: the engine's, by table."""
        made = {stream_stand_in(table): arn for table, arn in arns.items()}

        def knowing(function: Function) -> Function:
            variables = {name: made.get(value, value) for name, value in function.environment.items()}
            return replace(function, environment=variables)

        return replace(self, functions={name: knowing(function) for name, function in self.functions.items()})


def synthesized(app: Path, options: Mapping[str, str] = MappingProxyType({})) -> Template:
    """The stack of the app in the folder `app`, synthesized if a source has changed. Raises LocalError.

    `options`: the context of a deployment, as `-c` gives it.
    """
    return read(synth.assembly(app, options))


def read(assembly: Path) -> Template:
    """The stack in a folder of CDK's output. Raises LocalError."""
    found = sorted(assembly.glob("*.template.json"))
    if len(found) != 1:
        raise LocalError(f"{assembly} holds {len(found)} templates: the local run reads one stack")
    return replace(parse(json.loads(found[0].read_text())), warnings=tuple(_warnings(assembly)))


def _warnings(assembly: Path) -> Iterator[str]:
    """What the construct says of the counters (stacks/tally_stack.py), as CDK writes it beside the template."""
    for file in assembly.glob("*.metadata.json"):
        for entries in json.loads(file.read_text()).values():
            for entry in entries:
                line, mark, _ = str(entry.get("data")).partition(" [ack: tally:")
                if mark:
                    yield line


def parse(document: Mapping[str, Any]) -> Template:
    """The stack in a CloudFormation template. Raises LocalError, which names the unreadable resource."""
    return _Reader(document).template()


class _Reader(Document):
    def template(self) -> Template:
        tables = [self._table(id_) for id_ in self.ids("AWS::DynamoDB::Table")]
        functions = [self._function(id_) for id_ in self._function_ids()]
        [api] = [self.properties(id_) for id_ in self.ids("AWS::ApiGatewayV2::Api")] or [{}]
        [stage] = [self.properties(id_) for id_ in self.ids("AWS::ApiGatewayV2::Stage")] or [{}]
        return Template(
            tables={table.name: table for table in tables},
            functions={function.name: function for function in functions},
            routes=tuple(self._route(id_, stage) for id_ in self.ids("AWS::ApiGatewayV2::Route")),
            cors=self._cors(api.get("CorsConfiguration")),
            schedules=tuple(
                self._schedule(id_)
                for id_ in self.ids("AWS::Events::Rule")
                if "EventPattern" not in self.properties(id_)
            ),
            mappings=tuple(self._mapping(id_) for id_ in self.ids("AWS::Lambda::EventSourceMapping")),
            buckets=tuple(self.bucket_name(id_) for id_ in self.ids("AWS::S3::Bucket")),
            access_log_format=stage.get("AccessLogSettings", {}).get("Format"),
            outputs={name: one["Value"] for name, one in self.outputs.items() if isinstance(one["Value"], str)},
        )

    def _function_ids(self) -> list[str]:
        """The app's functions. CDK adds some of its own, which run on Node."""
        found = self.ids("AWS::Lambda::Function")
        return [id_ for id_ in found if str(self.properties(id_).get("Runtime", "")).startswith("python")]

    def _table(self, id_: str) -> Table:
        properties = self.properties(id_)
        arguments = {name: self.need(id_, name) for name in ("KeySchema", "AttributeDefinitions")}
        arguments["BillingMode"] = "PAY_PER_REQUEST"
        stream = properties.get("StreamSpecification")
        if stream:
            arguments["StreamSpecification"] = {"StreamEnabled": True, "StreamViewType": stream["StreamViewType"]}
        ttl = properties.get("TimeToLiveSpecification", {})
        return Table(self.table_name(id_), arguments, ttl.get("AttributeName") if ttl.get("Enabled") else None)

    def _function(self, id_: str) -> Function:
        properties = self.properties(id_)
        variables = properties.get("Environment", {}).get("Variables", {})
        return Function(
            name=self.function_name(id_),
            handler=self.need(id_, "Handler"),
            runtime=self.need(id_, "Runtime"),
            environment={name: str(self.value(value)) for name, value in variables.items()},
            timeout_s=float(properties.get("Timeout", 3)),  # Lambda's defaults
            memory_mb=int(properties.get("MemorySize", 128)),
        )

    def _route(self, id_: str, stage: Mapping[str, Any]) -> Route:
        properties = self.properties(id_)
        key = str(self.need(id_, "RouteKey"))
        method, _, path = key.rpartition(" ")
        if method in {"", "ANY"} or "+}" in path:
            raise LocalError(f"the route {key} takes what it does not name: the local run knows no such routes")
        kind = properties.get("AuthorizationType", "NONE")
        if kind not in {"NONE", "JWT"}:
            raise LocalError(f"the route {key} has authorization {kind}: the local run knows JWT only")
        throttle = {**stage.get("DefaultRouteSettings", {}), **stage.get("RouteSettings", {}).get(key, {})}
        rate, burst = throttle.get("ThrottlingRateLimit"), throttle.get("ThrottlingBurstLimit")
        return Route(
            method=method,
            path=path,
            function=self._target(id_, key),
            authorizer=self._authorizer(self.reference(properties["AuthorizerId"])) if kind == "JWT" else None,
            scopes=tuple(properties.get("AuthorizationScopes", ())),
            throttle=None if rate is None or burst is None else Throttle(float(rate), int(burst)),
        )

    def _target(self, id_: str, key: str) -> str:
        """The function behind a route's integration."""
        integration = str(self.value(self.need(id_, "Target"))).removeprefix("integrations/")
        if integration not in self.resources:
            raise LocalError(f"the route {key} leads to {integration}, which is not in the template")
        return self.function_behind(self.need(integration, "IntegrationUri"), f"the route {key}")

    def _schedule(self, id_: str) -> Schedule:
        """A rule of EventBridge with a rate of minutes, such as `rate(1 minute)`, and one target."""
        expression = str(self.need(id_, "ScheduleExpression"))
        rate = re.fullmatch(r"rate\((\d+) minutes?\)", expression)
        if rate is None:
            raise LocalError(f"the rule {id_} runs at {expression!r}, which the local run cannot read")
        [target] = self.need(id_, "Targets")
        return Schedule(self.function_behind(target["Arn"], f"the rule {id_}"), 60 * int(rate[1]))

    def _mapping(self, id_: str) -> StreamMapping:
        """An event source mapping from a stream to a function, both in the template."""
        table = self.reference(self.need(id_, "EventSourceArn"))
        if self.resources[table]["Type"] != "AWS::DynamoDB::Table":
            raise LocalError(f"the event source mapping {id_} reads {table}: the local run knows tables' streams only")
        if not self.properties(table).get("StreamSpecification"):
            raise LocalError(f"the event source mapping {id_} reads {table}, which has no stream")
        function = self.function_behind(self.need(id_, "FunctionName"), f"the event source mapping {id_}")
        return read_mapping(id_, self.properties(id_), self.table_name(table), function)

    def _authorizer(self, id_: str) -> Authorizer:
        jwt = self.need(id_, "JwtConfiguration")
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
        )
