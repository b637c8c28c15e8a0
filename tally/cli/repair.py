"""The command `repair`: repairs what `check` finds, part by part. It shows each part and asks.

First it applies the dead letters, because before that the ledger lacks their changes. Then it repairs the numbers that
drift or differ from their children, adds accepted changes that were never rolled up, forgets the drift of undeclared
counters, and acknowledges losses. Each repair is one transaction, on condition that its proof has not changed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

from tally.drift import rows
from tally.drift.checks import format_time
from tally.drift.recount import Recount
from tally.dynamo import clock
from tally.dynamo.client import Call
from tally.dynamo.transactions import try_commit
from tally.errors import TallyError
from tally.maintenance import losses, rebuild
from tally.maintenance.reconcile import Finding, Reconciler, RepairNotReadyError
from tally.streams import bookkeeper, dead_letters, fingerprints, rollup, watermark
from tally.streams.dead_letters import DeadLetterMarker, RedriveOutcome
from tally.streams.record import CounterIndex
from tally.team import consumer, scan_state

from . import check, findings
from .check import LETTERS
from .command import CANNOT_TELL, WRONG, Command, Counters, Parser
from .connection import Stack
from .findings import CheckedNumber
from .terminal import CommandError, check_answerable, confirm, note, progress_bar, say


def _add_arguments(parser: Parser, counters: Counters) -> None:
    check.add_number_arguments(parser, counters)
    parser.add_argument("--drop", action="store_true", help="discard dead letters that cannot be applied")
    acknowledge = "accept that stream records may be lost, and let as_of advance"
    parser.add_argument("--acknowledge", action="store_true", help=acknowledge)
    parser.add_argument("--yes", action="store_true", help="do not ask")


def repair(args: argparse.Namespace, stack: Stack) -> int:
    """Shows, asks and repairs, part by part. Returns 0 if no problem is left, 2 if it cannot tell, else 1."""
    check_answerable(args.yes)
    args.json = False  # the lines of `findings` are those of `check`, which can print JSON
    letters = check.read_dead_letters(args, stack)
    findings.say_dead_letters(args, letters)
    may_apply = letters and confirm(args, f"Apply {len(letters)}?")
    problems = _redrive(args, stack, letters) if may_apply else len(letters)
    if problems:
        say(f"{problems} dead letters are not applied. Resolve them first; nothing else was repaired")
        return WRONG
    reconciler = Reconciler(stack.store)
    if letters and args.only != LETTERS:
        _wait_until_judged(reconciler)  # so that the drift includes what the dead letters moved
    if args.counter is not None and args.counter.items is not None:
        note(f"a repair removes the drift that `tally check {args.counter.name}` found")
    checked = check.find_wrong_numbers(args, stack)
    findings.say_numbers(args, stack, checked)
    problems += len(checked.unclear)
    if wrong := checked.wrong:
        problems += _repair_numbers(args, reconciler, wrong) if confirm(args, "Repair this?") else len(wrong)
    shortfalls = check.read_shortfalls(args, stack)
    if shortfalls and (lacking := shortfalls.findings):
        findings.say_shortfalls(args, stack.store, shortfalls)
        problems += _rebuild_numbers(args, reconciler, lacking) if confirm(args, "Add this?") else len(lacking)
    problems += _forget_drift(args, stack)
    unacknowledged = check.read_losses(args, stack)
    findings.say_losses(args, unacknowledged)
    if unacknowledged and args.acknowledge and confirm(args, "Acknowledge this?"):
        # An acknowledgement needs a ledger that has restarted: the judge has come to the resume minute.
        _wait_until_judged(reconciler, max(loss.resume_minute for loss in unacknowledged) - 1)
        losses.acknowledge(stack.store, unacknowledged, args.by, args.why)
        say(f"acknowledged {len(unacknowledged)}: as_of advances with the next sweep")
    else:
        problems += len(unacknowledged)
    unrepaired = [f"{problems} left"] * bool(problems) + [f"{checked.missing} missing"] * bool(checked.missing)
    is_judged = check.DRIFT not in args.parts or watermark.read(stack.store).judged >= 0
    is_known = not check.say_not_compared(args, stack) and is_judged
    say(", ".join(unrepaired) or check.all_is_well_text(args, is_known=is_known))
    return CANNOT_TELL if checked.missing or not (is_known or problems) else WRONG if problems else 0


def _redrive(args: argparse.Namespace, stack: Stack, letters: Sequence[DeadLetterMarker]) -> int:
    """Applies each dead letter once. Returns how many stay. `--drop` discards what can never be applied, and what the
    consumer `items` cannot apply now."""
    objects = stack.objects
    if objects is None:
        raise CommandError("the stack has no output 'DeadLetterBucketName', so its dead letters cannot be read")
    counts = dict.fromkeys(RedriveOutcome, 0)
    declared = CounterIndex(stack.counters, stack.store.settings.minute_s)
    appliers = (rollup.CONSUMER, bookkeeper.CONSUMER, consumer.items_consumer(stack.counters))
    consumers = {one.name: one for one in appliers}
    with progress_bar(letters, "dead letter", "applied") as each:
        for letter in each:
            _abandon_scans(stack, letter)
            outcome, why = dead_letters.redrive(Call(stack.store), objects, consumers, declared, letter)
            of_items = letter.consumer == consumer.NAME
            if outcome is RedriveOutcome.STILL_BLOCKED and of_items and args.drop:
                outcome = RedriveOutcome.OBJECT_LOST  # so --drop discards it: a scan will count the present item
            counts[outcome] += 1
            if outcome is RedriveOutcome.STILL_BLOCKED:
                say(f"blocked  {letter.object}: {why}{'; --drop discards it, then `tally scan`' if of_items else ''}")
            if outcome is RedriveOutcome.OBJECT_LOST and args.drop:
                _abandon_scans(stack, letter, lost=True)
                dead_letters.discard(Call(stack.store), letter)
                say(f"dropped  {letter.object}, a dead letter since {format_time(letter.at_s)}: {why}")
            elif outcome is RedriveOutcome.OBJECT_LOST:
                since = format_time(letter.at_s)
                say(f"lost     {letter.object}, a dead letter since {since}: {why}; --drop discards it")
    applied, already = counts[RedriveOutcome.APPLIED], counts[RedriveOutcome.ALREADY_APPLIED]
    blocked, lost = counts[RedriveOutcome.STILL_BLOCKED], counts[RedriveOutcome.OBJECT_LOST]
    lost_text = f", {lost} {'dropped' if args.drop else 'lost'}" if lost else ""
    say(f"{applied} applied, {already} already gone, {blocked} blocked{lost_text}")
    return blocked + (0 if args.drop else lost)


def _abandon_scans(stack: Stack, letter: DeadLetterMarker, *, lost: bool = False) -> None:
    """Closes the open scans of a team table, because they miss what the redrive of its dead letter changes. `lost`: the
    record is never applied, so the result of a finished scan is not valid, either, until a new scan ends."""
    if letter.consumer != consumer.NAME:
        return
    for name in consumer.counters_of_table(stack.counters, letter.table):
        scan = scan_state.read_scan(stack.store, name)
        if lost and scan.counted_by:  # the last scan has counted all items
            scan_state.invalidate_until_done(stack.store, name)
            note(f"{name} has lost a change: run `tally scan {name}`")
        elif not scan.closed:
            scan_state.close(stack.store, scan)
            note(f"the scan for {name} was abandoned: start it again")


def _repair_numbers(args: argparse.Namespace, reconciler: Reconciler, wrong: Sequence[CheckedNumber]) -> int:
    """Repairs the numbers after the judge has judged the minutes of all counts. Returns how many repairs failed."""
    required_minute = _wait_until_judged(reconciler)
    counted = []
    with progress_bar(wrong, "number", "checked") as numbers:
        for number in numbers:
            finding = number.finding
            counted.append((number, reconciler.count_again(finding.counter, finding.target, number.child_count)))
    recounted = sum(len(counts) > 1 for _, counts in counted)
    if recounted:
        differ = f"{recounted} of {len(wrong)} differ{'s' * (recounted == 1)} from the count of children"
        note(f"{differ} for no recorded reason: counting once more to be sure")
        required_minute = _wait_until_judged(reconciler)

    def repair_one(number: tuple[CheckedNumber, Sequence[Recount]]) -> None:
        checked, counts = number
        counter, id_ = checked.finding.counter, checked.finding.target
        repaired = reconciler.repair(counter, id_, args.by, args.why, required_minute=required_minute, counted=counts)
        if repaired is None:
            count = reconciler.count(counter, id_) if counter.child and not counts else None
            present = CheckedNumber(reconciler.find(counter, id_), count)
            if present.is_wrong or (count and count.unproven_reason):
                raise RepairNotReadyError(f"{present.line}: try again.")
            say(f"nothing to repair: {checked.finding.name} is {present.finding.tally}")
        else:
            say(f"repaired {_format_move(repaired)}, by {repaired.how}")

    return _fix_each(counted, repair_one)


def _forget_drift(args: argparse.Namespace, stack: Stack) -> int:
    """Deletes the drift of undeclared counters that counted items, because no repair can end such drift. Keeps the
    drift of undeclared counters that counted changes, which may be declared again. Returns how many rows are left."""
    if args.counter or check.DRIFT not in args.parts:
        return 0
    stored = fingerprints.read_all(stack.store)
    known = stack.counters.keys() | fingerprints.undeclared_counters(stored, stack.counters).keys()
    orphans = [row for row in rows.all_rows(stack.store) if row.counter not in known]
    question = f"Forget the drift of {len(orphans)} numbers of items that no counter declares?"
    if not orphans or not confirm(args, question):
        return len(orphans)
    return sum(not try_commit(stack.store, [rows.drift_write(stack.store, row, 0, clock.now_s())]) for row in orphans)


def _rebuild_numbers(args: argparse.Namespace, reconciler: Reconciler, findings: Sequence[Finding]) -> int:
    """Adds the changes that the receipts prove. Returns how many numbers still lack changes."""
    required_minute = _wait_until_judged(reconciler)

    def rebuild_one(finding: Finding) -> None:
        rebuilt = rebuild.rebuild(reconciler, finding, args.by, args.why, required_minute)
        if rebuilt:
            say(f"rebuilt  {_format_move(rebuilt)}")

    return _fix_each(findings, rebuild_one)


def _fix_each(to_fix: Sequence[Any], fix: Callable[[Any], None]) -> int:
    """Calls `fix` with each number or finding, also after a failure. Returns how many failed."""
    failures = 0
    with progress_bar(to_fix, "number", "repaired") as each:
        for one in each:
            try:
                fix(one)
            except TallyError as error:
                note(error.detail)
                failures += 1
    return failures


def _format_move(repaired: Finding) -> str:
    before, amount = repaired.tally, repaired.difference
    return f"{repaired.name}: {amount:+d} ({before} to {before + amount})"


def _wait_until_judged(reconciler: Reconciler, required_minute: int | None = None) -> int:
    """Waits until the judge has judged a minute, and returns the minute. `required_minute` None: the present minute."""
    required_minute = reconciler.minute_to_judge() if required_minute is None else required_minute
    with progress_bar(None, "minute", "judged") as shown:

        def tell(minutes_left: int) -> None:
            if not shown.total:
                about_s = minutes_left * reconciler.store.settings.minute_s
                note(f"waiting until everything up to now is checked: about {about_s} s (Ctrl-C is safe)")
                shown.total = minutes_left
            shown.update(shown.total - minutes_left - shown.n)

        reconciler.wait_until_judged(required_minute, tell)
    return required_minute


REPAIR = Command(
    "repair", repair, _add_arguments, check.complete_numbers, write_option="",
    examples="""  tally repair --by ann --why "edited by hand" --local
  tally repair likes a91f 7b20 --by ann --why "INC-412: an import" --stack Tally-prod
  tally repair --only dead-letters --by ann --why "fixed in 1.2" --yes
""",
)  # fmt: skip
