"""A process that is one stream consumer: it reads both streams from the engine, and delivers as Lambda does.

At least once, in order, in batches of any size; again after an error, and after each restart from a place before the
end. The proxy stands between the consumer and the engine, not between the streams and this process.
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
from tests.invariants.streaming import DECLARED, ConsumerWorld

from ..clients import STREAMED
from .setup import SoakSetup, set_up_process

POLL_S = 0.2
INVOCATION = LambdaContext(30_000)
HORIZON_SHARE = 0.3  # of the starts that read the stream from its beginning; else from where the last process was
ODD_SHARE = 0.3  # of the batches end early
TWICE_SHARE = 0.05  # of the batches are delivered again, as part of the next one
PAUSE_S = 0.1  # after a failure


def consume(stage: SoakSetup, name: str) -> None:
    """Be the consumer, until killed."""
    set_up_process(stage, name)
    handler = ConsumerWorld(stage.store(stage.faulty_endpoint), stage.wire()).handler(name)
    threads = [threading.Thread(target=_follow, args=(stage, name, handler, table)) for table in STREAMED]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _follow(stage: SoakSetup, name: str, handler: Handler, table: str) -> None:
    """Be one event source mapping: from where the last process was, or from the beginning of what the stream has."""
    chance, place = random.Random(), stage.folder / f"{name}-{table}.place"
    after = None
    if chance.random() > HORIZON_SHARE and place.exists():
        after = place.read_text() or None  # empty: killed while it wrote
    stream = Stream(stage.wire(), f"soak-{table}", after)
    takes = partial(delivery.passes_filters, DECLARED[name], table)
    while True:
        records = stream.read()
        _deliver(Delivery(handler, f"soak-{table}", stream.shard, records, takes), chance)
        if records:
            place.write_text(records[-1]["dynamodb"]["SequenceNumber"])
        if len(records) < BATCH_RECORDS:
            time.sleep(POLL_S)


def _deliver(way: Delivery, chance: random.Random) -> None:
    """Deliver everything, in odd batches, and some of them twice."""
    size, twice = BATCH_RECORDS, 0
    while not way.is_done:
        size = chance.randint(1, size) if chance.random() < ODD_SHARE else size
        batch = way.batch(size, back=twice)
        twice = 0
        try:
            failed = way.invoke(batch, INVOCATION)
        except Exception as error:
            print(f"{way.source}: {error!r}", flush=True)
            size = len(batch) // 2 + 1  # as bisecting makes it
            time.sleep(PAUSE_S)
            continue
        way.advance(failed, size)
        if failed is not None:
            time.sleep(PAUSE_S)
        elif chance.random() < TWICE_SHARE:
            twice = size
        size = BATCH_RECORDS


def sweep(stage: SoakSetup, name: str) -> None:
    """Be the schedule of the sweep, until killed: one each minute of the ledger."""
    set_up_process(stage, name)
    from tally.operations import sweep as function

    swept = function.Sweep(counters.COUNTERS)  # it makes its client

    while True:
        began_s = time.monotonic()
        try:
            swept({}, INVOCATION)
        except Exception as error:
            print(f"sweep: {error!r}", flush=True)
        time.sleep(max(0.0, began_s + stage.minute_s - time.monotonic()))
