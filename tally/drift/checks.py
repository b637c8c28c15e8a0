"""Health checks, and the answer of `GET /status`.

`tally status` runs the same checks, and some that need a person's credentials. While the ledger has no watermark, the
parts `lag` and `judged` are `unknown`, never `ok`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from itertools import islice
from types import MappingProxyType
from typing import Any, NamedTuple

from botocore.exceptions import BotoCoreError, ClientError

from .. import observe
from ..counter import Counter
from ..counting import hold_items
from ..dynamo import clock, queries
from ..dynamo.client import Call, Store, aws_client
from ..errors import TallyError
from ..settings import Settings
from ..streams import dead_letters, fingerprints, watermark
from ..streams.loss import NOTHING_LOST_S
from . import rows

WATERMARK_AGE_MAX = 10  # minutes: as for the alarm `watermark-age`
JUDGED_AGE_MAX = 20  # minutes: the judge is 6 to 8 minutes behind, and the alarm `unjudged` waits for 15 minutes
RELEASE_DELAY_MAX = 5  # minutes after a hold has expired: as for the alarm `holds`
READ_MAX = 1000  # drift rows or dead letters that one check reads, so that an answer takes seconds at most
DEV = "dev"  # the stage whose alarms need no subscriber
STACK_PREFIX = "Tally-"  # the beginning of the name of a stage's stack
LISTED_NAMES_MAX = 5  # names in a line; `tally check` and CloudWatch list all
SECTIONS = {
    "store": "runbook.md#5xx", "API": "runbook.md#5xx", "version": "operate.md#a-deploy-that-is-rolled-back",
    "counters": "operate.md#change-what-a-counter-is", "items": "team-tables.md#count-what-is-there",
    "alarms": "runbook.md#find-your-alarm", "subscribers": "operate.md#who-hears-of-alarms",
    "lag": "runbook.md#watermark-age", "judged": "runbook.md#unjudged", "drift": "runbook.md#drift",
    "holds": "runbook.md#holds",
    "dead letters": "runbook.md#dead-letters", "lost records": "runbook.md#lost-records",
    "failed events": "runbook.md#failed-events",
}  # fmt: skip
"""The section of docs/ that says what to do about each part. Some parts are only in `tally status`."""
_DECLARED = (  # the fields of `Declared` (operations/drift.py)
    "name", "visible", "changes", "public", "listed", "counts", "watched", "retired", "numbered", "notifies",
    "max_shards", "delta", "start", "floor", "ceiling", "debt", "limit_overrides", "period", "timezone",
)  # fmt: skip


class Check(NamedTuple):
    """The result of one check: a line for people and facts for programs. `failed`: None if the result is unknown."""

    summary: str
    facts: Mapping[str, Any]
    failed: bool | None = False

    @property
    def state(self) -> str:
        """The result in one word: `ok`, `wrong` or `unknown`."""
        return {False: "ok", True: "wrong", None: "unknown"}[self.failed]


def lag_check(store: Store) -> Check:
    """Checks how old the watermark of each consumer is, and shows how old `as_of` of rolled-up numbers is. The
    bookkeeper's watermark here also waits for the records of what the rollup wrote."""
    watermark_ = watermark.read(store)
    now_s, minute_s = clock.now_s(), store.settings.minute_s
    as_of = watermark_.as_of(store.settings)
    passed = {"rollup": watermark_.rollup_passed_s, "bookkeeper": watermark_.journal_complete_s}
    ages = {consumer: int(now_s - time_s) if time_s else None for consumer, time_s in passed.items()}
    age_s = int(now_s - as_of) if as_of else None
    facts = {"as_of": as_of, "as_of_age_s": age_s, "watermark_age_s": ages}
    if not watermark_.written_s:
        return Check("no sweep has run yet: a new stack needs some minutes", facts, None)
    watermarks = ", ".join(f"{consumer} {_ago(age)}" for consumer, age in ages.items())
    late = any(age is not None and age > WATERMARK_AGE_MAX * minute_s for age in ages.values())
    line = f"rolled up as of {_ago(age_s)}; watermark: {watermarks}"
    return Check(line, facts, late or (None if None in ages.values() else False))


def judged_check(store: Store) -> Check:
    """Checks how long ago the last judged minute ended."""
    until_s = watermark.read(store).judged_up_to(store.settings)
    if until_s is None:
        return Check("nothing yet: a new stack needs some minutes", {"until": None}, None)
    age_s = int(clock.now_s() - until_s)
    late = age_s > JUDGED_AGE_MAX * store.settings.minute_s
    return Check(f"until {format_time(until_s)}, {_ago(age_s)}", {"until": until_s, "age_s": age_s}, late)


def drift_check(store: Store, most: int | None = None) -> Check:
    """Checks for confirmed drift. `most`: how many drift rows it reads at most; None: all rows."""
    watermark_ = watermark.read(store)
    drifts = list(islice(rows.all_rows(store), most))
    confirmed = [f"{row.counter} {row.target} {row.drift:+d}" for row in drifts if row.confirmed_amount(watermark_)]
    facts = {"confirmed": len(confirmed), "unconfirmed": len(drifts) - len(confirmed)}
    line = f"{facts['confirmed']} confirmed, {facts['unconfirmed']} not yet"
    return _count_check(line + _first_names(confirmed), facts, len(confirmed), is_cut=len(drifts) == most)


def dead_letters_check(store: Store, most: int | None = None) -> Check:
    """Checks for dead letters. `most`: how many of their items in the ledger it reads at most; None: all."""
    markers = list(islice(dead_letters.list_markers(Call(store)), most))
    oldest_s = min((marker.at_s for marker in markers), default=None)
    since = f", the oldest since {format_time(oldest_s)}" if oldest_s is not None else ""
    facts = {"records": len(markers), "oldest": oldest_s}
    return _count_check(f"{len(markers)}{since}", facts, len(markers), is_cut=len(markers) == most)


def lost_records_check(store: Store) -> Check:
    """Checks for losses of stream records that nobody has acknowledged."""
    since_s = watermark.read(store).oldest_loss_s
    if since_s == NOTHING_LOST_S:
        return Check("no loss is known", {"since": None})
    line = f"records may be lost since {format_time(since_s)}: `as_of` waits until somebody acknowledges the loss"
    return Check(line, {"since": since_s}, True)


def holds_check(store: Store) -> Check:
    """Checks for unreleased holds that expired over RELEASE_DELAY_MAX minutes ago, or whose release has failed."""
    number, is_cut = hold_items.count_unreleased(store, clock.now_s() - RELEASE_DELAY_MAX * store.settings.minute_s)
    return _count_check(f"{number} expired and not released", {"not_released": number}, number, is_cut=is_cut)


def _count_check(line: str, facts: Mapping[str, Any], wrong: int, *, is_cut: bool) -> Check:
    """Makes the check of a list. `wrong`: how many entries are wrong. `is_cut`: the list may have entries that were not
    read, so without a wrong entry the result is unknown."""
    return Check(f"at least {line}" if is_cut else line, facts, wrong > 0 or (None if is_cut else False))


def declarations_check(store: Store, counters: Mapping[str, Counter]) -> Check:
    """Checks that each counter is declared with the schema fingerprint that the ledger has of the counter."""
    why = [str(error) for error in fingerprints.mismatches(fingerprints.read_all(store), counters)]
    line = f"{'; '.join(why)}: {fingerprints.WHAT_TO_DO}" if why else "they fit the stored items"
    return Check(line, {"refused": why}, bool(why))


def alarms_check(states: Mapping[str, str]) -> Check:
    """Checks the stack's alarms. `states`: CloudWatch's state of each alarm, by name; empty: the result is unknown."""
    if not states:
        return Check("CloudWatch lists no alarm of this stack", {"alarms": {}}, None)
    in_alarm = sorted(name for name, state in states.items() if state == "ALARM")
    silent = sum(state == "INSUFFICIENT_DATA" for state in states.values())
    line = f"{len(in_alarm)} of {len(states)} in alarm" + (f", {silent} without data" if silent else "")
    return Check(line + _first_names(in_alarm), {"alarms": dict(states), "in_alarm": in_alarm}, bool(in_alarm))


def subscribers_check(topic: Mapping[str, str], stage: str) -> Check:
    """Checks who hears of alarms. `topic`: the attributes of the alarms' SNS topic. Pending subscribers get nothing."""
    confirmed, pending = (int(topic[f"Subscriptions{which}"]) for which in ("Confirmed", "Pending"))
    waiting = f"; waiting for confirmation: {pending}" if pending else ""
    line = f"confirmed subscribers: {confirmed}{waiting}" if confirmed else f"no confirmed subscriber{waiting}"
    return Check(line, {"confirmed": confirmed, "pending": pending}, not confirmed and stage != DEV)


def no_alarms_check() -> Check:
    """Makes the check of alarms and subscribers for a stack that runs on this machine."""
    return Check("there are no alarms on this machine", {})


def format_time(epoch_s: int) -> str:
    """Returns a time for people: `2026-11-22 13:05:00 UTC`."""
    return datetime.fromtimestamp(epoch_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _first_names(names: list[str]) -> str:
    more = f" and {len(names) - LISTED_NAMES_MAX} more" if len(names) > LISTED_NAMES_MAX else ""
    return f": {', '.join(names[:LISTED_NAMES_MAX])}{more}" if names else ""


def _ago(age_s: int | None) -> str:
    if age_s is None:
        return "never"
    units = {"days": 86400, "hours": 3600, "minutes": 60}
    unit, unit_s = next(((unit, unit_s) for unit, unit_s in units.items() if age_s >= 2 * unit_s), ("s", 1))
    return f"{age_s // unit_s} {unit} ago"


def status(
    call: Call, counters: Mapping[str, Counter], other_checks: Mapping[str, Callable[[], Check]] = MappingProxyType({})
) -> dict[str, Any]:
    """Runs the checks, and returns a `Status` (operations/drift.py). `other_checks`: by the name of a part, the check
    of a subpackage that this subpackage cannot import."""
    settings, checks = call.store.settings, _run_checks(call, counters, other_checks)
    failed = {check.failed for check in checks.values()}
    return {
        "well": False if True in failed else None if None in failed else True,
        "parts": [
            {"name": name, "state": check.state, "line": check.summary, "see": SECTIONS[name]}
            for name, check in checks.items()
        ],
        "at": int(clock.now_s()),
        "as_of": checks["lag"].facts.get("as_of"),
        "judged_up_to": checks["judged"].facts.get("until"),
        "stack": settings.stack,
        "stage": settings.stack.removeprefix(STACK_PREFIX),
        "where": f"--local --port {settings.local_port}" if settings.local_port else f"--stack {settings.stack}",
        "counters": [{name: getattr(counter, name) for name in _DECLARED} for counter in counters.values()],
    }


def _run_checks(
    call: Call, counters: Mapping[str, Counter], other_checks: Mapping[str, Callable[[], Check]]
) -> dict[str, Check]:
    """Runs every check. If the store does not answer a ping, checks that read the store are unknown, and do not run."""
    store = call.store
    try:
        queries.ping(store)
        reached = Check("it answers", {})
    except TallyError as error:
        observe.logger.warning("the store does not answer", exc_info=error)
        reached = Check(error.detail, {}, True)
    parts: dict[str, Callable[[], Check]] = {
        "lag": lambda: lag_check(store),
        "judged": lambda: judged_check(store),
        "drift": lambda: drift_check(store, READ_MAX),
        "dead letters": lambda: dead_letters_check(store, READ_MAX),
        "lost records": lambda: lost_records_check(store),
        "holds": lambda: holds_check(store),
        "counters": lambda: declarations_check(store, counters),
        **other_checks,
    }
    unreached = Check("the store does not answer", {}, None)
    of_tables = {name: unreached if reached.failed else _run_safely(check) for name, check in parts.items()}
    topic_checks = {"alarms": _alarms, "subscribers": _subscribers}
    of_topic = {name: _run_topic_check(check, store.settings) for name, check in topic_checks.items()}
    return {"store": reached, **of_tables, **of_topic}


def _run_safely(check: Callable[[], Check]) -> Check:
    """Runs one check. If the check raises, its result is unknown, and the other checks still run."""
    try:
        return check()
    except TallyError as error:
        observe.logger.warning("a health check failed", exc_info=error)
        return Check(error.detail, {}, None)


def _run_topic_check(check: Callable[[Settings], Check], settings: Settings) -> Check:
    """Runs a check that needs the topic of the stack's alarms."""
    if settings.local_port:
        return no_alarms_check()
    if not settings.alarm_topic:
        return Check("the topic of this stack's alarms is not set", {}, None)
    try:
        return check(settings)
    except (ClientError, BotoCoreError) as error:
        observe.logger.warning("AWS does not answer", exc_info=error)
        code = error.response["Error"]["Code"] if isinstance(error, ClientError) else type(error).__name__
        return Check(f"AWS did not answer: {code}", {}, None)


def _alarms(settings: Settings) -> Check:
    """Checks the alarms that publish to the stack's topic. Lists by the stack's name: the role may list only these."""
    pages = _client("cloudwatch").get_paginator("describe_alarms").paginate(AlarmNamePrefix=f"{settings.stack}-")
    of_name = [alarm for page in pages for alarm in page["MetricAlarms"]]
    # The topic decides, because the alarms of a stage `shop-2` begin with `Tally-shop-`, too.
    own = (alarm for alarm in of_name if settings.alarm_topic in alarm["AlarmActions"])
    return alarms_check({alarm["AlarmName"]: alarm["StateValue"] for alarm in own})


def _subscribers(settings: Settings) -> Check:
    attributes = _client("sns").get_topic_attributes(TopicArn=settings.alarm_topic)["Attributes"]
    return subscribers_check(attributes, settings.stack.removeprefix(STACK_PREFIX))


@functools.cache
def _client(service: str) -> Any:
    return aws_client(service, read_timeout_s=2, attempts=2)
