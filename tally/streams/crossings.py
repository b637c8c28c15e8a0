"""Which thresholds a number has crossed between two images of the one item that it stands in.

It has crossed one that it was below and has reached, or had reached and is below. The percentages are of the ceiling
that each image has, so a change of an override may cross some, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ..counter import Counter
from ..counting import limits, periods, tallies
from ..counting.limits import OVERRIDE, STALE_COPY_PREFIX
from ..notify import MULTIPLES_MAX, Notify, part
from .events import Event, event_id
from .record import Image, Record, created_s

EXAMPLE: Mapping[str, Any] = {
    "event": "3f1c0b6a5d2e4f708192a3b4c5d6e7f8", "counter": "calls", "id": "7c20", "period": "2026-08-01",
    "threshold": 800, "percent": 80, "limit": 1000, "direction": "up", "value": 812, "before": 790, "by": "change",
    "at": 1785542401, "sequence": f"{4421584500000000017450439092:040}.00",
}  # fmt: skip
"""The detail of an event: samples and documents have it."""
_SEQUENCE_DIGITS = 40  # of DynamoDB's numbers, at most


class ImageNumber(NamedTuple):
    """A number as an image has it. `start`: what it is where the image has none."""

    image: Image
    start: int

    def value(self, counter: Counter) -> int:
        """As readers see it: that of a removed parent is 0."""
        return 0 if tallies.TOMBSTONE in self.image else tallies.stored_number(counter, self.image, self.start)


class Crossing(NamedTuple):
    """A threshold that was crossed. `declaration`: how its declaration has it."""

    threshold: int
    is_upward: bool
    declaration: dict[str, int]


def crossings_between(
    notify: Notify, old: int, new: int, ceilings: tuple[int | None, int | None] = (None, None)
) -> list[Crossing]:
    """What a move from `old` to `new` crosses, in the order in which it does: each percentage, and each other threshold
    once.

    `ceilings`: the one before and the one after. Of a ceiling of 0 or less, no number has reached a percentage.
    """
    found = {(one.threshold, one.declaration.get("percent")): one for one in _each_crossing(notify, old, new, ceilings)}
    of_percent = {threshold for threshold, percent in found if percent}
    said = [one for (threshold, percent), one in found.items() if percent or threshold not in of_percent]
    return sorted(said, key=lambda one: (one.threshold, one.declaration.get("percent", 0)), reverse=new < old)


def _each_crossing(notify: Notify, old: int, new: int, ceilings: tuple[int | None, int | None]) -> Iterator[Crossing]:
    if notify.every is not None and new > old:
        first, last = old // notify.every + 1, new // notify.every
        for multiple in range(max(first, last - MULTIPLES_MAX + 1), last + 1):
            yield Crossing(multiple * notify.every, True, {"every": notify.every})
    for threshold in notify.at:
        if (old >= threshold) != (new >= threshold):
            yield Crossing(threshold, new >= threshold, {})
    for percent in notify.percent:
        was, is_ = (_percent_of(ceiling, percent) for ceiling in ceilings)
        up = is_ is not None and new >= is_
        if (was is not None and old >= was) != up:
            yield Crossing(is_ or was or 0, up, {"percent": percent, "limit": ceilings[1] or 0})


def _percent_of(ceiling: int | None, percent: int) -> int | None:
    """The least number that has so many percent of a ceiling; None if the ceiling has no percentages."""
    return part(ceiling, percent) if ceiling and ceiling > 0 else None


def events_of_record(
    counter: Counter, id_: str, record: Record, old: ImageNumber, new: ImageNumber
) -> tuple[Event, ...]:
    """The events of a tally item that changed, of a counter with thresholds whose number is one item."""
    assert counter.notify is not None
    assert counter.has_version, "one item is not the number"
    before, value = old.value(counter), new.value(counter)
    crossings = crossings_between(counter.notify, before, value, _ceilings(counter, old.image, new.image))
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
    """The event of a crossing. `sequence`: sorts the events of one number, and names this one among them."""
    name = event_id(counter.name, id_, sequence)
    return Event(name, int(at_s * 1000), {
        "event": name, "counter": counter.name, **periods.answer_members(id_),
        "threshold": crossing.threshold, **crossing.declaration,
        "direction": "up" if crossing.is_upward else "down",
        "value": value, **more, "at": int(at_s), "sequence": sequence,
    })  # fmt: skip


def _ceilings(counter: Counter, old: Image, new: Image) -> tuple[int | None, int | None]:
    """The ceiling before and after. An image that does not say its own has that of the other one."""
    before, after = (_ceiling(counter, image) for image in (old, new))
    before = after if before is None else before
    after = before if after is None else after
    return (counter.ceiling, counter.ceiling) if after is None else (before, after)


def _ceiling(counter: Counter, image: Image) -> int | None:
    """The ceiling that an image is judged by; None if the image does not say, as before the first number of a period.

    A number without a copy of an override was judged by the declared ceiling: the counter had no `own_limits` then.
    Beside a mark, the ceiling of the last copy is left.
    """
    if not counter.own_limits:
        return counter.ceiling
    plan = image.get(OVERRIDE, {}).get("S", STALE_COPY_PREFIX)
    if counter.period is not None and plan.startswith(STALE_COPY_PREFIX) and counter.attribute not in image:
        return None
    return limits.parse_limits(counter, image).ceiling


def _cause(old: Image, new: Image, moved: int) -> str:
    """What crossed: a `change`, a `repair`, the `removal` of a parent, an `edit` around Tally, or its `limit`."""
    if not moved and new.get(OVERRIDE) != old.get(OVERRIDE):
        return "limit"
    if tallies.TOMBSTONE in new and tallies.TOMBSTONE not in old:
        return "removal"
    nonce = new.get("nonce", {}).get("S", "")
    if not nonce or new.get("nonce") == old.get("nonce"):
        return "edit"
    return "repair" if tallies.is_repair_nonce(nonce, moved) else "change"
