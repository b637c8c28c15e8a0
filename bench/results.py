"""The results of a run, and whether Tally's claims hold."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from .accuracy import Accuracy
from .bounds import Bounded, plural
from .console import Console
from .costs import BATCH_PLAYS, Batch, Like, Read
from .designs import BARE_TRANSACTION, EXACT, PLAIN_ADD, PLAIN_PUT, POWERTOOLS, ROLLUP, TIMED
from .feed import FEED, READ_MS, Feed
from .hot_key import Outcome
from .imports import Imports
from .many import ALL_IN_MAX, ALL_IN_SETS, NOW, NOW_MAX, PLAYS, SOON, SOON_MAX, VIDEOS, Many
from .rolled_up import RolledUp
from .rollups import Rollups
from .speed import Cost

EXACT_TO_BARE_MAX = 1.2
EXACT_TO_POWERTOOLS_MAX = 0.55
ROLLUP_TO_PUT_MAX = 1.1
FOLDED_PER_S_MIN = 50_000
FEED_FASTER_MIN = 5
ROLLED_UP_S_MAX = 2.0
CONSOLE_BYTES_MAX = 150 * 1000
IMPORT_TO_BOTO3_MAX = 1.25
EXACT_WRITE_UNITS = 4.0
ROLLUP_WRITE_UNITS = 1.0
LIKE_WRITE_UNITS = 4.0
HOT_P99_MS_MAX, HOT_P99_PER_S = 100.0, 200
HOT_FAILED_MAX, HOT_FAILED_PER_S = 0.005, 1000
BATCH_WRITE_UNITS_MAX = 2.05  # a receipt is 2; all plays share one update


@dataclass(frozen=True)
class Claim:
    """One claim: its subject, the measured value, the bound, and whether it held.

    `held` is None if the claim was not judged: times of a quick run mean nothing.
    """

    what: str
    measured: str
    bound: str
    held: bool | None


@dataclass(frozen=True)
class Results:
    """All measurements, by the names of the designs. `judge_times`: whether the run is long enough to judge times."""

    times_us: dict[str, float]
    costs: dict[str, Cost]
    accuracy: dict[str, Accuracy]
    likes: list[Like]
    reads: list[Read]
    batches: list[Batch]
    many: list[Many]
    imports: Imports
    hot: list[Outcome]
    rollups: Rollups
    ledger: list[Bounded]
    rolled_up: RolledUp | None
    feed: Feed | None
    console: Console | None
    """These three are None in a quick run: each would start the whole stack."""
    judge_times: bool

    def claims(self) -> list[Claim]:
        """Every claim, judged."""
        return [
            *self._time_claims(),
            *self._cost_claims(),
            *self._many_claims(),
            *self._exactness_claims(),
            *self._hot_claims(),
            *self._rollup_claims(),
            *self._ledger_claims(),
        ]

    def _time_claims(self) -> list[Claim]:
        def ratio(what: str, measured: float, most: float) -> Claim:
            return Claim(what, f"{measured:.2f}", f"≤ {most}", measured <= most if self.judge_times else None)

        us = self.times_us
        return [
            ratio("time: EXACT to a bare transaction", us[EXACT.name] / us[BARE_TRANSACTION.name], EXACT_TO_BARE_MAX),
            ratio("time: EXACT to Powertools' layer", us[EXACT.name] / us[POWERTOOLS.name], EXACT_TO_POWERTOOLS_MAX),
            ratio("time: ROLLUP to a plain PutItem", us[ROLLUP.name] / us[PLAIN_PUT.name], ROLLUP_TO_PUT_MAX),
            ratio("import: hot handler to boto3 with a client", self.imports.ratio, IMPORT_TO_BOTO3_MAX),
        ]

    def _cost_claims(self) -> list[Claim]:
        def equal(what: str, measured: float, expected: float) -> Claim:
            return Claim(what, f"{measured:g}", f"= {expected:g}", measured == expected)

        heavy = sorted({module for modules in self.imports.heavy.values() for module in modules})
        return [
            equal("EXACT: round trips", self.costs[EXACT.name].round_trips, 1),
            equal("EXACT: WCU", self.costs[EXACT.name].write_units, EXACT_WRITE_UNITS),
            equal("ROLLUP: round trips", self.costs[ROLLUP.name].round_trips, 1),
            equal("ROLLUP: WCU", self.costs[ROLLUP.name].write_units, ROLLUP_WRITE_UNITS),
            *(equal(f"a like, text of {like.text_bytes:,} B: WCU", like.write_units, LIKE_WRITE_UNITS)
              for like in self.likes),
            *(equal(f"a read, {plural(read.shards, 'shard')}: requests", read.round_trips, 1) for read in self.reads),
            *(Claim(f"a play in a batch of {batch.plays}: WCU", f"{batch.write_units:.2f}",
                    f"≤ {BATCH_WRITE_UNITS_MAX}", batch.write_units <= BATCH_WRITE_UNITS_MAX)
              for batch in self.batches if batch.plays == BATCH_PLAYS),
            Claim("hot handlers: heavy modules imported", ", ".join(heavy) or "none", "none", not heavy),
        ]  # fmt: skip

    def _many_claims(self) -> list[Claim]:
        found = {many.way: many for many in self.many}
        units = {NOW: (found[NOW].write_units, NOW_MAX), SOON: (found[SOON].write_units, SOON_MAX)}
        all_in = found[SOON].all_in[ALL_IN_SETS]
        claims = [
            Claim(f"{PLAYS} plays of {VIDEOS} videos, {way}: WCU", f"{measured:g}", f"≤ {most}", measured <= most)
            for way, (measured, most) in units.items()
        ]
        what = f"a play {SOON}, all in, {ALL_IN_SETS} such receipts in a stream batch: WCU"
        return [*claims, Claim(what, f"{all_in:.3f}", f"≤ {ALL_IN_MAX}", all_in <= ALL_IN_MAX)]

    def _exactness_claims(self) -> list[Claim]:
        accuracy = self.accuracy
        exact = [(design.name, accuracy[design.name].error) for design in (EXACT, ROLLUP)]
        unanswered = sum(run.unanswered for run in accuracy.values())
        doubled, lost = accuracy[PLAIN_ADD.name].error, min(run.lost_at_store for run in accuracy.values())
        return [
            *(Claim(f"{name.upper()}: error of the count", f"{off:+d}" if off else "0", "= 0", not off)
              for name, off in exact),
            Claim("plays without an answer, all designs", str(unanswered), "= 0", not unanswered),
            # Without these two the run proves nothing: no fault reached the store.
            Claim("plain ADD: error of the count", f"{doubled:+d}", "> 0, or no fault struck", doubled > 0),
            Claim("answers lost between store and SDK, least", str(lost), "> 0, or no fault struck", lost > 0),
        ]  # fmt: skip

    def _hot_claims(self) -> list[Claim]:
        """Claims of the simulation. A quick run judges failures too: the simulation has no noise."""
        claims: list[Claim] = []
        for outcome in self.hot:
            if outcome.catch_up_s == math.inf:
                claims.append(Claim(f"hot key, {outcome.name}: catch-up", "never", "some time", False))
            failed, name = outcome.failed_share, f"hot key, {outcome.name}"
            if outcome.per_s == HOT_P99_PER_S:
                # A quick run is mostly the first second, which is slower.
                held = outcome.p99_ms < HOT_P99_MS_MAX if self.judge_times else None
                claims.append(Claim(f"{name}: p99", f"{outcome.p99_ms:.0f} ms", f"< {HOT_P99_MS_MAX:.0f} ms", held))
            if outcome.per_s <= HOT_P99_PER_S or outcome.warm:
                claims.append(Claim(f"{name}: failed", f"{failed:.2%}", "= 0", not failed))
            elif outcome.per_s <= HOT_FAILED_PER_S:
                claims.append(
                    Claim(f"{name}: failed", f"{failed:.2%}", f"< {HOT_FAILED_MAX:.1%}", failed < HOT_FAILED_MAX)
                )
        return claims

    def _rollup_claims(self) -> list[Claim]:
        speed = self.rollups.folded_per_s
        held = speed >= FOLDED_PER_S_MIN if self.judge_times else None
        claims = [Claim("rollup: records folded a second", f"{speed:,.0f}", f"≥ {FOLDED_PER_S_MIN:,}", held)]
        if self.rolled_up is not None:
            median_s = self.rolled_up.median_s
            held = median_s < ROLLED_UP_S_MAX if self.judge_times else None
            claims.append(
                Claim("a visit, from its answer to the count", f"{median_s:.2f} s", f"< {ROLLED_UP_S_MAX:g} s", held)
            )
        if self.feed is not None:
            faster = self.feed.faster
            held = faster >= FEED_FASTER_MIN if self.judge_times else None
            what = f"{FEED} plays by one request, beside {FEED}, reads of {READ_MS:.0f} ms"
            claims.append(Claim(what, f"{faster:.1f} times faster", f"≥ {FEED_FASTER_MIN}", held))
        if (console := self.console) is not None:
            held = console.loaded_bytes <= CONSOLE_BYTES_MAX
            size = f"{console.loaded_bytes / 1000:.0f} KB"
            claims.append(Claim("all that the console loads", size, f"≤ {CONSOLE_BYTES_MAX // 1000} KB", held))
        return claims

    def _ledger_claims(self) -> list[Claim]:
        return [
            Claim(
                figure.what,
                f"{figure.shown} {figure.unit}",
                figure.limit,
                figure.held if self.judge_times or not figure.full_only else None,
            )
            for figure in self.ledger
        ]

    def document(self) -> dict[str, Any]:
        """The results as JSON."""
        designs = {
            design.name: {
                "title": design.title,
                "time_us": round(self.times_us[design.name], 1),
                **asdict(self.costs[design.name]),
                **self._accuracy(design.name),
            }
            for design in TIMED
        }
        return {
            "designs": designs,
            "likes": [asdict(like) for like in self.likes],
            "reads": [asdict(read) for read in self.reads],
            "batches": [asdict(batch) for batch in self.batches],
            "many": [asdict(many) for many in self.many],
            "imports": asdict(self.imports),
            "rollups": asdict(self.rollups),
            "ledger": [asdict(one) for one in self.ledger],
            "rolled_up": asdict(self.rolled_up) if self.rolled_up else None,
            "feed": asdict(self.feed) if self.feed else None,
            "console": asdict(self.console) if self.console else None,
            "hot_key": [asdict(outcome) for outcome in self.hot],
            "claims": [asdict(claim) for claim in self.claims()],
        }

    def _accuracy(self, name: str) -> dict[str, Any]:
        found = self.accuracy.get(name)
        return {**asdict(found), "error": found.error} if found else {}
