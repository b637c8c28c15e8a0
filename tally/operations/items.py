"""The stream consumer that counts the items of the team's own tables."""

from collections.abc import Iterable

from tally.api import needs
from tally.api.background import StreamReader
from tally.counter import Counter
from tally.operations import ITEMS_CONSUMER


def reader(counters: Iterable[Counter]) -> StreamReader | None:
    """Returns the reader of the tables whose items these counters count. Returns None if no counter counts items."""
    tables = tuple(dict.fromkeys(one.items.table for one in counters if one.items is not None))
    does = "counts the items of the team's tables"
    return StreamReader(ITEMS_CONSUMER, does, {}, team_tables=tables) if tables else None


def needed(counters: Iterable[Counter]) -> needs.Needs:
    """Returns what the consumer needs of Tally's tables."""
    counting = [one for one in counters if one.items is not None]
    ledger = {"ITEMS": ["Query", "UpdateItem"], "SEEN#": ["BatchGetItem", "UpdateItem", "PutItem"]}
    if any(one.watch for one in counting):
        ledger["WATCHED#"] = ["UpdateItem"]
    return needs.to_consume(ITEMS_CONSUMER) | needs.on_ledger(ledger) | needs.on_counts(counting, "UpdateItem")
