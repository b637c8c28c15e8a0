"""The cost of thresholds for the bookkeeper: units and processor time for each stream record of a tally."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from typing import Any

import counters
from tally.counter import Counter
from tally.counting import tallies
from tally.notify import Notify
from tally.streams import bookkeeper
from tally.streams.consumer import Handler
from tally.streams.dead_letters import DeadLetterBucket
from tally.streams.events import Bus
from tally.streams.fingerprints import FingerprintCache
from tally.streams.record import CounterIndex
from tests import delivery
from tests.contexts import LambdaContext
from tests.delivery import Record

from .clients import clients_of, fresh_engine
from .consumers import MINUTE, SHARD, note_judged
from .instruments import Meter, Rows

ONE_SHARD, SUM_OF_SHARDS = counters.STOCK, counters.PLAYS
THRESHOLD = Notify(at=(10,))
VALUE_BELOW, VALUE_BEYOND = 1, 20  # the threshold is 10
PLAIN, BELOW, CROSSING, SUM_CROSSING = (
    "a counter without thresholds",
    "a tally that crosses no threshold",
    "a tally that crosses a threshold",
    "a sum of shards that crosses a threshold",
)


class _AcceptingBus:
    """A bus that accepts every event."""

    def put_events(self, Entries: list[Any]) -> Any:
        return {"Entries": [{"EventId": "1"}] * len(Entries)}


def measure(quick: bool) -> Rows:
    """Returns the units that thresholds add for each record of a batch, and the processor time to read a record."""
    records = 100
    without_thresholds, with_threshold = _units(ONE_SHARD, VALUE_BELOW, records), replace(ONE_SHARD, notify=THRESHOLD)
    sums = (
        _units(replace(SUM_OF_SHARDS, notify=THRESHOLD), VALUE_BEYOND, records),
        _units(SUM_OF_SHARDS, VALUE_BEYOND, records),
    )
    repeats = 2_000 if quick else 50_000
    return {
        PLAIN: {"WCU": 0, "RCU": 0, "µs": _read_us(ONE_SHARD, VALUE_BELOW, repeats)},
        BELOW: {
            **_added(_units(with_threshold, VALUE_BELOW, records), without_thresholds, records),
            "µs": _read_us(with_threshold, VALUE_BELOW, repeats),
        },
        CROSSING: {
            **_added(_units(with_threshold, VALUE_BEYOND, records), without_thresholds, records),
            "µs": _read_us(with_threshold, VALUE_BEYOND, repeats),
        },
        SUM_CROSSING: _added(*sums, records),
    }


def _added(units: Mapping[str, float], without: Mapping[str, float], records: int) -> dict[str, float]:
    return {name: (units[name] - without[name]) / records for name in units}


def _record(counter: Counter, value: int, number: int = 0) -> Record:
    """Returns the stream record of a tally that moves from 0 to `value`."""
    keys = tallies.key(counter, f"id-{number}", 0)
    images = {
        name: {**keys, counter.attribute: {"N": str(stored)}, "nonce": {"S": name}, "at": {"N": str(MINUTE)}}
        for name, stored in (("OldImage", 0), ("NewImage", value))
    }
    sequence = {"SequenceNumber": str(10**20 + number), "ApproximateCreationDateTime": MINUTE * 60.0}
    return {"eventName": "MODIFY", "dynamodb": {**sequence, "Keys": keys, **images}}


def _units(counter: Counter, value: int, records: int) -> dict[str, float]:
    """Returns the units of the bookkeeper for a batch in which `records` tallies move from 0 to `value`."""
    with fresh_engine() as endpoint:
        clients = clients_of(endpoint)
        store, declared = clients.store, {counter.name: counter}
        FingerprintCache(store).note(CounterIndex(declared), declared)
        note_judged(store, MINUTE - 1)
        batch = [_record(counter, value, number) for number in range(records)]
        for record in batch:  # the bookkeeper reads all shards of a sum, so they must be stored
            store.client.put_item(TableName=store.settings.counts_table, Item=record["dynamodb"]["NewImage"])
        handler = Handler(bookkeeper.CONSUMER, declared, store, DeadLetterBucket("bench"), Bus("bench", _AcceptingBus))
        meter = Meter(store.client)
        with redirect_stdout(StringIO()):  # hides the metrics that the handler prints
            assert not handler(delivery.event(batch, SHARD, "bench-counts"), LambdaContext(60_000))["batchItemFailures"]
        return {"WCU": meter.write_units, "RCU": meter.read_units}


def _read_us(counter: Counter, value: int, repeats: int) -> float:
    """Returns the processor time to read a record of `_record`, in microseconds."""
    declared, record = CounterIndex({counter.name: counter}), _record(counter, value)
    started_s = time.process_time()
    for _ in range(repeats):
        bookkeeper.read_count(declared, record)
    return 1e6 * (time.process_time() - started_s) / repeats
