"""Whether all is well: one look for each part, and the answer of `GET /status`.

`tally status` shows the same looks beside what only it can know. A look that finds no watermark says so, and calls
nothing well.
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
from ..counting import holds as held
from ..dynamo import clock, items, queries
from ..dynamo.client import Call, Store
from ..errors import TallyError
from ..settings import Settings
from ..streams import dead_letters, forms, watermark
from ..streams.loss import NOTHING_LOST_S
from . import rows

WATERMARK_AGE_MAX = 10  # minutes without watermark: when the alarm `watermark-age` goes off
JUDGING_AGE_MAX = 20  # minutes: a minute is judged about four minutes after its end, and `unjudged` waits for fifteen
RETURN_DELAY_MAX = 5  # minutes after a hold has expired: when the alarm `holds` goes off
READ_MAX = 1000  # rows that drift, and dead letters: an answer comes within seconds
DEV = "dev"  # the stage that may be silent: it may also lose its data
STACK_START = "Tally-"  # how the name of a stage's stack begins
SHOWN_MAX = 5  # names in a line: `tally check` and CloudWatch list them all
SECTIONS = {
    "store": "runbook.md#5xx", "API": "runbook.md#5xx", "version": "operate.md#a-deploy-that-is-rolled-back",
    "counters": "operate.md#change-what-a-counter-is", "items": "own-tables.md#count-what-is-there",
    "alarms": "runbook.md#find-your-alarm", "subscribers": "operate.md#who-hears-of-alarms",
    "lag": "runbook.md#watermark-age", "judged": "runbook.md#unjudged", "drift": "runbook.md#drift",
    "holds": "runbook.md#holds",
    "dead letters": "runbook.md#dead-letters", "lost records": "runbook.md#lost-records",
    "failed events": "runbook.md#failed-events",
}  # fmt: skip
"""The section of docs/ that says what to do about each part. Some parts only `tally status` has."""
_DECLARED = (
    "name", "visible", "changes", "public", "listed", "counts", "watched", "retired", "numbered", "notifies",
    "max_shards", "delta", "start", "floor", "ceiling", "debt", "limit_overrides", "period", "timezone",
)  # fmt: skip


class Check(NamedTuple):
    """What one look found: a line for people and facts for programs. `failed`: None if nobody can tell."""

    summary: str
    facts: Mapping[str, Any]
    failed: bool | None = False

    @property
    def state(self) -> str:
        """How it is: `ok`, `wrong` or `unknown`."""
        return {False: "ok", True: "wrong", None: "unknown"}[self.failed]


def lag(store: Store) -> Check:
    """How far behind numbers that are rolled up are, and the watermark of each consumer."""
    seen = watermark.read(store)
    now_s, minute_s = clock.now_s(), store.settings.minute_s
    as_of = seen.as_of(store.settings)
    passed = {"rollup": items.int_attribute(seen.item, "rolled"), "bookkeeper": items.int_attribute(seen.item, "known")}
    ages = {consumer: int(now_s - time_s) if time_s else None for consumer, time_s in passed.items()}
    age_s = int(now_s - as_of) if as_of else None
    facts = {"as_of": as_of, "as_of_age_s": age_s, "watermark_age_s": ages}
    if not seen.written_s:
        return Check("no sweep has run yet: a new stack needs some minutes", facts, None)
    rolled_up = f"rolled up as of {_ago(age_s)}"
    line = f"{rolled_up}; watermark: {', '.join(f'{consumer} {_ago(age)}' for consumer, age in ages.items())}"
    late = any(age is not None and age > WATERMARK_AGE_MAX * minute_s for age in ages.values())
    return Check(line, facts, late or (None if None in ages.values() else False))


def judging(store: Store) -> Check:
    """The end of the last judged minute."""
    until_s = watermark.read(store).judged_up_to(store.settings)
    if until_s is None:
        return Check("nothing yet: a new stack needs some minutes", {"until": None}, None)
    age_s = int(clock.now_s() - until_s)
    late = age_s > JUDGING_AGE_MAX * store.settings.minute_s
    return Check(f"until {format_time(until_s)}, {_ago(age_s)}", {"until": until_s, "age_s": age_s}, late)


def drift(store: Store, most: int | None = None) -> Check:
    """The tallies that drift. One that is not confirmed may come to 0 by itself. `most`: it reads no more of them."""
    seen = watermark.read(store)
    drifts = list(islice(rows.all_rows(store), most))
    confirmed = [f"{row.counter} {row.target} {row.drift:+d}" for row in drifts if row.confirmed_amount(seen)]
    facts = {"confirmed": len(confirmed), "unconfirmed": len(drifts) - len(confirmed)}
    line = f"{facts['confirmed']} confirmed, {facts['unconfirmed']} not yet"
    return _count_check(line + _first_names(confirmed), facts, len(confirmed), cut=len(drifts) == most)


def dead_letters_check(store: Store, most: int | None = None) -> Check:
    """The records that no consumer could apply. `most`: it reads no more of them."""
    markers = list(islice(dead_letters.list_markers(Call(store)), most))
    oldest_s = min((marker.at_s for marker in markers), default=None)
    since = f", the oldest since {format_time(oldest_s)}" if oldest_s is not None else ""
    facts = {"records": len(markers), "oldest": oldest_s}
    return _count_check(f"{len(markers)}{since}", facts, len(markers), cut=len(markers) == most)


def lost_records(store: Store) -> Check:
    """Since when the streams may have lost records, and nobody has acknowledged it."""
    since_s = watermark.read(store).lost_s
    if since_s == NOTHING_LOST_S:
        return Check("none that is known", {"since": None})
    line = f"records may be lost since {format_time(since_s)}: `as_of` waits until somebody acknowledges it"
    return Check(line, {"since": since_s}, True)


def holds(store: Store) -> Check:
    """The holds that expired some minutes ago, and whose amount is not given back."""
    number, cut = held.count_unreturned(store, clock.now_s() - RETURN_DELAY_MAX * store.settings.minute_s)
    return _count_check(f"{number} expired and not given back", {"not_returned": number}, number, cut=cut)


def _count_check(line: str, facts: Mapping[str, Any], wrong: int, *, cut: bool) -> Check:
    """What a list says that may be `cut`: that nothing in it is wrong says nothing of the rest."""
    return Check(f"at least {line}" if cut else line, facts, wrong > 0 or (None if cut else False))


def declarations(store: Store, counters: Mapping[str, Counter]) -> Check:
    """Whether the counters are declared in the forms that they have counted in."""
    why = [str(one) for one in forms.refused(forms.noted(store), counters)]
    line = f"{'; '.join(why)}: {forms.WHAT_TO_DO}" if why else "they fit what is stored"
    return Check(line, {"refused": why}, bool(why))


def alarms(states: Mapping[str, str]) -> Check:
    """The alarms of the stack: their states by name. A stack has some, so none at all says nothing."""
    if not states:
        return Check("CloudWatch lists none of this stack", {"alarms": {}}, None)
    on = sorted(name for name, state in states.items() if state == "ALARM")
    silent = sum(state == "INSUFFICIENT_DATA" for state in states.values())
    line = f"{len(on)} of {len(states)} in alarm" + (f", {silent} without data" if silent else "")
    return Check(line + _first_names(on), {"alarms": dict(states), "in_alarm": on}, bool(on))


def subscribers(topic: Mapping[str, str], stage: str) -> Check:
    """Who hears of alarms, by the attributes of their topic. An address that was not confirmed hears nothing."""
    confirmed, pending = (int(topic[f"Subscriptions{which}"]) for which in ("Confirmed", "Pending"))
    waiting = f"; {pending} not confirmed yet" if pending else ""
    line = f"{confirmed} hear of alarms{waiting}" if confirmed else f"nobody hears of alarms{waiting}"
    return Check(line, {"confirmed": confirmed, "pending": pending}, not confirmed and stage != DEV)


def no_alarms() -> Check:
    """Those of a stack that runs on this machine."""
    return Check("there is none on this machine", {})


def format_time(epoch_s: int) -> str:
    """A time as people read it."""
    return datetime.fromtimestamp(epoch_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _first_names(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN_MAX} more" if len(names) > SHOWN_MAX else ""
    return f": {', '.join(names[:SHOWN_MAX])}{more}" if names else ""


def _ago(age_s: int | None) -> str:
    if age_s is None:
        return "never"
    return next(
        (f"{age_s // unit_s} {unit} ago" for unit, unit_s in _UNITS.items() if age_s >= 2 * unit_s), f"{age_s} s ago"
    )


_UNITS = {"days": 86400, "hours": 3600, "minutes": 60}


def status(
    call: Call, counters: Mapping[str, Counter], more: Mapping[str, Callable[[], Check]] = MappingProxyType({})
) -> dict[str, Any]:
    """`{"well","parts":[{"name","state","line","see"}],"at","as_of","judged_up_to","stack","stage","where","counters"}`.

    `more`: looks of other rooms, by the names of their parts. `well`: true if every part is, false if one is wrong,
    null if nobody can tell. `where`: the options that lead the command `tally` to this stack. Times are epoch seconds,
    null if they are not known.
    """
    settings, seen = call.store.settings, _run_checks(call, counters, more)
    wrong = {one.failed for one in seen.values()}
    return {
        "well": False if True in wrong else None if None in wrong else True,
        "parts": [
            {"name": name, "state": one.state, "line": one.summary, "see": SECTIONS[name]} for name, one in seen.items()
        ],
        "at": int(clock.now_s()),
        "as_of": seen["lag"].facts.get("as_of"),
        "judged_up_to": seen["judged"].facts.get("until"),
        "stack": settings.stack,
        "stage": settings.stack.removeprefix(STACK_START),
        "where": f"--local --port {settings.local_port}" if settings.local_port else f"--stack {settings.stack}",
        "counters": [_described(counter) for counter in counters.values()],
    }


def _run_checks(
    call: Call, counters: Mapping[str, Counter], more: Mapping[str, Callable[[], Check]]
) -> dict[str, Check]:
    """Every look. If the store does not answer the first one, those that need it are not tried: each would wait."""
    store = call.store
    parts: dict[str, Callable[[], Check]] = {
        "lag": lambda: lag(store),
        "judged": lambda: judging(store),
        "drift": lambda: drift(store, READ_MAX),
        "dead letters": lambda: dead_letters_check(store, READ_MAX),
        "lost records": lambda: lost_records(store),
        "holds": lambda: holds(store),
        "counters": lambda: declarations(store, counters),
        **more,
    }
    reached = _check_store(store)
    untold = Check("the store does not answer", {}, None)
    of_tables = {name: untold if reached.failed else _run_safely(look) for name, look in parts.items()}
    topic_looks = {"alarms": _alarms, "subscribers": _subscribers}
    of_topic = {name: _run_topic_check(look, store.settings) for name, look in topic_looks.items()}
    return {"store": reached, **of_tables, **of_topic}


def _check_store(store: Store) -> Check:
    try:
        queries.ping(store)
    except TallyError as error:
        observe.logger.warning("the store does not answer", exc_info=error)
        return Check(error.detail, {}, True)
    return Check("it answers", {})


def _run_safely(look: Callable[[], Check]) -> Check:
    """One look. What fails is unknown, and the others still look."""
    try:
        return look()
    except TallyError as error:
        observe.logger.warning("a look failed", exc_info=error)
        return Check(error.detail, {}, None)


def _run_topic_check(look: Callable[[Settings], Check], settings: Settings) -> Check:
    """A look at what belongs to the topic of the stack's alarms."""
    if settings.local_port:
        return no_alarms()
    if not settings.alarm_topic:
        return Check("this stack does not say which alarms are its own", {}, None)
    try:
        return look(settings)
    except (ClientError, BotoCoreError) as error:
        observe.logger.warning("AWS does not answer", exc_info=error)
        code = error.response["Error"]["Code"] if isinstance(error, ClientError) else type(error).__name__
        return Check(f"AWS does not say: {code}", {}, None)


def _alarms(settings: Settings) -> Check:
    """The alarms that publish to the stack's topic. The role may list those of the stack's own name."""
    pages = _client("cloudwatch").get_paginator("describe_alarms").paginate(AlarmNamePrefix=f"{settings.stack}-")
    of_name = [alarm for page in pages for alarm in page["MetricAlarms"]]
    # `Tally-shop-` is also how those of a stage `shop-2` begin.
    own = (alarm for alarm in of_name if settings.alarm_topic in alarm["AlarmActions"])
    return alarms({alarm["AlarmName"]: alarm["StateValue"] for alarm in own})


def _subscribers(settings: Settings) -> Check:
    attributes = _client("sns").get_topic_attributes(TopicArn=settings.alarm_topic)["Attributes"]
    return subscribers(attributes, settings.stack.removeprefix(STACK_START))


@functools.cache
def _client(service: str) -> Any:
    """Made when somebody first asks: it adds 50 ms to a cold start."""
    import boto3
    from botocore.config import Config

    config = Config(connect_timeout=1, read_timeout=2, retries={"total_max_attempts": 2, "mode": "standard"})
    return boto3.client(service, config=config)  # type: ignore[call-overload]


def _described(counter: Counter) -> dict[str, Any]:
    """What a page that lists counters needs to know of one."""
    return {name: getattr(counter, name) for name in _DECLARED}
