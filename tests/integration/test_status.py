"""`tally status` of a stack in AWS: its checks, its exit statuses, and its JSON."""

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
from tally.dev.base.engine import Engine
from tally.drift import checks
from tally.dynamo import items, keys
from tally.dynamo.client import Store
from tally.streams import fingerprints, watermark
from tests.integration.command.numbers import Run, note_fingerprint, put_drift_row

TOPIC = "arn:aws:sns:eu-west-1:123456789012:Tally-prod-Topic"
QUEUE = "https://sqs.eu-west-1.amazonaws.com/123456789012/Tally-prod-Queue"
MINUTE_S = 60
SESSION = boto3.session.Session()  # all tests share the session, because it reads each service's model once
STATUS = ("status", "--stack", "Tally-prod")


class FakeStack:
    """A fake stack in AWS. Every check is ok until a test changes the stack."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.status = "UPDATE_COMPLETE"
        self.health = 200
        self.alarms = {"Tally-prod-sweep": "OK", "Tally-prod-drift-likes": "INSUFFICIENT_DATA"}
        self.refuses_cloudwatch = False
        """Whether CloudWatch answers that the caller is not allowed to read alarms."""
        self.failed_events = 0
        self.set_watermark(judged_ago_s=240, passed_ago_s=70)

    def set_watermark(self, judged_ago_s: float, passed_ago_s: float) -> None:
        """Stores that the ledger is judged up to `judged_ago_s` ago, and that the watermark is `passed_ago_s` old."""
        now_s = time.time()
        numbers = {"judged": int((now_s - judged_ago_s) // MINUTE_S) - 1, "written_s": int(now_s) - 60, "began_s": 1}
        numbers |= dict.fromkeys(
            ("journal_complete_s", "rollup_passed_s", "reads_complete_s"), int(now_s - passed_ago_s)
        )
        watermark_item = watermark.WATERMARK_KEY | items.to_wire(numbers)
        self.store.client.put_item(TableName=self.store.settings.ledger_table, Item=watermark_item)

    def client(self, service: str) -> Any:
        """Returns a client that answers one request, and fails for parameters that AWS does not know."""
        client = SESSION.client(service, region_name="eu-west-1")
        stubber = Stubber(client)
        if service == "cloudwatch" and self.refuses_cloudwatch:
            stubber.add_client_error("describe_alarms", "AccessDenied", "User ann is not authorized", 403)
        elif service == "cloudwatch":
            alarms = [{"AlarmName": name, "StateValue": state} for name, state in self.alarms.items()]
            stubber.add_response("describe_alarms", {"MetricAlarms": alarms}, {"ActionPrefix": TOPIC})
        elif service == "sns":
            attributes = {"SubscriptionsConfirmed": "1", "SubscriptionsPending": "0"}
            stubber.add_response("get_topic_attributes", {"Attributes": attributes}, {"TopicArn": TOPIC})
        else:  # the queue of failed events
            names = ("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible")
            answer = {"Attributes": dict(zip(names, (str(self.failed_events), "0"), strict=True))}
            stubber.add_response("get_queue_attributes", answer, {"QueueUrl": QUEUE, "AttributeNames": names})
        stubber.activate()
        return client

    def describe_stacks(self, StackName: str) -> dict[str, Any]:
        """Answers as CloudFormation does. The fixture makes this object the client of CloudFormation."""
        settings = self.store.settings
        outputs = {
            "CountsTableName": settings.counts_table, "ReceiptsTableName": settings.receipts_table,
            "LedgerTableName": settings.ledger_table, "ApiUrl": "https://api.example.com", "AlarmTopicArn": TOPIC,
            "FailedEventsQueueUrl": QUEUE, "Stage": "prod", "Version": "0123456789ab",
            "StorageFormat": str(keys.FORMAT), "Runtime": "python3.14",
            "Counters": ", ".join(counters.COUNTERS),
        }  # fmt: skip
        listed_outputs = [{"OutputKey": name, "OutputValue": value} for name, value in outputs.items()]
        return {"Stacks": [{"StackStatus": self.status, "Outputs": listed_outputs}]}


@pytest.fixture
def fake_stack(engine: Engine, store: Store, monkeypatch: pytest.MonkeyPatch) -> FakeStack:
    stack, real_client = FakeStack(store), boto3.client

    def client(service: str, **options: Any) -> Any:
        if service == "cloudformation":
            return stack
        return real_client("dynamodb", **options) if service == "dynamodb" else stack.client(service)

    def open_url(url: str, timeout: float) -> BytesIO:
        if stack.health != 200:
            raise HTTPError(url, stack.health, "", Message(), BytesIO())
        return BytesIO(b'{"status": "ok", "version": "0123456789ab"}')

    monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", engine.endpoint)
    monkeypatch.setattr(boto3, "client", client)
    monkeypatch.setattr(urllib.request, "urlopen", open_url)
    return stack


def test_status_of_a_well_stack_shows_what_is_deployed_and_exits_with_0(fake_stack: FakeStack, run: Run) -> None:
    code, out, err = run(*STATUS)
    assert (code, err) == (0, ""), out
    assert out.splitlines()[-1] == "all is well"
    for part in ("0123456789ab on python3.14, UPDATE_COMPLETE", "plays, likes, visits", "0 of 2 in alarm, 1 without",
                 "watermark: rollup 7"):  # fmt: skip  # 70 s ago or a few seconds more
        assert part in out
    assert len(out.splitlines()) <= 24, "one screen"


@pytest.mark.parametrize(
    ("part", "break_part", "line_end"),
    [
        ("counters", lambda stack: note_fingerprint(stack.store, replace(counters.PLAYS, attribute="n")),
         f"counter 'plays' has counted with attribute='n', which is 'play_count' now: {fingerprints.WHAT_TO_DO}"),
        ("version", lambda stack: setattr(stack, "status", "UPDATE_ROLLBACK_COMPLETE"), "UPDATE_ROLLBACK_COMPLETE"),
        ("API", lambda stack: setattr(stack, "health", 503), "/health: 503"),
        ("alarms", lambda stack: stack.alarms.update({"Tally-prod-sweep": "ALARM"}), "1 of 2 in alarm, 1 without data:"
         " Tally-prod-sweep"),
        ("lag", lambda stack: stack.set_watermark(judged_ago_s=240, passed_ago_s=601), "bookkeeper 10 minutes ago"),
        ("judged", lambda stack: stack.set_watermark(judged_ago_s=1300, passed_ago_s=70), "minutes ago"),
        ("drift", lambda stack: put_drift_row(stack.store, "likes", "p", 5), "1 confirmed, 0 not yet: likes p +5"),
        ("failed events", lambda stack: setattr(stack, "failed_events", 2), "2"),
    ],
)  # fmt: skip
def test_status_names_the_part_that_is_wrong_and_exits_with_1(
    fake_stack: FakeStack, run: Run, part: str, break_part: Callable[[FakeStack], object], line_end: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    break_part(fake_stack)
    code, out, _ = run(*STATUS)
    assert code == 1
    [line] = [line for line in out.splitlines() if line.startswith("wrong")]
    assert line.split(maxsplit=1)[1].startswith(part)
    assert line.endswith(line_end)
    advice = ". Run `tally check`, then see docs/runbook.md" if part == "drift" else ""
    assert out.splitlines()[-1] == f"action needed: {part}{advice}"
    lines = out.splitlines()
    assert lines[lines.index(line) + 1].split() == ["see", f"docs/{checks.SECTIONS[part]}"]
    monkeypatch.setattr(paths, "IS_WHEEL", True)  # a wheel has no docs/
    [wrong] = [check for check in json.loads(run(*STATUS, "--json")[1])["parts"].values() if "runbook" in check]
    assert wrong["runbook"] == f"docs/{checks.SECTIONS[part]}, in Tally's repository"


def test_status_exits_with_2_for_an_unknown_part_and_with_1_if_another_part_is_wrong(
    fake_stack: FakeStack, run: Run
) -> None:
    fake_stack.refuses_cloudwatch = True
    code, out, err = run(*STATUS)
    assert (code, err, "all is well" in out) == (2, "tally: cannot tell: alarms\n", False)
    [line] = [line for line in out.splitlines() if line.startswith("unknown")]
    assert line.split(maxsplit=2)[1:] == ["alarms", "User ann is not authorized"]
    fake_stack.failed_events = 1
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
