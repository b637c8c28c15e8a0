"""Top lists: the tallies of a counter that moved most in an hour, a day or a month.

The list of an hour is exact: the sweep sees every tally, and writes the list with each part of the hour. It keeps those
that moved up most, and those that moved down most. The list of a day is merged from those of its hours, that of a month
from those of its days. A tally that was on some of them only may have moved more or less than its sum says: `error_max`
says by how much at most.

In the ledger, PK, SK -> attributes:
    top     TOP#hour#counter, 2026-11-22T13 -> body, least, error, through
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
from ..dynamo.keys import Item
from ..dynamo.transactions import try_commit
from ..errors import InvalidInputError, NotFoundError
from . import progress, spans
from .progress import HOUR_S, hour_of

UP_MAX = 200  # that moved up; callers see 100 at most
DOWN_MAX = 50  # that moved down
BYTES_MAX = 150_000  # of either, before it is compressed: an id may be a page of 1,024 bytes
HOURS_KEPT_S = 90 * 24 * HOUR_S  # the lists of days are kept
HOURS, DAYS = "TOP#hour#", "TOP#day#"
HOUR, DAY, MONTH = "hour", "day", "month"
SPAN_FORMATS = {HOUR: "%Y-%m-%dT%H", DAY: "%Y-%m-%d", MONTH: "%Y-%m"}
SPAN_LENGTHS = {HOUR: 13, DAY: 10, MONTH: 7}


class Ranked(NamedTuple):
    """A tally on a list: by how much it moved, and its id."""

    value: int
    id: str

    @property
    def rank(self) -> tuple[int, str]:
        """What moved most has the least, in either direction."""
        return -abs(self.value), self.id


@dataclass(frozen=True)
class TopList:
    """What moved up most, the first one first; then what moved down most."""

    entries: Sequence[Ranked] = ()
    cutoff: int = 0
    """No tally that is missing has a sum farther from 0 than this; 0: none is missing."""
    error: int = 0
    """By how much a value may be too low or too high, at most."""

    @property
    def missing_max(self) -> int:
        """By how much a tally that is missing may have moved up or down, at most."""
        return self.cutoff + self.error


class TopListBuilder:
    """The lists of one hour in the making, by counter."""

    def __init__(self) -> None:
        self._heaps: dict[str, tuple[list[Ranked], list[Ranked]]] = defaultdict(lambda: ([], []))

    def add(self, counter: str, id_: str, amount: int) -> None:
        """One tally. A heap has one more than is listed: the farthest from 0 of those that are missing."""
        fell = amount < 0
        heap = self._heaps[counter][fell]
        push = heapq.heappush if len(heap) <= (DOWN_MAX if fell else UP_MAX) else heapq.heappushpop
        push(heap, Ranked(abs(amount), id_))

    def list(self, counter: str) -> TopList:
        """The list of a counter."""
        up, down = self._heaps[counter]
        return _truncate([*up, *(Ranked(-fallen.value, fallen.id) for fallen in down)], 0)


def merge_lists(lists: Iterable[TopList]) -> TopList:
    """The list over several spans."""
    sums: dict[str, int] = defaultdict(int)
    error = 0
    for of_span in lists:
        error += of_span.missing_max
        for value, id_ in of_span.entries:
            sums[id_] += value
    return _truncate([Ranked(value, id_) for id_, value in sums.items()], error)


def _truncate(moved: Collection[Ranked], error: int) -> TopList:
    """As many as a list takes of those that moved up most, and of those that moved down most."""
    up, least_up = _farthest([ranked for ranked in moved if ranked.value > 0], UP_MAX)
    down, least_down = _farthest([ranked for ranked in moved if ranked.value < 0], DOWN_MAX)
    return TopList([*up, *down], max(least_up, least_down), error)


def _farthest(moved: list[Ranked], most: int) -> tuple[list[Ranked], int]:
    """Those that moved most, and by how much the next one did; 0: there is none."""
    moved.sort(key=lambda ranked: ranked.rank)
    sizes = accumulate(len(ranked.id) for ranked in moved[:most])
    kept = sum(size <= BYTES_MAX for size in sizes)
    return moved[:kept], abs(moved[kept].value) if kept < len(moved) else 0


def write_lists(store: Store, hour: int, through: int, board: TopListBuilder, moved: Iterable[str]) -> None:
    """Write the lists of an hour, and those of its day (of UTC), as they are after the minute `through`.

    `moved`: the counters that did since the lists were written. The others keep theirs.
    """
    day, expires_s = span_of(hour)[:10], (hour + 1) * HOUR_S + HOURS_KEPT_S
    for counter in sorted(moved):
        _write(store, f"{HOURS}{counter}", span_of(hour), board.list(counter), through, expiration=expires_s)
        so_far = read_lists(store, f"{HOURS}{counter}", f"{day}T00", span_of(hour))
        _write(store, f"{DAYS}{counter}", day, merge_lists(so_far.values()), through)


def span_of(hour: int) -> str:
    """The name of an hour since 1970, in UTC: `2026-11-22T13`."""
    return datetime.fromtimestamp(hour * HOUR_S, UTC).strftime(SPAN_FORMATS[HOUR])


def _write(store: Store, partition: str, span: str, list_: TopList, through: int, **more: int) -> None:
    """Put a list, unless another sweep has put a newer one."""
    values: items.Values = {
        "body": items.compress(list_.entries), "least": list_.cutoff, "error": list_.error, "through": through, **more,
    }  # fmt: skip
    write = items.put_write(store.settings.ledger_table, keys.key(partition, span), values)
    write["Put"] |= {
        "ConditionExpression": "attribute_not_exists(through) OR through <= :through",
        "ExpressionAttributeValues": {":through": {"N": str(through)}},
    }
    try_commit(store, [write])


def top_list(call: Call, counter: Counter, by: str, span: str | None, limit: int) -> dict[str, Any]:
    """`{"counter","by","span","top":[{"id","value"}],"error_max","as_of"}`: what moved most in an hour, day or month.

    `span`: `2026-11-22T13`, `2026-11-22` or `2026-11`, of UTC; None: the newest. `error_max`: by
    how much a value may be off, and how far above the last one a tally that is missing may be. `as_of`, epoch seconds:
    changes after it are not in the list yet; null before there is one. Raises InvalidInputError, and NotFoundError for
    a span whose list is gone, or that was over before the series began: nobody knows what moved.
    """
    spans.require_single_period(counter, by)
    at = progress.read(call.store)
    settings = call.store.settings
    newest = span_of(hour_of(settings, at.through))[: SPAN_LENGTHS[by]] if at.as_of(settings) is not None else ""
    asked = newest if span is None else checked_span(span, by)
    begun = span_of(hour_of(settings, at.since))[: SPAN_LENGTHS[by]] if newest else ""
    kept = span_of((int(clock.now_s()) - HOURS_KEPT_S) // HOUR_S) if by == HOUR else ""
    if asked and asked < max(begun, kept):
        raise NotFoundError(f"There is no list of {asked}: they begin with {max(begun, kept)}.")
    partition = f"{HOURS if by == HOUR else DAYS}{counter.name}"
    last = f"{asked}-31" if by == MONTH else asked
    lists = list(read_lists(call.store, partition, asked, last).values()) if asked else []
    top = lists[0] if len(lists) == 1 else merge_lists(lists)
    return {
        "counter": counter.name,
        "by": by,
        "span": asked or None,
        "top": [{"id": ranked.id, "value": ranked.value} for ranked in top.entries[:limit] if ranked.value > 0],
        "error_max": top.error,
        "as_of": at.as_of(settings),
    }


def checked_span(span: str, by: str) -> str:
    """The span, in the form that `by` asks for. Raises InvalidInputError."""
    try:
        if (
            len(span) == SPAN_LENGTHS[by]
            and datetime.strptime(span, SPAN_FORMATS[by]).strftime(SPAN_FORMATS[by]) == span
        ):
            return span
    except ValueError:
        pass
    example = span_of(0)[: SPAN_LENGTHS[by]]
    raise InvalidInputError(f"span must have the form of {example!r} for by={by}.", field="span")


def read_lists(store: Store, partition: str, first: str, last: str) -> dict[str, TopList]:
    """The lists from one span to another, both included, by span. `partition`: HOURS or DAYS, and the counter."""
    stored = queries.partition_items(store, store.settings.ledger_table, partition, first, last)
    return {item["SK"]["S"]: _list(item) for item in stored}


def _list(item: Item) -> TopList:
    listed = [Ranked(*parts) for parts in items.decompress(item["body"])]
    return TopList(listed, items.int_attribute(item, "least"), items.int_attribute(item, "error"))
