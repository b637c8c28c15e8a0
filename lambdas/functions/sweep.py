"""Every minute: gives back what expired holds have taken, judges the ledger, writes the pulse."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import counters
from tally import observe
from tally.counting import expired
from tally.drift import judge, rows
from tally.dynamo.client import Store, dynamodb_client
from tally.settings import Settings
from tally.streams import progress

RESERVE_S = 2.0  # left of the invocation's time: for the pulse, and for what was begun
HOLDS_SHARE = 0.25  # of the time
LOOK_AGAIN_SHARE = 0.25  # of the time for drifting tallies, which are looked at last
_store = Store(dynamodb_client(), Settings.from_environment())


def handler(event: object, context: Any) -> dict[str, int]:
    """Do the three after each other. What one of them raises stops no other one, and is raised at the end."""
    until_s = _store.clock() + context.get_remaining_time_in_millis() / 1000 - RESERVE_S
    parts: list[Callable[[], Mapping[str, int]]] = [
        lambda: _holds(until_s),
        lambda: sweep_ledger(_store, time.time(), until_s),
        lambda: _pulse(time.time()),
    ]
    done: dict[str, int] = {}
    failures: list[Exception] = []
    for part in parts:
        try:
            done |= part()
        except Exception as error:
            observe.logger.exception("part of the sweep failed")
            failures.append(error)
    observe.logger.info("swept", extra=done)
    if failures:
        raise failures[0]
    return done


def _holds(until_s: float) -> Mapping[str, int]:
    now_s = _store.clock()
    swept = expired.sweep(_store, counters.COUNTERS, now_s + HOLDS_SHARE * (until_s - now_s))
    return {"released": swept.returned, "not_returned": swept.failed}


def sweep_ledger(store: Store, now_s: float, until_s: float) -> dict[str, int]:
    """Judge what is settled, look at what drifts, and say how things stand. `until_s`: on the store's clock."""
    settle_s = store.settings.settle_s
    stands = progress.read_all(store)
    observe.gauges("consumer", progress.ROLLUP, {observe.ROLLUP_LAG: progress.rollup_lag_s(stands, now_s, settle_s)})
    _report_stalled(progress.stalled(stands, now_s, settle_s))
    judge_until_s = until_s - LOOK_AGAIN_SHARE * (until_s - store.clock())
    judged = judge.sweep(store, progress.horizon(stands, now_s, settle_s), now_s, until_s=judge_until_s)
    observe.gauges("consumer", observe.SWEEP, {observe.SWEEP_UNFINISHED: int(not judged.finished)})
    for counter, summary in rows.look_again(store, counters.COUNTERS, now_s, until_s=until_s).items():
        observe.gauges("counter", counter, summary.metrics)
    if judged.failures:
        raise judged.failures[0]
    return {"equal": judged.equal, "moved": judged.moved, "left": judged.left, "finished": int(judged.finished)}


def _report_stalled(streams: Sequence[tuple[str, str]]) -> None:
    """The metric says how many of a consumer's streams; the log, which: each has an event source mapping of its own."""
    for consumer, table in streams:
        observe.logger.warning("stalled", extra={"consumer": consumer, "table": table})
    for consumer in (progress.ROLLUP, progress.DRIFT):
        observe.gauges("consumer", consumer, {observe.STANDS_STILL: sum(of == consumer for of, _ in streams)})


def _pulse(now_s: float) -> Mapping[str, int]:
    progress.pulse(_store, now_s)
    return {}
