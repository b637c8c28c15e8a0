"""The answer of `GET /status`: whether all is well, and which counters there are."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from .. import observe
from ..counter import Counter
from ..dynamo import queries
from ..dynamo.client import Call, Store
from ..errors import TallyError
from ..settings import Settings
from ..shipped import OF_PAGES
from . import looks
from .looks import Seen

READ_MAX = 1000  # rows that drift, and records that are set aside: an answer comes within seconds
STACK_START = "Tally-"  # how the name of a stage's stack begins
_DECLARED = (
    "name", "tracked", "public", "retired", "numbered", "max_shards", "delta", "start", "floor", "ceiling", "period",
)  # fmt: skip


def status(call: Call, counters: Mapping[str, Counter]) -> dict[str, Any]:
    """`{"well","parts":[{"name","state","line"}],"at","as_of","judged_up_to","stack","stage","where","counters"}`.

    `well`: true if every part is, false if one is wrong, null if nobody can tell. `where`: the options that lead the
    command `tally` to this stack. Times are epoch seconds, null if they are not known.
    """
    settings, seen = call.store.settings, _parts(call)
    wrong = {one.wrong for one in seen.values()}
    return {
        "well": False if True in wrong else None if None in wrong else True,
        "parts": [{"name": name, "state": one.word, "line": one.line} for name, one in seen.items()],
        "at": int(time.time()),
        "as_of": seen["lag"].facts.get("as_of"),
        "judged_up_to": seen["judged"].facts.get("until"),
        "stack": settings.stack,
        "stage": settings.stack.removeprefix(STACK_START),
        "where": f"--local --port {settings.local_port}" if settings.local_port else f"--stack {settings.stack}",
        "counters": [_described(counter) for counter in counters.values()],
    }


def _parts(call: Call) -> dict[str, Seen]:
    """Every look. If the store does not answer the first one, those that need it are not tried: each would wait."""
    store = call.store
    parts: dict[str, Callable[[], Seen]] = {
        "lag": lambda: looks.lag(store),
        "judged": lambda: looks.judged(store),
        "drift": lambda: looks.drift(store, READ_MAX),
        "set aside": lambda: looks.aside(store, READ_MAX),
        "holds": lambda: looks.holds(store),
    }
    reached = _reached(store)
    untold = Seen("the store does not answer", {}, None)
    found = {name: untold if reached.wrong else _tried(look) for name, look in parts.items()}
    return {"store": reached, **found, "alarms": _alarms(store.settings)}


def _reached(store: Store) -> Seen:
    try:
        queries.probe(store)
    except TallyError as error:
        observe.logger.warning("the store does not answer", exc_info=error)
        return Seen(error.detail, {}, True)
    return Seen("it answers", {})


def _tried(look: Callable[[], Seen]) -> Seen:
    """One look. What fails is unknown, and the others still look."""
    try:
        return look()
    except TallyError as error:
        observe.logger.warning("a look failed", exc_info=error)
        return Seen(error.detail, {}, None)


def _alarms(settings: Settings) -> Seen:
    """The alarms that publish to the stack's topic. The role may list those of the stack's own name."""
    if settings.local_port:
        return looks.no_alarms()
    if not settings.alarm_topic:
        return Seen("this stack does not say which alarms are its own", {}, None)
    try:
        pages = _cloudwatch().get_paginator("describe_alarms").paginate(AlarmNamePrefix=f"{settings.stack}-")
        found = [alarm for page in pages for alarm in page["MetricAlarms"]]
    except (ClientError, BotoCoreError) as error:
        observe.logger.warning("CloudWatch does not answer", exc_info=error)
        code = error.response["Error"]["Code"] if isinstance(error, ClientError) else type(error).__name__
        return Seen(f"CloudWatch does not say: {code}", {}, None)
    # `Tally-shop-` is also how those of a stage `shop-2` begin.
    own = (alarm for alarm in found if settings.alarm_topic in alarm["AlarmActions"])
    return looks.alarms({alarm["AlarmName"]: alarm["StateValue"] for alarm in own})


@functools.cache
def _cloudwatch() -> Any:
    """Made when somebody first asks: it adds 50 ms to a cold start."""
    import boto3
    from botocore.config import Config

    config = Config(connect_timeout=1, read_timeout=2, retries={"total_max_attempts": 2, "mode": "standard"})
    return boto3.client("cloudwatch", config=config)


def _described(counter: Counter) -> dict[str, Any]:
    """What a page that lists counters needs to know of one."""
    facts = {name: getattr(counter, name) for name in _DECLARED}
    return {
        **facts,
        "guarantee": counter.guarantee.value,
        "pages": counter in OF_PAGES,
        "children": counter.counts_children,
    }
