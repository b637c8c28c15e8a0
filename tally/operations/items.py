"""The stream consumer that counts the items of the team's own tables."""

from collections.abc import Iterable

from tally.api import needs
from tally.api.background import StreamReader
from tally.counter import Counter
from tally.team.consumer import NAME, ItemsHandler


def reader(counters: Iterable[Counter]) -> StreamReader | None:
    """The reader of the tables whose items these count; None: none does."""
    tables = dict.fromkeys(one.items.table for one in counters if one.items is not None)
    return (
        StreamReader(NAME, "counts the items of the team's tables", {}, team_tables=tuple(tables)) if tables else None
    )


def needed(counters: Iterable[Counter]) -> needs.Needs:
    """What it needs of Tally's tables: it moves numbers and recounts, and reads scans, and keeps markers of items."""
    counting = [one for one in counters if one.items is not None]
    ledger = {"ITEMS": ["Query", "UpdateItem"], "SEEN#": ["BatchGetItem", "UpdateItem", "PutItem"]}
    if any(one.watch for one in counting):
        ledger["WATCHED#"] = ["UpdateItem"]
    return needs.to_consume(NAME) | needs.on_ledger(ledger) | needs.on_counts(counting, "UpdateItem")


handler = ItemsHandler
"""The Lambda function."""
