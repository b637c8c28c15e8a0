"""The cost and the speed of the stream consumers: the real handlers, on an engine, invoked as Lambda invokes them."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, redirect_stdout
from functools import partial
from io import StringIO
from urllib.parse import urlsplit

import counters
from tally.counting.tallies import MINUTES_PER_DAY
from tally.drift import judge
from tally.dynamo.client import Store
from tally.dynamo.transactions import try_commit
from tally.streams import bookkeeper, fold, rollup, watermark
from tally.streams.consumer import Handler
from tally.streams.dead_letters import DeadLetterBucket
from tally.streams.fingerprints import FingerprintCache
from tally.streams.fold import BatchContext, StreamConsumer
from tally.streams.record import CounterIndex
from tally.streams.watermark import Watermark
from tests import delivery
from tests.contexts import LambdaContext
from tests.delivery import BATCH_RECORDS, Delivery, Record, Stream
from tests.invariants.streaming import CONSUMERS, READER_OF_CONSUMER
from tests.sync_wire import SyncWire

from . import plain
from .clients import SETTINGS, STREAMED, Clients, clients_of, fresh_engine
from .instruments import Meter, Rows, WallClock

SEED = 1995
PLAYS = 1000
VIDEOS = (1, 10, 100, 1000)
JUDGE_S_MAX = 120  # the time that the judge may take for a minute
SHARD = "shardId-00000001700000000000-bench"
MINUTE = 28_000_000  # of the records, in minutes since 1970
MIDNIGHT = MINUTE // MINUTES_PER_DAY * MINUTES_PER_DAY
EDGES = {
    f"{PLAYS:,} plays of 1 video, {when}, clocks {clocks_apart_s:g} s apart": (minute, clocks_apart_s)
    for when, minute, clocks_apart_s in (
        ("a minute's edge", MINUTE, 2),
        ("a minute's edge", MINUTE, 0.05),
        ("midnight", MIDNIGHT, 2),
    )
}
"""For each row: the minute that begins at the edge, and how far the writers' clocks are apart in seconds."""


def measure(quick: bool) -> Rows:
    """Returns the write units to roll up 1,000 plays, by the number of videos; the transactions for plays of one video
    around the edge of a minute; and the speed of folding records into sums, beside a plain loop over the records."""
    units = {f"{PLAYS:,} plays of {videos:,} videos": {"WCU": rollup_cost(videos)} for videos in VIDEOS}
    edges: Rows = {name: {"transactions": edge_cost(*edge)} for name, edge in EDGES.items()}
    return {**units, **edges, "the fold alone": _fold_speed(2000 if quick else 50_000)}


def edge_cost(minute: int, clocks_apart_s: float) -> int:
    """Returns the transactions to roll up PLAYS plays of one video, made in the two seconds around a minute's edge."""
    chance, batch = random.Random(SEED), receipts(PLAYS, 1)
    for number, record in enumerate(batch):
        made_s = minute * 60 - 1 + 2 * number / PLAYS
        record["dynamodb"]["ApproximateCreationDateTime"] = made_s
        stamped_s = made_s + chance.uniform(-clocks_apart_s, clocks_apart_s) / 2
        record["dynamodb"]["NewImage"]["at"] = {"N": str(int(stamped_s // 60))}
    return _roll_up(batch, 1)[0]


def rollup_cost(videos: int) -> float:
    """Returns the write units to roll up PLAYS plays of so many videos, in one batch."""
    return _roll_up(receipts(PLAYS, videos), videos)[1]


def _roll_up(batch: list[Record], videos: int) -> tuple[int, float]:
    """Rolls up these plays of so many videos, in one batch. Returns the transactions and the write units."""
    transactions: list[str] = []
    with fresh_engine() as endpoint:
        clients = clients_of(endpoint)
        events = clients.store.client.meta.events
        events.register(
            "before-send.dynamodb.TransactWriteItems", lambda event_name, **_: transactions.append(event_name)
        )
        meter = Meter(clients.store.client)
        deliver(clients, rollup.CONSUMER, "receipts", batch)
        cost = len(transactions), meter.write_units
        counted = sum(clients.read_plays(f"video-{number}") for number in range(videos))
    assert counted == PLAYS, f"{counted} of {PLAYS} plays are rolled up"
    return cost


def receipts(number: int, videos: int) -> list[Record]:
    """Returns stream records of plays whose receipts wait for the rollup."""
    chance = random.Random(SEED)
    return [
        {
            "eventName": "INSERT",
            "dynamodb": {
                "SequenceNumber": str(10**20 + index),
                "ApproximateCreationDateTime": MINUTE * 60.0,
                "Keys": {"id": {"S": f"tally#{index}"}},
                "NewImage": {
                    "id": {"S": f"tally#{index}"},
                    "counter": {"S": "plays"},
                    "target": {"S": f"video-{index if index < videos else chance.randrange(videos)}"},  # each is played
                    "amount": {"N": "1"},
                    "at": {"N": str(MINUTE)},
                    "nonce": {"S": "nonce"},
                    "rollup": {"BOOL": True},
                },
            },
        }
        for index in range(number)
    ]


def _fold_speed(number: int) -> dict[str, float]:
    """Returns the speed of the fold by CPU time, which other programs do not change, for at least `number` records."""
    declared, context = CounterIndex(counters.COUNTERS), BatchContext("receipts", SHARD)
    batch = receipts(BATCH_RECORDS, 100)
    content = json.dumps(batch).encode()
    _fold(declared, context, batch)
    started_s, folded = time.process_time(), 0
    while folded < number:
        _fold(declared, context, batch)
        folded += len(batch)
    fold_s = (time.process_time() - started_s) / folded
    loop_s = plain.loop_s(content, _target) / len(batch)
    return {"records a second": 1 / fold_s, "times a plain loop": fold_s / loop_s}


def _target(record: Record) -> tuple[str, int]:
    image = record["dynamodb"]["NewImage"]
    return image["target"]["S"], int(image["amount"]["N"])


def _fold(declared: CounterIndex, context: BatchContext, batch: Sequence[Record]) -> None:
    """Fold a batch into its runs, as an uninterrupted consumer does."""
    records = list(fold.by_sequence(batch).values())
    while records:
        records = records[fold.next_run(rollup.CONSUMER, declared, context, records, {}).records :]


def deliver(
    clients: Clients, consumer: StreamConsumer, table: str, records: list[Record], *, size: int = BATCH_RECORDS,
    shard: str = SHARD,
) -> None:  # fmt: skip
    """Deliver the records of one shard to a consumer, through its mapping's filters. `table`: counts or receipts."""
    (reader,) = [READER_OF_CONSUMER[name] for name, other in CONSUMERS.items() if other is consumer]
    handler = Handler(consumer, counters.COUNTERS, clients.store, DeadLetterBucket("bench"))
    filtered = [record for record in records if delivery.passes_filters(reader, table, record)]
    with redirect_stdout(StringIO()):  # hides the metrics that the handler prints
        Delivery(handler, f"bench-{table}", shard, filtered).deliver_all(LambdaContext(60_000), size)


def deliver_streams(
    clients: Clients, consumer: StreamConsumer, *, size: int = BATCH_RECORDS, tables: Sequence[str] = STREAMED,
    made_s: float | None = None, skip_records: int = 0,
) -> None:  # fmt: skip
    """Deliver the engine's stream records without the first `skip_records` of `counts`. `made_s`: as in `with_time`."""
    with closing(wire_of(clients)) as wire:
        for table in tables:
            stream = Stream(wire, f"bench-{table}")
            new_records = list(stream.read_new())[skip_records if table == "counts" else 0 :]
            records = [with_time(record, made_s) for record in new_records]
            deliver(clients, consumer, table, records, size=size, shard=stream.shard)


def wire_of(clients: Clients) -> SyncWire:
    """Returns a client for the streams of an engine on this machine."""
    return SyncWire(urlsplit(clients.endpoint).port or 0)


def with_time(record: Record, made_s: float | None) -> Record:
    """Returns the record as if made at `made_s`, because the engine has its own clock. None: the engine's time."""
    change = record["dynamodb"]
    return {**record, "dynamodb": change | ({} if made_s is None else {"ApproximateCreationDateTime": made_s})}


@contextmanager
def one_minute() -> Iterator[tuple[Clients, WallClock]]:
    """Runs an engine with streams, and stops the clock in the middle of a minute."""
    minute_s = SETTINGS.minute_s
    with fresh_engine(streams=True) as endpoint, WallClock((time.time() // minute_s + 0.5) * minute_s) as clock:
        yield clients_of(endpoint), clock


def write_units_of(clients: Clients, clock: WallClock, work: Callable[[], None]) -> float:
    """Returns the write units of some work. Before the work, stores that the last minute is judged, and the schema
    fingerprints, because a stack stores the fingerprints only once."""
    FingerprintCache(clients.store).note(CounterIndex(counters.COUNTERS), counters.COUNTERS)
    note_judged(clients.store, SETTINGS.minute_of(clock.now_s) - 1)
    meter = Meter(clients.store.client)
    work()
    return meter.write_units


def note_judged(store: Store, minute: int) -> None:
    """Store that all minutes up to `minute` are judged. The ledger began in 1970, so it takes every later entry."""
    item = watermark.WATERMARK_KEY | {"judged": {"N": str(minute)}, "began_s": {"N": "1"}}
    assert try_commit(store, [{"Put": {"TableName": SETTINGS.ledger_table, "Item": item}}])


def journal_complete_s(minute: int) -> int:
    """Returns the time up to which the journal is complete when `minute` is the last closed minute."""
    return (minute + 1 + watermark.COMMIT_GRACE + 1) * SETTINGS.minute_s  # the last minute is longer than CLOCK_SKEW


def track(clients: Clients, clock: WallClock, skip_records: int = 0) -> None:
    """Deliver the records to the bookkeeper, without the first `skip_records` of `counts`, and judge their minute."""
    deliver_streams(clients, bookkeeper.CONSUMER, made_s=clock.now_s, skip_records=skip_records)
    minute = SETTINGS.minute_of(clock.now_s)
    complete_s = journal_complete_s(minute)
    watermark_ = Watermark(judged=minute - 1, journal_complete_s=complete_s)
    run = judge.judge(clients.store, watermark_, complete_s, until_s=clients.store.clock() + JUDGE_S_MAX)
    assert (run.minutes, run.changes) == (1, 0), f"the judge was wrong: {run}"


def track_units(clients: Clients, clock: WallClock, skip_records: int = 0) -> float:
    """Returns the write units of `track`."""
    return write_units_of(clients, clock, partial(track, clients, clock, skip_records))
