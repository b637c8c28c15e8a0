"""`tally status`: whether all is well, on one screen. It reads, and writes nothing."""

from __future__ import annotations

import argparse
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from tally import paths
from tally.dev.base.words import DEV
from tally.drift import checks
from tally.drift.checks import Check, format_time
from tally.errors import TallyError
from tally.team import health

from .command import Command
from .connection import PATIENT, Stack
from .terminal import explain_error, note, say

HEALTH_S_MAX = 10.0
EXPLAINED_BY_CHECK = ("drift", "dead letters", "lost records")
"""The parts of which `tally check` says more."""


def _status(given: argparse.Namespace, stack: Stack) -> int:
    """Print every part. 0: all is well, 1: something needs a person, 2: nobody can tell of some part."""
    own = any(counter.items is not None for counter in stack.counters.values())
    seen = {name: _run_check(look, stack) for name, look in {**CHECKS, **(ITEMS_CHECKS if own else {})}.items()}
    wrong, unknown = ([name for name, one in seen.items() if one.failed is way] for way in (True, None))
    if given.json:
        parts = {name: {"state": one.state, **one.facts, **_runbook(name, one)} for name, one in seen.items()}
        say(json.dumps({"stack": _name(given), "well": not (wrong or unknown), "parts": parts}))
    else:
        say(f"{_name(given)}, {format_time(int(time.time()))}")
        for name, one in seen.items():
            say(f"{one.state:9}{name:14}{one.summary}")
            for place in _runbook(name, one).values():
                say(f"{'':23}see {place}")
        if wrong:
            more = ". Run `tally check`, then see docs/runbook.md" if set(wrong) & set(EXPLAINED_BY_CHECK) else ""
            say(f"action needed: {', '.join(wrong)}{more}")
        elif not unknown:
            say("all is well")
    if unknown:
        note(f"cannot tell: {', '.join(unknown)}")
    return 1 if wrong else 2 if unknown else 0


def _runbook(name: str, seen: Check) -> dict[str, str]:
    """Where the page is that says what to do about a part that is not well."""
    return {} if seen.failed is False else {"runbook": paths.page(checks.SECTIONS[name])}


def _name(given: argparse.Namespace) -> str:
    return DEV.strip("`") if given.local else str(given.stack)


def _run_check(look: Callable[[Stack], Check], stack: Stack) -> Check:
    """One look. What fails is unknown, and the others still look."""
    try:
        return look(stack)
    except ClientError as error:
        why = str(error.response["Error"].get("Message", error))
    except TallyError as error:
        why = explain_error(error)
    except (BotoCoreError, OSError, ValueError, KeyError) as error:
        why = " ".join(f"{type(error).__name__}: {error}".split())
    return Check(why, {"error": why}, None)


def _version(stack: Stack) -> Check:
    """What is deployed, and how the last deploy ended."""
    outputs, ended = stack.outputs, stack.status
    facts = {"version": outputs["Version"], "runtime": outputs["Runtime"], "deploy": ended or None}
    named = f"{facts['version']} on {facts['runtime']}"
    failed = "FAILED" in ended or ended.endswith("ROLLBACK_COMPLETE")
    return Check(f"{named}, {ended}" if ended else named, facts, failed)


def _check_api(stack: Stack) -> Check:
    """Whether the API answers: GET /health reads the counts table."""
    url = stack.outputs["ApiUrl"]
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=HEALTH_S_MAX) as answer:
            version = json.load(answer)["version"]
    except urllib.error.HTTPError as error:
        with error:
            return Check(f"{url}/health: {error.code}", {"url": url, "status": error.code}, True)
    return Check(f"{url}, with {version}", {"url": url, "status": 200, "version": version})


def _counters(stack: Stack) -> Check:
    """The counters that are deployed. The command works with those of the checkout, which must fit what is stored."""
    deployed = (
        [name for name in stack.outputs["Counters"].split(", ") if name] if stack.status else _running_counters(stack)
    )
    lacking, ahead = set(deployed) - set(stack.counters), set(stack.counters) - set(deployed)
    hints = [f"; this checkout lacks {', '.join(sorted(lacking))}"] * bool(lacking)
    hints += [f"; not deployed: {', '.join(sorted(ahead))}"] * bool(ahead)
    fits = checks.declarations(stack.store, stack.counters)
    hints += [f"; {fits.summary}"] * bool(fits.failed)
    facts = {"deployed": deployed, "declared": list(stack.counters), **fits.facts}
    return Check((", ".join(deployed) or "none") + "".join(hints), facts, fits.failed)


def _running_counters(stack: Stack) -> list[str]:
    """The counters that `make dev` runs now: it loads a declaration when it is written."""
    url, body = stack.outputs["ApiUrl"], json.dumps({"sub": "tally", "scope": "tally/read"}).encode()
    with urllib.request.urlopen(f"{url}/dev/token", body, timeout=HEALTH_S_MAX) as answer:
        authorization = {"Authorization": f"Bearer {json.load(answer)['access_token']}"}
    asked = urllib.request.Request(f"{url}/status", headers=authorization)
    with urllib.request.urlopen(asked, timeout=HEALTH_S_MAX) as answer:
        return [counter["name"] for counter in json.load(answer)["counters"]]


def _alarms(stack: Stack) -> Check:
    """The alarms that publish to the stack's topic."""
    if not stack.status:
        return checks.no_alarms()
    topic = stack.outputs["AlarmTopicArn"]
    pages = boto3.client("cloudwatch", config=PATIENT).get_paginator("describe_alarms").paginate(ActionPrefix=topic)
    return checks.alarms({alarm["AlarmName"]: alarm["StateValue"] for page in pages for alarm in page["MetricAlarms"]})


def _subscribers(stack: Stack) -> Check:
    """Who hears of them."""
    if not stack.status:
        return checks.no_alarms()
    topic = boto3.client("sns", config=PATIENT).get_topic_attributes(TopicArn=stack.outputs["AlarmTopicArn"])
    return checks.subscribers(topic["Attributes"], stack.outputs["Stage"])


def _failed_events(stack: Stack) -> Check:
    """The asynchronous events that Lambda gave up: those that wait, and those that a person has taken out just now."""
    if not stack.status:
        return Check(f"{DEV} has no queue of them", {"messages": None})
    queue = stack.outputs["FailedEventsUrl"]
    names = ("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible")
    sqs = boto3.client("sqs", config=PATIENT)
    attributes = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=names)["Attributes"]
    messages = sum(int(attributes[name]) for name in names)
    return Check(str(messages), {"messages": messages}, messages > 0)


ITEMS_CHECKS: Mapping[str, Callable[[Stack], Check]] = {
    "items": lambda stack: health.items_check(stack.store, stack.counters)
}
"""The part of a stack that counts items of the team's tables."""
CHECKS: Mapping[str, Callable[[Stack], Check]] = {
    "version": _version, "API": _check_api, "counters": _counters, "alarms": _alarms,
    "subscribers": _subscribers,
    "lag": lambda stack: checks.lag(stack.store), "judged": lambda stack: checks.judging(stack.store),
    "drift": lambda stack: checks.drift(stack.store), "failed events": _failed_events,
    "dead letters": lambda stack: checks.dead_letters_check(stack.store),
    "lost records": lambda stack: checks.lost_records(stack.store),
}  # fmt: skip


STATUS = Command("status", _status, json=True)
