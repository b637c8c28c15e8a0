"""What the journal costs: the pages of 1,000 changes, and the judge's look at them, in write units.

The changes are real, and their stream records reach the real bookkeeper in batches of 1,000. All are of one minute; one
that goes on into a second minute costs a page more a batch. Checkpoints are included. Heartbeats are not: they cost the
same without traffic (docs/cost.md).
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import counters
from tally.counting import children, posts, tallies
from tally.counting.increments import Increment, count
from tally.drift import judge
from tally.dynamo.client import Call, Store
from tally.dynamo.transactions import apply_once
from tally.streams import bookkeeper, rollup, watermark
from tally.streams.fold import StreamConsumer
from tally.streams.record import INSERT, Record
from tally.streams.watermark import Watermark

from .bounds import Bounded, plural
from .clients import SETTINGS, Clients, clients_of, fresh_engine
from .rollups import SEED, deliver, handler_of, stream
from .virtual_time import WallClock
from .watch import Meter

CHANGES = 1000
LIKES = {1: ("9", 9), 10: ("54", 10), 100: ("508", 20), 1000: ("5,044", 60)}
"""By number of posts: the write units of 1,000 likes for abc542c, and the bound."""
SHORT_MAX, UUIDS_MAX = 40, 120
VISIT_MAX = 3.2
TABLES = (SETTINGS.receipts_table, SETTINGS.counts_table)


def measure_journal(changes: int = CHANGES) -> list[Bounded]:
    """The write units of each case, with `changes` changes (1,000, or fewer in a quick run)."""
    chance = random.Random(SEED)
    short = [f"{chance.getrandbits(32):08x}" for _ in range(changes)]
    uuids = [str(uuid.UUID(int=chance.getrandbits(128))) for _ in range(changes)]
    return [
        *(
            Bounded(f"drift of {changes:,} likes of {plural(made, 'post')}", "WCU", before,
                    _likes(made, changes), bound)
            for made, (before, bound) in LIKES.items()
            if made <= changes
        ),
        Bounded(f"drift of {changes:,} plays, each of another video", "WCU", "8,044", track_plays(short), SHORT_MAX),
        Bounded("the same, ids are UUIDs", "WCU", "8,044", track_plays(uuids), UUIDS_MAX),
        Bounded("a visit of a page of its own, everything", "WCU", "up to 11", track_visits(short), VISIT_MAX,
                full_only=True),
    ]  # fmt: skip


def _likes(posts_made: int, likes_made: int) -> float:
    """Write units to track the drift of likes, spread over posts by chance."""
    chance = random.Random(SEED)
    with engine() as (endpoint, clients, clock):
        for number in range(posts_made):
            posts.write_post(Call(clients.store, "author"), counters.LIKES, f"post-{number}", "hello")
        before = len(_records(endpoint, SETTINGS.counts_table, clock))
        for number in range(likes_made):
            call, post_id = Call(clients.store, f"user-{number}"), f"post-{chance.randrange(posts_made)}"
            children.set_child(call, counters.LIKES, post_id, call.caller or "", True)
        return metered(clients, clock, lambda: track(endpoint, clients, clock, before))


def track_plays(videos: Sequence[str]) -> float:
    """Write units to track the drift of a play of each video."""
    with engine() as (endpoint, clients, clock):
        for video_id in videos:
            body = {"video_id": video_id, "counted": True}
            count(Call(clients.store), Increment(counters.PLAYS, video_id, 1, "play", f"key-of-{video_id:>20}", body))
        return metered(clients, clock, lambda: track(endpoint, clients, clock))


def track_visits(names: Sequence[str]) -> float:
    """Write units of one visit: receipt, rollup, drift, judging."""

    def visit_all(endpoint: str, clients: Clients, clock: WallClock) -> None:
        for page in pages:
            increment = Increment(counters.VISITS, page, 1, "visit", f"key-of-{page}", {"counted": True}, status=202)
            count(Call(clients.store), increment)
        hand_over(endpoint, clients, clock, rollup.CONSUMER)
        track(endpoint, clients, clock)

    pages = [f"https://example.com/articles/{name}" for name in names]
    with engine() as (endpoint, clients, clock):
        units = metered(clients, clock, lambda: visit_all(endpoint, clients, clock))
        counted = sum(tallies.read(Call(clients.store), counters.VISITS, page) for page in pages)
        assert counted == len(pages), f"{counted} visits rolled up of {len(pages)}"
    return units / len(pages)


@contextmanager
def engine() -> Iterator[tuple[str, Clients, WallClock]]:
    """An engine with streams, its clients, and a clock that stands in the middle of a minute."""
    minute_s = SETTINGS.minute_s
    with fresh_engine(streams=True) as endpoint, WallClock((time.time() // minute_s + 0.5) * minute_s) as clock:
        yield endpoint, clients_of(endpoint), clock


def metered(clients: Clients, clock: WallClock, work: Callable[[], None]) -> float:
    """The write units of some work, for which the minute before this one is judged."""
    _note_judged(clients.store, SETTINGS.minute(clock.now_s) - 1)
    meter = Meter(clients.store.client)
    work()
    return meter.write_units


def _note_judged(store: Store, minute: int) -> None:
    item = watermark.JUDGE | {"judged": {"N": str(minute)}}
    assert apply_once(store, [{"Put": {"TableName": SETTINGS.ledger_table, "Item": item}}])


def track(endpoint: str, clients: Clients, clock: WallClock, skipped: int = 0) -> None:
    """Deliver the records to the bookkeeper, but for the first `skipped` of counts, and judge their minute."""
    hand_over(endpoint, clients, clock, bookkeeper.CONSUMER, skipped)
    minute = SETTINGS.minute(clock.now_s)
    known_s = (minute + 1 + watermark.LATE + 1) * SETTINGS.minute_s
    seen = Watermark(judged=minute - 1, known_s=known_s)
    found = judge.judge(clients.store, seen, known_s, until_s=clients.store.clock() + 60)
    assert (found.minutes, found.changes) == (1, 0), f"judged: {found}"


def hand_over(endpoint: str, clients: Clients, clock: WallClock, consumer: StreamConsumer, skipped: int = 0) -> None:
    """Deliver both streams to a consumer, without what the filter of its mapping keeps back."""
    handler = handler_of(consumer, clients)
    for table in TABLES:
        found = _records(endpoint, table, clock)[skipped if table == SETTINGS.counts_table else 0 :]
        if consumer is rollup.CONSUMER:
            found = [record for record in found if record["eventName"] == INSERT]
        deliver(handler, table, found, shard=f"shardId-{table}")


def _records(endpoint: str, table: str, clock: WallClock) -> list[Record]:
    """The records of a stream, as made now: the engine has a clock of its own."""
    return [
        {**record, "dynamodb": {**record["dynamodb"], "ApproximateCreationDateTime": clock.now_s}}
        for record in stream(endpoint, table)
    ]
