"""Until when the stream consumers have provably passed everything, and until when numbers are right.

Nothing is inferred from silence. The sweep writes a pulse into every open shard of both streams. A consumer that has
passed a pulse has passed everything before it in that shard. A pulse carries the time up to which the rollup had come
when it was sent. A consumer that has passed it has also passed the rollup's own additions up to that time.

The sweep finds how far each consumer has come (lineage.py), and notes that in the JUDGE item. It is used one sweep
later, because the parts of a transaction become visible one after the other.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from .. import observe
from ..dynamo import keys, queries
from ..dynamo.client import Call, Store
from ..dynamo.keys import Item
from ..dynamo.shards import Shards
from ..dynamo.transactions import Write, apply_once, put
from ..settings import Settings
from .lineage import COUNTS, DRIFT, RECEIPTS, ROLLUP, Look, Unreached, look, whole
from .waits import LATE as LATE
from .waits import SETTLE as SETTLE
from .waits import START, Waits

PULSES_TRIED = 32  # fixed keys, and as many random ones for each shard of which no key is known
PULSES_TRIED_MAX = 256  # random ones in all: a sweep writes them one after the other; a shard they miss is peeked at
PULSE_KEPT_S = 24 * 3600  # as long as a stream keeps its records
CACHED_S = 1.0  # a process reads the JUDGE item for `as_of` at most this often
JUDGE = keys.key(keys.JUDGE_KEY, keys.JUDGE_KEY)


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
    return Evidence(whole(item, "judged", -1), whole(item, f"known{late}"), whole(item, f"rolled{late}"), item)


def judged(store: Store) -> int:
    """The last minute that is judged; -1 before judging starts."""
    return whole(queries.get(store.client, store.settings.ledger_table, JUDGE), "judged", -1)


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
            if found.reached(table, leaf):
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
    began_s, closed = whole(item, "began", int(now_s)), before.closed(store.settings)
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
    began_s = whole(before.item, "began", int(now_s))
    passed = {ROLLUP: found.counted_s(), DRIFT: found.known_s()}
    return {consumer: max(0, int(now_s - max(passed_s, began_s))) for consumer, passed_s in passed.items()}


def confirmed(evidence: Evidence, upto: int) -> bool:
    """Whether a drift that was last changed by minute `upto` has stood for long enough."""
    return evidence.judged - upto >= SETTLE
