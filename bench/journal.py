"""The cost of the journal: the segments of 1,000 changes, and the judge's work on them, in write units.

The changes are real, and their stream records reach the real bookkeeper in batches of 1,000. All changes are of one
minute, because a batch of two minutes has two segments. Checkpoints are included. Heartbeats are not, because they cost
the same without traffic (docs/cost.md).
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Sequence
from contextlib import closing

import counters
from tally.counting import children, posts, tallies
from tally.counting.increments import Increment, count
from tally.dynamo.client import Call
from tally.streams import rollup
from tests.delivery import Stream

from .consumers import SEED, deliver_streams, one_minute, track, track_units, wire_of, write_units_of
from .instruments import Rows

POSTS = (1, 10, 100, 1000)
QUICK_CHANGES = 50  # of each case in a quick run
VISIT = "a visit, each of another page, with rollup and judge"


def measure(quick: bool) -> Rows:
    """Returns the write units of each case, with 1,000 changes, or QUICK_CHANGES."""
    changes = QUICK_CHANGES if quick else 1000
    chance = random.Random(SEED)
    short = [f"{chance.getrandbits(32):08x}" for _ in range(changes)]
    uuids = [str(uuid.UUID(int=chance.getrandbits(128))) for _ in range(changes)]
    return {
        **{f"1,000 likes of {posts:,} posts": {"WCU": _likes(posts, changes)} for posts in POSTS if posts <= changes},
        "1,000 plays of 1,000 videos": {"WCU": track_plays(short)},
        "1,000 plays of 1,000 videos, ids are UUIDs": {"WCU": track_plays(uuids)},
        VISIT: {"WCU": _visits(short)},
    }


def _likes(post_count: int, like_count: int) -> float:
    """Returns the write units to track the drift of likes of random posts."""
    chance = random.Random(SEED)
    with one_minute() as (clients, clock):
        for number in range(post_count):
            posts.write_post(Call(clients.store, "author"), counters.LIKES, f"post-{number}", "hello")
        with closing(wire_of(clients)) as wire:
            records_of_posts = len(list(Stream(wire, "bench-counts").read_new()))
        for number in range(like_count):
            call, post_id = Call(clients.store, f"user-{number}"), f"post-{chance.randrange(post_count)}"
            children.set_child(call, counters.LIKES, post_id, call.caller or "", puts=True)
        return track_units(clients, clock, records_of_posts)


def track_plays(videos: Sequence[str]) -> float:
    """Returns the write units to track the drift of a play of each video."""
    with one_minute() as (clients, clock):
        for video_id in videos:
            body = {"video_id": video_id, "counted": True}
            count(Call(clients.store), Increment(counters.PLAYS, video_id, 1, "play", f"key-of-{video_id}", body))
        return track_units(clients, clock)


def _visits(names: Sequence[str]) -> float:
    """Returns the write units of one visit: receipt, rollup, journal, judge."""
    pages = [f"https://example.com/articles/{name}" for name in names]
    with one_minute() as (clients, clock):

        def visit_all() -> None:
            for page in pages:
                increment = Increment(counters.VISITS, page, 1, "visit", f"key-of-{page}", {"counted": True})
                count(Call(clients.store), increment)
            deliver_streams(clients, rollup.CONSUMER, made_s=clock.now_s)
            track(clients, clock)

        units = write_units_of(clients, clock, visit_all)
        counted = sum(tallies.read(Call(clients.store), counters.VISITS, page) for page in pages)
        assert counted == len(pages), f"{counted} of {len(pages)} visits are rolled up"
    return units / len(pages)
