"""What a play takes and costs: client time, round trips and capacity units, for each design."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from uuid import uuid4

from bench.designs import TIMED, Play
from bench.place import fresh_engine, place
from bench.watch import Meter

ROUND_PLAYS = 5  # of each design in turn: noise of the machine hits all alike
WARM_UP_ROUNDS = 4  # connections, caches, and Powertools' layers are made in them
METERED_PLAYS = 20

Progress = Callable[[int], object]
"""Told how many plays were made since it was last told."""


@dataclass(frozen=True)
class Cost:
    """What one play costs on average."""

    round_trips: float
    write_units: float
    read_units: float


def measure_times(rounds: int, progress: Progress) -> dict[str, float]:
    """Median time of one play at the client, by design, in microseconds: one thread, no faults, nothing hooked in."""
    taken_s: dict[str, list[float]] = {design.name: [] for design in TIMED}
    with fresh_engine() as endpoint:
        clients = place(endpoint)
        plays = [(design.name, design.make(clients, design.name)) for design in TIMED]
        for number in range(WARM_UP_ROUNDS + rounds):
            first = number % len(plays)  # whoever comes first in a round has no advantage of it
            for name, play in plays[first:] + plays[:first]:
                times_s = [_time(play) for _ in range(ROUND_PLAYS)]
                if number >= WARM_UP_ROUNDS:
                    taken_s[name] += times_s
            progress(ROUND_PLAYS * len(plays))
    return {name: statistics.median(times) * 1e6 for name, times in taken_s.items()}


def _time(play: Play) -> float:
    key = str(uuid4())
    started_s = time.perf_counter()
    play(key)
    return time.perf_counter() - started_s


def measure_costs() -> dict[str, Cost]:
    """Round trips and capacity units of one play, by design; in a pass of its own, since counting takes time."""
    costs = {}
    with fresh_engine() as endpoint:
        clients = place(endpoint)
        meter = Meter(clients.plain, clients.store.client)
        for design in TIMED:
            play = design.make(clients, design.name)
            meter.reset()
            for _ in range(METERED_PLAYS):
                play(str(uuid4()))
            totals = (meter.requests, meter.write_units, meter.read_units)
            costs[design.name] = Cost(*(total / METERED_PLAYS for total in totals))
    return costs
