"""Hours: how much of each tally was accepted in each hour, summed up from the journal's segments.

The sweep reads each judged minute once: then its segments never change. What an hour has so far is kept as running
segments, sorted by digest and compressed, every PART minutes. They live as long as the segments that the hour still
lacks. When the hour is over, each tally that moved gets one attribute, `h13`, in its item of the day. It is SET, so a
sweep that dies, or that runs twice, changes nothing.

What was imported is no traffic. The amount of each day that rows belong to is a sum of its own, with the id
`9f3a#2024-05-03`. It gets an attribute for the hour in which it was imported, in hours since 1970: a second import into
the same day adds up.

A core sums up 1,500 tallies and hours a second (`make bench`): two million tallies in an hour, or half a million if
holds and drift take their shares of each sweep. With more, `as_of` falls behind.

All tallies of a counter together are one more, with an empty id. Those of an id's periods are one series.

In the ledger, PK, SK -> attributes:
    progress    PROGRESS, PROGRESS -> since, through, hour, after, kept, lost_s, redriven, lacking_s
    running     RUNNING#hour#through, digest of the first tally -> body
    day         SERIES#counter#id, 2026-11-22 -> h0 … h23, expiration (if series are not kept for ever)
    imports     SERIES#counter#id, IMPORT#2024-05-03 -> h498733 …
    top lists   as top.py says
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
from ..streams.loss import Loss
from . import progress, top
from .progress import EXPIRY_GRACE_DAYS, HOUR_S, PROGRESS, Progress, hour_of, minutes_of

PART_MINUTES = 20  # minutes between two sets of running segments: a tally and hour then costs less than 1.1 WCU
DAY_S = 24 * HOUR_S
LOOKBACK_MINUTES = (
    20  # minutes before the first sweep whose segments are read too: changes were booked before there was one
)
LONG_LOSS_S = segments.SEGMENT_KEPT_S - 2 * DAY_S  # it ended a day ago, and TTL need not wait
LONG_LOSS_HOURS_S = 2 * HOUR_S  # the hour in which it began, and the one before: its days may not be written
SUMS_MAX = 1_000_000  # tallies in memory, about 200 MB; more are summed up in more parts
SEGMENT_BYTES = 60_000  # of a running segment, before it is compressed: a reader takes one
ENTRY_BYTES = 20  # of an entry, beside its id
ROWS_AT_ONCE = 500  # between two looks at the time, and two notes of how far it has come
EPOCH = date(1970, 1, 1).toordinal()
TOTAL_ID = ""  # the id of all tallies of a counter together
IMPORT = "IMPORT#"  # how the sort key of a day of imports begins

Sums = dict[tuple[str, str], int]
"""The amount by counter and id; of an import with its day."""


class HourAmount(NamedTuple):
    """By how much one tally moved. `digest` names it in sort keys, and gives the order. That of an import has its day,
    as `id` has."""

    digest: str
    counter: str
    id: str
    amount: int

    @classmethod
    def of(cls, counter: str, id_: str, amount: int) -> HourAmount:
        """Of a tally by its counter and id."""
        name, mark, day = id_.partition("#")
        return cls(keys.tally_digest(counter, name) + mark + day, counter, id_, amount)

    @property
    def day(self) -> str:
        """The day that an import belongs to; empty for traffic."""
        return self.id.partition("#")[2]


def sum_up(store: Store, judged: int, *, until_s: float) -> int:
    """Sum up what is judged, up to the minute `judged`, until the time runs out; how many tallies' hours it wrote.

    The first call notes when the series begin, also if nothing is judged yet (-1): the first judge may be hours late.

    `until_s`: on the store's clock. The next run continues where this one stopped. Raises StoreBusyError if it came
    nowhere: so many tallies moved that one part takes more than a run.
    """
    written, at = 0, progress.read(store)
    if at.since < 0:
        newest = judged if judged >= 0 else store.settings.minute_of(clock.now_s())
        since = newest + 1 - LOOKBACK_MINUTES
        at = _note(store, at, Progress(since, since - 1, hour_of(store.settings, since)))
    began = at = _note_missing(store, at)
    while store.clock() < until_s:
        last = minutes_of(store.settings, at.hour)[-1]
        if at.through < last:
            if min(judged, last) - at.through < PART_MINUTES and judged < last:
                break
            at = _sum_up_part(store, at, min(judged, last), until_s)
            if at == began:
                raise StoreBusyError(f"There was no time for one part of the hour {top.span_of(at.hour)}.")
            continue
        more, at = _write_days(store, at, until_s)
        written += more
    return written


def _note_missing(store: Store, at: Progress) -> Progress:
    """Note since when changes may be in no hour: those of the bookkeeper's dead letters, and those that it may have
    lost and nobody has acknowledged. What is judged has its markers."""
    letter_s = watermark.oldest_dead_letter_s(store, BOOKKEEPER)  # before the losses: one may be dropped meanwhile
    lost = [_whole_s(gap) for gap in loss.list_losses(store) if gap.consumer == BOOKKEEPER]
    now = at.with_missing(min([letter_s, *lost]), store.settings.minute_of(clock.now_s()))
    return at if now == at else _note(store, at, now)


def _whole_s(lost: Loss) -> int:
    """Until when hours have all that was accepted before a loss. In a long one, what its hour had is gone, too."""
    return lost.since_s - (LONG_LOSS_HOURS_S if lost.until_s - lost.since_s > LONG_LOSS_S else 0)


def _note(store: Store, was: Progress, now: Progress) -> Progress:
    """Note how far it has come, unless another sweep was faster; how far it is then."""
    assert now.through >= was.through, "it only moves on"
    assert (now.hour, now.after) >= (was.hour, was.after), "it only moves on"
    seen = {**was.values, **dict.fromkeys(was.unset)} if was.since >= 0 else items.EXPECT_NO_ITEM
    now = replace(now, kept=was.retention_for(store.settings.series_days), unset=())
    noted = {**now.values, "kept": now.kept}
    write = items.update_write(store.settings.ledger_table, PROGRESS, noted, expected=seen)
    return now if try_commit(store, [write]) else progress.read(store)


def _sum_up_part(store: Store, at: Progress, last: int, until_s: float) -> Progress:
    """Sum up the minutes up to `last` in new running segments of their hour: fewer if half of the time or the memory
    runs out; none if there is no time to write them."""
    sums: Sums = defaultdict(int)
    read_until_s = (store.clock() + until_s) / 2
    through = at.through
    for minute in range(at.through + 1, last + 1):
        _add_minute(store, sums, minute)
        through = minute
        if store.clock() >= read_until_s or len(sums) >= SUMS_MAX:
            break
    for (counter, id_), amount in list(sums.items()):
        _, mark, day = id_.partition("#")
        sums[counter, TOTAL_ID + mark + day] += amount
    new = sorted(HourAmount.of(*tally, amount) for tally, amount in sums.items())
    together = _merged(running_amounts(store, at.hour, at.through), new)
    board, cut = top.TopListBuilder(), _in_segments(together)
    while ready := list(islice(cut, WRITER_THREADS)):
        if store.clock() >= until_s:
            return at
        writes = [_running_segment(store.settings, at.hour, through, entries) for entries in ready]
        map_in_threads(partial(put_alone, Call(store, deadline_s=until_s)), writes)
        for moved in chain.from_iterable(ready):
            if moved.id != TOTAL_ID and not moved.day:
                board.add(*moved[1:])
    top.write_lists(store, at.hour, through, board, {counter for counter, _ in sums})
    return _note(store, at, replace(at, through=through))


def _add_minute(store: Store, sums: Sums, minute: int) -> None:
    """Add what was accepted in a minute: the expected amounts in its segments, halves of unlikes among them. What was
    imported goes from the traffic into its own day."""
    for segment in segments.read_segments(store, minute):
        booked = segments.columns(segment)
        for counter, (ids, expected, _) in booked.items():
            for id_, amount in zip(ids, expected, strict=True):
                sums[counter, id_.partition("#")[0]] += amount  # without its period
        for counter, id_, day, amount in segments.imported_amounts(segment, booked):
            name = id_.partition("#")[0]
            sums[counter, name] -= amount
            sums[counter, f"{name}#{day_name(day)}"] += amount
        for half in segments.removal_halves(segment):
            sums[half.counter, half.id.partition("#")[0]] += half.expected


def _merged(*in_order: Iterable[HourAmount]) -> Iterator[HourAmount]:
    """The sums by tally, in order; those that come to nothing are left out."""
    for tally, same in groupby(heapq.merge(*in_order), key=lambda moved: moved[:3]):
        if amount := sum(moved.amount for moved in same):
            yield HourAmount(*tally, amount)  # type: ignore[call-arg]  # mypy takes the slice for the whole tuple


def running_amounts(store: Store, hour: int, through: int) -> Iterator[HourAmount]:
    """What an hour has up to the minute `through`, in order; nothing if no part of it is summed up."""
    for item in queries.partition_items(store, store.settings.ledger_table, keys.running_partition(hour, through)):
        yield from _entries(item)


def running_amounts_of(store: Store, at: Progress, counter: str, id_: str) -> Iterator[HourAmount]:
    """What one tally has in the hour that runs, in any order: one Query of one page, unless its imports go over two."""
    partition, digest, table = (
        keys.running_partition(at.hour, at.through),
        keys.tally_digest(counter, id_),
        store.settings.ledger_table,
    )
    for item in queries.partition_items(store, table, partition, high=f"{digest}$", Limit=1, ScanIndexForward=False):
        yield from (moved for moved in _entries(item) if moved.digest.startswith(digest))
        if item["SK"]["S"] <= digest:
            return  # what is before it is of other tallies


def _entries(item: Item) -> Iterator[HourAmount]:
    return (HourAmount.of(*entry) for entry in items.decompress(item["body"]))


def _in_segments(moves: Iterable[HourAmount]) -> Iterator[list[HourAmount]]:
    """The entries of one running segment after the other."""
    entries, size = list[HourAmount](), 0
    for moved in moves:
        entries.append(moved)
        size += len(moved.id) + ENTRY_BYTES
        if size >= SEGMENT_BYTES:
            yield entries
            entries, size = [], 0
    if entries:
        yield entries


def _running_segment(settings: Settings, hour: int, through: int, entries: list[HourAmount]) -> Write:
    assert all(one.digest < next_.digest for one, next_ in pairwise(entries)), "each once, in order"
    key, body = (
        keys.key(keys.running_partition(hour, through), entries[0].digest),
        items.compress([moved[1:] for moved in entries]),
    )
    return items.put_write(
        settings.ledger_table, key, {"body": body, "expiration": int(clock.now_s()) + segments.SEGMENT_KEPT_S}
    )


def _write_days(store: Store, at: Progress, until_s: float) -> tuple[int, Progress]:
    """Write the hour that is over into the items of its day, as far as the time goes; how many, and how far it is."""
    written, hour = 0, at.hour
    assert at.through >= minutes_of(store.settings, hour)[-1], "an hour is written once, when it is whole"
    left = (moved for moved in running_amounts(store, hour, at.through) if moved.digest > at.after)
    while at.hour == hour and store.clock() < until_s:
        chunk = list(islice(left, ROWS_AT_ONCE))
        writes = [[_hour_write(store.settings, hour, moved)] for moved in chunk]
        map_in_threads(partial(commit_writes, Call(store, deadline_s=until_s)), writes)
        written += len(chunk)
        whole = len(chunk) < ROWS_AT_ONCE
        done = replace(at, hour=hour + 1, after="") if whole else replace(at, after=chunk[-1].digest)
        at = _note(store, at, done)
    return written, at


def _hour_write(settings: Settings, hour: int, moved: HourAmount) -> Write:
    """The write of one tally's hour into its item of the day. An import stays for ever."""
    day, of_day = divmod(hour, 24)
    sets, values, into = f"SET h{of_day} = :amount", {":amount": {"N": str(moved.amount)}}, day_name(day)
    if moved.day:
        sets = f"SET h{hour} = :amount"
        into = f"{IMPORT}{moved.day}"
    elif settings.series_days:
        sets += ", expiration = :expires"
        values[":expires"] = {"N": str((day + settings.series_days + EXPIRY_GRACE_DAYS) * DAY_S)}
    return {
        "Update": {
            "TableName": settings.ledger_table,
            "Key": keys.key(day_partition(moved.counter, moved.id.partition("#")[0]), into),
            "UpdateExpression": sets,
            "ExpressionAttributeValues": values,
        }
    }


def day_partition(counter: str, id_: str) -> str:
    """The partition key of the days of a tally."""
    return f"SERIES#{counter}#{id_}"


def day_name(day: int) -> str:
    """The sort key of a day, by its number since 1970: `2026-11-22`."""
    return str(date.fromordinal(EPOCH + day))


def parse_day(name: str) -> int:
    """The number of a day, since 1970, by the name that `day_name` gives it."""
    return date.fromisoformat(name).toordinal() - EPOCH
