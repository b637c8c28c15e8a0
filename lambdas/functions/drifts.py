"""What an operator looks at: whether all is well, the tallies that drift, and one tally in detail."""

import time

import counters
import operations
from tally import fields, pages
from tally.api.entry import Answer, Entry
from tally.counter import Counter
from tally.counting import periods
from tally.drift import details, rows, status
from tally.dynamo.client import Call


def get_drift(call: Call, *, limit: int = fields.PAGE_SIZE_DEFAULT, cursor: str | None = None) -> Answer:
    """The tallies that drift now, since when and by how much, a page at a time."""
    return Answer(rows.listed(call, limit, cursor, time.time()))


def get_status(call: Call) -> Answer:
    """Whether all is well, part by part, and which counters there are."""
    return Answer(status.status(call, counters.COUNTERS))


def get_details(call: Call, *, counter: Counter, id: str, period: str | None = None) -> Answer:
    """One tally of any counter: its shards, its drift, and who repaired it. `period`: None is the current one."""
    counted = fields.counted_id(counter, id, "id", handler.pages)
    return Answer(details.details(call, counter, periods.tally_id(counter, counted, time.time(), period)))


handler = Entry(
    {operations.GET_STATUS: get_status, operations.GET_DRIFT: get_drift, operations.GET_DETAILS: get_details},
    counters=counters.COUNTERS,
    pages=pages.declared(vars(counters)),
)
