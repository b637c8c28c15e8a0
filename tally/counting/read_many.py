"""Reads many tallies in as few requests as possible, and sends the requests at the same time.

One BatchGetItem reads all tallies of unsharded counters, which have one item each. Any other tally may have many items,
which only a Query of its partition finds. Threads send these Queries.
"""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor

from ..counter import Counter
from ..dynamo import queries
from ..dynamo.client import Call
from ..dynamo.keys import Item
from ..errors import StoreBusyError
from . import limits, tallies
from .tallies import Tally

READERS = 16  # threads of a process: a thread mostly waits for DynamoDB
_pool = ThreadPoolExecutor(READERS, "reader")  # starts its threads when there is something to read


def read(call: Call, wanted: Collection[Tally]) -> dict[Tally, dict[str, int]]:
    """Returns `value` of at most 100 different tallies, with the members about limits, each strongly consistent.

    Costs 1 RCU for each tally, and 1 RCU more if a period has no copy of the override. The values are not of one
    moment. If one tally cannot be read, raises StoreBusyError, or what botocore's error maps to.
    """
    unsharded = [tally for tally in wanted if tally.counter.has_version]
    sharded = [tally for tally in wanted if not tally.counter.has_version]
    reads = [_pool.submit(_read_sharded, call, tally) for tally in sharded]
    try:
        numbers: dict[Tally, dict[str, int]] = {}
        keys = [tallies.key(tally.counter, tally.id, shard=0) for tally in unsharded]
        items = queries.get_each(call, call.store.settings.counts_table, keys) if unsharded else []
        bounds = limits.limits_from_items(call, dict[tuple[Counter, str], Item](zip(unsharded, items, strict=True)))
        for tally, item in zip(unsharded, items, strict=True):
            value = tallies.state_of(tally.counter, item).value
            numbers[tally] = {"value": value, **limits.answer_members(*tally, value, bounds[tally])}
        return numbers | {tally: {"value": read.result()} for tally, read in zip(sharded, reads, strict=True)}
    finally:
        for pending in reads:
            pending.cancel()  # after a failure, nobody needs the reads that have not begun


def _read_sharded(call: Call, tally: Tally) -> int:
    """Returns the sum over the shards of a tally. Raises StoreBusyError if the call's time is over."""
    if call.store.clock() >= call.deadline_s:
        raise StoreBusyError("There was no time left.")
    return tallies.sum_of_shards(tally.counter, tallies.read_shards(call, *tally))
