"""The cost of a like by the length of the post's text, of a read by shards, and of a play in a batch."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import counters
from tally.counting import batches, children, posts, tallies
from tally.counting.increments import Increment
from tally.dynamo.client import Call

from .clients import Clients, clients_of, fresh_engine
from .watch import Meter

TEXT_BYTES = (1, 10_240)
BATCH_PLAYS = 90
SHARDS = (1, 16)


@dataclass(frozen=True)
class Like:
    """One like of a post whose text has this length."""

    text_bytes: int
    round_trips: int
    write_units: float


@dataclass(frozen=True)
class Read:
    """A read of one tally that has this many shards."""

    shards: int
    round_trips: int
    read_units: float
    median_us: float


@dataclass(frozen=True)
class Batch:
    """The cost of each play of one video, sent in batches of `plays`, or one by one if that is 1."""

    plays: int
    write_units: float
    round_trips: float
    median_us: float


def measure_likes() -> list[Like]:
    """Like one post with a short and one with a long text."""
    found = []
    with fresh_engine() as endpoint:
        clients = clients_of(endpoint)
        meter = Meter(clients.store.client)
        for text_bytes in TEXT_BYTES:
            post_id = f"text-{text_bytes}"
            posts.write_post(Call(clients.store, "author"), counters.LIKES, post_id, "x" * text_bytes)
            meter.reset()
            children.set_child(Call(clients.store), counters.LIKES, post_id, "reader", True)
            found.append(Like(text_bytes, meter.requests, meter.write_units))
    return found


def measure_reads(reads: int) -> list[Read]:
    """Read a tally with one shard and one with many, in turn."""
    taken_s: dict[int, list[float]] = {shards: [] for shards in SHARDS}
    with fresh_engine() as endpoint:
        clients = clients_of(endpoint)
        for shards in SHARDS:
            _fill(clients, shards)
        for _ in range(reads):
            for shards in SHARDS:
                started_s = time.perf_counter()
                number = clients.counted(f"shards-{shards}")
                taken_s[shards].append(time.perf_counter() - started_s)
                assert number == shards, f"{number} read from {shards} shards"
        meter = Meter(clients.store.client)
        found = []
        for shards in SHARDS:
            meter.reset()
            clients.counted(f"shards-{shards}")
            median_us = statistics.median(taken_s[shards]) * 1e6
            found.append(Read(shards, meter.requests, meter.read_units, median_us))
    return found


def measure_batches(rounds: int) -> list[Batch]:
    """Send the same number of plays as one batch and one by one, in turn."""
    sizes = (BATCH_PLAYS, 1)
    taken_s: dict[int, list[float]] = {size: [] for size in sizes}
    with fresh_engine() as endpoint:
        clients = clients_of(endpoint)
        for number in range(rounds):
            for size in sizes:
                started_s = time.perf_counter()
                _play(clients, size, f"timed-{number}")
                taken_s[size].append((time.perf_counter() - started_s) / BATCH_PLAYS)
        meter = Meter(clients.store.client)
        found = []
        for size in sizes:
            meter.reset()
            _play(clients, size, "metered")
            units, trips = meter.write_units / BATCH_PLAYS, meter.requests / BATCH_PLAYS
            found.append(Batch(size, units, trips, statistics.median(taken_s[size]) * 1e6))
            assert clients.counted(f"batch-{size}") == (rounds + 1) * BATCH_PLAYS
    return found


def _play(clients: Clients, size: int, run: str) -> None:
    """Send BATCH_PLAYS plays of one video, `size` at a time."""
    video_id = f"batch-{size}"
    plays = [
        Increment(counters.PLAYS, video_id, 1, "play", f"{run}-{number}", {"video_id": video_id, "counted": True})
        for number in range(BATCH_PLAYS)
    ]
    for first in range(0, BATCH_PLAYS, size):
        results = batches.count([batches.Entry(Call(clients.store), play) for play in plays[first : first + size]])
        failed = [result for result in results if isinstance(result, Exception)]
        if failed:
            raise failed[0]


def _fill(clients: Clients, shards: int) -> None:
    """Count one play on each shard."""
    call = Call(clients.store)
    for shard in range(shards):
        clients.store.client.update_item(**tallies.add(call, counters.PLAYS, f"shards-{shards}", shard, 1, 0))
