"""What runs: the functions, routes and mappings that the code describes (tally/contract/described.py)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from .mappings import StreamMapping, read_mapping


@dataclass(frozen=True)
class Function:
    """A Lambda function."""

    name: str
    environment: Mapping[str, str]
    timeout_s: float
    memory_mb: int


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
    signed_in: bool = False
    scope: str | None = None
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
class Template:
    """The stack. Tables and functions by their local names."""

    functions: Mapping[str, Function]
    routes: tuple[Route, ...]
    cors: Cors | None = None
    schedules: tuple[tuple[str, int], ...] = ()
    """Functions, and the seconds from one run to the next."""
    mappings: tuple[StreamMapping, ...] = ()
    access_log_format: str | None = None
    outputs: Mapping[str, str] = field(default_factory=dict)
    transact: Mapping[str, Any] = field(default_factory=dict)
    """What the variable of a function says that changes counters by itself."""
    team_tables: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """The person's own tables that are read, as TALLY_OWN_TABLES has them."""
    warnings: tuple[str, ...] = ()
    """What is odd about the counters, though the stack is right."""

    def with_variables(self, made: Mapping[str, str], own_tables: str) -> Template:
        """The same stack, with other values of variables: `made` by what stood for them, and those of own tables."""

        def knowing(function: Function) -> Function:
            variables = {name: made.get(value, value) for name, value in function.environment.items()}
            own = {"TALLY_OWN_TABLES": own_tables} if "TALLY_OWN_TABLES" in variables else {}
            return replace(function, environment=variables | own)

        return replace(self, functions={name: knowing(function) for name, function in self.functions.items()})


def parse(document: Mapping[str, Any]) -> Template:
    """The stack in a document of `described`. Raises LocalError for a mapping that the pump cannot run."""
    cors: dict[str, Any] = {
        name: tuple(one) if isinstance(one, list) else one for name, one in document["cors"].items()
    }
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
