"""The day that `make pictures` shows: the page views of a real day, and the actions of made-up users.

The functions of `make dev` use the machine's clock, and series need hours. So this module counts the day before
`make dev` starts, into its data folder. The module runs the core, consumers and sweep of Tally in this process, in
virtual time. The day ends at most an hour ago. Tally counts all but the edit by hand, and must find this edit.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import io
import random
import secrets
import time
from collections import Counter as Tallied
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from bench.demo.weblog import SITE
from counters import CALLS, LIKES, PAGES, PLAYS, VISITS
from tally import fields
from tally.counter import Counter
from tally.counting import children, increments, periods, posts, tallies
from tally.counting.increments import Increment
from tally.dev.base.engine_file import trim
from tally.dev.base.options import DevOptions
from tally.dev.base.wire import Wire
from tally.dev.functions.code import CodeVersions
from tally.dev.stack.code import Spawned
from tally.dev.stack.prepared import PreparedStack, prepare_stack
from tally.dev.stack.template import Template
from tally.drift import judge
from tally.dynamo.client import Call, Store
from tally.dynamo.shards import StreamShards
from tally.series import hours
from tally.settings import Settings
from tally.streams import watermark
from tests.contexts import LambdaContext
from tests.delivery import Record, Stream
from tests.invariants.simulation import Clock, TimedWire, seed_randomness
from tests.invariants.stream_model import TABLES
from tests.invariants.streaming import CONSUMERS, EngineStreams

LOG = Path(__file__).resolve().parent.parent / "bench/data/nasa-http-1995-08-01-pages.tsv.gz"
SEED = 1995
HOUR_S, DAY_S = 3600, 24 * 3600
# A minute of the ledger. Shorter minutes take more calls here. Longer minutes delay the repair in `make dev`.
MINUTE_S = 5
READ_EVERY_S = MINUTE_S / 2  # a record gets the time of its read, which must be less than a ledger's minute late
SWEEP_EVERY_S = 600  # each sweep judges all closed minutes
LAST_SWEEPS_S = 20  # between two of the LAST_SWEEPS, which leave few minutes for `make dev` to judge
LAST_SWEEPS = 9
NAMES = ("ana", "ben", "chloe", "dev", "elif", "femi", "goran", "hana", "ivo", "jun", "kofi", "lena", "mika", "noor")
LIKES_BY_POST = {
    "sts-69-crew": 214,
    "endeavour-rollout": 131,
    "apollo-13-diary": 78,
    "winvn-tips": 40,
    "pad-39a-photos": 12,
}
PLAYS_BY_VIDEO = {"sts-71-landing": 318, "sts-70-liftoff": 164, "apollo-11-eagle": 97, "skylab-tour": 31}
CALLS_BY_CLIENT = {"mission-control": 940, "press-site": 412, "school-42": 87}  # the limit is 1,000 a day
EDITED_VIDEO, EDIT_AMOUNT = "sts-71-landing", 250
EDIT_SECOND = 11.4 * HOUR_S  # the second of the day in which the number is edited


class FilledDay(NamedTuple):
    """The counted day. `visits`: the views by page. `began_s`: when the day began, in epoch seconds, a whole hour."""

    visits: Tallied[str]
    began_s: int

    @property
    def zone(self) -> str:
        """The time zone in which the day began at midnight, so that clocks show the log's time of day."""
        hours_behind_utc = self.began_s % DAY_S // HOUR_S
        return f"Etc/GMT+{hours_behind_utc}" if hours_behind_utc <= 12 else f"Etc/GMT-{24 - hours_behind_utc}"


class Day(EngineStreams):
    """The tables of a stack, and the records of its streams that no consumer has received."""

    def __init__(self, store: Store, wire: TimedWire, clock: Clock, shards: StreamShards, file: Path) -> None:
        super().__init__(store, wire)
        self.clock, self._shards, self._file = clock, shards, file
        self._readers: dict[str, Stream] = {table: Stream(wire, self.name(table)) for table in TABLES}
        self._undelivered: dict[str, list[Record]] = {table: [] for table in TABLES}

    def read_records(self) -> None:
        """Read the new records, and give them the virtual time. The engine stamps records with the machine's time."""
        for table in TABLES:
            for record in self._readers[table].read_new():
                stamped = record["dynamodb"] | {"ApproximateCreationDateTime": int(self.clock())}
                self._undelivered[table].append(record | {"dynamodb": stamped})

    def deliver_and_sweep(self) -> None:
        """Deliver all waiting records, then the records of the rollup's writes, and sweep."""
        self.read_records()
        delivered = dict[str, int]()
        for table in TABLES * 2:  # twice, because the rollup's writes make records
            records, self._undelivered[table] = self._undelivered[table], []
            for consumer in CONSUMERS:
                self.delivery(consumer, table, self._readers[table].shard, records).deliver_all(LambdaContext())
            if records:
                delivered[self.name(table)] = int(records[-1]["dynamodb"]["SequenceNumber"])
            self.read_records()
        while not trim(self._file, delivered):  # if the records stayed, each write would take longer
            pass
        self._sweep()
        self.read_records()

    def _sweep(self) -> None:
        """Run the parts of a sweep (operations/sweep.py) that the pictures need."""
        before, now_s = watermark.read(self.store), self.clock()
        watermark.advance(self.store, self._shards, before, now_s)
        judge.judge(self.store, before, now_s, until_s=float("inf"))
        hours.sum_up(self.store, watermark.read(self.store).judged, until_s=float("inf"))

    def edit(self, counter: Counter, id_: str, amount: int) -> None:
        """Edit a number by hand, without Tally."""
        self.raw.update_item(
            TableName=self.name("counts"),
            Key=tallies.key(counter, id_, shard=0),
            UpdateExpression="ADD #number :amount",
            ExpressionAttributeNames={"#number": counter.attribute},
            ExpressionAttributeValues={":amount": {"N": str(amount)}},
        )


def fill(app: Path, data: Path, now_s: float) -> FilledDay:
    """Count the day, up to now, into the data folder of a `make dev`. Raises LocalError if `make dev` is running."""
    views = read_views()
    began_s = int(now_s - views[-1][0]) // HOUR_S * HOUR_S
    options = DevOptions(app=app, port=0, data=data, endpoint=None, page_hosts="*", minute_s=MINUTE_S)
    clock = Clock(began_s)
    with (
        _day(options, clock) as day,
        seed_randomness(clock, SEED),
        contextlib.redirect_stdout(io.StringIO()),  # hides the metrics
    ):
        sweep_due_s = read_s = float(began_s)
        for at_s, event in sorted(_events(day, views, began_s), key=lambda event: event[0]):
            while at_s >= sweep_due_s:
                clock.now_s = sweep_due_s
                day.deliver_and_sweep()
                sweep_due_s += SWEEP_EVERY_S
            if at_s - read_s >= READ_EVERY_S:  # before the clock moves on, because records get its time
                day.read_records()
                read_s = at_s
            clock.now_s = at_s
            event()
        day.read_records()
        for sweeps_left in reversed(range(LAST_SWEEPS)):
            clock.now_s = max(clock.now_s, now_s - sweeps_left * LAST_SWEEPS_S)
            day.deliver_and_sweep()
    assert not day.bucket.objects, "there is a dead letter"
    return FilledDay(Tallied(_page(path) for _, path in views), began_s)


@contextlib.contextmanager
def _day(options: DevOptions, clock: Clock) -> Iterator[Day]:
    """Prepare the tables of a stack that does not run, with the settings of its sweep."""
    with prepare_stack(options) as (stack, spawned):
        assert stack.engine is not None
        assert stack.engine.db_path is not None
        sweep = asyncio.run(_load_code(stack, spawned)).functions["sweep"]
        no_bus = {"TALLY_EVENT_BUS": ""}  # the sweep of the later `make dev` sends the events
        settings = Settings.from_environment({**stack.variables, **sweep.environment, **no_bus})
        arns = {"counts": settings.counts_stream, "receipts": settings.receipts_stream}
        with contextlib.closing(TimedWire(stack.engine.port, clock)) as wire:
            store = Store(wire, settings)  # type: ignore[arg-type]
            yield Day(store, wire, clock, StreamShards(arns, lambda: wire), stack.engine.db_path)


async def _load_code(stack: PreparedStack, spawned: Spawned) -> Template:
    """Load the code and create the tables. Returns the template, which has the functions' variables."""
    async with Wire(stack.endpoint, stack.endpoint) as wire:
        zygote, template = await CodeVersions(stack, wire).load_first(spawned)
        zygote.close()
        await asyncio.sleep(0)  # lets the zygote's connection close
        return template


def read_views() -> list[tuple[int, str]]:
    """Returns the second of the day and the path of each page view, in order."""
    lines = gzip.decompress(LOG.read_bytes()).decode().splitlines()
    return [(int(second), path) for second, path in (line.split("\t") for line in lines)]


def _page(path: str) -> str:
    return fields.page(SITE + path, "url", PAGES)


def _events(day: Day, views: Sequence[tuple[int, str]], began_s: int) -> Iterator[tuple[float, Callable[[], object]]]:
    """Yields the time and the function of each event. Likes and plays are made at random times of page views.

    Calls are counted by the day in UTC. The console shows the present day, so all calls are on the last day in UTC.
    """
    rng, store = random.Random(SEED), day.store
    times = [began_s + at for at, _ in views]
    today = [at for at in times if at // DAY_S == times[-1] // DAY_S]
    for at, path in views:
        yield began_s + at, partial(_count, store, VISITS, _page(path), "visit")
    for video, number in PLAYS_BY_VIDEO.items():
        yield from ((at, partial(_count, store, PLAYS, video, "increment")) for at in rng.choices(times, k=number))
    for client, number in CALLS_BY_CLIENT.items():
        yield from ((at, partial(_count, store, CALLS, client, "increment")) for at in rng.choices(today, k=number))
    for post, number in LIKES_BY_POST.items():
        yield began_s, partial(posts.write_post, Call(store, "ana"), LIKES, post, f"All about {post}.")
        users = rng.sample([f"{name}-{index}" for name in NAMES for index in range(40)], number)
        for user, at in zip(users, rng.choices(times, k=number), strict=True):
            yield at, partial(_like, store, post, user)
    yield began_s + EDIT_SECOND, partial(day.edit, PLAYS, EDITED_VIDEO, EDIT_AMOUNT)


def _count(store: Store, counter: Counter, id_: str, operation: str) -> None:
    """Count one event, as the function of this operation does."""
    tally, key = periods.tally_id(counter, id_, time.time()), secrets.token_hex(12)
    body = (
        {"counted": True}
        if counter is VISITS
        else {"counter": counter.name, **periods.answer_members(tally), "counted": True}
    )
    target = None if counter is VISITS else f"{counter.name}/{id_}"
    change = Increment(counter, tally, amount=1, operation=operation, key=key, body=body, receipt_target=target)
    increments.count(Call(store), change)


def _like(store: Store, post: str, user: str) -> None:
    children.set_child(Call(store, user), LIKES, post, user, puts=True)
