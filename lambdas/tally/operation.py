"""What an operation is: how callers reach it, who may call it, what it takes and what is special about it.

`operations.py` declares the operations with these types. `permissions.py` says what each needs of the tables. Every
function imports this module at a cold start: named tuples, and no generated comparisons, save a millisecond.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple

from . import fields
from .counter import Counter
from .fields import Kind
from .pages import Pages

BODY_BYTES_MAX = 16 * 1024  # of an HTTP request, where the operation does not say otherwise


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
    """The values that a field of Kind.OPERATION or Kind.VISIBLE may have."""
    body_wire: str = ""
    """Its name in the JSON body, if an HTTP request may have it there instead; in both it must be the same."""
    many_max: int = 0
    """How many values it has at most, as a list; 0: it is one value. A query repeats the name for each."""


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
    """The type of a successful HTTP answer, or a range as `text/*`. Refusals are problem documents in any case."""
    takes_beacon: bool = False
    """Whether its JSON body may also have the type `text/plain`, as `navigator.sendBeacon` sends it."""
    any_query: bool = False
    """Whether it answers whatever the query is: a page reads its own, which may be the code of a sign-in."""
    serves: Callable[[Counter], bool] = _any_counter
    """Whether it works on this counter, for operations with a counter in their path."""
    body_bytes_max: int = BODY_BYTES_MAX
    opens: Throttle | None = None
    """The throttle of the routes that lead to it without a token, one for each counter that anyone may read."""
    fixed: Mapping[str, str] = field(default_factory=dict)
    """The parameters that such a route has in its path already: `{"counter": "plays"}`."""
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
        """As API Gateway names it: `POST /videos/{id}/plays`. Of several that match, the most specific one is taken."""
        return f"{self.method} {self.path}"

    @property
    def id(self) -> str:
        """A name that no other route has: `get_counter`, `get_counter_plays`."""
        return "_".join((self.name, *self.fixed.values()))

    @cached_property
    def revalidated(self) -> bool:
        """Whether caches may keep its answer for the time that it says, and then ask whether it has changed (304)."""
        return 304 in self.success

    @property
    def writes(self) -> bool:
        """Whether it changes what is stored: a number, or a post."""
        return self.method != "GET"

    @property
    def by_counter(self) -> bool:
        """Whether the caller names the counter, or several."""
        return self._has(Kind.COUNTER) or self._has(Kind.ANY_COUNTER) or self._has(Kind.CHANGES)

    @property
    def leaves_receipt(self) -> bool:
        """Whether a change under an idempotency key leaves a receipt, which callers can ask for."""
        return self.counts and self._has(Kind.KEY)

    def receipt_target(self, counter: Counter, id_: str) -> str:
        """What names its receipt: the id, or `counter/id` if the caller names the counter."""
        return f"{counter.name}/{id_}" if self.by_counter else id_

    def asked_target(self, target: str, wire: str, pages: Pages) -> str:
        """The target of its receipt as a caller spells it, normalised if it is a page. Raises InvalidInputError."""
        return fields.page(target, wire, pages) if self._has(Kind.LISTED_PAGE) else target

    def routes(self, counters: Mapping[str, Counter]) -> list[Operation]:
        """The operation by each of its routes: its own, and one for each counter that anyone may read if it `opens`."""
        if self.opens is None:
            return [self]
        public = [counter for counter in self.served(counters) if counter.public]
        return [self, *(self._opened(counter, self.opens) for counter in public)]

    def _opened(self, counter: Counter, throttle: Throttle) -> Operation:
        return replace(
            self,
            path=self.path.replace("{counter}", counter.name),
            access=Access.ANYONE,
            throttle=throttle,
            success=(*self.success, 304),
            serves=lambda one: one == counter,
            fixed={"counter": counter.name},
        )

    def shown(self, likers: Visible) -> Operation | None:
        """The operation as a deployment serves it over HTTP; None if it does not."""
        if not self.names_users or likers is Visible.ANYONE:
            return self
        return replace(self, access=Access.SIGNED_IN) if likers is Visible.SIGNED_IN else None

    def served(self, counters: Mapping[str, Counter]) -> list[Counter]:
        """Those of the declared counters that it works on, if the caller names the counter."""
        every = self._has(Kind.ANY_COUNTER)
        return [counter for counter in counters.values() if (every or not counter.pages) and self.serves(counter)]

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


def by_route(operations: Iterable[Operation], counters: Mapping[str, Counter]) -> dict[str, Operation]:
    """The operations by each route of the HTTP API that leads to one."""
    return {found.route: found for operation in operations for found in operation.routes(counters)}
