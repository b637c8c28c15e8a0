"""Prepares the tables for the command: a judged ledger, posts, edits by hand, drift rows, series."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import counters
from tally.counter import Counter
from tally.counting import children, posts, tallies
from tally.drift import rows
from tally.dynamo import items
from tally.dynamo.client import Call, Store
from tally.dynamo.transactions import put_alone, try_commit
from tally.series import hours, progress
from tally.streams import segments, watermark
from tally.streams.fingerprints import FingerprintCache
from tally.streams.record import CounterIndex

SINCE = "2027-01-15 08:00:00 UTC"  # when the drift of each drift row began, 1_800_000_000 s since 1970
SIGNED = ("--by", "ann", "--why", "edited by hand")  # a repair stores its author and its reason
Run = Callable[..., tuple[int, str, str]]


def mark_judged(store: Store, minutes_ahead: int = 5) -> int:
    """Store the watermark as if a sweep had written it a minute ago, with every change judged and rolled up.

    Returns the last judged minute. `minutes_ahead`: how far this minute is ahead of the clock; below 0: behind the
    clock. A repair waits until the minute of its request is judged, so by default no repair waits.
    """
    now_s = int(time.time())
    judged_minute = store.settings.minute_of(now_s) + minutes_ahead
    passed_s = now_s // 60 * 60 + 5  # reads show 5 s less as `as_of`: the start of this minute
    names = ("journal_complete_s", "rollup_passed_s", "reads_complete_s")
    began_s = 1  # before every change
    values = {"judged": judged_minute, "written_s": now_s - 60, "began_s": began_s} | dict.fromkeys(names, passed_s)
    store.client.put_item(TableName=store.settings.ledger_table, Item=watermark.WATERMARK_KEY | items.to_wire(values))
    return judged_minute


def post(store: Store, post_id: str = "a91f", likers: int = 2, off_by: int = 0) -> None:
    """Write a post with `likers` likes. `off_by`: the amount by which to edit the post's tally by hand."""
    posts.write_post(Call(store, "author"), counters.LIKES, post_id, "hello")
    for number in range(likers):
        children.set_child(Call(store), counters.LIKES, post_id, f"u{number}", True)
    if off_by:
        edit(store, tallies.key(counters.LIKES, post_id, 0), "likeTally", off_by)


def edit(store: Store, key: Any, attribute: str, amount: int) -> None:
    """Add an amount to an attribute of an item in the table of counts, as a person does by hand."""
    store.client.update_item(
        TableName=store.settings.counts_table, Key=key, UpdateExpression="ADD #number :amount",
        ExpressionAttributeNames={"#number": attribute}, ExpressionAttributeValues={":amount": {"N": str(amount)}},
    )  # fmt: skip


def note_fingerprint(store: Store, counter: Counter) -> None:
    """Store the schema fingerprint of the counter, as its first change does."""
    FingerprintCache(store).note(CounterIndex({counter.name: counter}), [counter.name])


def put_drift_row(store: Store, counter: str, target: str, amount: int, minutes_ago: int = 9) -> None:
    """Store a drift row whose last change is `minutes_ago` minutes before the last judged minute. If `minutes_ago` is 5
    or more, the drift is confirmed."""
    last_change = watermark.read(store).judged - minutes_ago
    values = {"drift": amount, "upto": last_change, "since": 1_800_000_000, "changes": f"[[{last_change}, {amount}]]"}
    item = rows.row_key(counter, target) | items.to_wire({**values, "counter": counter, "target": target})
    store.client.put_item(TableName=store.settings.ledger_table, Item=item)


def put_series(store: Store, since: int, through: int, plays: Iterable[tuple[int, str, int, *tuple[int, ...]]]) -> None:
    """Store plays in the series, which cover the minutes `since` to `through`. A play: its minute, id and amount, and,
    if it was imported, its day."""
    nothing_summed_up = since - 1
    state = progress.Progress(since=since, through=nothing_summed_up, hour=progress.hour_of(store.settings, since))
    ledger = store.settings.ledger_table
    write = items.update_write(ledger, progress.PROGRESS, state.values, expected=items.EXPECT_NO_ITEM)
    try_commit(store, [write])
    for number, (minute, id_, amount, *day) in enumerate(plays):
        entry = segments.JournalEntry("plays", id_, pair="", expected=amount, observed=amount)
        entries = [entry._replace(day=day[0]) if day else entry]
        segment = segments.segment_write(
            store.settings, minute, bucket=0, name=f"s#{number}", entries=entries, now_s=int(time.time())
        )
        put_alone(Call(store), segment)
    hours.sum_up(store, through, until_s=float("inf"))
