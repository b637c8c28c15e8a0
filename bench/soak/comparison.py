"""Compares the tables with the accepted changes: tallies, children, imports, holds, numbers, receipts, the journal."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import counters
from tally.counting import hold_items, tallies
from tally.counting.tallies import TOMBSTONE
from tally.dynamo import keys
from tally.streams import record
from tally.streams.record import CounterIndex
from tests.invariants.streaming import journal_entries

from .notes import EXPIRED, Accepted, Tally
from .setup import SoakSetup

DIFFERENCES_SHOWN_MAX = 20

Sums = Mapping[Tally, int]


@dataclass
class Contents:
    """The content of the tables."""

    tallies: dict[Tally, int] = field(default_factory=lambda: defaultdict(int))
    """Each tally, less the counter's start."""
    children: dict[Tally, set[str]] = field(default_factory=lambda: defaultdict(set))
    imports: dict[str, int] = field(default_factory=dict)
    """The rows of each finished import."""
    holds: dict[str, str] = field(default_factory=dict)
    """The state of each hold."""
    receipts: dict[Tally, int] = field(default_factory=lambda: defaultdict(int))
    """The sum of the amounts in receipts."""
    expected: dict[Tally, int] = field(default_factory=lambda: defaultdict(int))
    """The sum of the expected amounts in the journal. `observed`: the sum of the observed amounts."""
    observed: dict[Tally, int] = field(default_factory=lambda: defaultdict(int))
    drifts: list[str] = field(default_factory=list)  # a line for each drift row that is not 0
    dead_letters: list[str] = field(default_factory=list)  # the sort key of each
    judge_item: str = ""
    """The attributes of the judge's item in the ledger, as text."""


def read_counts(setup: SoakSetup) -> Contents:
    """Reads the tallies and the children."""
    stored, declared = Contents(), CounterIndex(counters.COUNTERS)
    for item in setup.scan("counts"):
        prefix, _, id_ = item["PK"]["S"].partition("#")
        sort_key = item["SK"]["S"]
        counter = declared.counter_of_item(prefix, sort_key)
        if counter is not None:
            stored.tallies[counter.name, id_] += tallies.stored_number(counter, item, counter.start) - counter.start
            continue
        for sort_key_prefix, counter_of_children in declared.children.get(prefix, ()):
            if sort_key.startswith(sort_key_prefix) and TOMBSTONE not in item:
                stored.children[counter_of_children.name, id_].add(sort_key.removeprefix(sort_key_prefix))
    return stored


def read_tables(setup: SoakSetup) -> Contents:
    """Reads all three tables."""
    stored = read_counts(setup)
    for receipt in setup.scan("receipts"):
        if record.CHANGE_ATTRIBUTES & receipt.keys():  # not the receipt of a child, which names no change
            for counter, id_, amount in record.amounts_of(receipt):
                stored.receipts[counter, id_] += amount
    for item in setup.scan("ledger"):
        _add_ledger_item(item, stored)
    return stored


def _add_ledger_item(item: dict[str, Any], stored: Contents) -> None:
    partition = item["PK"]["S"]
    if partition.startswith("SEGMENT#"):
        for entry in journal_entries(item):
            stored.expected[entry.counter, entry.id] += entry.expected
            stored.observed[entry.counter, entry.id] += entry.observed
    elif partition == keys.DRIFT_KEY and item["drift"]["N"] != "0":
        details = {name: next(iter(item[name].values())) for name in ("drift", "since", "upto") if name in item}
        stored.drifts.append(f"{item['counter']['S']} {item['target']['S']} drifts by {details.pop('drift')} {details}")
    elif partition == keys.JUDGE_KEY:
        stored.judge_item = ", ".join(f"{name} {next(iter(value.values()))}" for name, value in sorted(item.items()))
    elif partition == keys.DEAD_LETTER_KEY:
        stored.dead_letters.append(item["SK"]["S"])
    elif partition == keys.IMPORT_KEY and item["finished"]["BOOL"]:
        stored.imports[item["run"]["S"]] = int(item["rows"]["N"])
    elif partition.startswith("HOLDS#SETTLED#"):
        stored.holds[item["SK"]["S"]] = item["state"]["S"]
    elif partition.startswith("HOLDS#"):
        stored.holds[item["hold_id"]["S"]] = hold_items.HELD


def differences(where: str, expected: Sums, stored: Sums) -> list[str]:
    """Returns a line for each tally that differs from the accepted changes. `where`: such as "in the tally"."""
    names = sorted({*expected, *stored})
    return [
        f"{counter} {id_}: {expected.get((counter, id_), 0)} accepted, {stored.get((counter, id_), 0)} {where}"
        for counter, id_ in names
        if expected.get((counter, id_), 0) != stored.get((counter, id_), 0)
    ]


def lost_and_doubled(expected: Sums, stored: Sums) -> tuple[int, int]:
    """Returns the sum of the lost amounts, and the sum of the amounts that were counted twice."""
    excesses = [stored.get(name, 0) - expected.get(name, 0) for name in {*expected, *stored}]
    return sum(-excess for excess in excesses if excess < 0), sum(excess for excess in excesses if excess > 0)


def all_differences(accepted: Accepted, stored: Contents) -> list[str]:
    """Returns a line for each difference between the tables and the accepted changes."""
    expected = accepted.tallies()
    # A child is its own receipt, so receipts do not have the amounts of counters with children.
    receipted = {tally: amount for tally, amount in expected.items() if tally not in accepted.children}
    lines = [f"{note.outcome}: {note.counter} {note.id} {note.key} {note.detail}" for note in accepted.unknown_or_wrong]
    lines += differences("in the tally", expected, stored.tallies)
    lines += differences("in receipts", receipted, stored.receipts)
    lines += differences("expected by the journal", expected, stored.expected)
    lines += differences("observed by the journal", expected, stored.observed)
    lines += [*_child_differences(accepted, stored), *_import_differences(accepted, stored)]
    lines += [*_hold_differences(accepted, stored), *_number_differences(accepted)]
    if stored.drifts and stored.judge_item:  # without --keep the tables are deleted, and only this line shows the state
        lines.append(f"the judge: {stored.judge_item}")
    return [*lines, *stored.drifts, *(f"dead letters: {name}" for name in stored.dead_letters)]


def _child_differences(accepted: Accepted, stored: Contents) -> Iterable[str]:
    for tally in sorted({*accepted.children, *stored.children}):
        put, present = accepted.children.get(tally, set()), stored.children.get(tally, set())
        if put != present:
            name = " ".join(tally)
            yield f"{name}: {sorted(present - put)} stored but not accepted, {sorted(put - present)} not stored"


def _import_differences(accepted: Accepted, stored: Contents) -> Iterable[str]:
    for run in sorted({*accepted.imports, *stored.imports}):
        if accepted.imports[run] != stored.imports.get(run):
            yield f"import {run}: {accepted.imports[run]} rows accepted, {stored.imports.get(run)} in the history"


def _hold_differences(accepted: Accepted, stored: Contents) -> Iterable[str]:
    for hold_id in sorted({*accepted.holds, *stored.holds}):
        # A hold that no client settled must have expired.
        expected = accepted.settled.get(hold_id, EXPIRED) if hold_id in accepted.holds else "not accepted"
        state = stored.holds.get(hold_id, "missing")
        if state != expected:
            yield f"hold {hold_id}: expected {expected}, stored {state}"


def _number_differences(accepted: Accepted) -> Iterable[str]:
    """Yields a line for each tally that gave out a number twice, or left a number out."""
    for (counter, id_), numbers in sorted(accepted.numbers.items()):
        declared = counters.COUNTERS[counter]
        step = declared.delta or 1
        expected = [declared.start + step * number for number in range(1, len(numbers) + 1)]
        if sorted(numbers) != sorted(expected):
            span = f"from {min(numbers)} to {max(numbers)}"
            yield f"{counter} {id_}: {len(numbers)} numbers {span}, some missing or doubled"
