"""Every minute: heartbeats are sent, closed minutes judged, the series summed up, expired holds given back, children of
removed parents removed."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import counters
from tally import observe
from tally.counting import deletion, expired
from tally.drift import judge, rows
from tally.dynamo.client import Store, dynamodb_client
from tally.dynamo.shards import Shards
from tally.series import hours
from tally.settings import Settings
from tally.streams import watermark
from tally.streams.watermark import Watermark

RESERVE_S = 2.0  # left of the invocation's time, for what was begun
JUDGE_SHARE = 0.6  # of the time that is left after the heartbeats
SERIES_SHARE = 0.5  # of the time that is left then
HOLDS_SHARE = 0.5  # of the time that is left then; the children of removed parents have the rest
_store = Store(dynamodb_client(), Settings.from_environment())
_shards = Shards({"counts": _store.settings.counts_stream, "receipts": _store.settings.receipts_stream})


def handler(event: object, context: Any) -> dict[str, int]:
    """Do the parts, each within its share of the time; the next sweep does what is left. Raise at the end."""
    until_s = _store.clock() + context.get_remaining_time_in_millis() / 1000 - RESERVE_S
    now_s = time.time()
    seen = watermark.read(_store, now_s)  # before it is renewed: the judge needs what was noted a sweep ago
    parts: list[Callable[[], Mapping[str, int]]] = [
        lambda: renew(_store, _shards, seen, now_s),
        lambda: judge_closed(_store, seen, now_s, _share(until_s, JUDGE_SHARE)),
        lambda: report_drift(_store, seen, now_s),
        lambda: {"hours": hours.sum_up(_store, watermark.judged(_store), until_s=_share(until_s, SERIES_SHARE))},
        lambda: _holds(_share(until_s, HOLDS_SHARE)),
        lambda: _removed(until_s),
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


def _share(until_s: float, share: float) -> float:
    now_s = _store.clock()
    return now_s + share * (until_s - now_s)


def renew(store: Store, shards: Shards, seen: Watermark, now_s: float) -> dict[str, int]:
    """Send the heartbeats, note the watermark, and say how old it is for each consumer."""
    found = watermark.renew(store, shards, seen, now_s)
    ages_s = watermark.ages_s(found, seen, now_s)
    for consumer, age_s in ages_s.items():
        observe.gauges({observe.WATERMARK_AGE: age_s}, consumer=consumer)
        if age_s > watermark.SETTLE * store.settings.minute_s:
            observe.logger.warning("behind", extra={"consumer": consumer, "age_s": age_s, "in": found.behind(consumer)})
    return {f"{consumer}_age_s": age_s for consumer, age_s in ages_s.items()}


def judge_closed(store: Store, seen: Watermark, now_s: float, until_s: float) -> dict[str, int]:
    """Judge what is closed. `until_s`: on the store's clock."""
    judged = judge.judge(store, seen, now_s, until_s=until_s)
    told = {observe.SWEEP_UNFINISHED: int(not judged.finished)}
    if judged.last >= 0:
        told[observe.JUDGED_AGE] = max(0, int(now_s) - (judged.last + 1) * store.settings.minute_s)
    if judged.segments:  # CloudWatch bills each metric that has data
        told |= {observe.JOURNAL_SEGMENTS: judged.segments, observe.JOURNAL_BYTES: judged.bytes}
    observe.gauges(told)
    return {"minutes": judged.minutes, "uneven": judged.changes, "finished": int(judged.finished)}


def report_drift(store: Store, seen: Watermark, now_s: float) -> dict[str, int]:
    """Say what drifts. While nothing does, only the alarms' metrics have data: CloudWatch bills each one that has."""
    whole, confirmed = rows.summary(store, counters.COUNTERS, seen, now_s)
    if whole[observe.DRIFTING_TALLIES]:
        observe.gauges(whole)
    for counter, tallies in confirmed.items():
        observe.gauges({observe.DRIFT_CONFIRMED: tallies}, counter=counter)
    return {}


def _holds(until_s: float) -> dict[str, int]:
    swept = expired.sweep(_store, counters.COUNTERS, until_s)
    return {"returned": swept.returned, "not_returned": swept.failed, "holds_finished": int(swept.finished)}


def _removed(until_s: float) -> dict[str, int]:
    swept = deletion.sweep(_store, counters.COUNTERS, until_s)
    return {
        "children_removed": swept.children,
        "parents_removed": swept.parents,
        "parents_not_removed": swept.failed,
        "parents_finished": int(swept.finished),
    }
