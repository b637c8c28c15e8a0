"""`GET /status` runs the health checks that a function can run. `GET /details` shows one tally in detail."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.stub import Stubber

import counters
from tally.counter import Counter
from tally.counting import hold_items, tallies
from tally.drift import checks, history
from tally.dynamo import keys
from tally.dynamo.client import Call, Store
from tally.streams import dead_letters, fingerprints, watermark
from tests.integration.command.numbers import mark_judged, note_fingerprint, put_drift_row
from tests.integration.conftest import Invoke
from tests.invariants.streaming import Bucket

TOPIC = "arn:aws:sns:eu-west-1:123456789012:Tally-prod-Topic"
TOPIC_OF_ANOTHER_STACK = "arn:aws:sns:eu-west-1:123456789012:Tally-prod-2-Topic"
"""The topic of a stack whose alarms have names that begin with `Tally-prod-`, too."""


def put_tally(store: Store, counter: Counter, id_: str, *shards: int) -> None:
    """Stores a tally with these numbers in its shards."""
    for shard, number in enumerate(shards):
        item = tallies.key(counter, id_, shard) | {counter.attribute: {"N": str(number)}}
        store.client.put_item(TableName=store.settings.counts_table, Item=item)


def put_repairs(store: Store, counter: str, id_: str, amounts: range) -> None:
    """Stores a repair of each amount. The time of a repair is 1,800,000,000 s plus its amount."""
    for amount in amounts:
        texts = {"by": "ann", "why": f"repair {amount}", "how": history.LEDGER}
        write = history.repair_entry_write(
            store, counter, id_, 1_800_000_000 + amount, {"before": 0, "amount": amount, "added": 0}, **texts
        )
        store.client.put_item(**write["Put"])


def test_the_details_of_a_tally_have_its_shards_its_drift_and_its_repairs(invoke: Invoke, store: Store) -> None:
    put_tally(store, counters.PLAYS, "9f3a", 7, 0, 5)
    judged_minute = mark_judged(store, minutes_ahead=-2)
    put_drift_row(store, "plays", "9f3a", 3)
    put_repairs(store, "plays", "9f3a", range(1, 3))
    body = invoke.direct("get_details", counter="plays", id="9f3a")["body"]
    repairs = body.pop("repairs")
    assert body == {
        "counter": "plays", "id": "9f3a", "value": 12,
        "shards": [{"shard": 0, "value": 7}, {"shard": 1, "value": 0}, {"shard": 2, "value": 5}],
        "drift": {"drift": 3, "since": 1_800_000_000, "confirmed": True},
        "judged_up_to": 60 * (judged_minute + 1), "imported": None,
    }  # fmt: skip
    assert repairs == [
        {"at": 1_800_000_000 + amount, "amount": amount, "how": "ledger", "who": "ann", "why": f"repair {amount}"}
        for amount in (2, 1)
    ]
    assert body["value"] == invoke.read("plays", "9f3a")["value"]
    put_repairs(store, "plays", "9f3a", range(3, 104))
    repairs = invoke.direct("get_details", counter="plays", id="9f3a")["body"]["repairs"]
    assert [repair["amount"] for repair in repairs] == list(range(103, 3, -1)), "the newest hundred"


def test_each_period_has_its_own_details(invoke: Invoke, store: Store) -> None:
    """The value includes shards from before the counter was declared with one shard."""
    put_tally(store, counters.CALLS, "7c20#2030-01-01", 41, 1)
    body = invoke.direct("get_details", counter="calls", id="7c20", period="2030-01-01")["body"]
    assert (body["id"], body["period"], body["value"]) == ("7c20", "2030-01-01", 42)
    nothing = invoke.direct("get_details", counter="calls", id="7c20")["body"]
    expected = {"value": 0, "shards": [], "repairs": [], "drift": None, "judged_up_to": None}
    assert expected.items() <= nothing.items()


class StatusOfStack:
    """Answers `GET /status` of a stack. `alarms`: state and topic of each alarm. `subscribers`: the counts of SNS."""

    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        self.settings = store.settings._replace(stack="Tally-prod", alarm_topic=TOPIC)
        self.store = replace(store, settings=self.settings)
        self.alarms = {"Tally-prod-sweep": ("OK", TOPIC), "Tally-prod-2-sweep": ("ALARM", TOPIC_OF_ANOTHER_STACK)}
        self.cloudwatch_fails = False
        self.stack = "Tally-prod"
        self.subscribers = {"SubscriptionsConfirmed": "2", "SubscriptionsPending": "1"}
        monkeypatch.setattr(checks, "_client", self.client)

    def client(self, service: str) -> Any:
        client = boto3.client(service, region_name="eu-west-1")  # type: ignore[call-overload]
        stubber = Stubber(client)
        if service == "sns":
            stubber.add_response("get_topic_attributes", {"Attributes": self.subscribers}, {"TopicArn": TOPIC})
            stubber.activate()
            return client
        if self.cloudwatch_fails:
            stubber.add_client_error("describe_alarms", "AccessDenied", "not authorized", 403)
        alarms = [
            {"AlarmName": name, "StateValue": state, "AlarmActions": [topic]}
            for name, (state, topic) in self.alarms.items()
        ]
        stubber.add_response("describe_alarms", {"MetricAlarms": alarms}, {"AlarmNamePrefix": f"{self.stack}-"})
        stubber.activate()
        return client

    def answer(self, **settings: Any) -> dict[str, Any]:
        """Returns the body of the answer. `settings`: settings that differ from `self.settings`."""
        self.stack = settings.get("stack", "Tally-prod")
        store = replace(self.store, settings=self.settings._replace(**settings))
        answer = Invoke(store).direct("get_status")
        assert answer["status"] == 200
        body: dict[str, Any] = answer["body"]
        return body

    def faults(self, **settings: Any) -> tuple[bool | None, dict[str, str]]:
        """Returns `well`, and the states of the parts that are not ok, by the parts' names."""
        body = self.answer(**settings)
        return body["well"], {part["name"]: part["state"] for part in body["parts"] if part["state"] != "ok"}


@pytest.fixture
def stack_status(store: Store, monkeypatch: pytest.MonkeyPatch) -> StatusOfStack:
    status = StatusOfStack(store, monkeypatch)
    mark_judged(store, minutes_ahead=-2)  # a judge is always behind the clock
    return status


def test_all_is_well_when_every_part_is_ok(stack_status: StatusOfStack) -> None:
    """Unconfirmed drift, a hold that expired less than five minutes ago, and an alarm of another stage are ok."""
    put_drift_row(stack_status.store, "plays", "9f3a", 3, minutes_ago=0)
    hold = {"PK": {"S": "HOLDS#3"}, "SK": {"S": f"{int(time.time()) - 200}-x#stock/mug"}, "state": {"S": "held"}}
    stack_status.store.client.put_item(TableName=stack_status.settings.ledger_table, Item=hold)
    body = stack_status.answer()
    assert body["well"] is True, body["parts"]
    assert [part["name"] for part in body["parts"]] == [
        "store", "lag", "judged", "drift", "dead letters", "lost records", "holds", "counters", "alarms", "subscribers",
    ]  # fmt: skip
    lines = {part["name"]: part["line"] for part in body["parts"]}
    assert (lines["drift"], lines["alarms"]) == ("0 confirmed, 1 not yet", "0 of 1 in alarm")
    assert body["judged_up_to"] == 60 * (watermark.read(stack_status.store).judged + 1)
    assert 0 < body["as_of"] <= body["at"] <= time.time()
    assert (body["stack"], body["stage"], body["where"]) == ("Tally-prod", "prod", "--stack Tally-prod")


def test_each_wrong_part_is_named_with_its_reason(stack_status: StatusOfStack) -> None:
    stack_status.alarms["Tally-prod-drift-likes"] = ("ALARM", TOPIC)
    stack_status.subscribers["SubscriptionsConfirmed"] = "0"
    put_drift_row(stack_status.store, "likes", "a91f", 5)
    note_fingerprint(stack_status.store, replace(counters.STOCK, floor=None, max_shards=16))
    ledger, call = stack_status.settings.ledger_table, Call(stack_status.store)
    bucket = dead_letters.DeadLetterBucket("b", Bucket)
    marker = dead_letters.store_and_mark(call, bucket, "rollup", "receipts", "shard", "7", {}, "for a test")
    stack_status.store.client.put_item(**marker["Put"])
    expired_s = int(time.time()) - 301  # the sweep has 300 s to release a hold
    holds = (
        (f"{expired_s}-x#stock/mug", "held"),  # the sweep has not released this hold
        ("OVERDUE#stock/mug#x", "held"),  # a limit refuses the release of this hold
        (f"{expired_s}-y#stock/mug", "expired"),  # this hold is released
    )
    for bucket_number, (sort_key, state) in enumerate(holds):
        item = keys.key(f"HOLDS#{bucket_number}", sort_key) | {"state": {"S": state}}
        stack_status.store.client.put_item(TableName=ledger, Item=item)
    body = stack_status.answer()
    assert body["well"] is False
    wrong = {part["name"]: part["line"] for part in body["parts"] if part["state"] == "wrong"}
    assert wrong.pop("dead letters").startswith("1, the oldest since ")
    assert wrong == {
        "drift": "1 confirmed, 0 not yet: likes a91f +5",
        "holds": "2 expired and not released",
        "counters": "counter 'stock' has counted in many shards: it can have no start, floor, ceiling, numbered or"
        f" max_shards=1: {fingerprints.WHAT_TO_DO}",
        "alarms": "1 of 2 in alarm: Tally-prod-drift-likes",
        "subscribers": "no confirmed subscriber; waiting for confirmation: 1",
    }
    stack_status.alarms["Tally-dev-sweep"] = ("OK", TOPIC)
    assert "subscribers" not in stack_status.faults(stack="Tally-dev")[1], "only the stage dev may have no subscriber"


def test_a_part_without_an_answer_is_unknown_and_not_ok(stack_status: StatusOfStack) -> None:
    """Causes: a new stack, a function that does not know its topic, no listed alarm, and an error of CloudWatch."""
    stack_status.store.client.delete_item(TableName=stack_status.settings.ledger_table, Key=watermark.WATERMARK_KEY)
    assert stack_status.faults() == (None, {"lag": "unknown", "judged": "unknown"})
    mark_judged(stack_status.store, minutes_ahead=-2)
    assert stack_status.faults(alarm_topic="") == (None, {"alarms": "unknown", "subscribers": "unknown"})
    stack_status.alarms.pop("Tally-prod-sweep")
    assert stack_status.faults() == (None, {"alarms": "unknown"})
    stack_status.cloudwatch_fails = True
    assert stack_status.faults() == (None, {"alarms": "unknown"})
    [line] = [part["line"] for part in stack_status.answer()["parts"] if part["name"] == "alarms"]
    assert line == "AWS did not answer: AccessDenied"


@pytest.mark.parametrize("has_wrong_hold", [True, False])
def test_a_check_that_reads_only_a_part_of_its_rows_is_not_ok(
    stack_status: StatusOfStack, has_wrong_hold: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each check reads two of three rows. No drift is confirmed. All holds are released, or all but the first hold."""
    monkeypatch.setattr(checks, "READ_MAX", 2)
    monkeypatch.setattr(hold_items, "UNRELEASED_MAX", 2)
    for number in range(3):
        put_drift_row(stack_status.store, "plays", f"v{number}", 3, minutes_ago=0)
        state = "held" if has_wrong_hold and not number else "expired"
        hold = keys.key("HOLDS#3", f"1-{number}#stock/mug") | {"state": {"S": state}}
        stack_status.store.client.put_item(TableName=stack_status.settings.ledger_table, Item=hold)
    assert stack_status.faults() == (
        False if has_wrong_hold else None,
        {"drift": "unknown", "holds": "wrong" if has_wrong_hold else "unknown"},
    )
    lines = {part["name"]: part["line"] for part in stack_status.answer()["parts"]}
    assert lines["drift"] == "at least 0 confirmed, 2 not yet"
    assert lines["holds"] == f"at least {int(has_wrong_hold)} expired and not released"


def test_a_watermark_ahead_of_the_clock_has_an_age_below_zero(stack_status: StatusOfStack) -> None:
    """Clocks differ, so a watermark may be ahead of the clock of the function that reads it."""
    mark_judged(stack_status.store, minutes_ahead=3)
    assert re.search(r" UTC, -\d+ s ago$", checks.judged_check(stack_status.store).summary)


def test_if_the_store_does_not_answer_the_store_is_wrong_and_parts_that_read_it_are_unknown(
    stack_status: StatusOfStack,
) -> None:
    no_retry = Config(retries={"total_max_attempts": 1}, connect_timeout=1)
    unreachable = boto3.client("dynamodb", region_name="eu-west-1", endpoint_url="http://127.0.0.1:9", config=no_retry)
    stack_status.store = replace(stack_status.store, client=unreachable)
    body = stack_status.answer()
    assert body["well"] is False
    unknown = {part["name"]: part["line"] for part in body["parts"] if part["state"] == "unknown"}
    parts_that_read = ("lag", "judged", "drift", "dead letters", "lost records", "holds", "counters")
    assert unknown == dict.fromkeys(parts_that_read, "the store does not answer")
    assert [part["name"] for part in body["parts"] if part["state"] == "wrong"] == ["store"]


def test_the_status_of_a_local_stack_says_how_the_command_finds_it(stack_status: StatusOfStack) -> None:
    """A local stack has no alarms, and its function does not ask CloudWatch."""
    stack_status.cloudwatch_fails = True
    body = stack_status.answer(local_port=8081)
    assert (body["well"], body["where"]) == (True, "--local --port 8081")
    no_alarms = {"state": "ok", "line": "there are no alarms on this machine"}
    assert body["parts"][-2:] == [
        {"name": "alarms", **no_alarms, "see": "runbook.md#find-your-alarm"},
        {"name": "subscribers", **no_alarms, "see": "operate.md#who-hears-of-alarms"},
    ]
