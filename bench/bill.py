"""Compares the write units of some minutes at each volume with the units of the calculator (cost.py). The deployed code
counts plays, reads their stream records in batches as Lambda makes them, and judges, on the engine in virtual time.

Even: plays arrive evenly, as the calculator assumes. In bursts: all plays of a minute arrive within ten seconds. No
figure includes the series, because a series takes an hour. tests/invariants/test_series.py measures the series.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from io import StringIO
from typing import Any
from uuid import UUID

from tally.contract.deployment import DELIVERY
from tally.operations.bookkeeper import READER as BOOKKEEPER
from tests.engines import new_engine
from tests.invariants.deployment import Deployment
from tests.invariants.simulation import UNDISTURBED, Clock, TimedWire, seed_randomness
from tests.invariants.stream_model import ModelledShard

from . import cost
from .consumers import SEED
from .instruments import Rows

MINUTES = {1: 20, 10: 6, 100: 2, 300: 1}  # how many minutes are measured, by the million plays a month
QUICK_MILLIONS = (1, 10)
WARM_UP_S = 40  # of traffic before the measured minutes: longer than any window
BURST_S = 10.0
EVEN_ROW, BURST_ROW = "{} million a month, even", "{} million a month, in bursts"
_WRITE_OPERATIONS = {"PutItem", "UpdateItem", "DeleteItem", "TransactWriteItems"}


class MeteredWire(TimedWire):
    """Sums the write units that the engine bills."""

    units = 0.0

    def _call(self, operation: str, parameters: dict[str, Any]) -> dict[str, Any]:
        if operation not in _WRITE_OPERATIONS:
            return super()._call(operation, parameters)
        answer = super()._call(operation, parameters | {"ReturnConsumedCapacity": "TOTAL"})
        consumed = answer["ConsumedCapacity"]
        self.units += sum(table["CapacityUnits"] for table in (consumed if isinstance(consumed, list) else [consumed]))
        return answer


class LambdaDeployment(Deployment):
    """Delivers stream records as Lambda does: the first record begins a window, and the window's end ends the batch."""

    wire_type = MeteredWire
    wire: MeteredWire

    def _schedule_poll(self, consumer: str, shard: ModelledShard, after_s: float | None = None) -> None:
        window_s = BOOKKEEPER.window_s if consumer == BOOKKEEPER.function else DELIVERY.batch_window_s
        super()._schedule_poll(consumer, shard, window_s if after_s is None else after_s)

    def _deliver(self, consumer: str, shard: ModelledShard) -> None:
        delivery = self.delivery_to(consumer, shard)
        batch = delivery.batch(DELIVERY.batch_records)
        if not batch or self._invoke(consumer, shard, batch):
            delivery.advance(None, DELIVERY.batch_records)

    def play_for(self, seconds: int, per_minute: float, spread_s: float, chance: random.Random) -> None:
        """Make plays of as many random videos as the calculator assumes, for so many seconds. All plays of a minute
        come in its first `spread_s` seconds."""
        began_s, ids = self.now_s, [str(UUID(int=chance.getrandbits(128))) for _ in range(int(cost.IDLE_MONTH.ids))]
        for number in range(int(per_minute * seconds / 60)):
            minute, part = divmod(number / per_minute, 1)
            self.sleep(began_s + 60 * minute + spread_s * part - self.now_s)
            self.play(chance.choice(ids))
        self.sleep(began_s + seconds - self.now_s)


@contextmanager
def _warm_deployment() -> Iterator[LambdaDeployment]:
    clock = Clock()
    with new_engine() as engine, seed_randomness(clock, SEED), redirect_stdout(StringIO()):
        disturbances = replace(UNDISTURBED, window_s=float(BOOKKEEPER.window_s))
        deployment = LambdaDeployment(engine, clock, SEED, disturbances, cost.SHARDS)
        deployment.sweep_each_minute()
        deployment.run(12)  # minutes: until every shard has its heartbeat, and the first minutes are judged
        assert deployment.last_judged_minute > 0
        yield deployment
        deployment.wire.close()


def modelled_units(millions: int) -> float:
    """Returns the calculator's write units a minute, without the series."""
    month = cost.Month({"now": millions * cost.M})
    return (cost.usage(month, cost.PROD)["write"] - cost.series_writes(month)) / cost.MINUTES


def billed_units(millions: int, minutes: int, spread_s: float) -> float:
    """Returns the write units a minute that the engine bills."""
    per_minute, chance = millions * cost.M / cost.MINUTES, random.Random(SEED)
    with _warm_deployment() as deployment:
        # A warm-up with bursts is a whole minute, so that the measured minutes begin with the next burst.
        deployment.play_for(WARM_UP_S if spread_s == 60 else 60, per_minute, spread_s, chance)
        units_before = deployment.wire.units
        deployment.play_for(60 * minutes, per_minute, spread_s, chance)
        return (deployment.wire.units - units_before) / minutes


def measure(quick: bool) -> Rows:
    """Returns the units a minute, the calculator's units, and their ratio, by volume, even and in bursts."""
    rows = {}
    for millions, minutes in MINUTES.items():
        if quick and millions not in QUICK_MILLIONS:
            continue
        for row, spread_s in ((EVEN_ROW, 60.0), (BURST_ROW, BURST_S)):
            billed, modelled = billed_units(millions, minutes, spread_s), modelled_units(millions)
            rows[row.format(millions)] = {
                "WCU a minute": billed, "modelled": modelled, "times the model": billed / modelled,
            }  # fmt: skip
    return rows
