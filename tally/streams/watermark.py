"""Until when the stream consumers have provably passed everything, and until when numbers are right.

Nothing is inferred from silence. Each sweep reads how far the consumers have come (lineage.py), sends a heartbeat into
every open shard of both streams, and notes what is proven. That is used one sweep later, because the parts of a
transaction become visible one after the other.

The rollup's additions are records, too, which the bookkeeper must pass. So the sweep notes a question: the time up to
which the rollup has added everything, and a moment by which these additions are visible. Once the bookkeeper has passed
that moment in every shard of counts, it has passed the additions, and the next question is noted.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from .. import observe
from ..dynamo import clock, items, keys, queries
from ..dynamo.client import Call, Store
from ..dynamo.keys import Item
from ..dynamo.shards import StreamShards
from ..dynamo.transactions import ConditionFailedError, Write, commit_writes, try_commit
from ..errors import ConfigurationError, TallyError
from ..items import HEARTBEAT_START
from ..settings import Settings
from . import loss
from .lineage import (
    BOOKKEEPER,
    CLOCK_SKEW,
    COUNTS,
    RECEIPTS,
    ROLLUP,
    STREAM_RETENTION_S,
    VISIBILITY_DELAY,
    StreamsSnapshot,
    read_streams,
)
from .lineage import COMMIT_GRACE as COMMIT_GRACE
from .lineage import CONFIRM_AFTER as CONFIRM_AFTER
from .loss import NOTHING_LOST_S, Loss

RANDOM_HEARTBEATS = 8  # random keys a sweep, in a stream with quiet leaves: a shard that all miss is peeked at
HEARTBEAT_KEPT_S = STREAM_RETENTION_S  # as long as a stream keeps its records
CACHE_S = 1.0  # a process reads the JUDGE item for `as_of` at most this often
WATERMARK_KEY = keys.key(keys.JUDGE_KEY, keys.JUDGE_KEY)
_MONOTONIC = ("known", "booked", "rolled", "proven", "again")  # of the JUDGE item: what was once passed stays passed


@dataclass(frozen=True)
class Watermark:
    """What may be concluded now. Times are in epoch seconds; 0: there is no watermark.

    `judged`: the last minute that is; -1: none. `journal_complete_s`: the bookkeeper has passed all that was written
    before, and the rollup's additions up to then. `rollup_passed_s`: the rollup has added all that was written before.
    `reads_complete_s`: as of then rolled-up numbers are complete. `item`: the JUDGE item. `written_s`: when it was
    noted, by DynamoDB's clock.
    """

    judged: int = -1
    journal_complete_s: int = 0
    rollup_passed_s: int = 0
    reads_complete_s: int = 0
    item: Item = field(default_factory=dict)
    written_s: float = 0

    def last_complete_minute(self, settings: Settings) -> int:
        """The last minute whose entries are all on the segments."""
        return (
            settings.minute_of(self.journal_complete_s - CLOCK_SKEW * settings.minute_s) - COMMIT_GRACE - 1
            if self.journal_complete_s
            else -1
        )

    def last_closed_minute(self, settings: Settings) -> int:
        """The last minute that takes no entries any more: it is judged, or before the first one that will be.

        The judge starts with the minute in which the ledger began (`ensure_begun`). In restored tables it starts after
        the moment that they were restored to.
        """
        began_s, restored_s = (items.int_attribute(self.item, name) for name in ("began", "restored"))
        first = settings.minute_of(began_s)
        after = settings.minute_of(restored_s) + COMMIT_GRACE + 1 if restored_s else 0
        return max(self.judged, max(first, after) - 1)

    def last_added(self, minute: int) -> list[str]:
        """The last tally, by counter and id, that a judge has added this minute to; empty: none."""
        noted, *after = json.loads(self.item["after"]["S"]) if "after" in self.item else (-1,)
        return after if noted == minute else []

    @property
    def warm_up_until(self) -> int:
        """The last minute on which changes from before the ledger began may be booked: each consumer books its half on
        the minute in which it comes to it."""
        return items.int_attribute(self.item, "whole", -1)

    @property
    def first_s(self) -> int:
        """The beginning of the first minute that was judged since the ledger began, epoch seconds."""
        return items.int_attribute(self.item, "first")

    @property
    def resume_minute(self) -> int:
        """The first minute that is judged after the streams may have lost records of the ledger's; 0: they have not."""
        return items.int_attribute(self.item, "again")

    @property
    def lost_s(self) -> int:
        """Since when records may be lost, epoch seconds, and nobody has acknowledged it; NOTHING_LOST_S: none is."""
        return items.int_attribute(self.item, "lost", NOTHING_LOST_S)

    @property
    def has_unjudged_redrive(self) -> bool:
        """Whether a dead letter waited lately, or was redriven on a minute that is not judged."""
        return items.int_attribute(self.item, "redriven", -1) > self.judged

    def as_of(self, settings: Settings) -> int | None:
        """Epoch seconds: rolled-up numbers include every change that was accepted before. None without watermark."""
        return int(self.reads_complete_s - CLOCK_SKEW * settings.minute_s) if self.reads_complete_s else None

    def judged_up_to(self, settings: Settings) -> int | None:
        """The end of the last judged minute, epoch seconds; None before judging starts."""
        return None if self.judged < 0 else (self.judged + 1) * settings.minute_s

    def is_too_fresh(self, settings: Settings, now_s: float) -> bool:
        """Whether it was noted so lately that nothing may be concluded of it: another sweep is at work."""
        return abs(now_s - self.written_s) < VISIBILITY_DELAY * settings.minute_s


def read(store: Store) -> Watermark:
    """The watermark. Raises ConfigurationError if a Tally of another format wrote the ledger."""
    item = queries.get(store.client, store.settings.ledger_table, WATERMARK_KEY)
    if (format_ := items.int_attribute(item, "format", keys.FORMAT)) != keys.FORMAT:
        raise ConfigurationError(
            f"The ledger is in format {format_}, and this Tally reads format {keys.FORMAT}: run the one that wrote it."
        )
    known_s, rolled_s, shown_s = (items.int_attribute(item, name) for name in ("known", "rolled", "shown"))
    noted_s = float(item.get("noted", {"N": "0"})["N"])
    return Watermark(items.int_attribute(item, "judged", -1), known_s, rolled_s, shown_s, item, noted_s)


def ensure_begun(call: Call, made_s: float | None) -> Watermark:
    """The watermark, before a record that was made at `made_s` is booked; None: the record has no time. The first one
    begins the ledger.

    Booked before the beginning was known, one half of a change might be on a minute that nobody ever judges. A conflict
    is no sign of a beginning: the write goes again. Raises StoreBusyError when conflicts outlast the retries.
    """
    seen = read(call.store)
    if "began" in seen.item:
        return seen
    now_s = clock.now_s()
    began_s = int(now_s if made_s is None else min(now_s, max(made_s, now_s - HEARTBEAT_KEPT_S)))
    values: items.Values = {"format": keys.FORMAT, "began": began_s}
    with suppress(ConditionFailedError):  # another consumer, or the sweep, was first
        commit_writes(
            call,
            [items.update_write(call.store.settings.ledger_table, WATERMARK_KEY, values, expected={"began": None})],
        )
    return read(call.store)


def last_judged_minute(store: Store) -> int:
    """The last minute that is judged; -1 before judging starts."""
    return read(store).judged


def pending_resume_minute(store: Store, seen: Watermark) -> int:
    """The first minute that is judged after a loss, also one that the next sweep takes up; 0: there was none."""
    return max([seen.resume_minute, *(lost.resume_minute for lost in loss.list_losses(store))])


def note_judged(store: Store, minute: int, before: int, after: Sequence[str] = ()) -> None:
    """Note the last minute that is judged, unless another judge was faster. `after`: the last tally, by counter and id,
    that has the next minute, too."""
    assert minute >= before, "what is judged stays judged"
    values: items.Values = {"judged": minute, "after": json.dumps([minute + 1, *after])}
    try_commit(
        store, [items.update_write(store.settings.ledger_table, WATERMARK_KEY, values, expected={"judged": before})]
    )


def as_of(call: Call) -> int | None:
    """Epoch seconds: rolled-up numbers include every change that was accepted before. None: not known yet."""
    global _cached
    table, now_s = call.store.settings.ledger_table, time.monotonic()
    cached = _cached
    if cached is None or cached[0] != table or now_s - cached[1] >= CACHE_S:
        cached = _cached = (table, now_s, read(call.store).as_of(call.store.settings))
    return cached[2]


_cached: tuple[str, float, int | None] | None = None


def advance(store: Store, shards: StreamShards, before: Watermark, now_s: float) -> StreamsSnapshot:
    """Read how far the consumers have come, send the heartbeats, and note what is proven. `before`: not fresh.

    The judge starts once the minute of the first sweep is closed.
    """
    item, since_s = before.item, store.clock()
    streams = read_streams(store, shards, now_s)
    # what was added is by then
    visible_s = now_s + store.clock() - since_s + VISIBILITY_DELAY * store.settings.minute_s
    send_heartbeats(streams, lambda table, name: heartbeat_write(store.settings, table, name, now_s))
    rolled_s, proven_s = int(streams.all_passed_s(ROLLUP)), items.int_attribute(item, "proven")
    asked_s, asked_rolled_s = items.int_attribute(item, "asked"), items.int_attribute(item, "asked_rolled")
    answered = asked_s <= streams.passed_s(BOOKKEEPER, COUNTS)
    if answered:
        proven_s = max(proven_s, asked_rolled_s)
    if answered or asked_s > int(visible_s) + 1:  # a sweep whose clock was ahead asked of a time to come
        asked_s, asked_rolled_s = int(visible_s) + 1, rolled_s
    waits = bool(queries.query(store, store.settings.ledger_table, keys.DEAD_LETTER_KEY, Limit=1))
    dead_s = oldest_dead_letter_s(store, ROLLUP) if waits else NOTHING_LOST_S
    known = loss.list_losses(store)  # after the dead letters: one that is dropped meanwhile is among either
    redriven = NOTHING_LOST_S if waits else _redriven(store.settings, item, now_s)
    gaps = _gaps(store.settings, known, before, redriven, now_s)
    losses = [*known, *gaps]
    lost_s = min((lost.since_s for lost in losses), default=NOTHING_LOST_S)
    began_s = items.int_attribute(item, "began", int(now_s))
    booked_s = int(streams.all_passed_s(BOOKKEEPER))
    values: dict[str, str | float] = {
        "format": keys.FORMAT,
        "known": max(before.journal_complete_s, min(booked_s, proven_s)),  # what was once passed stays passed
        "booked": max(items.int_attribute(item, "booked"), booked_s),
        "rolled": max(before.rollup_passed_s, rolled_s),
        "shown": min(
            before.rollup_passed_s, dead_s, items.int_attribute(item, "dead", dead_s), lost_s
        ),  # a marker may come unseen
        "dead": dead_s,
        "redriven": redriven,
        "lost": lost_s,
        "again": max([before.resume_minute, *(lost.resume_minute for lost in losses)]),
        "asked": asked_s,
        "asked_rolled": asked_rolled_s,
        "proven": proven_s,
        "noted": now_s,
        "began": began_s,
        "streams": _streams(store.settings),
    }
    assert all(int(values[name]) >= items.int_attribute(item, name) for name in _MONOTONIC)
    assert float(values["shown"]) <= float(values["rolled"])
    if before.judged < 0 and before.last_complete_minute(store.settings) >= store.settings.minute_of(began_s):
        past, minute_s = before.last_closed_minute(store.settings), store.settings.minute_s
        values |= {"judged": past, "first": (past + 1) * minute_s, "whole": store.settings.minute_of(now_s) + 1}
    # A sweep that was overtaken by another one, or by the first record, notes nothing.
    seen = {name: item.get(name) for name in ("noted", "began")}
    noted = items.update_write(store.settings.ledger_table, WATERMARK_KEY, values, expected=seen)
    try_commit(store, [noted, *(gap.as_write(store.settings) for gap in gaps)])
    return streams


def _redriven(settings: Settings, item: Item, now_s: float) -> int:
    """The last minute on which dead letters that the sweeps before have seen may be booked, now that none waits."""
    before = items.int_attribute(item, "redriven", -1)
    return settings.minute_of(now_s) + 1 if before == NOTHING_LOST_S else before


def _gaps(settings: Settings, known: list[Loss], before: Watermark, redriven: int, now_s: float) -> list[Loss]:
    """What may be lost since what the sweep before noted.

    The ledger restarts after the minute on which letters were redriven before anybody knew of the loss: the other half
    of these letters may be lost, or on a skipped minute.
    """
    item, streams = before.item, _streams(settings)
    began_s = items.int_attribute(item, "began", int(now_s))
    # an older sweep noted only what both had passed
    booked_s = items.int_attribute(item, "booked", before.journal_complete_s)
    passed_s = {ROLLUP: max(before.rollup_passed_s, began_s), BOOKKEEPER: max(booked_s, began_s)}
    other = item.get("streams", {"S": streams})["S"] != streams
    gaps = loss.find_gaps(settings, known, passed_s, now_s, other_streams=other)
    noted = {gap.name for gap in known}
    past = redriven + 1 if redriven < NOTHING_LOST_S else 0
    return [
        gap._replace(resume_minute=max(gap.resume_minute, past)) if gap.resume_minute and gap.name not in noted else gap
        for gap in gaps
    ]


def _streams(settings: Settings) -> str:
    return f"{settings.counts_stream} {settings.receipts_stream}"


def oldest_dead_letter_s(store: Store, consumer: str, table: str = "") -> int:
    """When the oldest record was made that a consumer has not applied, because it is a dead letter; or NOTHING_LOST_S.

    `table`: the only one whose records are looked at; empty: all.
    """
    start = keys.dead_letter_prefix(consumer)
    at = store, store.settings.ledger_table, keys.DEAD_LETTER_KEY, start, f"{start}~"
    for item in queries.partition_items(*at) if table else queries.query(*at, Limit=1):
        if not table or item["table"]["S"] == table:
            return int(item["SK"]["S"].removeprefix(start).partition("#")[0])
    return NOTHING_LOST_S


def send_heartbeats(streams: StreamsSnapshot, beat: Callable[[str, str], Write], consumer: str = BOOKKEEPER) -> None:
    """Write a heartbeat for each leaf, each by itself: one that fails says nothing of the others. `beat`: its write, by
    table and name. `consumer`: the one that gets each of them."""
    for table, leaves in streams.leaves.items():
        tried, guesses = set(), 0
        for leaf in leaves:
            own, before = streams.heartbeat_keys(table, leaf, consumer)
            if own and _try_send(streams.store, beat, table, own):
                streams.heartbeat_reached.add((table, leaf))
                continue
            if before and not own:
                tried.add(before)
            if own or streams.is_quiet(table, leaf, consumer):
                guesses = RANDOM_HEARTBEATS
        for name in sorted(tried.union(secrets.token_hex(8) for _ in range(guesses))):
            _try_send(streams.store, beat, table, name)


def _try_send(store: Store, beat: Callable[[str, str], Write], table: str, name: str) -> bool:
    try:
        return try_commit(store, [beat(table, name)])
    except TallyError as error:
        observe.logger.warning("a heartbeat failed", exc_info=error, extra={"table": table, "key": name})
        return False


def heartbeat_write(settings: Settings, table: str, name: str, now_s: float) -> Write:
    """The write of one heartbeat."""
    values = {"at": int(now_s), "expiration": int(now_s) + HEARTBEAT_KEPT_S}
    if table == RECEIPTS:
        return items.put_write(settings.receipts_table, {"id": {"S": f"{keys.RECEIPT_HEARTBEAT_START}{name}"}}, values)
    return items.put_write(settings.counts_table, keys.key(f"{HEARTBEAT_START}{name}", "HEARTBEAT"), values)


def lags_s(streams: StreamsSnapshot, before: Watermark, now_s: float) -> dict[str, int]:
    """By consumer, how long ago the time is that it has passed in every shard; since the first sweep if never."""
    began_s = items.int_attribute(before.item, "began", int(now_s))
    passed = {consumer: streams.all_passed_s(consumer) for consumer in (ROLLUP, BOOKKEEPER)}
    return {consumer: max(0, int(now_s - max(passed_s, began_s))) for consumer, passed_s in passed.items()}
