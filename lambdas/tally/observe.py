"""Logs and metrics: structured JSON lines and EMF, both through Powertools.

An invocation gathers its metrics and writes them at its end, one line for each counter. A dimension is never an item,
because CloudWatch bills each one.
"""

from __future__ import annotations

from collections import Counter as Multiset
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from aws_lambda_powertools import Logger
from aws_lambda_powertools.metrics import EphemeralMetrics, MetricUnit

SERVICE = "tally"
NAMESPACE = "Tally"
COUNTED, REPLAYED, REFUSED, CONFLICTS, SPILLED = "Counted", "Replayed", "Refused", "Conflicts", "Spilled"
DRIFT_ABSOLUTE, DRIFTING_TALLIES, DRIFT_CONFIRMED = "DriftAbsolute", "DriftingTallies", "DriftConfirmed"
OLDEST_DRIFT, EVIDENCE_AGE = "OldestDriftSeconds", "EvidenceAgeSeconds"
SWEEP_UNFINISHED = "SweepUnfinished"
APPLIED, SKIPPED, SET_ASIDE = "RecordsApplied", "RecordsSkipped", "RecordsSetAside"
HOLDS_NOT_RETURNED = "HoldsNotReturned"
COUNTER, CONSUMER = "counter", "consumer"  # the dimensions: a metric has one of them
SWEEP = "sweep"  # the consumer of the ledger, beside the streams' consumers

logger = Logger(service=SERVICE)

_gathered: ContextVar[Multiset[tuple[str, str, str]] | None] = ContextVar("gathered", default=None)


def count(name: str, metric: str, amount: int = 1, *, dimension: str = COUNTER) -> None:
    """Add `amount` to a metric of the counter (or consumer) `name`, for this invocation.

    Outside of an invocation (tests of the core, the benchmark) this does nothing.
    """
    gathered = _gathered.get()
    if gathered is not None:
        gathered[dimension, name, metric] += amount


@contextmanager
def metrics() -> Iterator[None]:
    """Gather the metrics of one invocation and write them when it ends, even by an exception."""
    gathered: Multiset[tuple[str, str, str]] = Multiset()
    token = _gathered.set(gathered)
    try:
        yield
    finally:
        _gathered.reset(token)
        _write(gathered)


def _write(gathered: Multiset[tuple[str, str, str]]) -> None:
    for dimension, name in sorted({(dimension, name) for dimension, name, _ in gathered}):
        emf = EphemeralMetrics(namespace=NAMESPACE, service=SERVICE)
        emf.add_dimension(dimension, name)
        for (of, whose, metric), amount in gathered.items():
            if (of, whose) == (dimension, name):
                emf.add_metric(metric, MetricUnit.Count, amount)
        emf.flush_metrics()


def gauges(dimension: str, name: str, values: Mapping[str, int]) -> None:
    """Write metrics of the present state at once, including zeros: an alarm must see data."""
    emf = EphemeralMetrics(namespace=NAMESPACE, service=SERVICE)
    emf.add_dimension(dimension, name)
    for metric, value in values.items():
        emf.add_metric(metric, MetricUnit.Seconds if metric.endswith("Seconds") else MetricUnit.Count, value)
    emf.flush_metrics()
