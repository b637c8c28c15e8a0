"""The judge: compares, minute by minute, the expected amount of each tally with the observed amount.

The judge judges a minute when it is closed (streams/watermark.py): its segments are complete. If the two amounts
differ, the judge writes a drift row. A row takes each minute once. So two judges at the same time, or one that dies and
starts again, write the same rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice

from ..dynamo.client import Call, Store, map_in_threads
from ..dynamo.transactions import ConditionFailedError, commit_writes, try_commit
from ..errors import StoreBusyError
from ..streams import segments, watermark
from ..streams.segments import JournalEntry
from ..streams.watermark import Watermark
from . import restarted_ledger, rows

ROWS_READ_MAX = 100  # DynamoDB's limit for one BatchGetItem
TOGETHER_MIN = 10  # rows of one transaction: for 100 rows it takes twice the write units, and a tenth of the CPU time
TRIES_MAX = 5  # to write one row, which another judge or a repair may change at the same time

Net = dict[str, dict[str, int]]  # observed less expected, by counter and id; without zeros
Halves = dict[tuple[str, str, str], int]  # observed less expected, by counter, id and pair


@dataclass
class SegmentCache:
    """Segments that a run has read.

    `halves`: of removals, by minute. `segments`, `bytes`: of the newest minute; compressed.
    """

    halves: dict[int, Halves] = field(default_factory=dict)
    segments: int = 0
    bytes: int = 0


@dataclass
class JudgeRun:
    """The result of a run: minutes judged, changes of drift rows, and whether every closed minute was judged.

    `last`: the last judged minute; -1: nothing is judged. `segments` and `bytes`: of the minutes that the run judged.
    """

    minutes: int = 0
    changes: int = 0
    finished: bool = True
    last: int = -1
    segments: int = 0
    bytes: int = 0


def judge(store: Store, watermark_: Watermark, now_s: float, *, until_s: float) -> JudgeRun:
    """Judges every closed minute, the oldest first, until the time runs out (`until_s`, on the store's clock).

    The next run continues where this run stopped, also within a minute. `watermark_`: the present watermark.
    """
    if 0 <= watermark_.judged < min(watermark_.resume_minute - 1, watermark_.last_complete_minute(store.settings)):
        watermark_ = restarted_ledger.restart(store, watermark_, now_s, until_s)
        if not watermark_.journal_complete_s:
            return JudgeRun(last=watermark_.judged, finished=False)
    result, read = JudgeRun(last=watermark_.judged), SegmentCache()
    last_complete = watermark_.last_complete_minute(store.settings)
    for minute in range(watermark_.judged + 1, last_complete + 1) if watermark_.judged >= 0 else ():
        assert minute <= last_complete, "the minute is not closed"
        net, after = differences(store, minute, read), watermark_.last_added(minute)
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
            result.finished = minute == last_complete
            break
    return result


def differences(store: Store, minute: int, read: SegmentCache | None = None) -> Net:
    """Returns the difference of each tally in a minute. `read`: the cache of the run.

    The two halves of a removal may be booked on neighbouring minutes: then they cancel out, and there is no difference.
    The halves of the older minute cancel out first. So each half meets one other half at most, and no half counts
    twice.
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
    read.halves = {at: halves_at for at, halves_at in read.halves.items() if at >= minute}
    return net


def _unpaired_amount(store: Store, half: tuple[str, str, str], minute: int, read: SegmentCache) -> int:
    """Returns what no other half cancels out of a half in a minute. A like that somebody deletes and puts back has
    halves in many neighbouring minutes, so the first of them is where this begins."""

    def halves_of(at: int) -> Halves:
        if at not in read.halves:
            stored = segments.read_segments(store, at, **segments.ONLY_HALVES)
            read.halves[at] = _by_name(found for segment in stored for found in segments.removal_halves(segment))
        return read.halves[at]

    first, left = minute, 0
    while half in halves_of(first - 1):
        first -= 1
    for at in range(first, minute + 1):
        left = rows.cancel_out(halves_of(at)[half], left)
    return rows.cancel_out(left, halves_of(minute + 1).get(half, 0))


def _by_name(halves: Iterable[JournalEntry]) -> Halves:
    sums: Halves = defaultdict(int)
    for half in halves:
        sums[half[:3]] += half.observed - half.expected
    return dict(sums)


def _sum_up(sums: dict[str, int], ids: Sequence[str], expected: Sequence[int], observed: Sequence[int]) -> None:
    """Adds the differences, and drops zeros: of a million tallies few differ at a time."""
    for id_, more, moved in zip(ids, expected, observed, strict=True):
        amount = sums.pop(id_, 0) + moved - more
        if amount:
            sums[id_] = amount


def _add_to_rows(store: Store, changes: Sequence[tuple[str, str, int]], minute: int, now_s: float) -> None:
    """Adds a minute to the drift rows of some tallies, unless a row has the minute."""
    for _ in range(TRIES_MAX):
        drift_rows = rows.read_many(store, [change[:2] for change in changes])
        due = [pair for pair in zip(changes, drift_rows, strict=True) if pair[1].last_minute < minute]
        writes = [rows.drift_write(store, row, row.drift + change[2], now_s, upto=minute) for change, row in due]
        # If another writer changed a row, or the partition stays throttled, the judge writes each row by itself.
        with suppress(ConditionFailedError, StoreBusyError):
            if len(writes) >= TOGETHER_MIN:
                commit_writes(Call(store), writes)
                return
        done = map_in_threads(lambda write: try_commit(store, [write]), writes)
        changes = [change for (change, _), written in zip(due, done, strict=True) if not written]
        if not changes:
            return
    raise StoreBusyError("Some drift rows keep changing.")
