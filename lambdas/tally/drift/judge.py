"""The judge: it compares, minute by minute, what was expected of each tally with what was observed.

A minute is judged once it is closed (streams/watermark.py): its segments are complete. The judge writes a drift row for
each tally that is uneven. A row takes each minute once: two judges, one that dies and one that wakes up agree.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from ..dynamo import items
from ..dynamo.client import Store, side_by_side
from ..dynamo.transactions import apply_once
from ..errors import StoreBusyError
from ..streams import segments, watermark
from ..streams.segments import Booked
from ..streams.watermark import Watermark
from . import rows

ROWS_READ_MAX = 100  # DynamoDB's limit for one BatchGetItem
TRIES_MAX = 5  # at one row: another judge or a repair wrote it meanwhile

Net = dict[str, dict[str, int]]  # by counter and id: observed less expected; only what is not 0


@dataclass
class Reading:
    """What a run has read: halves of unlikes by minute; segments of the newest minute, and their compressed bytes."""

    halves: dict[int, list[Booked]] = field(default_factory=dict)
    segments: int = 0
    bytes: int = 0


@dataclass
class Judged:
    """What one run did: minutes judged, changes of drift rows (by whomever), and whether it came to the end.

    `last`: the last judged minute; -1: none. `segments` and `bytes`: of the minutes that it judged.
    """

    minutes: int = 0
    changes: int = 0
    finished: bool = True
    last: int = -1
    segments: int = 0
    bytes: int = 0


def judge(store: Store, seen: Watermark, now_s: float, *, until_s: float) -> Judged:
    """Judge every closed minute, the oldest first, until the time runs out (`until_s`, on the store's clock).

    The next run goes on where this one stopped. `seen`: what may be concluded now.
    """
    result, read = Judged(last=seen.judged), Reading()
    for minute in range(seen.judged + 1, seen.closed(store.settings) + 1) if seen.judged >= 0 else ():
        net = differences(store, minute, read)
        changes = ((counter, *change) for counter in sorted(net) for change in sorted(net[counter].items()))
        while chunk := list(islice(changes, ROWS_READ_MAX)):
            if store.clock() >= until_s:
                return replace(result, finished=False)
            _add(store, chunk, minute, now_s)
            result.changes += len(chunk)
        was = {"judged": minute - 1}
        note = items.update(store.settings.ledger_table, watermark.JUDGE, {"judged": minute}, was=was)
        apply_once(store, [note])  # another judge may have been faster
        result.minutes += 1
        result.last = minute
        result.segments += read.segments
        result.bytes += read.bytes
        if store.clock() >= until_s:
            result.finished = minute == seen.closed(store.settings)
            break
    return result


def differences(store: Store, minute: int, read: Reading | None = None) -> Net:
    """How uneven each tally is in a minute. An unlike counts on its older half's. `read`: what a run has read."""
    net: Net = defaultdict(dict)
    read = read or Reading()
    halves, read.segments, read.bytes = read.halves, 0, 0
    halves[minute] = []
    for segment in segments.read(store, minute):
        read.segments += 1
        read.bytes += segments.size(segment)
        halves[minute] += segments.pairs(segment)
        for counter, (ids, expected, observed) in segments.sums(segment).items():
            _sum_up(net[counter], ids, expected, observed)
    oldest: dict[tuple[str, str, str], int] = {}
    amounts: dict[tuple[str, str, str], int] = defaultdict(int)
    for at in (minute - 1, minute, minute + 1) if halves[minute] else ():  # else none of them counts here
        if at not in halves:
            halves[at] = [
                half for segment in segments.read(store, at, **segments.HALVES) for half in segments.pairs(segment)
            ]
        for counter, id_, pair, more, moved in halves[at]:
            oldest.setdefault((counter, id_, pair), at)
            amounts[counter, id_, pair] += moved - more
    halves.pop(minute - 1, None)
    for half, amount in amounts.items():
        if amount and oldest[half] == minute:
            _sum_up(net[half[0]], [half[1]], [0], [amount])
    return net


def _sum_up(sums: dict[str, int], ids: Sequence[str], expected: Sequence[int], observed: Sequence[int]) -> None:
    """Add the differences, and forget those that come to 0: of a million tallies few are open at a time."""
    for id_, more, moved in zip(ids, expected, observed, strict=True):
        amount = sums.pop(id_, 0) + moved - more
        if amount:
            sums[id_] = amount


def _add(store: Store, changes: Sequence[tuple[str, str, int]], minute: int, now_s: float) -> None:
    """Add a minute to the drift rows of some tallies, unless they have it."""
    for _ in range(TRIES_MAX):
        found = rows.read_many(store, [change[:2] for change in changes])
        due = [pair for pair in zip(changes, found, strict=True) if pair[1].upto < minute]
        writes = [[rows.moved(store, row, row.drift + change[2], now_s, upto=minute)] for change, row in due]
        done = side_by_side(lambda write: apply_once(store, write), writes)
        changes = [change for (change, _), written in zip(due, done, strict=True) if not written]
        if not changes:
            return
    raise StoreBusyError("Some drift rows keep changing.")
