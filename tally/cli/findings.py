"""The findings of `check` and `repair`, and the lines in which the two commands print findings."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import NamedTuple

from tally.counter import Counter
from tally.counting import periods, tallies
from tally.drift.checks import format_time
from tally.drift.recount import Recount
from tally.dynamo.client import Store
from tally.maintenance.rebuild import Window
from tally.maintenance.reconcile import Finding
from tally.settings import MINUTE_DEFAULT_S
from tally.streams.dead_letters import DeadLetterMarker
from tally.streams.loss import LETTER_PREFIX, Loss

from . import team_numbers
from .connection import Stack
from .terminal import print_json_or_line


class Number(NamedTuple):
    """A number: its counter and its id."""

    counter: Counter
    id: str


class CheckedNumber(NamedTuple):
    """One number, as the ledger judges it. `child_count`: its recount; None if its counter counts no children."""

    finding: Finding
    child_count: Recount | None

    @property
    def missing_by_count(self) -> int | None:
        """The amount that the number lacks by a proven recount; None without a proven recount."""
        return self.child_count.low if self.child_count and not self.child_count.unproven_reason else None

    @property
    def is_wrong(self) -> bool:
        """Whether the number has drift, or provably differs from its children."""
        counted = self.child_count
        return self.finding.has_drift or (counted is not None and not counted.low <= 0 <= counted.high)

    @property
    def repair_amount(self) -> int:
        """The amount that a repair would add."""
        return self.finding.difference if self.missing_by_count is None else self.missing_by_count

    @property
    def line(self) -> str:
        """The number and its faults, in one line."""
        finding, counted, row = self.finding, self.child_count, self.finding.drift
        parts = [str(finding.tally)]
        if counted and self.missing_by_count is not None:
            parts.append(f"children {counted.children}")
        if row.drift:
            amount = f"{finding.confirmed:+d} of it " if finding.confirmed != row.drift else ""
            state = f"{amount}confirmed" if finding.confirmed else "not confirmed yet"
            parts.append(f"drift {row.drift:+d} since {format_time(row.since)}, {state}")
        if counted and counted.unproven_reason:
            bounds = f"{counted.low:+d}" if counted.low == counted.high else f"{counted.low:+d} to {counted.high:+d}"
            parts.append(f"by its children {bounds}, but {counted.unproven_reason}")
        return f"{finding.name}: {', '.join(parts)}"


class CheckResult(NamedTuple):
    """The numbers that are wrong, the numbers that cannot be judged now, and how many ids have no number."""

    wrong: list[CheckedNumber]
    unclear: list[CheckedNumber]
    missing: int


class Shortfalls(NamedTuple):
    """The numbers that lack receipts of some days, and these days."""

    findings: list[Finding]
    days: Window


def say_dead_letters(args: argparse.Namespace, markers: list[DeadLetterMarker]) -> None:
    """Prints a line for each dead letter."""
    for marker in markers:
        body = {"found": "dead letter", "object": marker.object, "at": marker.at_s, "reason": marker.reason}
        letter_text = f"{marker.object}, a dead letter since {format_time(marker.at_s)}: {marker.reason}"
        print_json_or_line(args, body, f"waits    {letter_text}: a repair applies it")


def say_losses(args: argparse.Namespace, losses: list[Loss]) -> None:
    """Prints a line for each loss."""
    for loss in losses:
        times = {"since": loss.since_s, "until": loss.until_s}
        when = f"from {format_time(loss.since_s)} to {format_time(loss.until_s)}"
        lost = "a dead letter" if loss.name.startswith(LETTER_PREFIX) else "records"
        line = f"gap      {loss.consumer} may have lost {lost}, {when}: as_of waits for `repair --acknowledge`"
        print_json_or_line(args, {"found": "gap", "consumer": loss.consumer, **times}, line)


def say_numbers(args: argparse.Namespace, stack: Stack, checked: CheckResult) -> None:
    """Prints a line for each number that is wrong or unclear."""
    for number in checked.unclear:
        body = {"found": "unclear", **_number_members(number.finding)}
        print_json_or_line(args, body, f"unclear  {number.line}: run this again when the number changes less often")
    for number in checked.wrong:
        if number.finding.counter.watch:
            team_numbers.print_difference(args, stack, number.finding)
            continue
        row, is_confirmed = number.finding.drift, number.finding.confirmed != 0
        drift = {"drift": row.drift, "since": row.since, "confirmed": is_confirmed} if row.drift else {}
        body = {"found": "differs", **_number_members(number.finding), **drift, "repair": number.repair_amount}
        effect = f"a repair adds {number.repair_amount:+d}" if number.repair_amount else "a repair accepts the number"
        if row.drift and not number.finding.confirmed:
            effect = "a repair waits until the drift is confirmed"
        elif not (row.drift or number.repair_amount):  # the count of the children is not exact
            effect = "a repair waits until the children are counted exactly"
        print_json_or_line(args, body, f"differs  {number.line}: {effect}")


def say_shortfalls(args: argparse.Namespace, store: Store, shortfalls: Shortfalls) -> None:
    """Prints a line for each number that lacks accepted changes."""
    for finding in shortfalls.findings:
        days = ", ".join(f"{format_day(store, day)} {amount}" for day, amount in finding.days.items())
        repaired = sum(finding.days.values()) - finding.difference
        line = f"{finding.name}: {finding.tally}, its receipts say more: {days}"
        line += f", of which {repaired} was repaired" if repaired else ""
        line += f", drifts by {finding.drift.drift:+d}, which is repaired first" if finding.has_drift else ""
        body = {"found": "lost", **_number_members(finding), "repair": finding.difference}
        if finding.unproven_reason:
            body["found"] = "unclear"
            print_json_or_line(args, body, f"unclear  {line}: cannot tell: {finding.unproven_reason}")
        else:
            print_json_or_line(args, body, f"lost     {line}: a repair adds {finding.difference:+d}")


def _number_members(finding: Finding) -> Mapping[str, object]:
    return {"counter": finding.counter.name, **periods.answer_members(finding.target), "value": finding.tally}


def format_day(store: Store, day: int) -> str:
    """Returns the day of a receipt. If minutes, and so days, are shorter than on AWS, returns the start of the day."""
    begins_s = day * tallies.MINUTES_PER_DAY * store.settings.minute_s
    return format_time(begins_s) if store.settings.minute_s < MINUTE_DEFAULT_S else format_time(begins_s)[:10]
