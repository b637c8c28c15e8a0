"""The consumer that counts the items of the team's own tables, exactly.

The contribution of an item is a pure function of the item (`Items.contribution`). A record moves the number by the
contribution of its new image, less the contribution of its old image. So the number is `COUNT` or
`SUM … WHERE … GROUP BY`, whatever happens to the items. A scan counts the items that are older than the stream
(scan_state.py). While a scan is open, records also move its recount, an attribute beside the number (first_seen.py).

The consumer writes the nonce of a repair, so the bookkeeper books nothing. An edit of the number by hand is drift.
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
from .team_numbers import NO_NUMBER, TeamNumberNote, watch_write

NAME = "items"
ITEMS_MAX = RECORD_WRITES_MAX  # one run writes so many at most: tally items, markers, listed groups, dead letters
KEYS_MAX = 100  # keys that one BatchGetItem takes


class ItemChange(NamedTuple):
    """What a record changes for one counter. `minute`, `made_s`: when the record was made. A run has its own minute.

    `old`, `new`: what the item contributes before and after the record. `team_number_before`, `team_number`: the team's
    own number before and after. `scan`: the open scan. `marker_key`: the key of the item's marker, as JSON; "" if the
    recount does not need the marker. `needs_marker`: the scan may have read the item after the record, so the marker
    says whether the record moves the recount. `is_near_scan_end`: the scan ended before the record. But DynamoDB may
    stamp the item's next record with a time that is up to CLOCK_SLACK older, so this record writes the marker that the
    next record needs. `pair` (streams/fold.py): always "", because one record has both halves. `example`: the item's
    key, and why the item cannot be counted; "" if it can be counted.
    """

    counter: Counter
    minute: int
    old: Contribution | None
    new: Contribution | None
    scan: Scan | None = None
    marker_key: str = ""
    needs_marker: bool = False
    is_near_scan_end: bool = False
    team_number: Contribution | None = None
    team_number_before: Contribution | None = None
    made_s: float = 0.0
    pair: str = ""
    example: str = ""


def counters_of_table(counters: Mapping[str, Counter], table: str) -> dict[str, Counter]:
    """Returns the counters of a table's items, by name."""
    return {name: one for name, one in counters.items() if one.items is not None and one.items.table == table}


def items_consumer(
    counters: Mapping[str, Counter], open_scans: Mapping[str, Scan | None] | None = None
) -> StreamConsumer:
    """Returns the consumer. `open_scans`: by name, the counters whose items are counted, each with its open scan, or
    None. Without `open_scans`, the items of every counter are counted, and no scan is open."""
    tables = {one.items.table for one in counters.values() if one.items is not None}
    scans: Mapping[str, Scan | None] = dict.fromkeys(counters) if open_scans is None else open_scans
    reads = {table: partial(_item_changes, counters_of_table(counters, table), scans) for table in tables}
    return StreamConsumer(NAME, reads, ItemsRun)


class ItemsHandler(Handler):
    """The handler of the streams of the team's tables. Each batch makes a consumer that knows the open scans."""

    def __init__(self, counters: Mapping[str, Counter], *handler_arguments: Any) -> None:
        super().__init__(items_consumer(counters), counters, *handler_arguments)
        self.counters = counters

    def batch(self, call: Call, source: str, shard: str) -> Batch:
        tables = self.store.settings.team_tables
        table = next((name for name, one in tables.items() if one.name == table_name(source)), None)
        if table is None or not counters_of_table(self.counters, table):
            raise ConfigurationError(f"The stream {source[:200]!r} is not of a table whose items a counter counts")
        return ItemsBatch(self, call, table, shard)


class ItemsBatch(Batch):
    """A batch of a team's table. Each attempt first reads the scans of its counters and the markers of its items."""

    handler: ItemsHandler

    def _prefetch(self, records: Iterable[Record]) -> None:
        open_scans = dict(self._open_scans())
        read = partial(_item_changes, counters_of_table(self.handler.counters, self.table), open_scans)
        marked: set[str] = set()
        for record in records if any(open_scans.values()) else ():  # without an open scan, no record needs a marker
            try:
                changes = read(self.handler.declared, record)
            except (PoisonRecordError, *MALFORMED_ERRORS):
                continue  # the batch will make a dead letter of the record
            marked |= {change.marker_key for change in changes if change.needs_marker}
        marker_keys, markers = sorted(marked), dict[str, Marker]()  # the keys are JSON
        for first in range(0, len(marker_keys), KEYS_MAX):
            chunk = {text: json.loads(text) for text in marker_keys[first : first + KEYS_MAX]}
            read_items = queries.get_many(self.call, self.call.store.settings.ledger_table, list(chunk.values()))
            stored = {_key_pair(item): item for item in read_items}
            markers |= {text: first_seen.parse_marker(stored.get(_key_pair(key), {})) for text, key in chunk.items()}
        self.consumer = StreamConsumer(NAME, {self.table: read}, partial(ItemsRun, markers_before=markers))

    def _open_scans(self) -> Iterable[tuple[str, Scan | None]]:
        """Yields each counter with its open scan, or with None if no scan is open, but the items are counted. The
        consumer skips the records for all other counters, because their next scans read the items."""
        counters = counters_of_table(self.handler.counters, self.table)
        for name, scan in scan_state.scans_for_consumer(self.call.store, self.table, counters).items():
            counter = counters[name]
            if scan.is_open_for(counter):
                yield name, scan
            elif scan.counted_by == counter.items_digest:
                yield name, None


@dataclass
class ItemsRun(Run):
    """A run that adds to numbers, and to the recounts of open scans."""

    markers_before: dict[str, Marker] = field(default_factory=dict)
    """By key, the stored markers: as the batch read them, and after each commit as the run wrote them."""
    markers_after: dict[str, Marker] = field(default_factory=dict)
    """By key, the markers that this run writes."""
    recounts: dict[tuple[str, str], tuple[str, int]] = field(default_factory=dict)
    """By counter and group: the attribute of the recount, and the amount to add."""
    team_number_notes: dict[tuple[str, str], TeamNumberNote] = field(default_factory=dict)
    """By counter and group, the note about the team's number."""
    examples: dict[tuple[str, str], str] = field(default_factory=dict)
    """By counter and reserved group, the newest item with the group's fault."""

    def has_room_for(self, effects: Sequence[Any]) -> bool:
        groups = {
            (each.counter.name, value.group)
            for each in effects
            for value in (each.old, each.new, each.team_number, each.team_number_before)
            if value
        }
        marked = {each.marker_key for each in effects if each.needs_marker or each.is_near_scan_end}
        new_notes = groups - self.team_number_notes.keys() if any(each.counter.watch for each in effects) else ()
        new = len(groups - self.sums.keys()) + len(marked - self.markers_after.keys()) + len(new_notes)
        return self._items_to_write + new <= ITEMS_MAX

    def add(self, effects: Sequence[Any]) -> None:
        for change in effects:
            for value, sign in moves_between(change.old, change.new):
                self._move(change, value, sign * value.amount)
            if change.example and change.new:
                self.examples[change.counter.name, change.new.group] = change.example
            if change.scan is not None:
                self._move_recount(change, change.scan)
            if change.counter.watch:
                self._note_team_number(change)

    def _note_team_number(self, change: ItemChange) -> None:
        """Notes the team's number after the record, and by how much the number may be wrong for a while. The number may
        follow a move of its items later, or may have moved before its items."""
        for value, sign in moves_between(change.old, change.new):
            if not value.is_reserved:  # the team's number does not count items with a fault
                self._note_of(change, value).move(change.counter, change.made_s, *_split_by_sign(sign * value.amount))
        before, now = change.team_number_before, change.team_number
        for value in filter(None, (before, now)):
            note = self._note_of(change, value)
            note.team_number = {"N": str(now.amount)} if now and now.group == value.group else NO_NUMBER
            moved = (now.amount if now else 0) - (before.amount if before else 0)
            if before != now:  # if the number moves up before its items, it is too high until the items follow
                note.move(change.counter, change.made_s, *_split_by_sign(-moved))
            if change.scan is not None and change.scan.covers(change.counter, value.group):
                note.scan_attribute = change.scan.team_number_attribute

    def _note_of(self, change: ItemChange, value: Contribution) -> TeamNumberNote:
        self._move(change, value, 0)  # a move of 0, so that `writes` updates the item of the tally
        return self.team_number_notes.setdefault((change.counter.name, value.group), TeamNumberNote())

    def _move_recount(self, change: ItemChange, scan: Scan) -> None:
        counter, key = change.counter, change.marker_key
        old, new = (one if one and scan.covers(counter, one.group) else None for one in (change.old, change.new))
        if old == new:
            return
        moves = moves_between(old, new)
        if change.needs_marker:
            before = self.markers_after[key] if key in self.markers_after else self.markers_before[key]
            moves, self.markers_after[key] = first_seen.apply_record(before, old, new)
        elif change.is_near_scan_end:
            self.markers_after[key] = first_seen.STREAM_MARKER
        for value, sign in moves:
            self._move(change, value, 0)  # a move of 0, so that `writes` updates the item of the tally
            tally = counter.name, value.group
            _, amount = self.recounts.get(tally, ("", 0))
            self.recounts[tally] = scan.recount_attribute, amount + sign * value.amount

    def _move(self, change: ItemChange, value: Contribution, amount: int) -> None:
        """Moves the number of the item's group. The amount is `expected` of an effect, and `observed` stays 0."""
        tally = change.counter.name, value.group
        self._add(tally, Effect(*tally, self.context.minute, amount))

    @property
    def _items_to_write(self) -> int:
        return len(self.sums) + len(self.markers_after) + len(self.team_number_notes) + len(self.dead_letters)

    @property
    def has_room_for_dead_letter(self) -> bool:
        return super().has_room_for_dead_letter and self._items_to_write < ITEMS_MAX

    def writes(self, call: Call, declared: CounterIndex) -> list[Write]:
        writes: list[Write] = []
        table, now_s = call.store.settings.ledger_table, clock.now_s()
        for tally, effect in self.sums.items():
            counter = declared.by_name[effect.counter]
            attribute, recount = self.recounts.get(tally, ("", 0))
            note = self.team_number_notes.get(tally)
            if not effect.expected and not recount and not note and tally not in self.examples:
                continue
            # The stream shard chooses the shard of the tally, so that batches of two stream shards seldom conflict.
            moved = self.context.bucket % counter.max_shards, effect.expected, self.context.minute
            add = tallies.add_write(call, counter, effect.id, *moved, nonce_prefix=tallies.REPAIR_NONCE_PREFIX)
            add = items.extend_update(add, adds={attribute: recount}) if recount else add
            add = items.extend_update(add, sets={EXAMPLE: self.examples[tally]}) if tally in self.examples else add
            writes.append({"Update": note.extend(add) if note else add})
            if note:
                writes.append(watch_write(table, effect.counter, effect.id, note.at_s))
        for text, marker in self.markers_after.items():
            if text not in self.markers_before:  # of a record near the scan's end: the batch has not read the marker
                writes.append(first_seen.stream_marker_write(table, json.loads(text), now_s))
            elif marker != (before := self.markers_before[text]):
                writes.append(first_seen.marker_write(table, json.loads(text), before, marker, now_s))
        return writes

    def on_commit(self) -> None:
        self.markers_before |= {key: one for key, one in self.markers_after.items() if key in self.markers_before}


def _item_changes(
    counters: Mapping[str, Counter], open_scans: Mapping[str, Scan | None], declared: CounterIndex, record: Record
) -> Sequence[Any]:
    """Returns what a record changes for the counters in `open_scans`. A removal by TTL is like any removal. Raises
    PoisonRecordError, or one of MALFORMED_ERRORS, but never because of an amount. If an amount cannot be added, the
    item counts in the group of its fault."""
    changes = []
    for name, counter in counters.items():
        if name not in open_scans:
            continue  # the counter's next scan reads the item as the record left it
        old, new = _contributions(counter, record)
        assert counter.items is not None
        images = (record["dynamodb"].get(image) or {} for image in ("OldImage", "NewImage"))
        before, now = map(counter.items.team_number, images)
        if old == new and before == now:
            continue
        scan, made_s, example = open_scans[name], created_s(record), ""
        if new and new.is_reserved and new != old:  # the item cannot be counted
            partition_key, item_keys = counter.items.partition_key, record["dynamodb"]["Keys"]
            order = sorted(item_keys, key=lambda key_name: key_name != partition_key)  # the partition key first
            example = faults.example(counter.items, record["dynamodb"].get("NewImage") or item_keys, order)
        numbers: dict[str, Any] = {"team_number": now, "team_number_before": before}
        change = ItemChange(counter, declared.minute_made(record), old, new, **numbers, made_s=made_s, example=example)
        slack_s = CLOCK_SLACK * declared.minute_s
        changes.append(change if scan is None else _with_scan(change, scan, record, made_s, slack_s))
    return changes


def _with_scan(change: ItemChange, scan: Scan, record: Record, made_s: float, slack_s: float) -> ItemChange:
    """Returns the change with the open scan. If the record may move the recount, also sets the marker's fields."""
    if not any(one and scan.covers(change.counter, one.group) for one in (change.old, change.new)):
        return change._replace(scan=scan)
    needs_marker = not scan.ended_s or made_s < scan.ended_s + slack_s
    is_near_end = not needs_marker and made_s < scan.ended_s + 2 * slack_s
    key = first_seen.marker_key(change.counter.name, scan.generation, record["dynamodb"]["Keys"])
    marker_key = json.dumps(key) if needs_marker or is_near_end else ""
    return change._replace(scan=scan, marker_key=marker_key, needs_marker=needs_marker, is_near_scan_end=is_near_end)


def _contributions(counter: Counter, record: Record) -> tuple[Contribution | None, Contribution | None]:
    """Returns the contributions of the item before the record and after it."""
    declaration, name, change = counter.items, event_name(record), record["dynamodb"]
    assert declaration is not None
    keys: Item = change["Keys"]
    if not declaration.may_count(keys) and not declaration.may_have_team_number(keys):
        return None, None
    images = ("OldImage", name != INSERT), ("NewImage", name != REMOVE)
    if not declaration.needs_images:
        value = declaration.contribution(keys)
        return tuple(value if has else None for _, has in images)  # type: ignore[return-value]
    if any(has and not change.get(image) for image, has in images):
        raise PoisonRecordError(f"a {name} without its image: the stream must have NEW_AND_OLD_IMAGES")
    return tuple(declaration.contribution(change[image]) if has else None for image, has in images)  # type: ignore[return-value]


def _split_by_sign(amount: int) -> tuple[int, int]:  # `up` and `down` of `TeamNumberNote.move`
    return max(amount, 0), max(-amount, 0)


def _key_pair(item: Item) -> tuple[str, str]:
    return item["PK"]["S"], item["SK"]["S"]
