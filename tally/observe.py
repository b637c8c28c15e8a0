"""Logs and metrics: structured JSON lines and EMF, both through Powertools.

An invocation gathers its metrics and writes them at its end, one line for each set of dimensions. Two stages of an
account must not share a metric, so `service` is the name of their stack. A dimension is never an id, because
CloudWatch bills each dimension. No metric has more dimensions than an alarm or a widget shows.
"""

from __future__ import annotations

import os
from collections import Counter as Multiset
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from aws_lambda_powertools import Logger
from aws_lambda_powertools.metrics import EphemeralMetrics, MetricUnit

SERVICE = os.environ.get("POWERTOOLS_SERVICE_NAME", "tally")
"""The dimension of every metric, and a field of every log line: the name of the stack. The stack sets it."""
CODE_VERSION = os.environ.get("TALLY_VERSION", "dev")
"""The version of the code that runs."""
NAMESPACE = "Tally"
COUNTER, CONSUMER, VERSION = "counter", "consumer", "version"  # other dimensions: a metric has at most one of them
# The metrics. docs/reference.md lists them with these texts, of which the first words name the dimension.
COUNTED = "Counted"
"""By counter: changes that the bookkeeper has booked, each once: accepted changes, and children that were put or
deleted, without imports. If the bookkeeper stands still, so does this metric: see `WatermarkAgeSeconds`."""
DRIFT_CONFIRMED = "DriftConfirmed"
"""By counter: tallies whose drift has stood for five judged minutes; 0 only after a sweep has looked at all of them."""
UNCOUNTED = "UncountedItems"
"""By counter with `items`: items that count for nothing because of a fault. The log and `tally status` name one item of
each fault. There is no data while there are no such items."""
WATERMARK_AGE = "WatermarkAgeSeconds"
"""By consumer: the age of the watermark, up to which the consumer has provably passed every stream shard. Of `rollup`
it is the age of `as_of`. Of `bookkeeper` it says how far judging is behind: two to four minutes."""
DEAD_LETTERS = "DeadLetters"
"""By consumer: records that the consumer could not apply, and kept as dead letters."""
FAILED = "Failed"
"""By version of the code in a function (`1f2e3d4c5b6a.reads`): answers that were a fault of the code or the store."""
REPLAYED = "Replayed"
"""Retries that Tally answered from their receipt. A plain `ADD` would have counted them twice."""
REFUSED = "Refused"
"""Requests that the caller has to correct: a client with a bug, a counter at its limit, a stranger who tries keys."""
CONFLICTS = "Conflicts"
"""Transactions that conflicted with another one, and were retried on another shard. More conflicts widen the spread."""
SPILLED = "Spilled"
"""Changes of a hot tally that spilled: they count at once, and are visible when the rollup has added them."""
DRIFTING_TALLIES = "DriftingTallies"
"""While tallies drift: how many differ from the accepted changes. If the log says `more may drift`, this is a minimum,
because a sweep reads about 100,000. A short bump without an alarm is a change that was committed late."""
DRIFT_ABSOLUTE = "DriftAbsolute"
"""While tallies drift: the sum of their drifts without the sign. With `DriftingTallies`, it distinguishes one drift of
1,000 from a thousand drifts of 1."""
OLDEST_DRIFT = "OldestDriftSeconds"
"""While tallies drift: the age of the oldest drift, from the minute in which it began."""
SWEEP_UNFINISHED = "SweepUnfinished"
"""1 if the sweep had no time to judge all that it could."""
JUDGED_AGE = "JudgedAgeSeconds"
"""The time since the end of the newest judged minute: three to four minutes if all is well. No data: no sweep runs."""
RECORDS_LOST = "RecordsLost"
"""1 while stream records may be lost and nobody has acknowledged the loss."""
OLDEST_EVENT = "OldestEventSeconds"
"""If a counter has thresholds: the age of the oldest event that a sweep could not send."""
HOLDS_NOT_RELEASED = "HoldsNotReleased"
"""Expired holds that the sweep could not release; 0 only after it has looked at all of them."""

logger = Logger(service=SERVICE, use_rfc3339=True)  # Lambda reads the time and the level of a JSON line

_gathered: ContextVar[dict[tuple[str, str], Multiset[str]] | None] = ContextVar("gathered", default=None)


def count(metric: str, amount: int = 1, **of: str) -> None:
    """Adds `amount` to a metric for this invocation: of the stack, or of `counter=…`, `consumer=…`, `version=…`.

    Outside of an invocation (tests of the core, the benchmark) this does nothing. 0 is not written, because it costs as
    much as a number and says nothing new.
    """
    gathered = _gathered.get()
    if gathered is not None and amount:
        [dimension] = of.items() or [("", "")]
        gathered.setdefault(dimension, Multiset())[metric] += amount


def version_of(code: str, handler: str) -> str:
    """Returns the value of the dimension `version`: `1f2e3d4c5b6a.reads` for that code of `handlers.reads`.

    The stack watches the new code of each function by itself.
    """
    return f"{code}.{handler.rpartition('.')[2]}"


def count_failure() -> None:
    """Counts an answer that is Tally's own fault, by the code and the function that gave it."""
    count(FAILED, version=version_of(CODE_VERSION, os.environ.get("_HANDLER", "")))


@contextmanager
def metrics() -> Iterator[None]:
    """Gathers the metrics of one invocation and writes them when it ends, even by an exception."""
    gathered: dict[tuple[str, str], Multiset[str]] = {}
    token = _gathered.set(gathered)
    try:
        yield
    finally:
        _gathered.reset(token)
        for (dimension, name), values in sorted(gathered.items()):
            write_metrics(values, **({dimension: name} if dimension else {}))


def write_metrics(values: Mapping[str, int], **of: str) -> None:
    """Writes metrics at once, of the stack, of `counter=…` or of `consumer=…`, zeros too, because an alarm must see
    data."""
    emf = EphemeralMetrics(namespace=NAMESPACE, service=SERVICE)
    for dimension, name in of.items():
        emf.add_dimension(dimension, name)
    for metric, value in values.items():
        emf.add_metric(metric, MetricUnit.Seconds if metric.endswith("Seconds") else MetricUnit.Count, value)
    emf.flush_metrics()
