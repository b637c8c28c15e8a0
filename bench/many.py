"""The cost of 100 plays of 10 videos: each by itself, and all under one key.

"All in" also has the rollup, both segments of the journal, the checkpoints and the judge, for a stream batch that holds
one such set of plays, 10 or 100 of them, all of the same 10 videos.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import counters
from tally.counting import batch, increments
from tally.counting.increments import Increment
from tally.dynamo.client import Call
from tally.streams import rollup

from .clients import Clients, clients_of, fresh_engine
from .consumers import Rows, deliver_streams, metered, one_minute, track
from .instruments import Meter

PLAYS, VIDEOS = 100, 10
SETS = (1, 10, 100)
"""How many such sets of plays are in one batch of the stream."""
NOW, SOON = "under one key, now", "under one key, soon"
Send = Callable[[Clients, str], None]
"""Sends the plays once, under keys that begin so."""


def _one_by_one(clients: Clients, key: str) -> None:
    for number in range(PLAYS):
        id_ = f"video-{number % VIDEOS}"
        play = Increment(counters.PLAYS, id_, 1, "play", f"{key}-{number}", {"video_id": id_})
        increments.count(Call(clients.store), play)


def _together(*, soon: bool) -> Send:
    def send(clients: Clients, key: str) -> None:
        sent = [{"counter": "plays", "id": f"video-{number % VIDEOS}"} for number in range(PLAYS)]
        wanted = batch.parse_batch(sent, counters.COUNTERS, time.time(), soon=soon)
        batch.count(Call(clients.store), wanted, operation="change", key=key, soon=soon)

    return send


WAYS: dict[str, Send] = {
    "one by one": _one_by_one,
    NOW: _together(soon=False),
    SOON: _together(soon=True),
}


def measure(quick: bool) -> Rows:
    """Returns requests, write units and client time of each way. The time is the median of several runs in turn."""
    taken_s: dict[str, list[float]] = {way: [] for way in WAYS}
    rows: Rows = {}
    with fresh_engine() as endpoint:
        clients = clients_of(endpoint)
        for number in range(1 if quick else 20):
            for way, send in WAYS.items():
                started_s = time.perf_counter()
                send(clients, f"{way}-{number}")
                taken_s[way].append((time.perf_counter() - started_s) / PLAYS)
        meter = Meter(clients.store.client)
        for way, send in WAYS.items():
            meter.reset()
            send(clients, f"{way}-metered")
            rows[way] = {
                "requests": meter.requests,
                "WCU": meter.write_units,
                "WCU a play": meter.write_units / PLAYS,
                "µs a play": statistics.median(taken_s[way]) * 1e6,
            }
    for way in (NOW, SOON):
        rows[way] |= {f"all in, {sets} sets": _all_in(WAYS[way], sets) for sets in SETS}
    return rows


def _all_in(send: Send, sets: int) -> float:
    """Returns the write units of a play, with consumers and judge, if a batch of the stream has so many sets."""
    with one_minute() as (clients, clock):

        def count_all() -> None:
            for number in range(sets):
                send(clients, f"set-{number}")
            deliver_streams(clients, rollup.CONSUMER, made_s=clock.now_s)
            track(clients, clock)

        units = metered(clients, clock, count_all)
        counted = sum(clients.counted(f"video-{number}") for number in range(VIDEOS))
        assert counted == sets * PLAYS, f"{counted} counted of {sets * PLAYS}"
    return units / (sets * PLAYS)
