"""The command `repair`: repairs what `check` finds, part by part, in the order in which one part rests on the other.

First it applies the dead letters: until then nobody can prove what drifts. Then it repairs the numbers that drift or
differ from their children. At last it adds what receipts say and nobody added. Each part shows what it found, asks,
and looks again as it writes: each repair is one transaction on condition that nothing has changed.
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
from tally.maintenance.reconcile import Finding, Reconciler
from tally.streams import bookkeeper, dead_letters, forms, rollup
from tally.streams.dead_letters import DeadLetterMarker, RedriveOutcome
from tally.streams.fold import StreamConsumer
from tally.streams.record import CounterIndex
from tally.team import consumer, scan_state

from . import check
from .check import LETTERS
from .command import CANNOT_TELL, WRONG, Command, Counters, Parser
from .connection import Stack
from .terminal import CommandError, check_answerable, confirm, note, progress_bar, say


def _arguments(parser: Parser, counters: Counters) -> None:
    check.add_number_arguments(parser, counters)
    parser.add_argument("--drop", action="store_true", help="discard dead letters that cannot be applied")
    parser.add_argument(
        "--acknowledge", action="store_true", help="accept that stream records may be lost, and let as_of advance"
    )
    parser.add_argument("--yes", action="store_true", help="do not ask")


def repair(given: argparse.Namespace, stack: Stack) -> int:
    """Show, ask and repair, part by part. 0: nothing is left, 1: something is, 2: a number is not there."""
    check_answerable(given.yes)
    given.json = False
    waiting = check.read_dead_letters(given, stack)
    check.say_dead_letters(given, waiting)
    left = _redrive(given, stack, waiting) if waiting and confirm(given, f"Apply {len(waiting)}?") else len(waiting)
    if left:
        say(f"{left} dead letters are not applied. Resolve them first; nothing else was repaired")
        return WRONG
    reconciler = Reconciler(stack.store)
    if waiting and given.only != LETTERS:
        _wait_until_judged(reconciler)  # what they moved is known then
    if given.counter is not None and given.counter.items is not None:
        note(f"a repair takes off what `tally check {given.counter.name}` has found")
    checked = check.find_wrong_numbers(given, stack)
    check.say_numbers(given, stack, checked)
    left += len(checked.unclear)
    if wrong := checked.wrong:
        left += _repair_numbers(given, reconciler, wrong) if confirm(given, "Repair this?") else len(wrong)
    gone = check.read_shortfalls(given, stack)
    if gone and gone.findings:
        check.say_shortfalls(given, stack.store, gone)
        left += _rebuild_numbers(given, reconciler, gone) if confirm(given, "Add this?") else len(gone.findings)
    left += _forget_drift(given, stack)
    gaps = check.read_losses(given, stack)
    check.say_losses(given, gaps)
    if gaps and given.acknowledge and confirm(given, "Acknowledge this?"):
        _wait_until_judged(reconciler, max(gap.resume_minute for gap in gaps) - 1)
        losses.acknowledge(stack.store, gaps, given.by, given.why)
        say(f"acknowledged {len(gaps)}: as_of advances with the next sweep")
    else:
        left += len(gaps)
    said = [f"{left} left"] * bool(left) + [f"{checked.missing} missing"] * bool(checked.missing)
    say(", ".join(said) or check.all_is_well_text(given))
    return CANNOT_TELL if checked.missing else WRONG if left else 0


def _redrive(given: argparse.Namespace, stack: Stack, waiting: Sequence[DeadLetterMarker]) -> int:
    """Apply each dead letter once; with --drop, forget those that have expired. Returns how many are left."""
    objects = stack.objects
    if objects is None:
        raise CommandError("the stack has no output 'DeadLetterBucketName', where the records would be")
    done = dict.fromkeys(RedriveOutcome, 0)
    declared, consumers = CounterIndex(stack.counters, stack.store.settings.minute_s), _consumers(stack)
    with progress_bar(waiting, "dead letter", "applied") as markers:
        for marker in markers:
            _give_up_scans(stack, marker)
            outcome, why = dead_letters.redrive(Call(stack.store), objects, consumers, declared, marker)
            of_items = marker.consumer == consumer.NAME
            if outcome is RedriveOutcome.STILL_BLOCKED and of_items and given.drop:
                outcome = RedriveOutcome.OBJECT_LOST  # a scan counts the item as it is now
            done[outcome] += 1
            if outcome is RedriveOutcome.STILL_BLOCKED:
                say(f"kept     {marker.object}: {why}{'; --drop discards it, then `tally scan`' if of_items else ''}")
            if outcome is RedriveOutcome.OBJECT_LOST and given.drop:
                _give_up_scans(stack, marker, lost=True)
                dead_letters.discard(Call(stack.store), marker)
                say(f"dropped  {marker.object}, a dead letter since {format_time(marker.at_s)}: {why}")
            elif outcome is RedriveOutcome.OBJECT_LOST:
                since = format_time(marker.at_s)
                say(f"lost     {marker.object}, a dead letter since {since}: {why}; --drop discards it")
    lost = (
        f", {done[RedriveOutcome.OBJECT_LOST]} {'dropped' if given.drop else 'lost'}"
        if done[RedriveOutcome.OBJECT_LOST]
        else ""
    )
    applied, gone = done[RedriveOutcome.APPLIED], done[RedriveOutcome.ALREADY_APPLIED]
    say(f"{applied} applied, {gone} already gone, {done[RedriveOutcome.STILL_BLOCKED]} kept{lost}")
    return done[RedriveOutcome.STILL_BLOCKED] + (0 if given.drop else done[RedriveOutcome.OBJECT_LOST])


def _consumers(stack: Stack) -> dict[str, StreamConsumer]:
    """Those whose dead letters there may be, by name."""
    return {one.name: one for one in (rollup.CONSUMER, bookkeeper.CONSUMER, consumer.items_consumer(stack.counters))}


def _give_up_scans(stack: Stack, marker: DeadLetterMarker, *, lost: bool = False) -> None:
    """Close the scans that are open of the items of a dead letter: what is applied moves the number alone. If it is
    `lost`, the number does not count the items."""
    if marker.consumer != consumer.NAME:
        return
    for name in consumer.counters_of_table(stack.counters, marker.table):
        scan = scan_state.read_scan(stack.store, name)
        if lost and scan.counted:
            scan_state.invalidate_until_done(stack.store, name)
            note(f"{name} has lost a change: `tally scan {name}` counts its items")
        elif not scan.closed:
            scan_state.close(stack.store, scan)
            note(f"the scan for {name} was abandoned: start it again")


def _repair_numbers(given: argparse.Namespace, reconciler: Reconciler, wrong: Sequence[check.CheckedNumber]) -> int:
    """Repair these once the ledger has judged what happened so far. Returns how many still differ."""
    asked = _wait_until_judged(reconciler)
    with progress_bar(wrong, "number", "looked at again") as each:
        counted = [
            (look, reconciler.count_again(look.finding.counter, look.finding.target, look.child_count)) for look in each
        ]
    twice = sum(len(counts) > 1 for _, counts in counted)
    if twice:
        differ = f"{twice} of {len(wrong)} differ{'s' * (twice == 1)} from the count of children"
        note(f"{differ} for no recorded reason: counting once more to be sure")
        asked = _wait_until_judged(reconciler)

    def one(looked: tuple[check.CheckedNumber, Sequence[Recount]]) -> None:
        look, counts = looked
        counter, id_ = look.finding.counter, look.finding.target
        done = reconciler.repair(counter, id_, given.by, given.why, asked=asked, counted=counts)
        if done is None:
            say(f"nothing to repair: {look.finding.name} is {reconciler.find(counter, id_).tally}")
        else:
            say(f"repaired {_format_move(done)}, by {done.how}")

    return _fix_each(counted, one)


def _forget_drift(given: argparse.Namespace, stack: Stack) -> int:
    """Forget the drift of counters of items that are declared no more: nobody reads their numbers, and nothing else
    would end it. Returns how many are left. Numbers that count changes stay, and are off."""
    if given.counter or check.DRIFT not in given.parts:
        return 0
    known = stack.counters.keys() | forms.removed(forms.noted(stack.store), stack.counters).keys()
    gone = [row for row in rows.all_rows(stack.store) if row.counter not in known]
    if not gone or not confirm(given, f"Forget the drift of {len(gone)}, which counted items?"):
        return len(gone)
    return sum(not try_commit(stack.store, [rows.drift_write(stack.store, row, 0, clock.now_s())]) for row in gone)


def _rebuild_numbers(given: argparse.Namespace, reconciler: Reconciler, gone: check.Shortfalls) -> int:
    """Add what these lack. Returns how many still lack something."""
    asked = _wait_until_judged(reconciler)

    def one(loss: Finding) -> None:
        done = rebuild.rebuild(reconciler, loss, given.by, given.why, asked)
        if done:
            say(f"rebuilt  {_format_move(done)}")

    return _fix_each(gone.findings, one)


def _fix_each(things: Sequence[Any], fix: Callable[[Any], None]) -> int:
    """Repair each. What cannot be repaired does not stop the others. Returns how many could not."""
    left = 0
    with progress_bar(things, "number", "repaired") as each:
        for thing in each:
            try:
                fix(thing)
            except TallyError as error:
                note(error.detail)
                left += 1
    return left


def _format_move(done: Finding) -> str:
    return f"{done.name}: {done.difference:+d} ({done.tally} to {done.tally + done.difference})"


def _wait_until_judged(reconciler: Reconciler, asked: int | None = None) -> int:
    """Wait until the ledger has judged a minute, by default this one; the minute. Shows what it waits for."""
    asked = reconciler.minute_to_judge() if asked is None else asked
    with progress_bar(None, "minute", "judged") as shown:

        def tell(left: int) -> None:
            if not shown.total:
                about_s = left * reconciler.store.settings.minute_s
                note(f"waiting until everything up to now is checked: about {about_s} s (Ctrl-C is safe)")
                shown.total = left
            shown.update(shown.total - left - shown.n)

        reconciler.wait_until_judged(asked, tell)
    return asked


REPAIR = Command(
    "repair", repair, _arguments, check.complete_numbers,
    write_option="",
    examples="""  tally repair --by ann --why "edited by hand" --local
  tally repair likes a91f 7b20 --by ann --why "INC-412: an import" --stack Tally-prod
  tally repair --only dead-letters --by ann --why "fixed in 1.2" --yes
""",
)  # fmt: skip
