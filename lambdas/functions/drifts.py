"""What the ledger says: whether all is well, which tallies drift, how they moved by the hour, and which moved most."""

import time
from typing import Any

import counters
import operations
from tally import fields, pages
from tally.api.entry import Answer, Entry
from tally.counter import Counter
from tally.counting import periods
from tally.drift import details, looks, rows
from tally.dynamo.client import Call
from tally.series import hours, read, top
from tally.shipped import LIKES, PLAYS, VISITS


def get_drift(call: Call, *, limit: int = fields.PAGE_SIZE_DEFAULT, cursor: str | None = None) -> Answer:
    """The tallies that drift now, since when and by how much, a page at a time."""
    return Answer(rows.listed(call, limit, cursor, time.time()))


def get_status(call: Call) -> Answer:
    """Whether all is well, part by part, and which counters there are."""
    return Answer(looks.status(call, counters.COUNTERS))


def get_details(call: Call, *, counter: Counter, id: str, period: str | None = None) -> Answer:
    """One tally of any counter: its shards, its drift, and who repaired it. `period`: None is the current one."""
    counted = fields.counted_id(counter, id, "id", handler.pages)
    return Answer(details.details(call, counter, periods.tally_id(counter, counted, time.time(), period)))


def get_plays_series(call: Call, *, video_id: str, **asked: Any) -> Answer:
    """How often the video was played in each hour or day."""
    return get_series(call, counter=PLAYS, id=video_id, **asked)


def get_likes_series(call: Call, *, post_id: str, **asked: Any) -> Answer:
    """By how much the likes of the post moved."""
    return get_series(call, counter=LIKES, id=post_id, **asked)


def get_visits_series(call: Call, *, url: str, **asked: Any) -> Answer:
    """How often the page was visited by people."""
    return get_series(call, counter=VISITS, id=url, **asked)


def get_series(
    call: Call,
    *,
    counter: Counter,
    id: str,
    by: str = read.HOUR,
    from_s: int | None = None,
    to_s: int | None = None,
    zone: str | None = None,
) -> Answer:
    """By how much a tally moved in each hour or day."""
    found = read.read(call, counter, id, read.range_of(by, from_s, to_s, zone, time.time()))
    return Answer(found, max_age_s=counter.kept_s)


def get_total_series(call: Call, *, counter: Counter, **asked: Any) -> Answer:
    """By how much all tallies of a counter moved together."""
    return get_series(call, counter=counter, id=hours.TOTAL, **asked)


def get_top(
    call: Call, *, counter: str | Counter, by: str = top.DAY, span: str | None = None, limit: int = fields.TOP_SIZE_MAX
) -> Answer:
    """The tallies of a counter that moved most."""
    which = counters.COUNTERS[counter] if isinstance(counter, str) else counter
    return Answer(top.over(call, which, by, span, limit), max_age_s=which.kept_s)


handler = Entry(
    {
        operations.GET_STATUS: get_status,
        operations.GET_DRIFT: get_drift,
        operations.GET_DETAILS: get_details,
        operations.GET_PLAYS_SERIES: get_plays_series,
        operations.GET_LIKES_SERIES: get_likes_series,
        operations.GET_VISITS_SERIES: get_visits_series,
        operations.GET_SERIES: get_series,
        operations.GET_TOTAL_SERIES: get_total_series,
        operations.GET_TOP: get_top,
        operations.GET_COUNTER_TOP: get_top,
    },
    counters=counters.COUNTERS,
    pages=pages.declared(vars(counters)),
)
