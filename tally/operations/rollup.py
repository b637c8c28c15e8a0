"""The stream consumer that adds a change to its tally if only the receipt of the change was written."""

from collections.abc import Iterable

from tally.api import needs
from tally.api.background import StreamReader
from tally.api.needs import Table
from tally.counter import Counter
from tally.dynamo.keys import RECEIPT_HEARTBEAT_PREFIX
from tally.items import HEARTBEAT_PREFIX

READER = StreamReader(
    function="rollup",
    does="adds changes that spilled, or that show soon, to their tallies",
    streams={Table.RECEIPTS: ("INSERT", "MODIFY"), Table.COUNTS: ("INSERT",)},
    filter_attribute="rollup",
    key_prefixes={Table.RECEIPTS: RECEIPT_HEARTBEAT_PREFIX, Table.COUNTS: HEARTBEAT_PREFIX},
)


def needed(counters: Iterable[Counter]) -> needs.Needs:
    """Returns what the rollup needs of the tables."""
    return needs.to_consume("rollup") | needs.on_counts((one for one in counters if one.may_roll_up), "UpdateItem")
