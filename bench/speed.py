"""Client time, round trips and capacity units of a play, for each design."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from uuid import uuid4

from .clients import clients_of, fresh_engine
from .designs import TIMED, Play
from .watch import Meter

ROUND_PLAYS = 5  # of each design in turn: the machine's noise hits all of them
WARM_UP_ROUNDS = 4  # they make connections, caches and Powertools' layers
METERED_PLAYS = 20

Progress = Callable[[int], object]
"""Called with the number of plays since its last call."""


@dataclass(frozen=True)
class Cost:
    """The average cost of one play."""

    round_trips: float
    write_units: float
    read_units: float


def measure_times(rounds: int, progress: Progress) -> dict[str, float]:
    """Median client time of one play, by design, in microseconds: one thread, no faults, no hooks."""
    taken_s: dict[str, list[float]] = {design.name: [] for design in TIMED}
    with fresh_engine() as endpoint:
        clients = clients_of(endpoint)
        plays = [(design.name, design.make(clients, design.name)) for design in TIMED]
        for number in range(WARM_UP_ROUNDS + rounds):
            first = number % len(plays)  # each design is first equally often
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
    """Round trips and capacity units of one play, by design. Metering takes time, so this is a separate pass."""
    costs = {}
    with fresh_engine() as endpoint:
        clients = clients_of(endpoint)
        meter = Meter(clients.plain, clients.store.client)
        for design in TIMED:
            play = design.make(clients, design.name)
            meter.reset()
            for _ in range(METERED_PLAYS):
                play(str(uuid4()))
            totals = (meter.requests, meter.write_units, meter.read_units)
            costs[design.name] = Cost(*(total / METERED_PLAYS for total in totals))
    return costs
