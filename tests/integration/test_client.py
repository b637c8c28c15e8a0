"""The client against the real handlers, in process; e2e/test_client.py calls them through boto3."""

from __future__ import annotations

import importlib.util
import json
import time
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError, ReadTimeoutError
from tally.requests import Counted

from tally import client, errors, requests
from tally.client import Tally
from tally.counting import holds

Invoke = Callable[..., dict[str, Any]]
EXAMPLES = Path(__file__).resolve().parents[2] / "docs/examples"
MUG = ("stock", "mug")
ACME = ("members", "acme")
LOST, THROTTLED, CRASHED, BUSY_ENTRY = "lost", "throttled", "crashed", "busy entry"


def outcome(invoke: Invoke, name: str, event: object) -> tuple[bytes, bool]:
    """What Lambda answers for a function: its payload, and whether the function failed."""
    try:
        return json.dumps(invoke(name, event)).encode(), False
    except errors.TallyError as error:
        trace = ['  File "/var/task/tally/entry.py", line 99, in __call__\n    raise answer\n']
        crash = {"errorMessage": str(error), "errorType": type(error).__name__, "requestId": "r-1", "stackTrace": trace}
        return json.dumps(crash).encode(), True


class FakeLambda:
    """A boto3 client for Lambda whose functions are the handlers here. `faults`: what the next calls meet."""

    def __init__(self, invoke: Invoke) -> None:
        self.function = invoke
        self.faults: list[str | None] = []
        self.events: list[dict[str, Any]] = []

    def invoke(self, FunctionName: str, Payload: bytes, InvocationType: str = "RequestResponse") -> dict[str, Any]:
        event = json.loads(Payload)
        self.events.append(event)
        fault = self.faults.pop(0) if self.faults else None
        if fault == THROTTLED:
            response: Any = {"Error": {"Code": "TooManyRequestsException"}, "ResponseMetadata": {"HTTPStatusCode": 429}}
            raise ClientError(response, "Invoke")
        payload, failed = outcome(self.function, FunctionName, event)
        if fault == LOST:
            raise ReadTimeoutError(endpoint_url="https://lambda.eu-west-1.amazonaws.com")
        if fault == CRASHED:
            payload, failed = b'{"errorType": "Runtime.ExitError", "errorMessage": "signal: killed"}', True
        if fault == BUSY_ENTRY:
            answer = json.loads(payload)
            problem = errors.problem(errors.StoreBusyError("x"), request_id="r-1")
            answer["results"][1] = {"status": 503, "replayed": False, "body": problem}
            payload = json.dumps(answer).encode()
        return {"Payload": BytesIO(payload), **({"FunctionError": "Unhandled"} if failed else {})}


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "PAUSE_FIRST_S", 0.001)


@pytest.fixture
def fake(invoke: Invoke) -> FakeLambda:
    return FakeLambda(invoke)


@pytest.fixture
def tally(fake: FakeLambda) -> Tally:
    return Tally({name: name for name in client.FUNCTIONS}, caller="checkout", lambda_client=fake)


def test_every_operation_answers_its_typed_result(tally: Tally) -> None:
    health = tally.health()
    assert (health.status, health.version, health.receipts_live_s["visits"]) == ("ok", "dev", 8 * 86400)
    assert tally.play("9f3a") == Counted(replayed=False)
    assert tally.get_plays("9f3a") == requests.Plays("9f3a", 1)
    post = tally.put_post("a91f", "one", caller="auth0|7c20")
    assert post == requests.Post("a91f", "auth0|7c20", post.created_at, 0, 0, "one", created=True)
    assert tally.put_post("a91f", "two", caller="auth0|7c20").revision == 1
    assert tally.like("a91f", caller="alice") == requests.Liked("a91f", liked=True, changed=True, replayed=False)
    assert tally.like("a91f", caller="alice").changed is False
    assert tally.like("a91f", caller="bob").changed is True
    assert tally.unlike("a91f", caller="bob") == requests.Liked("a91f", liked=False, changed=True, replayed=False)
    assert tally.get_like("a91f", caller="alice").liked is True
    asked = tally.my_likes(["none", "a91f"], caller="alice")
    assert asked == (requests.MyLike("none", liked=False), requests.MyLike("a91f", liked=True))
    page = tally.list_likes("a91f", limit=10)
    assert page == requests.Likers("a91f", (requests.Liker("alice", page.likes[0].liked_at),), None)
    assert tally.get_post("a91f") == requests.Post("a91f", "auth0|7c20", post.created_at, 1, 1, "two")
    assert tally.delete_post("a91f", caller="auth0|7c20") == requests.Deleted("a91f", changed=True)
    soon = Counted(replayed=False, visible="soon")
    assert tally.visit("https://example.com:443/a") == soon
    assert tally.visit("https://example.com/a", user_agent="Googlebot/2.1") == soon
    visits = tally.get_visits("https://example.com/a")
    assert visits == requests.Visits("https://example.com/a", 0, 0, None)  # they are not rolled up yet
    assert tally.get_drift(limit=10) == requests.Drifting((), None)
    shards = (requests.Shard(0, 1),)
    assert tally.get_details("plays", "9f3a") == requests.Details("plays", "9f3a", 1, shards, None, None, ())
    status = tally.get_status()
    assert (status.well, status.parts[0]) == (None, requests.Part("store", "ok", "it answers"))
    for series in (
        tally.get_plays_series("9f3a"),
        tally.get_likes_series("a91f", by="day"),
        tally.get_visits_series("https://example.com/a", from_s=0, to_s=3600),
        tally.get_series("usage", "7c20", zone="Etc/GMT-1"),
        tally.get_total_series("visits"),
    ):
        assert (series.series, series.repairs, series.as_of) == ((), (), None)  # nothing is judged yet
    for top in (tally.get_top("plays"), tally.get_counter_top("usage", by="month", limit=3)):
        assert (top.top, top.span, top.as_of) == ((), None, None)


def test_every_operation_of_counters_answers_its_typed_result(tally: Tally) -> None:
    assert tally.increment("usage", "7c20", 7, idempotency_key="k") == Counted(replayed=False)
    assert tally.increment("usage", "7c20", 7, idempotency_key="k") == Counted(replayed=True)
    assert tally.get_counter("usage", "7c20") == requests.Value("usage", "7c20", 7)
    assert tally.put_child(*ACME, "bob") == requests.Child(*ACME, "bob", counted=True, changed=True)
    assert tally.put_child(*ACME, "auth0|7c20").changed is True
    assert tally.delete_child(*ACME, "bob") == requests.Child(*ACME, "bob", counted=False, changed=True)
    assert tally.get_child(*ACME, "bob") == requests.Child(*ACME, "bob", counted=False)
    page = tally.list_children(*ACME, limit=10)
    listed = requests.ListedChild("auth0|7c20", page.children[0].since)
    assert page == requests.Children(*ACME, (listed,), None)
    assert tally.get_counter(*ACME).value == 1
    assert tally.increment("ticket", "q") == Counted(replayed=False, number=1, last=False)
    assert tally.set_counter(*MUG, 42, 0) == requests.Value(*MUG, 42, 1)
    assert tally.get_counter(*MUG) == requests.Value(*MUG, 42, 1)
    hold = tally.hold(*MUG, 2, 900, idempotency_key="order-1")
    assert hold == requests.Hold(*MUG, hold.hold_id, 2, hold.expires_at, replayed=False)
    assert tally.hold(*MUG, 2, 900, idempotency_key="order-1") == requests.Hold(
        *MUG, hold.hold_id, 2, hold.expires_at, replayed=True
    )
    assert tally.commit_hold(*MUG, hold.hold_id) == requests.Settled(*MUG, hold.hold_id, "committed", changed=True)
    assert tally.commit_hold(*MUG, hold.hold_id).changed is False
    other = tally.hold(*MUG, 1, 900).hold_id
    assert tally.release_hold(*MUG, other) == requests.Settled(*MUG, other, "released", changed=True)
    assert tally.get_counter(*MUG).value == 40
    unknown = requests.Receipt("increment", "usage/7c20", counted=False, answer=None)
    assert tally.get_own_receipt("increment", "usage/7c20", "x") == unknown
    answer = {"counter": "usage", "id": "7c20", "counted": True, "visible": "now"}
    counted = requests.Receipt("increment", "usage/7c20", counted=True, answer=answer)
    assert tally.get_receipt("increment", "usage/7c20", "k") == tally.get_own_receipt("increment", "usage/7c20", "k")
    assert tally.get_receipt("increment", "usage/7c20", "k") == counted
    assert tally.get_receipts("increment", ["usage/7c20"], ["k", "x"]) == (counted, unknown)
    assert tally.get_own_receipts("increment", ["usage/7c20"] * 2, ["x", "k"]) == (unknown, counted)


def test_an_order_is_all_or_nothing_and_its_refusal_names_the_entry(tally: Tally) -> None:
    tally.set_counter(*MUG, 2, 0)
    order = [(*MUG, -1), requests.Change("usage", "sales", 1), ("plays", "advert")]
    assert tally.change(order, idempotency_key="order-1") == requests.Changed(3, 3, replayed=False)
    assert tally.change(order, idempotency_key="order-1") == requests.Changed(3, 3, replayed=True)
    with pytest.raises(errors.LimitReachedError) as refused:
        tally.change([("usage", "sales", 1), (*MUG, -2)])
    assert (refused.value.members["entry"], refused.value.members["id"], refused.value.left) == (1, "mug", 1)
    assert tally.get_counter("usage", "sales").value == 1
    soon = tally.change([("plays", "advert"), ("plays", "advert")], "soon")
    assert soon == requests.Changed(2, 1, replayed=False, visible="soon")
    assert tally.get_own_receipt("change", "changes", "order-1").counted


@pytest.mark.parametrize("faults", [[LOST], [LOST, THROTTLED, CRASHED, LOST]], ids=repr)
def test_a_call_whose_answers_are_lost_or_that_is_throttled_is_counted_once(
    faults: list[str | None], tally: Tally, fake: FakeLambda
) -> None:
    fake.faults = list(faults)
    assert tally.play("9f3a") == Counted(replayed=True)
    fake.faults = list(faults)
    number = tally.increment("ticket", "q")
    fake.faults = list(faults)
    assert tally.set_counter(*MUG, 5, 0).version == 1
    fake.faults = list(faults)
    hold = tally.hold(*MUG, 2, 900)
    fake.faults = list(faults)
    assert tally.commit_hold(*MUG, hold.hold_id).state == "committed"
    assert (number.number, tally.get_plays("9f3a").play_count, tally.get_counter(*MUG).value) == (1, 1, 3)
    assert tally.increment("ticket", "q").number == 2


def test_a_batch_over_several_functions_is_answered_in_order_and_sees_what_stands_before_it(
    tally: Tally, fake: FakeLambda
) -> None:
    asked: list[requests.Request[Any]] = [
        requests.play("9f3a"),
        requests.increment("usage", "7c20", 7),
        requests.play("9f3a"),
        requests.increment(*MUG, -1),
        requests.get_plays("9f3a"),
        requests.get_counter("usage", "7c20"),
        requests.play("a#b"),
    ]
    results = tally.batch(asked)
    assert [type(result).__name__ for result in results] == [
        "Counted", "Counted", "Counted", "LimitReachedError", "Plays", "Value", "InvalidInputError",
    ]  # fmt: skip
    assert (results[4], results[5]) == (requests.Plays("9f3a", 2), requests.Value("usage", "7c20", 7))
    assert [len(event["batch"]) for event in fake.events] == [4, 3]


def test_a_batch_of_250_goes_100_at_a_time_and_counts_each(tally: Tally, fake: FakeLambda) -> None:
    results = tally.batch([requests.play("9f3a") for _ in range(250)])
    assert results == [Counted(replayed=False)] * 250
    assert [len(event["batch"]) for event in fake.events] == [100, 100, 50]
    assert tally.get_plays("9f3a").play_count == 250


@pytest.mark.parametrize("fault", [LOST, THROTTLED, CRASHED, BUSY_ENTRY])
def test_a_batch_of_which_answers_are_lost_or_busy_counts_each_entry_once(
    fault: str, tally: Tally, fake: FakeLambda
) -> None:
    fake.faults = [fault]
    results = tally.batch([*[requests.play("9f3a") for _ in range(5)], requests.increment(*MUG, -1)])
    replayed = {LOST: [True] * 5, CRASHED: [True] * 5, BUSY_ENTRY: [False, True, False, False, False]}
    assert [result.replayed for result in results if isinstance(result, Counted)] == replayed.get(fault, [False] * 5)
    assert isinstance(results[5], errors.LimitReachedError)
    again = fake.events[1]["batch"]
    assert again == (fake.events[0]["batch"][1:2] if fault == BUSY_ENTRY else fake.events[0]["batch"])
    assert tally.get_plays("9f3a").play_count == 5


def example(name: str, tally: Tally, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A sample consumer, loaded as Lambda would, then given this test's Tally."""
    monkeypatch.setenv("TALLY_FUNCTION_PREFIX", "")
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.tally.functions["plays"] == "plays"
    monkeypatch.setattr(module, "tally", tally)
    return module


def test_the_sample_consumer_counts_each_message_once_however_often_it_is_delivered(
    tally: Tally, fake: FakeLambda, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    consumer = example("consumer", tally, monkeypatch)
    monkeypatch.setattr(client, "ATTEMPTS_MAX", 1)
    ids = [f"19dd0b57-b21e-4ac1-bd88-01bbb068cb7{number}" for number in range(4)]
    videos = ["9f3a", "9f3a", "a#b", "77aa"]
    records = [
        {"messageId": id_, "body": json.dumps({"video_id": video})} for id_, video in zip(ids, videos, strict=True)
    ]
    fake.faults = [BUSY_ENTRY]
    assert consumer.handler({"Records": records}, None) == {"batchItemFailures": [{"itemIdentifier": ids[1]}]}
    assert ids[2] in caplog.text
    assert consumer.handler({"Records": records[:2]}, None) == {"batchItemFailures": []}
    assert (tally.get_plays("9f3a").play_count, tally.get_plays("77aa").play_count) == (2, 1)


def test_the_sample_checkout_sells_once_what_is_paid_and_gives_back_what_is_not(
    tally: Tally, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout = example("checkout", tally, monkeypatch)
    tally.increment(*MUG, 3)
    order = {"order_id": "o-1", "item_id": "mug", "amount": 2}
    assert checkout.handler(order, None) == checkout.handler(order, None) == {"sold": True}
    assert checkout.handler({**order, "order_id": "o-2"}, None) == {"sold": False, "left": 1}
    monkeypatch.setattr(checkout, "charge", lambda order: False)
    assert checkout.handler({**order, "order_id": "o-3", "amount": 1}, None) == {"sold": False}
    assert tally.get_counter(*MUG).value == 1


def test_the_sample_checkout_pays_back_what_was_paid_too_late(tally: Tally, monkeypatch: pytest.MonkeyPatch) -> None:
    checkout = example("checkout", tally, monkeypatch)
    paid_back: list[dict[str, Any]] = []

    def charge(order: dict[str, Any]) -> bool:
        late = SimpleNamespace(time=lambda: time.time() + checkout.PAY_WITHIN_S + 1)
        monkeypatch.setattr(holds, "time", late)
        return True

    monkeypatch.setattr(checkout, "charge", charge)
    monkeypatch.setattr(checkout, "refund", paid_back.append)
    tally.increment(*MUG, 1)
    order = {"order_id": "o-1", "item_id": "mug", "amount": 1}
    assert checkout.handler(order, None) == {"sold": False}
    assert paid_back == [order]
    assert tally.get_counter(*MUG).value == 1
