"""The Python client calls the real handlers in this process. e2e/test_client.py calls the handlers through boto3."""

from __future__ import annotations

import importlib.util
import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from io import BytesIO
from types import ModuleType
from typing import Any

import pytest
from botocore.exceptions import ClientError, ReadTimeoutError

import counters
from tally import client, errors
from tally.client import Request, Tally, requests
from tally.counter import Counter
from tally.dynamo import clock
from tests.environments import ROOT
from tests.integration.conftest import Invoke
from tests.patience import PATIENCE_S

EXAMPLES = ROOT / "docs/examples"
MUG = ("stock", "mug")
LOST, THROTTLED, CRASHED, BUSY_ENTRY = "lost", "throttled", "crashed", "busy entry"  # faults of FakeLambda
PROMPT = "x" * 149  # the sample gateway estimates 50 tokens


def lambda_payload(invoke: Invoke, name: str, event: object) -> tuple[bytes, bool]:
    """Returns the payload that Lambda answers for a function, and whether the function failed."""
    try:
        return json.dumps(invoke(event, function=name)).encode(), False
    except errors.TallyError as error:
        trace = ['  File "/var/task/tally/entry.py", line 99, in __call__\n    raise answer\n']
        crash = {"errorMessage": str(error), "errorType": type(error).__name__, "requestId": "r-1", "stackTrace": trace}
        return json.dumps(crash).encode(), True


class FakeLambda:
    """A fake boto3 client for Lambda whose functions are the handlers. `faults`: the faults of the next calls."""

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
        payload, failed = lambda_payload(self.function, FunctionName, event)
        if fault == LOST:
            raise ReadTimeoutError(endpoint_url="https://lambda.eu-west-1.amazonaws.com")
        if fault == CRASHED:
            payload, failed = b'{"errorType": "Runtime.ExitError", "errorMessage": "signal: killed"}', True
        if fault == BUSY_ENTRY:  # the second entry of a batch
            answer = json.loads(payload)
            problem = errors.problem_document(errors.StoreBusyError("x"), request_id="r-1")
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
    functions = {name: name for name in client.FUNCTIONS}
    return Tally(functions, caller="checkout", deadline_s=PATIENCE_S, lambda_client=fake)


@pytest.mark.parametrize("faults", [[LOST], [LOST, THROTTLED, CRASHED, LOST]], ids=repr)
def test_a_call_with_lost_answers_or_throttling_is_counted_once(
    faults: list[str | None], tally: Tally, fake: FakeLambda
) -> None:
    fake.faults = list(faults)
    assert tally.increment("plays", "9f3a")["replayed"]
    fake.faults = list(faults)
    ticket = tally.increment("ticket", "q")
    fake.faults = list(faults)
    assert tally.set_counter(*MUG, 5, 0)["version"] == 1
    fake.faults = list(faults)
    hold = tally.hold(*MUG, 2, 900)
    fake.faults = list(faults)
    assert tally.commit_hold(*MUG, hold["hold"])["state"] == "committed"
    assert (tally.get_counter("plays", "9f3a")["value"], tally.get_counter(*MUG)["value"]) == (1, 3)
    assert (ticket["number"], tally.increment("ticket", "q")["number"]) == (1, 2)


def test_a_batch_over_several_functions_is_answered_in_order(tally: Tally, fake: FakeLambda) -> None:
    calls: list[Request[Any]] = [
        requests.increment("plays", "9f3a"),
        requests.increment("usage", "7c20", amount=7),
        requests.increment("plays", "9f3a"),
        requests.increment(*MUG, amount=-1),
        requests.get_counter("plays", "9f3a"),
        requests.get_counter("usage", "7c20"),
        requests.increment("plays", "a#b"),
    ]
    results = tally.batch(calls)
    assert [type(result).__name__ for result in results] == [
        "dict", "dict", "dict", "LimitReachedError", "dict", "dict", "InvalidInputError",
    ]  # fmt: skip
    assert [result["value"] for result in results[4:6]] == [2, 7]  # type: ignore[index]
    assert [len(event["batch"]) for event in fake.events] == [5, 2]


def test_a_batch_of_250_is_sent_100_at_a_time_and_counts_each_entry(tally: Tally, fake: FakeLambda) -> None:
    results = tally.batch([requests.increment("plays", "9f3a") for _ in range(250)])
    assert [result["replayed"] for result in results] == [False] * 250  # type: ignore[index]
    assert [len(event["batch"]) for event in fake.events] == [100, 100, 50]
    assert tally.get_counter("plays", "9f3a")["value"] == 250


def load_example(name: str, tally: Tally, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Loads a sample function as Lambda does, and gives it this test's Tally. Returns the module of the function."""
    monkeypatch.setenv("TALLY_FUNCTION_PREFIX", "")
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.tally.functions["increments"] == "increments"
    monkeypatch.setattr(module, "tally", tally)
    return module


def test_the_sample_consumer_counts_a_message_once_although_it_is_delivered_twice(
    tally: Tally, fake: FakeLambda, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    consumer = load_example("consumer", tally, monkeypatch)
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
    assert (tally.get_counter("plays", "9f3a")["value"], tally.get_counter("plays", "77aa")["value"]) == (2, 1)


def test_the_sample_consumer_counts_an_event_once_although_two_messages_have_it(
    tally: Tally, fake: FakeLambda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is lost, SQS gives up, and somebody moves the message back, which gives the message another id."""
    consumer = load_example("consumer", tally, monkeypatch)
    monkeypatch.setattr(client, "ATTEMPTS_MAX", 1)
    body = json.dumps({"video_id": "9f3a", "playback_id": "p-1"})
    fake.faults = [LOST]
    assert consumer.handler({"Records": [{"messageId": "m-1", "body": body}]}, None)["batchItemFailures"]
    assert consumer.handler({"Records": [{"messageId": "m-2", "body": body}]}, None) == {"batchItemFailures": []}
    assert tally.get_counter("plays", "9f3a")["value"] == 1


BAD_BODIES = [
    "hello", "", "{}", "[1]", "null", "7", '{"video_id": 7}', '{"video_id": null}',
    '{"Type": "Notification", "Message": "{}"}', "[" * 100_000, "9" * 5000,
]  # fmt: skip


@pytest.mark.parametrize("body", BAD_BODIES, ids=lambda body: body[:20])
def test_a_message_that_is_not_a_playback_does_not_fail_the_other_messages(
    body: str, tally: Tally, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = load_example("consumer", tally, monkeypatch)
    valid = [{"messageId": f"m-{number}", "body": '{"video_id": "9f3a"}'} for number in range(3)]
    answer = consumer.handler({"Records": [valid[0], {"messageId": "bad", "body": body}, *valid[1:]]}, None)
    assert answer == {"batchItemFailures": [{"itemIdentifier": "bad"}]}
    assert tally.get_counter("plays", "9f3a")["value"] == 3


def test_the_function_that_other_tools_deploy_counts_a_play_once(
    tally: Tally, fake: FakeLambda, monkeypatch: pytest.MonkeyPatch
) -> None:
    play = load_example("play/play", tally, monkeypatch)
    event = {"video": "9f3a", "id": "5f0c2b9e-6f0a-4b63-8a37-0d1a4f0f6f11"}
    assert play.handler(event, None) == {"video": "9f3a", "replayed": False}
    fake.faults = [LOST]
    assert play.handler(event, None) == {"video": "9f3a", "replayed": True}
    assert tally.get_counter("plays", "9f3a")["value"] == 1


def test_the_sample_checkout_sells_a_paid_order_once_and_refunds_an_order_that_is_sold_out_after_payment(
    tally: Tally, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout = load_example("checkout", tally, monkeypatch)
    tally.increment(*MUG, amount=3)
    order = {"order_id": "o-1", "item_id": "mug", "amount": 2}
    assert checkout.handler(order, None) == checkout.handler(order, None) == {"sold": True}
    assert checkout.handler({**order, "order_id": "o-2"}, None) == {"sold": False, "left": 1}
    refunded, real_clock = list[str](), clock.now_s
    sold_to_others = {"o-3": 1, "o-4": 0}

    def charge(order: dict[str, Any]) -> bool:
        """The charge takes so long that the hold expires. For o-3, somebody else buys in that time."""
        monkeypatch.setattr(clock, "now_s", lambda: time.time() + checkout.PAY_WITHIN_S + 1)
        if sold_to_others[order["order_id"]]:
            tally.increment(*MUG, amount=-1)
        return True

    monkeypatch.setattr(checkout, "charge", charge)
    monkeypatch.setattr(checkout, "refund", lambda order: refunded.append(order["order_id"]))
    late_order = {**order, "order_id": "o-3", "amount": 1}
    assert [checkout.handler(late_order, None) for _ in range(2)] == [{"sold": False}] * 2
    assert refunded == ["o-3", "o-3"], "a second run refunds, too, in case the first run died before its refund"
    tally.increment(*MUG, amount=1)
    monkeypatch.setattr(clock, "now_s", real_clock)
    assert checkout.handler({**late_order, "order_id": "o-4"}, None) == {"sold": True}, "nobody else bought the item"
    assert tally.get_counter(*MUG)["value"] == 0


def test_the_sample_checkout_sells_after_a_declined_card_and_after_a_hold_that_expired(
    tally: Tally, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The customer retries with the same order, which keeps its hold."""
    checkout = load_example("checkout", tally, monkeypatch)
    tally.increment(*MUG, amount=4)
    order = {"order_id": "o-1", "item_id": "mug", "amount": 1}
    payments: list[str] = []
    monkeypatch.setattr(checkout, "charge", lambda order: payments.append(order["card"]) or order["card"] == "good")
    monkeypatch.setattr(checkout, "refund", lambda order: payments.append("refund"))
    assert checkout.handler({**order, "card": "declined"}, None) == {"sold": False}
    assert checkout.handler({**order, "card": "declined"}, None) == {"sold": False}
    assert [checkout.handler({**order, "card": "good"}, None) for _ in range(2)] == [{"sold": True}] * 2
    assert payments == ["declined", "declined", "good"]
    assert tally.get_counter(*MUG)["value"] == 3
    second_order = {**order, "order_id": "o-2"}
    assert checkout.handler({**second_order, "card": "declined"}, None) == {"sold": False}
    assert tally.get_counter(*MUG)["value"] == 2, "the item is held for another card"
    with monkeypatch.context() as patch:
        patch.setattr(clock, "now_s", lambda: time.time() + checkout.PAY_WITHIN_S + 1)
        assert checkout.handler({**second_order, "card": "good"}, None) == {"sold": True}
    assert payments[3:] == ["declined", "good"]
    assert tally.get_counter(*MUG)["value"] == 2
    tally.increment(*MUG, amount=-2)
    assert checkout.handler({**order, "order_id": "o-3", "card": "good"}, None) == {"sold": False, "left": 0}
    assert payments[5:] == [], "nobody is charged for an item that is sold out"
    hold_of_sale = tally.hold(*MUG, 1, checkout.PAY_WITHIN_S, idempotency_key="o-1")["hold"]
    tally.void_hold(*MUG, hold_of_sale)
    assert checkout.handler({**order, "card": "good"}, None) == {"sold": False}, "the sale was voided"
    assert payments[5:] == []


@pytest.mark.usefixtures("midday")
def test_the_sample_page_shows_a_customer_the_used_and_the_remaining_amounts(
    tally: Tally, fake: FakeLambda, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = load_example("usage", tally, monkeypatch)
    end = time.strftime("%d %B 00:00 UTC", time.gmtime(time.time() + 12 * 3600))
    event = {"requestContext": {"authorizer": {"jwt": {"claims": {"sub": "acme & co"}}}}}

    def rows() -> list[str]:
        answer = usage.handler(event, None)
        assert answer["statusCode"] == 200
        return re.findall("<tr><th>(.*?)</td></tr>", answer["body"].replace("</th><td>", ": "))

    assert rows() == [f"Calls of today: 0 of 1,000 used, 1,000 left until {end}", "Jobs: 0 used"]
    tally.increment("calls", "acme & co", amount=800)
    tally.increment("usage", "acme & co", amount=7)
    tally.put_limit("calls", "acme & co", 20_000)
    assert rows() == [f"Calls of today: 800 of 20,000 used, 19,200 left until {end}", "Jobs: 7 used"]
    tally.put_limit("calls", "acme & co", 500)
    fake.events.clear()
    assert rows()[0] == f"Calls of today: 800 of 500 used, 0 left until {end}"
    assert len(fake.events) == 1
    all_counters = dict(counters.COUNTERS)
    del counters.COUNTERS["usage"]
    assert rows()[1] == "Jobs: unknown at the moment"
    # The declared order decides the counter of each sample event. monkeypatch.delitem would change the order.
    counters.COUNTERS.clear()
    counters.COUNTERS.update(all_counters)


def counter_of_limits_page(name: str) -> Counter:
    """Returns the counter that docs/limits.md declares by this name."""
    page = (EXAMPLES.parent / "limits.md").read_text()
    [declaration] = re.findall(rf"^{name} = Counter\(.*?^(?=```)", page, re.DOTALL | re.MULTILINE)
    declared: dict[str, Any] = {"Counter": Counter}
    exec(declaration, declared)
    counter: Counter = declared[name]
    return counter


@pytest.mark.usefixtures("midday")
def test_the_sample_credits_spend_first_the_grants_that_end_first_and_all_or_nothing_and_once(
    fake: FakeLambda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(counters.COUNTERS, "credits", counter_of_limits_page("CREDITS"))
    tally = Tally({name: name for name in client.FUNCTIONS}, caller="billing", lambda_client=fake)
    credits, today = load_example("credits", tally, monkeypatch), datetime.now(UTC).date()
    end_dates = {"acme.year": today + timedelta(365), "acme.month": today, "acme.old": today - timedelta(1)}
    monkeypatch.setattr(credits, "grants", lambda customer: end_dates if customer == "acme" else {})
    for grant, amount in {"acme.year": 500, "acme.month": 50, "acme.old": 70}.items():
        for _ in range(2):
            tally.increment("credits", grant, amount=amount, idempotency_key=f"invoice-{grant}")

    def numbers_left() -> list[int]:
        return [tally.get_counter("credits", grant)["value"] for grant in end_dates]

    def spend(id_: str, amount: int, customer: str = "acme") -> bool:
        return bool(credits.handler({"id": id_, "customer": customer, "amount": amount}, None)["spent"])

    assert [spend("first", 30), numbers_left()] == [True, [500, 20, 70]]
    assert [spend("second", 45), numbers_left()] == [True, [475, 0, 70]], "the amount is from two grants"
    assert [spend("second", 45), spend("first", 30), numbers_left()] == [True, True, [475, 0, 70]], (
        "a retry that counted would split the amount in another way"
    )
    assert [spend("too-much", 476), spend("of-nobody", 1, "globex"), numbers_left()] == [False, False, [475, 0, 70]]
    with pytest.raises(ValueError, match="grants nothing"):
        spend("negative", -5)
    amounts = {f"request-{number}": 5 + number for number in range(40)}
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda id_: (id_, spend(id_, amounts[id_])), [*amounts, *amounts]))
    spent = sum(amounts[id_] for id_ in {id_ for id_, spent in answers if spent})
    assert numbers_left() == [475 - spent, 0, 70]
    assert [spend("all", 475 - spent) for _ in range(2)] == [True, True], (
        "the first attempt of this request spent everything"
    )
    assert numbers_left() == [0, 0, 70]


@pytest.mark.usefixtures("midday")
def test_the_sample_gateway_never_spends_more_than_the_budget_of_a_team(
    fake: FakeLambda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """60 requests at once hold 100 tokens each, and use fewer. Their holds together are above the budget of 1,000."""
    monkeypatch.setitem(counters.COUNTERS, "tokens", replace(counter_of_limits_page("TOKENS"), ceiling=1_000))
    tally = Tally({name: name for name in client.FUNCTIONS}, caller="gateway", lambda_client=fake)
    gateway = load_example("gateway", tally, monkeypatch)
    monkeypatch.setattr(gateway, "complete", lambda request: {"text": "x", "tokens": request["uses"]})

    def ask(number: int, **fields: Any) -> dict[str, Any]:
        request = {"team": "acme", "id": f"r-{number}", "prompt": PROMPT, "max_tokens": 50, "uses": number % 40}
        return dict(gateway.handler(request | fields, None))

    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(ask, range(60)))
    spent = sum(answer["tokens"] for answer in answers if answer["status"] == 200)
    assert tally.get_counter("tokens", "acme")["value"] == spent <= 1_000
    assert {answer["status"] for answer in answers} == {200, 429}
    answered = next(number for number, answer in enumerate(answers) if answer["status"] == 200)
    assert ask(answered) == {"status": 409}, "the team paid for the request, and the example keeps no answer"
    monkeypatch.setattr(gateway, "complete", lambda request: {}["down"])  # the model fails with a KeyError
    with pytest.raises(KeyError):
        ask(60, team="other")
    monkeypatch.setattr(gateway, "complete", lambda request: {"text": "x", "tokens": 7})
    assert ask(60, team="other") == {"status": 200, "text": "x", "tokens": 7}, (
        "a retry after a failure of the model succeeds"
    )
    assert tally.get_counter("tokens", "other")["value"] == 7
    monkeypatch.setattr(gateway, "complete", lambda request: {"text": "x", "tokens": 30_000})
    assert ask(61, team="third")["status"] == 200
    assert tally.get_counter("tokens", "third")["value"] == 100, "the held amount, because 30,000 do not fit"
