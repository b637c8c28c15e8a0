"""Logs and metrics: structured JSON lines and EMF, both through Powertools.

An invocation gathers its metrics and writes them at its end, one line for each set of dimensions. Two stages of an
account must not share a metric, so the dimension `service` is the name of the stack. No dimension is an id, because
CloudWatch bills each value. Besides `service` a metric has at most one dimension: alarms and widgets show no more.
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
"""By counter: changes that the bookkeeper has booked, each once, without imports."""
DRIFT_CONFIRMED = "DriftConfirmed"
"""By counter: tallies whose drift has stood for five judged minutes. A sweep writes 0 only after it has looked at all
drift."""
UNCOUNTED = "UncountedItems"
"""By counter with `items`: items with a fault, which count for nothing. No data: there are no such items."""
WATERMARK_AGE = "WatermarkAgeSeconds"
"""By consumer: the age of its watermark. For `rollup`: the age of `as_of`. For `bookkeeper`: two to four minutes are
normal."""
DEAD_LETTERS = "DeadLetters"
"""By consumer: records that became dead letters."""
FAILED = "Failed"
"""By version of a function's code (`1f2e3d4c5b6a.reads`): answers that were a fault of the code or the store."""
REPLAYED = "Replayed"
"""Retries that Tally answered from their receipt."""
REFUSED = "Refused"
"""Requests for a change that Tally answered with 4xx."""
CONFLICTS = "Conflicts"
"""Transactions that were retried on another shard after a conflict."""
SPILLED = "Spilled"
"""Changes of a hot tally that spilled: counted at once, visible when the rollup has added them."""
DRIFTING_TALLIES = "DriftingTallies"
"""While tallies drift: how many. If the log says `more may drift`, there are more. A short bump without an alarm is a
late commit."""
DRIFT_ABSOLUTE = "DriftAbsolute"
"""While tallies drift: the sum of their drifts without the sign."""
OLDEST_DRIFT = "OldestDriftSeconds"
"""While tallies drift: the age of the oldest drift."""
SWEEP_UNFINISHED = "SweepUnfinished"
"""1 if the sweep had no time to judge all that it could."""
JUDGED_AGE = "JudgedAgeSeconds"
"""The time since the end of the newest judged minute: normally six to eight minutes. No data: no sweep runs."""
RECORDS_LOST = "RecordsLost"
"""1 while stream records may be lost and nobody has acknowledged the loss."""
OLDEST_EVENT = "OldestEventSeconds"
"""The age of the oldest threshold event that a sweep could not send."""
HOLDS_NOT_RELEASED = "HoldsNotReleased"
"""Expired holds that the sweep could not release. 0: the sweep looked at all expired holds."""

logger = Logger(service=SERVICE, use_rfc3339=True)  # of a JSON line, Lambda reads the level and a time in this format

# The metrics of the present invocation, by dimension and its value (`("", "")`: of the stack); None outside of one.
_gathered: ContextVar[dict[tuple[str, str], Multiset[str]] | None] = ContextVar("gathered", default=None)


def count(metric: str, amount: int = 1, **dimensions: str) -> None:
    """Adds `amount` to a metric for this invocation: of the stack, or of `counter=…`, `consumer=…`, `version=…`.

    Outside of an invocation (tests of the core, the benchmark) this does nothing. 0 is not written, because it costs as
    much as a number and says nothing new.
    """
    gathered = _gathered.get()
    if gathered is not None and amount:
        [dimension] = dimensions.items() or [("", "")]
        gathered.setdefault(dimension, Multiset())[metric] += amount


def version_of(code: str, handler: str) -> str:
    """Returns the value of the dimension `version`: `1f2e3d4c5b6a.reads` for the code `1f2e3d4c5b6a` and the handler
    `handlers.reads`. So an alarm can watch the new code of one function."""
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


def write_metrics(values: Mapping[str, int], **dimensions: str) -> None:
    """Writes metrics at once, of the stack, of `counter=…` or of `consumer=…`. Also writes 0, which an alarm needs."""
    emf = EphemeralMetrics(namespace=NAMESPACE, service=SERVICE)
    for dimension, name in dimensions.items():
        emf.add_dimension(dimension, name)
    for metric, value in values.items():
        emf.add_metric(metric, MetricUnit.Seconds if metric.endswith("Seconds") else MetricUnit.Count, value)
    emf.flush_metrics()
