"""`tally status`: shows a stack's health. Writes nothing. CloudFormation's `Stack.status` is empty for `make dev`."""

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

HEALTH_S_MAX = 10.0  # for an answer of the API
EXPLAINED_BY_CHECK = ("drift", "dead letters", "lost records")  # the parts about which `tally check` says more


def print_status(args: argparse.Namespace, stack: Stack) -> int:
    """Prints every part. Returns 0 if all is well, 1 if a part is wrong, 2 if a part is unknown."""
    has_items = any(counter.items is not None for counter in stack.counters.values())
    needed_checks = {name: check for name, check in CHECKS.items() if has_items or name != "items"}
    results = {name: _run_check(check, stack) for name, check in needed_checks.items()}
    wrong = [name for name, result in results.items() if result.failed]
    unknown = [name for name, result in results.items() if result.failed is None]
    if args.json:
        parts = {name: {"state": one.state, **one.facts, **_runbook_member(name, one)} for name, one in results.items()}
        say(json.dumps({"stack": _stack_name(args), "well": not (wrong or unknown), "parts": parts}))
    else:
        say(f"{_stack_name(args)}, {format_time(int(time.time()))}")
        for name, result in results.items():
            say(f"{result.state:9}{name:14}{result.summary}")
            for section in _runbook_member(name, result).values():
                say(f"{'':23}see {section}")
        if wrong:
            advice = ". Run `tally check`, then see docs/runbook.md" if set(wrong) & set(EXPLAINED_BY_CHECK) else ""
            say(f"action needed: {', '.join(wrong)}{advice}")
        elif not unknown:
            say("all is well")
    if unknown:
        note(f"cannot tell: {', '.join(unknown)}")
    return 1 if wrong else 2 if unknown else 0


def _runbook_member(name: str, result: Check) -> dict[str, str]:
    """Returns where docs/ explains a part that is wrong or unknown; empty if the part is well."""
    return {} if result.failed is False else {"runbook": paths.page(checks.SECTIONS[name])}


def _stack_name(args: argparse.Namespace) -> str:
    return DEV.strip("`") if args.local else str(args.stack)


def _run_check(check: Callable[[Stack], Check], stack: Stack) -> Check:
    """Runs one check. If the check raises an error, its part is unknown."""
    try:
        return check(stack)
    except ClientError as error:
        why = str(error.response["Error"].get("Message", error))
    except TallyError as error:
        why = explain_error(error)
    except (BotoCoreError, OSError, ValueError, KeyError) as error:
        why = " ".join(f"{type(error).__name__}: {error}".split())
    return Check(why, {"error": why}, None)


def version_check(stack: Stack) -> Check:
    """Shows the version, and checks the result of the last deploy."""
    outputs, deploy = stack.outputs, stack.status
    facts = {"version": outputs["Version"], "runtime": outputs["Runtime"], "deploy": deploy or None}
    version = f"{facts['version']} on {facts['runtime']}"
    failed = "FAILED" in deploy or deploy.endswith("ROLLBACK_COMPLETE")
    return Check(f"{version}, {deploy}" if deploy else version, facts, failed)


def api_check(stack: Stack) -> Check:
    """Checks that the API answers: GET /health reads the counts table."""
    url = stack.outputs["ApiUrl"]
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=HEALTH_S_MAX) as answer:
            version = json.load(answer)["version"]
    except urllib.error.HTTPError as error:
        with error:
            return Check(f"{url}/health: {error.code}", {"url": url, "status": error.code}, True)
    return Check(f"{url}, with {version}", {"url": url, "status": 200, "version": version})


def counters_check(stack: Stack) -> Check:
    """Checks that the declared counters fit the stored data. Shows which are not deployed, and which not declared."""
    deployed = [name for name in stack.outputs["Counters"].split(", ") if name]  # the output is "" without counters
    lacking, undeployed = set(deployed) - set(stack.counters), set(stack.counters) - set(deployed)
    hints = [f"; this checkout lacks {', '.join(sorted(lacking))}"] * bool(lacking)
    hints += [f"; not deployed: {', '.join(sorted(undeployed))}"] * bool(undeployed)
    fits = checks.declarations_check(stack.store, stack.counters)
    hints += [f"; {fits.summary}"] * bool(fits.failed)
    facts = {"deployed": deployed, "declared": list(stack.counters), **fits.facts}
    return Check((", ".join(deployed) or "none") + "".join(hints), facts, fits.failed)


def alarms_check(stack: Stack) -> Check:
    """Checks the alarms that publish to the stack's topic."""
    if not stack.status:
        return checks.no_alarms_check()
    topic = stack.outputs["AlarmTopicArn"]
    pages = boto3.client("cloudwatch", config=PATIENT).get_paginator("describe_alarms").paginate(ActionPrefix=topic)
    return checks.alarms_check(
        {alarm["AlarmName"]: alarm["StateValue"] for page in pages for alarm in page["MetricAlarms"]}
    )


def subscribers_check(stack: Stack) -> Check:
    """Checks the subscribers of the topic."""
    if not stack.status:
        return checks.no_alarms_check()
    topic = boto3.client("sns", config=PATIENT).get_topic_attributes(TopicArn=stack.outputs["AlarmTopicArn"])
    return checks.subscribers_check(topic["Attributes"], stack.outputs["Stage"])


def failed_events_check(stack: Stack) -> Check:
    """Counts the asynchronous events that failed at every try. Includes the events that somebody is reading."""
    if not stack.status:
        return Check(f"{DEV} has no queue of failed events", {"messages": None})
    queue = stack.outputs["FailedEventsQueueUrl"]
    names = ("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible")
    sqs = boto3.client("sqs", config=PATIENT)
    attributes = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=names)["Attributes"]
    messages = sum(int(attributes[name]) for name in names)
    return Check(str(messages), {"messages": messages}, messages > 0)


CHECKS: Mapping[str, Callable[[Stack], Check]] = {
    "version": version_check, "API": api_check, "counters": counters_check, "alarms": alarms_check,
    "subscribers": subscribers_check,
    "lag": lambda stack: checks.lag_check(stack.store), "judged": lambda stack: checks.judged_check(stack.store),
    "drift": lambda stack: checks.drift_check(stack.store), "failed events": failed_events_check,
    "dead letters": lambda stack: checks.dead_letters_check(stack.store),
    "lost records": lambda stack: checks.lost_records_check(stack.store),
    "items": lambda stack: health.items_check(stack.store, stack.counters),  # runs only if a counter counts items
}  # fmt: skip


STATUS = Command("status", print_status, json=True)
