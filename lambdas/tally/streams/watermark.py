"""Until when the stream consumers have provably passed everything, and until when numbers are right.

Nothing is inferred from silence. The sweep writes a heartbeat into every open shard of both streams. A consumer that
has passed it has passed everything before it in that shard, and the rollup's own additions up to the time that it
carries.

The sweep finds how far each consumer has come (lineage.py) and notes it. That is used one sweep later, because the
parts of a transaction become visible one after the other.
"""

from __future__ import annotations

import json
import secrets
import time
from dataclasses import dataclass, field

from .. import observe
from ..dynamo import items, keys, queries
from ..dynamo.client import Call, Store
from ..dynamo.keys import Item
from ..dynamo.shards import Shards
from ..dynamo.transactions import Write, apply_once, put
from ..errors import ConfigurationError
from ..settings import Settings
from .lineage import BOOKKEEPER, FRESH, RECEIPTS, ROLLUP, SKEW, START, UNREACHED, Look, Unreached, look
from .lineage import LATE as LATE
from .lineage import SETTLE as SETTLE

HEARTBEATS_TRIED = 32  # fixed keys, and as many random ones for each shard of which no key is known
HEARTBEATS_TRIED_MAX = (
    256  # random ones in all: a sweep writes them one after the other; a shard they miss is peeked at
)
HEARTBEAT_KEPT_S = 24 * 3600  # as long as a stream keeps its records
CACHED_S = 1.0  # a process reads the JUDGE item for `as_of` at most this often
JUDGE = keys.key(keys.JUDGE_KEY, keys.JUDGE_KEY)


@dataclass(frozen=True)
class Watermark:
    """What may be concluded now. Times are in epoch seconds; 0: there is no watermark.

    `judged`: the last minute that is; -1: none. `known_s`: the bookkeeper has passed all that was written before, and
    the rollup's additions up to then. `rolled_s`: the rollup has added all that was written before. `item`: the JUDGE
    item. `noted_s`: when the newest watermark was noted.
    """

    judged: int = -1
    known_s: int = 0
    rolled_s: int = 0
    item: Item = field(default_factory=dict)
    noted_s: float = 0

    def closed(self, settings: Settings) -> int:
        """The last minute whose entries are all on the segments."""
        return settings.minute(self.known_s - SKEW * settings.minute_s) - LATE - 1 if self.known_s else -1

    def as_of(self, settings: Settings) -> int | None:
        """Epoch seconds: rolled-up numbers include every change that was accepted before. None without watermark."""
        return int(self.rolled_s - SKEW * settings.minute_s) if self.rolled_s else None

    def judged_up_to(self, settings: Settings) -> int | None:
        """The end of the last judged minute, epoch seconds; None before judging starts."""
        return None if self.judged < 0 else (self.judged + 1) * settings.minute_s


def read(store: Store, now_s: float) -> Watermark:
    """The watermark that may be used now: noted long enough ago, or the one before.

    Raises ConfigurationError if a Tally of another format wrote the ledger.
    """
    item = queries.get(store.client, store.settings.ledger_table, JUDGE)
    if (found := items.number(item, "format", keys.FORMAT)) != keys.FORMAT:
        raise ConfigurationError(
            f"The ledger is in format {found}, and this Tally reads format {keys.FORMAT}: run the one that wrote it."
        )
    noted_s = float(item.get("noted", {"N": "0"})["N"])
    late = "" if now_s - noted_s >= FRESH * store.settings.minute_s else "_before"
    known_s, rolled_s = (items.number(item, f"{name}{late}") for name in ("known", "rolled"))
    return Watermark(items.number(item, "judged", -1), known_s, rolled_s, item, noted_s)


def judged(store: Store) -> int:
    """The last minute that is judged; -1 before judging starts."""
    return read(store, 0).judged


def as_of(call: Call) -> int | None:
    """Epoch seconds: rolled-up numbers include every change that was accepted before. None: not known yet."""
    global _cached
    table, now_s = call.store.settings.ledger_table, time.monotonic()
    cached = _cached
    if cached is None or cached[0] != table or now_s - cached[1] >= CACHED_S:
        cached = _cached = (table, now_s, read(call.store, time.time()).as_of(call.store.settings))
    return cached[2]


_cached: tuple[str, float, int | None] | None = None


def renew(store: Store, shards: Shards, before: Watermark, now_s: float) -> Look:
    """Send the heartbeats, and note what the consumers have passed. `before`: the watermark that may be used now.

    The heartbeats carry what was noted a sweep ago, never what this sweep finds. The judge starts once a minute is
    closed.
    """
    item, found = before.item, look(store, shards, before.item, now_s)
    unreached = _send(found, before.rolled_s, now_s)
    began_s, closed = items.number(item, "began", int(now_s)), before.closed(store.settings)
    values: dict[str, str | float] = {
        "format": keys.FORMAT,
        "known": max(before.known_s, int(found.known_s())),  # what was once passed stays passed
        "rolled": max(before.rolled_s, int(found.counted_s())),
        "known_before": before.known_s,
        "rolled_before": before.rolled_s,
        "noted": now_s,
        "began": began_s,
        "unreached": json.dumps(unreached),
    }
    if before.judged < 0 and closed >= store.settings.minute(began_s) + START:
        values["judged"] = closed  # nothing more comes on these minutes: a half that did would stand alone
    # A sweep that was overtaken by another one notes nothing.
    apply_once(store, [items.update(store.settings.ledger_table, JUDGE, values, was={"noted": item.get("noted")})])
    return found


def _send(found: Look, rolled_s: int, now_s: float) -> dict[str, Unreached]:
    """Write heartbeats that reach every leaf; the leaves that none has reached so far."""
    unreached: dict[str, Unreached] = {}
    for table, leaves in found.leaves.items():
        keys_of = {leaf[0]: found.heartbeats(table, leaf) for leaf in leaves}
        unknown = [leaf for leaf, (own, _) in keys_of.items() if not own]
        for leaf in unknown:
            since = found.unreached.get(leaf, Unreached(now_s))
            waited = now_s - since.since_s >= UNREACHED * found.store.settings.minute_s
            unreached[leaf] = Unreached(since.since_s, now_s, rolled_s) if waited else since
            if waited:
                observe.logger.warning("no heartbeat reaches a shard", extra={"table": table, "shard": leaf})
        fixed = map(str, range(HEARTBEATS_TRIED if unknown else 0))
        chosen = (secrets.token_hex(8) for _ in range(min(HEARTBEATS_TRIED * len(unknown), HEARTBEATS_TRIED_MAX)))
        known = ({own} if own else before for own, before in keys_of.values())
        for name in sorted({*fixed, *chosen}.union(*known)):
            put(Call(found.store), heartbeat(found.store.settings, table, name, rolled_s, now_s))
    return unreached


def heartbeat(settings: Settings, table: str, name: str, rolled_s: int, now_s: float) -> Write:
    """The write of one heartbeat."""
    values = {"at": int(now_s), "rolled": rolled_s, "expiration": int(now_s) + HEARTBEAT_KEPT_S}
    if table == RECEIPTS:
        return items.put(settings.receipts_table, {"id": {"S": f"{keys.RECEIPT_HEARTBEAT_START}{name}"}}, values)
    return items.put(settings.counts_table, keys.key(f"{keys.HEARTBEAT_START}{name}", "HEARTBEAT"), values)


def ages_s(found: Look, before: Watermark, now_s: float) -> dict[str, int]:
    """By consumer, how long ago the time is that it has passed in every shard; since the first sweep if never."""
    began_s = items.number(before.item, "began", int(now_s))
    passed = {ROLLUP: found.counted_s(), BOOKKEEPER: found.known_s()}
    return {consumer: max(0, int(now_s - max(passed_s, began_s))) for consumer, passed_s in passed.items()}
