"""Measures the cost of 100 plays of 10 videos, as 100 requests, and as one batch under one idempotency key.

A column "whole WCU a play, 10 sets" has the whole cost of a play: the request, the rollup, both segments of the
journal, the checkpoints and the judge. One batch of the stream then holds 10 sets of 100 plays, all of the same 10
videos.
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
from .consumers import deliver_streams, one_minute, track, write_units_of
from .instruments import Meter, Rows

PLAYS, VIDEOS = 100, 10
SETS_PER_STREAM_BATCH = (1, 10, 100)
"""How many sets of 100 plays one batch of the stream holds, for the whole cost."""
BATCH_NOW, BATCH_SOON = "under one key, now", "under one key, soon"
"""Row names. `now` and `soon`: when the plays are visible (`Counter.visible`)."""
Send = Callable[[Clients, str], None]
"""Sends one set of 100 plays. Each idempotency key begins with the text."""


def _as_requests(clients: Clients, key: str) -> None:
    for number in range(PLAYS):
        id_ = f"video-{number % VIDEOS}"
        play = Increment(counters.PLAYS, id_, 1, "play", f"{key}-{number}", {"video_id": id_})
        increments.count(Call(clients.store), play)


def _as_batch(*, soon: bool) -> Send:
    def send(clients: Clients, key: str) -> None:
        body = [{"counter": "plays", "id": f"video-{number % VIDEOS}"} for number in range(PLAYS)]
        changes = batch.parse_batch(body, counters.COUNTERS, time.time(), soon=soon)
        batch.count(Call(clients.store), changes, operation="change", key=key, soon=soon)

    return send


SENDERS: dict[str, Send] = {
    "100 requests": _as_requests,
    BATCH_NOW: _as_batch(soon=False),
    BATCH_SOON: _as_batch(soon=True),
}


def measure(quick: bool) -> Rows:
    """Returns the requests, the write units and the client's time of each way to send. The ways take turns, and a time
    is the median of a way's runs."""
    taken_s: dict[str, list[float]] = {way: [] for way in SENDERS}
    rows: Rows = {}
    with fresh_engine() as endpoint:
        clients = clients_of(endpoint)
        for number in range(1 if quick else 20):
            for way, send in SENDERS.items():
                started_s = time.perf_counter()
                send(clients, f"{way}-{number}")
                taken_s[way].append((time.perf_counter() - started_s) / PLAYS)
        meter = Meter(clients.store.client)
        for way, send in SENDERS.items():
            meter.reset()
            send(clients, f"{way}-metered")
            rows[way] = {
                "requests": meter.requests,
                "WCU": meter.write_units,
                "WCU a play": meter.write_units / PLAYS,
                "µs a play": statistics.median(taken_s[way]) * 1e6,
            }
    for way in (BATCH_NOW, BATCH_SOON):
        rows[way] |= {
            f"whole WCU a play, {sets} sets": _whole_cost(SENDERS[way], sets) for sets in SETS_PER_STREAM_BATCH
        }
    return rows


def _whole_cost(send: Send, sets: int) -> float:
    """Returns the write units of a play, with consumers and judge. `sets`: the sets in one batch of the stream."""
    with one_minute() as (clients, clock):

        def count_all() -> None:
            for number in range(sets):
                send(clients, f"set-{number}")
            deliver_streams(clients, rollup.CONSUMER, made_s=clock.now_s)
            track(clients, clock)

        units = write_units_of(clients, clock, count_all)
        counted = sum(clients.read_plays(f"video-{number}") for number in range(VIDEOS))
        assert counted == sets * PLAYS, f"{counted} of {sets * PLAYS} plays are counted"
    return units / (sets * PLAYS)
