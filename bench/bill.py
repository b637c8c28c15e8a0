"""The write units of some minutes at each volume, beside those of the calculator (cost.py). The code is that which is
deployed, on the embedded engine, in virtual time. It counts plays, delivers them in batches as Lambda does, and judges.

Calm: evenly, as the calculator has it. Busy: all plays of a minute within ten seconds. The series are left out of the
calculator's units: they take an hour, and test_series has them.
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
from .consumers import SEED, Rows

MINUTES = {1: 20, 10: 6, 100: 2, 300: 1}  # by million plays a month
QUICK = (1, 10)
WARM_S = 40  # of traffic before: longer than any window
BUSY_S = 10.0
CALM_ROW, BUSY_ROW = "{} million a month, calm", "{} million a month, busy"
_METERED = {"PutItem", "UpdateItem", "DeleteItem", "TransactWriteItems"}


class MeteredWire(TimedWire):
    """Sums the write units that the engine bills."""

    units = 0.0

    def _call(self, operation: str, parameters: dict[str, Any]) -> dict[str, Any]:
        if operation not in _METERED:
            return super()._call(operation, parameters)
        answer = super()._call(operation, parameters | {"ReturnConsumedCapacity": "TOTAL"})
        consumed = answer["ConsumedCapacity"]
        self.units += sum(one["CapacityUnits"] for one in (consumed if isinstance(consumed, list) else [consumed]))
        return answer


class LambdaDeployment(Deployment):
    """A deployment whose streams are delivered as Lambda does: a window begins with a record, and ends a batch."""

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

    def plays(self, seconds: int, a_minute: float, spread_s: float, chance: random.Random) -> None:
        """Let time pass with so many plays a minute, each minute's within its first `spread_s`."""
        began_s, ids = self.now_s, [str(UUID(int=chance.getrandbits(128))) for _ in range(int(cost.IDLE_MONTH.ids))]
        for number in range(int(a_minute * seconds / 60)):
            minute, part = divmod(number / a_minute, 1)
            self.sleep(began_s + 60 * minute + spread_s * part - self.now_s)
            self.play(chance.choice(ids))
        self.sleep(began_s + seconds - self.now_s)


@contextmanager
def _stage() -> Iterator[LambdaDeployment]:
    clock = Clock()
    with new_engine() as engine, seed_randomness(clock, SEED), redirect_stdout(StringIO()):
        disturbances = replace(UNDISTURBED, window_s=float(BOOKKEEPER.window_s))
        stage = LambdaDeployment(engine, clock, SEED, disturbances, cost.SHARDS)
        stage.sweep_each_minute()
        stage.run(12)  # until every shard has its heartbeat, and the first minutes are judged
        assert stage.last_judged_minute > 0
        yield stage
        stage.wire.close()


def modelled_units(millions: int) -> float:
    """Returns the calculator's write units a minute, without the series."""
    month = cost.Month({"now": millions * cost.M})
    return (cost.usage(month, cost.PROD)["write"] - cost.series_writes(month)) / cost.MINUTES


def billed_units(millions: int, minutes: int, spread_s: float) -> float:
    """Returns the write units a minute that the engine bills."""
    a_minute, chance = millions * cost.M / cost.MINUTES, random.Random(SEED)
    with _stage() as stage:
        stage.plays(WARM_S if spread_s == 60 else 60, a_minute, spread_s, chance)
        before = stage.wire.units
        stage.plays(60 * minutes, a_minute, spread_s, chance)
        return (stage.wire.units - before) / minutes


def measure(quick: bool) -> Rows:
    """Returns the units a minute, the calculator's units, and the ratio, by volume, calm and busy."""
    rows = {}
    for millions, minutes in MINUTES.items():
        if quick and millions not in QUICK:
            continue
        for row, spread_s in ((CALM_ROW, 60.0), (BUSY_ROW, BUSY_S)):
            units, of_model = billed_units(millions, minutes, spread_s), modelled_units(millions)
            rows[row.format(millions)] = {
                "WCU a minute": units, "modelled": of_model, "times the model": units / of_model,
            }  # fmt: skip
    return rows
