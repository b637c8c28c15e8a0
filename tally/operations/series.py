"""Series: exactly how numbers moved by the hour and by the day, and which numbers moved most."""

from typing import Annotated, Literal, TypedDict

from tally import fields
from tally.api import needs
from tally.api.kind import choice
from tally.api.kinds import SERIES_TALLY, SPAN, TIME, TOP_SIZE, UNTIL, ZONE, DeclaredCounter
from tally.api.operation import RATE_10_PER_S, RATE_100_PER_S, Access, Answer, Call, operation
from tally.api.shapes import AsOf, Seconds
from tally.counter import Counter
from tally.dynamo import clock
from tally.errors import ForbiddenError, NotFoundError
from tally.series import hours, read, top

Point = TypedDict("Point", {"from": Seconds, "value": int})
Point.__doc__ = "One hour or day."


class RepairOfSeries(TypedDict):
    """A repair, which is in no hour or day of `series`, because it is not traffic."""

    at: Seconds
    value: int
    how: Annotated[str, {"description": "The proof: `ledger` (drift), `recount` (children), `rebuild` (lost changes)."}]
    added: Annotated[
        int,
        {"description": "The part of `value` that the series lack: an error from before `since`, or lost changes."},
    ]


class Series(TypedDict):
    """By how much a number moved in each hour or day. `from`: where the hour or day begins. `id`: empty for all ids."""

    counter: str
    id: str
    by: Literal["hour", "day"]
    series: list[Point]
    imports: Annotated[
        list[Point],
        {"description": "Imported rows by day, in UTC. They are not traffic, and in no hour or day of `series`."},
    ]
    repairs: list[RepairOfSeries]
    since: Annotated[
        int | None, {"minimum": 0, "description": "When the series begin, in seconds since 1970. Null: no series."}
    ]
    as_of: AsOf


class TopEntry(TypedDict):
    """One id, and by how much its number moved."""

    id: str
    value: Annotated[int, {"minimum": 1}]


class Top(TypedDict):
    """The ids whose numbers moved most in a span, the largest move first."""

    counter: str
    by: Literal["hour", "day", "month"]
    span: Annotated[str | None, {"description": "The hour, day or month, in UTC. Null: no hour is summed up yet."}]
    top: list[TopEntry]
    error_max: Annotated[int, {"minimum": 0, "description": "The most by which a value may be too low or too high."}]
    as_of: AsOf


SeriesTally = Annotated[tuple[str, str], SERIES_TALLY]
SeriesUnit = Annotated[str, choice("hour", "day", description="Whether each point is an hour or a day.")]
TopUnit = Annotated[str, choice("hour", "day", "month", description="The list's span: an hour, a day or a month.")]
From = Annotated[int, TIME]
To = Annotated[int, UNTIL]
Zone = Annotated[str, ZONE]
Span = Annotated[str, SPAN]
TopSize = Annotated[int, TOP_SIZE]
_PROGRESS = needs.on_ledger({"PROGRESS": ["GetItem"]})
_SERIES_NEEDS = _PROGRESS | needs.on_ledger({"SERIES#": ["Query"], "RUNNING#": ["Query"], "HISTORY#": ["Query"]})
_TOP_NEEDS = _PROGRESS | needs.on_ledger({"TOP#": ["Query"]})
_SERIES_EXAMPLE = {
    "counter": "plays",
    "id": "9f3a",
    "by": "hour",
    "series": [{"from": 1785535200, "value": 112}, {"from": 1785538800, "value": 97}],
    "imports": [{"from": 1785456000, "value": 1200}],
    "repairs": [{"at": 1785536000, "value": -50, "how": "ledger", "added": 0}],
    "since": 1785502800,
    "as_of": 1785542400,
}
_TOP_EXAMPLE = {
    "counter": "plays",
    "by": "hour",
    "span": "2026-07-31T13",
    "top": [{"id": "9f3a", "value": 1204}, {"id": "77b0", "value": 981}],
    "error_max": 0,
    "as_of": 1785542340,
}


@operation(
    "GET /series",
    access=Access.ANYONE,
    throttle=RATE_100_PER_S,
    needs=lambda _: _SERIES_NEEDS,
    raises=[NotFoundError, ForbiddenError],
    example=_SERIES_EXAMPLE,
    refusal_for=fields.refusal_of_public_read,
    is_cacheable=True,
)
def get_series(
    call: Call,
    *,
    of: SeriesTally,
    by: SeriesUnit = read.HOUR,
    from_: From | None = None,
    to: To | None = None,
    tz: Zone | None = None,
) -> Answer[Series]:
    """A number by the hour or by the day

    For a counter that anyone may read. From `since` on, every accepted change that is not an import is in exactly one
    hour. The current hour is complete up to `as_of`. `from` and `to` are rounded to whole hours or days.
    """
    counter = fields.declared_counter(of[0], "of", call.counters)
    if refusal := fields.refusal_of_public_read(counter, field="of"):
        raise refusal
    return _read_series(call, counter, of[1], by, from_, to, tz)


@operation(
    "GET /series/any",
    access=Access.READ,
    throttle=RATE_100_PER_S,
    needs=lambda _: _SERIES_NEEDS,
    raises=[NotFoundError],
    example={**_SERIES_EXAMPLE, "counter": "stock", "id": "7c20"},
)
def get_any_series(
    call: Call,
    *,
    of: SeriesTally,
    by: SeriesUnit = read.HOUR,
    from_: From | None = None,
    to: To | None = None,
    tz: Zone | None = None,
) -> Answer[Series]:
    """A number of any counter by the hour or by the day

    The rules are those of `GET /series`.
    """
    return _read_series(call, fields.declared_counter(of[0], "of", call.counters), of[1], by, from_, to, tz)


@operation(
    "GET /top",
    access=Access.ANYONE,
    throttle=RATE_10_PER_S,  # enough, because a list changes three times an hour
    needs=lambda _: _TOP_NEEDS,
    raises=[NotFoundError, ForbiddenError],
    example=_TOP_EXAMPLE,
    refusal_for=lambda counter: fields.refusal_of_listing(counter) or fields.refusal_of_series(counter),
    is_cacheable=True,
)
def get_top(
    call: Call,
    *,
    counter: DeclaredCounter,
    by: TopUnit = top.DAY,
    span: Span | None = None,
    limit: TopSize = fields.TOP_SIZE_MAX,
) -> Answer[Top]:
    """The ids that moved most in an hour, a day or a month

    For a counter whose ids anyone may list. The list of an hour is exact. The list of a longer span is merged from the
    lists of shorter spans, and `error_max` is the most by which a value may be wrong. Without `span`, the answer is the
    newest list, up to `as_of`.
    """
    return Answer(top.top_list(call, counter, by, span, limit), max_age_s=counter.cache_s)


@operation(
    "GET /top/any",
    access=Access.READ,
    throttle=RATE_100_PER_S,
    needs=lambda _: _TOP_NEEDS,
    raises=[NotFoundError],
    example={**_TOP_EXAMPLE, "counter": "stock"},
    refusal_for=fields.refusal_of_series,
)
def get_any_top(
    call: Call,
    *,
    counter: DeclaredCounter,
    by: TopUnit = top.DAY,
    span: Span | None = None,
    limit: TopSize = fields.TOP_SIZE_MAX,
) -> Answer[Top]:
    """The ids of any counter that moved most

    The rules are those of `GET /top`.
    """
    return Answer(top.top_list(call, counter, by, span, limit))


def _read_series(
    call: Call, counter: Counter, id_: str, by: str, from_s: int | None, to_s: int | None, zone: str | None
) -> Answer[Series]:
    if refusal := fields.refusal_of_series(counter, "of"):
        raise refusal
    series_id = fields.counted_id(counter, id_, "of", call.pages) if id_ else hours.TOTAL_ID  # of all ids
    zone = zone or (counter.timezone if counter.unique else None)  # visitors are distinct in a day of that zone
    series = read.read_series(call, counter, series_id, read.range_of(by, from_s, to_s, zone, clock.now_s()))
    return Answer(series, max_age_s=counter.cache_s)
