"""Logs and metrics: structured JSON lines and EMF, both through Powertools.

An invocation gathers its metrics and writes them at its end, one line for each set of dimensions. Two stages of an
account must not share a metric, so `service` is the name of their stack. A dimension is never an item, because
CloudWatch bills each one, and no metric has more dimensions than an alarm or a widget looks at.
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
COUNTER, CONSUMER, VERSION = "counter", "consumer", "version"  # the other dimensions: a metric has one, or none
COUNTED, DRIFT_CONFIRMED = "Counted", "DriftConfirmed"  # of each counter, by the bookkeeper and by the sweep
UNCOUNTED = "UncountedItems"  # of each counter of items: those that it cannot count
WATERMARK_AGE, DEAD_LETTERS = "WatermarkAgeSeconds", "DeadLetters"  # of each consumer
FAILED = "Failed"  # of each version of the code, in each function
REPLAYED, REFUSED, CONFLICTS, SPILLED = (
    "Replayed",
    "Refused",
    "Conflicts",
    "Spilled",
)  # of the stack, as all that follow
DRIFT_ABSOLUTE, DRIFTING_TALLIES, OLDEST_DRIFT = "DriftAbsolute", "DriftingTallies", "OldestDriftSeconds"
SWEEP_UNFINISHED, HOLDS_NOT_RETURNED, RECORDS_LOST = "SweepUnfinished", "HoldsNotReturned", "RecordsLost"
OLDEST_EVENT = "OldestEventSeconds"
JUDGED_AGE = "JudgedAgeSeconds"

logger = Logger(service=SERVICE, use_rfc3339=True)  # Lambda reads the time and the level of a JSON line

_gathered: ContextVar[dict[tuple[str, str], Multiset[str]] | None] = ContextVar("gathered", default=None)


def count(metric: str, amount: int = 1, **of: str) -> None:
    """Add `amount` to a metric for this invocation: of the stack, or of `counter=…`, `consumer=…`, `version=…`.

    Outside of an invocation (tests of the core, the benchmark) this does nothing. 0 is not written: it would cost as
    much as a number, and says nothing new.
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
    """Gather the metrics of one invocation and write them when it ends, even by an exception."""
    gathered: dict[tuple[str, str], Multiset[str]] = {}
    token = _gathered.set(gathered)
    try:
        yield
    finally:
        _gathered.reset(token)
        for (dimension, name), values in sorted(gathered.items()):
            write_metrics(values, **({dimension: name} if dimension else {}))


def write_metrics(values: Mapping[str, int], **of: str) -> None:
    """Write metrics at once, of the stack, of `counter=…` or of `consumer=…`, zeros too: an alarm must see data."""
    emf = EphemeralMetrics(namespace=NAMESPACE, service=SERVICE)
    for dimension, name in of.items():
        emf.add_dimension(dimension, name)
    for metric, value in values.items():
        emf.add_metric(metric, MetricUnit.Seconds if metric.endswith("Seconds") else MetricUnit.Count, value)
    emf.flush_metrics()
