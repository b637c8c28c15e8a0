"""`tally status`: whether all is well, on one screen. It reads, and writes nothing."""

from __future__ import annotations

import argparse
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from tally.drift import rows
from tally.dynamo import items
from tally.dynamo.client import Call
from tally.errors import TallyError
from tally.streams import evidence, set_aside
from tally.streams.evidence import Evidence

from .connection import PATIENT, Stack, explained
from .terminal import moment, note, say

BEHIND = 10  # minutes without evidence: when the alarm `evidence-age` goes off
UNJUDGED = 20  # minutes: a minute is judged about four minutes after its end, and `unjudged` waits for fifteen
SHOWN_MAX = 5  # names in a line: `tally drift` and CloudWatch list them all
HEALTH_S_MAX = 10.0
RUNBOOKS = "docs/operations.md says what to do"


class Seen(NamedTuple):
    """What one look found: a line for people and facts for programs. `wrong`: None if nobody can tell."""

    line: str
    facts: Mapping[str, Any]
    wrong: bool | None = False

    @property
    def word(self) -> str:
        """How it is: `ok`, `wrong` or `unknown`."""
        return {False: "ok", True: "wrong", None: "unknown"}[self.wrong]


def status(given: argparse.Namespace, stack: Stack) -> int:
    """Print every part. 0: all is well, 1: something needs a person, 2: nobody can tell of some part."""
    seen = {name: _seen(look, stack) for name, look in LOOKS.items()}
    wrong, unknown = ([name for name, one in seen.items() if one.wrong is way] for way in (True, None))
    if given.json:
        parts = {name: {"state": one.word, **one.facts} for name, one in seen.items()}
        say(json.dumps({"stack": _name(given), "well": not (wrong or unknown), "parts": parts}))
    else:
        say(f"{_name(given)}, {moment(int(time.time()))}")
        for name, one in seen.items():
            say(f"{one.word:9}{name:14}{one.line}")
        if wrong:
            say(f"needs a person: {', '.join(wrong)}; {RUNBOOKS}")
        elif not unknown:
            say("all is well")
    if unknown:
        note(f"cannot tell: {', '.join(unknown)}")
    return 1 if wrong else 2 if unknown else 0


def _name(given: argparse.Namespace) -> str:
    return "make dev" if given.local else str(given.stack)


def _seen(look: Callable[[Stack], Seen], stack: Stack) -> Seen:
    """One look. What fails is unknown, and the others still look."""
    try:
        return look(stack)
    except ClientError as error:
        why = str(error.response["Error"].get("Message", error))
    except TallyError as error:
        why = explained(error)
    except (BotoCoreError, OSError, ValueError, KeyError) as error:
        why = " ".join(f"{type(error).__name__}: {error}".split())
    return Seen(why, {"error": why}, None)


def _version(stack: Stack) -> Seen:
    """What is deployed, and how the last deploy ended."""
    outputs, ended = stack.at.outputs, stack.at.status
    facts = {"version": outputs.get("Version"), "runtime": outputs.get("Runtime"), "deploy": ended or None}
    named = f"{facts['version'] or 'of an older Tally'} on {facts['runtime'] or 'an unknown runtime'}"
    failed = "FAILED" in ended or ended.endswith("ROLLBACK_COMPLETE")
    return Seen(f"{named}, {ended}" if ended else named, facts, failed)


def _answers(stack: Stack) -> Seen:
    """Whether the API answers: GET /health reads the counts table."""
    url = stack.at.outputs["ApiUrl"]
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=HEALTH_S_MAX) as answer:
            version = json.load(answer)["version"]
    except urllib.error.HTTPError as error:
        with error:
            return Seen(f"{url}/health: {error.code}", {"url": url, "status": error.code}, True)
    return Seen(f"{url}, with {version}", {"url": url, "status": 200, "version": version})


def _counters(stack: Stack) -> Seen:
    """The counters that are deployed. The command works with those of the checkout."""
    deployed = [name for name in stack.at.outputs.get("Counters", "").split(", ") if name]
    lacking, ahead = set(deployed) - set(stack.counters), set(stack.counters) - set(deployed)
    hints = [f"; this checkout lacks {', '.join(sorted(lacking))}"] * bool(lacking and deployed)
    hints += [f"; not deployed: {', '.join(sorted(ahead))}"] * bool(ahead and deployed)
    line = ", ".join(deployed) or "an older Tally does not say"
    return Seen(line + "".join(hints), {"deployed": deployed, "declared": list(stack.counters)})


def _alarms(stack: Stack) -> Seen:
    """The alarms that publish to the stack's topic."""
    if not stack.at.status:
        return Seen("`make dev` has none", {"alarms": None})
    topic = stack.at.outputs["AlarmTopicArn"]
    pages = boto3.client("cloudwatch", config=PATIENT).get_paginator("describe_alarms").paginate(ActionPrefix=topic)
    states = {alarm["AlarmName"]: str(alarm["StateValue"]) for page in pages for alarm in page["MetricAlarms"]}
    if not states:
        return Seen("CloudWatch lists none of this stack", {"alarms": {}}, None)
    on = sorted(name for name, state in states.items() if state == "ALARM")
    silent = sum(state == "INSUFFICIENT_DATA" for state in states.values())
    line = f"{len(on)} of {len(states)} in alarm" + (f", {silent} without data" if silent else "")
    return Seen(line + _listed(on), {"alarms": states, "in_alarm": on}, bool(on))


def _lag(stack: Stack) -> Seen:
    """How far behind numbers that are rolled up are, and the evidence of each consumer."""
    now_s, minute_s = time.time(), stack.store.settings.minute_s
    found = evidence.read(stack.store, now_s)
    as_of = found.as_of(stack.store.settings)
    passed = {"rollup": items.number(found.item, "rolled"), "drift": items.number(found.item, "known")}
    ages = {consumer: int(now_s - time_s) if time_s else None for consumer, time_s in passed.items()}
    age_s = int(now_s - as_of) if as_of else None
    facts = {"as_of": as_of, "as_of_age_s": age_s, "evidence_age_s": ages}
    if not found.item:
        return Seen("no sweep has run yet: a new stack needs some minutes", facts, None)
    rolled_up = f"rolled up as of {_ago(age_s)}"
    line = f"{rolled_up}; evidence: {', '.join(f'{consumer} {_ago(age)}' for consumer, age in ages.items())}"
    late = any(age is not None and age > BEHIND * minute_s for age in ages.values())
    return Seen(line, facts, late or (None if None in ages.values() else False))


def _judged(stack: Stack) -> Seen:
    """The end of the last judged minute."""
    minute_s, minute = stack.store.settings.minute_s, evidence.judged(stack.store)
    if minute < 0:
        return Seen("nothing yet: a new stack needs some minutes", {"until": None}, None)
    until_s = (minute + 1) * minute_s
    age_s = int(time.time() - until_s)
    return Seen(
        f"until {moment(until_s)}, {_ago(age_s)}", {"until": until_s, "age_s": age_s}, age_s > UNJUDGED * minute_s
    )


def _drift(stack: Stack) -> Seen:
    """The tallies that drift. One that is not confirmed may come to 0 by itself."""
    seen: Evidence = evidence.read(stack.store, time.time())
    found = list(rows.every(stack.store))
    confirmed = [f"{row.counter} {row.target} {row.drift:+d}" for row in found if row.confirmed(seen)]
    facts = {"confirmed": len(confirmed), "unconfirmed": len(found) - len(confirmed)}
    line = f"{facts['confirmed']} confirmed, {facts['unconfirmed']} not yet"
    return Seen(line + _listed(confirmed), facts, bool(confirmed))


def _dead_letters(stack: Stack) -> Seen:
    """The asynchronous events that Lambda gave up: those that wait, and those that a person has taken out just now."""
    if not stack.at.status:
        return Seen("`make dev` has no queue of them", {"messages": None})
    queue = stack.at.outputs["DeadLetterQueueUrl"]
    names = ("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible")
    sqs = boto3.client("sqs", config=PATIENT)
    found = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=names)["Attributes"]
    messages = sum(int(found[name]) for name in names)
    return Seen(str(messages), {"messages": messages}, messages > 0)


def _set_aside(stack: Stack) -> Seen:
    """The records that no consumer could apply."""
    markers = list(set_aside.listed(Call(stack.store)))
    oldest_s = min((marker.at_s for marker in markers), default=None)
    since = f", the oldest since {moment(oldest_s)}" if oldest_s is not None else ""
    return Seen(f"{len(markers)}{since}", {"records": len(markers), "oldest": oldest_s}, bool(markers))


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN_MAX} more" if len(names) > SHOWN_MAX else ""
    return f": {', '.join(names[:SHOWN_MAX])}{more}" if names else ""


def _ago(age_s: int | None) -> str:
    if age_s is None:
        return "never"
    return next(
        (f"{age_s // unit_s} {unit} ago" for unit, unit_s in _UNITS.items() if age_s >= 2 * unit_s), f"{age_s} s ago"
    )


_UNITS = {"days": 86400, "hours": 3600, "minutes": 60}
LOOKS: Mapping[str, Callable[[Stack], Seen]] = {
    "version": _version, "API": _answers, "counters": _counters, "alarms": _alarms, "lag": _lag, "judged": _judged,
    "drift": _drift, "dead letters": _dead_letters, "set aside": _set_aside,
}  # fmt: skip
