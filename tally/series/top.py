"""Top lists: the tallies of a counter that moved most in an hour, a day or a month.

The list of an hour is exact: after each part of the hour (hours.py), the sweep reads the sums of every tally and writes
the list. A list has the tallies that moved up most, and the tallies that moved down most. The list of a day is merged
from the lists of its hours, and the list of a month from the lists of its days. If a tally is not on each of these
lists, its sum may be too low or too high. `error_max` is the most by which the sum may be wrong.

In the ledger, PK, SK -> attributes:
    top     TOP#hour#counter, 2026-11-22T13 -> body (entries), least (cutoff), error, through (the last minute)
            TOP#day#counter, 2026-11-22 -> body, least, error, through
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import accumulate
from typing import Any, NamedTuple

from ..counter import Counter
from ..dynamo import clock, items, keys, queries
from ..dynamo.client import Call, Store
from ..dynamo.transactions import try_commit
from ..errors import InvalidInputError, NotFoundError
from . import progress, spans
from .progress import HOUR_S, hour_of

UP_MAX = 200  # tallies that moved up, on one list; an answer has 100 at most
DOWN_MAX = 50  # tallies that moved down, on one list; no answer has them, but they may have moved up in other hours
BYTES_MAX = 150_000  # of all ids that moved up, or down, on one list; an id has up to 1,024 bytes
HOURS_KEPT_S = 90 * 24 * HOUR_S  # the lists of days are kept for ever
HOURS, DAYS = "TOP#hour#", "TOP#day#"
HOUR, DAY, MONTH = "hour", "day", "month"
SPAN_FORMATS = {HOUR: "%Y-%m-%dT%H", DAY: "%Y-%m-%d", MONTH: "%Y-%m"}
SPAN_LENGTHS = {HOUR: 13, DAY: 10, MONTH: 7}


class Ranked(NamedTuple):
    """A tally on a list. `value`: the amount by which the tally moved; below 0 if the tally moved down."""

    value: int
    id: str

    @property
    def rank(self) -> tuple[int, str]:
        """The sort key: the tally that moved most, up or down, is the first."""
        return -abs(self.value), self.id


@dataclass(frozen=True)
class TopList:
    """A list of the tallies that moved up most, and after them the tallies that moved down most."""

    entries: Sequence[Ranked] = ()
    cutoff: int = 0
    """The largest sum, without its sign, of a tally that did not fit on the list; 0: the list has all tallies."""
    error: int = 0
    """The most by which the cutoff, or a value on the list, may be too low or too high."""

    @property
    def missing_max(self) -> int:
        """The most by which a tally that is not on the list may have moved up or down."""
        return self.cutoff + self.error


class TopListBuilder:
    """Builds the lists of one hour, by counter."""

    def __init__(self) -> None:
        self._heaps: dict[str, tuple[list[Ranked], list[Ranked]]] = defaultdict(lambda: ([], []))

    def add(self, counter: str, id_: str, amount: int) -> None:
        """Adds one tally. A heap keeps one tally more than the list takes, because its least amount is the cutoff."""
        up, down = self._heaps[counter]
        heap, most = (down, DOWN_MAX) if amount < 0 else (up, UP_MAX)
        push = heapq.heappush if len(heap) <= most else heapq.heappushpop
        push(heap, Ranked(abs(amount), id_))

    def list(self, counter: str) -> TopList:
        """Returns the list of a counter."""
        up, down = self._heaps[counter]
        return _truncate([*up, *(Ranked(-ranked.value, ranked.id) for ranked in down)], 0)


def merge_lists(lists: Iterable[TopList]) -> TopList:
    """Returns the list of a day or month from the lists of its hours or days."""
    sums: dict[str, int] = defaultdict(int)
    error = 0
    for list_ in lists:
        error += list_.missing_max  # a tally that is not on this list may have moved by so much
        for value, id_ in list_.entries:
            sums[id_] += value
    return _truncate([Ranked(value, id_) for id_, value in sums.items()], error)


def _truncate(moved: Collection[Ranked], error: int) -> TopList:
    """Makes a list of the tallies that moved most, up and down, as many as a list takes."""
    up, cutoff_up = _farthest([ranked for ranked in moved if ranked.value > 0], UP_MAX)
    down, cutoff_down = _farthest([ranked for ranked in moved if ranked.value < 0], DOWN_MAX)
    return TopList([*up, *down], max(cutoff_up, cutoff_down), error)


def _farthest(moved: list[Ranked], most: int) -> tuple[list[Ranked], int]:
    """Returns the tallies that moved most, and the size of the first amount that does not fit; 0: all tallies fit."""
    moved.sort(key=lambda ranked: ranked.rank)
    bytes_up_to = accumulate(len(ranked.id) for ranked in moved[:most])  # the characters of an id are ASCII
    listed = sum(bytes_ <= BYTES_MAX for bytes_ in bytes_up_to)
    return moved[:listed], abs(moved[listed].value) if listed < len(moved) else 0


def write_lists(store: Store, hour: int, through: int, lists: TopListBuilder, moved: Iterable[str]) -> None:
    """Writes the lists of an hour, and the lists of its day (UTC), as they are after the minute `through`. `moved`: the
    counters whose tallies moved since the lists were last written. The lists of other counters stay."""
    day, expires_s = span_of(hour)[:10], (hour + 1) * HOUR_S + HOURS_KEPT_S
    for counter in sorted(moved):
        _write(store, f"{HOURS}{counter}", span_of(hour), lists.list(counter), through, expiration=expires_s)
        hour_lists = read_lists(store, f"{HOURS}{counter}", f"{day}T00", span_of(hour))
        _write(store, f"{DAYS}{counter}", day, merge_lists(hour_lists.values()), through)


def span_of(hour: int) -> str:
    """Returns the name of an hour since 1970, in UTC: `2026-11-22T13`."""
    return datetime.fromtimestamp(hour * HOUR_S, UTC).strftime(SPAN_FORMATS[HOUR])


def _write(store: Store, partition: str, span: str, list_: TopList, through: int, **expiry: int) -> None:
    """Writes a list, unless another sweep has written a newer list. `expiry`: `expiration`, or nothing."""
    numbers = {"least": list_.cutoff, "error": list_.error, "through": through}
    values: items.Values = {"body": items.compress(list_.entries), **numbers, **expiry}
    write = items.put_write(store.settings.ledger_table, keys.key(partition, span), values)
    write["Put"] |= {
        "ConditionExpression": "attribute_not_exists(through) OR through <= :through",
        "ExpressionAttributeValues": {":through": {"N": str(through)}},
    }
    try_commit(store, [write])


def top_list(call: Call, counter: Counter, by: str, span: str | None, limit: int) -> dict[str, Any]:
    """Answers `{"counter","by","span","top":[{"id","value"}],"error_max","as_of"}`: the ids that moved up most.

    `by`: HOUR, DAY or MONTH. `span`: `2026-11-22T13`, `2026-11-22` or `2026-11`, of UTC; None: the newest. `error_max`:
    the most by which a value may be wrong, and by which an id that is not in `top` may be above the last id in `top`.
    `as_of`, epoch seconds: the list lacks changes after this time; null if no series exist. If the list of a span was
    deleted, or the span was over before the series began, raises NotFoundError. Raises InvalidInputError.
    """
    spans.require_single_period(counter, by)
    progress_ = progress.read(call.store)
    settings, as_of = call.store.settings, progress_.as_of(call.store.settings)
    newest = "" if as_of is None else span_of(hour_of(settings, progress_.through))[: SPAN_LENGTHS[by]]
    wanted_span = newest if span is None else check_span(span, by)
    series_start = span_of(hour_of(settings, progress_.since))[: SPAN_LENGTHS[by]] if newest else ""
    kept_since = span_of((int(clock.now_s()) - HOURS_KEPT_S) // HOUR_S) if by == HOUR else ""
    first_span = max(series_start, kept_since)
    if wanted_span and wanted_span < first_span:
        raise NotFoundError(f"There is no list of {wanted_span}: the lists begin with {first_span}.")
    partition = f"{HOURS if by == HOUR else DAYS}{counter.name}"
    last = f"{wanted_span}-31" if by == MONTH else wanted_span
    lists = list(read_lists(call.store, partition, wanted_span, last).values()) if wanted_span else []
    top = lists[0] if len(lists) == 1 else merge_lists(lists)  # a merge would add a single list's cutoff to its error
    return {
        "counter": counter.name,
        "by": by,
        "span": wanted_span or None,
        "top": [{"id": ranked.id, "value": ranked.value} for ranked in top.entries[:limit] if ranked.value > 0],
        "error_max": top.error,
        "as_of": as_of,
    }


def check_span(span: str, by: str) -> str:
    """Returns the span. If it does not name an hour, day or month, as `by` says, raises InvalidInputError."""
    try:
        parsed = datetime.strptime(span, SPAN_FORMATS[by])
        if len(span) == SPAN_LENGTHS[by] and parsed.strftime(SPAN_FORMATS[by]) == span:
            return span
    except ValueError:
        pass
    example = span_of(0)[: SPAN_LENGTHS[by]]
    raise InvalidInputError(f"span must have the form of {example!r} for by={by}.", field="span")


def read_lists(store: Store, partition: str, first: str, last: str) -> dict[str, TopList]:
    """Returns the lists from `first` to `last` by span, both included. `partition`: HOURS or DAYS, and the counter."""
    lists = {}
    for item in queries.partition_items(store, store.settings.ledger_table, partition, first, last):
        listed = [Ranked(*parts) for parts in items.decompress(item["body"])]
        error = items.int_attribute(item, "error")
        lists[item["SK"]["S"]] = TopList(listed, items.int_attribute(item, "least"), error)
    return lists
