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
from tally.drift.looks import moment
from tally.drift.recount import Recount
from tally.dynamo import clock
from tally.dynamo.client import Call
from tally.dynamo.transactions import apply_once
from tally.errors import TallyError
from tally.maintenance import losses, rebuild
from tally.maintenance.reconcile import Finding, Reconciler
from tally.streams import bookkeeper, dead_letters, forms, rollup
from tally.streams.dead_letters import Marker, Redriven
from tally.streams.fold import StreamConsumer
from tally.streams.record import Lookup
from tally.team import consumer, scan_state

from . import check
from .check import LETTERS
from .command import CANNOT_TELL, WRONG, Command, Counters, Parser
from .connection import Stack
from .terminal import CommandError, agreed, bar, check_answerable, note, say


def _arguments(parser: Parser, counters: Counters) -> None:
    check.add_numbers(parser, counters)
    parser.add_argument("--drop", action="store_true", help="forget dead letters that nobody can apply any more")
    parser.add_argument("--acknowledge", action="store_true", help="let as_of go on past records that may be lost")
    parser.add_argument("--yes", action="store_true", help="do not ask")


def repair(given: argparse.Namespace, stack: Stack) -> int:
    """Show, ask and repair, part by part. 0: nothing is left, 1: something is, 2: a number is not there."""
    check_answerable(given.yes)
    given.json = False
    waiting = check.letters(given, stack)
    check.say_letters(given, waiting)
    left = _redrive(given, stack, waiting) if waiting and agreed(given, f"Apply {len(waiting)}?") else len(waiting)
    if left:
        say(f"{left} dead letters are left: nothing else is repaired before")
        return WRONG
    reconciler = Reconciler(stack.store)
    if waiting and given.only != LETTERS:
        _judged(reconciler)  # what they moved is known then
    if given.counter is not None and given.counter.items is not None:
        note(f"a repair takes off what `tally check {given.counter.name}` has found")
    checked = check.numbers(given, stack)
    check.say_numbers(given, stack, checked)
    left += len(checked.unclear)
    if checked.wrong:
        left += _repaired(given, reconciler, checked.wrong) if agreed(given, "Repair this?") else len(checked.wrong)
    gone = check.lost(given, stack)
    if gone and gone.found:
        check.say_lost(given, stack.store, gone)
        left += _rebuilt(given, reconciler, gone) if agreed(given, "Add this?") else len(gone.found)
    left += _forgotten(given, stack)
    gaps = check.losses(given, stack)
    check.say_losses(given, gaps)
    if gaps and given.acknowledge and agreed(given, "Acknowledge this?"):
        _judged(reconciler, max(gap.again for gap in gaps) - 1)
        losses.acknowledge(stack.store, gaps, given.by, given.why)
        say(f"acknowledged {len(gaps)}: as_of goes on with the next sweep")
    else:
        left += len(gaps)
    said = [f"{left} left"] * bool(left) + [f"{checked.missing} missing"] * bool(checked.missing)
    say(", ".join(said) or check.well(given))
    return CANNOT_TELL if checked.missing else WRONG if left else 0


def _redrive(given: argparse.Namespace, stack: Stack, waiting: Sequence[Marker]) -> int:
    """Apply each dead letter once; with --drop, forget those that have expired. Returns how many are left."""
    objects = stack.objects
    if objects is None:
        raise CommandError("the stack has no output 'DeadLetterBucketName', where the records would be")
    done = dict.fromkeys(Redriven, 0)
    declared, consumers = Lookup(stack.counters, stack.store.settings.minute_s), _consumers(stack)
    with bar(waiting, "dead letter", "applied") as markers:
        for marker in markers:
            _give_up_scans(stack, marker)
            outcome, why = dead_letters.redrive(Call(stack.store), objects, consumers, declared, marker)
            of_items = marker.consumer == consumer.NAME
            if outcome is Redriven.KEPT and of_items and given.drop:
                outcome = Redriven.LOST  # a scan counts the item as it is now
            done[outcome] += 1
            if outcome is Redriven.KEPT:
                say(f"kept     {marker.object}: {why}{'; --drop forgets it, then `tally scan`' if of_items else ''}")
            if outcome is Redriven.LOST and given.drop:
                _give_up_scans(stack, marker, lost=True)
                dead_letters.drop(Call(stack.store), marker)
                say(f"dropped  {marker.object}, a dead letter since {moment(marker.at_s)}: {why}")
            elif outcome is Redriven.LOST:
                say(f"lost     {marker.object}, a dead letter since {moment(marker.at_s)}: {why}; --drop forgets it")
    lost = f", {done[Redriven.LOST]} {'dropped' if given.drop else 'lost'}" if done[Redriven.LOST] else ""
    say(f"{done[Redriven.APPLIED]} applied, {done[Redriven.GONE]} already gone, {done[Redriven.KEPT]} kept{lost}")
    return done[Redriven.KEPT] + (0 if given.drop else done[Redriven.LOST])


def _consumers(stack: Stack) -> dict[str, StreamConsumer]:
    """Those whose dead letters there may be, by name."""
    return {one.name: one for one in (rollup.CONSUMER, bookkeeper.CONSUMER, consumer.consumer(stack.counters))}


def _give_up_scans(stack: Stack, marker: Marker, *, lost: bool = False) -> None:
    """Close the scans that are open of the items of a dead letter: what is applied moves the number alone. If it is
    `lost`, the number does not count the items."""
    if marker.consumer != consumer.NAME:
        return
    for name in consumer.counted(stack.counters, marker.table):
        scan = scan_state.read(stack.store, name)
        if lost and scan.counted:
            scan_state.lost(stack.store, name)
            note(f"{name} has lost a change: `tally scan {name}` counts its items")
        elif not scan.closed:
            scan_state.close(stack.store, scan)
            note(f"the scan for {name} was given up: begin it again")


def _repaired(given: argparse.Namespace, reconciler: Reconciler, wrong: Sequence[check.Checked]) -> int:
    """Repair these once the ledger has judged what happened so far. Returns how many still differ."""
    asked = _judged(reconciler)
    with bar(wrong, "number", "looked at again") as each:
        counted = [(look, reconciler.count_again(look.found.counter, look.found.target, look.counted)) for look in each]
    twice = sum(len(counts) > 1 for _, counts in counted)
    if twice:
        note(f"the ledger does not explain {twice} of {len(wrong)}: their children are counted once more")
        asked = _judged(reconciler)

    def one(looked: tuple[check.Checked, Sequence[Recount]]) -> None:
        look, counts = looked
        counter, id_ = look.found.counter, look.found.target
        done = reconciler.repair(counter, id_, given.by, given.why, asked=asked, counted=counts)
        if done is None:
            say(f"even     {look.found.name}: {reconciler.look(counter, id_).tally}")
        else:
            say(f"repaired {_moved(done)}, by {done.how}")

    return _each(counted, one)


def _forgotten(given: argparse.Namespace, stack: Stack) -> int:
    """Forget the drift of counters of items that are declared no more: nobody reads their numbers, and nothing else
    would end it. Returns how many are left. Numbers that count changes stay, and are off."""
    if given.counter or check.DRIFT not in given.parts:
        return 0
    known = stack.counters.keys() | forms.removed(forms.noted(stack.store), stack.counters).keys()
    gone = [row for row in rows.every(stack.store) if row.counter not in known]
    if not gone or not agreed(given, f"Forget the drift of {len(gone)}, which counted items?"):
        return len(gone)
    return sum(not apply_once(stack.store, [rows.moved(stack.store, row, 0, clock.now_s())]) for row in gone)


def _rebuilt(given: argparse.Namespace, reconciler: Reconciler, gone: check.Lost) -> int:
    """Add what these lack. Returns how many still lack something."""
    asked = _judged(reconciler)

    def one(loss: Finding) -> None:
        done = rebuild.rebuild(reconciler, loss, given.by, given.why, asked)
        if done:
            say(f"rebuilt  {_moved(done)}")

    return _each(gone.found, one)


def _each(things: Sequence[Any], fix: Callable[[Any], None]) -> int:
    """Repair each. What cannot be repaired does not stop the others. Returns how many could not."""
    left = 0
    with bar(things, "number", "repaired") as each:
        for thing in each:
            try:
                fix(thing)
            except TallyError as error:
                note(error.detail)
                left += 1
    return left


def _moved(done: Finding) -> str:
    return f"{done.name}: {done.difference:+d} ({done.tally} to {done.tally + done.difference})"


def _judged(reconciler: Reconciler, asked: int | None = None) -> int:
    """Wait until the ledger has judged a minute, by default this one; the minute. Shows what it waits for."""
    asked = reconciler.asked() if asked is None else asked
    with bar(None, "minute", "judged") as shown:

        def tell(left: int) -> None:
            if not shown.total:
                about_s = left * reconciler.store.settings.minute_s
                note(f"nothing is written until drift is known of all that happened so far: about {about_s} s")
                shown.total = left
            shown.update(shown.total - left - shown.n)

        reconciler.wait(asked, tell)
    return asked


REPAIR = Command(
    "repair", repair, _arguments, check.check_numbers,
    signed="",
    examples="""  tally repair --by ann --why "edited by hand" --local
  tally repair likes a91f 7b20 --by ann --why "INC-412: an import" --stack Tally-prod
  tally repair --only dead-letters --by ann --why "fixed in 1.2" --yes
""",
)  # fmt: skip
