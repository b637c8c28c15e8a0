"""The tallies that drift."""

import operations
from tally import drifting, fields
from tally.entry import Answer, Entry
from tally.store import Call


def get_drift(call: Call, *, limit: int = fields.PAGE_SIZE_DEFAULT, cursor: str | None = None) -> Answer:
    """What drifts now, since when and by how much, a page at a time."""
    return Answer(drifting.listed(call, limit, cursor))


handler = Entry({operations.GET_DRIFT: get_drift})
