"""The health of the numbers: drift, one number in detail, the health checks, and the threshold events."""

from itertools import islice
from typing import Annotated, Literal, NotRequired, TypedDict

from tally import fields
from tally.api import needs
from tally.api.kinds import ID_OR_PAGE, Cursor, DeclaredCounter, PageSize, Period
from tally.api.operation import RATE_10_PER_S, RATE_100_PER_S, Access, Answer, Call, operation
from tally.api.shapes import AsOf, Count, PeriodName, Seconds
from tally.counter import Counter
from tally.counting import periods
from tally.drift import checks, details, rows
from tally.dynamo import clock
from tally.errors import CallerError, InvalidInputError, NotCountedError, NotFoundError
from tally.series import read
from tally.streams import events
from tally.streams.crossings import EXAMPLE
from tally.team import health, scan_state

JudgedUpTo = Annotated[
    int | None,
    {"minimum": 0, "description": "Seconds since 1970. Tally has judged every earlier minute. Null: no minute."},
]


class Drifting(TypedDict):
    """A number that drifts, and since when. `drift`: the number less the accepted changes; below 0 if it is too low."""

    counter: str
    id: str
    period: NotRequired[PeriodName]
    drift: int
    since: Seconds
    confirmed: Annotated[
        bool, {"description": "A part of the drift has lasted for five judged minutes. A repair takes this part back."}
    ]


class Drifts(TypedDict):
    """The numbers that drift now. `cursor` is null on the last page."""

    drift: list[Drifting]
    cursor: str | None


class Shard(TypedDict):
    """One of the items that a number is spread over. `shard`: its position, from 0. `value`: its part of the number."""

    shard: Count
    value: int


class Drift(TypedDict):
    """The drift of one number, as in `GET /drift`."""

    drift: int
    since: Seconds
    confirmed: bool


class Repair(TypedDict):
    """One repair. `how`: the proof, as `ledger` (drift), `recount` (children) or `rebuild` (lost changes)."""

    at: Seconds
    amount: int
    how: str
    who: str
    why: str


class Imported(TypedDict):
    """How much of a number was imported."""

    amount: int
    as_of: Annotated[int, {"minimum": 0, "description": "Seconds since 1970. Later imports are not in `amount`."}]


class Details(TypedDict):
    """One number. `drift` is null if the number does not drift. `imported` is null until Tally has summed up the first
    hour, and for a counter with periods."""

    counter: str
    id: str
    period: NotRequired[PeriodName]
    value: int
    imported: Imported | None
    shards: list[Shard]
    drift: Drift | None
    judged_up_to: JudgedUpTo
    repairs: list[Repair]


class HealthCheck(TypedDict):
    """One health check. `line`: its result for people. `see`: the section of Tally's docs that says what to do."""

    name: str
    state: Literal["ok", "wrong", "unknown"]
    line: str
    see: str


class Declared(TypedDict):
    """One counter, as it is declared. `public`: anyone may read it. `listed`: anyone may list its ids. `counts`: what
    moves its numbers. The ids of `pages` and `page visitors` are URLs. `items` are in a team's table."""

    name: str
    visible: Literal["now", "soon"]
    changes: Annotated[
        Literal["anyone", "caller", "service"], {"description": "Who may change it. `caller`: any signed-in user."}
    ]
    public: bool
    listed: bool
    counts: Literal["changes", "children", "pages", "page visitors", "visitors", "items"]
    watched: Annotated[
        str | None,
        {"description": "The team's attribute that Tally checks, and whose drift it reports. Null: no attribute."},
    ]
    retired: bool
    numbered: bool
    notifies: Annotated[bool, {"description": "Whether it has thresholds, which make events."}]
    max_shards: Annotated[int, {"minimum": 1}]
    delta: int | None
    start: int
    floor: int | None
    ceiling: int | None
    debt: int
    limit_overrides: bool
    period: str | None
    timezone: str | None


class Status(TypedDict):
    """The health of the stack. `at`: when it was checked. `where`: the options with which `tally` finds this stack."""

    well: Annotated[
        bool | None,
        {"description": "True: each part is ok. False: a part is wrong. Null: a part is unknown, no part is wrong."},
    ]
    parts: list[HealthCheck]
    at: Seconds
    as_of: AsOf
    judged_up_to: JudgedUpTo
    stack: str
    stage: str
    where: str
    counters: list[Declared]


class Crossed(TypedDict):
    """A threshold event, as the bus gets it. `by`: its cause, such as a new `limit`. `sent`: the bus has the event."""

    event: Annotated[str, {"description": "The id of the event. Each copy of the event has the same id."}]
    counter: str
    id: str
    period: NotRequired[PeriodName]
    threshold: int
    percent: NotRequired[Annotated[int, {"description": "The threshold as a percentage of `limit`, the ceiling."}]]
    limit: NotRequired[int]
    every: NotRequired[Annotated[int, {"description": "The threshold is a multiple of this."}]]
    direction: Literal["up", "down"]
    value: int
    before: NotRequired[Annotated[int, {"description": "The number before the change; left out for a sum of shards."}]]
    by: NotRequired[Literal["change", "edit", "limit", "removal", "repair"]]
    at: Seconds
    sequence: Annotated[str, {"description": "Sorts the events of one number."}]
    sent: bool


class Events(TypedDict):
    """The newest events, the newest first."""

    events: list[Crossed]


def _refusal_of_events(counter: Counter) -> CallerError | None:
    """Returns why this counter has no events; None if it has events."""
    if counter.notifies:
        return None
    return InvalidInputError(f"{counter.name} has no thresholds: it makes no events.", field="counter")


@operation(
    "GET /drift",
    access=Access.READ,
    throttle=RATE_100_PER_S,
    needs=lambda _: needs.READ_WATERMARK | needs.on_ledger({"DRIFT": ["Query"]}),
    example={
        "drift": [{"counter": "likes", "id": "a91f", "drift": 5, "since": 1785542401, "confirmed": True}],
        "cursor": None,
    },
)
def get_drift(
    call: Call, *, limit: PageSize = fields.PAGE_SIZE_DEFAULT, cursor: Cursor | None = None
) -> Answer[Drifts]:
    """The numbers that drift, a page at a time

    How far each number is above (or below) the accepted changes, and since when. Without drift, the list is empty.
    """
    return Answer(rows.list_drift(call, limit, cursor))


@operation(
    "GET /details",  # the id is in the query: API Gateway decodes a path before it routes, and pages have slashes
    access=Access.READ,
    throttle=RATE_100_PER_S,
    needs=lambda counters: (
        needs.on_counts(counters, "Query")
        | needs.READ_WATERMARK
        | needs.on_ledger({"DRIFT": ["GetItem"], "HISTORY#": ["Query"]})
        | needs.on_ledger({"PROGRESS": ["GetItem"], "SERIES#": ["Query"], "RUNNING#": ["Query"]})
        | needs.to_read_scan(counters)
    ),
    raises=[NotFoundError, NotCountedError],
    example={
        "counter": "likes",
        "id": "a91f",
        "value": 56,
        "imported": {"amount": 40, "as_of": 1785542400},
        "shards": [{"shard": 0, "value": 51}, {"shard": 1, "value": 5}],
        "drift": {"drift": 5, "since": 1785542401, "confirmed": True},
        "judged_up_to": 1785542820,
        "repairs": [{"at": 1785456000, "amount": -50, "how": "ledger", "who": "ann", "why": "edited by hand on 3 May"}],
    },
)
def get_details(
    call: Call,
    *,
    counter: DeclaredCounter,
    id: Annotated[str, ID_OR_PAGE],
    period: Period | None = None,
) -> Answer[Details]:
    """One number: its shards, its drift, who repaired it, and how much of it was imported

    For any declared counter. At most 100 repairs, the newest first.
    """
    if counter.items is not None:
        scan_state.as_of(call.store, counter)  # raises NotCountedError until a scan has counted the items
    counted_id = fields.counted_id(counter, id, "id", call.pages)
    number = details.details(call, counter, periods.tally_id(counter, counted_id, clock.now_s(), period))
    return Answer({**number, "imported": read.total_imported(call, counter, counted_id)})


@operation(
    "GET /status",
    access=Access.READ,
    throttle=RATE_10_PER_S,
    needs=lambda counters: needs.PING_STORE
    | needs.READ_WATERMARK
    | needs.READ_FINGERPRINTS
    | needs.to_read_scan(counters)
    | needs.on_counts([counter for counter in counters if counter.items is not None], "Query")
    | needs.on_ledger({"DRIFT": ["Query"], "DEADLETTER": ["Query"], "HOLDS#": ["Query"]}),
    example={
        "well": False,
        "parts": [
            {"name": "store", "state": "ok", "line": "it answers", "see": "runbook.md#5xx"},
            {
                "name": "drift", "state": "wrong", "line": "1 confirmed, 0 not yet: likes a91f +5",
                "see": "runbook.md#drift",
            },
        ],
        "at": 1785542880, "as_of": 1785542760, "judged_up_to": 1785542640,
        "stack": "Tally-prod",
        "stage": "prod",
        "where": "--stack Tally-prod",
        "counters": [
            {
                "name": "likes", "visible": "now", "changes": "caller", "public": True,
                "listed": False, "counts": "children", "watched": None, "retired": False,
                "numbered": False, "notifies": False, "max_shards": 16,
                "delta": None, "start": 0, "floor": None, "ceiling": None, "debt": 0, "limit_overrides": False,
                "period": None, "timezone": None,
            }
        ],
    },
)  # fmt: skip
def get_status(call: Call) -> Answer[Status]:
    """The health of the stack

    The health checks that need no credentials of a person, and the declared counters. If a check fails to run, its
    state is `unknown`, and not `ok`.
    """
    of_items = {name: counter for name, counter in call.counters.items() if counter.items is not None}
    other_checks = {"items": lambda: health.items_check(call.store, of_items)} if of_items else {}
    return Answer(checks.status(call, call.counters, other_checks))


@operation(
    "GET /events",
    access=Access.READ,
    throttle=RATE_100_PER_S,
    needs=lambda _: needs.on_ledger({"EVENT#": ["Query"], "SENT#": ["Query"]}),
    refusal_for=_refusal_of_events,
    example={"events": [{**EXAMPLE, "sent": True}]},
)
def get_events(call: Call, *, limit: PageSize = fields.PAGE_SIZE_DEFAULT) -> Answer[Events]:
    """The newest events: numbers that crossed a threshold of their counter

    Tally keeps each event for nine days after the bus has accepted the event.
    """
    newest = islice(events.newest_events(call.store), limit)
    return Answer({"events": [{**event.detail, "sent": sent} for event, sent in newest]})
