"""An operation: a function, and all that follows from its declaration.

    @operation(
        "GET /counters/{counter}/{id}", access=Access.READ, audience_field="read", throttle=READS,
        short_route="GET {path}",
        needs=lambda counters: needs.on_counts(counters, "Query"),
        raises=[NotFoundError],
        example={"counter": "stock", "id": "7c20", "value": 98, "version": 7},
    )
    def get_counter(call: Call, *, counter: DeclaredCounter, id: Id, period: Period | None = None) -> Answer[Value]:
        "The value of a counter"

The operation has the function's name. Its fields are the keyword arguments. Each field has a kind, which checks its
value (kinds.py), and is required if the argument has no default. Routes, roles, throttles, the local gateway, the API
document, the samples in `events/`, the smoke test and the client follow from this declaration.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from types import ModuleType
from typing import Any, Generic, NamedTuple, TypeVar

from tally.counter import Counter
from tally.dynamo.client import Call as Call
from tally.errors import CallerError, TallyError

from .kind import Kind, Source
from .needs import NOTHING, Needs
from .texts import Text

STRANGERS_SUFFIX = "_open"
"""The end of the name of a module's function for strangers: callers without a scope (see `routes_by_function`)."""

T = TypeVar("T")


class Access(Enum):
    """Who may use a route."""

    ANYONE = "anyone"
    SIGNED_IN = "signed in"
    READ = "tally/read"  # signed in, with this OAuth scope
    WRITE = "tally/write"  # signed in, with this OAuth scope


class UserVisibility(Enum):
    """Who may list children over HTTP, such as likes, if the counter has `lists="anyone"`: option `likersVisible`."""

    ANYONE = "anyone"
    SIGNED_IN = "signedIn"
    NOBODY = "nobody"


class Throttle(NamedTuple):
    """The limit of an HTTP route, for all callers together: requests a second, and how many at once."""

    rate_per_s: int
    burst: int

    def scaled_by(self, share: float) -> Throttle:
        """Returns the throttle with this share of the rate, at least one request a second. The burst stays."""
        return self._replace(rate_per_s=max(1, round(self.rate_per_s * share)))


READS = Throttle(rate_per_s=1000, burst=2000)
WRITES = Throttle(rate_per_s=500, burst=1000)
RATE_100_PER_S = Throttle(rate_per_s=100, burst=200)
RATE_10_PER_S = Throttle(rate_per_s=10, burst=20)


class Answer(NamedTuple, Generic[T]):
    """The answer of an operation: JSON or text, its HTTP status, and whether it repeats an earlier answer."""

    body: Mapping[str, Any] | Text
    status: int = 200
    replayed: bool = False
    max_age_s: int = 0
    """For how many seconds a cache may keep the answer. Only an answer of a cacheable route says this."""


@dataclass(frozen=True, eq=False)
class Field:
    """One input of an operation: a keyword argument of its function."""

    argument: str
    name: str
    """The name in a direct event (a function invoked without HTTP): the argument's name, without the `_` of `from_`."""
    kind: Kind
    source: Source  # where an HTTP request has the field
    http_name: str  # the name in the HTTP request
    required: bool


@dataclass(eq=False, repr=False, kw_only=True)
class OperationFacts:
    """The facts that an operation declares."""

    access: Access
    throttle: Throttle
    needs: Callable[[Sequence[Counter]], Needs] = lambda _: NOTHING
    """Returns the access to tables that the operation needs for the counters that its function serves."""
    audience_field: str = ""
    """`changes`, `read` or `lists`: the counter's field that may allow more callers than `access`. Empty: no field."""
    throttle_if_opened: Throttle | None = None
    """The throttle of a counter's own route, which more callers may use than `access` says. None: `throttle`."""
    short_route: str = ""
    """The template of a counter's short route, such as `POST {path}`. Empty: no counter has such a route."""
    has_short_route: Callable[[Counter], bool] = lambda _: True  # whether a counter with a `path` has this short route
    raises: Sequence[type[TallyError]] = ()
    """The errors that only some operations raise. Every operation may raise further errors."""
    refusal_for: Callable[[Counter], CallerError | None] = lambda _: None
    """Returns why the operation does not work on this counter; None if the operation works."""
    serves_only: Sequence[Counter] = ()
    """The only counters of the operation. A deployment with none of these counters lacks the operation. Empty: any."""
    example: Any = None  # of an answer's body, for the API document
    success_statuses: Sequence[int] = (200,)  # of successful answers
    changes_numbers: bool = False
    """Whether the operation changes a number. Metrics then show which answers were replayed or refused."""
    media_type: str = "application/json"
    is_cacheable: bool = False
    """Whether caches may keep an answer of a route for anyone, and ask later whether the answer has changed (304)."""
    head: bool = False  # whether the operation also answers `HEAD`, which monitors send
    takes_any_query: bool = False
    """Whether HTTP requests may have any query string, which Tally then does not read."""
    body_bytes_max: int = 16 * 1024  # of an HTTP request
    names_users: bool = False  # whether answers name users; then `UserVisibility` narrows a route that anyone may use
    smoke_statuses: Sequence[int] = ()
    """The statuses that the smoke test expects of the operation's sample (in `events/`). Empty: `success_statuses`."""


@dataclass(eq=False, repr=False)
class operation(OperationFacts):
    """Declares the operation of a function. Raises TypeError for a field without a kind."""

    method_and_path: str  # such as `POST /changes`

    def __call__(self, function: Callable[..., Any]) -> Operation:
        return Operation(self, function)


class Operation(OperationFacts):
    """One thing that Tally does. `@operation` makes it of a function."""

    function: Callable[..., Any]  # returns `Answer[…]`
    name: str
    module: str  # the file in `operations/`, which is a Lambda function
    method: str
    path: str
    fields: tuple[Field, ...]
    answer: Any  # the type of an answer's body: a TypedDict, a union of TypedDicts, or Text

    def __init__(self, declared: operation, function: Callable[..., Any]) -> None:
        vars(self).update(vars(declared))
        self.function, self.name = function, function.__name__
        self.module = function.__module__.rpartition(".")[2]
        self.method, _, self.path = declared.method_and_path.partition(" ")
        self.smoke_statuses = declared.smoke_statuses or declared.success_statuses
        hints = typing.get_type_hints(function, include_extras=True)
        (self.answer,) = typing.get_args(hints["return"])
        inputs = []
        for argument in inspect.signature(function).parameters.values():
            if argument.kind is inspect.Parameter.KEYWORD_ONLY:
                kind = _kind(hints[argument.name])
                if kind is None:
                    raise TypeError(f"{function.__qualname__}: {argument.name} has no kind")
                name = argument.name.rstrip("_")
                source = kind.source or (Source.QUERY if self.method == "GET" else Source.BODY)
                if f"{{{name}}}" in self.path:
                    source = Source.PATH
                required = argument.default is inspect.Parameter.empty
                inputs.append(Field(argument.name, name, kind, source, kind.http_name or name, required))
        self.fields = tuple(inputs)

    def __call__(self, call: Call, **fields: Any) -> Any:
        """Calls the operation's function, with checked fields."""
        return self.function(call, **fields)

    @cached_property
    def has_counter_in_path(self) -> bool:
        """Whether the caller names a counter in the path."""
        return any(field.kind.is_counter and field.source is Source.PATH for field in self.fields)

    @property
    def writes(self) -> bool:
        """Whether the operation changes what is stored, such as a number or a post."""
        return self.method != "GET"

    @cached_property
    def leaves_receipt(self) -> bool:
        """Whether a change under an idempotency key leaves a receipt, which callers can ask for."""
        return self.changes_numbers and any(field.name == "idempotency_key" for field in self.fields)

    @property
    def uses_page_hosts(self) -> bool:
        """Whether the operation compares a page's host with the hosts that the deployment lists."""
        return any(field.kind.uses_page_hosts for field in self.fields)

    @cached_property
    def uses_client_address(self) -> bool:
        """Whether the operation uses the IP address of the caller."""
        return any(field.source is Source.ADDRESS for field in self.fields)

    @property
    def summary(self) -> str:
        """The first line of the function's docstring, which says what the operation does."""
        return (inspect.getdoc(self.function) or "").partition("\n")[0].strip().rstrip(".")

    @property
    def description(self) -> str:
        """The rest of the function's docstring, for callers; may be empty."""
        return " ".join((inspect.getdoc(self.function) or "").partition("\n")[2].split())

    def serves(self, counter: Counter) -> bool:
        """Returns whether the operation works on this counter."""
        is_listed = not self.serves_only or counter.name in [listed.name for listed in self.serves_only]
        return is_listed and self.refusal_for(counter) is None

    def served_counters(self, counters: Iterable[Counter]) -> list[Counter]:
        """Returns the counters that the operation works on."""
        return [counter for counter in counters if self.serves(counter)]

    def access_of(self, counter: Counter) -> Access:
        """Returns who may use the operation for this counter."""
        if not self.audience_field:
            return self.access
        return _ACCESS_BY_AUDIENCE.get(getattr(counter, self.audience_field), self.access)

    def is_opened_by(self, counter: Counter) -> bool:
        """Returns whether a counter opens the operation to more callers, and so has a route of its own."""
        return self.has_counter_in_path and self.access_of(counter) is not self.access

    def routes(self, counters: Mapping[str, Counter]) -> list[Route]:
        """Returns the general route, a route for each counter that opens the operation to more callers, and short
        routes. If each served counter has its own route, or none is served, there is no general route."""
        served = self.served_counters(counters.values())
        general = Route(self, self.method, self.path, self.access, self.throttle)
        routes = [] if all(map(self.is_opened_by, served)) else [general]
        for counter in served if self.has_counter_in_path else ():
            access = self.access_of(counter)
            fixed = {"counter": counter.name}
            if self.is_opened_by(counter):
                path = self.path.replace("{counter}", counter.name)
                routes.append(Route(self, self.method, path, access, self.throttle_if_opened or self.throttle, fixed))
            if self.short_route and counter.path and self.has_short_route(counter):
                method, _, template = self.short_route.partition(" ")
                path = template.replace("{path}", counter.path)
                routes.append(Route(self, method, path, access, self.throttle, fixed, is_short=True))
        return routes


_ACCESS_BY_AUDIENCE = {"anyone": Access.ANYONE, "caller": Access.SIGNED_IN}


@dataclass(frozen=True, eq=False)
class Route:
    """One route of the HTTP API. If several routes match a request, API Gateway takes the most specific route."""

    operation: Operation
    method: str
    path: str
    access: Access
    throttle: Throttle
    fixed_fields: Mapping[str, str] = field(default_factory=dict)
    """The fields whose values the path fixes: `{"counter": "plays"}`."""
    is_short: bool = False  # whether this is the short route of a counter

    @property
    def key(self) -> str:
        """The route's name in API Gateway: `POST /videos/{id}/plays`."""
        return f"{self.method} {self.path}"

    @property
    def methods(self) -> Sequence[str]:
        """The methods of requests. API Gateway has a route for each method."""
        return (self.method, "HEAD") if self.operation.head else (self.method,)

    @property
    def keys(self) -> Sequence[str]:
        """The `key` of the route for each method."""
        return [f"{method} {self.path}" for method in self.methods]

    @property
    def id(self) -> str:
        """A name that no other route has: `increment`, `increment_plays`, `increment_plays_short_route`."""
        return "_".join((self.operation.name, *self.fixed_fields.values(), *(["short_route"] if self.is_short else [])))

    @cached_property
    def needs_caller(self) -> bool:
        """Whether the caller must be signed in."""
        return self.access is not Access.ANYONE

    @property
    def scope(self) -> str | None:
        """The OAuth scope that the token must have."""
        return self.access.value if self.access in (Access.READ, Access.WRITE) else None

    @cached_property
    def is_cacheable(self) -> bool:
        """Whether caches may keep answers of this route."""
        return self.operation.is_cacheable and self.access is Access.ANYONE

    @property
    def statuses(self) -> Sequence[int]:
        """The statuses of successful answers. 304: a cache's answer has not changed."""
        return (*self.operation.success_statuses, 304) if self.is_cacheable else self.operation.success_statuses

    @cached_property
    def fields(self) -> tuple[Field, ...]:
        """The fields of a request, besides `fixed_fields`."""
        return tuple(field for field in self.operation.fields if field.name not in self.fixed_fields)

    def served_counters(self, counters: Mapping[str, Counter]) -> list[Counter]:
        """Returns the counters that requests of this route can name."""
        served = self.operation.served_counters(counters.values())
        if self.fixed_fields:
            return [counter for counter in served if counter.name == self.fixed_fields["counter"]]
        return [counter for counter in served if not self.operation.is_opened_by(counter)]

    def as_deployed(self, likers_visible: UserVisibility) -> Route | None:
        """Returns the route as a deployment serves it; None if the deployment does not serve it."""
        is_open = likers_visible is UserVisibility.ANYONE
        if not self.operation.names_users or self.access is not Access.ANYONE or is_open:
            return self
        return replace(self, access=Access.SIGNED_IN) if likers_visible is UserVisibility.SIGNED_IN else None


def _kind(hint: Any) -> Kind | None:
    """Returns the kind in `Annotated[str, KIND]`, or in `Annotated[str, KIND] | None`; None without a kind."""
    kinds = [fact for fact in getattr(hint, "__metadata__", ()) if isinstance(fact, Kind)]
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        kinds = [kind for argument in typing.get_args(hint) if (kind := _kind(argument))]
    return kinds[0] if kinds else None


def operations_of(module: ModuleType) -> list[Operation]:
    """Returns the operations of a module of `operations/`, in the order of the file."""
    return [value for value in vars(module).values() if isinstance(value, Operation)]


def routes_by_function(operations: Iterable[Operation], counters: Mapping[str, Counter]) -> dict[str, list[Route]]:
    """Returns the routes of each Lambda function, by the function's name. If services change numbers by a
    module, its routes for strangers have a second function, whose role allows changes of the strangers' counters."""
    routes = [route for operation in operations for route in operation.routes(counters)]
    of_services = [route.operation for route in routes if route.access is Access.WRITE]
    modules_of_services = {operation.module for operation in of_services if operation.changes_numbers}
    by_function: dict[str, list[Route]] = {}
    for route in routes:
        module = route.operation.module
        is_for_strangers = module in modules_of_services and route.access in (Access.ANYONE, Access.SIGNED_IN)
        by_function.setdefault(module + STRANGERS_SUFFIX if is_for_strangers else module, []).append(route)
    return by_function


def operations_of_function(
    name: str, routes: Iterable[Route], operations: Iterable[Operation], counters: Mapping[str, Counter]
) -> list[Operation]:
    """Returns the operations that direct events to a function may name. If the function serves strangers, these are
    the operations of its routes; else all operations of its file that have a route."""
    if name.endswith(STRANGERS_SUFFIX):
        return list(dict.fromkeys(route.operation for route in routes))
    return [operation for operation in operations if operation.module == name and operation.routes(counters)]


def counters_of_function(name: str, routes: Iterable[Route], counters: Mapping[str, Counter]) -> list[Counter]:
    """Returns the counters that a function may touch: if it serves strangers, the counters for strangers, else all."""
    if not name.endswith(STRANGERS_SUFFIX):
        return list(counters.values())
    served = {counter.name: counter for route in routes for counter in route.served_counters(counters)}
    return [counter for counter in served.values() if counter.changes != "service" or counter.read != "service"]
