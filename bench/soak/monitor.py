"""Checks the tables while the soak runs, for false drift and for reads that lack changes from before `as_of`."""

from __future__ import annotations

import heapq
import random
from collections import defaultdict
from dataclasses import dataclass, field

import counters
from tally.counting import tallies
from tally.dev.base.engine_file import trim
from tally.drift import rows
from tally.dynamo import keys, queries
from tally.dynamo.client import Call, Store
from tally.streams import watermark

from ..clients import STREAMED
from . import notes
from .notes import Accepted, Reader, Tally
from .setup import ENGINE, SoakSetup

GROWING_COUNTERS = {"plays": counters.PLAYS, "visits": counters.VISITS}
"""Counters that only count up. Reads of these counters show at least every change that was accepted before `as_of`."""
HOT_TALLIES = (("plays", "v0"), ("visits", "https://example.com/0"))
RANDOM_TALLIES_CHECKED = 6  # tallies that each check reads beside HOT_TALLIES
TRIM_MARGIN = 3_000  # passed records that are kept, so that a restart delivers some records again


@dataclass
class Monitor:
    """The findings so far.

    `drifts`: counter, id and amount of confirmed false drift. `errors`: messages about reads that lack a change from
    before `as_of`. The main process adds a message if Tally does not roll up and judge every change in time.
    """

    setup: SoakSetup
    store: Store
    accepted: Accepted = field(default_factory=Accepted)
    drifts: set[tuple[str, str, int]] = field(default_factory=set)
    errors: list[str] = field(default_factory=list)
    drift_rows: int = 0  # how many drift rows the checks have found
    """An unconfirmed row is no error: the two halves of a change may be judged at different times."""
    judged_minutes: int = 0  # since the first check that found a judged minute
    last_judged: int = -1  # the last judged minute; -1: Tally has judged no minute
    checks: int = 0

    def __post_init__(self) -> None:
        self._chance = random.Random(self.setup.seed)
        self._reader = Reader(self.setup.folder)
        self._growth: dict[Tally, Growth] = defaultdict(Growth)
        self._first_judged: int | None = None
        self._drift_rows: set[tuple[str, str, int]] = set()

    @property
    def problem_count(self) -> int:
        """How many drifts, errors, and unknown or wrong answers there are."""
        return len(self.drifts) + len(self.errors) + len(self.accepted.unknown_or_wrong)

    def check(self) -> None:
        """Read the new notes, the ledger and some tallies, and collect false drift and errors."""
        new = list(self._reader.read_new())
        self.accepted.add(new)
        for note in new:
            if note.outcome in (notes.COUNTED, notes.IMPORTED) and note.counter in GROWING_COUNTERS:
                self._growth[note.counter, note.id].add(note.answered_s, note.amount)
        watermark_ = watermark.read(self.store)
        if watermark_.judged >= 0:
            self._first_judged = watermark_.judged if self._first_judged is None else self._first_judged
            self.judged_minutes, self.last_judged = watermark_.judged - self._first_judged, watermark_.judged
        for drift in rows.all_rows(self.store):
            if drift.confirmed_amount(watermark_):
                self.drifts.add((drift.counter, drift.target, drift.drift))
            row = (drift.counter, drift.target, drift.last_minute)
            self.drift_rows += row not in self._drift_rows
            self._drift_rows.add(row)
        self._check_as_of(watermark_.as_of(self.store.settings))
        self.checks += 1

    def _check_as_of(self, as_of_s: int | None) -> None:
        """Read the hot tallies and some others. Each must have the changes that were answered before `as_of_s`."""
        if as_of_s is None:
            return
        hot = [tally for tally in HOT_TALLIES if tally in self._growth]
        for tally in [*hot, *self._chance.sample(sorted(self._growth), min(RANDOM_TALLIES_CHECKED, len(self._growth)))]:
            number = tallies.read(Call(self.store), GROWING_COUNTERS[tally[0]], tally[1])
            accepted = self._growth[tally].sum_before(as_of_s)
            if number < accepted:
                self.errors.append(f"{tally} showed {number} as of {as_of_s}: {accepted} were accepted before")

    def trim(self, shards: dict[str, str]) -> None:
        """Delete stream records that both consumers have passed, because each record slows the engine down."""
        passed = {}
        for table in STREAMED:
            positions = []
            for consumer in ("rollup", "bookkeeper"):
                key = keys.key(*keys.checkpoint_key(consumer, table, shards[table]))
                item = queries.get(self.store.client, self.store.settings.ledger_table, key)
                positions.append(int(item["sequence"]["S"]) if item else 0)
            passed[f"soak-{table}"] = max(0, min(positions) - TRIM_MARGIN)
        trim(self.setup.folder / ENGINE, passed)


@dataclass
class Growth:
    """The accepted changes of one tally, by time."""

    sum_: int = 0  # of the changes that were answered before the last `before_s`
    _waiting: list[tuple[float, int]] = field(default_factory=list)
    """A heap of the other changes: the time of the answer, and the amount."""

    def add(self, answered_s: float, amount: int) -> None:
        """Add an accepted change. `answered_s`: the time of its answer."""
        heapq.heappush(self._waiting, (answered_s, amount))

    def sum_before(self, before_s: float) -> int:
        """Returns the sum of the changes answered before `before_s`, which must not decrease from call to call."""
        while self._waiting and self._waiting[0][0] < before_s:
            self.sum_ += heapq.heappop(self._waiting)[1]
        return self.sum_
