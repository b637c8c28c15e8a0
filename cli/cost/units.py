"""What Tally takes of the things that AWS bills. The one place of these figures.

Tests compare them with what the engine bills, with the handlers, and with the bounds of `make bench`
(tests/invariants/test_cost.py, tests/integration/test_bill.py). Times in AWS and the sizes of Lambda's own log lines
are estimates: nobody has measured them in an account.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

MONTH_S = 730 * 3600
DAY_S = 24 * 3600
KB, GB = 1024, 1024**3


@dataclass(frozen=True)
class Change:
    """One kind of change, sent alone: its write and read units, and the stream records that follow."""

    writes: float
    reads: float = 0
    receipts: int = 1
    """Records of the receipts stream."""
    counts: int = 1
    """Records of the counts stream that the change itself causes."""
    counts_new: int = 0
    """Those of them that are new items, which the rollup looks at too."""
    rolled_up: bool = False


NOW = Change(writes=4)
SOON = Change(writes=1, counts=0, rolled_up=True)
CHILD = Change(writes=4, receipts=0, counts=2, counts_new=1)
CHILD_GONE = Change(writes=4, reads=1, receipts=0, counts=2)
HOLD = Change(writes=6)
COMMIT = Change(writes=4, receipts=0, counts=0)
RELEASE = Change(writes=8)
RECEIPT_IN_TRANSACTION = 2.0  # as any other item of up to 1 KB
UPDATE_IN_TRANSACTION = 2.0
BATCH = 90  # changes; up to 100 fit
READ = 1.0  # a tally, up to 16 shards


class Request(NamedTuple):
    """What one request of an operation takes: of something small, and at most."""

    reads: tuple[float, float] = (1, 1)
    answer_bytes: tuple[int, int] = (400, 1_000)
    """Headers included."""
    change: Change | None = None


OPERATIONS = {
    "visit": Request(change=SOON),
    "get_post": Request((1, 3), (500, 10_700)),  # of 10 KB
    "get_tallies": Request((1, 100), (450, 14_000)),  # as many as a request takes, with the longest ids
    "get_counter_badge": Request((1, 1), (1_100, 1_100)),
    "list_children": Request((0.5, 4), (400, 17_300)),  # 100 users with ids of 128 characters
    "get_visits": Request((2, 2), (450, 2_500)),  # people and crawlers
    "get_visits_badge": Request((1, 1), (1_100, 1_100)),
    "get_series": Request((4, 36), (1_400, 15_000)),  # a day of hours; a year of days
    "get_top": Request((2, 80), (3_600, 17_000)),  # the list of a day of short ids; of a month of long ones
    "get_receipts": Request((1, 100), (450, 70_000)),  # of 100 keys
    "get_beacon": Request((0, 0), (1_600, 2_600)),  # not compressed
    "get_console": Request((0, 0), (1_800, 3_000)),
    "get_console_file": Request((0, 0), (7_700, 51_500)),  # app.js; uPlot, not compressed
    "get_console_config": Request((0, 0), (600, 600)),
    "get_openapi": Request((0, 0), (135_000, 200_000)),
}
"""By the names of operations."""


def of(operation: str, *, reads: bool) -> Request:
    """What a request of this operation takes; by default a read of a number, or a change that is visible now."""
    return OPERATIONS.get(operation) or Request(change=None if reads else NOW)


# The streams: BATCH_SIZE, BATCHING_WINDOW and TUMBLING_WINDOW of stacks/streams.py.
BATCH_RECORDS = 1000
SHARDS = 4  # of each stream of a new table on demand
SHARD_WRITES_PER_S = 1000  # DynamoDB splits a partition above this
TALLIES_IN_TRANSACTION = 99  # beside the checkpoint
ENTRY_BYTES = 22  # in a segment of the journal, compressed; ids are UUIDs
SEGMENT_READS = 4  # the judge reads a segment up to three times, the fold of the series once
SERIES_WRITES = 1.1  # for each tally and hour in which it moved
SERIES_DAY_BYTES, SERIES_HOUR_BYTES = 170, 8  # of a day in which it moved, DynamoDB's own 100 included; of each hour

# A minute without traffic, beside two consumers' checkpoints for each heartbeat.
JUDGE_WRITES = 2
FOLD_WRITES = 1 / 20  # how far the series are
QUIET_READS = 57.0
FOLD_READS = 16.0  # the segments of a minute once more; each is a request, every 20 minutes
SWEEP_REQUESTS = 83  # one after the other, for four shards in each stream
JUDGED_PER_S = 200_000

# Milliseconds, of which nobody has measured any in an account.
REQUEST_MS = 15.0  # computes about 4 ms at 512 MB, and waits 5 to 10 ms for DynamoDB
BATCH_ENTRY_MS = 2.0  # beside that, for each change in a batch
CONSUMER_MS = 20.0  # a heartbeat or a small batch: two requests
CONSUMER_TALLY_MS = 0.3
WINDOW_END_MS = 2.0
SWEEP_WAITS_MS = 5.0 * SWEEP_REQUESTS
SWEEP_COMPUTES_MS = 60.0  # with a whole CPU
CPU_MB = 1769  # the memory that comes with one

# Bytes.
ACCESS_LINE, ANSWER_LINE, METRICS_LINE = 244, 276, 215
LAMBDA_LINES, TRACE_ID = 290, 110  # START, END and REPORT; in REPORT the trace
SWEEP_LINES = 3450
LOG_COMPRESSED = 0.15
RECEIPT_BYTES = 500  # DynamoDB's own 100 included
CHILD_BYTES = 250
RECEIPT_DAYS, ROLLED_UP_RECEIPT_DAYS = 1, 8

FUNCTION_GB = 0.5
TRACED_PER_S, TRACED_SHARE = 1.0, 0.05  # X-Ray's sampling for Lambda, which cannot be set
TOKENS_A_MONTH = 730  # of one program that keeps its token for the hour that it is valid
# Custom metrics that the sweep writes every minute while nothing drifts: of each counter whose drift is measured, of
# each consumer, of the stack.
METRICS_OF_COUNTER, METRICS_OF_CONSUMER, METRICS_OF_STACK = 1, 1, 3
# Replayed, Refused, Conflicts and Spilled; JournalSegments and JournalBytes; and Counted of each counter.
METRICS_OF_TRAFFIC = 6


def distinct(drawn: float, of: float) -> float:
    """How many different ones are among about `drawn` draws from `of` equally likely ones."""
    return max(min(drawn, 1.0), of * -math.expm1(-drawn / of))


def packed(changes: float, tallies: float) -> float:
    """Write units of each change in a batch with so many different tallies."""
    return RECEIPT_IN_TRANSACTION + UPDATE_IN_TRANSACTION * min(1.0, tallies / changes)


def rolled_up(records: float, items: float) -> float:
    """Write units to roll up the records of one batch, drawn from so many items, its checkpoints included."""
    full, rest = divmod(records, _drawn_until(TALLIES_IN_TRANSACTION, items))
    tallies = distinct(rest, items)
    transactions = full + min(1.0, rest)
    return UPDATE_IN_TRANSACTION * (transactions + full * TALLIES_IN_TRANSACTION + tallies)


def _drawn_until(different: int, of: float) -> float:
    """How many draws from `of` it takes until so many different ones are among them: as coupons are collected."""
    return sum(of / (of - seen) for seen in range(different)) if of > different else math.inf


def booked(tallies: float) -> float:
    """Write units to book a batch that moves so many tallies in the journal, its checkpoint included."""
    return UPDATE_IN_TRANSACTION * (min(1.0, tallies) + max(min(1.0, tallies), tallies * ENTRY_BYTES / KB))


def batches_per_s(records_per_s: float) -> float:
    """How often a stream shard invokes a consumer: at most once a second, unless batches are full."""
    return max(-math.expm1(-records_per_s), records_per_s / BATCH_RECORDS)
