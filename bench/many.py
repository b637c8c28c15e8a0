"""What 100 plays of 10 videos cost in each way that Tally has: one by one, as a batch, and under one key.

"All in" also has the rollup, both pages of the journal, the checkpoints and the judge, for a stream batch that holds
one such set of plays, 10 or 100 of them, all of the same 10 videos.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import counters
from tally.counting import batches, changes
from tally.counting.increments import Increment
from tally.dynamo.client import Call
from tally.streams import rollup

from .clients import Clients, clients_of, fresh_engine
from .journal import engine, hand_over, metered, track
from .watch import Meter

PLAYS, VIDEOS = 100, 10
SETS = (1, 10, 100)
"""How many such sets of plays are in one batch of the stream."""
NOW_MAX, SOON_MAX = 24, 3
ALL_IN_MAX, ALL_IN_SETS = 0.05, 10

Send = Callable[[Clients, str], None]
"""Sends the plays once, under keys that begin so."""


@dataclass(frozen=True)
class Many:
    """One way to send 100 plays of 10 videos."""

    way: str
    round_trips: int
    write_units: float
    median_us: float
    """Of client time, for one play."""
    all_in: dict[int, float] = field(default_factory=dict)
    """Write units of a play with everything, by SETS."""


def _one_by_one(clients: Clients, key: str) -> None:
    for play in _increments(key):
        _counted(batches.count([batches.Entry(Call(clients.store), play)]))


def _batch(clients: Clients, key: str) -> None:
    _counted(batches.count([batches.Entry(Call(clients.store), play) for play in _increments(key)]))


def _counted(results: list[batches.Result]) -> None:
    for result in results:
        if isinstance(result, Exception):
            raise result


def _increments(key: str) -> list[Increment]:
    ids = [f"video-{number % VIDEOS}" for number in range(PLAYS)]
    return [Increment(counters.PLAYS, id_, 1, "play", f"{key}-{n}", {"video_id": id_}) for n, id_ in enumerate(ids)]


def _together(*, soon: bool) -> Send:
    def send(clients: Clients, key: str) -> None:
        sent = [{"counter": "plays", "id": f"video-{number % VIDEOS}"} for number in range(PLAYS)]
        wanted = changes.read(sent, counters.COUNTERS, time.time(), soon=soon)
        changes.count(Call(clients.store), wanted, operation="change", key=key, soon=soon)

    return send


NOW, SOON = "under one key, now", "under one key, soon"
WAYS: dict[str, Send] = {
    "one by one": _one_by_one,
    "as one batch": _batch,
    NOW: _together(soon=False),
    SOON: _together(soon=True),
}


def measure_many(rounds: int) -> list[Many]:
    """Measure each way; the client's time is the median of `rounds`, in turn."""
    taken_s: dict[str, list[float]] = {way: [] for way in WAYS}
    found = []
    with fresh_engine() as endpoint:
        clients = clients_of(endpoint)
        for number in range(rounds):
            for way, send in WAYS.items():
                started_s = time.perf_counter()
                send(clients, f"{way}-{number}")
                taken_s[way].append((time.perf_counter() - started_s) / PLAYS)
        meter = Meter(clients.store.client)
        for way, send in WAYS.items():
            meter.reset()
            send(clients, f"{way}-metered")
            median_us = statistics.median(taken_s[way]) * 1e6
            all_in = {sets: all_in_units(send, sets) for sets in SETS if way in (NOW, SOON)}
            found.append(Many(way, meter.requests, meter.write_units, median_us, all_in))
    return found


def all_in_units(send: Send, sets: int) -> float:
    """Write units of a play, with the consumers and the judge, if a batch of the stream has so many sets."""
    with engine() as (endpoint, clients, clock):

        def count_all() -> None:
            for number in range(sets):
                send(clients, f"set-{number}")
            hand_over(endpoint, clients, clock, rollup.CONSUMER)
            track(endpoint, clients, clock)

        units = metered(clients, clock, count_all)
        counted = sum(clients.counted(f"video-{number}") for number in range(VIDEOS))
        assert counted == sets * PLAYS, f"{counted} counted of {sets * PLAYS}"
    return units / (sets * PLAYS)
