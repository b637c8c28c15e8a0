"""The tallies that drift."""

import time

import operations
from tally import fields
from tally.api.entry import Answer, Entry
from tally.drift import rows
from tally.dynamo.client import Call


def get_drift(call: Call, *, limit: int = fields.PAGE_SIZE_DEFAULT, cursor: str | None = None) -> Answer:
    """The tallies that drift now, since when and by how much, a page at a time."""
    return Answer(rows.listed(call, limit, cursor, time.time()))


handler = Entry({operations.GET_DRIFT: get_drift})
