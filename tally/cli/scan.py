"""The command `scan`: counts the items of a team's table that are there, and sets each number to what they come to.

The team goes on writing meanwhile (team/recounts.py). A scan that stops goes on where it was. It waits until the
consumer has passed all that was written while it ran: only then a difference is one. Until the end reads answer 409.

`tally check` recounts in the same way, and notes what it finds as drift: a number that stands is repaired by somebody
who says why. So a scan sets only numbers that did not count the items before, and the history does not have it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice

from tally.contract.stream_views import why_uncountable
from tally.counter import Counter
from tally.dynamo import clock
from tally.dynamo.client import Store
from tally.errors import TallyError
from tally.items import ASIDE
from tally.streams import forms
from tally.streams.lineage import ITEMS
from tally.streams.loss import NOTHING_LOST_S
from tally.streams.watermark import oldest_dead_letter_s
from tally.team import faults, health, scan_plan, scan_state, watch
from tally.team.recounts import GROUPS_MAX, Difference, Recount

from . import values
from .command import CANNOT_TELL, Command, Counters, Parser, add_counter
from .connection import Stack
from .terminal import CommandError, check_answerable, confirm, note, progress_bar, say

UNITS_MAX = 10**6
BURST_S = 1.0  # of the units of a throttled scan may come at once
SWEEP_DELAY_MINUTES = 2  # minutes until the sweep notes what the consumer has passed
WAIT_MINUTES_MAX = 20  # minutes for that
LOOKS_PER_MINUTE = 12
TRIES_MAX = 50  # at one group: what moves its number at the same time spoils one
PAUSE_S = 0.05  # between two tries: a conflicting transaction is over in 30 ms


@dataclass
class Throttle:
    """Lets about so many units a second pass, read and written; 0: any number. `clock`, `sleep`: in seconds."""

    units: int
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    free_at_s: float = 0.0

    def wait_for(self, units: float) -> None:
        """Wait until these units are paid for."""
        if self.units:
            now_s = self.clock()
            self.free_at_s = max(self.free_at_s, now_s - BURST_S) + units / self.units
            self.sleep(max(0.0, self.free_at_s - now_s))


def add_pace(parser: Parser) -> None:
    """The arguments of what reads a whole table."""
    units = values.whole(1, UNITS_MAX)
    parser.add_argument(
        "--units",
        metavar="N",
        type=units,
        default=0,
        help="use at most about N read and write units of your table a second",
    )
    parser.add_argument("--yes", action="store_true", help="do not ask")


def _arguments(parser: Parser, counters: Counters) -> None:
    add_counter(parser, counters, "a counter that counts the items of your table")
    parser.add_argument("--dry-run", action="store_true", help="estimate the cost from a sample, and scan nothing")
    parser.add_argument("--again", action="store_true", help="start a new scan; until it ends, reads answer 409")
    add_pace(parser)


def _scan(given: argparse.Namespace, stack: Stack) -> int:
    """Count the items and set the numbers, unless they are counted. Returns 0."""
    counter, name = given.counter, given.counter.name
    stack.team_table(counter)
    if given.dry_run:
        there = Recount(stack.store, counter, scan_state.read_scan(stack.store, name))
        _check_table(there)
        for line in scan_plan.ScanPlan(there, sets_numbers=True, units_per_s_max=given.units).lines():
            say(line)
        return 0
    if scan_state.read_scan(stack.store, name).counted == counter.items_digest and not given.again:
        say(f"{name} is counted: `tally check {name}` shows what differs, --again counts from the beginning")
        return 0
    recount = _finish_scan(given, stack, again=given.again)
    groups, off = _set_all(recount)
    recount.close(counted=True, found=groups)
    read = scan_state.read_scan(stack.store, name).items
    found = list(faults.read_faults(stack.store, counter))
    nothing = f"; {sum(one.items for one in found):,} items count for nothing: " if found else ""
    say(
        f"{name} is counted: {read:,} items read, {groups:,} groups, {off:,} numbers set"
        f"{nothing}{'; '.join(map(str, found))}"
    )
    if missing := health.why_not_comparable(stack.store, counter):
        note(f"cannot tell: {name}: {missing}")
        return CANNOT_TELL
    if counter.watch:
        note(f"the sweep holds {counter.watch.attribute} against that from now on: `tally check --only drift` lists it")
    return 0


def _set_all(recount: Recount) -> tuple[int, int]:
    """Set the number of each group. How many groups have items, and how many numbers were off."""
    groups = off = 0
    with progress_bar(recount.all_differences(), "group", "set") as differences:
        each = iter(differences)
        while some := list(islice(each, GROUPS_MAX)):
            for difference in some:
                groups += difference.recount != 0 and not difference.group.startswith(ASIDE)
                off += difference.excess != 0 and not difference.is_set
                if difference.has_stale_recounts:
                    recount.remove_stale(difference.group)
            for left in recount.set_many(some):
                _apply_difference(recount, left, recount.set_number)
    return groups, off


def recount_named(given: argparse.Namespace, stack: Stack) -> None:
    """Recount what `check` names of a counter of items, and note what its numbers are off by as drift."""
    counter, store = given.counter, stack.store
    if counter is None or counter.items is None or given.only:
        return
    stack.team_table(counter)
    stack.check_counted(counter)
    try:
        _compare(_finish_scan(given, stack, [one.id for one in given.named]))
    except KeyboardInterrupt:  # what is open costs the consumer writes
        with suppress(TallyError):
            scan_state.close(store, scan_state.read_scan(store, counter.name))
        raise


def _compare(recount: Recount) -> None:
    name, groups, looked = recount.counter.name, recount.scan.groups, list[str]()
    with progress_bar(
        map(recount.difference, groups) if groups else recount.all_differences(), "group", "compared"
    ) as differences:
        for difference in differences:
            difference = _apply_difference(
                recount, difference, recount.set_number if recount.counter.watch else recount.report_drift
            )
            looked.append(difference.group)
            if groups:
                number, items = (
                    recount.items_declaration.shown(one) for one in (difference.number, difference.recount)
                )
                note(f"{name} {difference.group}: {number}, and its items come to {items}")
            if difference.has_stale_recounts:
                recount.remove_stale(difference.group)
    recount.close()
    if recount.counter.watch:  # the numbers that the team keeps are compared with what was set
        with progress_bar(looked, "number", "looked at") as each:
            for group in each:
                watch.check_group_now(recount.store, recount.counter, group, clock.now_s())


def _finish_scan(
    given: argparse.Namespace, stack: Stack, groups: Sequence[str] = (), *, again: bool = False
) -> Recount:
    """A scan that has read everything, and whose differences hold. `groups`: the only ones that it counts.

    Raises ScanAbandonedError, UncountableError, CommandError.
    """
    forms.check(forms.noted(stack.store), stack.counters)
    recount = _resume_or_begin(given, stack.store, groups, again=again)
    if not recount.scan.ended_s:
        half, items = scan_plan.half_of_provisioned_reads(recount), recount.table_description.get("ItemCount")
        throttle = Throttle(given.units or half)
        with progress_bar(None, "item", "scanned", None if groups else items) as shown:
            shown.update(recount.scan.items)
            for step in recount.run_steps():
                shown.update(step.read)
                throttle.wait_for(step.units if given.units else step.read_units)
    _wait(recount)
    return recount


def _resume_or_begin(given: argparse.Namespace, store: Store, groups: Sequence[str], *, again: bool) -> Recount:
    """The scan that is open, or a new one. Raises CommandError."""
    counter: Counter = given.counter
    scan = scan_state.read_scan(store, counter.name)
    there = Recount(store, counter, scan)
    _check_dead_letters(there)
    _check_table(there)
    if (
        not scan.closed
        and scan.digest == counter.items_digest
        and not again
        and not scan.may_lack_markers(clock.now_s())
    ):
        if scan.groups == tuple(groups):
            note(f"the scan goes on: {scan.items:,} items were read")
            return there
        if not scan.groups:
            raise CommandError(f"a recount of all is open: `tally check {counter.name}` goes on with it")
    if not groups or there.items_declaration.group_by is not None:  # else it reads some partitions
        check_answerable(given.yes)
        plan = scan_plan.ScanPlan(
            there, tuple(groups), sets_numbers=given.command == "scan", units_per_s_max=given.units
        )
        for line in plan.lines():
            note(line)
        if not confirm(given, "Scan it?"):
            raise CommandError("nothing is scanned")
    if again:
        scan_state.invalidate(store, scan)  # what is set then was no number: it needs no history
    forms.note_items(store, counter)
    begun = scan_state.begin(store, counter, clock.now_s(), groups)
    if begun is None:
        raise CommandError(f"somebody else began a scan for {counter.name} just now")
    return replace(there, scan=begun)


def _check_table(recount: Recount) -> None:
    """Raise CommandError for a table whose items the consumer cannot count. The app may have imported it, and then only
    the table itself says what it is."""
    of, described, name = recount.items_declaration, recount.table_description, recount.counter.name
    stream = described.get("StreamSpecification") or {}
    view = stream.get("StreamViewType") if stream.get("StreamEnabled") else None
    why = why_uncountable(list(recount.key_types), view, {name: (of.partition_key, of.sort_key, of.needs_images)})
    read, there = recount.store.settings.team_tables[of.table].stream, described.get("LatestStreamArn")
    if not why and there != read:
        why = f"the stack reads the stream {read}, and that of the table is {there}: deploy the stack with this stream"
    if not why and "B" in recount.key_types.values():
        why = "its keys are binary, and Tally counts items by texts and numbers"
    if why:
        raise CommandError(f"the items of the table {of.table} cannot be counted: {why}")


def _check_dead_letters(recount: Recount) -> None:
    """Raise CommandError while a record of the table is a dead letter: the scan may have read what it did, or not."""
    table = recount.items_declaration.table
    if oldest_dead_letter_s(recount.store, ITEMS, table) != NOTHING_LOST_S:
        raise CommandError(f"there are dead letters of the table {table}: `tally repair` first, then scan again")


def _wait(recount: Recount) -> None:
    """Wait until the consumer has passed what was written while the scan ran.

    Raises ScanAbandonedError, CommandError.
    """
    minute_s = recount.store.settings.minute_s
    for look in range(WAIT_MINUTES_MAX * LOOKS_PER_MINUTE):
        _check_dead_letters(recount)
        if recount.is_complete():
            return
        if not look:
            about_s = (scan_state.CLOCK_SLACK + SWEEP_DELAY_MINUTES) * minute_s
            table = recount.items_declaration.table
            note(f"read everything. Waiting for the consumer to catch up with {table}: about {about_s} s")
        time.sleep(minute_s / LOOKS_PER_MINUTE)
    raise CommandError(
        "timed out waiting for the consumer. Check that the functions items and sweep run, then run this again"
    )


def _apply_difference(recount: Recount, off: Difference, settle: Callable[[Difference], bool]) -> Difference:
    """Settle a difference; as it was then. Raises CommandError."""
    for _ in range(TRIES_MAX):
        if settle(off):
            return off
        time.sleep(PAUSE_S)
        off = recount.difference(off.group)
    raise CommandError(f"{recount.counter.name} {off.group} changed at each attempt: start it again")


SCAN = Command(
    "scan", _scan, _arguments,
    examples="""  tally scan orders                              what it will cost; asks, and goes on where it was
  tally scan orders --dry-run                    what it takes, and what will not count, from a sample
  tally scan orders --units 2000 --yes           about 2,000 units a second
""",
)  # fmt: skip
