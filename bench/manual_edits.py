"""The time until a manual edit shows as drift if no consumer is stalled. The real code runs in virtual time.

As on AWS, a minute has 60 s, a sweep runs each minute, and records reach the consumers after 2 s. Each stream has one
shard. Tallies are edited at random times. EventBridge may choose any second of the minute for the sweep. So each phase
of the measurement has the sweep at another sixth of the minute.
"""

from __future__ import annotations

import random
import statistics
import time
from contextlib import ExitStack, closing

import counters
from tally.counting import tallies
from tally.drift import judge, rows
from tally.dynamo.shards import StreamShards, streams_client
from tally.streams import bookkeeper, rollup, watermark
from tests.delivery import Stream

from .clients import LOCAL, SETTINGS, STREAMED, clients_of, fresh_engine
from .consumers import SEED, deliver, wire_of, with_time
from .instruments import Meter, Rows, WallClock

PHASES = 6
EDITS = 12  # in each phase
DELIVERY_S = 2.0  # from a write until its record reaches the consumers
SWEEP_S = 60.0
WARM_UP_S = 8 * SWEEP_S  # until the judge has caught up
EDITING_S = 3 * SWEEP_S
SHOWN_S_MAX = 20 * SWEEP_S  # after this time an edit counts as missed


def measure(quick: bool) -> Rows:
    """Returns the minutes from an edit to its drift row, and the units of a quiet minute.

    Raises RuntimeError if an edit is missed, or shows a wrong amount.
    """
    chance, phases = random.Random(SEED), 1 if quick else PHASES
    shown_after_s = [took_s for phase in range(phases) for took_s in _phase((phase + 0.5) * SWEEP_S / phases, chance)]
    return {
        "a manual edit, to its drift row": {"minutes, median": statistics.median(shown_after_s) / 60},
        "a quiet minute, one shard in each stream": {"WCU": quiet_minute()},
    }


def quiet_minute() -> float:
    """Returns the write units of a minute without traffic: 2 heartbeats, 4 checkpoints, and 2 writes of watermark and
    judge. The figure is the mean of two minutes, because every second sweep judges two minutes."""
    with ExitStack() as stack:
        timeline = _Timeline(stack)
        for _ in range(10):  # until the judge has caught up
            timeline.sweep()
            timeline.pass_time(SWEEP_S)
        meter = Meter(timeline.clients.store.client)
        for _ in range(2):
            timeline.sweep()
            timeline.pass_time(SWEEP_S)
        return meter.write_units / 2


def _phase(offset_s: float, chance: random.Random) -> list[float]:
    """Returns the seconds from each edit to its drift row, if sweeps run `offset_s` after the full minute."""
    with ExitStack() as stack:
        timeline = _Timeline(stack)
        timeline.pass_time(offset_s)
        editing_s = timeline.clock.now_s + WARM_UP_S
        edits_s = sorted(editing_s + chance.uniform(0, EDITING_S) for _ in range(EDITS))
        sweep_s, number, shown_s = timeline.clock.now_s, 0, dict[int, float]()
        while len(shown_s) < EDITS and sweep_s < edits_s[-1] + SHOWN_S_MAX:
            while number < EDITS and edits_s[number] < sweep_s:
                timeline.pass_time(edits_s[number] - timeline.clock.now_s)
                timeline.edit(number)
                number += 1
            timeline.pass_time(sweep_s - timeline.clock.now_s)
            for edit in timeline.sweep():
                shown_s.setdefault(edit, sweep_s)
            sweep_s += SWEEP_S
        if len(shown_s) < EDITS:
            raise RuntimeError(f"{EDITS - len(shown_s)} edits were missed")
        return [shown_s[number] - edit_s for number, edit_s in enumerate(edits_s)]


class _Timeline:
    """A fresh engine, and a clock that begins at a full minute. Records are delivered DELIVERY_S after their write."""

    def __init__(self, stack: ExitStack) -> None:
        self.clients = clients_of(stack.enter_context(fresh_engine(streams=True)))
        self.clock = stack.enter_context(WallClock(time.time() // 60 * 60))
        wire = stack.enter_context(closing(wire_of(self.clients)))
        self._streams = {table: Stream(wire, f"bench-{table}") for table in STREAMED}
        arns = {table: stream.arn for table, stream in self._streams.items()}
        self._shards = StreamShards(arns, lambda: streams_client(endpoint_url=self.clients.endpoint, **LOCAL))

    def pass_time(self, seconds: float) -> None:
        """Let time pass. While DELIVERY_S fits, deliver new records. The consumers' own writes make further records."""
        made_s, until_s = self.clock.now_s, self.clock.now_s + seconds
        while self.clock.now_s + DELIVERY_S <= until_s and self._deliver(made_s):
            made_s = self.clock.now_s
        self.clock.now_s = until_s

    def _deliver(self, made_s: float) -> bool:
        """Let DELIVERY_S pass, and deliver new records, made at `made_s`. Returns False if there are no new records."""
        new = {
            table: [with_time(record, float(int(made_s))) for record in stream.read_new()]  # records have whole seconds
            for table, stream in self._streams.items()
        }
        if not any(new.values()):
            return False
        self.clock.now_s += DELIVERY_S
        for table, records in new.items():
            for consumer in (rollup.CONSUMER, bookkeeper.CONSUMER):
                deliver(self.clients, consumer, table, records, shard=self._streams[table].shard)
        return True

    def edit(self, number: int) -> None:
        """Edit a tally by hand. Each edit has another tally and another amount."""
        self.clients.boto3_client.update_item(
            TableName=SETTINGS.counts_table,
            Key=tallies.key(counters.PLAYS, str(number), shard=0),
            UpdateExpression="ADD play_count :amount",
            ExpressionAttributeValues={":amount": {"N": str(number + 1)}},
        )

    def sweep(self) -> list[int]:
        """Judges as a sweep does, and returns the edits that show as drift. Raises RuntimeError for a wrong amount."""
        store, now_s = self.clients.store, self.clock.now_s
        watermark_ = watermark.read(store)
        watermark.advance(store, self._shards, watermark_, now_s)
        judge.judge(store, watermark_, now_s, until_s=store.clock() + 50)  # seconds that the judge may take
        drifts = {int(drift.target): drift.drift for drift in rows.all_rows(store)}
        for number, drift in drifts.items():
            if drift != number + 1:
                raise RuntimeError(f"{number} drifts by {drift}, not {number + 1}")
        return list(drifts)
