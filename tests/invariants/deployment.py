"""A deployment without faults, whose minutes are judged: the actions of people, and the stored state."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest

import counters
from tally.counter import Counter
from tally.counting import children, increments, posts, receipts, tallies
from tally.counting.increments import Increment
from tally.dev.base.engine import Engine
from tally.drift import recount
from tally.dynamo import keys
from tally.dynamo.client import Call, Store
from tally.dynamo.transactions import put_receipt
from tally.maintenance.reconcile import Reconciler
from tally.streams import watermark
from tests.engines import new_engine
from tests.invariants.simulation import UNDISTURBED, Clock, SimulatedWorld, Stall, seed_randomness
from tests.invariants.stream_model import TABLES
from tests.invariants.streaming import CONSUMERS

LIKES, PLAYS, VISITS = counters.LIKES, counters.PLAYS, counters.VISITS
SEED = 0
DELIVERED_S = 10.0  # in this time, consumers have read all records, also the records of the rollup's writes
JUDGED_MINUTES = 8  # until the judge, which is six to eight minutes behind, has judged each present change
CONFIRM_MINUTES = 14  # until the present drift has stood for five judged minutes (CONFIRM_AFTER), and so is confirmed


class Deployment(SimulatedWorld):
    """A world in which every process does its work at once, and nothing interrupts a process."""

    def run(self, minutes: float, act: Callable[[], object] = lambda: None) -> None:
        """Let time pass in steps of half a minute. Each step begins with a call of `act`."""
        for _ in range(int(2 * minutes)):
            act()
            self.sleep(30)

    def run_until_judged(self) -> None:
        """Let time pass until the judge has judged each present change."""
        self.run(JUDGED_MINUTES)

    def run_until_confirmed(self) -> None:
        """Let time pass until the judge has confirmed the present drift."""
        self.run(CONFIRM_MINUTES)

    def sleep(self, pause_s: float) -> None:
        """Let time pass. The processes of the deployment run on."""
        self.collect_all_records()
        self.run_until(self.clock.now_s + max(pause_s, 0.001))

    def skip(self, seconds: float) -> None:
        """Let time pass while no process runs."""
        self.collect_all_records()
        self.clock.now_s += seconds

    def collect_all_records(self) -> None:
        """Take the new stream records, also records of writes by other clients."""
        if self.store.client is not self.wire:  # type: ignore[comparison-overlap]
            self.wire.written_tables |= {self.name(table) for table in TABLES}
        self.schedule_new_records()

    def deliver(self) -> None:
        """Deliver all records to every consumer that is not stalled."""
        self.sleep(DELIVERED_S)

    def sweep_each_minute(self) -> None:
        self.schedule_in(self.settings.minute_s, self.sweep_each_minute)
        self.collect_all_records()
        self.sweep()
        self.schedule_new_records()

    def stall(self, consumer: str | None = None, table: str | None = None) -> None:
        """Stop the invocations of a consumer (None: of every consumer) for a table (None: for every table)."""
        self.stalls.append(Stall(0, float("inf"), consumer, table))

    def resume(self) -> None:
        """End the stalls: every consumer is invoked."""
        self.stalls.clear()

    def trim_and_resume(self) -> None:
        """Trim the records that stalled consumers have not seen, and end the stalls."""
        for table, shards in self.streams.shards.items():
            for number, shard in enumerate(shards):
                for consumer in CONSUMERS:
                    if any(stall.stops(self.now_s, consumer, table, number) for stall in self.stalls):
                        self.delivery_to(consumer, shard).position = len(shard.records)
        self.resume()

    @property
    def now_s(self) -> float:
        return self.clock.now_s

    @property
    def last_judged_minute(self) -> int:
        return watermark.read(self.store).judged

    def as_of(self) -> float | None:
        """Returns the `as_of` of a read by a new process, which has cached nothing."""
        watermark._cached = None
        return watermark.as_of(Call(self.store))

    def reconciler(self, client: Any = None) -> Reconciler:
        """Returns a Reconciler, as `tally repair` uses it."""
        return Reconciler(self.with_client(client), clock=self.clock, sleep=self.sleep)

    # ---- actions of people ----

    def play(self, video: str = "v", times: int = 1, counter: Counter = PLAYS) -> None:
        for _ in range(times):
            body = {"video_id": video, "counted": True}
            increments.count(Call(self.store), Increment(counter, video, 1, "play", secrets.token_hex(12), body))

    def spill(
        self,
        target: str = "v",
        times: int = 1,
        counter: Counter = PLAYS,
        writer_minute: int | None = None,
        amount: int = 1,
    ) -> None:
        """Count a play that spills. `writer_minute`: the minute of the writer's clock; None: now."""
        for _ in range(times):
            call, key = Call(self.store), secrets.token_hex(12)
            draft = receipts.draft_receipt(call, receipts.ReceiptKey("play", target, key, {}))
            minute = tallies.minute_now(call) if writer_minute is None else writer_minute
            facts = tallies.receipt_facts(counter, target, amount, minute)
            put_receipt(call, draft.pending_receipt(call, {}, **facts))

    def like(self, user: str, liked: bool = True, post: str = "p", counter: Counter = LIKES) -> None:
        children.set_child(Call(self.store), counter, post, user, liked)

    def spill_like(self, user: str, counter: Counter = LIKES) -> None:
        """Put a like, or another child, that spilled: the rollup adds it to the tally."""
        self.add_child(user, counter, nonce={"S": user}, rollup={"BOOL": True})

    def add_child(self, user: str, counter: Counter = LIKES, **attributes: Any) -> None:
        """Put a like of the post, or another child, without changing the tally."""
        key = keys.key(f"{counter.prefix}#p", f"{counter.child}{user}")
        child = key | {"likedAt": {"N": str(int(self.now_s))}} | attributes
        self.put(child | {"at": {"N": str(self.settings.minute_of(self.now_s))}})

    def delete_child(self, user: str) -> None:
        """Delete a like of the post without changing the tally."""
        self.delete(keys.key("POST#p", f"LIKE#USER#{user}"))

    def post(self, likers: int = 0, post: str = "p") -> None:
        """Write a post, and let the users u0, u1, … like the post."""
        posts.write_post(Call(self.store, "author"), LIKES, post, "hello")
        for number in range(likers):
            self.like(f"u{number}", post=post)

    def run_without_drift(self, minutes: int = JUDGED_MINUTES) -> None:
        """Let time pass, by default until each change is judged. Fails if any tally drifts at any step."""
        self.run(minutes, lambda: None if not self.drifts() else pytest.fail(f"{self.drifts()}"))
        assert self.drifts() == {}

    def tally(self, counter: Counter = LIKES, target: str = "p") -> int:
        return recount.stored_sum(counter, tallies.read_numbered_shards(Call(self.store), counter, target))


@contextmanager
def deployed(engine: Engine | None = None, store: Store | None = None) -> Iterator[Deployment]:
    """Starts a deployment, which has judged its first minutes. `engine` is None: on a new engine."""
    clock = Clock()
    with nullcontext(engine) if engine else new_engine() as running, seed_randomness(clock, SEED):
        deployment = Deployment(running, clock, SEED, UNDISTURBED, shards=1, store=store)
        deployment.sweep_each_minute()
        for _ in range(20):
            deployment.run(1)
            if deployment.last_judged_minute > 0:
                break
        else:
            raise AssertionError("no minute was judged")
        yield deployment
        deployment.wire.close()
        assert "a consumer failed" not in deployment.failures
