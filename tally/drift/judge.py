"""The judge: compares, minute by minute, the expected amount of each tally with the observed amount.

The judge judges a minute when its segments are complete (streams/watermark.py). If the two amounts differ, the judge
writes a drift row. A row takes each minute once. So two judges at the same time, or a judge that dies and starts a
second time, write the same rows.
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
TRANSACTION_ROWS_MIN = 10  # a transaction costs twice the write units, but so many single writes ten times the CPU time
TRIES_MAX = 5  # tries to write the rows; a try writes only a part if another judge or a repair changes a row

Net = dict[str, dict[str, int]]  # observed less expected, by counter and id; without zeros
Halves = dict[tuple[str, str, str], int]  # observed less expected, by counter, id, and the pair name of both halves


@dataclass
class SegmentCache:
    """What a run keeps of the segments that it has read. `halves`: the sums of the halves of removals, by minute.
    `segments`, `bytes`: of the minute that was read last, how many segments it has, and how many compressed bytes."""

    halves: dict[int, Halves] = field(default_factory=dict)
    segments: int = 0
    bytes: int = 0


@dataclass
class JudgeRun:
    """The result of a run. `minutes`: how many the run judged. `changes`: how many differences went into drift rows.

    `finished`: whether every complete minute is judged. `last`: the last judged minute; -1: no minute is judged.
    `segments`, `bytes`: the segments of the minutes that the run judged, and their compressed bytes.
    """

    minutes: int = 0
    changes: int = 0
    finished: bool = True
    last: int = -1
    segments: int = 0
    bytes: int = 0


def judge(store: Store, watermark_: Watermark, now_s: float, *, until_s: float) -> JudgeRun:
    """Judges every complete minute, the oldest first, until the time runs out (`until_s`, on the store's clock).

    If a complete minute before `resume_minute` is not judged, first restarts the ledger. The next run continues where
    this run stopped, also within a minute. `watermark_`: from before this sweep, so all that it proves is visible.
    """
    if 0 <= watermark_.judged < min(watermark_.resume_minute - 1, watermark_.last_complete_minute(store.settings)):
        watermark_ = restarted_ledger.restart(store, watermark_, now_s, until_s)
        if not watermark_.journal_complete_s:  # 0 says that the restart has not finished
            return JudgeRun(last=watermark_.judged, finished=False)
    result, cache = JudgeRun(last=watermark_.judged), SegmentCache()
    last_complete = watermark_.last_complete_minute(store.settings)
    # If `judged` is -1, the judge waits until a sweep stores the minute before the first minute to judge as `judged`.
    for minute in range(watermark_.judged + 1, last_complete + 1) if watermark_.judged >= 0 else ():
        net, last_added = differences(store, minute, cache), watermark_.last_added(minute)
        tallies = ((counter, id_, amount) for counter in sorted(net) for id_, amount in sorted(net[counter].items()))
        changes = (change for change in tallies if list(change[:2]) > last_added)  # the rows before have it
        while chunk := list(islice(changes, ROWS_READ_MAX)):
            if store.clock() >= until_s:
                watermark.note_judged(store, minute - 1, minute - 1, last_added)  # only `last_added`
                return replace(result, finished=False)
            _add_to_rows(store, chunk, minute, now_s)
            result.changes += len(chunk)
            last_added = list(chunk[-1][:2])
        watermark.note_judged(store, minute, minute - 1)
        result.minutes += 1
        result.last = minute
        result.segments += cache.segments
        result.bytes += cache.bytes
        if store.clock() >= until_s:
            result.finished = minute == last_complete
            break
    return result


def differences(store: Store, minute: int, cache: SegmentCache | None = None) -> Net:
    """Returns the difference of each tally in a minute. `cache`: the cache of the run.

    The halves of a child's removal may fall on two neighbouring minutes. Two such halves cancel out, and make no
    difference. The older minutes cancel out first, so no half cancels out two halves.
    """
    net: Net = defaultdict(dict)
    cache = cache or SegmentCache()
    cache.segments = cache.bytes = 0
    halves: list[JournalEntry] = []
    for segment in segments.read_segments(store, minute):
        cache.segments += 1
        cache.bytes += segments.compressed_bytes(segment)
        halves += segments.removal_halves(segment)
        for counter, (ids, expected, observed) in segments.columns(segment).items():
            _sum_up(net[counter], ids, expected, observed)
    cache.halves[minute] = _sum_halves(halves)
    for half_key in cache.halves[minute]:
        amount = _unpaired_amount(store, half_key, minute, cache)
        _sum_up(net[half_key[0]], [half_key[1]], [0], [amount])
    cache.halves = {cached: halves for cached, halves in cache.halves.items() if cached >= minute}
    return net


def _unpaired_amount(store: Store, half_key: tuple[str, str, str], minute: int, cache: SegmentCache) -> int:
    """Returns the part of a minute's half that no half of a neighbouring minute cancels out. What a minute has left
    depends on the minute before, so begins at the first of the consecutive minutes that have a half of this key. There
    may be many such minutes, because children that a person puts by hand may share a pair name."""

    def halves_of(near_minute: int) -> Halves:
        if near_minute not in cache.halves:
            stored = segments.read_segments(store, near_minute, **segments.ONLY_HALVES)
            cache.halves[near_minute] = _sum_halves(
                found for segment in stored for found in segments.removal_halves(segment)
            )
        return cache.halves[near_minute]

    first, left = minute, 0
    while half_key in halves_of(first - 1):
        first -= 1
    for near_minute in range(first, minute + 1):
        left = rows.cancel_out(halves_of(near_minute)[half_key], left)
    return rows.cancel_out(left, halves_of(minute + 1).get(half_key, 0))


def _sum_halves(halves: Iterable[JournalEntry]) -> Halves:
    sums: Halves = defaultdict(int)
    for half in halves:
        sums[half[:3]] += half.observed - half.expected
    return dict(sums)


def _sum_up(sums: dict[str, int], ids: Sequence[str], expected: Sequence[int], observed: Sequence[int]) -> None:
    """Adds observed less expected to `sums`. Drops each sum of 0: most tallies do not differ, and need no memory."""
    for id_, expected_amount, observed_amount in zip(ids, expected, observed, strict=True):
        amount = sums.pop(id_, 0) + observed_amount - expected_amount
        if amount:
            sums[id_] = amount


def _add_to_rows(store: Store, changes: Sequence[tuple[str, str, int]], minute: int, now_s: float) -> None:
    """Adds a minute to the drift rows of some tallies, unless a row has the minute."""
    for _ in range(TRIES_MAX):
        drift_rows = rows.read_many(store, [change[:2] for change in changes])
        due = [pair for pair in zip(changes, drift_rows, strict=True) if pair[1].last_minute < minute]
        writes = [rows.drift_write(store, row, row.drift + change[2], now_s, upto=minute) for change, row in due]
        # Writes each row by itself if the rows are few, another writer changed a row, or the partition stays throttled.
        with suppress(ConditionFailedError, StoreBusyError):
            if len(writes) >= TRANSACTION_ROWS_MIN:
                commit_writes(Call(store), writes)
                return
        committed = map_in_threads(lambda write: try_commit(store, [write]), writes)
        changes = [change for (change, _), written in zip(due, committed, strict=True) if not written]
        if not changes:
            return
    raise StoreBusyError("Some drift rows keep changing.")
