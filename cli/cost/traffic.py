"""A month of one stage: what it takes alone, and with changes and reads spread evenly over the month."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from . import units
from .prices import Usage
from .template import PROD, Stage, stages
from .units import GB, KB, MONTH_S, Change

HTTP, BATCH, DIRECT = "http", "batch", "direct"
FUNCTION_GB = 0.5


@dataclass(frozen=True)
class Month:
    """What happens in a month."""

    plays: float = 0
    likes: float = 0
    visits: float = 0
    increments: float = 0
    holds: float = 0
    """Each is committed later."""
    reads: float = 0
    """Over HTTP."""
    via: str = HTTP
    """How changes arrive."""
    items: float = 10_000
    """Different videos, posts, pages and counters, all equally busy."""
    users: float = 0
    """Who sign in with Cognito."""
    tokens: float | None = None
    """Token requests of programs. None: one program keeps each of its tokens, if any counts or holds over HTTP."""
    edge: float | None = None
    """The share of the reads that CloudFront answers; None: there is no CloudFront."""
    log_sampling: float = 1.0

    @property
    def changes(self) -> Iterator[tuple[Change, float]]:
        """What is changed, and how often."""
        yield units.EXACT, self.plays + self.increments
        yield units.LIKE, self.likes
        yield units.ROLLUP, self.visits
        yield units.HOLD, self.holds
        yield units.COMMIT, self.holds

    @property
    def counters(self) -> int:
        """How many counters move; visits have one for crawlers too."""
        moved = (self.plays, self.likes, self.visits, self.visits, self.increments, self.holds)
        return len([amount for amount in moved if amount])


def usage(month: Month, stage: Stage | None = None) -> Usage:
    """What a month takes of everything that AWS bills. `stage`: prod by default."""
    stage = stage or stages()[PROD]
    used = Usage()
    _standing(stage, month, used)
    count(month, used)
    series(month, used, days=365)
    _requests(month, stage, used)
    consume(month, stage, used)
    _sweeps(month, stage, used)
    used["log-kept"] = used["log"] * units.LOG_COMPRESSED
    return used


def _standing(stage: Stage, month: Month, used: Usage) -> None:
    """What is billed for being there."""
    used["snapshot"] += sum(stage.snapshots_mb) / KB * MONTH_S
    used["alarm"] += stage.alarm_metrics
    used["dashboard"] += stage.dashboards
    used["metric"] += stage.idle_metrics
    if month.counters:
        used["metric"] += month.counters + units.METRICS_OF_TRAFFIC
    used["user"] += month.users
    programs = month.via == HTTP and (month.increments or month.holds)
    used["token"] += (units.TOKENS_A_MONTH if programs else 0) if month.tokens is None else month.tokens
    if month.edge is not None:
        used["rule"] += 6


def count(month: Month, used: Usage) -> None:
    """Write and read units of the changes themselves, and what stays of them."""
    per_batch = units.distinct(units.BATCH, month.items)
    for change, amount in month.changes:
        writes = change.writes
        if month.via == BATCH and change.packs:
            writes = units.packed(units.BATCH, per_batch)
        if month.via == BATCH and change.rolled_up:
            writes = units.RECEIPT_IN_TRANSACTION
        used["write"] += amount * writes
        used["read"] += amount * change.reads
        days = units.ROLLED_UP_RECEIPT_DAYS if change.rolled_up else units.RECEIPT_DAYS
        kept = amount * change.receipts * days * units.DAY_S / MONTH_S
        used["stored"] += kept * units.RECEIPT_BYTES / GB
    used["stored"] += month.likes * 12 * units.LIKE_BYTES / GB  # as after a year: likes stay
    used["recoverable"] = used["stored"]
    used["read"] += month.reads * units.READ


def series(month: Month, used: Usage, days: float) -> None:
    """What the fold writes for each tally and hour in which it moved, and the items of so many days: they stay."""
    a_day = sum(amount for _, amount in month.changes) * units.DAY_S / MONTH_S
    of_hours = 24 * units.distinct(a_day / 24, month.items)
    used["write"] += MONTH_S / units.DAY_S * of_hours * units.SERIES_WRITES
    of_days = units.distinct(a_day, month.items)
    stored = days * (of_days * units.SERIES_DAY_BYTES + of_hours * units.SERIES_HOUR_BYTES) / GB
    used["stored"] += stored
    used["recoverable"] += stored


def _requests(month: Month, stage: Stage, used: Usage) -> None:
    """The requests: API, functions, logs, traces, data."""
    changes = sum(amount * change.requests for change, amount in month.changes)
    at_origin = month.reads * (1 - (month.edge or 0))
    used["read"] -= (month.reads - at_origin) * units.READ
    invoked = changes / units.BATCH if month.via == BATCH else changes
    over_http = at_origin + (changes if month.via == HTTP else 0)
    used["http"] += over_http
    invoke(used, invoked + at_origin, units.REQUEST_MS, FUNCTION_GB)
    if month.via == BATCH:
        used["gb-second"] += changes * units.BATCH_ENTRY_MS / 1000 * FUNCTION_GB
    log = over_http * units.ACCESS_LINE + (changes + at_origin) * units.ANSWER_LINE * month.log_sampling
    log += invoked * units.METRICS_LINE
    used["log"] += log / GB
    if stage.traces_callers:
        trace(used, invoked + at_origin, MONTH_S)
    if month.edge is None:
        used["transfer"] += over_http * units.ANSWER_BYTES / GB
    else:
        at_edge = month.reads + over_http - at_origin
        used["edge"] += at_edge
        used["inspected"] += at_edge
        used["edge-transfer"] += at_edge * units.ANSWER_BYTES / GB
    busy = (invoked + at_origin) / MONTH_S * units.REQUEST_MS / 1000
    restores = min(invoked + at_origin, units.RESTORES_AN_HOUR * MONTH_S / 3600 * max(1.0, busy))
    used["restore"] += restores * FUNCTION_GB if stage.snapshots_mb else 0


def invoke(used: Usage, invocations: float, ms: float, gb: float) -> None:
    """Bill invocations with Lambda's own log lines."""
    used["invocation"] += invocations
    used["gb-second"] += invocations * ms / 1000 * gb
    used["log"] += invocations * units.LAMBDA_LINES / GB


def trace(used: Usage, invocations: float, seconds: float) -> None:
    """Bill the traces of invocations in this time. Those that X-Ray does not take have a longer line, too."""
    at_least = min(invocations, units.TRACED_PER_S * seconds)
    used["trace"] += at_least + units.TRACED_SHARE * (invocations - at_least)
    used["log"] += invocations * units.TRACE_ID / GB


def consume(month: Month, stage: Stage, used: Usage) -> None:
    """The two consumers, on both streams of each table, heartbeats and ends of windows included."""
    shards = max(units.SHARDS, math.ceil(used["write"] / MONTH_S / units.SHARD_WRITES_PER_S))
    per_s = 1 / MONTH_S / shards
    receipts = sum(amount * change.receipts for change, amount in month.changes) * per_s
    counts = sum(amount * change.counts for change, amount in month.changes) * per_s
    new = sum(amount * change.counts_new for change, amount in month.changes) * per_s
    rolled_up = sum(amount for change, amount in month.changes if change.rolled_up) * per_s
    heartbeat = 1 / 60
    batch = _Batch(month.items, stage, shards, used)
    updates = batch.read("rollup", receipts + heartbeat, rolled_up)
    batch.read("rollup", new + heartbeat, 0)
    batch.read("drift", receipts + heartbeat, receipts)
    batch.read("drift", counts + updates + heartbeat, counts + updates)


@dataclass(frozen=True)
class _Batch:
    """The batches that one consumer gets from each shard of one stream."""

    items: float
    stage: Stage
    shards: int
    used: Usage

    def read(self, consumer: str, records_per_s: float, effective_per_s: float) -> float:
        """Bill a consumer's batches of one stream. Returns the tallies that it updates, a second and shard.

        `effective_per_s`: the records that move something, of all that come.
        """
        used, per_s = self.used, units.batches_per_s(records_per_s)
        records = effective_per_s / per_s
        tallies = units.distinct(records, self.items)
        batches = per_s * MONTH_S * self.shards
        used["write"] += batches * (1 - min(1.0, tallies))  # where nothing moves, a batch moves its checkpoint only
        if consumer == "rollup":
            used["write"] += batches * units.rolled_up(records, self.items)
        else:
            used["write"] += batches * units.booked(tallies)
            used["read"] += batches * tallies * units.ENTRY_BYTES / KB / 4 * units.PAGE_READS
        used["read"] += batches  # of the checkpoint
        ends = MONTH_S / self.stage.window_s * self.shards
        memory_gb = self.stage.consumer_mb / KB
        invoke(used, batches, units.CONSUMER_MS, memory_gb)
        invoke(used, ends, units.WINDOW_END_MS, memory_gb)
        if consumer == "rollup":
            used["gb-second"] += batches * tallies * units.CONSUMER_TALLY_MS / 1000 * memory_gb
        if self.stage.traces_background:
            trace(used, batches + ends, MONTH_S / 2)  # a consumer has two streams
        return per_s * tallies if consumer == "rollup" else 0


def _sweeps(month: Month, stage: Stage, used: Usage) -> None:
    """The sweep of every minute: a heartbeat for each shard, the look for holds, and the judge."""
    minutes = MONTH_S / 60
    used["write"] += minutes * (units.JUDGE_WRITES + units.FOLD_WRITES + 2 * units.SHARDS)
    used["read"] += minutes * (units.QUIET_READS + units.FOLD_READS)
    changes = sum(amount for _, amount in month.changes) / minutes
    computes_ms = units.SWEEP_COMPUTES_MS + units.distinct(changes, month.items) / units.JUDGED_PER_S * 1000
    slower = max(1.0, units.CPU_MB / stage.sweep_mb)
    invoke(used, minutes, units.SWEEP_WAITS_MS + computes_ms * slower, stage.sweep_mb / KB)
    used["log"] += minutes * units.SWEEP_LINES / GB
    if stage.traces_background:
        trace(used, minutes, MONTH_S)
