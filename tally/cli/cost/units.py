"""What Tally takes of the things that AWS bills. The one place of these figures.

Tests compare them with what the engine bills and with the bounds of `make bench` (tests/invariants/test_cost.py,
tests/integration/test_sweep.py), with what functions log, and with the templates (tests/infra/test_bill.py). Times in
AWS and the sizes of Lambda's own log lines are estimates: nobody has measured them in an account.
"""

from __future__ import annotations

import math
from typing import NamedTuple

MONTH_S = 730 * 3600
DAYS = 730 / 24  # of a month
KB, GB = 1024, 1024**3


class Change(NamedTuple):
    """One kind of change, sent alone: its write units, and the stream records that follow."""

    writes: float
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
HOLD = Change(writes=6)
COMMIT = Change(writes=4, receipts=0, counts=0)
IN_TRANSACTION = 2.0  # an item of up to 1 KB
BATCH = 90  # changes; up to 100 fit
READ = 1.0  # a tally, up to 16 shards


class Stage(NamedTuple):
    """What of a stage is billed while it exists. Beside that, each has a dashboard and the metrics of a quiet sweep."""

    snapshots: int
    """Functions that start from a snapshot."""
    sweep_mb: int
    alarm_metrics: int
    """AWS bills an alarm for each metric that it looks at."""
    logged: float
    """The share of the invocations that log their successes."""
    traced: bool
    """Whether X-Ray traces what callers wait for."""


STAGES = {"dev": Stage(0, 512, 28, 1, False), "prod": Stage(9, 1769, 56, 0.05, False)}
FUNCTION_GB = 0.5  # of each function but the sweep of prod
METRICS = 17  # custom ones of a quiet sweep: of each counter whose drift is measured, of each consumer, of the stack
METRICS_OF_TRAFFIC = 6  # and one of each counter that moves

# The streams: BATCH_RECORDS, BATCHING_WINDOW_S and TUMBLING_WINDOW_S of tally/contract/described.py.
BATCH_RECORDS = 1000
WINDOW_S = 900  # its end is an invocation more
SHARDS = 4  # of each stream of a new table on demand
SHARD_WRITES_PER_S = 1000  # DynamoDB splits a partition above this
TALLIES_IN_TRANSACTION = 99  # beside the checkpoint
ENTRY_BYTES = 22  # in a segment of the journal, compressed; ids are UUIDs
SEGMENT_READS = 4  # the judge reads a segment up to three times, the fold of the series once
SERIES_WRITES = 1.1  # for each tally and hour in which it moved
SERIES_DAY_BYTES, SERIES_HOUR_BYTES = 170, 8  # of a day in which it moved, DynamoDB's own 100 included; of each hour

# A sweep, each minute: it looks at what is due, judges, and folds the series. Each shard's heartbeat is a write more.
JUDGE_WRITES = 2
QUIET_READS, FOLD_READS = 62.0, 16.0
SWEEP_REQUESTS = 88  # one after the other, for four shards in each stream

# Milliseconds, of which nobody has measured any in an account.
REQUEST_MS = 15.0  # computes about 4 ms at 512 MB, and waits 5 to 10 ms for DynamoDB
BATCH_ENTRY_MS = 10.0  # beside that, for each change in a batch: one waits for DynamoDB after the other
CONSUMER_MS = 20.0  # a heartbeat or a small batch: two requests
WINDOW_END_MS = 2.0
SWEEP_WAITS_MS = 5.0 * SWEEP_REQUESTS
SWEEP_COMPUTES_MS = 60.0  # with a whole CPU
CPU_MB = 1769  # the memory that comes with one

# Bytes.
EVENT = 26  # that CloudWatch adds to each line
ACCESS_LINE, ANSWER_LINE, METRICS_LINE = 244, 312, 215
SWEEP_LINES = 3450
LOG_COMPRESSED = 0.15
ANSWER_BYTES = 400  # headers included
RECEIPT_BYTES, CHILD_BYTES = 500, 250  # DynamoDB's own 100 included
RECEIPT_DAYS, ROLLED_UP_RECEIPT_DAYS = 1, 8
KEPT_DAYS = 365  # for so long children and series have been kept, which stay

TRACED_PER_S, TRACED_SHARE = 1.0, 0.05  # X-Ray's sampling for Lambda, which cannot be set
TOKENS = 730  # a month, of one program that keeps its token for the hour that it is valid


def distinct(drawn: float, of: float) -> float:
    """How many different ones are among about `drawn` draws from `of` equally likely ones."""
    return max(min(drawn, 1.0), of * -math.expm1(-drawn / of))


def rolled_up(tallies: float) -> float:
    """Write units to roll up a batch that moves so many tallies, its checkpoints included."""
    return IN_TRANSACTION * (tallies + max(min(1.0, tallies), tallies / TALLIES_IN_TRANSACTION))


def booked(tallies: float) -> float:
    """Write units to book a batch that moves so many tallies in the journal, its checkpoint included."""
    return IN_TRANSACTION * (min(1.0, tallies) + max(min(1.0, tallies), tallies * ENTRY_BYTES / KB))


def batches_per_s(records_per_s: float) -> float:
    """How often a stream shard invokes a consumer: at most once a second, unless batches are full."""
    return max(-math.expm1(-records_per_s), records_per_s / BATCH_RECORDS)
