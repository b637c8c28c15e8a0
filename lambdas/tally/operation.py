"""What an operation is: how callers reach it, who may call it, what it takes and what is special about it.

`operations.py` declares the operations with these types. `permissions.py` says what each needs of the tables. Every
function imports this module at a cold start: named tuples, and no generated comparisons, save a millisecond.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

from . import fields
from .counter import Counter
from .errors import InvalidInputError
from .fields import Kind


class Access(Enum):
    """Who may call an operation over HTTP."""

    ANYONE = "anyone"
    SIGNED_IN = "signed in"
    READ = "tally/read"
    """Signed in, with this OAuth scope."""
    WRITE = "tally/write"


class Visible(Enum):
    """Who sees over HTTP which users like a post: an option of the deployment."""

    ANYONE = "anyone"
    SIGNED_IN = "signedIn"
    NOBODY = "nobody"


class Source(Enum):
    """Where an HTTP request has a field. A direct event has every field at its top, by name."""

    PATH = "path"
    QUERY = "query"
    BODY = "body"
    HEADER = "header"


@dataclass(frozen=True, eq=False)
class Field:
    """One input. `name` is the argument and the direct event's field; `wire` is its name in the HTTP request."""

    name: str
    kind: Kind
    source: Source
    wire: str
    required: bool = True
    choices: tuple[str, ...] = ()
    """The values that a field of Kind.OPERATION may have."""
    body_wire: str = ""
    """Its name in the JSON body, if an HTTP request may have it there instead; in both it must be the same."""
    many_max: int = 0
    """How many values it has at most, as a list; 0: it is one value. A query repeats the name for each."""

    def checked(self, given: object, context: fields.Context) -> Any:
        """The value to use for what a request gives; of a list, each one. Raises CallerError."""
        if not self.many_max:
            return fields.check(self.kind, given, self.wire, context, self.choices)
        if not isinstance(given, list) or not 1 <= len(given) <= self.many_max:
            most = f"{self.wire} must be a list of 1 to {self.many_max} values. A query repeats the name for each."
            raise InvalidInputError(most, field=self.wire)
        return [fields.check(self.kind, one, self.wire, context, self.choices) for one in given]


class Throttle(NamedTuple):
    """The limit of an HTTP route, for all callers together: requests a second, and how many at once."""

    rate_per_s: int
    burst: int


def _any_counter(_: Counter) -> bool:
    return True


@dataclass(frozen=True, eq=False)
class Operation:
    """One thing that Tally does. `function` is its handler's module; `counter` is the one that its metrics name."""

    name: str
    function: str
    method: str
    path: str
    access: Access
    throttle: Throttle
    fields: tuple[Field, ...] = ()
    counter: Counter | None = None
    success: tuple[int, ...] = (200,)
    counts: bool = False
    """Whether it changes a number. Metrics then show its answers as Counted, Replayed or Refused."""
    increments: bool = False
    """Whether its handler returns an Increment. A batch packs increments into few transactions."""
    media_type: str = "application/json"
    """The type of a successful HTTP answer. Refusals are problem documents in any case."""
    takes_beacon: bool = False
    """Whether its JSON body may also have the type `text/plain`, as `navigator.sendBeacon` sends it."""
    serves: Callable[[Counter], bool] = _any_counter
    """Whether it works on this counter, for operations with a counter in their path."""
    names_users: bool = False
    """Whether its answer names users. A deployment may show it to fewer callers than `access` says."""

    @cached_property
    def needs_caller(self) -> bool:
        """Whether the caller must be signed in."""
        return self.access is not Access.ANYONE

    @property
    def scope(self) -> str | None:
        """The OAuth scope that the token must have."""
        return self.access.value if self.access in (Access.READ, Access.WRITE) else None

    @property
    def route(self) -> str:
        """As API Gateway names it: `POST /videos/{id}/plays`."""
        return f"{self.method} {self.path}"

    @property
    def revalidated(self) -> bool:
        """Whether caches may keep its answer for the time that it says, and then ask whether it has changed (304)."""
        return 304 in self.success

    @property
    def writes(self) -> bool:
        """Whether it changes what is stored: a number, or a post."""
        return self.method != "GET"

    @property
    def by_counter(self) -> bool:
        """Whether the caller names the counter."""
        return self._has(Kind.COUNTER)

    @property
    def leaves_receipt(self) -> bool:
        """Whether a change under an idempotency key leaves a receipt, which callers can ask for."""
        return self.counts and self._has(Kind.KEY)

    def receipt_target(self, counter: Counter, id_: str) -> str:
        """What names its receipt: the id, or `counter/id` if the caller names the counter."""
        return f"{counter.name}/{id_}" if self.by_counter else id_

    def asked_target(self, target: str, wire: str) -> str:
        """The target of its receipt as a caller spells it, normalised if it is a page. Raises InvalidInputError."""
        return fields.page(target, wire) if self._has(Kind.LISTED_PAGE) else target

    def shown(self, likers: Visible) -> Operation | None:
        """The operation as a deployment serves it over HTTP; None if it does not."""
        if not self.names_users or likers is Visible.ANYONE:
            return self
        return replace(self, access=Access.SIGNED_IN) if likers is Visible.SIGNED_IN else None

    def served(self, counters: Mapping[str, Counter]) -> list[Counter]:
        """Those of the declared counters that it works on, if the caller names the counter."""
        return [counter for counter in counters.values() if counter.api and self.serves(counter)]

    def _has(self, kind: Kind) -> bool:
        return any(field.kind is kind for field in self.fields)


class Table(Enum):
    """The tables."""

    COUNTS = "counts"
    RECEIPTS = "receipts"
    LEDGER = "ledger"


class Schedule(NamedTuple):
    """A function that runs every `every_min` minutes and that nobody calls. `does` completes "a function that …"."""

    function: str
    every_min: int
    does: str
    watches: tuple[Table, ...] = ()
    """The tables whose streams it looks into: their shards, and what waits in them."""


class Consumer(NamedTuple):
    """A function that reads streams of tables, each stream shard in order."""

    function: str
    does: str
    streams: Mapping[Table, tuple[str, ...]]
    """The tables whose streams it reads, and the kinds of change (`INSERT`, `MODIFY`, `REMOVE`) that it gets of each;
    an empty tuple means all. There is no other filter: a malformed record must reach the consumer."""
    prefixes: Mapping[Table, str] = MappingProxyType({})
    """Changes that it gets beside those kinds, whatever their kind: of items whose partition key begins so."""


class Need(NamedTuple):
    """An action on the items of one table whose partition key starts with `prefix`. Roles grant exactly these."""

    action: str
    table: Table
    prefix: str


def by_function(operations: Iterable[Operation]) -> dict[str, list[Operation]]:
    """The operations of each Lambda function, by the name of its module."""
    found: dict[str, list[Operation]] = {}
    for operation in operations:
        found.setdefault(operation.function, []).append(operation)
    return found
