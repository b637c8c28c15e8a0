"""A World: tables in the embedded engine, a store whose client goes through a proxy with faults, and a direct client.

Changes go through the proxy, as the changes of a function go through the network. Tests read what they assert with the
direct client.
"""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import counters
from bench.instruments import Meter
from tally.counter import Counter
from tally.counting import children, increments, posts, tallies
from tally.counting.increments import Increment
from tally.counting.receipts import ReceiptKey
from tally.counting.tallies import TOMBSTONE
from tally.dynamo import keys
from tally.dynamo.client import Call, Store
from tally.dynamo.keys import Item
from tally.errors import RetryableError
from tally.streams import record as stream_records
from tests import faults
from tests.delivery import Stream
from tests.faults import FaultProxy, Plan
from tests.invariants.streaming import ConsumerWorld

VIDEO, POST, AUTHOR = "v1", "p1", "author"
CALLER_TRIES_MAX = 40  # with FAULT_MIX, no change meets so many faults
FAULT_MIX = {
    faults.CONFLICT: 0.2, faults.THROTTLED_TRANSACTION: 0.05, faults.LOSE_RESPONSE: 0.05, faults.FAIL_AFTER: 0.05,
    faults.FAIL_BEFORE: 0.05,
}  # fmt: skip
"""The chance of each fault that a transaction can meet."""

Outcome = tuple[dict[str, Any], bool]
"""The body of an answer, and whether it is a replay."""
T = TypeVar("T")


@dataclass(kw_only=True)
class World(ConsumerWorld):
    """The tables of one test. Requests of `store` go through `proxy`. Requests of `raw` go straight to the engine."""

    proxy: FaultProxy
    child_counter: Counter = counters.LIKES
    """The counter whose children `like` puts and `unlike` removes: likes of posts, or another counter of children."""

    def call(self, caller: str | None = None, **fields: Any) -> Call:
        """Returns the call of a new invocation. `caller`: None: nobody has signed in. `fields`: fields of the call."""
        return Call(self.store, caller, **fields)

    def with_deadline(self, within_s: float, caller: str | None = None) -> tuple[World, Call]:
        """Returns this world with a clock that moves only in pauses, and a call that has `within_s` left."""
        now_s = [0.0]

        def sleep(pause_s: float) -> None:
            now_s[0] += pause_s

        store = replace(self.store, clock=lambda: now_s[0], sleep=sleep)
        return replace(self, store=store), Call(store, caller, deadline_s=within_s)

    def play(
        self,
        key: str,
        video_id: str = VIDEO,
        amount: int = 1,
        *,
        call: Call | None = None,
        counter: Counter = counters.PLAYS,
        operation: str = "play",
    ) -> Outcome:
        """Counts a play, as the handler does."""
        body = {"video_id": video_id, "counted": True}
        # `increment` changes many counters, so its receipt also names the counter.
        target = f"{counter.name}/{video_id}" if operation == "increment" else None
        change = Increment(counter, video_id, amount, operation, key, body, receipt_target=target)
        return increments.count(call or self.call(), change)

    def like(self, user: str, post_id: str = POST, key: str | None = None, *, call: Call | None = None) -> Outcome:
        """Likes a post, as the handler does."""
        return self._set(user, post_id, True, key, call or self.call(user))

    def unlike(self, user: str, post_id: str = POST, key: str | None = None, *, call: Call | None = None) -> Outcome:
        """Unlikes a post, as the handler does."""
        return self._set(user, post_id, False, key, call or self.call(user))

    def _set(self, user: str, post_id: str, liked: bool, key: str | None, call: Call) -> Outcome:
        operation = "put_mine" if liked else "delete_mine"
        if self.child_counter is not counters.LIKES:  # the service `shop` changes the child
            call, operation = replace(call, caller="shop"), "put_child" if liked else "delete_child"
        receipt_key = None if key is None else ReceiptKey(operation, post_id, key, {"child": user})
        return children.set_child(call, self.child_counter, post_id, user, liked, {"present": liked}, receipt_key)

    def write_post(self, post_id: str = POST, text: str = "hello", author: str = AUTHOR) -> tuple[dict[str, Any], bool]:
        """Creates or edits a post."""
        return posts.write_post(self.call(author), counters.LIKES, post_id, text)

    def read_post(self, post_id: str = POST) -> dict[str, Any]:
        """Returns a post as a caller reads it."""
        return posts.read_post(self.call(), counters.LIKES, post_id)

    def read_plays(self, video_id: str = VIDEO) -> int:
        """Returns the plays of a video as a caller reads them."""
        return tallies.read(self.call(), counters.PLAYS, video_id)

    def shards(self, counter: Counter = counters.PLAYS, id_: str = VIDEO) -> dict[str, int]:
        """Returns the stored numbers of a tally's items by sort key."""
        numbers = {}
        for item in self.items(counter.partition_start + id_):
            if counter.attribute in item:
                numbers[item["SK"]["S"]] = int(item[counter.attribute]["N"])
        return numbers

    def tally(self, counter: Counter = counters.PLAYS, id_: str = VIDEO) -> int:
        """Returns the stored number, which is the sum of the shards."""
        return sum(self.shards(counter, id_).values())

    def tally_after_rollup(self, counter: Counter = counters.PLAYS, id_: str = VIDEO) -> int:
        """Returns the number as it is after the rollup has added every spilled receipt and child."""
        spilled = [
            amount
            for receipt in self.receipts()
            if "rollup" in receipt
            for name, target, amount in stream_records.amounts_of(receipt, only_spilled=True)
            if (name, target) == (counter.name, id_)
        ]
        return self.tally(counter, id_) + sum(spilled) + len(self.spilled_children(counter, id_))

    def spilled_children(self, counter: Counter | None = None, id_: str = POST) -> list[Item]:
        """Returns the children of a tally that spilled, also children that were deleted later."""
        counter = counter or self.child_counter
        records = Stream(self.raw, self.name("counts")).read_new()
        inserted = [record["dynamodb"]["NewImage"] for record in records if record["eventName"] == "INSERT"]
        return [
            item
            for item in inserted
            if "rollup" in item
            and item["PK"]["S"] == counter.partition_start + id_
            and counter.child
            and item["SK"]["S"].startswith(counter.child)
        ]

    def likes(self, post_id: str = POST) -> tuple[int, set[str]]:
        """Returns the stored tally of a post's children, and the users whose child is stored."""
        items = self.items(self.child_counter.partition_start + post_id)
        sort_keys = {item["SK"]["S"] for item in items if TOMBSTONE not in item}
        start = str(self.child_counter.child)
        users = {key.removeprefix(start) for key in sort_keys if key.startswith(start)}
        return self.tally(self.child_counter, post_id), users

    def items(self, partition_key: str | None = None) -> list[Item]:
        """Returns the items of `counts` with this partition key; None: all items."""
        return [item for item in self.scan("counts") if partition_key in (None, item["PK"]["S"])]

    def receipts(self) -> list[Item]:
        """Returns the stored receipts."""
        return self.scan("receipts")

    def receipt(self) -> Item:
        """Returns the only receipt."""
        (receipt,) = self.receipts()
        return receipt

    def put_receipt(self, receipt: Item) -> None:
        """Overwrites a receipt without Tally."""
        self.raw.put_item(TableName=self.store.settings.receipts_table, Item=receipt)

    def change_child_by_hand(self, user: str, liked: bool, post_id: str = POST) -> None:
        """Puts or removes a user's like and moves the tally, without Tally and without the proxy."""
        key = keys.key(self.child_counter.partition_start + post_id, f"{self.child_counter.child}{user}")
        if liked:
            self.put({**key, "likedAt": {"N": "1"}, "nonce": {"S": "another"}})
        else:
            self.delete(key)
        self.edit(1 if liked else -1, self.child_counter, post_id)

    def requests(self, operation: str | None = None, *, forwarded: bool = False) -> list[dict[str, Any]]:
        """Returns the bodies of the proxy's kept requests. `forwarded`: only of requests that the engine got."""
        return [
            json.loads(request.body)
            for request in self.proxy.requests
            if operation in (None, request.operation) and (request.forwarded or not forwarded)
        ]

    @contextmanager
    def measure_units(self) -> Iterator[list[tuple[str, float]]]:
        """Measures the capacity units of each request in a `with` block: (operation, units)."""
        with contextlib.closing(Meter(self.store.client)) as meter:
            yield meter.billed


def before_transactions(actions: Mapping[int, Callable[[], object]]) -> Plan:
    return before_requests("TransactWriteItems", actions)


def before_requests(operation: str, actions: Mapping[int, Callable[[], object]]) -> Plan:
    """Returns a plan by which another client acts before requests. `actions`: by the request's number, from 0."""

    def plan(name: str, body: bytes, number: int) -> None:
        if name == operation and number in actions:
            actions[number]()

    return plan


def retry_until_final(change: Callable[[], T]) -> T:
    """Makes a change, and repeats the call while its error is retryable, as a good client does."""
    for _ in range(CALLER_TRIES_MAX):
        try:
            return change()
        except RetryableError:
            time.sleep(0.002)
    return change()


class ShardsInTurn(random.SystemRandom):
    """Picks each shard in turn, from shard 1 on."""

    turn = 0

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        self.turn += 1
        return self.turn % (start if stop is None else stop)


class FixedShard(random.SystemRandom):
    """Picks always the same shard. `shard`: its number. A number beyond the last shard picks the last shard."""

    def __init__(self, shard: int) -> None:
        self.shard = shard

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        return min(self.shard, (start if stop is None else stop) - 1)


FIRST_SHARD, LAST_SHARD = FixedShard(0), FixedShard(10**6)


class KilledError(BaseException):
    """The process died. The code under test does not catch this error."""


@contextmanager
def killing_at(
    store: Store, request_number: int, *, before: bool, operation: str = "", error: type[BaseException] = KilledError
) -> Iterator[list[str]]:
    """Kills the process at a request. Yields the operations of the requests before this request. `request_number`: the
    first request is 0. `before`: the request is not sent; otherwise the process does not see its response. `operation`:
    counts only the requests of one operation. `error`: the exception that the process sees."""
    requests, event = list[str](), f"{'before' if before else 'after'}-call.dynamodb.{operation}".rstrip(".")

    def kill(model: Any, **_: Any) -> None:
        if len(requests) == request_number:
            raise error
        requests.append(model.name)

    store.client.meta.events.register(event, kill, unique_id="kill")
    try:
        yield requests
    except KilledError:
        pass
    finally:
        store.client.meta.events.unregister(event, unique_id="kill")
