"""The consumer that counts the items of the team's own tables, exactly.

What an item counts for is a pure function of it (`Items.value`). A record moves the number by what its new image
counts for, less what its old one does: `COUNT` or `SUM … WHERE … GROUP BY`, whatever happens to the items. What was
there before comes from a scan (scan_state.py). While one is open, the recount beside the number moves by the rules of
first_seen.py.

A tally moves as by a repair: the journal expects no half of it from anywhere, and an edit by hand is drift.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from ..counter import RECORD_WRITES_MAX, Counter
from ..counting import tallies
from ..dynamo import clock, items, queries
from ..dynamo.client import Call
from ..dynamo.keys import Item
from ..dynamo.transactions import Write
from ..errors import ConfigurationError
from ..items import EXAMPLE, Contribution
from ..streams.consumer import Batch, Handler, table_name
from ..streams.fold import Effect, Run, StreamConsumer
from ..streams.record import (
    INSERT,
    MALFORMED_ERRORS,
    REMOVE,
    CounterIndex,
    PoisonRecordError,
    Record,
    created_s,
    event_name,
)
from . import faults, first_seen, scan_state
from .first_seen import Marker, moves_between
from .scan_state import CLOCK_SLACK, Scan
from .team_numbers import NO_NUMBER, TeamNumberNote
from .team_numbers import watch_write as listed_group

NAME = "items"
ITEMS_MAX = RECORD_WRITES_MAX
KEYS_MAX = 100  # of a read of many items


class ItemChange(NamedTuple):
    """What a record says of one counter.

    `scan`: the open scan whose recount it moves. `needs_marker`: whether what the scan read of the item may be younger
    than the record. `is_near_scan_end`: it is older, but not by much: the stamps of one item may go back by SLACK.
    """

    counter: Counter
    minute: int
    old: Contribution | None
    new: Contribution | None
    scan: Scan | None = None
    marker: str = ""
    needs_marker: bool = False
    is_near_scan_end: bool = False
    team_number: Contribution | None = None
    """The number of the team's own, as the record leaves it."""
    team_number_before: Contribution | None = None
    made_s: float = 0.0
    pair: str = ""  # as effects have it: its halves are in one record
    example: str = ""
    """The item that cannot be counted, and why."""


def counters_of_table(counters: Mapping[str, Counter], table: str) -> dict[str, Counter]:
    """The counters of the items of a table, by name."""
    return {name: one for name, one in counters.items() if one.items is not None and one.items.table == table}


def items_consumer(counters: Mapping[str, Counter], open_: Mapping[str, Scan | None] | None = None) -> StreamConsumer:
    """The consumer. `open_`: the scans of the counters that count now, by name; None: every counter counts, and no scan
    is open."""
    of = {one.items.table for one in counters.values() if one.items is not None}
    taken: Mapping[str, Scan | None] = dict.fromkeys(counters) if open_ is None else open_
    reads = {table: partial(_item_changes, counters_of_table(counters, table), taken) for table in of}
    return StreamConsumer(NAME, reads, ItemsRun)


class ItemsHandler(Handler):
    """The handler of the streams of the team's tables."""

    def __init__(self, counters: Mapping[str, Counter], *more: Any) -> None:
        """`more`: as Handler takes it."""
        super().__init__(items_consumer(counters), counters, *more)
        self.counters = counters

    def batch(self, call: Call, source: str, shard: str) -> Batch:
        own = self.store.settings.team_tables
        table = next((name for name, one in own.items() if one.name == table_name(source)), None)
        if table is None or not counters_of_table(self.counters, table):
            raise ConfigurationError(f"The stream {source[:200]!r} is of no table whose items a counter counts")
        return ItemsBatch(self, call, table, shard)


class ItemsBatch(Batch):
    """A batch of a team's table. Before each start it reads the scans of its counters, and the markers of its items."""

    handler: ItemsHandler

    def _prefetch(self, records: Iterable[Record]) -> None:
        open_ = dict(self._open_scans())
        read = partial(_item_changes, counters_of_table(self.handler.counters, self.table), open_)
        marked: set[str] = set()
        for record in records if any(open_.values()) else ():  # else nothing rests on a marker
            try:
                changes = read(self.handler.declared, record)
            except (PoisonRecordError, *MALFORMED_ERRORS):
                continue
            marked |= {change.marker for change in changes if change.needs_marker}
        known = self._read_markers(sorted(marked))
        self.consumer = StreamConsumer(NAME, {self.table: read}, partial(ItemsRun, markers_before=known))

    def _open_scans(self) -> Iterable[tuple[str, Scan | None]]:
        """The counters that count now, each with the scan that is open; without an open scan, if it is counted as it
        is declared. What it does not count now, a scan that begins later reads as it is then."""
        counters = counters_of_table(self.handler.counters, self.table)
        for name, scan in scan_state.scans_for_consumer(self.call.store, self.table, counters).items():
            counter = counters[name]
            if scan.is_open_for(counter):
                yield name, scan
            elif scan.counted == counter.items_digest:
                yield name, None

    def _read_markers(self, wanted: Sequence[str]) -> dict[str, Marker]:
        """The markers as they are, by their keys."""
        known: dict[str, Marker] = {}
        table = self.call.store.settings.ledger_table
        for first in range(0, len(wanted), KEYS_MAX):
            some = {spelled: json.loads(spelled) for spelled in wanted[first : first + KEYS_MAX]}
            there = queries.get_many(self.call, table, list(some.values()))
            stored = {_key_pair(item): item for item in there}
            known |= {spelled: first_seen.parse_marker(stored.get(_key_pair(key), {})) for spelled, key in some.items()}
        return known


@dataclass
class ItemsRun(Run):
    """A run that adds to numbers, and to the recounts of open scans."""

    markers_before: dict[str, Marker] = field(default_factory=dict)
    """The markers as they were read, by their keys. What a run commits, the next one knows."""
    markers_after: dict[str, Marker] = field(default_factory=dict)
    recounts: dict[tuple[str, str], tuple[str, int]] = field(default_factory=dict)
    """By counter and group: the attribute of the recount, and what is added to it."""
    team_number_notes: dict[tuple[str, str], TeamNumberNote] = field(default_factory=dict)
    """By counter and group, what is beside the count of numbers that the team keeps."""
    examples: dict[tuple[str, str], str] = field(default_factory=dict)
    """By counter and group of faults, the newest item."""

    def has_room_for(self, effects: Sequence[Any]) -> bool:
        values = [
            (each, value)
            for each in effects
            for value in (each.old, each.new, each.team_number, each.team_number_before)
        ]
        groups = {(each.counter.name, value.group) for each, value in values if value}
        marked = {each.marker for each in effects if each.needs_marker or each.is_near_scan_end}
        listed = groups - self.team_number_notes.keys() if any(each.counter.watch for each in effects) else ()
        new = len(groups - self.sums.keys()) + len(marked - self.markers_after.keys()) + len(listed)
        return self._items + new <= ITEMS_MAX

    def add(self, effects: Sequence[Any]) -> None:
        for change in effects:
            for value, sign in moves_between(change.old, change.new):
                self._move(change, value, sign * value.amount)
            if change.example and change.new:
                self.examples[change.counter.name, change.new.group] = change.example
            if change.scan is not None:
                self._recount(change, change.scan)
            if change.counter.watch:
                self._note_team_number(change)

    def _note_team_number(self, change: ItemChange) -> None:
        """Note what the number that the team keeps is now, and what it may not know yet."""
        for value, sign in moves_between(change.old, change.new):
            if not value.aside:
                self._note_of(change, value).move(change.counter, change.made_s, *_split_by_sign(sign * value.amount))
        before, now = change.team_number_before, change.team_number
        for value in filter(None, (before, now)):
            noted = self._note_of(change, value)
            noted.team_number = {"N": str(now.amount)} if now and now.group == value.group else NO_NUMBER
            moved = (now.amount if now else 0) - (before.amount if before else 0)
            if before != now:
                noted.move(change.counter, change.made_s, *_split_by_sign(-moved))
            if change.scan is not None and change.scan.covers(change.counter, value.group):
                noted.recount_attribute = change.scan.team_number_attribute

    def _note_of(self, change: ItemChange, value: Contribution) -> TeamNumberNote:
        self._move(change, value, 0)
        return self.team_number_notes.setdefault((change.counter.name, value.group), TeamNumberNote())

    def _recount(self, change: ItemChange, scan: Scan) -> None:
        old, new = (
            value if value and scan.covers(change.counter, value.group) else None for value in (change.old, change.new)
        )
        if old == new:
            return
        moves = moves_between(old, new)
        if change.needs_marker:
            was = (
                self.markers_after[change.marker]
                if change.marker in self.markers_after
                else self.markers_before[change.marker]
            )
            moves, self.markers_after[change.marker] = first_seen.apply_record(was, old, new)
        elif change.is_near_scan_end:
            self.markers_after[change.marker] = first_seen.LIVE_MARKER
        for value, sign in moves:
            self._move(change, value, 0)
            at = change.counter.name, value.group
            _, before = self.recounts.get(at, ("", 0))
            self.recounts[at] = scan.recount_attribute, before + sign * value.amount

    def _move(self, change: ItemChange, value: Contribution, amount: int) -> None:
        self._add(
            (change.counter.name, value.group), Effect(change.counter.name, value.group, self.place.minute, amount)
        )

    @property
    def _items(self) -> int:
        return len(self.sums) + len(self.markers_after) + len(self.team_number_notes) + len(self.dead_letters)

    @property
    def is_full(self) -> bool:
        return super().is_full or self._items >= ITEMS_MAX

    def writes(self, call: Call, declared: CounterIndex) -> list[Write]:
        writes: list[Write] = []
        table, now_s = call.store.settings.ledger_table, clock.now_s()
        for at, effect in self.sums.items():
            counter = declared.by_name[effect.counter]
            attribute, recount = self.recounts.get(at, ("", 0))
            noted = self.team_number_notes.get(at)
            if not effect.expected and not recount and not noted and at not in self.examples:
                continue
            shard = self.place.bucket % counter.max_shards
            add = tallies.add_write(
                call,
                counter,
                effect.id,
                shard,
                effect.expected,
                self.place.minute,
                nonce_prefix=tallies.REPAIR_NONCE_START,
            )
            add = items.extend_update(add, adds={attribute: recount}) if recount else add
            add = items.extend_update(add, sets={EXAMPLE: self.examples[at]}) if at in self.examples else add
            writes.append({"Update": noted.beside(add) if noted else add})
            if noted:
                writes.append(listed_group(table, effect.counter, effect.id, noted.at_s))
        for spelled, marker in self.markers_after.items():
            if spelled not in self.markers_before:
                writes.append(first_seen.live_marker_write(table, json.loads(spelled), now_s))
            elif marker != self.markers_before[spelled]:
                writes.append(
                    first_seen.marker_write(table, json.loads(spelled), self.markers_before[spelled], marker, now_s)
                )
        return writes

    def on_commit(self) -> None:
        self.markers_before.update(
            {spelled: marker for spelled, marker in self.markers_after.items() if spelled in self.markers_before}
        )


def _item_changes(
    counters: Mapping[str, Counter], open_: Mapping[str, Scan | None], declared: CounterIndex, record: Record
) -> Sequence[Any]:
    """What a record says of the counters that count now. TTL's removals are removals.

    Raises PoisonRecordError, or one of MALFORMED. No amount is a reason: what cannot be added is counted as such.
    """
    changes = []
    for name, counter in counters.items():
        if name not in open_:
            continue  # a scan that begins later reads what the record left
        old, new = _contributions(counter, record)
        assert counter.items is not None
        images = (record["dynamodb"].get(image) or {} for image in ("OldImage", "NewImage"))
        before, now = map(counter.items.team_number, images)
        if old == new and before == now:
            continue
        scan, made_s = open_[name], created_s(record)
        example = _example(counter, record) if new and new.aside and new != old else ""
        change = ItemChange(
            counter,
            declared.minute_made(record),
            old,
            new,
            team_number=now,
            team_number_before=before,
            made_s=made_s,
            example=example,
        )
        slack_s = CLOCK_SLACK * declared.minute_s
        changes.append(change if scan is None else _with_scan(change, scan, record, made_s, slack_s))
    return changes


def _with_scan(change: ItemChange, scan: Scan, record: Record, made_s: float, slack_s: float) -> ItemChange:
    """The change as an open scan takes it."""
    if not any(one and scan.covers(change.counter, one.group) for one in (change.old, change.new)):
        return change._replace(scan=scan)
    marked = not scan.ended_s or made_s < scan.ended_s + slack_s
    late = not marked and made_s < scan.ended_s + 2 * slack_s
    key = first_seen.marker_key(change.counter.name, scan.generation, record["dynamodb"]["Keys"])
    marker = json.dumps(key) if marked or late else ""
    return change._replace(scan=scan, marker=marker, needs_marker=marked, is_near_scan_end=late)


def _contributions(counter: Counter, record: Record) -> tuple[Contribution | None, Contribution | None]:
    """What the item counted for before, and what it counts for now."""
    of, name, change = counter.items, event_name(record), record["dynamodb"]
    assert of is not None
    keys: Item = change["Keys"]
    if not of.may_count(keys) and not of.may_keep(keys):
        return None, None
    images = ("OldImage", name != INSERT), ("NewImage", name != REMOVE)
    if not of.needs_images:
        value = of.contribution(keys)
        return tuple(value if there else None for _, there in images)  # type: ignore[return-value]
    if any(there and not change.get(image) for image, there in images):
        raise PoisonRecordError(f"a {name} without its image: the stream must have NEW_AND_OLD_IMAGES")
    return tuple(of.contribution(change[image]) if there else None for image, there in images)  # type: ignore[return-value]


def _example(counter: Counter, record: Record) -> str:
    """The item that cannot be counted, and why."""
    assert counter.items is not None
    keys = record["dynamodb"]["Keys"]
    order = sorted(keys, key=lambda name: name != counter.items.partition_key)  # type: ignore[union-attr]
    return faults.example(counter.items, record["dynamodb"].get("NewImage") or keys, order)


def _split_by_sign(amount: int) -> tuple[int, int]:
    return max(amount, 0), max(-amount, 0)


def _key_pair(item: Item) -> tuple[str, str]:
    return item["PK"]["S"], item["SK"]["S"]
