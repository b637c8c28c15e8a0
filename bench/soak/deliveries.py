"""A process with one stream consumer, which reads both streams from the engine, and delivers records as Lambda does.

The process delivers each record at least once, in order, in batches of any size, and again after an error and after a
restart. The consumer calls the engine through the proxy, so its requests meet faults. Reads of the streams do not.
"""

from __future__ import annotations

import random
import threading
import time
from functools import partial

import counters
from tally.streams.consumer import Handler
from tests import delivery
from tests.contexts import LambdaContext
from tests.delivery import BATCH_RECORDS, Delivery, Stream
from tests.invariants.streaming import READER_OF_CONSUMER, ConsumerWorld

from ..clients import STREAMED
from .setup import SoakSetup, set_up_process

POLL_S = 0.2  # between two reads of a stream that has no more records
INVOCATION = LambdaContext(30_000)  # milliseconds that each invocation has
FROM_OLDEST_SHARE = 0.3  # the share of the starts that read the stream from its oldest record, not from a position
SHORT_SHARE = 0.3  # the share of the batches that are shorter than they could be
TWICE_SHARE = 0.05  # the share of the batches that are delivered again, as part of the next batch
PAUSE_S = 0.1  # before a failed batch is delivered again


def consume(setup: SoakSetup, name: str) -> None:
    """Run the consumer until this process is killed, or the delivery of one stream fails. Then the soak fails, too."""
    set_up_process(setup, name)
    handler = ConsumerWorld(setup.store(setup.faulty_endpoint), setup.wire()).handler(name)
    threads = [threading.Thread(target=_follow, args=(setup, name, handler, table), daemon=True) for table in STREAMED]
    for thread in threads:
        thread.start()
    while all(thread.is_alive() for thread in threads):
        time.sleep(POLL_S)


def _follow(setup: SoakSetup, name: str, handler: Handler, table: str) -> None:
    """Run one event source mapping, from where the last process stopped, or from the oldest record of the stream."""
    chance, position = random.Random(), setup.folder / f"{name}-{table}.position"
    after = None  # the sequence number of the last read record; None: read from the oldest record
    if chance.random() > FROM_OLDEST_SHARE and position.exists():
        after = position.read_text() or None  # empty if the process was killed while it wrote
    stream = Stream(setup.wire(), f"soak-{table}", after)
    passes_filters = partial(delivery.passes_filters, READER_OF_CONSUMER[name], table)
    while True:
        records = stream.read()
        _deliver(Delivery(handler, f"soak-{table}", stream.shard, records, passes_filters), chance)
        if records:
            position.write_text(records[-1]["dynamodb"]["SequenceNumber"])
        if len(records) < BATCH_RECORDS:
            time.sleep(POLL_S)


def _deliver(delivery_: Delivery, chance: random.Random) -> None:
    """Deliver all records, in batches of any size, and some batches twice."""
    size, records_to_repeat = BATCH_RECORDS, 0
    while not delivery_.is_done:
        size = chance.randint(1, size) if chance.random() < SHORT_SHARE else size
        batch = delivery_.batch(size, repeats=records_to_repeat)
        records_to_repeat = 0
        try:
            failed = delivery_.invoke(batch, INVOCATION)
        except Exception as error:
            print(f"{delivery_.source}: {error!r}", flush=True)
            size = len(batch) // 2 + 1  # as Lambda bisects a failed batch
            time.sleep(PAUSE_S)
            continue
        delivery_.advance(failed, size)
        if failed is not None:
            time.sleep(PAUSE_S)
        elif chance.random() < TWICE_SHARE:
            records_to_repeat = size
        size = BATCH_RECORDS


def sweep(setup: SoakSetup, name: str) -> None:
    """Run a sweep each minute of the ledger, until this process is killed."""
    set_up_process(setup, name)
    from tally.operations import sweep as function

    run_sweep = function.Sweep(counters.COUNTERS)

    while True:
        began_s = time.monotonic()
        try:
            run_sweep({}, INVOCATION)
        except Exception as error:
            print(f"sweep: {error!r}", flush=True)
        time.sleep(max(0.0, began_s + setup.minute_s - time.monotonic()))
