"""Hours: sums up the accepted amount of each tally in each hour, from the journal's segments.

The sweep reads each judged minute once, because the minute's segments do not change any more. Every PART_MINUTES it
writes the amounts of the present hour as running segments, compressed and sorted by the digests of the tallies. Running
segments live as long as the journal's segments. When the hour is over, each tally that moved gets one attribute, such
as `h13`, in its item of the day. The attribute is SET, so if a sweep dies or runs twice, the result is the same.

Imports are not traffic. For each day that imported rows belong to, there is another sum, with the id `9f3a#2024-05-03`.
The sum's item has an attribute for each hour of an import, in hours since 1970, so two imports into one day add up.

In an hour, one CPU core sums up two million tallies (`make bench`), or half a million if holds and drift take their
shares of each sweep. If more tallies move in an hour, the series lag, and `as_of` says so.

The total of a counter's tallies is stored as a tally with an empty id. One series has all periods of an id.

In the ledger, PK, SK -> attributes:
    progress    PROGRESS, PROGRESS -> the fields of `Progress` (progress.py)
    running     RUNNING#hour#through, digest of the first tally -> body
    day         SERIES#counter#id, 2026-11-22 -> h0 … h23, expiration (unless series are kept for ever)
    imports     SERIES#counter#id, IMPORT#2024-05-03 -> h498733 …
    top lists   see top.py
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import date
from functools import partial
from itertools import chain, groupby, islice, pairwise
from typing import NamedTuple

from ..dynamo import clock, items, keys, queries
from ..dynamo.client import WRITER_THREADS, Call, Store, map_in_threads
from ..dynamo.keys import Item
from ..dynamo.transactions import Write, commit_writes, put_alone, try_commit
from ..errors import StoreBusyError
from ..settings import Settings
from ..streams import loss, segments, watermark
from ..streams.lineage import BOOKKEEPER
from . import progress, top
from .progress import EXPIRY_GRACE_DAYS, HOUR_S, PROGRESS, Progress, hour_of, minutes_of

PART_MINUTES = 20  # minutes between two sets of running segments: with the day's item, a tally costs 1.1 WCU an hour
DAY_S = 24 * HOUR_S
LOOKBACK_MINUTES = 20  # the series begin so many minutes before the first sweep, because there may be older segments
LONG_LOSS_S = segments.SEGMENT_KEPT_S - 2 * DAY_S  # 7 days: the sums wait so long that running segments may expire
LONG_LOSS_HOURS_S = 2 * HOUR_S  # days may lack the hour in which a long loss began, and the hour before
SUMS_MAX = 1_000_000  # tallies in memory, about 200 MB; if more tallies moved, a part of the hour has fewer minutes
SEGMENT_BYTES = 60_000  # of a running segment, before compression; a reader of one tally reads one segment
ENTRY_BYTES = 20  # of a running segment's entry, without its id
ROWS_AT_ONCE = 500  # tallies after which a sweep stores its progress and looks at the time
EPOCH = date(1970, 1, 1).toordinal()  # in days since the year 1
TOTAL_ID = ""  # the id of the total of a counter's tallies
IMPORT = "IMPORT#"  # the beginning of the sort key of a day of imports

Sums = dict[tuple[str, str], int]
"""Amounts by counter and id. The id of an imported amount ends with `#` and the day of the import's row."""


class HourAmount(NamedTuple):
    """The amount of one tally in an hour. Amounts are sorted by the `digest` of the tally. For an import, `digest` and
    `id` end with `#` and the day."""

    digest: str
    counter: str
    id: str
    amount: int

    @classmethod
    def of(cls, counter: str, id_: str, amount: int) -> HourAmount:
        """Makes the amount of a tally from its counter and id."""
        name, separator, day = id_.partition("#")
        return cls(keys.tally_digest(counter, name) + separator + day, counter, id_, amount)

    @property
    def import_day(self) -> str:
        """The day that an import belongs to; empty if the amount is not imported."""
        return self.id.partition("#")[2]


def sum_up(store: Store, judged: int, *, until_s: float) -> int:
    """Sums up the minutes up to `judged`, until `until_s` on the store's clock. Returns how many items it wrote.

    The first call stores when the series begin, even if `judged` is -1 (no minute). The first judgement may come hours
    later, and the series are to have these hours, too. If the time is too short for one part of an hour, raises
    StoreBusyError.
    """
    written, progress_ = 0, progress.read(store)
    if progress_.since < 0:
        newest = judged if judged >= 0 else store.settings.minute_of(clock.now_s())
        since = newest + 1 - LOOKBACK_MINUTES
        no_minute = Progress(since, through=since - 1, hour=hour_of(store.settings, since))
        progress_ = _store_progress(store, progress_, no_minute)
    before = progress_ = _store_missing(store, progress_)
    while store.clock() < until_s:
        last = minutes_of(store.settings, progress_.hour)[-1]
        if progress_.through < last:
            if min(judged, last) - progress_.through < PART_MINUTES and judged < last:
                break  # too few minutes are judged for the next part of the hour
            progress_ = _sum_up_part(store, progress_, min(judged, last), until_s)
            if progress_ == before:
                raise StoreBusyError(f"There was no time for one part of the hour {top.span_of(progress_.hour)}.")
            continue  # if the hour is over now, its amounts go into the items of the day
        days_written, progress_ = _write_days(store, progress_, until_s)
        written += days_written
    return written


def _store_missing(store: Store, progress_: Progress) -> Progress:
    """Stores since when the hours may lack changes, because the bookkeeper has dead letters, or losses that nobody has
    acknowledged. Dead letters and losses are stored before their minutes are judged, so this call misses none."""
    letter_s = watermark.oldest_dead_letter_s(store, BOOKKEEPER)  # read first: a discarded dead letter becomes a loss
    losses = (lost for lost in loss.list_losses(store) if lost.consumer == BOOKKEEPER)
    lost_s = [lost.since_s - (LONG_LOSS_HOURS_S if lost.until_s - lost.since_s > LONG_LOSS_S else 0) for lost in losses]
    new = progress_.with_missing(min([letter_s, *lost_s]), store.settings.minute_of(clock.now_s()))
    return progress_ if new == progress_ else _store_progress(store, progress_, new)


def _store_progress(store: Store, before: Progress, new: Progress) -> Progress:
    """Stores `new`, and returns it. If another sweep has stored its progress first, returns that progress."""
    assert new.through >= before.through, "progress never goes back"
    assert (new.hour, new.after) >= (before.hour, before.after), "progress never goes back"
    expected = before.values if before.since >= 0 else items.EXPECT_NO_ITEM
    new = replace(new, retention=before.retention_for(store.settings.series_days))
    values = {**new.values, "retention": new.retention}
    write = items.update_write(store.settings.ledger_table, PROGRESS, values, expected=expected)
    return new if try_commit(store, [write]) else progress.read(store)


def _sum_up_part(store: Store, progress_: Progress, last: int, until_s: float) -> Progress:
    """Writes new running segments of the hour, with the minutes up to `last`. If half of the time is over, or SUMS_MAX
    tallies moved, stops with an earlier minute. If the time is too short for all writes, returns the old progress."""
    sums: Sums = defaultdict(int)
    read_until_s = (store.clock() + until_s) / 2
    through = progress_.through
    for minute in range(progress_.through + 1, last + 1):
        _add_minute(store, sums, minute)
        through = minute
        if store.clock() >= read_until_s or len(sums) >= SUMS_MAX:
            break
    for (counter, id_), amount in list(sums.items()):
        _, separator, day = id_.partition("#")
        sums[counter, TOTAL_ID + separator + day] += amount  # of the hour, or of a day of imports
    new = sorted(HourAmount.of(*tally, amount) for tally, amount in sums.items())
    merged = _merge(running_amounts(store, progress_.hour, progress_.through), new)
    lists, in_segments = top.TopListBuilder(), _split_into_segments(merged)
    while ready := list(islice(in_segments, WRITER_THREADS)):
        if store.clock() >= until_s:
            return progress_
        writes = [_running_segment_write(store.settings, progress_.hour, through, entries) for entries in ready]
        map_in_threads(partial(put_alone, Call(store, deadline_s=until_s)), writes)
        for entry in chain.from_iterable(ready):
            if entry.id != TOTAL_ID and not entry.import_day:
                lists.add(*entry[1:])
    top.write_lists(store, progress_.hour, through, lists, {counter for counter, _ in sums})
    return _store_progress(store, progress_, replace(progress_, through=through))


def _add_minute(store: Store, sums: Sums, minute: int) -> None:
    """Adds the accepted amounts of a minute to `sums`: the expected amounts in its segments, which have the halves of
    removals apart. Adds imported amounts to the sums of their days, and not to the traffic."""
    for segment in segments.read_segments(store, minute):
        booked = segments.columns(segment)
        for counter, (ids, expected, _) in booked.items():
            for id_, amount in zip(ids, expected, strict=True):
                sums[counter, id_.partition("#")[0]] += amount  # by the id without its period
        for counter, id_, day, amount in segments.imported_amounts(segment, booked):
            name = id_.partition("#")[0]
            sums[counter, name] -= amount
            sums[counter, f"{name}#{day_name(day)}"] += amount
        for half in segments.removal_halves(segment):
            sums[half.counter, half.id.partition("#")[0]] += half.expected


def _merge(*in_order: Iterable[HourAmount]) -> Iterator[HourAmount]:
    """Yields one amount for each tally, in order, without zeros. `in_order`: iterables that are sorted by digest."""
    for tally, same in groupby(heapq.merge(*in_order), key=lambda entry: entry[:3]):
        if amount := sum(entry.amount for entry in same):
            yield HourAmount(*tally, amount)  # type: ignore[call-arg]  # mypy takes the slice for the whole tuple


def running_amounts(store: Store, hour: int, through: int) -> Iterator[HourAmount]:
    """Yields the amounts of an hour up to the minute `through`, in order; nothing if the hour has no sums."""
    for item in queries.partition_items(store, store.settings.ledger_table, keys.running_partition(hour, through)):
        yield from _entries(item)


def running_amounts_of(store: Store, progress_: Progress, counter: str, id_: str) -> Iterator[HourAmount]:
    """Yields the amounts of one tally in the present hour, in any order. The digest of an import is the tally's digest,
    `#` and the day. `$` sorts after `#`, so a descending Query from `digest$` finds the imports, too."""
    partition, table = keys.running_partition(progress_.hour, progress_.through), store.settings.ledger_table
    digest = keys.tally_digest(counter, id_)
    for item in queries.partition_items(store, table, partition, high=f"{digest}$", Limit=1, ScanIndexForward=False):
        yield from (entry for entry in _entries(item) if entry.digest.startswith(digest))
        if item["SK"]["S"] <= digest:
            return  # the items before this item have only other tallies


def _entries(item: Item) -> Iterator[HourAmount]:
    return (HourAmount.of(*entry) for entry in items.decompress(item["body"]))


def _split_into_segments(amounts: Iterable[HourAmount]) -> Iterator[list[HourAmount]]:
    """Yields the amounts in lists, one for each running segment."""
    entries, size = list[HourAmount](), 0
    for entry in amounts:
        entries.append(entry)
        size += len(entry.id) + ENTRY_BYTES
        if size >= SEGMENT_BYTES:
            yield entries
            entries, size = [], 0
    if entries:
        yield entries


def _running_segment_write(settings: Settings, hour: int, through: int, entries: list[HourAmount]) -> Write:
    assert all(one.digest < next_.digest for one, next_ in pairwise(entries)), "each tally once, in order"
    key = keys.key(keys.running_partition(hour, through), entries[0].digest)
    expiration = int(clock.now_s()) + segments.SEGMENT_KEPT_S
    values: items.Values = {"body": items.compress([entry[1:] for entry in entries]), "expiration": expiration}
    return items.put_write(settings.ledger_table, key, values)


def _write_days(store: Store, progress_: Progress, until_s: float) -> tuple[int, Progress]:
    """Writes an hour that is over into the items of its day. Returns how many items it wrote, and the progress."""
    written, hour = 0, progress_.hour
    assert progress_.through >= minutes_of(store.settings, hour)[-1], "an hour is written when it is complete"
    unwritten = (entry for entry in running_amounts(store, hour, progress_.through) if entry.digest > progress_.after)
    while progress_.hour == hour and store.clock() < until_s:
        chunk = list(islice(unwritten, ROWS_AT_ONCE))
        writes = [[_hour_write(store.settings, hour, entry)] for entry in chunk]
        map_in_threads(partial(commit_writes, Call(store, deadline_s=until_s)), writes)
        written += len(chunk)
        is_last = len(chunk) < ROWS_AT_ONCE
        new = replace(progress_, hour=hour + 1, after="") if is_last else replace(progress_, after=chunk[-1].digest)
        progress_ = _store_progress(store, progress_, new)
    return written, progress_


def _hour_write(settings: Settings, hour: int, entry: HourAmount) -> Write:
    """Returns the write of one tally's hour into its item of the day. The item of an import never expires."""
    day, hour_of_day = divmod(hour, 24)
    update, values, sort_key = f"SET h{hour_of_day} = :amount", {":amount": {"N": str(entry.amount)}}, day_name(day)
    if entry.import_day:
        update = f"SET h{hour} = :amount"
        sort_key = f"{IMPORT}{entry.import_day}"
    elif settings.series_days:
        update += ", expiration = :expires"
        values[":expires"] = {"N": str((day + settings.series_days + EXPIRY_GRACE_DAYS) * DAY_S)}
    return {
        "Update": {
            "TableName": settings.ledger_table,
            "Key": keys.key(day_partition(entry.counter, entry.id.partition("#")[0]), sort_key),
            "UpdateExpression": update,
            "ExpressionAttributeValues": values,
        }
    }


def day_partition(counter: str, id_: str) -> str:
    """Returns the partition key of the days of a tally."""
    return f"SERIES#{counter}#{id_}"


def day_name(day: int) -> str:
    """Returns the sort key of a day, from its number since 1970: `2026-11-22`."""
    return str(date.fromordinal(EPOCH + day))


def parse_day(name: str) -> int:
    """Returns the number of a day since 1970, from the name that `day_name` returns."""
    return date.fromisoformat(name).toordinal() - EPOCH
