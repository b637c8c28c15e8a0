"""Every operation of Tally: how it is called over HTTP and by other Lambdas, who may, and what it needs of the tables.

The handlers, the stack (routes, throttles, roles) and the local gateway are made from this list. It imports nothing
but declarations, so that the stack can read it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

import counters
from tally.counter import Counter, Guarantee
from tally.fields import Kind


class Access(Enum):
    """Who may call an operation over HTTP."""

    ANYONE = "anyone"
    SIGNED_IN = "signed in"
    READ = "tally/read"
    """Signed in, with this OAuth scope."""
    WRITE = "tally/write"


class Source(Enum):
    """Where a field is in an HTTP request. In a direct event every field stands at the top, by its name."""

    PATH = "path"
    QUERY = "query"
    BODY = "body"
    HEADER = "header"


@dataclass(frozen=True)
class Field:
    """One input. `name` is the argument and the direct event's field; `wire` its name in the HTTP request."""

    name: str
    kind: Kind
    source: Source
    wire: str
    required: bool = True


class Table(Enum):
    """The tables that operations touch."""

    COUNTS = "counts"
    RECEIPTS = "receipts"
    LEDGER = "ledger"


@dataclass(frozen=True)
class Need:
    """An action on the items of one table whose partition key starts with `prefix`: what the function's role grants."""

    action: str
    table: Table
    prefix: str


@dataclass(frozen=True)
class Operation:
    """One thing that Tally does. `function` is the handler's module; `counter` the one that its metrics name."""

    name: str
    function: str
    method: str
    path: str
    access: Access
    fields: tuple[Field, ...]
    needs: frozenset[Need]
    rate_per_s: int
    """Throttle of the HTTP route: requests a second in the steady state, for all callers together."""
    burst: int
    counter: Counter | None = None
    success: tuple[int, ...] = (200,)
    counts: bool = False
    """Whether it changes a number (its answers are metered as Counted, Replayed or Refused)."""
    media_type: str = "application/json"
    """What it answers over HTTP when all is well; refusals are problem documents in any case."""
    increments: bool = False
    """Whether it makes an Increment, which in a batch is packed with others."""

    @property
    def needs_caller(self) -> bool:
        """Whether somebody must be signed in."""
        return self.access is not Access.ANYONE

    @property
    def scope(self) -> str | None:
        """The OAuth scope that the token must have."""
        return self.access.value if self.access in (Access.READ, Access.WRITE) else None

    @property
    def route(self) -> str:
        """As API Gateway names it: `POST /videos/{id}/plays`."""
        return f"{self.method} {self.path}"


READS_PER_S, READ_BURST = 1000, 2000
WRITES_PER_S, WRITE_BURST = 500, 1000
RECEIPT_PREFIX = "tally#"


def _checkpoints(*streams: str) -> frozenset[Need]:
    """How far both consumers have come in the streams of these tables: a partition each."""
    return frozenset(
        Need("Query", Table.LEDGER, f"CHECKPOINT#{consumer}#{stream}")
        for consumer in ("rollup", "drift")
        for stream in streams
    )


# How far the rollup has come (tally/progress.py), for the numbers that it makes of receipts.
_AS_OF = _checkpoints("receipts") | {Need("GetItem", Table.COUNTS, "PULSE")}

_VIDEO = Field("video_id", Kind.ID, Source.PATH, "id")
_POST = Field("post_id", Kind.ID, Source.PATH, "id")
_KEY = Field("idempotency_key", Kind.KEY, Source.HEADER, "Idempotency-Key")
_OPTIONAL_KEY = Field("idempotency_key", Kind.KEY, Source.HEADER, "Idempotency-Key", required=False)


def _needs(counter: Counter, *actions: str) -> frozenset[Need]:
    return frozenset(Need(action, Table.COUNTS, f"{counter.prefix}#") for action in actions)


_RECEIPT = frozenset({Need("PutItem", Table.RECEIPTS, RECEIPT_PREFIX)})


def _count_needs(counter: Counter) -> frozenset[Need]:
    """What counting needs: an update, and a receipt beside it if the counter is EXACT; ROLLUP: the receipt alone."""
    update = frozenset() if counter.guarantee is Guarantee.ROLLUP else _needs(counter, "UpdateItem")
    return update | (frozenset() if counter.guarantee is Guarantee.FAST else _RECEIPT)


_READ_LIKE = _needs(counters.LIKES, "BatchGetItem")
# The state of the like, the post's existence and a new shard are checked and made on the way (tally/likes.py).
_LIKE_NEEDS = (
    _RECEIPT | _READ_LIKE
    | _needs(counters.LIKES, "PutItem", "GetItem", "UpdateItem", "DeleteItem", "ConditionCheckItem")
)  # fmt: skip

PLAY = Operation(
    "play", "plays", "POST", "/videos/{id}/plays", Access.ANYONE, (_VIDEO, _KEY), _count_needs(counters.PLAYS),
    WRITES_PER_S, WRITE_BURST, counters.PLAYS, counts=True, increments=True,
)  # fmt: skip
GET_PLAYS = Operation(
    "get_plays", "plays", "GET", "/videos/{id}/plays", Access.ANYONE, (_VIDEO,), _needs(counters.PLAYS, "Query"),
    READS_PER_S, READ_BURST, counters.PLAYS,
)  # fmt: skip
PUT_POST = Operation(
    "put_post", "posts", "PUT", "/posts/{id}", Access.SIGNED_IN,
    (_POST, Field("body", Kind.TEXT, Source.BODY, "body")),
    _needs(counters.LIKES, "Query", "PutItem", "UpdateItem"),
    100, 200, success=(200, 201),
)  # fmt: skip
GET_POST = Operation(
    "get_post", "posts", "GET", "/posts/{id}", Access.ANYONE, (_POST,), _needs(counters.LIKES, "Query"),
    READS_PER_S, READ_BURST,
)  # fmt: skip
LIKE = Operation(
    "like", "likes", "PUT", "/posts/{id}/like", Access.SIGNED_IN, (_POST, _OPTIONAL_KEY), _LIKE_NEEDS,
    WRITES_PER_S, WRITE_BURST, counters.LIKES, counts=True,
)  # fmt: skip
UNLIKE = Operation(
    "unlike", "likes", "DELETE", "/posts/{id}/like", Access.SIGNED_IN, (_POST, _OPTIONAL_KEY), _LIKE_NEEDS,
    WRITES_PER_S, WRITE_BURST, counters.LIKES, counts=True,
)  # fmt: skip
GET_LIKE = Operation(
    "get_like", "likes", "GET", "/posts/{id}/like", Access.SIGNED_IN, (_POST,), _READ_LIKE,
    READS_PER_S, READ_BURST, counters.LIKES,
)  # fmt: skip
LIST_LIKES = Operation(
    "list_likes", "likes", "GET", "/posts/{id}/likes", Access.ANYONE,
    (
        _POST,
        Field("limit", Kind.PAGE_SIZE, Source.QUERY, "limit", required=False),
        Field("cursor", Kind.CURSOR, Source.QUERY, "cursor", required=False),
    ),
    _READ_LIKE | _needs(counters.LIKES, "Query"),
    100, 200, counters.LIKES,
)  # fmt: skip
VISIT = Operation(
    "visit", "visits", "POST", "/visits", Access.ANYONE,
    (
        Field("url", Kind.LISTED_PAGE, Source.BODY, "url"),
        Field("idempotency_key", Kind.KEY, Source.BODY, "key"),
        Field("user_agent", Kind.USER_AGENT, Source.HEADER, "User-Agent", required=False),
    ),
    _count_needs(counters.VISITS) | _count_needs(counters.BOT_VISITS),
    WRITES_PER_S, WRITE_BURST, counters.VISITS, success=(202,), counts=True, increments=True,
)  # fmt: skip
GET_VISITS = Operation(
    "get_visits", "visits", "GET", "/visits", Access.ANYONE, (Field("url", Kind.PAGE, Source.QUERY, "url"),),
    _needs(counters.VISITS, "Query") | _needs(counters.BOT_VISITS, "Query") | _AS_OF,
    READS_PER_S, READ_BURST, counters.VISITS,
)  # fmt: skip
GET_BADGE = Operation(
    "get_badge", "visits", "GET", "/visits/badge.svg", Access.ANYONE,
    (Field("url", Kind.LISTED_PAGE, Source.QUERY, "url"),), _needs(counters.VISITS, "Query"),
    READS_PER_S, READ_BURST, counters.VISITS, success=(200, 304), media_type="image/svg+xml",
)  # fmt: skip
BEACON = Operation(
    "beacon", "beacon", "GET", "/beacon.js", Access.ANYONE, (), frozenset(),
    READS_PER_S, READ_BURST, success=(200, 304), media_type="text/javascript",
)  # fmt: skip
HEALTH = Operation(
    "health", "health", "GET", "/health", Access.ANYONE, (),
    frozenset({Need("GetItem", Table.COUNTS, "HEALTH")}), 10, 20,
)  # fmt: skip
GET_OPENAPI = Operation(
    "get_openapi", "health", "GET", "/openapi.json", Access.ANYONE, (), frozenset(), 10, 20, success=(200, 304),
)  # fmt: skip

_COUNTER = Field("counter", Kind.COUNTER, Source.PATH, "counter")
_ID = Field("id", Kind.ID, Source.PATH, "id")
_HOLD = Field("hold_id", Kind.HOLD, Source.PATH, "hold")
_API_COUNTERS = [counter for counter in counters.COUNTERS.values() if counter.api]


def _counters(wanted: Iterable[Counter], *actions: str) -> frozenset[Need]:
    """The actions on these counters."""
    return frozenset().union(*(_needs(counter, *actions) for counter in wanted))


def _holds(*actions: str) -> frozenset[Need]:
    """The actions on holds, and an update of the counters that can be held."""
    on_holds = frozenset(Need(action, Table.LEDGER, "HOLDS#") for action in actions)
    return on_holds | _counters((counter for counter in _API_COUNTERS if counter.holdable), "UpdateItem")


_NUMBERED = [counter for counter in _API_COUNTERS if counter.numbered]
_VERSIONED = [counter for counter in _API_COUNTERS if counter.versioned]
_ROLLED_UP = [counter for counter in _API_COUNTERS if counter.guarantee is Guarantee.ROLLUP]
_FIND_RECEIPT = frozenset({Need("GetItem", Table.RECEIPTS, RECEIPT_PREFIX)})
# A number is read before it is taken; at the end a receipt is looked for, so that the last one is told again.
_TAKE_NUMBER = _counters(_NUMBERED, "Query") | (_FIND_RECEIPT if _NUMBERED else frozenset())
_BOOK = frozenset({Need("UpdateItem", Table.LEDGER, "LEDGER#")})  # what is given back has no receipt to expect it by
_ROOM = _BOOK | _holds("Query", "GetItem", "UpdateItem")  # before a 409, expired holds are given back
_SETTLE = _BOOK | _holds("GetItem", "UpdateItem")
_COUNTERS = "/counters/{counter}/{id}"

INCREMENT = Operation(
    "increment", "increments", "POST", f"{_COUNTERS}/increments", Access.WRITE,
    (_COUNTER, _ID, Field("amount", Kind.AMOUNT, Source.BODY, "amount", required=False), _OPTIONAL_KEY),
    frozenset().union(*map(_count_needs, _API_COUNTERS)) | _TAKE_NUMBER | _ROOM,
    WRITES_PER_S, WRITE_BURST, counts=True, increments=True,
)  # fmt: skip
GET_COUNTER = Operation(
    "get_counter", "increments", "GET", _COUNTERS, Access.READ, (_COUNTER, _ID),
    _counters(_API_COUNTERS, "Query") | (_AS_OF if _ROLLED_UP else frozenset()), READS_PER_S, READ_BURST,
)  # fmt: skip
SET_COUNTER = Operation(
    "set_counter", "increments", "PUT", _COUNTERS, Access.WRITE,
    (
        _COUNTER, _ID,
        Field("value", Kind.AMOUNT, Source.BODY, "value"),
        Field("version", Kind.VERSION, Source.HEADER, "If-Match"),
        _OPTIONAL_KEY,
    ),
    # The number is read before it is set, and a receipt looked for if it has moved (tally/increments.py).
    _RECEIPT | _FIND_RECEIPT | _counters(_VERSIONED, "Query", "UpdateItem"), WRITES_PER_S, WRITE_BURST, counts=True,
)  # fmt: skip
HOLD = Operation(
    "hold", "holds", "POST", f"{_COUNTERS}/holds", Access.WRITE,
    (
        _COUNTER, _ID, _KEY,
        Field("amount", Kind.HELD_AMOUNT, Source.BODY, "amount"),
        Field("ttl_s", Kind.TTL, Source.BODY, "ttl_s"),
    ),
    _RECEIPT | _BOOK | _holds("PutItem", "Query", "GetItem", "UpdateItem"),
    WRITES_PER_S, WRITE_BURST, success=(201,), counts=True,
)  # fmt: skip
COMMIT_HOLD = Operation(
    "commit_hold", "holds", "POST", f"{_COUNTERS}/holds/{{hold}}/commit", Access.WRITE, (_COUNTER, _ID, _HOLD),
    _SETTLE, WRITES_PER_S, WRITE_BURST, counts=True,
)  # fmt: skip
RELEASE_HOLD = Operation(
    "release_hold", "holds", "DELETE", f"{_COUNTERS}/holds/{{hold}}", Access.WRITE, (_COUNTER, _ID, _HOLD),
    _SETTLE, WRITES_PER_S, WRITE_BURST, counts=True,
)  # fmt: skip
_RECEIPT_FIELDS = (
    Field("of", Kind.OPERATION, Source.QUERY, "operation"),
    Field("target", Kind.TARGET, Source.QUERY, "target"),
    Field("idempotency_key", Kind.KEY, Source.QUERY, "key"),
)
GET_RECEIPT = Operation(
    "get_receipt", "receipts", "GET", "/receipts", Access.ANYONE, _RECEIPT_FIELDS, _FIND_RECEIPT, 100, 200
)
GET_OWN_RECEIPT = Operation(
    "get_own_receipt", "receipts", "GET", "/receipts/own", Access.SIGNED_IN, _RECEIPT_FIELDS, _FIND_RECEIPT, 100, 200
)
GET_DRIFT = Operation(
    "get_drift", "drifts", "GET", "/drift", Access.READ,
    (
        Field("limit", Kind.PAGE_SIZE, Source.QUERY, "limit", required=False),
        Field("cursor", Kind.CURSOR, Source.QUERY, "cursor", required=False),
    ),
    frozenset({Need("Query", Table.LEDGER, "DRIFT")}), 100, 200,
)  # fmt: skip

OPERATIONS = (
    INCREMENT, GET_COUNTER, SET_COUNTER, HOLD, COMMIT_HOLD, RELEASE_HOLD, GET_RECEIPT, GET_OWN_RECEIPT,
    PLAY, GET_PLAYS, PUT_POST, GET_POST, LIKE, UNLIKE, GET_LIKE, LIST_LIKES,
    VISIT, GET_VISITS, GET_BADGE, BEACON, GET_DRIFT, HEALTH, GET_OPENAPI,
)  # fmt: skip


@dataclass(frozen=True)
class Schedule:
    """A function that nobody calls: it runs every `every_min` minutes."""

    function: str
    every_min: int
    does: str
    needs: frozenset[Need]


_JUDGE = _checkpoints("receipts", "counts") | frozenset(
    Need(action, Table.LEDGER, prefix)
    for prefix, actions in {
        "LEDGER#": ("Query", "DeleteItem"),
        "DRIFT": ("Query", "GetItem", "UpdateItem", "DeleteItem"),
    }.items()
    for action in actions
)
_PULSE = frozenset({
    Need("GetItem", Table.COUNTS, "PULSE"),
    Need("UpdateItem", Table.COUNTS, "PULSE"),
    Need("UpdateItem", Table.RECEIPTS, "pulse"),
})  # fmt: skip
_RECOUNT = _counters((counter for counter in counters.COUNTERS.values() if counter.child), "Query")
SCHEDULES = (
    Schedule(
        "sweep", 1, "gives back what expired holds have taken, and judges the ledger",
        _ROOM | _JUDGE | _PULSE | _RECOUNT,
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Consumer:
    """A function that reads streams of tables, each shard in order (design, section 4)."""

    function: str
    does: str
    needs: frozenset[Need]
    streams: Mapping[Table, tuple[str, ...]]
    """The streams that it reads, and of each the kinds of change (`INSERT`, `MODIFY`, `REMOVE`) that it is sent; an
    empty tuple is all of them. Nothing else is filtered: a record that is not as it should be must reach it."""


def _consumer_needs(consumer: str) -> frozenset[Need]:
    """How far it has come, and markers of the records that it could not apply."""
    checkpoints = frozenset(
        Need(action, Table.LEDGER, f"CHECKPOINT#{consumer}#") for action in ("GetItem", "UpdateItem")
    )
    return checkpoints | {Need("PutItem", Table.LEDGER, "SETASIDE")}


_ROLLED_UP = [
    counter for counter in counters.COUNTERS.values() if counter.spills or counter.guarantee is Guarantee.ROLLUP
]

CONSUMERS = (
    Consumer(
        "rollup", "adds up what was accepted without its tally",
        _consumer_needs("rollup") | _counters(_ROLLED_UP, "UpdateItem"),
        {Table.RECEIPTS: ("INSERT", "MODIFY"), Table.COUNTS: ("INSERT",)},
    ),
    Consumer(
        "drift", "books what was accepted, and what the tallies did, in the ledger",
        _consumer_needs("drift") | {Need("UpdateItem", Table.LEDGER, "LEDGER#")},
        {Table.RECEIPTS: ("INSERT", "MODIFY"), Table.COUNTS: ()},
    ),
)  # fmt: skip

# What the command `tally` does beside scanning the counts table: it reads, mends a tally, and redrives.
OPERATOR = (
    _counters(counters.COUNTERS.values(), "Query", "UpdateItem", "ConditionCheckItem")
    | {Need("GetItem", Table.COUNTS, "PULSE")}
    | _checkpoints("receipts", "counts")
    | {
        Need(action, Table.LEDGER, prefix)
        for prefix, actions in {
            "LEDGER#": ("Query", "UpdateItem"),
            "DRIFT": ("Query", "GetItem", "DeleteItem", "ConditionCheckItem"),
            "SETASIDE": ("Query", "GetItem", "DeleteItem"),
            "HISTORY#": ("Query", "PutItem"),
        }.items()
        for action in actions
    }
)


def functions() -> dict[str, list[Operation]]:
    """The operations of each Lambda function, by the name of its module."""
    found: dict[str, list[Operation]] = {}
    for operation in OPERATIONS:
        found.setdefault(operation.function, []).append(operation)
    return found


def needs_of(operations: Iterable[Operation]) -> frozenset[Need]:
    """What a function with these operations needs of the tables."""
    return frozenset().union(*(operation.needs for operation in operations))
