"""The functions, routes and mappings of the stack, as the zygote describes them (contract/deployment_document.py)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from .mappings import StreamMapping, read_mapping


@dataclass(frozen=True)
class Function:
    """A Lambda function."""

    name: str
    environment: Mapping[str, str]
    timeout_s: float
    memory_mb: int


class Throttle(NamedTuple):
    """The limits of a route: requests a second, and requests at once."""

    rate_per_s: float
    burst: int


@dataclass(frozen=True)
class Route:
    """A route of the HTTP API and the function behind it."""

    method: str
    path: str
    function: str
    signed_in: bool = False  # a caller needs a token
    scope: str | None = None  # the token needs this scope
    throttle: Throttle | None = None

    @property
    def key(self) -> str:
        """API Gateway's name of the route: `POST /videos/{id}/plays`."""
        return f"{self.method} {self.path}"


@dataclass(frozen=True)
class Cors:
    """API Gateway's settings for browsers of other origins."""

    origins: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()
    exposed: tuple[str, ...] = ()  # the headers of answers that a page may read
    max_age_s: int | None = None


@dataclass(frozen=True)
class Template:
    """The stack, with the names of tables and functions in `make dev`."""

    functions: Mapping[str, Function]
    routes: tuple[Route, ...]
    cors: Cors | None = None
    schedules: tuple[tuple[str, int], ...] = ()
    """Functions, and the seconds from one run to the next."""
    mappings: tuple[StreamMapping, ...] = ()
    access_log_format: str | None = None
    outputs: Mapping[str, str] = field(default_factory=dict)
    transact: Mapping[str, Any] = field(default_factory=dict)
    """The value of TALLY_TRANSACT, which a team's function that changes counters itself needs."""
    team_tables: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """The team tables whose streams are read: the value of TALLY_TEAM_TABLES."""
    warnings: tuple[str, ...] = ()
    """Notes on the counters and the team tables. The stack runs nevertheless."""

    def with_variables(self, values: Mapping[str, str], team_tables: str) -> Template:
        """Returns the stack with other variables of its functions. `values`: the ARNs of streams, by the stand-in that
        the zygote had for each ARN. `team_tables`: the value of TALLY_TEAM_TABLES."""
        functions = {}
        for name, function in self.functions.items():
            variables = {variable: values.get(value, value) for variable, value in function.environment.items()}
            if "TALLY_TEAM_TABLES" in variables:
                variables["TALLY_TEAM_TABLES"] = team_tables
            functions[name] = replace(function, environment=variables)
        return replace(self, functions=functions)


def parse(document: Mapping[str, Any]) -> Template:
    """Returns the stack in the zygote's description. Raises LocalError for a mapping that the pump cannot emulate."""
    cors: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in document["cors"].items()}
    return Template(
        functions={name: Function(name, **one) for name, one in document["functions"].items()},
        routes=tuple(Route(**{**one, "throttle": Throttle(*one["throttle"])}) for one in document["routes"]),
        cors=Cors(**cors),
        schedules=tuple((name, every_s) for name, every_s in document["schedules"]),
        mappings=tuple(map(read_mapping, document["mappings"])),
        access_log_format=document["access_log_format"],
        outputs=document["outputs"],
        transact=document["transact"],
        warnings=tuple(document["warnings"]),
    )
