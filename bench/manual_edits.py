"""How long a manual edit takes to show as drift when nobody is stalled: the real code, in virtual time.

AWS's constants hold: minutes of 60 s, a sweep each minute, records that reach the consumers after 2 s. Each stream has
one shard. Tallies are edited at random moments. A sweep runs at any second of the minute, as EventBridge chooses: one
run for each sixth of a minute.
"""

from __future__ import annotations

import heapq
import random
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial

import counters
from dev.streams.delivery import Record, Stream
from tally.counting import tallies
from tally.drift import judge, rows
from tally.dynamo.shards import Shards, streams_client
from tally.streams import bookkeeper, rollup, watermark

from .clients import LOCAL, SETTINGS, STREAMED, Clients, clients_of, fresh_engine
from .consumers import SEED, Rows, deliver, stamped, wire_of
from .watch import Meter, WallClock

PHASES = 6
EDITS = 12  # in each phase
DELIVERY_S = 2.0
SWEEP_S = 60.0
WARM_UP_S = 8 * SWEEP_S  # until the judge has caught up
EDITING_S = 3 * SWEEP_S
SHOWN_S_MAX = 20 * SWEEP_S  # after it the edit counts as missed


def measure(quick: bool) -> Rows:
    """The minutes from an edit to its drift row, and the price of a quiet minute.

    Raises RuntimeError if an edit is missed, or shows a wrong amount.
    """
    chance, phases = random.Random(SEED), 1 if quick else PHASES
    taken_s = [taken for phase in range(phases) for taken in _phase((phase + 0.5) * SWEEP_S / phases, chance)]
    return {
        "a manual edit, to its drift row": {"minutes, median": statistics.median(taken_s) / 60},
        "a quiet minute, one shard in each stream": {"WCU": quiet_minute()},
    }


def quiet_minute() -> float:
    """Write units of a minute without traffic: two heartbeats, four checkpoints, the JUDGE item twice."""
    start_s = time.time() // 60 * 60
    with _timeline(start_s) as timeline:
        clock = timeline.clock
        timeline.at(start_s, timeline.sweep)
        timeline.run(until_s=start_s + WARM_UP_S + 2 * SWEEP_S)
        meter = Meter(timeline.clients.store.client)
        timeline.run(until_s=clock.now_s + SWEEP_S)
        return meter.write_units


def _phase(offset_s: float, chance: random.Random) -> list[float]:
    """Seconds from each edit to its row, if sweeps run `offset_s` after the full minute."""
    start_s = time.time() // 60 * 60
    with _timeline(start_s) as timeline:
        editing_s = start_s + offset_s + WARM_UP_S
        edits = sorted(editing_s + chance.uniform(0, EDITING_S) for _ in range(EDITS))
        for number, at_s in enumerate(edits):
            timeline.at(at_s, partial(timeline.edit, number))
        timeline.at(start_s + offset_s, timeline.sweep)
        timeline.run(until_s=edits[-1] + SHOWN_S_MAX)
        return timeline.taken_s()


@contextmanager
def _timeline(start_s: float) -> Iterator[_Timeline]:
    with (
        fresh_engine(streams=True) as endpoint,
        WallClock(start_s) as clock,
        closing(_Timeline(clients_of(endpoint), clock)) as made,
    ):
        yield made


@dataclass
class _Timeline:
    """What happens when: edits, sweeps and deliveries."""

    clients: Clients
    clock: WallClock
    edited_s: dict[str, float] = field(default_factory=dict)
    """By tally, when it was edited."""
    shown_s: dict[str, float] = field(default_factory=dict)
    """By tally, when it had its drift row."""
    _events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._wire = wire_of(self.clients)
        self._streams = {table: Stream(self._wire, f"bench-{table}") for table in STREAMED}
        arns = {table: stream.arn for table, stream in self._streams.items()}
        self._shards = Shards(arns, lambda: streams_client(endpoint_url=self.clients.endpoint, **LOCAL))
        self._turns = 0

    def at(self, at_s: float, event: Callable[[], None]) -> None:
        """Let something happen at a moment."""
        self._turns += 1
        heapq.heappush(self._events, (at_s, self._turns, event))

    def run(self, until_s: float) -> None:
        """Let everything happen until then, or until each edit has its row."""
        while self._events and self.clock.now_s < until_s and len(self.shown_s) < EDITS:
            self.clock.now_s, _, event = heapq.heappop(self._events)
            event()
            for table, stream in self._streams.items():
                if found := [stamped(record, float(int(self.clock.now_s))) for record in stream.new()]:
                    self.at(self.clock.now_s + DELIVERY_S, partial(self._deliver, table, found))

    def edit(self, number: int) -> None:
        """Add to a tally around Tally."""
        video_id = f"edited-{number}"
        self.clients.plain.update_item(
            TableName=SETTINGS.counts_table,
            Key=tallies.key(counters.PLAYS, video_id, 0),
            UpdateExpression="ADD play_count :amount",
            ExpressionAttributeValues={":amount": {"N": str(number + 1)}},
        )
        self.edited_s[video_id] = self.clock.now_s

    def sweep(self) -> None:
        """What a sweep does for the journal. The next one follows a minute later."""
        self.at(self.clock.now_s + SWEEP_S, self.sweep)
        store, now_s = self.clients.store, self.clock.now_s
        seen = watermark.read(store, now_s)
        watermark.renew(store, self._shards, seen, now_s)
        judge.judge(store, seen, now_s, until_s=store.clock() + 50)
        for drift in rows.every(store):
            expected = int(drift.target.partition("-")[2]) + 1
            if drift.drift != expected:
                raise RuntimeError(f"{drift.target} drifts by {drift.drift}, not {expected}")
            self.shown_s.setdefault(drift.target, now_s)

    def taken_s(self) -> list[float]:
        """Seconds from each edit to its row. Raises RuntimeError if one has none."""
        if len(self.shown_s) < EDITS:
            raise RuntimeError(f"{EDITS - len(self.shown_s)} edits were missed")
        return [self.shown_s[name] - edited_s for name, edited_s in self.edited_s.items()]

    def _deliver(self, table: str, records: list[Record]) -> None:
        for consumer in (rollup.CONSUMER, bookkeeper.CONSUMER):
            deliver(self.clients, consumer, table, records, shard=self._streams[table].shard)

    def close(self) -> None:
        """Close the connections."""
        self._wire.close()
