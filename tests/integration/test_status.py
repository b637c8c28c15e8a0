"""`tally status` of a stack in AWS: what it finds wrong, what it cannot tell, and what programs read of it."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from email.message import Message
from io import BytesIO
from typing import Any
from urllib.error import HTTPError

import boto3
import pytest
from botocore.stub import Stubber

import counters
from tally import paths
from tally.cli import status
from tally.cli.connection import Stack
from tally.dev.base.engine import Engine
from tally.drift import checks
from tally.dynamo import items, keys
from tally.dynamo.client import Store
from tally.streams import forms, watermark
from tests.integration.command.numbers import Run, note_form, put_drift_row

TOPIC = "arn:aws:sns:eu-west-1:123456789012:Tally-prod-Topic"
QUEUE = "https://sqs.eu-west-1.amazonaws.com/123456789012/Tally-prod-Queue"
MINUTE_S = 60
SESSION = boto3.session.Session()  # it reads the model of a service once
STATUS = ("status", "--stack", "Tally-prod")


class Deployed:
    """A stack that is well, but for what a test changes."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.status = "UPDATE_COMPLETE"
        self.health = 200
        self.alarms = {"Tally-prod-sweep": "OK", "Tally-prod-drift-likes": "INSUFFICIENT_DATA"}
        self.refuses = False
        """Whether CloudWatch refuses the caller."""
        self.failed_events = 0
        self.judge(judged_s=240, known_s=70)

    def judge(self, judged_s: float, known_s: float) -> None:
        """Judged until so many seconds ago, with watermark of so many seconds ago."""
        now_s = time.time()
        numbers = {"judged": int((now_s - judged_s) // MINUTE_S) - 1, "written_s": int(now_s) - 99, "began_s": 1}
        numbers |= dict.fromkeys(("journal_complete_s", "rollup_passed_s", "reads_complete_s"), int(now_s - known_s))
        judge = watermark.WATERMARK_KEY | items.to_wire(numbers)
        self.store.client.put_item(TableName=self.store.settings.ledger_table, Item=judge)

    def client(self, service: str) -> Any:
        """A client that answers once, and fails for parameters that AWS does not know."""
        made = SESSION.client(service, region_name="eu-west-1")
        stubber = Stubber(made)
        if service == "cloudwatch" and self.refuses:
            stubber.add_client_error("describe_alarms", "AccessDenied", "User ann is not authorized", 403)
        elif service == "cloudwatch":
            listed = [{"AlarmName": name, "StateValue": state} for name, state in self.alarms.items()]
            stubber.add_response("describe_alarms", {"MetricAlarms": listed}, {"ActionPrefix": TOPIC})
        elif service == "sns":
            heard = {"SubscriptionsConfirmed": "1", "SubscriptionsPending": "0"}
            stubber.add_response("get_topic_attributes", {"Attributes": heard}, {"TopicArn": TOPIC})
        else:
            names = ("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible")
            found = {"Attributes": dict(zip(names, (str(self.failed_events), "0"), strict=True))}
            stubber.add_response("get_queue_attributes", found, {"QueueUrl": QUEUE, "AttributeNames": names})
        stubber.activate()
        return made

    def describe_stacks(self, StackName: str) -> dict[str, Any]:
        settings = self.store.settings
        outputs = {
            "CountsTableName": settings.counts_table, "ReceiptsTableName": settings.receipts_table,
            "LedgerTableName": settings.ledger_table, "ApiUrl": "https://api.example.com", "AlarmTopicArn": TOPIC,
            "FailedEventsUrl": QUEUE, "Stage": "prod", "Version": "0123456789ab", "Format": str(keys.FORMAT),
            "Runtime": "python3.14",
            "Counters": ", ".join(counters.COUNTERS),
        }  # fmt: skip
        listed = [{"OutputKey": name, "OutputValue": value} for name, value in outputs.items()]
        return {"Stacks": [{"StackStatus": self.status, "Outputs": listed}]}


@pytest.fixture
def deployed(engine: Engine, store: Store, monkeypatch: pytest.MonkeyPatch) -> Deployed:
    made, real = Deployed(store), boto3.client

    def client(service: str, **how: Any) -> Any:
        if service == "cloudformation":
            return made
        return real("dynamodb", **how) if service == "dynamodb" else made.client(service)

    def api(url: str, timeout: float) -> BytesIO:
        if made.health != 200:
            raise HTTPError(url, made.health, "", Message(), BytesIO())
        return BytesIO(b'{"status": "ok", "version": "0123456789ab"}')

    monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", engine.endpoint)
    monkeypatch.setattr(boto3, "client", client)
    monkeypatch.setattr(urllib.request, "urlopen", api)
    return made


def test_all_is_well_is_0_with_what_is_deployed(deployed: Deployed, run: Run) -> None:
    code, out, err = run(*STATUS)
    assert (code, err) == (0, ""), out
    assert out.splitlines()[-1] == "all is well"
    for said in ("0123456789ab on python3.14, UPDATE_COMPLETE", "plays, likes, visits", "0 of 2 in alarm, 1 without",
                 "watermark: rollup 7"):  # fmt: skip
        assert said in out
    assert len(out.splitlines()) <= 24, "one screen"


def test_make_dev_has_the_counters_that_it_runs_now(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its template is that of its start: a declaration may be younger."""
    answers: dict[str, Any] = {
        "/dev/token": {"access_token": "t"},
        "/status": {"counters": [{"name": name} for name in counters.COUNTERS]},
    }

    def api(asked: str | urllib.request.Request, body: bytes | None = None, timeout: float = 0) -> BytesIO:
        url = asked if isinstance(asked, str) else asked.full_url
        assert (body is None) == (asked != url) == (url == "http://localhost:9/status")
        return BytesIO(json.dumps(answers[url.removeprefix("http://localhost:9")]).encode())

    monkeypatch.setattr(urllib.request, "urlopen", api)
    outputs = {"ApiUrl": "http://localhost:9", "Counters": "plays"}
    seen = status.CHECKS["counters"](Stack(store, None, counters.COUNTERS, outputs))
    assert seen.summary == ", ".join(counters.COUNTERS)


@pytest.mark.parametrize(
    ("part", "breaks", "said"),
    [
        ("counters", lambda stack: note_form(stack.store, replace(counters.PLAYS, attribute="n")),
         f"counter 'plays' has counted with attribute='n', which is 'play_count' now: {forms.WHAT_TO_DO}"),
        ("version", lambda stack: setattr(stack, "status", "UPDATE_ROLLBACK_COMPLETE"), "UPDATE_ROLLBACK_COMPLETE"),
        ("API", lambda stack: setattr(stack, "health", 503), "/health: 503"),
        ("alarms", lambda stack: stack.alarms.update({"Tally-prod-sweep": "ALARM"}), "1 of 2 in alarm, 1 without data:"
         " Tally-prod-sweep"),
        ("lag", lambda stack: stack.judge(judged_s=240, known_s=601), "bookkeeper 10 minutes ago"),
        ("judged", lambda stack: stack.judge(judged_s=1300, known_s=70), "minutes ago"),
        ("drift", lambda stack: put_drift_row(stack.store, "likes", "p", 5), "1 confirmed, 0 not yet: likes p +5"),
        ("failed events", lambda stack: setattr(stack, "failed_events", 2), "2"),
    ],
)  # fmt: skip
def test_what_needs_a_person_is_1_and_named(
    deployed: Deployed, run: Run, part: str, breaks: Callable[[Deployed], object], said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    breaks(deployed)
    code, out, _ = run(*STATUS)
    assert code == 1
    [line] = [line for line in out.splitlines() if line.startswith("wrong")]
    assert line.split(maxsplit=1)[1].startswith(part)
    assert line.endswith(said)
    more = ". Run `tally check`, then see docs/runbook.md" if part == "drift" else ""
    assert out.splitlines()[-1] == f"action needed: {part}{more}"
    lines = out.splitlines()
    assert lines[lines.index(line) + 1].split() == ["see", f"docs/{checks.SECTIONS[part]}"]
    monkeypatch.setattr(paths, "IS_WHEEL", True)
    [found] = [one for one in json.loads(run(*STATUS, "--json")[1])["parts"].values() if "runbook" in one]
    assert found["runbook"] == f"docs/{checks.SECTIONS[part]}, in Tally's repository"


def test_what_cannot_be_told_is_2_and_what_is_wrong_goes_before_it(deployed: Deployed, run: Run) -> None:
    deployed.refuses = True
    code, out, err = run(*STATUS)
    assert (code, err, "all is well" in out) == (2, "tally: cannot tell: alarms\n", False)
    [line] = [line for line in out.splitlines() if line.startswith("unknown")]
    assert line.split(maxsplit=2)[1:] == ["alarms", "User ann is not authorized"]
    deployed.failed_events = 1
    code, out, err = run(*STATUS, "--json")
    assert (code, err) == (1, "tally: cannot tell: alarms\n")
    [document] = map(json.loads, out.splitlines())
    assert (document["stack"], document["well"]) == ("Tally-prod", False)
    parts = document["parts"]
    assert {name: part["state"] for name, part in parts.items() if part["state"] != "ok"} == {
        "alarms": "unknown", "failed events": "wrong",
    }  # fmt: skip
    assert parts["version"] | {"state": ""} == {
        "state": "", "version": "0123456789ab", "runtime": "python3.14", "deploy": "UPDATE_COMPLETE",
    }  # fmt: skip
    assert parts["failed events"]["messages"] == 1
    assert 0 <= parts["lag"]["watermark_age_s"]["rollup"] - 70 < 60
