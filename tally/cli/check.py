"""The command `check`: finds wrong numbers, and says what a repair would do. It changes no number.

It checks four parts, the cheapest first: the dead letters, the known drift, the children of each parent (which reads
every child), and the receipts of changes that were never rolled up (which reads every receipt). If COUNTER counts items
of a team's table, it also recounts them (scan.py), and stores a difference as drift. `tally repair` repairs all this.
"""

from __future__ import annotations

import argparse
import shlex
import time
from collections.abc import Mapping
from datetime import UTC
from typing import NamedTuple

from tally.counter import Counter
from tally.counting import periods, tallies
from tally.drift import recount, rows
from tally.drift.checks import format_time
from tally.drift.recount import Recount
from tally.dynamo import queries
from tally.dynamo.client import Call, Store
from tally.dynamo.clock import CLOCK
from tally.maintenance import rebuild
from tally.maintenance.rebuild import Accepted, Window
from tally.maintenance.reconcile import Finding, Reconciler, RepairNotReadyError
from tally.settings import MINUTE_DEFAULT_S
from tally.streams import dead_letters, watermark
from tally.streams.dead_letters import DeadLetterMarker
from tally.streams.loss import LETTER, Loss, list_losses
from tally.team import health, watch

from . import scan, team_numbers, values
from .command import CANNOT_TELL, ID_HELP, WRONG, Command, Counters, Parser, UsageError, add_counter
from .connection import Stack
from .terminal import CommandError, format_clock, note, print_json_or_line, progress_bar, say

LETTERS, DRIFT, CHILDREN, RECEIPTS = "dead-letters", "drift", "children", "receipts"
PARTS = (LETTERS, DRIFT, CHILDREN, RECEIPTS)


class Number(NamedTuple):
    """A number: its counter and its id."""

    counter: Counter
    id: str


class CheckedNumber(NamedTuple):
    """One number, checked by the ledger and, if it counts children, by a recount."""

    finding: Finding
    child_count: Recount | None

    @property
    def missing_by_count(self) -> int | None:
        """The amount that the number lacks by a proven recount; None without a proven recount."""
        return self.child_count.low if self.child_count and not self.child_count.unproven_reason else None

    @property
    def is_wrong(self) -> bool:
        """Whether the number has drift, or differs from its children."""
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
            part = f"{finding.confirmed:+d} of it " if finding.confirmed != row.drift else ""
            when = f"{part}confirmed" if finding.confirmed else "not confirmed yet"
            parts.append(f"drift {row.drift:+d} since {format_time(row.since)}, {when}")
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
    """The numbers that are lower than the receipts of some days prove, and these days."""

    findings: list[Finding]
    days: Window


def add_number_arguments(parser: Parser, counters: Counters) -> None:
    """Adds the arguments of `check` and `repair`: the numbers, and the part of the work."""
    about = "the counter of the IDs; without an ID only a counter with items (default: everything)"
    add_counter(parser, counters, about, nargs="?")
    parser.add_argument("ids", metavar="ID", nargs="*", default=[], help=ID_HELP)
    parser.add_argument("--only", choices=PARTS, help="do one part of the work; with an ID, drift or children")


def complete_numbers(given: argparse.Namespace) -> None:
    """Completes `named`, the numbers, and `parts`. Raises UsageError or InvalidInputError."""
    of_items = given.counter is not None and given.counter.items is not None
    if given.counter and not (given.ids or of_items):
        raise UsageError(f"{given.command} takes COUNTER and at least one ID, or neither")
    given.named = [Number(given.counter, values.resolve_id(given.counter, id_)) for id_ in dict.fromkeys(given.ids)]
    if given.named and given.only == LETTERS:
        raise UsageError("dead letters have no COUNTER and ID")
    if of_items and given.only not in (None, DRIFT):
        raise UsageError(f"{given.counter.name} counts items: there is only --only drift")
    alone = (DRIFT,) if of_items else (DRIFT, CHILDREN)
    given.parts = (given.only,) if given.only else alone if given.counter else PARTS


def read_dead_letters(given: argparse.Namespace, stack: Stack) -> list[DeadLetterMarker]:
    """Returns the dead letters, if the command is to check them."""
    return list(dead_letters.list_markers(Call(stack.store))) if LETTERS in given.parts else []


def find_wrong_numbers(given: argparse.Namespace, stack: Stack) -> CheckResult:
    """Returns the numbers that drift or differ from their children. Prints a note for each id without a number."""
    reconciler = Reconciler(stack.store)
    missing = [one for one in given.named if not _exists(stack.store, *one)]
    for counter, id_ in missing:
        note(f"there is no {counter.name} {id_}")
    numbers = [one for one in given.named if one not in missing] if given.named else _suspects(given, stack)
    checked = []
    if DRIFT in given.parts or CHILDREN in given.parts:
        with progress_bar(numbers, "number", "checked") as each:
            for counter, id_ in each:
                counted = reconciler.count(counter, id_) if counter.child else None
                checked.append(CheckedNumber(reconciler.find(counter, id_), counted))
    wrong = [one for one in checked if one.is_wrong]
    unclear = [one for one in checked if not one.is_wrong and one.child_count and one.child_count.unproven_reason]
    return CheckResult(wrong, unclear, len(missing))


def _exists(store: Store, counter: Counter, id_: str) -> bool:
    """Returns whether an id has a number, a child or a drift row."""
    first, last = counter.shard_range
    if counter.child is not None:
        first, last = min(first, counter.child_range[0]), max(last, counter.child_range[1])
    stored = queries.query(store, store.settings.counts_table, counter.partition_start + id_, first, last, Limit=1)
    return bool(stored) or rows.read_row(store, counter.name, id_).last_minute >= 0


def _suspects(given: argparse.Namespace, stack: Stack) -> list[Number]:
    """Returns every number that drifts, and every number that differs from its children in a scan."""
    suspects: dict[tuple[str, str], Number] = {}
    if CHILDREN in given.parts:
        with progress_bar(recount.scan_parents(stack.store, stack.counters), "parent", "scanned") as families:
            for counter, id_, number, children in families:
                if number != children:
                    suspects[counter.name, id_] = Number(counter, id_)
    for row in rows.all_rows(stack.store) if DRIFT in given.parts else ():
        if given.counter and row.counter != given.counter.name:
            continue
        if row.counter in stack.counters:
            suspects[row.counter, row.target] = Number(stack.counters[row.counter], row.target)
        else:
            what = f"{row.counter} {row.target} drifts by {row.drift:+d}"
            note(f"{what}, but lambdas/counters.py declares no such counter")
    return [suspects[name] for name in sorted(suspects)]


def read_shortfalls(given: argparse.Namespace, stack: Stack) -> Shortfalls | None:
    """Returns what numbers lack by their receipts; None without this part, or on a stack that is too new."""
    if RECEIPTS not in given.parts:
        return None
    for counter, _ in given.named:
        if not rebuild.rebuildable(counter):
            hint = "a repair counts its children" if counter.child else "its changes are never rolled up"
            raise CommandError(f"{counter.name} has no receipts to rebuild it from: {hint}")
    store, accepted = stack.store, Accepted()
    try:
        days = rebuild.rebuild_window(store, watermark.read(store), CLOCK.now_s())
    except RepairNotReadyError:
        if given.only:
            raise
        note("receipts: not checked: the stack is younger than two whole days")
        return None
    with progress_bar(rebuild.sum_receipts(store, stack.counters, days, accepted), "page", "scanned") as pages:
        for _ in pages:
            pass
    only = {(counter.name, id_) for counter, id_ in given.named} or set(accepted)
    with progress_bar(sorted(only.intersection(accepted)), "number", "checked") as each:
        losses = [rebuild.missing_of(store, stack.counters[name[0]], name[1], accepted[name]) for name in each]
    return Shortfalls([loss for loss in losses if loss.difference], days)


def say_dead_letters(given: argparse.Namespace, markers: list[DeadLetterMarker]) -> None:
    """Prints a line for each dead letter."""
    for marker in markers:
        body = {"found": "dead letter", "object": marker.object, "at": marker.at_s, "reason": marker.reason}
        what = f"{marker.object}, a dead letter since {format_time(marker.at_s)}: {marker.reason}"
        print_json_or_line(given, body, f"waits    {what}: a repair applies it")


def unwatched_reasons(given: argparse.Namespace, stack: Stack) -> list[str]:
    """Returns why team numbers cannot be compared. For the others prints a note with how many are compared."""
    counters = [given.counter] if given.counter else list(stack.counters.values())
    watching = [one for one in counters if one.watch and DRIFT in given.parts]
    if given.named:
        whys = ((one, watch.unproven_reason(stack.store, *one)) for one in given.named if watching)
        return [f"{one.counter.name} {one.id} {why}" for one, why in whys if why]
    waiting, unknown = watch.count_changed_groups(stack.store) if watching else {}, list[str]()
    for one in watching:
        assert one.watch is not None
        if why := health.why_not_comparable(stack.store, one):
            unknown.append(f"{one.name}: {why}")
            continue
        late, have = waiting.get(one.name, 0), health.count_team_numbers(stack.store, one)
        late_ones = f", {late:,} of them changed within {one.watch.within_s} s and wait to be compared" if late else ""
        line = f"{one.name}: {have:,} groups have {one.watch.attribute}{late_ones}"
        if late >= have:
            unknown.append(line)
        else:
            note(line)
    return unknown


def read_losses(given: argparse.Namespace, stack: Stack) -> list[Loss]:
    """Returns the losses that are not acknowledged, if the command checks every part."""
    return list_losses(stack.store) if given.parts == PARTS else []


def say_losses(given: argparse.Namespace, gaps: list[Loss]) -> None:
    """Prints a line for each loss."""
    for gap in gaps:
        times = {"since": gap.since_s, "until": gap.until_s}
        when = f"from {format_time(gap.since_s)} to {format_time(gap.until_s)}"
        what = "a dead letter" if gap.name.startswith(LETTER) else "records"
        line = f"gap      {gap.consumer} may have lost {what}, {when}: as_of waits for `repair --acknowledge`"
        print_json_or_line(given, {"found": "gap", "consumer": gap.consumer, **times}, line)


def say_numbers(given: argparse.Namespace, stack: Stack, checked: CheckResult) -> None:
    """Prints a line for each number that is wrong or unclear."""
    for number in checked.unclear:
        body = {"found": "unclear", **_number_members(number.finding)}
        print_json_or_line(given, body, f"unclear  {number.line}: run this again when the number changes less often")
    for number in checked.wrong:
        if number.finding.counter.watch:
            team_numbers.print_difference(given, stack, number.finding)
            continue
        row, is_confirmed = number.finding.drift, number.finding.confirmed != 0
        drift = {"drift": row.drift, "since": row.since, "confirmed": is_confirmed} if row.drift else {}
        body = {"found": "differs", **_number_members(number.finding), **drift, "repair": number.repair_amount}
        effect = f"a repair adds {number.repair_amount:+d}" if number.repair_amount else "a repair accepts the number"
        if row.drift and not number.finding.confirmed:
            effect = "a repair waits until the drift is confirmed"
        print_json_or_line(given, body, f"differs  {number.line}: {effect}")


def say_shortfalls(given: argparse.Namespace, store: Store, gone: Shortfalls) -> None:
    """Prints a line for each number that lacks accepted changes."""
    for loss in gone.findings:
        days = ", ".join(f"{_day(store, day)} {amount}" for day, amount in loss.days.items())
        repaired = sum(loss.days.values()) - loss.difference
        known = f", of which {repaired} was repaired" if repaired else ""
        first = f", drifts by {loss.drift.drift:+d}, which is repaired first" if loss.has_drift else ""
        body = {"found": "lost", **_number_members(loss), "repair": loss.difference}
        line = f"{loss.name}: {loss.tally}, its receipts say more: {days}{known}{first}"
        if loss.unproven_reason:
            body["found"] = "unclear"
            print_json_or_line(given, body, f"unclear  {line}: cannot tell: {loss.unproven_reason}")
        else:
            print_json_or_line(given, body, f"lost     {line}: a repair adds {loss.difference:+d}")


def _number_members(finding: Finding) -> Mapping[str, object]:
    return {"counter": finding.counter.name, **periods.answer_members(finding.target), "value": finding.tally}


def _day(store: Store, day: int) -> str:
    begins_s = day * tallies.MINUTES_PER_DAY * store.settings.minute_s
    return format_time(begins_s) if store.settings.minute_s < MINUTE_DEFAULT_S else format_time(begins_s)[:10]


def check(given: argparse.Namespace, stack: Stack) -> int:
    """Prints what is wrong. Returns 0 if all is well, 1 if something differs or is unclear, 2 without an answer."""
    scan.recount_named(given, stack)
    waiting, gaps = read_dead_letters(given, stack), read_losses(given, stack)
    checked, gone = find_wrong_numbers(given, stack), read_shortfalls(given, stack)
    unknown = unwatched_reasons(given, stack)
    for why in unknown:
        note(f"cannot tell: {why}")
    say_dead_letters(given, waiting)
    say_losses(given, gaps)
    say_numbers(given, stack, checked)
    problems = [f"{len(waiting)} wait"] * bool(waiting) + ["records may be lost"] * bool(gaps)
    problems += [f"{len(checked.wrong)} differ"] * bool(checked.wrong)
    if gone:
        say_shortfalls(given, stack.store, gone)
        problems += [f"{len(gone.findings)} lost something"] * bool(gone.findings)
        note(f"receipts: of {_day(stack.store, gone.days.first)} to {_day(stack.store, gone.days.last)}")
    unclear = [f"{len(checked.unclear)} unclear"] * bool(checked.unclear)
    now_s = time.time()
    until = watermark.read(stack.store).judged_up_to(stack.store.settings)
    clock = f"checked up to {format_clock(until, UTC, now_s)} UTC" if until else ""
    note(f"drift: {clock or 'not checked yet: a new stack needs some minutes'}")
    if problems and not given.json:
        only_yours = len(problems) == 1 and checked.wrong and all(one.finding.counter.watch for one in checked.wrong)
        what_to_do = "the commands above set your numbers" if only_yours else f"to repair it: {repair_command(given)}"
        say(f"{', '.join(problems + unclear)}; {what_to_do}")
    elif not given.json:
        is_known = until and not (checked.missing or unknown)
        say(", ".join(unclear) or (all_is_well_text(given) if is_known else "nothing is known to be wrong"))
    if checked.missing or not (until or problems):
        return CANNOT_TELL
    return WRONG if problems or unclear else CANNOT_TELL if unknown else 0


def all_is_well_text(given: argparse.Namespace) -> str:
    """Returns the line for a check that found nothing."""
    return f"all is well: {given.only}" if given.only else "all is well"


def repair_command(given: argparse.Namespace) -> str:
    """Returns the command that repairs what `check` found."""
    named = [given.counter.name, *given.ids] if given.counter else []
    only = ["--only", given.only] if given.only else []
    where = ["--local"] if given.local else ["--stack", given.stack]
    port = ["--port", str(given.port)] if given.port else []
    return f"tally repair {shlex.join([*where, *port, *only, *named])} --by NAME --why TEXT"


def _arguments(parser: Parser, counters: Counters) -> None:
    add_number_arguments(parser, counters)
    scan.add_pace(parser)


CHECK = Command(
    "check", check, _arguments, complete_numbers, json=True,
    examples="""  tally check --local                            everything, of a running `make dev`
  tally check likes a91f 7b20                    two posts of the stack Tally-dev
  tally check --only drift --stack Tally-prod    the known drift, without a scan
  tally check orders ann                         recounts the items of your table, and stores a difference as drift
  tally check orders                             all of them: says the cost, and asks
""",
)  # fmt: skip
