"""The results as tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .bounds import BEFORE, plural
from .designs import BARE_TRANSACTION, TIMED
from .feed import FEED, READ_MS
from .imports import HOT_HANDLERS
from .many import PLAYS, SETS, VIDEOS
from .results import Results

_VERDICTS = {True: "held", False: "NOT HELD", None: "not judged"}


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, texts: int = 1) -> Iterator[str]:
    """Lines of a table. The first `texts` columns align left, the others right."""
    widths = [max(len(row[column]) for row in (heads, *rows)) for column in range(len(heads))]
    for row in (heads, ["─" * width for width in widths], *rows):
        cells = [
            cell.ljust(width) if column < texts else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()


def lines(results: Results) -> Iterator[str]:
    """The whole report."""
    yield from _designs(results)
    yield ""
    yield from _costs(results)
    yield ""
    yield from _many(results)
    yield ""
    yield from _rollups(results)
    yield ""
    yield from _ledger(results)
    yield ""
    yield from _hot(results)
    yield ""
    rows = [(claim.what, claim.measured, claim.bound, _VERDICTS[claim.held]) for claim in results.claims()]
    yield from table(("claim", "measured", "bound", ""), rows, texts=4)


def _designs(results: Results) -> Iterator[str]:
    base_us = results.times_us[BARE_TRANSACTION.name]
    rows = []
    for design in TIMED:
        time_us, cost = results.times_us[design.name], results.costs[design.name]
        run = results.accuracy.get(design.name)
        units = (f"{cost.round_trips:g}", f"{cost.write_units:g}", f"{cost.read_units:g}")
        counted = (
            (f"{run.expected:,}", f"{run.counted:,}", f"{run.error:+,d}" if run.error else "0") if run else ("",) * 3
        )
        rows.append((design.title, f"{time_us:,.0f} µs", f"{time_us / base_us:.2f}", *units, *counted))
    yield from table(
        ("one play", "client time", "to bare tx", "round trips", "WCU", "RCU", "expected", "counted", "error"), rows
    )


def _costs(results: Results) -> Iterator[str]:
    for like in results.likes:
        yield f"a like of a post of {like.text_bytes:,} B: {like.round_trips} round trip, {like.write_units:g} WCU"
    for read in results.reads:
        yield (
            f"a read of {plural(read.shards, 'shard')}: {read.round_trips} request,"
            f" {read.read_units:g} RCU, {read.median_us:,.0f} µs"
        )
    for batch in results.batches:
        how = f"in a batch of {batch.plays}" if batch.plays > 1 else "sent alone"
        trips = f"{batch.round_trips:.2f} round trips"
        yield f"a play {how}: {batch.write_units:.2f} WCU, {trips}, {batch.median_us:,.0f} µs"
    imports = results.imports
    yield (
        f"import {HOT_HANDLERS[0]}: {imports.handler_ms:.0f} ms; import boto3 and make one client:"
        f" {imports.boto3_ms:.0f} ms"
    )


def _many(results: Results) -> Iterator[str]:
    heads = (f"{PLAYS} plays of {VIDEOS} videos", "round trips", "WCU", "WCU a play", "client time a play")
    all_in = [f"all in, {plural(sets, 'set')} a stream batch" for sets in SETS]
    rows = []
    for many in results.many:
        each = [f"{many.all_in[sets]:.3f}" if sets in many.all_in else "" for sets in SETS]
        costs = (f"{many.round_trips}", f"{many.write_units:g}", f"{many.write_units / PLAYS:g}")
        rows.append((many.way, *costs, f"{many.median_us:,.0f} µs", *each))
    yield from table((*heads, *all_in), rows)


def _hot(results: Results) -> Iterator[str]:
    heads = ("one hot key, simulated", "failed", "p50", "p99", "WCU each", "spilled", "catch-up", "environments")
    rows = [
        (
            outcome.name,
            f"{outcome.failed_share:.2%}",
            f"{outcome.p50_ms:.0f} ms",
            f"{outcome.p99_ms:.0f} ms",
            f"{outcome.write_units:.2f}",
            f"{outcome.spilled:.1%}",
            f"{outcome.catch_up_s:.1f} s",
            f"{outcome.environments:,}",
        )
        for outcome in results.hot
    ]
    yield from table(heads, rows)


def _ledger(results: Results) -> Iterator[str]:
    rows = [(one.what, one.unit, one.before, one.shown, one.limit) for one in results.ledger]
    yield from table(("the ledger", "", BEFORE, "now", "bound"), rows, texts=2)


def _rollups(results: Results) -> Iterator[str]:
    found = results.rollups
    for cost in found.rollup_costs:
        yield f"rolling up 1,000 plays of {plural(cost.videos, 'video')}: {cost.write_units:,.0f} WCU"
    yield f"rollup: {found.folded_per_s:,.0f} records folded a second, {found.applied_per_s:,.0f} from stream to tally"
    if (shown := results.rolled_up) is not None:
        yield (
            f"a visit on the local stack, from its answer to the count: median {shown.median_s:.2f} s,"
            f" longest {shown.longest_s:.2f} s, of {shown.visits}"
        )
    if (feed := results.feed) is not None:
        yield (
            f"{FEED} plays on the local stack, reads of {READ_MS:.0f} ms: {feed.together_ms:.0f} ms by one request,"
            f" {feed.alone_ms:.0f} ms by {FEED}; {FEED} RCU either way"
        )
    if (console := results.console) is not None:
        yield (
            f"the console on the local stack: {console.loaded_bytes / 1000:.0f} KB in {console.files} files; the first"
            f" number after {console.first_ms:.0f} ms, {console.again_ms:.0f} ms when it is opened again"
        )
