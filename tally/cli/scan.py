"""The command `scan`: counts the items that are already in a team's table, and sets each number to the result.

The team may write to the table during the scan (team/recounts.py). After Ctrl-C or a crash, the same command continues
the scan. At the end the command waits until the consumer (`items`) has passed everything that was written during the
scan, because before that a difference may be the consumer's lag. Until the scan ends, reads answer 409.

A scan only sets numbers that did not count the items before, so it needs no entry in the history. `tally check`
recounts in the same way, and stores a difference as drift, which a repair with `--by` and `--why` removes.
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
from tally.items import RESERVED_GROUP_PREFIX
from tally.streams import fingerprints
from tally.streams.lineage import ITEMS
from tally.streams.loss import NOTHING_LOST_S
from tally.streams.watermark import oldest_dead_letter_s
from tally.team import faults, health, scan_plan, scan_state, watch
from tally.team.recounts import GROUPS_MAX, Difference, Recount

from . import values
from .command import CANNOT_TELL, Command, Counters, Parser, add_counter
from .connection import Stack
from .terminal import CommandError, check_answerable, confirm, note, progress_bar, say

UNITS_MAX = 10**6  # the largest --units
BURST_S = 1.0  # after a pause, a throttled scan may use the units of this many seconds at once
SWEEP_DELAY_MINUTES = 2  # until the sweep stores how far the consumer has come
WAIT_MINUTES_MAX = 20  # for the consumer to catch up
POLLS_PER_MINUTE = 12
TRIES_MAX = 50  # to set one number: a change of the number at the same time fails a try
PAUSE_S = 0.05  # between two tries: a conflicting transaction ends within 30 ms


@dataclass
class Throttle:
    """Limits the read and write units a second to `units`; 0: no limit."""

    units: int
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    free_at_s: float = 0.0  # the time, by `clock`, when the units used so far are within the limit

    def wait_for(self, units: float) -> None:
        """Waits until these units are within the limit."""
        if self.units:
            now_s = self.clock()
            self.free_at_s = max(self.free_at_s, now_s - BURST_S) + units / self.units
            self.sleep(max(0.0, self.free_at_s - now_s))


def add_pace_arguments(parser: Parser) -> None:
    """Adds the arguments of a command that reads a whole table."""
    text = "use at most about N read and write units a second; default: half of the reads that your table provisions"
    units = values.whole_number(1, UNITS_MAX)
    parser.add_argument("--units", metavar="N", type=units, default=0, help=text)
    parser.add_argument("--yes", action="store_true", help="do not ask")


def _add_arguments(parser: Parser, counters: Counters) -> None:
    add_counter(parser, counters, "a counter that counts the items of your table")
    parser.add_argument("--dry-run", action="store_true", help="estimate the cost from a sample, and scan nothing")
    parser.add_argument("--again", action="store_true", help="start a new scan; until it ends, reads answer 409")
    add_pace_arguments(parser)


def scan(args: argparse.Namespace, stack: Stack) -> int:
    """Counts the items and sets the numbers. If the items are counted as declared now, does nothing without --again."""
    counter, name = args.counter, args.counter.name
    stack.team_table(counter)
    if args.dry_run:
        recount = Recount(stack.store, counter, scan_state.read_scan(stack.store, name))
        _check_table(recount)
        for line in scan_plan.ScanPlan(recount, sets_numbers=True, units_per_s_max=args.units).lines():
            say(line)
        return 0
    if scan_state.read_scan(stack.store, name).counted_by == counter.items_digest and not args.again:
        say(f"{name} is counted already: `tally check {name}` shows what differs, --again starts a new scan")
        return 0
    recount = _finish_scan(args, stack, again=args.again)
    group_count, wrong_count = _set_all(recount)
    recount.close(has_counted_all=True, groups_found=group_count)
    read = scan_state.read_scan(stack.store, name).items
    found_faults = list(faults.read_faults(stack.store, counter))
    line = f"{name} is counted: {read:,} items read, {group_count:,} groups, {wrong_count:,} numbers set"
    if found_faults:
        items = sum(fault.items for fault in found_faults)
        line += f"; {items:,} items count for nothing: {'; '.join(map(str, found_faults))}"
    say(line)
    if why := health.why_not_comparable(stack.store, counter):
        note(f"cannot tell: {name}: {why}")
        return CANNOT_TELL
    if counter.watch:
        attribute = counter.watch.attribute
        note(f"from now on the sweep compares {attribute} with these numbers: see `tally check --only drift`")
    return 0


def _set_all(recount: Recount) -> tuple[int, int]:
    """Sets each number. Returns how many groups but reserved groups have items, and how many numbers were wrong."""
    group_count = wrong_count = 0
    with progress_bar(recount.all_differences(), "group", "set") as differences:
        remaining = iter(differences)
        while batch := list(islice(remaining, GROUPS_MAX)):
            for difference in batch:
                group_count += difference.recount != 0 and not difference.group.startswith(RESERVED_GROUP_PREFIX)
                wrong_count += difference.excess != 0 and not difference.is_set
                if difference.has_stale_recounts:  # attributes that older scans left
                    recount.remove_stale(difference.group)
            for difference in recount.set_many(batch):  # returns the differences that it did not set
                _apply_difference(recount, difference, recount.set_number)
    return group_count, wrong_count


def recount_named(args: argparse.Namespace, stack: Stack) -> None:
    """Recounts the items of the counter that `check` names, or of the named ids. With --only, recounts nothing."""
    counter, store = args.counter, stack.store
    if counter is None or counter.items is None or args.only:
        return
    stack.team_table(counter)
    stack.check_counted(counter)
    try:
        _compare(_finish_scan(args, stack, [one.id for one in args.named]))
    except KeyboardInterrupt:  # close the scan: while it is open, records cost the consumer more writes
        with suppress(TallyError):
            scan_state.close(store, scan_state.read_scan(store, counter.name))
        raise


def _compare(recount: Recount) -> None:
    """Stores each excess as drift. With `watch`, sets the number instead, because team numbers are compared with it."""
    name, groups, compared = recount.counter.name, recount.scan.groups, list[str]()
    format_number = recount.items_declaration.format
    apply = recount.set_number if recount.counter.watch else recount.report_drift
    every = map(recount.difference, groups) if groups else recount.all_differences()
    with progress_bar(every, "group", "compared") as differences:
        for difference in differences:
            difference = _apply_difference(recount, difference, apply)
            compared.append(difference.group)
            if groups:
                number, items = format_number(difference.number), format_number(difference.recount)
                note(f"{name} {difference.group}: {number}, and its items come to {items}")
            if difference.has_stale_recounts:
                recount.remove_stale(difference.group)
    recount.close()
    if recount.counter.watch:
        with progress_bar(compared, "number", "checked") as each:
            for group in each:
                watch.check_group_now(recount.store, recount.counter, group, clock.now_s())


def _finish_scan(args: argparse.Namespace, stack: Stack, groups: Sequence[str] = (), again: bool = False) -> Recount:
    """Runs a scan to its end, waits for the consumer, and returns the recount. `groups`: those to count; empty: all.
    Raises ScanClosedError, UncountableError, CommandError."""
    fingerprints.check(fingerprints.read_all(stack.store), stack.counters)
    recount = _resume_or_begin(args, stack.store, groups, again=again)
    if not recount.scan.ended_s:
        half_of_reads, items = scan_plan.half_of_provisioned_reads(recount), recount.table_description.get("ItemCount")
        throttle = Throttle(args.units or half_of_reads)
        with progress_bar(None, "item", "scanned", None if groups else items) as bar:
            bar.update(recount.scan.items)
            for step in recount.run_steps():
                bar.update(step.read)
                # --units limits the scan's writes, too. The default, a half of the read capacity, limits only reads.
                throttle.wait_for(step.units if args.units else step.read_units)
    minute_s = recount.store.settings.minute_s  # shorter in `make dev`
    for poll in range(WAIT_MINUTES_MAX * POLLS_PER_MINUTE):
        _check_dead_letters(recount)
        if recount.is_complete():
            return recount
        if not poll:
            about_s = (scan_state.CLOCK_SLACK + SWEEP_DELAY_MINUTES) * minute_s
            table = recount.items_declaration.table
            note(f"read everything. Waiting for the consumer to catch up with {table}: about {about_s} s")
        time.sleep(minute_s / POLLS_PER_MINUTE)
    hint = "Check that the functions items and sweep run, then run this again"
    raise CommandError(f"timed out waiting for the consumer. {hint}")


def _resume_or_begin(args: argparse.Namespace, store: Store, groups: Sequence[str], *, again: bool) -> Recount:
    """Returns the recount of the open scan, or of a new scan. Raises CommandError."""
    counter: Counter = args.counter
    scan = scan_state.read_scan(store, counter.name)
    recount = Recount(store, counter, scan)
    _check_dead_letters(recount)
    _check_table(recount)
    # A scan of an earlier declaration is not continued. Nor is a scan so old that it could count items twice.
    is_current = scan.digest == counter.items_digest and not scan.may_lack_markers(clock.now_s())
    if is_current and not scan.closed and not again:
        if scan.groups == tuple(groups):
            note(f"the scan continues: {scan.items:,} items are read")
            return recount
        if not scan.groups:
            raise CommandError(f"a recount of all groups is open: `tally check {counter.name}` continues it")
    if not groups or recount.items_declaration.group_by is not None:  # reads the whole table, not only some partitions
        check_answerable(args.yes)
        sets_numbers = args.command == "scan"
        plan = scan_plan.ScanPlan(recount, tuple(groups), sets_numbers=sets_numbers, units_per_s_max=args.units)
        for line in plan.lines():
            note(line)
        if not confirm(args, "Scan it?"):
            raise CommandError("nothing is scanned")
    if again:
        scan_state.invalidate(store, scan)  # the numbers are invalid from here, so setting them needs no history
    fingerprints.note_for_scan(store, counter)
    started = scan_state.begin(store, counter, clock.now_s(), groups)
    if started is None:
        raise CommandError(f"another process has just started a scan for {counter.name}: run this again to continue it")
    return replace(recount, scan=started)


def _check_table(recount: Recount) -> None:
    """If the consumer cannot count the items of the table, raises CommandError. Synth checks the same, but only
    DynamoDB can describe a table that the app has imported."""
    declaration, described, name = recount.items_declaration, recount.table_description, recount.counter.name
    stream = described.get("StreamSpecification") or {}
    view = stream.get("StreamViewType") if stream.get("StreamEnabled") else None
    declared_keys = {name: (declaration.partition_key, declaration.sort_key, declaration.needs_images)}
    why = why_uncountable(list(recount.key_types), view, declared_keys)
    read_arn, table_arn = recount.store.settings.team_tables[declaration.table].stream, described.get("LatestStreamArn")
    if not why and table_arn != read_arn:
        why = f"the stack reads the stream {read_arn}, and the table has {table_arn}: deploy the stack with this stream"
    if not why and "B" in recount.key_types.values():
        why = "its keys are binary, and Tally only counts items with keys that are texts or numbers"
    if why:
        raise CommandError(f"the items of the table {declaration.table} cannot be counted: {why}")


def _check_dead_letters(recount: Recount) -> None:
    """If a record of the table is a dead letter, raises CommandError, because the scan may count that change twice."""
    table = recount.items_declaration.table
    if oldest_dead_letter_s(recount.store, ITEMS, table) != NOTHING_LOST_S:  # with this value there is none
        raise CommandError(f"there are dead letters of the table {table}: run `tally repair`, then scan again")


def _apply_difference(recount: Recount, difference: Difference, apply: Callable[[Difference], bool]) -> Difference:
    """Calls `apply` with the present difference until it returns True, and returns that difference. If the number
    changes at each try, raises CommandError."""
    for _ in range(TRIES_MAX):
        if apply(difference):
            return difference
        time.sleep(PAUSE_S)
        difference = recount.difference(difference.group)
    raise CommandError(f"{recount.counter.name} {difference.group} changed at each attempt: run this again")


SCAN = Command(
    "scan", scan, _add_arguments,
    examples="""  tally scan orders                              says the cost, asks, and continues an open scan
  tally scan orders --dry-run                    estimates the cost, and the items that do not count, from a sample
  tally scan orders --units 2000 --yes           about 2,000 units a second
""",
)  # fmt: skip
