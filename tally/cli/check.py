"""The command `check`: finds wrong numbers, and says what `tally repair` would do. It changes no number.

It checks four parts, the cheapest first: the dead letters, the known drift, the children of each parent (which reads
every child), and the receipts of changes that were never rolled up (which reads every receipt). If COUNTER counts items
of a team's table, it also recounts them (scan.py), and stores a difference as drift.
"""

from __future__ import annotations

import argparse
import shlex
import time
from datetime import UTC

from tally.counter import Counter
from tally.drift import recount, rows
from tally.dynamo import queries
from tally.dynamo.client import Call, Store
from tally.dynamo.clock import CLOCK
from tally.maintenance import rebuild
from tally.maintenance.rebuild import Accepted
from tally.maintenance.reconcile import Reconciler, RepairNotReadyError
from tally.streams import dead_letters, watermark
from tally.streams.dead_letters import DeadLetterMarker
from tally.streams.loss import Loss, list_losses
from tally.team import health, watch

from . import findings, scan, values
from .command import CANNOT_TELL, ID_HELP, WRONG, Command, Counters, Parser, UsageError, add_counter
from .connection import Stack
from .findings import CheckedNumber, CheckResult, Number, Shortfalls
from .terminal import CommandError, format_clock, note, progress_bar, say

LETTERS, DRIFT, CHILDREN, RECEIPTS = "dead-letters", "drift", "children", "receipts"
PARTS = (LETTERS, DRIFT, CHILDREN, RECEIPTS)


def add_number_arguments(parser: Parser, counters: Counters) -> None:
    """Adds the arguments of `check` and `repair`: the numbers, and the part of the work."""
    about = "the counter of the IDs; without an ID only a counter with items (default: everything)"
    add_counter(parser, counters, about, nargs="?")
    parser.add_argument("ids", metavar="ID", nargs="*", default=[], help=ID_HELP)
    parser.add_argument("--only", choices=PARTS, help="do one part of the work; dead-letters takes no ID")


def complete_numbers(args: argparse.Namespace) -> None:
    """Sets `args.named` (the numbers) and `args.parts` (which of PARTS). Raises UsageError or InvalidInputError."""
    counts_items = args.counter is not None and args.counter.items is not None
    if args.counter and not (args.ids or counts_items):
        raise UsageError(f"{args.command}: give COUNTER and at least one ID, or neither")
    args.named = [Number(args.counter, values.resolve_id(args.counter, id_)) for id_ in dict.fromkeys(args.ids)]
    if args.named and args.only == LETTERS:
        raise UsageError("dead letters have no COUNTER and ID")
    if counts_items and args.only not in (None, DRIFT):
        raise UsageError(f"{args.counter.name} counts items, so --only must be drift")
    parts_of_counter = (DRIFT,) if counts_items else (DRIFT, CHILDREN)
    args.parts = (args.only,) if args.only else parts_of_counter if args.counter else PARTS


def read_dead_letters(args: argparse.Namespace, stack: Stack) -> list[DeadLetterMarker]:
    """Returns the dead letters; empty if the command does not check this part."""
    return list(dead_letters.list_markers(Call(stack.store))) if LETTERS in args.parts else []


def find_wrong_numbers(args: argparse.Namespace, stack: Stack) -> CheckResult:
    """Returns the numbers that drift or differ from their children. Prints a note for each id without a number."""
    reconciler = Reconciler(stack.store)
    missing = [one for one in args.named if not _exists(stack.store, *one)]
    for counter, id_ in missing:
        note(f"there is no {counter.name} {id_}")
    numbers = [one for one in args.named if one not in missing] if args.named else _suspects(args, stack)
    checked = []
    if DRIFT in args.parts or CHILDREN in args.parts:
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
    return bool(stored) or rows.read_row(store, counter.name, id_).last_minute >= 0  # -1: there is no row


def _suspects(args: argparse.Namespace, stack: Stack) -> list[Number]:
    """Returns every number that drifts, or differs from its children in a scan. A scan may see half of a change."""
    suspects: dict[tuple[str, str], Number] = {}
    if CHILDREN in args.parts:
        with progress_bar(recount.scan_parents(stack.store, stack.counters), "parent", "scanned") as parents:
            for counter, id_, stored, child_count in parents:
                if stored != child_count:
                    suspects[counter.name, id_] = Number(counter, id_)
    for row in rows.all_rows(stack.store) if DRIFT in args.parts else ():
        if args.counter and row.counter != args.counter.name:
            continue
        if row.counter in stack.counters:
            suspects[row.counter, row.target] = Number(stack.counters[row.counter], row.target)
        else:
            name = f"{row.counter} {row.target}"
            note(f"{name} drifts by {row.drift:+d}, but lambdas/counters.py declares no such counter")
    return [suspects[name] for name in sorted(suspects)]


def read_shortfalls(args: argparse.Namespace, stack: Stack) -> Shortfalls | None:
    """Returns the numbers below their receipts; None if this part is not checked, or if the stack is too new."""
    if RECEIPTS not in args.parts:
        return None
    for counter, _ in args.named:
        if not rebuild.is_rebuildable(counter):
            hint = "a repair counts its children" if counter.child else "its changes are never rolled up"
            raise CommandError(f"{counter.name} has no receipts to rebuild it from: {hint}")
    store, accepted = stack.store, Accepted()
    try:
        days = rebuild.rebuild_window(store, watermark.read(store), CLOCK.now_s())
    except RepairNotReadyError:
        if args.only:
            raise
        note("receipts: not checked: the stack is younger than two whole days")
        return None
    with progress_bar(rebuild.sum_receipts(store, stack.counters, days, accepted), "page", "scanned") as pages:
        for _ in pages:
            pass
    wanted = {(counter.name, id_) for counter, id_ in args.named} or set(accepted)
    with progress_bar(sorted(wanted.intersection(accepted)), "number", "checked") as each:
        compared = [rebuild.missing_of(store, stack.counters[name], id_, accepted[name, id_]) for name, id_ in each]
    return Shortfalls([finding for finding in compared if finding.difference], days)


def say_not_compared(args: argparse.Namespace, stack: Stack) -> bool:
    """Prints why team numbers cannot be compared now. Returns whether there is a reason."""
    reasons = _reasons_not_compared(args, stack)
    for why in reasons:
        note(f"cannot tell: {why}")
    return bool(reasons)


def _reasons_not_compared(args: argparse.Namespace, stack: Stack) -> list[str]:
    """Returns why team numbers cannot be compared now. Prints a note for each counter whose team numbers can be."""
    counters = [args.counter] if args.counter else list(stack.counters.values())
    watching = [counter for counter in counters if counter.watch and DRIFT in args.parts]
    if args.named:
        unproven = ((number, watch.unproven_reason(stack.store, *number)) for number in args.named if watching)
        return [f"{number.counter.name} {number.id} {why}" for number, why in unproven if why]
    changed_groups, reasons = watch.count_changed_groups(stack.store) if watching else {}, list[str]()
    for counter in watching:
        assert counter.watch is not None
        if why := health.why_not_comparable(stack.store, counter):
            reasons.append(f"{counter.name}: {why}")
            continue
        changed, groups = changed_groups.get(counter.name, 0), health.count_team_numbers(stack.store, counter)
        line = f"{counter.name}: {groups:,} groups have {counter.watch.attribute}"
        waiting_text = f" of them changed within {counter.watch.within_s} s and wait to be compared"
        line += f", {changed:,}{waiting_text}" if changed else ""
        if changed >= groups:  # every group waits
            reasons.append(line)
        else:
            note(line)
    return reasons


def read_losses(args: argparse.Namespace, stack: Stack) -> list[Loss]:
    """Returns the losses that are not acknowledged, if the command checks every part."""
    return list_losses(stack.store) if args.parts == PARTS else []


def check(args: argparse.Namespace, stack: Stack) -> int:
    """Prints what is wrong. Returns 0 if all is well, 2 if an id is missing or the check cannot tell, else 1."""
    scan.recount_named(args, stack)
    letters, losses = read_dead_letters(args, stack), read_losses(args, stack)
    checked, shortfalls = find_wrong_numbers(args, stack), read_shortfalls(args, stack)
    unknown = say_not_compared(args, stack)
    findings.say_dead_letters(args, letters)
    findings.say_losses(args, losses)
    findings.say_numbers(args, stack, checked)
    problems = [f"{len(letters)} wait"] * bool(letters) + ["records may be lost"] * bool(losses)
    problems += [f"{len(checked.wrong)} differ"] * bool(checked.wrong)
    if shortfalls:
        findings.say_shortfalls(args, stack.store, shortfalls)
        problems += [f"{len(shortfalls.findings)} lost something"] * bool(shortfalls.findings)
        first, last = (findings.format_day(stack.store, day) for day in (shortfalls.days.first, shortfalls.days.last))
        note(f"receipts: of {first} to {last}")
    unclear = [f"{len(checked.unclear)} unclear"] * bool(checked.unclear)
    now_s = time.time()
    judged_s = watermark.read(stack.store).judged_up_to(stack.store.settings)
    judged = f"checked up to {format_clock(judged_s, UTC, now_s)} UTC" if judged_s else ""
    note(f"drift: {judged or 'not checked yet: a new stack needs some minutes'}")
    if problems and not args.json:
        action = f"to repair it: {repair_command(args)}"
        if len(problems) == 1 and checked.wrong and all(one.finding.counter.watch for one in checked.wrong):
            action = "the commands above set your numbers"
        say(f"{', '.join(problems + unclear)}; {action}")
    elif not args.json:
        is_known = judged_s is not None and not (checked.missing or unknown)
        say(", ".join(unclear) or all_is_well_text(args, is_known=is_known))
    if checked.missing or not (judged_s or problems):
        return CANNOT_TELL
    return WRONG if problems or unclear else CANNOT_TELL if unknown else 0


def all_is_well_text(args: argparse.Namespace, *, is_known: bool) -> str:
    """Returns the line for a check that found nothing. `is_known`: whether everything could be checked."""
    well = f"all is well: {args.only}" if args.only else "all is well"
    return well if is_known else "nothing is known to be wrong"


def repair_command(args: argparse.Namespace) -> str:
    """Returns the command that repairs what `check` found."""
    named = [args.counter.name, *args.ids] if args.counter else []
    only = ["--only", args.only] if args.only else []
    stack_options = ["--local"] if args.local else ["--stack", args.stack]
    port = ["--port", str(args.port)] if args.port else []
    return f"tally repair {shlex.join([*stack_options, *port, *only, *named])} --by NAME --why TEXT"


def _add_arguments(parser: Parser, counters: Counters) -> None:
    add_number_arguments(parser, counters)
    scan.add_pace_arguments(parser)


CHECK = Command(
    "check", check, _add_arguments, complete_numbers, json=True,
    examples="""  tally check --local                            everything, of a running `make dev`
  tally check likes a91f 7b20                    two posts of the stack Tally-dev
  tally check --only drift --stack Tally-prod    the known drift, without a scan
  tally check orders ann                         recounts the items of your table, and stores a difference as drift
  tally check orders                             all of them: says the cost, and asks
""",
)  # fmt: skip
