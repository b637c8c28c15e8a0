"""The bookkeeper, a consumer: it writes into journal segments what is expected of each tally and what is observed.

Expected: accepted changes (receipts), and children that Tally or a person puts or deletes. Imports are expected, too,
and their entries say so. Observed: every change of a tally item, except repairs. Both halves of a change have the
minute of their call, and are booked on this minute (`booking_minute`). The halves of a child's removal may fall on two
minutes, so they share a pair name. If a minute is judged, or is before the ledger began, its entries are booked on the
current minute, because the judge judges each minute once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..counter import Counter
from ..counting import periods, tallies
from ..counting.children import CREATED_AT
from ..counting.receipts import DAY_S, IMPORTED
from ..counting.tallies import TOMBSTONE
from ..dynamo import clock, items
from ..dynamo.client import Call
from ..dynamo.keys import minute_of, removal_pair_of
from ..dynamo.transactions import Write
from . import crossings, levels, rollup, segments
from .fold import Effect, Run, StreamConsumer
from .record import (
    CHANGE_ATTRIBUTES,
    CREATED_S_MAX,
    INSERT,
    MALFORMED_ERRORS,
    REMOVE,
    TRUE_ATTRIBUTE,
    CounterIndex,
    Image,
    PoisonRecordError,
    Record,
    accepted_receipt,
    amounts_of,
    booking_minute,
    booking_minute_of,
    created_s,
    event_name,
    is_ttl_removal,
)
from .segments import JournalEntry

SEGMENTS_MAX = 40  # in a run; nearly always 1. The transaction of a run has 100 items at most, 25 of them dead letters
EVENTS_MAX = 8  # a run with more events takes no further record; the last record may have crossed every threshold
SEGMENT_BYTES_MAX = 350_000  # of a run, before compression: an item has 400 KB at most
ENTRY_BYTES = 60  # of an entry without its id
_ROLLUP_AHEAD_MAX = 2  # minutes: if the rollup's stamp is later than its record by more, the stamp is wrong


def read_receipt(declared: CounterIndex, record: Record) -> Sequence[Effect]:
    """Returns what an accepted change expects. A receipt that was removed or edited, or names no change, has no effect.

    `declared`: also counters that have counted and are not declared any more. A spilled change of any other counter is
    a dead letter, because the rollup cannot add the change. If the change of such a counter is not spilled, neither the
    change nor the move of its tally is booked.
    """
    image = accepted_receipt(record)
    if image is None or CHANGE_ATTRIBUTES.isdisjoint(image):
        return ()
    if image.get("rollup") == TRUE_ATTRIBUTE:
        for name, id_, _ in amounts_of(image, only_spilled=True):
            rollup.require_declared(declared, name, id_)
    booked = [
        (name, id_, amount)
        for name, id_, amount in amounts_of(image)
        if name in declared.by_name and periods.is_valid_tally_id(declared.by_name[name], id_)
    ]
    return rollup.receipt_effects(declared, booked, record, image, _import_day(image, record)) if booked else ()


def _import_day(image: Image, record: Record) -> int:
    """Returns the day of an import: the day in the attribute `imported`, or the day on which the child was made; -1:
    not imported. If this day is missing or not valid, returns the record's day."""
    if not image.keys() >= IMPORTED.keys():
        return -1
    [imported] = (image[name] for name in IMPORTED)
    if "N" in imported:
        day = int(imported["N"])
    else:
        try:
            day = int(image[CREATED_AT]["N"]) // DAY_S
        except MALFORMED_ERRORS:
            day = -1
    return day if 0 <= day < CREATED_S_MAX // DAY_S else int(created_s(record)) // DAY_S


def read_count(declared: CounterIndex, record: Record) -> Sequence[Effect]:
    """Returns the expected amount of a child that was put or deleted, or the observed amount of a changed tally item,
    with the events of thresholds that its number crossed. Any other item has no effect."""
    name, change = event_name(record), record["dynamodb"]
    prefix, _, id_ = change["Keys"]["PK"]["S"].partition("#")
    sort_key = change["Keys"]["SK"]["S"]
    counters = [counter for start, counter in declared.children.get(prefix, ()) if sort_key.startswith(start)]
    if counters:
        return _child_effects(declared, record, counters, id_)
    counter = declared.counter_of_item(prefix, sort_key)
    if counter is None and name == INSERT:
        rollup.refuse_orphan(change.get("NewImage") or {})  # a spilled child that no counter counts
    if counter is None or not periods.is_valid_tally_id(counter, id_):
        return ()
    if is_ttl_removal(record) and periods.has_ended(counter, id_, created_s(record)):
        return ()  # if TTL removes a tally before its period has ended, because somebody edited its TTL, that is drift
    new, old = change.get("NewImage") or {}, change.get("OldImage") or {}
    if (name != REMOVE and not new) or (name != INSERT and not old):
        raise PoisonRecordError(f"a {name} without its image")
    # The declaration may have changed, so the stored start counts. Tally stores no start of 0. An item without a nonce
    # was put by hand or removed, and the declared start counts.
    start = items.int_attribute(dict(new), tallies.START_ATTRIBUTE, 0 if "nonce" in new else counter.start)
    moved = tallies.stored_number(counter, new, start) - tallies.stored_number(counter, old, start)
    effect = Effect(counter.name, id_, declared.minute_made(record))
    booked = _tally_effects(effect._replace(observed=moved), new, old) if moved else ()
    if counter.notify is None or not counter.has_version or not periods.is_kept(counter, id_, created_s(record)):
        return booked  # levels.py has a sum's events; a hold's release in an expired period makes a new number
    if not moved and periods.has_ended(counter, id_, created_s(record)):
        return ()  # a copy of an override, which a period gets for late calls after its end (counting/overrides.py)
    crossed = crossings.events_of_record(
        counter, id_, record, crossings.ImageNumber(old, start), crossings.ImageNumber(new, start)
    )
    return (*booked, effect._replace(events=crossed)) if crossed else booked


def _tally_effects(effect: Effect, new: Image, old: Image) -> tuple[Effect, ...]:
    """Returns the effect of a changed tally item on its booking minute; () for a repair. `effect`: on the minute of the
    record. The removal of a child stays on this minute, because the judge finds the other half by the pair name."""
    nonce = new.get("nonce", {}).get("S", "")
    if not nonce or new["nonce"] == old.get("nonce"):
        return (effect,)  # a manual edit
    if tallies.is_repair_nonce(nonce, effect.observed):
        return ()
    if nonce.startswith(tallies.REMOVAL_NONCE_PREFIX) and "." in nonce:  # the removal of a child
        return (effect._replace(pair=nonce[1:].partition(".")[0]),)
    minute, stamp = effect.minute, minute_of(new)
    if nonce.startswith(tallies.ROLLUP_NONCE_PREFIX):  # the rollup may add long after the minute that it stamps
        stamp = minute if stamp is None or stamp > minute + _ROLLUP_AHEAD_MAX else stamp
        return (effect._replace(minute=stamp),)
    stamp = booking_minute(stamp, minute)
    return (effect if stamp == minute else effect._replace(minute=stamp),)


def _child_effects(declared: CounterIndex, record: Record, counters: Sequence[Counter], id_: str) -> tuple[Effect, ...]:
    """Returns 1 for a new child, or -1 and the pair name for a removed child. A tombstone is not a child.

    An imported child is booked as an import of the day on which it was made. Its removal is not booked as an import.
    """
    name, change, minute = event_name(record), record["dynamodb"], declared.minute_made(record)
    is_child = name != REMOVE and TOMBSTONE not in change["NewImage"]
    was_child = name != INSERT and TOMBSTONE not in change["OldImage"]
    if is_child == was_child:
        return ()
    amount, pair, day = -1, "", -1
    if is_child:
        amount, day = 1, _import_day(change["NewImage"], record)
        minute = booking_minute_of(change["NewImage"], minute)
    else:
        pair = removal_pair_of(change["OldImage"])
    return tuple(Effect(counter.name, id_, minute, amount, pair=pair, day=day) for counter in counters)


@dataclass
class SegmentRun(Run):
    """A run that writes one segment for each minute. Entries of judged minutes go to the current minute."""

    bytes: int = 0  # of the entries, before compression
    minutes: set[int] = field(default_factory=set)

    def has_room_for(self, effects: Sequence[Effect]) -> bool:
        minutes = self.minutes.union(effect.minute for effect in effects)
        return len(minutes) <= SEGMENTS_MAX and self.bytes <= SEGMENT_BYTES_MAX and len(self.events) <= EVENTS_MAX

    def add(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if effect.events:
                self.events += effect.events
                continue
            self.metered_changes[effect.counter] += effect.expected != 0 and effect.day < 0  # imports are not traffic
            if effect.minute <= self.context.last_unbookable_minute:  # the judge pairs halves of near minutes only
                effect = effect._replace(minute=self.context.open_minute, pair="")
            if self.context.is_drift_exempt:  # nobody judges the other half
                effect = effect._replace(observed=effect.expected)
            key = (effect.minute, effect.counter, effect.id, effect.pair, effect.day)
            if key not in self.sums:
                self.minutes.add(effect.minute)
                self.bytes += len(effect.id) + ENTRY_BYTES
            self._add(key, effect)

    def writes(self, call: Call, declared: CounterIndex) -> list[Write]:
        settings, now_s = call.store.settings, clock.now_s()
        name = f"{self.context.table}#{self.context.shard}#{self.first}"  # no other run has this name
        entries = self.segments()
        assert min(entries, default=self.context.open_minute) > self.context.last_unbookable_minute, "it is judged"
        written = [
            segments.segment_write(settings, minute, self.context.bucket, name, of_minute, now_s)
            for minute, of_minute in entries.items()
        ]
        written += [event.as_write(settings) for event in self.events]
        self.events += levels.raise_levels(call, declared, self.sums.values())  # committed before the run
        return written

    def segments(self) -> dict[int, list[JournalEntry]]:
        """Returns the entries by minute, without entries of 0. Two halves of a removal in one sum need no pair name."""
        sums: dict[tuple[int, str, str, str, int], list[int]] = defaultdict(lambda: [0, 0])
        for counter, id_, minute, expected, observed, pair, day, _ in self.sums.values():
            sum_ = sums[minute, counter, id_, "" if expected == observed else pair, day]
            sum_[0] += expected
            sum_[1] += observed
        by_minute: dict[int, list[JournalEntry]] = defaultdict(list)
        for (minute, counter, id_, pair, day), sum_ in sums.items():
            if any(sum_):
                by_minute[minute].append(JournalEntry(counter, id_, pair, sum_[0], sum_[1], day))
        booked = [entry for entries in by_minute.values() for entry in entries]
        assert sum(entry.expected for entry in booked) == sum(effect.expected for effect in self.sums.values())
        assert sum(entry.observed for entry in booked) == sum(effect.observed for effect in self.sums.values())
        return by_minute


CONSUMER = StreamConsumer(
    "bookkeeper", {"receipts": read_receipt, "counts": read_count}, SegmentRun, needs_watermark=True
)
