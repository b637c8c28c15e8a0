"""Finds the thresholds that a number crosses between the old and the new image of the one item that has the number.

Upwards, a number crosses a threshold when it reaches the threshold; downwards, when it falls below the threshold. Each
image has its own ceiling, so a number may cross a percentage only because an override changes the ceiling.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ..counter import Counter
from ..counting import limits, periods, tallies
from ..counting.limits import OVERRIDE, STALE_COPY_PREFIX
from ..notify import MULTIPLES_MAX, Notify, share_of_ceiling
from .events import Event, event_id
from .record import Image, Record, created_s

EXAMPLE: Mapping[str, Any] = {
    "event": "3f1c0b6a5d2e4f708192a3b4c5d6e7f8", "counter": "calls", "id": "7c20", "period": "2026-08-01",
    "threshold": 800, "percent": 80, "limit": 1000, "direction": "up", "value": 812, "before": 790, "by": "change",
    "at": 1785542401, "sequence": f"{4421584500000000017450439092:040}.00",
}  # fmt: skip
"""An example of an event's detail, for samples and documents."""
_SEQUENCE_DIGITS = 40  # the most digits that a sequence number of DynamoDB has


class ImageNumber(NamedTuple):
    """An image of a tally item. `start`: the number if the image lacks the counter's attribute."""

    image: Image
    start: int

    def value(self, counter: Counter) -> int:
        """Returns the number as readers see it: the number of a removed parent is 0."""
        return 0 if tallies.TOMBSTONE in self.image else tallies.stored_number(counter, self.image, self.start)


class Crossing(NamedTuple):
    """A threshold that was crossed. `declaration`: the members of the event that say how the threshold is declared."""

    threshold: int
    is_upward: bool
    declaration: dict[str, int]


def crossings_between(
    notify: Notify, old: int, new: int, ceilings: tuple[int | None, int | None] = (None, None)
) -> list[Crossing]:
    """Returns the crossings of a move from `old` to `new`, in the order of the move. Each percentage is one crossing.
    A threshold of `at` or `every` is one crossing, even if both declare it, but none if a crossed percentage equals it.

    `ceilings`: of `old` and of `new`; None: no ceiling. No number reaches a percentage of a ceiling of 0 or less.
    """
    found = {(one.threshold, one.declaration.get("percent")): one for one in _each_crossing(notify, old, new, ceilings)}
    of_percent = {threshold for threshold, percent in found if percent}
    distinct = [one for (threshold, percent), one in found.items() if percent or threshold not in of_percent]
    return sorted(distinct, key=lambda one: (one.threshold, one.declaration.get("percent", 0)), reverse=new < old)


def _each_crossing(notify: Notify, old: int, new: int, ceilings: tuple[int | None, int | None]) -> Iterator[Crossing]:
    if notify.every is not None and new > old:
        first, last = old // notify.every + 1, new // notify.every
        for multiple in range(max(first, last - MULTIPLES_MAX + 1), last + 1):
            yield Crossing(multiple * notify.every, True, {"every": notify.every})
    for threshold in notify.at:
        if (old >= threshold) != (new >= threshold):
            yield Crossing(threshold, new >= threshold, {})
    for percent in notify.percent:
        before, after = (
            share_of_ceiling(ceiling, percent) if ceiling and ceiling > 0 else None for ceiling in ceilings
        )
        up = after is not None and new >= after
        if (before is not None and old >= before) != up:
            # If the new ceiling is 0 or less, the event shows the threshold by the old ceiling.
            yield Crossing(after or before or 0, up, {"percent": percent, "limit": ceilings[1] or 0})


def events_of_record(
    counter: Counter, id_: str, record: Record, old: ImageNumber, new: ImageNumber
) -> tuple[Event, ...]:
    """Returns the events of a changed tally item. The counter has thresholds, and keeps its number in one item."""
    assert counter.notify is not None
    assert counter.has_version, "the number has several items"
    before, value = old.value(counter), new.value(counter)
    # An image without a ceiling has the ceiling of the other image. If both have none, both have the declared ceiling.
    known = [ceiling for ceiling in (_ceiling(counter, old.image), _ceiling(counter, new.image)) if ceiling is not None]
    ceilings = (known[0], known[-1]) if known else (counter.ceiling, counter.ceiling)
    crossings = crossings_between(counter.notify, before, value, ceilings)
    if not crossings:
        return ()
    at_s, sequence = created_s(record), f"{int(record['dynamodb']['SequenceNumber']):0{_SEQUENCE_DIGITS}}"
    by = _cause(old.image, new.image, value - before)
    return tuple(
        crossing_event(counter, id_, one, f"{sequence}.{number:02}", at_s, value, before=before, by=by)
        for number, one in enumerate(crossings)
    )


def crossing_event(
    counter: Counter, id_: str, crossing: Crossing, sequence: str, at_s: float, value: int, **more: Any
) -> Event:
    """Returns the event of a crossing. `sequence`: sorts the events of one number. `more`: further members."""
    unique_id = event_id(counter.name, id_, sequence)
    return Event(unique_id, int(at_s * 1000), {
        "event": unique_id, "counter": counter.name, **periods.answer_members(id_),
        "threshold": crossing.threshold, **crossing.declaration,
        "direction": "up" if crossing.is_upward else "down",
        "value": value, **more, "at": int(at_s), "sequence": sequence,
    })  # fmt: skip


def _ceiling(counter: Counter, image: Image) -> int | None:
    """Returns the ceiling of an image; None if the tally of a period has no number and no valid copy of an override.

    If an image has a number and no copy, its ceiling is the declared one, because the counter had no `limit_overrides`
    when the number was written. If an image has a number and a stale copy, its ceiling is that of the copy.
    """
    if not counter.limit_overrides:
        return counter.ceiling
    override = image.get(OVERRIDE, {}).get("S", STALE_COPY_PREFIX)  # a missing copy counts as marked stale
    if counter.period is not None and override.startswith(STALE_COPY_PREFIX) and counter.attribute not in image:
        return None
    return limits.parse_limits(counter, image).ceiling


def _cause(old: Image, new: Image, moved: int) -> str:
    """Returns the cause: a `change`, a `repair`, the `removal` of a parent, an `edit` by hand, or a new `limit`."""
    if not moved and new.get(OVERRIDE) != old.get(OVERRIDE):
        return "limit"
    if tallies.TOMBSTONE in new and tallies.TOMBSTONE not in old:
        return "removal"
    nonce = new.get("nonce", {}).get("S", "")
    if not nonce or new.get("nonce") == old.get("nonce"):
        return "edit"
    return "repair" if tallies.is_repair_nonce(nonce, moved) else "change"
