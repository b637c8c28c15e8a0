"""Until when the stream consumers have provably passed everything, and until when numbers are right.

Nothing is inferred from silence. The sweep writes a pulse into every open shard of both streams. A consumer that has
passed a pulse has passed everything before it in that shard. A pulse carries the time up to which the rollup had come
when it was sent. A consumer that has passed it has also passed the rollup's own additions up to that time.

A shard that follows another one is read after it. So for each leaf of the shard tree its whole lineage counts. The
sweep notes what it finds in the JUDGE item. It is used one sweep later, because the parts of a transaction become
visible one after the other.

The waits of the ledger are all here. They scale with the length of a minute.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, NamedTuple

from .. import observe
from ..dynamo import keys, queries
from ..dynamo.client import Call, Store
from ..dynamo.keys import Item
from ..dynamo.shards import Shard, Shards
from ..dynamo.transactions import Write, apply_once, put
from ..settings import Settings
from .record import INSERT, MODIFY

ROLLUP, DRIFT = "rollup", "drift"
COUNTS, RECEIPTS = "counts", "receipts"
LATE = 1  # minutes after its own in which a change may be committed: retries end after 3 s; frozen writers get a minute
SETTLE = 5  # judged minutes that a drift must stand to be confirmed: one that comes of a late commit lasts two
START = 2  # minutes from the first sweep to the first minute that may be judged: older ones may lack a half
PULSES_TRIED = 32  # fixed keys, and as many random ones for each shard of which no key is known
PULSES_TRIED_MAX = 256  # random ones in all: a sweep writes them one after the other; a shard they miss is peeked at
PEEK_EMPTY = 5  # empty answers of GetRecords in one shard: one may be empty although records follow
PEEK_CALLS_MAX = 20  # of 1,000 records each: who has more behind it than this is not at the end
PULSE_KEPT_S = 24 * 3600  # as long as a stream keeps its records
CACHED_S = 1.0  # a process reads the JUDGE item for `as_of` at most this often
JUDGE = keys.key(keys.JUDGE_KEY, keys.JUDGE_KEY)


class Waits(NamedTuple):
    """The waits of the ledger in seconds, for a minute of this length."""

    minute_s: int

    @property
    def skew_s(self) -> float:
        """How far clocks and DynamoDB's stamps may differ: 5 s."""
        return self.minute_s / 12

    @property
    def listing_s(self) -> float:
        """How late DynamoDB may list a new shard: 60 s."""
        return self.minute_s

    @property
    def fresh_s(self) -> float:
        """How old noted evidence must be to be used: 10 s."""
        return self.minute_s / 6

    @property
    def unreached_s(self) -> float:
        """How long no pulse may reach a shard before the sweep reads the shard itself: 90 s."""
        return 1.5 * self.minute_s


class Checkpoint(NamedTuple):
    """How far one consumer has come in one stream shard. Times are in epoch seconds; 0: never."""

    sequence: str | None = None
    through_s: int = 0
    """When the last record was made that it applied or skipped."""
    pulse: str = ""
    """The key of the newest pulse that it has passed."""
    rolled_s: int = 0
    """The newest time that a pulse carried."""


@dataclass(frozen=True)
class Evidence:
    """What may be concluded now. Times are in epoch seconds; 0: there is no evidence."""

    judged: int = -1
    """The last minute that is judged; -1 before judging starts."""
    known_s: int = 0
    """The bookkeeper has passed everything that was written before, and the rollup's additions up to then."""
    rolled_s: int = 0
    """The rollup has added everything that was written before."""
    item: Item = field(default_factory=dict)
    """The JUDGE item."""

    def closed(self, settings: Settings) -> int:
        """The last minute whose entries are all on the pages."""
        known_s = self.known_s - Waits(settings.minute_s).skew_s
        return settings.minute(known_s) - LATE - 1 if self.known_s else -1

    def as_of(self, settings: Settings) -> int | None:
        """Epoch seconds: rolled-up numbers include every change that was accepted before. None without evidence."""
        return int(self.rolled_s - Waits(settings.minute_s).skew_s) if self.rolled_s else None


def read(store: Store, now_s: float) -> Evidence:
    """The evidence that may be used now: noted long enough ago, or the one before."""
    item = queries.get(store.client, store.settings.ledger_table, JUDGE)
    late = "" if _settled(store.settings, item, now_s) else "_before"
    return Evidence(_whole(item, "judged", -1), _whole(item, f"known{late}"), _whole(item, f"rolled{late}"), item)


def judged(store: Store) -> int:
    """The last minute that is judged; -1 before judging starts."""
    return _whole(queries.get(store.client, store.settings.ledger_table, JUDGE), "judged", -1)


def as_of(call: Call) -> int | None:
    """Epoch seconds: rolled-up numbers include every change that was accepted before. None: not known yet.

    A process reads the JUDGE item once in CACHED_S.
    """
    global _cached
    table, now_s = call.store.settings.ledger_table, time.monotonic()
    cached = _cached
    if cached is None or cached[0] != table or now_s - cached[1] >= CACHED_S:
        cached = _cached = (table, now_s, read(call.store, time.time()).as_of(call.store.settings))
    return cached[2]


_cached: tuple[str, float, int | None] | None = None


def _settled(settings: Settings, item: Item, now_s: float) -> bool:
    return now_s - float(item.get("noted", {"N": "0"})["N"]) >= Waits(settings.minute_s).fresh_s


def _whole(item: Item, name: str, missing: int = 0) -> int:
    return int(item[name]["N"]) if name in item else missing


class Unreached(NamedTuple):
    """A leaf that no pulse has reached: since when; when the sweep last sent pulses, and the time that they carried."""

    since_s: float
    sent_s: float = 0
    rolled_s: int = 0


Marks = Mapping[tuple[str, str, str], Checkpoint]
"""By consumer, table and shard."""


@dataclass(frozen=True)
class Look:
    """The shard trees and the checkpoints at one moment. The trees were listed first."""

    store: Store
    shards: Shards
    listed_s: float
    trees: Mapping[str, Sequence[Shard]]
    """By table."""
    marks: Marks
    unreached: Mapping[str, Unreached]
    """By leaf, as the last sweep left them."""
    peeks: dict[tuple[str, str, str], bool] = field(default_factory=dict)
    """By consumer, table and shard: whether records may be left for the consumer. Each shard is asked once."""

    def leaves(self, table: str) -> list[Shard]:
        """The shards of a table's stream that no other one follows."""
        parents = {shard.parent for shard in self.trees[table]}
        return [shard for shard in self.trees[table] if shard.id not in parents]

    def passed_s(self, consumer: str, table: str) -> float:
        """The time until which a consumer has passed every shard of a stream; 0: not known."""
        waits = Waits(self.store.settings.minute_s)
        passed = [self._through_s(consumer, table, leaf) for leaf in self.leaves(table)]
        return min([*passed, self.listed_s - waits.listing_s]) if passed else 0

    def rolled_s(self) -> int:
        """The newest time whose pulses the bookkeeper has passed in every shard of counts; 0: not known."""
        times = []
        for leaf in self.leaves(COUNTS):
            own = max(mark.rolled_s for mark in self._lineage(DRIFT, COUNTS, leaf))
            peeked = self._peeked(DRIFT, COUNTS, leaf)
            times.append(max(own, peeked.rolled_s if peeked else 0))
        return min(times, default=0)

    def pulses(self, table: str, leaf: Shard) -> set[str]:
        """The key of a pulse that reaches a leaf; before one is known, those that reached the shards before it."""
        own, *before = (mark.pulse for mark in self._lineage(DRIFT, table, leaf))
        return {own} if own else {pulse for pulse in before if pulse}

    def behind(self, consumer: str) -> list[str]:
        """The leaves in which a consumer has passed least, for the log: those that hold up the evidence."""
        found = [
            (self._through_s(consumer, table, leaf), f"{table} {leaf.id}")
            for table in (COUNTS, RECEIPTS)
            for leaf in self.leaves(table)
        ]
        return [name for _, name in sorted(found)[:5]]

    def _through_s(self, consumer: str, table: str, leaf: Shard) -> float:
        own: float = max(mark.through_s for mark in self._lineage(consumer, table, leaf))
        peeked = self._peeked(consumer, table, leaf)
        return max(own, peeked.sent_s - Waits(self.store.settings.minute_s).listing_s) if peeked else own

    def _lineage(self, consumer: str, table: str, leaf: Shard) -> list[Checkpoint]:
        """The checkpoints of a leaf and of all that it follows: a consumer in a shard has finished its parents."""
        return [self.marks.get((consumer, table, id_), Checkpoint()) for id_ in self._line(table, leaf)]

    def _line(self, table: str, leaf: Shard) -> list[str]:
        parents = {shard.id: shard.parent for shard in self.trees[table]}
        found: list[str] = []
        at: str | None = leaf.id
        while at is not None and at not in found:
            found.append(at)
            at = parents.get(at)
        return found

    def _peeked(self, consumer: str, table: str, leaf: Shard) -> Unreached | None:
        """What the last pulses say of a leaf that none reaches, if the consumer has passed the time of their sweep.

        It has if it has passed a later record, or if no record is left for it. The latter is weak: an empty answer is
        no proof. An error makes a passing difference, because no entry is lost.
        """
        found = self.unreached.get(leaf.id)
        if not found or not found.sent_s or self.marks.get((DRIFT, table, leaf.id), Checkpoint()).pulse:
            return None
        through_s = max(mark.through_s for mark in self._lineage(consumer, table, leaf))
        if through_s - Waits(self.store.settings.minute_s).skew_s >= found.sent_s:
            return found
        return None if any(self._left(consumer, table, id_) for id_ in self._open(consumer, table, leaf)) else found

    def _open(self, consumer: str, table: str, leaf: Shard) -> list[str]:
        """The leaf, and those shards before it that a consumer may not have finished: it has begun none behind them."""
        finished = {shard.parent for shard in self.trees[table] if (consumer, table, shard.id) in self.marks}
        line = takewhile(lambda id_: id_ not in finished, self._line(table, leaf))
        listed = {shard.id for shard in self.trees[table]}
        return [id_ for id_ in line if id_ in listed]

    def _left(self, consumer: str, table: str, shard: str) -> bool:
        """Whether a shard may hold a record that the consumer has not passed."""
        place = consumer, table, shard
        if place not in self.peeks:
            sequence = self.marks.get(place, Checkpoint()).sequence
            self.peeks[place] = _any_for(consumer, table, self.shards.records_after(table, shard, sequence))
        return self.peeks[place]

    def known_s(self) -> float:
        """The time up to which minutes can be judged."""
        return min(self.passed_s(DRIFT, RECEIPTS), self.passed_s(DRIFT, COUNTS), self.rolled_s())

    def counted_s(self) -> float:
        """The time until which the rollup has added everything."""
        return min(self.passed_s(ROLLUP, RECEIPTS), self.passed_s(ROLLUP, COUNTS))


def _any_for(consumer: str, table: str, answers: Iterable[Sequence[Mapping[str, Any]]]) -> bool:
    """Whether one of these records is for the consumer, as far as a few answers show."""
    empty = 0
    for number, records in enumerate(answers, 1):
        if number > PEEK_CALLS_MAX or any(_is_for(consumer, table, record) for record in records):
            return True
        empty += not records
        if empty == PEEK_EMPTY:
            break
    return False


def _is_for(consumer: str, table: str, record: Mapping[str, Any]) -> bool:
    """Whether the mapping's filter hands a record to the consumer (operations.CONSUMERS)."""
    if (consumer, table) == (DRIFT, COUNTS):
        return True
    kind = record["eventName"]
    if table == RECEIPTS:
        return kind in (INSERT, MODIFY)
    return bool(kind == INSERT or record["dynamodb"]["Keys"]["PK"]["S"].startswith(keys.PULSE_START))


def look(store: Store, shards: Shards, item: Item, now_s: float) -> Look:
    """List the shards, then read the checkpoints. `item`: the JUDGE item."""
    trees = {table: shards.listed(table) for table in (COUNTS, RECEIPTS)}
    unreached = json.loads(item.get("unreached", {"S": "{}"})["S"])
    since = {leaf: Unreached(*of) for leaf, of in unreached.items()}
    return Look(store, shards, now_s, trees, _checkpoints(store), since)


def _checkpoints(store: Store) -> Marks:
    found: dict[tuple[str, str, str], Checkpoint] = {}
    for consumer in (ROLLUP, DRIFT):
        for table in (COUNTS, RECEIPTS):
            partition, _ = keys.checkpoint_key(consumer, table, "")
            for page in queries.pages(store, store.settings.ledger_table, partition, queries.FIRST, queries.LAST):
                for mark in page:
                    found[consumer, table, mark["SK"]["S"]] = Checkpoint(
                        mark["sequence"]["S"],
                        _whole(mark, "through"),
                        mark.get("pulse", {"S": ""})["S"],
                        _whole(mark, "rolled"),
                    )
    return found


def renew(store: Store, shards: Shards, before: Evidence, now_s: float) -> Look:
    """Send the pulses, and note what the consumers have passed. `before`: the evidence that may be used now.

    The pulses carry `before.rolled_s`: what was noted a sweep ago, never what this sweep finds.
    """
    found = look(store, shards, before.item, now_s)
    unreached = _send(found, before.rolled_s, now_s)
    _note(found, before, unreached, now_s)
    return found


def _send(found: Look, rolled_s: int, now_s: float) -> dict[str, Unreached]:
    """Write pulses that reach every leaf; the leaves that none has reached so far."""
    unreached: dict[str, Unreached] = {}
    waits = Waits(found.store.settings.minute_s)
    for table in (COUNTS, RECEIPTS):
        wanted: set[str] = set()
        unknown = 0
        for leaf in found.leaves(table):
            wanted |= found.pulses(table, leaf)
            if found.marks.get((DRIFT, table, leaf.id), Checkpoint()).pulse:
                continue
            unknown += 1
            since = found.unreached.get(leaf.id, Unreached(now_s))
            waited = now_s - since.since_s >= waits.unreached_s
            unreached[leaf.id] = since._replace(sent_s=now_s, rolled_s=rolled_s) if waited else since
            if waited:
                observe.logger.warning("no pulse reaches a shard", extra={"table": table, "shard": leaf.id})
        for name in sorted(wanted | _tried(unknown)):
            put(Call(found.store), pulse(found.store.settings, table, name, rolled_s, now_s))
    return unreached


def _tried(unknown: int) -> set[str]:
    """Keys of pulses for a number of shards of which no key is known: one of them may lie in each."""
    fixed = map(str, range(PULSES_TRIED)) if unknown else ()
    return {*fixed, *(secrets.token_hex(8) for _ in range(min(PULSES_TRIED * unknown, PULSES_TRIED_MAX)))}


def pulse(settings: Settings, table: str, name: str, rolled_s: int, now_s: float) -> Write:
    """The write of one pulse."""
    item = {"at": int(now_s), "rolled": rolled_s, "expiration": int(now_s) + PULSE_KEPT_S}
    where: tuple[str, Item] = (settings.counts_table, keys.key(f"{keys.PULSE_START}{name}", "PULSE"))
    if table == RECEIPTS:
        where = settings.receipts_table, {"id": {"S": f"{keys.RECEIPT_PULSE_START}{name}"}}
    return {
        "Put": {
            "TableName": where[0],
            "Item": where[1] | {attribute: {"N": str(value)} for attribute, value in item.items()},
        }
    }


def _note(found: Look, before: Evidence, unreached: Mapping[str, Unreached], now_s: float) -> None:
    """Store what was found; what was noted before stays usable. The judge starts when a whole minute is closed.

    A sweep that was overtaken by another one notes nothing.
    """
    store, item = found.store, before.item
    known_s = max(before.known_s, int(found.known_s()))  # what was once passed stays passed
    numbers = {
        "known": known_s,
        "rolled": max(before.rolled_s, int(found.counted_s())),
        "known_before": before.known_s,
        "rolled_before": before.rolled_s,
    }
    began_s, closed = _whole(item, "began", int(now_s)), before.closed(store.settings)
    if before.judged < 0 and closed >= store.settings.minute(began_s) + START:
        numbers["judged"] = closed  # nothing more comes on these minutes: a half that did would stand alone
    sets = {name: {"N": str(value)} for name, value in numbers.items()}
    sets |= {"noted": {"N": str(now_s)}, "unreached": {"S": json.dumps(unreached)}}
    if "began" not in item:
        sets["began"] = {"N": str(began_s)}
    apply_once(store, [{"Update": {
        "TableName": store.settings.ledger_table,
        "Key": JUDGE,
        "UpdateExpression": "SET " + ", ".join(f"#{name} = :{name}" for name in sets),
        "ConditionExpression": "#noted = :seen" if "noted" in item else "attribute_not_exists(#noted)",
        "ExpressionAttributeNames": {f"#{name}": name for name in sets},
        "ExpressionAttributeValues": {f":{name}": value for name, value in sets.items()}
        | ({":seen": item["noted"]} if "noted" in item else {}),
    }}])  # fmt: skip


def ages_s(found: Look, before: Evidence, now_s: float) -> dict[str, int]:
    """By consumer, how long ago the time is that it has passed in every shard; since the first sweep if never."""
    began_s = _whole(before.item, "began", int(now_s))
    passed = {ROLLUP: found.counted_s(), DRIFT: found.known_s()}
    return {consumer: max(0, int(now_s - max(passed_s, began_s))) for consumer, passed_s in passed.items()}


def confirmed(evidence: Evidence, upto: int) -> bool:
    """Whether a drift that was last changed by minute `upto` has stood for long enough."""
    return evidence.judged - upto >= SETTLE
