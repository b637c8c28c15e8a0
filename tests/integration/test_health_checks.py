"""`GET /status` and `GET /details`: whether all is well as far as a function can tell, and one tally in detail."""

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
from tally.streams import dead_letters, forms, watermark
from tests.integration.command.numbers import mark_judged, note_form, put_drift_row
from tests.integration.conftest import Invoke
from tests.invariants.streaming import Bucket

TOPIC = "arn:aws:sns:eu-west-1:123456789012:Tally-prod-Topic"
OTHER = "arn:aws:sns:eu-west-1:123456789012:Tally-prod-2-Topic"


def stored(store: Store, counter: Counter, id_: str, *shards: int) -> None:
    """The tally, split over shards."""
    for shard, number in enumerate(shards):
        item = tallies.key(counter, id_, shard) | {counter.attribute: {"N": str(number)}}
        store.client.put_item(TableName=store.settings.counts_table, Item=item)


def repaired(store: Store, counter: str, id_: str, amounts: range) -> None:
    for amount in amounts:
        texts = {"by": "ann", "why": f"repair {amount}", "how": history.LEDGER}
        write = history.repair_entry_write(
            store, counter, id_, 1_800_000_000 + amount, {"before": 0, "amount": amount, "added": 0}, **texts
        )
        store.client.put_item(**write["Put"])


def test_a_tally_in_detail_has_its_shards_its_drift_and_who_repaired_it(invoke: Invoke, store: Store) -> None:
    stored(store, counters.PLAYS, "9f3a", 7, 0, 5)
    upto = mark_judged(store, ahead=-2)
    put_drift_row(store, "plays", "9f3a", 3)
    repaired(store, "plays", "9f3a", range(1, 3))
    body = invoke.direct("get_details", counter="plays", id="9f3a")["body"]
    repairs = body.pop("repairs")
    assert body == {
        "counter": "plays", "id": "9f3a", "value": 12,
        "shards": [{"shard": 0, "value": 7}, {"shard": 1, "value": 0}, {"shard": 2, "value": 5}],
        "drift": {"drift": 3, "since": 1_800_000_000, "confirmed": True},
        "judged_up_to": 60 * (upto + 1), "imported": None,
    }  # fmt: skip
    assert repairs == [
        {"at": 1_800_000_000 + amount, "amount": amount, "how": "ledger", "who": "ann", "why": f"repair {amount}"}
        for amount in (2, 1)
    ]
    assert body["value"] == invoke.read("plays", "9f3a")["value"]
    repaired(store, "plays", "9f3a", range(3, 104))
    repairs = invoke.direct("get_details", counter="plays", id="9f3a")["body"]["repairs"]
    assert [one["amount"] for one in repairs] == list(range(103, 3, -1)), "the newest hundred"


def test_a_period_has_details_of_its_own(invoke: Invoke, store: Store) -> None:
    """What a counter with one item has in others, from before it had one, is part of its number."""
    stored(store, counters.CALLS, "7c20#2030-01-01", 41, 1)
    body = invoke.direct("get_details", counter="calls", id="7c20", period="2030-01-01")["body"]
    assert (body["id"], body["period"], body["value"]) == ("7c20", "2030-01-01", 42)
    nothing = invoke.direct("get_details", counter="calls", id="7c20")["body"]
    unknown = dict.fromkeys(("drift", "judged_up_to"))
    assert nothing == nothing | {"value": 0, "shards": [], "repairs": []} | unknown


class Looked:
    """The answers of `GET /status`, of a stack whose CloudWatch lists these alarms."""

    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        self.settings = store.settings._replace(stack="Tally-prod", alarm_topic=TOPIC)
        self.store = replace(store, settings=self.settings)
        self.alarms = {"Tally-prod-sweep": ("OK", TOPIC), "Tally-prod-2-sweep": ("ALARM", OTHER)}
        self.refuses = False
        self.stack = "Tally-prod"
        self.subscribers = {"SubscriptionsConfirmed": "2", "SubscriptionsPending": "1"}
        monkeypatch.setattr(checks, "_client", self.client)

    def client(self, service: str) -> Any:
        made = boto3.client(service, region_name="eu-west-1")  # type: ignore[call-overload]
        stubber = Stubber(made)
        if service == "sns":
            stubber.add_response("get_topic_attributes", {"Attributes": self.subscribers}, {"TopicArn": TOPIC})
            stubber.activate()
            return made
        if self.refuses:
            stubber.add_client_error("describe_alarms", "AccessDenied", "not authorized", 403)
        listed = [
            {"AlarmName": name, "StateValue": state, "AlarmActions": [topic]}
            for name, (state, topic) in self.alarms.items()
        ]
        stubber.add_response("describe_alarms", {"MetricAlarms": listed}, {"AlarmNamePrefix": f"{self.stack}-"})
        stubber.activate()
        return made

    def answer(self, **settings: Any) -> dict[str, Any]:
        self.stack = settings.get("stack", "Tally-prod")
        store = replace(self.store, settings=self.settings._replace(**settings))
        answer = Invoke(store).direct("get_status")
        assert answer["status"] == 200
        body: dict[str, Any] = answer["body"]
        return body

    def states(self, **settings: Any) -> tuple[bool | None, dict[str, str]]:
        body = self.answer(**settings)
        return body["well"], {part["name"]: part["state"] for part in body["parts"] if part["state"] != "ok"}


@pytest.fixture
def looked(store: Store, monkeypatch: pytest.MonkeyPatch) -> Looked:
    made = Looked(store, monkeypatch)
    mark_judged(store, ahead=-2)
    return made


def test_all_is_well_when_every_part_is(looked: Looked) -> None:
    """A drift that is not confirmed may be gone in a minute, the sweep gives back a hold that expired just now, and the
    alarms of another stage are not this one's."""
    put_drift_row(looked.store, "plays", "9f3a", 3, ago=0)
    hold = {"PK": {"S": "HOLDS#3"}, "SK": {"S": f"{int(time.time()) - 200}-x#stock/mug"}, "state": {"S": "held"}}
    looked.store.client.put_item(TableName=looked.settings.ledger_table, Item=hold)
    body = looked.answer()
    assert body["well"] is True, body["parts"]
    assert [part["name"] for part in body["parts"]] == [
        "store", "lag", "judged", "drift", "dead letters", "lost records", "holds", "counters", "alarms", "subscribers",
    ]  # fmt: skip
    lines = {part["name"]: part["line"] for part in body["parts"]}
    assert (lines["drift"], lines["alarms"]) == ("0 confirmed, 1 not yet", "0 of 1 in alarm")
    assert body["judged_up_to"] == 60 * (watermark.last_judged_minute(looked.store) + 1)
    assert 0 < body["as_of"] <= body["at"] <= time.time()
    assert (body["stack"], body["stage"], body["where"]) == ("Tally-prod", "prod", "--stack Tally-prod")


def test_what_is_wrong_is_named(looked: Looked) -> None:
    looked.alarms["Tally-prod-drift-likes"] = ("ALARM", TOPIC)
    looked.subscribers["SubscriptionsConfirmed"] = "0"
    put_drift_row(looked.store, "likes", "a91f", 5)
    note_form(looked.store, replace(counters.STOCK, floor=None, max_shards=16))
    ledger, call = looked.settings.ledger_table, Call(looked.store)
    kept = dead_letters.store_and_mark(
        call, dead_letters.DeadLetterBucket("b", Bucket), "rollup", "receipts", "s", "7", {}, "for a test"
    )
    looked.store.client.put_item(**kept["Put"])
    late = str(int(time.time()) - 301)
    for number, (start, state) in enumerate(((late, "held"), (f"OVERDUE#{late}", "held"), (f"{late}x", "expired"))):
        hold = {"PK": {"S": f"HOLDS#{number}"}, "SK": {"S": f"{start}-x#stock/mug"}, "state": {"S": state}}
        looked.store.client.put_item(TableName=ledger, Item=hold)
    body = looked.answer()
    assert body["well"] is False
    assert {part["name"]: part["line"] for part in body["parts"] if part["state"] == "wrong"} == {
        "drift": "1 confirmed, 0 not yet: likes a91f +5",
        "dead letters": body["parts"][4]["line"],
        "holds": "2 expired and not given back",
        "counters": "counter 'stock' has counted in many shards: it can have no start, floor, ceiling, numbered or"
        f" max_shards=1: {forms.WHAT_TO_DO}",
        "alarms": "1 of 2 in alarm: Tally-prod-drift-likes",
        "subscribers": "no confirmed subscriber; waiting for confirmation: 1",
    }
    assert body["parts"][4]["line"].startswith("1, the oldest since ")
    looked.alarms["Tally-dev-sweep"] = ("OK", TOPIC)
    assert "subscribers" not in looked.states(stack="Tally-dev")[1], "only dev may be silent"


def test_silence_is_not_called_well(looked: Looked) -> None:
    """A new stack, a CloudWatch that refuses, one that lists nothing, and a function that does not know its topic."""
    looked.store.client.delete_item(TableName=looked.settings.ledger_table, Key=watermark.WATERMARK_KEY)
    assert looked.states() == (None, {"lag": "unknown", "judged": "unknown"})
    mark_judged(looked.store, ahead=-2)
    assert looked.states(alarm_topic="") == (None, {"alarms": "unknown", "subscribers": "unknown"})
    looked.alarms.pop("Tally-prod-sweep")
    assert looked.states() == (None, {"alarms": "unknown"})
    looked.refuses = True
    assert looked.states() == (None, {"alarms": "unknown"})
    [line] = [part["line"] for part in looked.answer()["parts"] if part["name"] == "alarms"]
    assert line == "AWS did not answer: AccessDenied"


@pytest.mark.parametrize("wrong", [True, False])
def test_a_list_that_is_cut_says_nothing_of_the_rest(
    looked: Looked, wrong: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first drifts are not confirmed, and what is first in a bucket is no hold: neither part is ok."""
    monkeypatch.setattr(checks, "READ_MAX", 2)
    monkeypatch.setattr(hold_items, "UNRETURNED_MAX", 2)
    for number in range(3):
        put_drift_row(looked.store, "plays", f"v{number}", 3, ago=0)
        state = "held" if wrong and not number else "expired"
        hold = keys.key("HOLDS#3", f"1-{number}#stock/mug") | {"state": {"S": state}}
        looked.store.client.put_item(TableName=looked.settings.ledger_table, Item=hold)
    well, states = looked.states()
    assert (well, states) == (False if wrong else None, {"drift": "unknown", "holds": "wrong" if wrong else "unknown"})
    lines = {part["name"]: part["line"] for part in looked.answer()["parts"]}
    assert lines["drift"] == "at least 0 confirmed, 2 not yet"
    assert lines["holds"] == f"at least {int(wrong)} expired and not given back"


def test_a_time_ahead_of_this_clock_is_an_age_below_zero(looked: Looked) -> None:
    """Two clocks differ: a watermark may be ahead of the function that reads it."""
    mark_judged(looked.store, ahead=3)
    assert re.search(r" UTC, -\d+ s ago$", checks.judging(looked.store).summary)


def test_a_store_that_does_not_answer_is_wrong_and_the_rest_unknown(looked: Looked) -> None:
    once = Config(retries={"total_max_attempts": 1}, connect_timeout=1)
    gone = boto3.client("dynamodb", region_name="eu-west-1", endpoint_url="http://127.0.0.1:9", config=once)
    looked.store = replace(looked.store, client=gone)
    body = looked.answer()
    assert body["well"] is False
    unknown = {part["name"]: part["line"] for part in body["parts"] if part["state"] == "unknown"}
    needing = ("lag", "judged", "drift", "dead letters", "lost records", "holds", "counters")
    assert unknown == dict.fromkeys(needing, "the store does not answer")
    assert [part["name"] for part in body["parts"] if part["state"] == "wrong"] == ["store"]


def test_a_stack_on_this_machine_says_how_the_command_finds_it(looked: Looked) -> None:
    """It has no alarms, and asks no CloudWatch."""
    looked.refuses = True
    body = looked.answer(local_port=8081)
    assert (body["well"], body["where"]) == (True, "--local --port 8081")
    said = {"state": "ok", "line": "there are no alarms on this machine"}
    assert body["parts"][-2:] == [
        {"name": "alarms", **said, "see": "runbook.md#find-your-alarm"},
        {"name": "subscribers", **said, "see": "operate.md#who-hears-of-alarms"},
    ]
