"""The watermark: the time up to which each stream consumer has provably passed every record.

Reads show the watermark as `as_of`, and the judge judges no minute after it. A consumer that reports nothing proves
nothing. Each sweep reads how far the consumers have come (lineage.py), sends a heartbeat into every open shard of both
streams, and stores what is proven. A transaction's checkpoint may be visible some seconds before its other writes. So
the judge uses the watermark that the previous sweep stored. A sweep stores for readers what the previous sweep proved.

The rollup's own writes make stream records, which the bookkeeper must pass, too. So a sweep stores a probe, which has
two times: how far the rollup has come, and when the rollup's writes are visible. When the bookkeeper has passed the
second time in every shard of `counts`, it has booked the rollup's writes. The sweep then stores the next probe.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from ..dynamo import clock, items, keys, queries
from ..dynamo.client import Call, Store
from ..dynamo.keys import Item
from ..dynamo.shards import StreamShards
from ..dynamo.transactions import ConditionFailedError, commit_writes, try_commit
from ..errors import ConfigurationError
from ..settings import Settings
from . import loss
from .heartbeats import heartbeat_write, send_heartbeats
from .lineage import (
    BOOKKEEPER,
    CLOCK_SKEW,
    COUNTS,
    ROLLUP,
    STREAM_RETENTION_S,
    VISIBILITY_DELAY,
    StreamsSnapshot,
    read_streams,
)
from .lineage import COMMIT_GRACE as COMMIT_GRACE
from .lineage import CONFIRM_AFTER as CONFIRM_AFTER
from .loss import LETTER_WAITS_MINUTE, NOTHING_LOST_S, Loss

CACHE_S = 1.0  # for `as_of`, a process reads the watermark at most once in this time
WATERMARK_KEY = keys.key(keys.JUDGE_KEY, keys.JUDGE_KEY)
# The attributes of the watermark that no sweep may lower.
_MONOTONIC = ("journal_complete_s", "bookkeeper_passed_s", "rollup_passed_s", "rollup_booked_s", "resume_minute")


@dataclass(frozen=True)
class Watermark:
    """The watermark as the ledger has it. Times are in epoch seconds; 0: there is no watermark.

    `judged`: the last judged minute (-1: no minute is judged). `journal_complete_s`: the bookkeeper has passed every
    record from before this time, and what the rollup wrote for these records. `rollup_passed_s`: the rollup has passed
    every record from before this time. `reads_complete_s`: readers see every change from before this time. `item`: the
    stored item. `written_s`: when a sweep wrote the item, by DynamoDB's clock.
    """

    judged: int = -1
    journal_complete_s: int = 0
    rollup_passed_s: int = 0
    reads_complete_s: int = 0
    item: Item = field(default_factory=dict)
    written_s: float = 0

    def last_complete_minute(self, settings: Settings) -> int:
        """Returns the last closed minute, whose entries are all in segments; -1: there is no watermark."""
        complete_s = self.journal_complete_s - CLOCK_SKEW * settings.minute_s
        return settings.minute_of(complete_s) - COMMIT_GRACE - 1 if self.journal_complete_s else -1

    def last_unbookable_minute(self, settings: Settings) -> int:
        """Returns the last minute that takes no entries: it is judged, or is before the first minute to judge.

        The judge starts with the minute in which the ledger began (`ensure_begun`). In restored tables the judge skips
        the minutes that may have entries of the old streams, because the other halves may be missing.
        """
        began_s, restored_s = (items.int_attribute(self.item, name) for name in ("began_s", "restored_s"))
        first = settings.minute_of(began_s)
        first_restored = settings.minute_of(restored_s) + COMMIT_GRACE + 1 if restored_s else 0
        return max(self.judged, max(first, first_restored) - 1)

    def last_added(self, minute: int) -> list[str]:
        """If a judge stopped within this minute, returns counter and id of the last judged tally; otherwise []."""
        stopped_in, *tally = json.loads(self.item["after"]["S"]) if "after" in self.item else (-1,)
        return tally if stopped_in == minute else []

    @property
    def warm_up_until(self) -> int:
        """Until this minute is judged, drift that began in this ledger is not confirmed, because the two halves of a
        change from before the ledger began may be booked on different minutes."""
        return items.int_attribute(self.item, "warm_up_until", -1)

    @property
    def first_judged_s(self) -> int:
        """The beginning of the first judged minute of the ledger, epoch seconds."""
        return items.int_attribute(self.item, "first_judged_s")

    @property
    def resume_minute(self) -> int:
        """The first minute that is judged after records that the bookkeeper lost; 0: it has lost no records."""
        return items.int_attribute(self.item, "resume_minute")

    @property
    def oldest_loss_s(self) -> int:
        """When the oldest loss that nobody has acknowledged begins, epoch seconds; NOTHING_LOST_S: there is no loss."""
        return items.int_attribute(self.item, "oldest_loss_s", NOTHING_LOST_S)

    @property
    def has_unjudged_redrive(self) -> bool:
        """Whether a dead letter waited at the last sweep, or may have been redriven on a minute that is not judged."""
        return items.int_attribute(self.item, "redriven_until", -1) > self.judged

    def as_of(self, settings: Settings) -> int | None:
        """Returns the time up to which rolled-up numbers include every accepted change; None: there is no watermark."""
        return int(self.reads_complete_s - CLOCK_SKEW * settings.minute_s) if self.reads_complete_s else None

    def judged_up_to(self, settings: Settings) -> int | None:
        """Returns the end of the last judged minute, epoch seconds; None: no minute is judged."""
        return None if self.judged < 0 else (self.judged + 1) * settings.minute_s

    def is_too_fresh(self, settings: Settings, now_s: float) -> bool:
        """Returns whether a sweep has just written this watermark, so writes that it proves may not be visible."""
        return abs(now_s - self.written_s) < VISIBILITY_DELAY * settings.minute_s


def read(store: Store) -> Watermark:
    """Returns the watermark. Raises ConfigurationError if the ledger is in another format than this Tally reads."""
    item = queries.get(store.client, store.settings.ledger_table, WATERMARK_KEY)
    if (format_ := items.int_attribute(item, "format", keys.FORMAT)) != keys.FORMAT:
        formats = f"The ledger is in format {format_}, and this Tally reads format {keys.FORMAT}."
        raise ConfigurationError(f"{formats} Run the version of Tally that wrote the ledger.")
    times = ("journal_complete_s", "rollup_passed_s", "reads_complete_s")
    return Watermark(
        judged=items.int_attribute(item, "judged", -1),
        **{name: items.int_attribute(item, name) for name in times},
        item=item,
        written_s=float(item.get("written_s", {"N": "0"})["N"]),
    )


def ensure_begun(call: Call, made_s: float | None) -> Watermark:
    """Returns the watermark. If the ledger has not begun, begins it at `made_s`, the time of a record (None: now).

    The bookkeeper calls this before it books the record. Otherwise the record might be booked on a minute before the
    ledger began, and the judge judges no such minute. Raises StoreBusyError if conflicts outlast the retries.
    """
    watermark_ = read(call.store)
    if "began_s" in watermark_.item:
        return watermark_
    now_s = clock.now_s()
    began_s = int(now_s if made_s is None else min(now_s, max(made_s, now_s - STREAM_RETENTION_S)))
    values: items.Values = {"format": keys.FORMAT, "began_s": began_s}
    began = items.update_write(call.store.settings.ledger_table, WATERMARK_KEY, values, expected={"began_s": None})
    with suppress(ConditionFailedError):  # another consumer, or the sweep, has begun the ledger
        commit_writes(call, [began])
    return read(call.store)


def pending_resume_minute(store: Store, watermark_: Watermark) -> int:
    """Returns `resume_minute` as the next sweep will store it: also after losses that no sweep has read."""
    return max([watermark_.resume_minute, *(lost.resume_minute for lost in loss.list_losses(store))])


def note_judged(store: Store, minute: int, judged_before: int, last_added: Sequence[str] = ()) -> None:
    """Notes `minute` as the last judged minute, if the watermark still has `judged_before`.

    `last_added`: if the judge stopped within the minute after `minute`, the last tally whose drift row has that minute.
    """
    assert minute >= judged_before, "the last judged minute only increases"
    values: items.Values = {"judged": minute, "after": json.dumps([minute + 1, *last_added])}
    judged = items.update_write(store.settings.ledger_table, WATERMARK_KEY, values, expected={"judged": judged_before})
    try_commit(store, [judged])


def as_of(call: Call) -> int | None:
    """Returns `Watermark.as_of` in epoch seconds, at most CACHE_S old; None: there is no watermark."""
    global _cached
    table, now_s = call.store.settings.ledger_table, time.monotonic()
    cached = _cached
    if cached is None or cached[0] != table or now_s - cached[1] >= CACHE_S:
        cached = _cached = (table, now_s, read(call.store).as_of(call.store.settings))
    return cached[2]


_cached: tuple[str, float, int | None] | None = None


def advance(store: Store, shards: StreamShards, before: Watermark, now_s: float) -> StreamsSnapshot:
    """Reads how far the consumers have come, sends the heartbeats, and stores what is proven. `before`: the watermark
    that an earlier sweep wrote, and that is not too fresh."""
    item, started_s = before.item, store.clock()
    streams = read_streams(store, shards, now_s)
    # At `visible_s`, readers see all that the rollup had written when this sweep read the checkpoints.
    visible_s = now_s + store.clock() - started_s + VISIBILITY_DELAY * store.settings.minute_s
    send_heartbeats(streams, lambda table, name: heartbeat_write(store.settings, table, name, now_s))
    began_s = items.int_attribute(item, "began_s", int(now_s))
    loss_values, gaps = _values_of_losses(store, before, now_s)
    values: dict[str, str | float] = {
        "format": keys.FORMAT,
        **_values_of_progress(streams, before, visible_s),
        **loss_values,
        "written_s": now_s,
        "began_s": began_s,
        "streams": _stream_arns(store.settings),
    }
    assert all(int(values[name]) >= items.int_attribute(item, name) for name in _MONOTONIC)
    assert float(values["reads_complete_s"]) <= float(values["rollup_passed_s"])
    if before.judged < 0 and before.last_complete_minute(store.settings) >= store.settings.minute_of(began_s):
        judged = before.last_unbookable_minute(store.settings)  # the judge starts with the next minute
        values |= {"judged": judged, "first_judged_s": (judged + 1) * store.settings.minute_s}
        values["warm_up_until"] = store.settings.minute_of(now_s) + 1  # on later minutes, no older change is booked
    # If another sweep wrote the item after `before`, or a consumer began the ledger, this sweep stores nothing.
    expected = {name: item.get(name) for name in ("written_s", "began_s")}
    noted = items.update_write(store.settings.ledger_table, WATERMARK_KEY, values, expected=expected)
    try_commit(store, [noted, *(gap.as_write(store.settings) for gap in gaps)])
    return streams


def _values_of_progress(streams: StreamsSnapshot, before: Watermark, visible_s: float) -> dict[str, float]:
    """Returns the times that the consumers have passed, and the probe; after the bookkeeper has passed it, a new probe.

    `rollup_booked_s`: the bookkeeper has booked what the rollup wrote for records from before this time. `visible_s`:
    when readers see what the rollup has written.
    """
    item, rollup_s, bookkeeper_s = before.item, *(int(streams.all_passed_s(name)) for name in (ROLLUP, BOOKKEEPER))
    names = ("probe_visible_s", "probe_rollup_s", "rollup_booked_s")
    probe_visible_s, probe_rollup_s, rollup_booked_s = (items.int_attribute(item, name) for name in names)
    has_passed_probe = probe_visible_s <= streams.passed_s(BOOKKEEPER, COUNTS)
    if has_passed_probe:
        rollup_booked_s = max(rollup_booked_s, probe_rollup_s)
    # A probe that is later than a new probe is replaced, too, because the clock of the sweep that stored it was ahead.
    if has_passed_probe or probe_visible_s > int(visible_s) + 1:
        probe_visible_s, probe_rollup_s = int(visible_s) + 1, rollup_s
    return {
        "journal_complete_s": max(before.journal_complete_s, min(bookkeeper_s, rollup_booked_s)),
        "bookkeeper_passed_s": max(items.int_attribute(item, "bookkeeper_passed_s"), bookkeeper_s),
        "rollup_passed_s": max(before.rollup_passed_s, rollup_s),
        **dict(zip(names, (probe_visible_s, probe_rollup_s, rollup_booked_s), strict=True)),
    }


def _values_of_losses(store: Store, before: Watermark, now_s: float) -> tuple[dict[str, float], list[Loss]]:
    """Returns the watermark's attributes about dead letters and losses, and the gaps to store (`loss.find_gaps`)."""
    item = before.item
    has_letter = bool(queries.query(store, store.settings.ledger_table, keys.DEAD_LETTER_KEY, Limit=1))
    oldest_letter_s = oldest_dead_letter_s(store, ROLLUP) if has_letter else NOTHING_LOST_S
    known = loss.list_losses(store)  # read last, because a dead letter that is discarded during the call becomes a loss
    redriven_until = LETTER_WAITS_MINUTE if has_letter else items.int_attribute(item, "redriven_until", -1)
    if redriven_until == LETTER_WAITS_MINUTE and not has_letter:  # a person redrove or discarded the letter
        redriven_until = store.settings.minute_of(now_s) + 1  # the last minute on which the redrive may have booked
    began_s, streams = items.int_attribute(item, "began_s", int(now_s)), _stream_arns(store.settings)
    bookkeeper_s = items.int_attribute(item, "bookkeeper_passed_s")
    passed_s = {ROLLUP: max(before.rollup_passed_s, began_s), BOOKKEEPER: max(bookkeeper_s, began_s)}
    has_new_streams = item.get("streams", {"S": streams})["S"] != streams
    gaps = loss.find_gaps(
        store.settings, known, passed_s, now_s, has_new_streams=has_new_streams, redriven_until=redriven_until
    )
    losses = [*known, *gaps]
    lost_s = min((lost.since_s for lost in losses), default=NOTHING_LOST_S)
    # The dead letter that the previous sweep found counts, too, because the writes of its redrive may not be visible.
    letter_s = min(oldest_letter_s, items.int_attribute(item, "oldest_dead_letter_s", oldest_letter_s))
    return {
        "reads_complete_s": min(before.rollup_passed_s, letter_s, lost_s),
        "oldest_dead_letter_s": oldest_letter_s,
        "redriven_until": redriven_until,
        "oldest_loss_s": lost_s,
        "resume_minute": max([before.resume_minute, *(lost.resume_minute for lost in losses)]),
    }, gaps


def _stream_arns(settings: Settings) -> str:
    return f"{settings.counts_stream} {settings.receipts_stream}"


def oldest_dead_letter_s(store: Store, consumer: str, table: str = "") -> int:
    """Returns when the record of a consumer's oldest dead letter was made; NOTHING_LOST_S: there is no dead letter.
    `table`: only dead letters of this table; empty: of all tables."""
    start = keys.dead_letter_prefix(consumer)
    of_consumer = store, store.settings.ledger_table, keys.DEAD_LETTER_KEY, start, f"{start}~"
    for item in queries.partition_items(*of_consumer) if table else queries.query(*of_consumer, Limit=1):
        if not table or item["table"]["S"] == table:
            return int(item["SK"]["S"].removeprefix(start).partition("#")[0])
    return NOTHING_LOST_S


def lags_s(streams: StreamsSnapshot, before: Watermark, now_s: float) -> dict[str, int]:
    """Returns the lag of each consumer in seconds: at most the age of the ledger."""
    began_s = items.int_attribute(before.item, "began_s", int(now_s))
    passed = {consumer: streams.all_passed_s(consumer) for consumer in (ROLLUP, BOOKKEEPER)}
    return {consumer: max(0, int(now_s - max(passed_s, began_s))) for consumer, passed_s in passed.items()}
