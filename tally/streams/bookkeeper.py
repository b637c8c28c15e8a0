"""The bookkeeper, a consumer: it books on journal segments what is expected of each tally and what is observed.

Expected: accepted changes (receipts), and children that were put or deleted, by Tally or manually. What was imported is
expected, too, and says so. Observed: every change of a tally item, but for repairs. On which minute a half of a change
is booked is a pure function of its record (`booking_minute`), so both halves meet. Those of an unlike share a pair
name, for they may fall on two sides of a minute. What would be booked on a judged minute, or on one before the tables'
life, is booked on the current one: no minute is judged twice, and no entry is lost.
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

SEGMENTS_MAX = 40  # in a run: nearly always one; a transaction takes 100 items, 25 of them dead letters
EVENTS_MAX = 8  # that a run has before its last record, which may cross every threshold
SEGMENT_BYTES_MAX = 350_000  # of a run, before it is compressed: an item has 400 KB at most
ENTRY_BYTES = 60  # of an entry, beside its id
_ROLLUP_AHEAD_MAX = 2  # minutes: the rollup's stamp is never later than this after its record's minute


def read_receipt(declared: CounterIndex, record: Record) -> Sequence[Effect]:
    """An accepted change: expected. An expiry has no effect, nor has a receipt that does not say what it counted.

    A record that becomes a dead letter of the rollup for lack of a declaration becomes one here too: redriven only
    there, it would be drift.
    """
    image = accepted_receipt(record)
    if image is None or CHANGE_ATTRIBUTES.isdisjoint(image):
        return ()
    if image.get("rollup") == TRUE_ATTRIBUTE:
        for name, id_, _ in amounts_of(image, alone=True):
            rollup.require_declared(declared, name, id_)
    booked = [change for change in amounts_of(image) if _is_booked(declared.by_name.get(change[0]), change[1])]
    day = _day_of_import(image, record)
    return rollup.receipt_effects(declared, booked, record, image, day) if booked else ()


def _day_of_import(receipt: Image, record: Record) -> int:
    """The day that imported numbers belong to: the one that the receipt has, or that of its record; -1: no import."""
    if not receipt.keys() >= IMPORTED.keys():
        return -1  # traffic
    [mark] = (receipt[name] for name in IMPORTED)
    day = int(mark["N"]) if "N" in mark else -1
    return day if 0 <= day < CREATED_S_MAX // DAY_S else int(created_s(record)) // DAY_S


def _is_booked(counter: Counter | None, id_: str) -> bool:
    """Whether the journal has this tally."""
    return counter is not None and periods.is_valid_tally_id(counter, id_)


def read_count(declared: CounterIndex, record: Record) -> Sequence[Effect]:
    """A child that was put or deleted: expected. A tally item that changed: observed. Any other item: no effect."""
    name, change = event_name(record), record["dynamodb"]
    prefix, _, id_ = change["Keys"]["PK"]["S"].partition("#")
    sort_key = change["Keys"]["SK"]["S"]
    for start, _ in declared.children.get(prefix, ()):
        if sort_key.startswith(start):
            return _child_effects(declared, record, name, prefix, id_, sort_key)
    counter = declared.counter_of_item(prefix, sort_key)
    if counter is None and name == INSERT:
        rollup.refuse_orphan(change.get("NewImage") or {})
    if counter is None or not periods.is_valid_tally_id(counter, id_):
        return ()
    if is_ttl_removal(record) and periods.has_ended(counter, id_, created_s(record)):
        return ()  # its time was over; one that goes before, because somebody edited its TTL, is drift
    new, old = change.get("NewImage") or {}, change.get("OldImage") or {}
    if (name != REMOVE and not new) or (name != INSERT and not old):
        raise PoisonRecordError(f"a {name} without its image")
    # Code of another declaration may have written it. What says no start, and has no nonce, somebody put.
    began = items.int_attribute(dict(new), tallies.START_ATTRIBUTE, 0 if "nonce" in new else counter.start)
    moved = tallies.stored_number(counter, new, began) - tallies.stored_number(counter, old, began)
    effect = Effect(counter.name, id_, declared.minute_made(record))
    booked = _tally_effects(effect._replace(observed=moved), new, old) if moved else ()
    if counter.notify is None or not counter.has_version or not periods.is_kept(counter, id_, created_s(record)):
        return booked  # a hold that comes back to what is kept no more begins at the start again: that crosses nothing
    if not moved and periods.has_ended(counter, id_, created_s(record)):
        return ()  # the limit of the period that follows: it is here, too, while calls may be (plans.py)
    crossed = crossings.events_of_record(
        counter, id_, record, crossings.ImageNumber(old, began), crossings.ImageNumber(new, began)
    )
    return (*booked, effect._replace(events=crossed)) if crossed else booked


def _tally_effects(effect: Effect, new: Image, old: Image) -> tuple[Effect, ...]:
    """The effect of a tally item that changed, on the minute that its nonce asks for. `effect` has the record's own."""
    nonce = new.get("nonce", {}).get("S", "")
    if not nonce or new["nonce"] == old.get("nonce"):
        return (effect,)  # a manual edit
    if tallies.is_repair_nonce(nonce, effect.observed):
        return ()
    if nonce.startswith("-") and "." in nonce:  # an unlike
        return (effect._replace(pair=nonce[1:].partition(".")[0]),)
    minute, at = effect.minute, minute_of(new)
    if nonce.startswith(tallies.ROLLUP_NONCE_START):
        at = minute if at is None or at > minute + _ROLLUP_AHEAD_MAX else at
        return (effect._replace(minute=at),)
    at = booking_minute(at, minute)
    return (effect if at == minute else effect._replace(minute=at),)


def _child_effects(
    declared: CounterIndex, record: Record, name: str, prefix: str, id_: str, sort_key: str
) -> tuple[Effect, ...]:
    """One more, or one less with the name that the unlike's other half has too. What an unlike leaves is no child.

    One that is imported belongs to its own day. When it goes, that is a change like any other.
    """
    change, minute = record["dynamodb"], declared.minute_made(record)
    is_ = name != REMOVE and TOMBSTONE not in change["NewImage"]
    was = name != INSERT and TOMBSTONE not in change["OldImage"]
    if is_ == was:
        return ()
    if is_:
        at, moved, pair, day = (
            booking_minute_of(change["NewImage"], minute),
            1,
            "",
            _imported_day(change["NewImage"], record),
        )
    else:
        at, moved, pair, day = minute, -1, removal_pair_of(change["OldImage"]), -1
    return tuple(
        Effect(counter.name, id_, at, moved, pair=pair, day=day)
        for start, counter in declared.children[prefix]
        if sort_key.startswith(start)
    )


def _imported_day(child: Image, record: Record) -> int:
    """The day in which an imported child says that it was made, or that of its record; -1: it was not imported."""
    if not child.keys() >= IMPORTED.keys():
        return -1
    try:
        since = int(child[CREATED_AT]["N"])
    except MALFORMED_ERRORS:
        since = -1
    return (since if 0 <= since < CREATED_S_MAX else int(created_s(record))) // DAY_S


@dataclass
class SegmentRun(Run):
    """A run that writes one segment for each minute. Entries of past minutes go to the current one."""

    bytes: int = 0
    minutes: set[int] = field(default_factory=set)

    def has_room_for(self, effects: Sequence[Effect]) -> bool:
        minutes = self.minutes.union(effect.minute for effect in effects)
        return len(minutes) <= SEGMENTS_MAX and self.bytes <= SEGMENT_BYTES_MAX and len(self.events) <= EVENTS_MAX

    def add(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if effect.events:
                self.events += effect.events
                continue
            self.metered_changes[effect.counter] += effect.expected != 0 and effect.day < 0  # an import is no traffic
            if effect.minute <= self.place.last_closed_minute:
                effect = effect._replace(minute=self.place.open_minute, pair="")
            if self.place.is_drift_exempt:
                effect = effect._replace(observed=effect.expected)
            key = (effect.minute, effect.counter, effect.id, effect.pair, effect.day)
            if key not in self.sums:
                self.minutes.add(effect.minute)
                self.bytes += len(effect.id) + ENTRY_BYTES
            self._add(key, effect)

    def writes(self, call: Call, declared: CounterIndex) -> list[Write]:
        settings, now_s = call.store.settings, clock.now_s()
        name = f"{self.place.table}#{self.place.shard}#{self.first}"  # no other run has it: it never comes again
        entries = self.segments()
        assert min(entries, default=self.place.open_minute) > self.place.last_closed_minute, "nobody would judge it"
        written = [
            segments.segment_write(settings, minute, self.place.bucket, name, of_minute, now_s)
            for minute, of_minute in entries.items()
        ]
        written += [event.as_write(settings) for event in self.events]
        self.events += levels.raise_levels(call, declared, self.sums.values())  # they have their own transactions
        return written

    def segments(self) -> dict[int, list[JournalEntry]]:
        """The entries by minute, without those that come to nothing. An unlike whose halves are both here is whole."""
        sums: dict[int, dict[tuple[str, str, str, int], list[int]]] = defaultdict(lambda: defaultdict(lambda: [0, 0]))
        for counter, id_, at, expected, observed, pair, day, _ in self.sums.values():
            sum_ = sums[at][counter, id_, "" if expected == observed else pair, day]
            sum_[0] += expected
            sum_[1] += observed
        by_minute = {
            at: [
                JournalEntry(counter, id_, pair, sum_[0], sum_[1], day)
                for (counter, id_, pair, day), sum_ in names.items()
                if any(sum_)
            ]
            for at, names in sums.items()
        }
        booked = [entry for entries in by_minute.values() for entry in entries]
        assert sum(entry.expected for entry in booked) == sum(effect.expected for effect in self.sums.values())
        assert sum(entry.observed for entry in booked) == sum(effect.observed for effect in self.sums.values())
        return {at: entries for at, entries in by_minute.items() if entries}


CONSUMER = StreamConsumer(
    "bookkeeper", {"receipts": read_receipt, "counts": read_count}, SegmentRun, needs_watermark=True
)
