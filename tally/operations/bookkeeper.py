"""The stream consumer that books the expected and the observed amounts of each number."""

from collections.abc import Iterable

from tally.api import needs
from tally.api.background import StreamReader
from tally.api.needs import Table
from tally.counter import Counter

READER = StreamReader(
    function="bookkeeper",
    does="books what was accepted, and what the numbers did, in the ledger",
    streams={Table.RECEIPTS: ("INSERT", "MODIFY"), Table.COUNTS: ()},
    sends_events=True,
    # Only the judge waits for the bookkeeper, and not a reader. Each minute a heartbeat must be booked before the next
    # sweep. With a longer window it may be late, and batches may be so old that the alarm `iterator-age` starts.
    window_s=30,
)


def needed(counters: Iterable[Counter]) -> needs.Needs:
    """Returns what the bookkeeper needs of the tables."""
    every = list(counters)
    written = {"JUDGE": ["GetItem", "UpdateItem"], "SEGMENT#": ["PutItem"], "FINGERPRINT": ["UpdateItem"]}
    ledger = needs.on_ledger(written)
    return needs.to_consume("bookkeeper") | ledger | needs.to_make_events(every) | needs.to_send_events(every)
