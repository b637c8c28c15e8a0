"""What a month of a stack takes of everything that AWS bills, and what strangers can make it take in a day."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import units
from .prices import Usage
from .units import DAY_S, FUNCTION_GB, GB, KB, MONTH_S, Change

STAGES = Path(__file__).with_name("stages.json")
DEV, PROD = "dev", "prod"
MANY = 1e9


@dataclass(frozen=True)
class Stage:
    """What of one stage is billed while it exists."""

    snapshots_mb: Sequence[int]
    """The memory of each function that starts from a snapshot."""
    sweep_mb: int
    consumer_mb: int
    window_s: int
    """The tumbling window of the streams: its end is an invocation more."""
    alarm_metrics: int
    """AWS bills an alarm for each metric that it looks at."""
    dashboards: int
    idle_metrics: int
    """Custom metrics that the sweep writes every minute."""
    traces_callers: bool
    """Those that callers wait for; `-c tracing=all` costs $7 more while nobody calls, and this does not bill it."""

    @classmethod
    def read(cls, template: Mapping[str, Any], counters: int, consumers: int) -> Stage:
        """From a CloudFormation template, and how many counters and consumers there are."""
        made: dict[str, list[Mapping[str, Any]]] = {}
        for resource in template["Resources"].values():
            made.setdefault(resource["Type"], []).append(resource.get("Properties", {}))
        functions = {function["Handler"].split(".")[1]: function for function in made["AWS::Lambda::Function"]}
        traced = {name for name, function in functions.items() if "TracingConfig" in function}
        metrics = units.METRICS_OF_COUNTER * counters + units.METRICS_OF_CONSUMER * consumers + units.METRICS_OF_STACK
        return cls(
            snapshots_mb=[function["MemorySize"] for function in functions.values() if "SnapStart" in function],
            sweep_mb=functions["sweep"]["MemorySize"],
            consumer_mb=functions["rollup"]["MemorySize"],
            window_s=made["AWS::Lambda::EventSourceMapping"][0]["TumblingWindowInSeconds"],
            alarm_metrics=sum(
                sum("MetricStat" in metric for metric in alarm.get("Metrics", ())) or 1
                for alarm in made["AWS::CloudWatch::Alarm"]
            ),
            dashboards=len(made["AWS::CloudWatch::Dashboard"]),
            idle_metrics=metrics,
            traces_callers=bool(traced - {"sweep", "rollup", "bookkeeper"}),
        )


@functools.cache
def stages() -> dict[str, Stage]:
    """By name: what `make cost` read from the templates of dev and prod."""
    return {name: Stage(**stage) for name, stage in json.loads(STAGES.read_text(encoding="utf-8")).items()}


@dataclass(frozen=True)
class Month:
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
    batch: bool = False
    """Changes come from other functions, 90 at a time, and not over HTTP."""
    items: float = 10_000
    """Different ids, all equally busy."""
    users: float = 0
    """Who sign in with Cognito."""
    kept_days: float = 365
    """For so long children and series have been kept, which stay."""

    @property
    def changes(self) -> Iterator[tuple[Change, float]]:
        """What is changed, and how often."""
        yield units.NOW, self.now
        yield units.SOON, self.soon
        yield units.CHILD, self.children
        yield units.HOLD, self.holds
        yield units.COMMIT, self.holds

    @property
    def requests(self) -> float:
        """The changes: each is a request, or an entry of a batch."""
        return sum(amount for _, amount in self.changes)


def usage(month: Month, stage: Stage | None = None) -> Usage:
    """What a month takes of everything that AWS bills. `stage`: prod by default."""
    stage = stage or stages()[PROD]
    used = Usage()
    used["snapshot"] += sum(stage.snapshots_mb) / KB * MONTH_S
    used["alarm"] += stage.alarm_metrics
    used["dashboard"] += stage.dashboards
    moved = sum(map(bool, (month.now, month.soon, month.children, month.holds)))
    used["metric"] += stage.idle_metrics + (moved + units.METRICS_OF_TRAFFIC if moved else 0)
    used["user"] += month.users
    used["token"] += units.TOKENS_A_MONTH if month.holds and not month.batch else 0
    _count(month, used)
    _requests(month, stage, used)
    _consume(month, stage, used)
    _sweeps(month, stage, used)
    used["log-kept"] = used["log"] * units.LOG_COMPRESSED
    return used


def _count(month: Month, used: Usage) -> None:
    """Units of the changes and reads themselves, and of their series; what is stored of them."""
    days = month.kept_days
    per_batch = units.distinct(units.BATCH, month.items)
    for change, amount in month.changes:
        writes = change.writes
        if month.batch and change is units.NOW:
            writes = units.packed(units.BATCH, per_batch)
        if month.batch and change.rolled_up:
            writes = units.RECEIPT_IN_TRANSACTION
        used["write"] += amount * writes
        used["read"] += amount * change.reads
        kept_days = units.ROLLED_UP_RECEIPT_DAYS if change.rolled_up else units.RECEIPT_DAYS
        used["stored"] += amount * change.receipts * kept_days * DAY_S / MONTH_S * units.RECEIPT_BYTES / GB
    used["stored"] += month.children * days * DAY_S / MONTH_S * units.CHILD_BYTES / GB  # they stay
    a_day = month.requests * DAY_S / MONTH_S
    of_hours, of_days = 24 * units.distinct(a_day / 24, month.items), units.distinct(a_day, month.items)
    used["write"] += MONTH_S / DAY_S * of_hours * units.SERIES_WRITES
    used["stored"] += days * (of_days * units.SERIES_DAY_BYTES + of_hours * units.SERIES_HOUR_BYTES) / GB
    used["recoverable"] = used["stored"]
    used["read"] += month.reads * units.READ


def _requests(month: Month, stage: Stage, used: Usage) -> None:
    """The requests: API, functions, logs, traces, data."""
    invoked = month.reads + (month.requests / units.BATCH if month.batch else month.requests)
    over_http = month.reads + (0 if month.batch else month.requests)
    used["http"] += over_http
    _invoke(used, invoked, units.REQUEST_MS, FUNCTION_GB)
    used["gb-second"] += month.requests * units.BATCH_ENTRY_MS / 1000 * FUNCTION_GB if month.batch else 0
    log = over_http * units.ACCESS_LINE + (month.requests + month.reads) * units.ANSWER_LINE
    used["log"] += (log + (invoked - month.reads) * units.METRICS_LINE) / GB
    if stage.traces_callers:
        _trace(used, invoked, MONTH_S)
    used["transfer"] += over_http * units.Request().answer_bytes[0] / GB


def _invoke(used: Usage, invocations: float, ms: float, gb: float) -> None:
    """Bill invocations with Lambda's own log lines."""
    used["invocation"] += invocations
    used["gb-second"] += invocations * ms / 1000 * gb
    used["log"] += invocations * units.LAMBDA_LINES / GB


def _trace(used: Usage, invocations: float, seconds: float) -> None:
    """Bill the traces of invocations in this time. Those that X-Ray does not take have a longer line, too."""
    at_least = min(invocations, units.TRACED_PER_S * seconds)
    used["trace"] += at_least + units.TRACED_SHARE * (invocations - at_least)
    used["log"] += invocations * units.TRACE_ID / GB


def _consume(month: Month, stage: Stage, used: Usage) -> None:
    """The two consumers, on both streams of each table, heartbeats and ends of windows included."""
    shards = max(units.SHARDS, math.ceil(used["write"] / MONTH_S / units.SHARD_WRITES_PER_S))
    memory_gb = stage.consumer_mb / KB

    def a_second(number: str) -> float:
        return sum(amount * float(getattr(change, number)) for change, amount in month.changes) / MONTH_S / shards

    def read(records_per_s: float, moving_per_s: float, *, rollup: bool) -> float:
        """Bill a consumer's batches of one stream; the tallies that it updates, a second and shard."""
        per_s = units.batches_per_s(records_per_s + 1 / 60)  # a heartbeat each minute
        records, batches = moving_per_s / per_s, per_s * MONTH_S * shards
        tallies = units.distinct(records, month.items)
        used["write"] += batches * (1 - min(1.0, tallies))  # where nothing moves, a batch moves its checkpoint only
        used["write"] += batches * (units.rolled_up(records, month.items) if rollup else units.booked(tallies))
        used["read"] += batches  # of the checkpoint
        ends = MONTH_S / stage.window_s * shards
        _invoke(used, batches, units.CONSUMER_MS, memory_gb)
        _invoke(used, ends, units.WINDOW_END_MS, memory_gb)
        if rollup:
            used["gb-second"] += batches * tallies * units.CONSUMER_TALLY_MS / 1000 * memory_gb
        else:
            used["read"] += batches * tallies * units.ENTRY_BYTES / KB / 4 * units.SEGMENT_READS
        return per_s * tallies

    receipts, counts = a_second("receipts"), a_second("counts")
    updates = read(receipts, month.soon / MONTH_S / shards, rollup=True)
    read(a_second("counts_new"), 0, rollup=True)
    read(receipts, receipts, rollup=False)
    read(counts + updates, counts + updates, rollup=False)


def _sweeps(month: Month, stage: Stage, used: Usage) -> None:
    """The sweep of every minute: a heartbeat for each shard, the look for holds, and the judge."""
    minutes = MONTH_S / 60
    used["write"] += minutes * (units.JUDGE_WRITES + units.FOLD_WRITES + 2 * units.SHARDS)
    used["read"] += minutes * (units.QUIET_READS + units.FOLD_READS)
    judged = units.distinct(month.requests / minutes, month.items)
    computes_ms = units.SWEEP_COMPUTES_MS + judged / units.JUDGED_PER_S * 1000
    slower = max(1.0, units.CPU_MB / stage.sweep_mb)
    _invoke(used, minutes, units.SWEEP_WAITS_MS + computes_ms * slower, stage.sweep_mb / KB)
    used["log"] += minutes * units.SWEEP_LINES / GB


def worst_day(*, dear: bool) -> Usage:
    """What strangers take in a day, beside what prod costs anyway: each anonymous route at its throttle.

    `dear`: each request names another id, and reads ask for the longest answers; else all name the same one.
    """
    from api.operation import Access
    from counters import COUNTERS
    from declarations import OPERATIONS

    days, more, now, soon, reads = MONTH_S / DAY_S, Usage(), 0.0, 0.0, 0.0
    for route in (route for one in OPERATIONS for route in one.routes(COUNTERS)):
        if route.access is Access.ANYONE:
            number = route.throttle.rate_per_s * MONTH_S
            request = units.of(route.operation.name, reads=route.method == "GET")
            if request.change:
                now += number * (not request.change.rolled_up)
                soon += number * request.change.rolled_up
            else:
                reads += number
                more["read"] += number * (request.reads[dear] - units.READ)
                more["transfer"] += number * (request.answer_bytes[dear] - units.Request().answer_bytes[0]) / GB
    used = usage(Month(now=now, soon=soon, reads=reads, items=MANY if dear else 1, kept_days=days))
    idle = usage(Month())
    return Usage({id_: (used[id_] + more[id_] - idle[id_]) / days for id_ in used})
