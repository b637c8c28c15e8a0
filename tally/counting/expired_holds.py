"""The sweep releases expired holds, and reports the holds that it cannot release.

A hold cannot be released if its tally is at a limit that was declared after the hold was placed, if DynamoDB rejects
the release, or if its counter is not declared. The sweep moves such a hold from the due to the overdue holds, where it
delays no other hold, and where each sweep tries to release it. A hold stays due if its release may soon succeed, as
after throttling. An item that lacks a hold's attributes also stays where it is.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from .. import observe
from ..counter import Counter
from ..dynamo import items
from ..dynamo.client import Call, Store
from ..dynamo.keys import Item
from ..dynamo.queries import Page
from ..dynamo.transactions import TRANSACTION_ITEMS_MAX, Write, try_commit
from ..errors import ConfigurationError, LimitReachedError, RetryableError, StoreRefusedError, TallyError
from .hold_items import BUCKETS, OVERDUE, due_pages, expect_as_read, key_part, overdue_pages
from .holds import EXPIRE, make_transition

PAGE_MAX = TRANSACTION_ITEMS_MAX // 2  # holds of one read: one transaction can move all, with two writes each
RELEASE_S_MAX = 1.0  # seconds for one hold, because the other holds wait


class SweptHolds(NamedTuple):
    """How many holds a sweep released, how many holds it could not release, and whether it tried all holds."""

    released: int
    failed: int
    finished: bool


def sweep(store: Store, counters: Mapping[str, Counter], until_s: float) -> SweptHolds:
    """Releases expired holds, until `until_s` on the store's clock. The next sweep continues.

    Reads a page of each bucket (partition of holds) in turn. Begins at random, so that no bucket is always the last.
    If a hold cannot be released, logs this, counts the hold in the metric HoldsNotReleased, and continues."""
    run, finished = _HoldsSweep(store, counters, until_s), True
    first = store.spread.random.randrange(BUCKETS)
    buckets = [(first + number) % BUCKETS for number in range(BUCKETS)]
    turns = deque([read(store, bucket, PAGE_MAX) for read in (due_pages, overdue_pages) for bucket in buckets])
    while turns and not run.is_out_of_time:
        pages = turns.popleft()
        try:
            page = next(pages, None)
        except TallyError:
            observe.logger.exception("holds not read")
            finished = False
            continue
        if page is not None:
            turns.append(pages)
            run.release_page(page)
    finished = finished and not turns
    run.report(tried_all=finished)
    return SweptHolds(run.released, len(run.failed_ids), finished)


@dataclass
class _HoldsSweep:
    """One sweep, and what it did. `released`: the number of holds that it released."""

    store: Store
    counters: Mapping[str, Counter]
    until_s: float
    released: int = 0
    failed_ids: set[str] = field(default_factory=set)
    """The ids of the holds whose release failed."""
    failed_tallies: dict[str, tuple[int, bool]] = field(default_factory=dict)
    """By tally of a failed release: the amount from which the sweep tries no hold of the tally (0: it tries none), and
    whether the holds that it does not release become overdue."""

    @property
    def is_out_of_time(self) -> bool:
        return self.store.clock() >= self.until_s

    def release_page(self, page: Page) -> None:
        """Releases the holds of a page, and commits the moves of `_release`."""
        moves: list[Write] = []
        for hold in page:
            if self.is_out_of_time:
                return
            try:
                moves += self._release(hold)
            except (KeyError, TypeError, ValueError):  # an item that somebody put manually
                observe.logger.exception("not a hold", extra={"key": hold["SK"]})
                self.failed_ids.add(hold["SK"]["S"])
        try:
            if moves and not try_commit(self.store, moves):
                observe.logger.info("holds not moved")  # another call changed a hold; the next sweep moves the rest
        except TallyError:
            observe.logger.exception("holds not moved")

    def report(self, *, tried_all: bool) -> None:
        """Writes the metric, but a 0 only if the sweep tried all holds."""
        if tried_all or self.failed_ids:
            observe.write_metrics({observe.HOLDS_NOT_RELEASED: len(self.failed_ids)})

    def _release(self, hold: Item) -> list[Write]:
        """Releases one hold. Returns the writes that make the hold overdue; none if the hold is released or is overdue,
        or if a release may soon succeed."""
        name, id_, hold_id = (hold[attribute]["S"] for attribute in ("counter", "target", "hold_id"))
        tally, amount = f"{name}/{id_}", abs(int(hold["amount"]["N"]))
        if amount < self.failed_tallies.get(tally, (math.inf, False))[0]:
            try:
                if name not in self.counters:
                    raise ConfigurationError(f"The counter {name} is not declared.")
                call = Call(self.store, deadline_s=min(self.until_s, self.store.clock() + RELEASE_S_MAX))
                self.released += make_transition(call, self.counters[name], hold, EXPIRE)
                return []
            except TallyError as error:
                log_fields = {"hold_id": hold_id, "tally": tally, "reason": str(error.__cause__ or error)}
                observe.logger.warning("hold not released", extra=log_fields)
                # A retry of StoreRefusedError succeeds only after somebody has mended the deployment or the item.
                is_transient = isinstance(error, RetryableError) and not isinstance(error, StoreRefusedError)
                self.failed_tallies[tally] = (amount if isinstance(error, LimitReachedError) else 0, not is_transient)
        self.failed_ids.add(hold_id)
        if hold["SK"]["S"].startswith(OVERDUE) or not self.failed_tallies[tally][1]:
            return []
        table = {"TableName": self.store.settings.ledger_table}
        overdue_key = f"{OVERDUE}{key_part(name, id_)}#{hold_id}"
        as_read = items.with_expected({**table, "Key": {"PK": hold["PK"], "SK": hold["SK"]}}, expect_as_read(hold))
        return [{"Delete": as_read}, {"Put": {**table, "Item": {**hold, "SK": {"S": overdue_key}}}}]
