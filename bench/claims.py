"""The measurements of the bench, and Tally's claims about their figures."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import NamedTuple

from . import (
    backlog,
    bill,
    browsers,
    budgets,
    commit,
    consumers,
    designs,
    events,
    hot_key,
    imports,
    journal,
    judging,
    limit_overrides,
    local,
    manual_edits,
    many,
    plays,
    series,
    team_items,
    uniques,
)
from .instruments import Rows

_COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {
    "≤": operator.le, "≥": operator.ge, "=": operator.eq, "<": operator.lt, ">": operator.gt,
}  # fmt: skip


class Claim(NamedTuple):
    """A bound of one figure, and how the figure must compare with the bound.

    `full_only`: a quick run does not judge the claim, because a time or a run of few changes proves nothing.
    """

    row: str
    column: str
    comparison: str
    bound: float
    full_only: bool = False

    def holds(self, rows: Rows) -> bool:
        """Whether the figure keeps the bound. Raises KeyError if the figure was not measured."""
        return _COMPARISONS[self.comparison](rows[self.row][self.column], self.bound)


class Measure(NamedTuple):
    """One measurement: its name, its title, its function (`run(quick)` returns the figures), and Tally's claims."""

    name: str
    title: str
    run: Callable[[bool], Rows]
    claims: tuple[Claim, ...] = ()
    full_only: bool = False
    """Whether a quick run skips the measurement."""


NOW, SOON = designs.NOW.name, designs.SOON.name
MEASURES = (
    Measure("plays", "one play", plays.measure, (
        Claim(NOW, "times a bare transaction", "≤", 1.2, full_only=True),
        Claim(NOW, "times Powertools", "≤", 0.55, full_only=True),
        *(Claim(way, "round trips", "=", 1) for way in (NOW, SOON)),
        Claim(NOW, "WCU", "=", 4),
        Claim(SOON, "WCU", "=", 1),
        *(Claim(way, "off by", "=", 0) for way in (NOW, SOON)),
        *(Claim(design.name, "unanswered", "=", 0) for design in designs.DESIGNS),
        # If no answer was lost at the store, the run proves nothing.
        *(Claim(design.name, "answers lost at the store", ">", 0) for design in designs.DESIGNS),
        Claim(designs.PLAIN_ADD.name, "off by", ">", 0),
    )),
    Measure("many", "100 plays of 10 videos", many.measure, (
        Claim(many.BATCH_NOW, "WCU", "≤", 24),
        Claim(many.BATCH_SOON, "WCU", "≤", 3),
        Claim(many.BATCH_SOON, "whole WCU a play, 10 sets", "≤", 0.05),
    )),
    Measure("bill", "write units a minute, and the calculator's", bill.measure, (
        *(Claim(bill.EVEN_ROW.format(millions), "times the model", comparison, bound,
                full_only=millions not in bill.QUICK_MILLIONS)
          for millions in bill.MINUTES for comparison, bound in (("≥", 0.95), ("≤", 1.05))),
        *(Claim(bill.BURST_ROW.format(millions), "times the model", "≤", 1.05,
                full_only=millions not in bill.QUICK_MILLIONS)
          for millions in bill.MINUTES),
    )),
    Measure("commit", "numbers and a team's own writes in one commit", commit.measure, (
        Claim(commit.FIRST_SENT, "requests", "=", 1),
        Claim(commit.FIRST_SENT, "WCU", "=", 12),
        Claim(commit.SENT_AGAIN, "requests", "=", 1),
        Claim(commit.SENT_AGAIN, "WCU", "=", 0),
    )),
    Measure("budgets", "holds, and voids of changes", budgets.measure, (
        *(Claim(step, "WCU", "=", units) for step, units in (
            (budgets.HOLD, 6), *zip(budgets.HOLD_CHANGES, (6, 8, 10), strict=True), (budgets.COMMIT, 4),
            (budgets.COMMIT_OTHER, 8), (budgets.VOID, 6), (budgets.SPILLED_VOID, 4),
        )),
        *(Claim(step, "RCU", "=", 1) for step in (
            budgets.COMMIT, budgets.COMMIT_OTHER, budgets.VOID, budgets.SPILLED_VOID,
        )),
    )),
    Measure("items", "one item of a team's own table", team_items.measure, (
        Claim(team_items.RECORDS_ALONE, "WCU", "≤", 0.12),
        Claim(team_items.RECORDS_DURING_SCAN, "WCU", "≤", 2.4),
        Claim(team_items.SCANNED_ITEMS, "WCU", "≤", 2.1),
    )),
    Measure("browsers", "likes without sign-in", browsers.measure, (
        *(Claim(step, "WCU", "=", units) for step, units in (
            (browsers.LIKE, 6), (browsers.UNLIKE, 6), (browsers.READ_LIKE, 0), (browsers.TAKE_OVER, 12),
        )),
        *(Claim(step, "RCU", "=", units) for step, units in (
            (browsers.LIKE, 0), (browsers.UNLIKE, 1), (browsers.READ_LIKE, 1), (browsers.TAKE_OVER, 2),
        )),
    )),
    Measure("uniques", "a visit of a counter of visitors", uniques.measure, (
        Claim(f"{uniques.SOON}: {uniques.FIRST_VISIT}", "WCU", "=", 1),
        Claim(f"{uniques.SOON}: {uniques.NEXT_VISIT}", "requests", "=", 1),
        *(Claim(f"{way}: {uniques.FIRST_VISIT}", "WCU", "=", 4) for way in (uniques.NOW, uniques.NOW_WITH_CEILING)),
        *(Claim(f"{way}: {uniques.NEXT_VISIT}", "RCU", "=", 1) for way in (uniques.NOW, uniques.NOW_WITH_CEILING)),
        *(Claim(f"{way}: {uniques.NEXT_VISIT}", "WCU", "=", 0) for way in (uniques.NOW, uniques.NOW_WITH_CEILING)),
        *(Claim(f"{way}: {uniques.READ_NUMBER}", "RCU", "=", 1) for way in uniques.COUNTERS),
    )),
    Measure("limits", "an override of a limit", limit_overrides.measure, (
        *(
            Claim(f"{name}: {limit_overrides.FIRST_CHANGE}", "RCU", "=", units)
            for name, units in limit_overrides.LIMITS_RCU.items()
        ),
        *(Claim(f"{name}: {change}", "WCU", "=", 4) for name in limit_overrides.COUNTERS
          for change in (limit_overrides.FIRST_CHANGE, limit_overrides.LATER_CHANGE)),
        *(Claim(f"{name}: {limit_overrides.LATER_CHANGE}", "requests", "=", 1) for name in limit_overrides.COUNTERS),
        Claim(f"{limit_overrides.WITHOUT_PERIODS}: {limit_overrides.PUT_OVERRIDE}", "WCU", "=", 4),
        Claim(f"{limit_overrides.WITH_PERIODS}: {limit_overrides.PUT_OVERRIDE}", "WCU", "=", 6),
        *(Claim(f"{name}: {limit_overrides.READ_OVERRIDE}", "RCU", "=", 1) for name in limit_overrides.COUNTERS),
        *(Claim(f"{name}: {limit_overrides.READ_NUMBER}", unit, "=", 1) for name in limit_overrides.COUNTERS
          for unit in ("RCU", "requests")),
    )),
    Measure("events", "a stream record of a tally, by its thresholds", events.measure, (
        Claim(events.BELOW, "WCU", "=", 0),
        Claim(events.BELOW, "RCU", "=", 0),
        Claim(events.CROSSING, "WCU", "≤", 4.5),
        Claim(events.SUM_CROSSING, "WCU", "≤", 6.5),
        Claim(events.SUM_CROSSING, "RCU", "≤", 2.5),
    )),
    Measure("imports", "CPU of imports", imports.measure, (
        Claim("a hot handler", "times boto3", "≤", 1.25, full_only=True),
        *(Claim(command, "times boto3", "≤", bound, full_only=True)
          for command, bound in zip(imports.COMMANDS, (0.3, 1.25), strict=True)),
        Claim("a hot handler", "heavy modules", "=", 0),
    )),
    Measure("rollup", "the rollup", consumers.measure, (
        Claim("1,000 plays of 1 videos", "WCU", "≤", 4),
        Claim("1,000 plays of 1,000 videos", "WCU", "≤", 2100),
        *(Claim(name, "transactions", "≤", 2) for name in consumers.EDGES),
        Claim("the fold alone", "times a plain loop", "≤", 5, full_only=True),
    )),
    Measure("journal", "the journal", journal.measure, (
        *(Claim(f"1,000 likes of {posts:,} posts", "WCU", "≤", bound, full_only=posts > journal.QUICK_CHANGES)
          for posts, bound in zip(journal.POSTS, (9, 10, 20, 60), strict=True)),
        Claim("1,000 plays of 1,000 videos", "WCU", "≤", 40),
        Claim("1,000 plays of 1,000 videos, ids are UUIDs", "WCU", "≤", 120),
        Claim(journal.VISIT, "WCU", "≤", 3.2, full_only=True),
    )),
    Measure("judge", "the judge", judging.measure, (
        Claim("a minute with a million tallies", "times a plain loop", "≤", 2.5, full_only=True),
        Claim("a minute with a million tallies", "MB", "≤", 500),
    )),
    Measure("series", "the series", series.measure, (
        Claim(series.ACTIVE, "times a plain loop", "≤", 1200, full_only=True),  # the loop writes nothing
    )),
    Measure("edits", "a stack without traffic", manual_edits.measure, (
        Claim("a manual edit, to its drift row", "minutes, median", "≤", 7),
        Claim("a quiet minute, one shard in each stream", "WCU", "≤", 8),
    )),
    Measure("backlog", "a backlog of the JavaScript client", backlog.measure, (
        Claim("a change that waited", "reads", "≤", 2.01),  # two for each change, and a few for the page
        Claim("a change that waited", "requests", "=", 1),
        Claim("a change that waited", "off by", "=", 0),
    )),
    Measure("hot", "one hot key, simulated", hot_key.measure, (
        *(Claim(f"{counter} 200/s", "p99 ms", "<", 100, full_only=True) for counter in ("plays", "likes")),
        *(Claim(f"{counter} {per_s}/s", "failed", "=", 0) for counter in ("plays", "likes") for per_s in (50, 200)),
        *(Claim(f"{counter} 1,000/s", "failed", "<", 0.005) for counter in ("plays", "likes")),
        Claim("plays 5,000/s warm", "failed", "=", 0),
        *(Claim(load.name, "off by", "=", 0) for load in hot_key.LOADS),
    )),
    Measure("local", "the local stack", local.measure, (
        Claim(local.VISIT_SHOWN, "s, median", "<", 2),
    ), full_only=True),
)  # fmt: skip


def claimed(measure: str, row: str, column: str) -> float:
    """Returns the bound of one figure. Raises StopIteration if there is no claim about it."""
    (measured,) = (listed for listed in MEASURES if listed.name == measure)
    return next(claim.bound for claim in measured.claims if (claim.row, claim.column) == (row, column))
