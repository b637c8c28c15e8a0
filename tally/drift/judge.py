"""The judge: it compares, minute by minute, what was expected of each tally with what was observed.

A minute is judged once it is closed (streams/watermark.py): its segments are complete. The judge writes a drift row for
each tally that is uneven. A row takes each minute once. So two judges at once, or one that dies and starts again, come
to the same rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice

from ..dynamo.client import Call, Store, map_in_threads
from ..dynamo.transactions import ConditionFailedError, Write, commit_writes, try_commit
from ..errors import StoreBusyError
from ..streams import segments, watermark
from ..streams.segments import JournalEntry
from ..streams.watermark import Watermark
from . import restarted_ledger, rows

ROWS_READ_MAX = 100  # DynamoDB's limit for one BatchGetItem
TOGETHER_MIN = 10  # rows of one transaction: it takes twice the write units, and of 100 rows a tenth of the CPU time
TRIES_MAX = 5  # at one row: another judge or a repair wrote it meanwhile

Net = dict[str, dict[str, int]]  # by counter and id: observed less expected; only what is not 0
Halves = dict[tuple[str, str, str], int]  # by counter, id and pair: observed less expected


@dataclass
class SegmentCache:
    """What a run has read: halves of unlikes by minute; segments of the newest minute, and their compressed bytes."""

    halves: dict[int, Halves] = field(default_factory=dict)
    segments: int = 0
    bytes: int = 0


@dataclass
class JudgeRun:
    """What one run did: minutes judged, changes of drift rows (by whomever), and whether it came to the end.

    `last`: the last judged minute; -1: none. `segments` and `bytes`: of the minutes that it judged.
    """

    minutes: int = 0
    changes: int = 0
    finished: bool = True
    last: int = -1
    segments: int = 0
    bytes: int = 0


def judge(store: Store, seen: Watermark, now_s: float, *, until_s: float) -> JudgeRun:
    """Judge every closed minute, the oldest first, until the time runs out (`until_s`, on the store's clock).

    The next run goes on where this one stopped, also within a minute. `seen`: what may be concluded now.
    """
    if 0 <= seen.judged < min(seen.resume_minute - 1, seen.last_complete_minute(store.settings)):
        seen = restarted_ledger.restart(store, seen, now_s, until_s)
        if not seen.journal_complete_s:
            return JudgeRun(last=seen.judged, finished=False)
    result, read = JudgeRun(last=seen.judged), SegmentCache()
    for minute in range(seen.judged + 1, seen.last_complete_minute(store.settings) + 1) if seen.judged >= 0 else ():
        assert minute <= seen.last_complete_minute(store.settings), "more may be booked on it"
        net, after = differences(store, minute, read), seen.last_added(minute)
        tallies = ((counter, id_, amount) for counter in sorted(net) for id_, amount in sorted(net[counter].items()))
        changes = (change for change in tallies if list(change[:2]) > after)
        while chunk := list(islice(changes, ROWS_READ_MAX)):
            if store.clock() >= until_s:
                watermark.note_judged(store, minute - 1, minute - 1, after)
                return replace(result, finished=False)
            _add_to_rows(store, chunk, minute, now_s)
            result.changes += len(chunk)
            after = list(chunk[-1][:2])
        watermark.note_judged(store, minute, minute - 1)
        result.minutes += 1
        result.last = minute
        result.segments += read.segments
        result.bytes += read.bytes
        if store.clock() >= until_s:
            result.finished = minute == seen.last_complete_minute(store.settings)
            break
    return result


def differences(store: Store, minute: int, read: SegmentCache | None = None) -> Net:
    """How uneven each tally is in a minute. `read`: what a run has read.

    An unlike that falls on two neighbouring minutes is even: each half is taken off the other one, that of the older
    minute first. So it is known of every half which other one it meets: none is left out, and none counts twice.
    """
    net: Net = defaultdict(dict)
    read = read or SegmentCache()
    read.segments = read.bytes = 0
    halves: list[JournalEntry] = []
    for segment in segments.read_segments(store, minute):
        read.segments += 1
        read.bytes += segments.compressed_bytes(segment)
        halves += segments.removal_halves(segment)
        for counter, (ids, expected, observed) in segments.columns(segment).items():
            _sum_up(net[counter], ids, expected, observed)
    read.halves[minute] = _by_name(halves)
    for half in read.halves[minute]:
        amount = _unpaired_amount(store, half, minute, read)
        _sum_up(net[half[0]], [half[1]], [0], [amount])
    read.halves = {at: of for at, of in read.halves.items() if at >= minute}
    return net


def _unpaired_amount(store: Store, half: tuple[str, str, str], minute: int, read: SegmentCache) -> int:
    """What is left of a half in a minute. A like that is put back and deleted by hand has halves in many of them: what
    the minute before takes is known from the first one on."""

    def of(at: int) -> Halves:
        if at not in read.halves:
            pairs = (
                one
                for segment in segments.read_segments(store, at, **segments.ONLY_HALVES)
                for one in segments.removal_halves(segment)
            )
            read.halves[at] = _by_name(pairs)
        return read.halves[at]

    first, left = minute, 0
    while half in of(first - 1):
        first -= 1
    for at in range(first, minute + 1):
        left = _offset(of(at)[half], left)
    return _offset(left, of(minute + 1).get(half, 0))


def _by_name(halves: Iterable[JournalEntry]) -> Halves:
    sums: Halves = defaultdict(int)
    for half in halves:
        sums[half[:3]] += half.observed - half.expected
    return dict(sums)


def _offset(amount: int, other: int) -> int:
    """What is left of an amount, after another one of the opposite sign is taken off."""
    return amount if amount * other >= 0 else 0 if abs(amount) <= abs(other) else amount + other


def _sum_up(sums: dict[str, int], ids: Sequence[str], expected: Sequence[int], observed: Sequence[int]) -> None:
    """Add the differences, and forget those that come to 0: of a million tallies few are open at a time."""
    for id_, more, moved in zip(ids, expected, observed, strict=True):
        amount = sums.pop(id_, 0) + moved - more
        if amount:
            sums[id_] = amount


def _add_to_rows(store: Store, changes: Sequence[tuple[str, str, int]], minute: int, now_s: float) -> None:
    """Add a minute to the drift rows of some tallies, unless they have it."""
    for _ in range(TRIES_MAX):
        drift_rows = rows.read_many(store, [change[:2] for change in changes])
        due = [pair for pair in zip(changes, drift_rows, strict=True) if pair[1].last_minute < minute]
        writes = [rows.drift_write(store, row, row.drift + change[2], now_s, upto=minute) for change, row in due]
        if _try_commit_together(store, writes):
            return
        done = map_in_threads(lambda write: try_commit(store, [write]), writes)
        changes = [change for (change, _), written in zip(due, done, strict=True) if not written]
        if not changes:
            return
    raise StoreBusyError("Some drift rows keep changing.")


def _try_commit_together(store: Store, writes: Sequence[Write]) -> bool:
    """Commit many rows in one transaction, and return whether it committed. If the partition of the drift rows is
    throttled, the transaction waits and goes again.

    False: the rows are few, one of them has moved, or the partition stays throttled. Then each row goes alone.
    """
    with suppress(ConditionFailedError, StoreBusyError):
        if len(writes) >= TOGETHER_MIN:
            commit_writes(Call(store), writes)
            return True
    return False
