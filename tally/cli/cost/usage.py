"""What a month of a stack takes of everything that AWS bills."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from . import units
from .units import DAYS, FUNCTION_GB, GB, KB, MONTH_S, Change, Stage

Usage = defaultdict[str, float]
"""Quantities by the ids of their prices. They are averages, so they have fractions."""


class Month(NamedTuple):
    """What happens in a month, evenly."""

    now: float = 0
    """Changes of counters that are visible now."""
    soon: float = 0
    """Changes of counters that are visible soon."""
    children: float = 0
    """Likes and other children."""
    holds: float = 0
    """Each is committed later."""
    reads: float = 0
    users: float = 0
    """Who sign in with Cognito."""
    items: float = 10_000
    """Different ids, all equally busy."""
    batch: bool = False
    """Changes come from other functions, 90 at a time, and not over HTTP."""

    @property
    def changes(self) -> Iterator[tuple[Change, float]]:
        """What is changed, and how often."""
        yield units.NOW, self.now
        yield units.SOON, self.soon
        yield units.CHILD, self.children
        yield units.HOLD, self.holds
        yield units.COMMIT, self.holds

    @property
    def changed(self) -> float:
        """How many changes: each is a request, or an entry of a batch."""
        return sum(amount for _, amount in self.changes)


def usage(month: Month, stage: Stage) -> Usage:
    """What a month of a stage takes of everything that AWS bills."""
    used = Usage(float)
    used["snapshot"] = stage.snapshots * FUNCTION_GB * MONTH_S
    used["alarm"] = stage.alarm_metrics
    used["dashboard"] = 1
    moved = sum(map(bool, (month.now, month.soon, month.children, month.holds)))
    used["metric"] = units.METRICS + (moved + units.METRICS_OF_TRAFFIC if moved else 0)
    used["user"] = month.users
    used["token"] = units.TOKENS if month.holds and not month.batch else 0
    _count(month, used)
    _requests(month, stage, used)
    _consume(month, used)
    _sweeps(stage, used)
    used["log-kept"] = used["log"] * units.LOG_COMPRESSED
    return used


def _count(month: Month, used: Usage) -> None:
    """Units of the changes and reads themselves, and of their series; what is stored of them."""
    used["read"] += month.reads * units.READ
    for change, amount in month.changes:
        used["write"] += amount * change.writes
        kept_days = units.ROLLED_UP_RECEIPT_DAYS if change.rolled_up else units.RECEIPT_DAYS
        used["stored"] += amount * change.receipts * kept_days / DAYS * units.RECEIPT_BYTES / GB
    a_day = month.changed / DAYS
    of_days, of_hours = units.distinct(a_day, month.items), 24 * units.distinct(a_day / 24, month.items)
    used["write"] += DAYS * of_hours * units.SERIES_WRITES
    series_bytes = of_days * units.SERIES_DAY_BYTES + of_hours * units.SERIES_HOUR_BYTES
    used["stored"] += units.KEPT_DAYS * (month.children / DAYS * units.CHILD_BYTES + series_bytes) / GB
    used["recoverable"] = used["stored"]


def _requests(month: Month, stage: Stage, used: Usage) -> None:
    """The requests: API, functions, logs, traces, data."""
    over_http = month.reads + (0 if month.batch else month.changed)
    changing = month.changed / units.BATCH if month.batch else month.changed
    invoked = month.reads + changing
    used["http"] += over_http
    used["transfer"] += over_http * units.ANSWER_BYTES / GB
    _invoke(used, invoked, units.REQUEST_MS, FUNCTION_GB)
    used["gb-second"] += month.changed * units.BATCH_ENTRY_MS / 1000 * FUNCTION_GB if month.batch else 0
    answers = stage.logged * (month.changed + month.reads)
    used["log"] += (over_http * units.ACCESS_LINE + answers * units.ANSWER_LINE) / GB
    if stage.traced:
        traced = min(invoked, units.TRACED_PER_S * MONTH_S)
        used["trace"] += traced + units.TRACED_SHARE * (invoked - traced)


def _invoke(used: Usage, invocations: float, ms: float, gb: float) -> None:
    """Bill invocations. Lambda itself logs only those that fail."""
    used["invocation"] += invocations
    used["gb-second"] += invocations * ms / 1000 * gb


def _consume(month: Month, used: Usage) -> None:
    """The two consumers, on both streams of each table, heartbeats and ends of windows included.

    The bookkeeper meters the changes of a batch in a line for each counter.
    """
    shards = max(units.SHARDS, math.ceil(used["write"] / MONTH_S / units.SHARD_WRITES_PER_S))

    def consume(records: float, moving: float, cost: Callable[[float], float], metered: Sequence[float] = ()) -> float:
        """Bill a consumer's batches of one stream. Returns how many tallies they move. `metered`: each counter's."""
        batches = units.batches_per_s(records / MONTH_S / shards + 1 / 60) * MONTH_S * shards  # a heartbeat each minute
        tallies = units.distinct(moving / batches, month.items)
        used["write"] += batches * (1 - min(1.0, tallies))  # where nothing moves, a batch moves its checkpoint only
        used["write"] += batches * cost(tallies)
        used["read"] += batches  # of the checkpoint
        used["log"] += sum(min(batches, changes) for changes in metered) * units.METRICS_LINE / GB
        _invoke(used, batches, units.CONSUMER_MS, FUNCTION_GB)
        _invoke(used, MONTH_S / units.WINDOW_S * shards, units.WINDOW_END_MS, FUNCTION_GB)
        return batches * tallies

    receipts = sum(amount * change.receipts for change, amount in month.changes)
    counts = sum(amount * change.counts for change, amount in month.changes)
    updated = consume(receipts, month.soon, units.rolled_up)
    consume(sum(amount * change.counts_new for change, amount in month.changes), 0, units.rolled_up)
    booked = consume(receipts, receipts, units.booked, (month.now, month.soon, month.holds))
    booked += consume(counts + updated, counts + updated, units.booked, (month.children,))
    used["read"] += booked * units.ENTRY_BYTES / KB / 4 * units.SEGMENT_READS


def _sweeps(stage: Stage, used: Usage) -> None:
    """The sweep of every minute."""
    minutes = MONTH_S / 60
    used["write"] += minutes * (units.JUDGE_WRITES + 2 * units.SHARDS)
    used["read"] += minutes * (units.QUIET_READS + units.FOLD_READS)
    computes_ms = units.SWEEP_COMPUTES_MS * max(1.0, units.CPU_MB / stage.sweep_mb)
    _invoke(used, minutes, units.SWEEP_WAITS_MS + computes_ms, stage.sweep_mb / KB)
    used["log"] += minutes * units.SWEEP_LINES / GB
