"""The calculator of docs/cost.md: the units in this module times the prices in prices.csv. `make cost` updates the
figures of the page (cost_pages.py).

The prices of us-east-1 were read on AWS's pages on 2026-11-22. In prices.csv, `also_read` is another page with the same
price, and `when` is the date of that page. From 2024 on, Cognito also billed $6 a month for each machine client. On
2026-11-22 https://docs.aws.amazon.com/cognito/latest/developerguide/tracking-cost.html has no such fee.

Tests compare the units with what the engine bills and with the claims of `make bench` (tests/invariants/test_cost.py,
tests/integration/test_sweep.py), with what functions log, and with the templates (tests/infra/test_bill.py). Times in
AWS and the sizes of Lambda's own log lines are estimates, which were never measured in an account.
"""

from __future__ import annotations

import csv
import functools
import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import NamedTuple

from tally.contract.deployment import DELIVERY, MEMORY_MB
from tally.operations.bookkeeper import READER as BOOKKEEPER

from . import ROOT

PAGE, PRICES = ROOT / "docs/cost.md", ROOT / "bench/prices.csv"
M, KB, GB = 10**6, 1024, 1024**3
MONTH_S, MINUTES, DAYS = 730 * 3600, 730 * 60, 730 / 24  # of a month


class Usage(NamedTuple):
    """The usage of one change or read: its units, stream records and calls."""

    writes: float = 0  # write units
    reads: float = 0  # read units
    receipts: int = 0  # records of the table of receipts
    receipt_days: int = 1  # for how long a receipt is kept
    counts: int = 0  # records of the table of counts
    new_items: int = 0  # new children
    calls: int = 1
    in_batch: int = 1  # changes that a function sends in one invocation, each with a key; 1: the caller uses HTTP
    answer: int = 400  # bytes of an answer, with its headers


KINDS = {  # of changes and reads
    "now": Usage(writes=4, receipts=1, counts=1),
    "now, in batches": Usage(writes=4, receipts=1, counts=1, in_batch=90),
    "soon": Usage(writes=1, receipts=1, receipt_days=8),  # the days that spilled receipts are kept
    "like": Usage(writes=4, counts=2, new_items=1),
    "like with a key": Usage(writes=6, receipts=1, counts=2, new_items=1),  # as a browser sends it
    "hold": Usage(writes=6 + 4, reads=1, receipts=1, counts=1, calls=2),  # with its commit
    "hold, other amount": Usage(writes=6 + 8, reads=1, receipts=2, counts=2, calls=2),  # committed at another amount
    "read": Usage(reads=1),
    "read of 100": Usage(reads=100, answer=400 + 100 * 144),  # 144 bytes for each number
    "read of a post": Usage(reads=4, answer=400 + 10 * KB),
}


class BilledStage(NamedTuple):
    """What AWS bills for a stage even without traffic, beside a dashboard and the metrics of a quiet sweep."""

    snapshots: int  # functions that start from a snapshot
    sweep_mb: int  # the memory of the sweep's function
    alarm_metrics: int  # AWS bills an alarm for each of its metrics
    logged: float  # with traffic: the share of the successful invocations that write a log line


DEV, PROD = BilledStage(0, 512, 28, 1), BilledStage(9, 1769, 56, 0.05)
FUNCTION_GB = MEMORY_MB / KB  # of each function but the sweep of prod
CPU_MB = 1769  # the memory at which Lambda gives a whole CPU
METRICS = 17  # of a quiet sweep: the confirmed drift of each counter, the lag of each consumer, and those of the stack
METRICS_OF_TRAFFIC = 2  # replays and refusals; each counter that moves has one more
METRICS_OF_HOT_TALLIES = 2  # conflicts, spilled changes; CloudWatch bills a metric for the hours that have data

SHARDS = 4  # of each stream of a new table
SHARD_WRITES_PER_S = 1000  # DynamoDB splits a partition above this
ENTRY_BYTES = 22  # in a segment of the journal, compressed; ids are UUIDs
SEGMENT_READS = 4  # the judge reads a segment up to three times, the series once

# The units of a minute's sweep, beside a heartbeat for each shard. QUIET_READS: of the due tasks and the judge.
JUDGE_WRITES, QUIET_READS = 2, 62.0
SERIES_READS = 16.0  # of a sweep, to sum up the series
# A change, alone or in a batch, computes about 4 ms at 512 MB, and waits 5 to 10 ms for DynamoDB.
CHANGE_MS, CHANGE_IN_BATCH_MS = 15, 10
SWEEP_REQUESTS = 88  # of a sweep, if each stream has four shards; a sweep waits 5 ms for each request

# Bytes: CloudWatch's addition to each line; each kind of line; each stored item, with DynamoDB's own 100 bytes.
LOG_EVENT, ACCESS_LINE, ANSWER_LINE, METRICS_LINE, SWEEP_LINES = 26, 244, 312, 215, 3450
RECEIPT_BYTES, CHILD_BYTES, SERIES_DAY_BYTES, SERIES_HOUR_BYTES = 500, 250, 170, 8
KEPT_DAYS = 365  # the bill is of a stack that is a year old, and never deletes children and series


class Month(NamedTuple):
    """The traffic of a month, spread evenly."""

    amounts: Mapping[str, float] = {}  # of changes and reads, by the names of KINDS
    ids: float = 10_000  # each with equally many changes
    other_quantities: Mapping[str, float] = {}  # by the names of their prices
    notifies: bool = False  # whether a counter has thresholds, for which the bookkeeper's window is one second

    def sum(self, quantity: Callable[[Usage], float]) -> float:
        """Returns the sum of a quantity over all changes and reads. `quantity`: of one change or read."""
        return sum(amount * quantity(KINDS[kind]) for kind, amount in self.amounts.items())


IDLE_MONTH = Month()


def distinct(draws: float, values: float) -> float:
    """Returns how many different values to expect from `draws` draws of `values` equally likely values."""
    return max(min(draws, 1.0), values * -math.expm1(-draws / values))


def rollup_units(tallies: float) -> float:
    """Returns the write units to roll up so many tallies, in transactions of up to 99 tallies and a checkpoint."""
    return 2 * (tallies + max(min(1.0, tallies), tallies / 99))  # 2 units for each item of a transaction


def segment_units(tallies: float) -> float:
    """Returns the write units of the journal segment of a batch that moves so many tallies."""
    return 2 * max(min(1.0, tallies), tallies * ENTRY_BYTES / KB)


def booking_units(tallies: float) -> float:
    """Returns the write units to book a batch that moves so many tallies, with its checkpoint."""
    return 2 * min(1.0, tallies) + segment_units(tallies)


def minute_edge_units(tallies: float, spread_s: float) -> float:
    """Returns the extra write units of a batch whose records span `spread_s`: two segments at the edge of a minute."""
    return spread_s / 60 * (2 * segment_units(tallies / 2) - segment_units(tallies))


def usage(month: Month, stage: BilledStage) -> dict[str, float]:
    """Returns the usage of a month of a stage, by the names of the prices. Quantities are averages with fractions."""
    used = defaultdict(float, month.other_quantities)
    counters = sum(KINDS[kind].writes > 0 for kind in month.amounts)  # as if each kind of change had its own counter
    used |= {"snapshot": stage.snapshots * FUNCTION_GB * MONTH_S, "alarm": stage.alarm_metrics, "dashboard": 1}
    used["metric"] = METRICS + METRICS_OF_HOT_TALLIES * _hot_hours(month)
    used["metric"] += counters + METRICS_OF_TRAFFIC if counters else 0
    add_calls(month, stage, used)
    _consume(month, used)
    # The sweep takes 60 ms of a whole CPU, and waits for its requests.
    sweep_ms = 5 * SWEEP_REQUESTS + 60 * max(1.0, CPU_MB / stage.sweep_mb)
    _invoke(used, MINUTES, sweep_ms, stage.sweep_mb / KB)
    used["write"] += MINUTES * (JUDGE_WRITES + 2 * SHARDS)  # a heartbeat for each shard of two streams
    used["read"] += MINUTES * (QUIET_READS + SERIES_READS)
    used["log"] += MINUTES * SWEEP_LINES / GB
    return used | {"recoverable": used["stored"], "log-kept": 0.15 * used["log"]}  # compressed to 15 %


def _invoke(used: dict[str, float], invocations: float, ms: float, gb: float = FUNCTION_GB) -> None:
    """Add invocations, without Lambda's own log lines, because only failed invocations have such lines."""
    used["invocation"] += invocations
    used["gb-second"] += invocations * ms / 1000 * gb


def _hot_hours(month: Month) -> float:
    """Returns the share of the hours in which two changes of one tally overlap."""
    changes_per_s = month.sum(lambda each: each.calls * (each.writes > 0)) / MONTH_S
    return -math.expm1(-3600 * changes_per_s * changes_per_s / month.ids * CHANGE_MS / 1000)


def add_calls(month: Month, stage: BilledStage, used: dict[str, float]) -> None:
    """Add the changes and reads themselves: units, API, functions, logs, transfer, receipts, children and series."""
    used["write"] += month.sum(lambda each: each.writes)
    used["read"] += month.sum(lambda each: each.reads)
    http = month.sum(lambda each: each.calls * (each.in_batch == 1))
    used |= {"http": min(http, 300 * M), "http-above": max(0.0, http - 300 * M)}
    used["transfer"] += month.sum(lambda each: each.calls * each.answer * (each.in_batch == 1)) / GB
    used["log"] += (http * ACCESS_LINE + stage.logged * month.sum(lambda each: each.calls) * ANSWER_LINE) / GB
    _invoke(used, month.sum(lambda each: each.calls / each.in_batch), CHANGE_MS)
    used["gb-second"] += month.sum(lambda each: each.in_batch > 1) * CHANGE_IN_BATCH_MS / 1000 * FUNCTION_GB
    used["write"] += series_writes(month)
    children = month.sum(lambda each: each.new_items) / DAYS
    tallies, tally_hours = _moved(month)
    kept_a_day = children * CHILD_BYTES + tallies * SERIES_DAY_BYTES + tally_hours * SERIES_HOUR_BYTES
    receipts = month.sum(lambda each: each.receipts * each.receipt_days) / DAYS * RECEIPT_BYTES
    used["stored"] += (receipts + KEPT_DAYS * kept_a_day) / GB


def _moved(month: Month) -> tuple[float, float]:
    """Returns how many tallies move in a day, and the sum of the tallies that move in each hour of the day."""
    changes_per_day = month.sum(lambda each: each.calls * (each.writes > 0)) / DAYS
    return distinct(changes_per_day, month.ids), 24 * distinct(changes_per_day / 24, month.ids)


def series_writes(month: Month) -> float:
    """Returns the write units of the series in a month: at most 1.1, as measured, for each tally and hour of change."""
    return DAYS * _moved(month)[1] * 1.1


def _consume(month: Month, used: dict[str, float]) -> None:
    """Add the usage of the two consumers of both streams, with the heartbeats and the invocations at a window's end."""
    shards = max(SHARDS, math.ceil(used["write"] / MONTH_S / SHARD_WRITES_PER_S))

    def consume(
        records: float, changes: float, units_of: Callable[[float], float], window_s: int = 1
    ) -> tuple[float, float]:
        """Add a consumer's batches of one stream. Returns the number of batches, and of tallies that move in them.
        `changes`: how many changes the records have. `units_of`: the write units of a batch that moves so many tallies.
        """
        beats_per_s = 1 / 60  # spread evenly, so each heartbeat has its own batch
        per_s = records / MONTH_S / shards + beats_per_s
        # A batch begins with a record, and ends with its window, or when it is full.
        batches_per_s = max(beats_per_s, per_s / (1 + per_s * window_s), per_s / DELIVERY.batch_records)
        batches = batches_per_s * MONTH_S * shards
        tallies = distinct(changes / batches, month.ids)
        used["write"] += batches * (1 - min(1.0, tallies) + units_of(tallies))  # without tallies: only a checkpoint
        used["read"] += batches  # of the checkpoint
        _invoke(used, batches, 20)  # milliseconds, for two requests
        _invoke(used, MONTH_S / DELIVERY.tumbling_window_s * shards, 2)  # at the end of each tumbling window
        return batches, batches * tallies

    receipts, spilled = month.sum(lambda each: each.receipts), month.amounts.get("soon", 0)
    _, rollup_writes = consume(spilled, spilled, rollup_units)
    consume(0, 0, rollup_units)  # the rollup gets only heartbeats of `counts`, because no child spills
    counts = month.sum(lambda each: each.counts) + rollup_writes
    for records, metered_field in ((receipts, "receipts"), (counts, "new_items")):  # what the metric `Counted` sums
        window_s = 1 if month.notifies else BOOKKEEPER.window_s
        batches, tallies = consume(records, records, booking_units, window_s)
        # The more records a batch has, the more of the window its records span.
        used["write"] += batches * minute_edge_units(tallies / batches, window_s * (1 - batches / (batches + records)))
        used["read"] += tallies * ENTRY_BYTES / (4 * KB) * SEGMENT_READS
        lines = sum(
            min(batches, amount) for kind, amount in month.amounts.items() if getattr(KINDS[kind], metered_field)
        )
        used["log"] += lines * METRICS_LINE / GB  # one line for each counter


class Price(NamedTuple):
    """A row of prices.csv: US dollars for `per` units, after the `free` units of AWS's free tier."""

    service: str
    usd: float
    per: float
    free: float


@functools.cache
def prices() -> dict[str, Price]:
    """Returns the prices, by the names of their rows."""
    with PRICES.open(encoding="utf-8", newline="") as file:
        return {
            row["name"]: Price(row["service"], float(row["usd"]), float(row["per"]), float(row["free_a_month"] or 0))
            for row in csv.DictReader(file)
        }


def bill(month: Month = IDLE_MONTH, stage: BilledStage = PROD, free_tier: bool = False) -> dict[str, float]:
    """Returns US dollars by service. Raises KeyError for a unit without a price."""
    usd = dict.fromkeys((price.service for price in prices().values()), 0.0)
    for name, quantity in usage(month, stage).items():
        price = prices()[name]
        usd[price.service] += max(0.0, quantity - free_tier * price.free) * price.usd / price.per
    return usd | {"total": sum(usd.values())}


def million(kind: str, ids: float = 10_000, amount: float = 300 * M, notifies: bool = False) -> float:
    """Returns the full cost of a million changes or reads in US dollars, if a month has `amount` of them."""
    return (bill(Month({kind: amount}, ids, notifies=notifies))["total"] - bill()["total"]) / amount * M


BLOG = Month({"soon": 300e3, "read": 400e3, "like": 2e3, "now": 5e3}, 300, {"user": 500})
VIDEO = Month({"now": 304e6, "read": 900e6, "like": 6e6}, 50_000, {"user": 100e3})
SHOP = Month({"hold": 1e6, "now": 2e6, "soon": 20e6, "read": 30e6}, 5000, {"token": 730})  # one each hour
BILLS: dict[str, tuple[Month, BilledStage]] = {
    "idle, dev": (IDLE_MONTH, DEV), "idle, prod": (IDLE_MONTH, PROD),
    "blog": (BLOG, PROD), "video site": (VIDEO, PROD), "shop": (SHOP, PROD),
}  # fmt: skip
"""The month and the stage of each column of the bills."""
