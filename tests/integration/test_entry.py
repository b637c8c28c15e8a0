"""What every function does around its operations: logs, metrics, and answers when the store or Tally itself fails."""

from __future__ import annotations

import copy
import json
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from aws_lambda_powertools import Logger
from botocore.awsrequest import AWSResponse

import handlers
from bench import cost
from bench.instruments import Meter
from counters import COUNTERS, PAGES
from tally import observe
from tally.api.entry import RequestHandler
from tally.counting import children, tallies
from tally.dev.base.engine import Engine
from tally.dynamo.client import Call, Store, dynamodb_client
from tally.errors import StoreRefusedError, StoreUnreachableError, TallyError
from tally.settings import Settings
from tests import events
from tests.contexts import LambdaContext
from tests.integration.conftest import Invoke

PLAY = {"operation": "increment", "counter": "plays", "id": "9f3a", "idempotency_key": events.KEY}
HTTP_PLAY = events.http("increment_plays_short", idempotency_key=events.KEY)


def doing(store: Store, function: Callable[..., Any]) -> RequestHandler:
    """The entry of an increment that does this instead."""
    [*_, route] = [one for one in events.routes().values() if one.operation.name == "increment"]
    operation = copy.copy(route.operation)
    operation.function = function
    return RequestHandler([operation], [replace(route, operation=operation)], COUNTERS, PAGES, store)


class _Stdout:
    """Whatever stdout is at the moment of writing: the logger holds on to the one that it was made with."""

    def write(self, text: str) -> None:
        sys.stdout.write(text)

    def flush(self) -> None:
        sys.stdout.flush()


@pytest.fixture(autouse=True)
def logs_to_stdout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observe.logger.registered_handler, "stream", _Stdout())


def emf(printed: str, metrics: bool = True) -> list[dict[str, Any]]:
    """The metrics among the lines that an invocation printed, or the others."""
    lines = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    return [line for line in lines if ("_aws" in line) == metrics]


def logs(printed: str) -> list[dict[str, Any]]:
    return emf(printed, metrics=False)


def test_replays_and_refusals_are_metered_by_stack_never_by_item_and_first_answers_are_not(
    invoke: Invoke, capsys: pytest.CaptureFixture[str]
) -> None:
    two = [{"counter": "plays", "id": "9f3a"}, {"counter": "usage", "id": "7c20", "amount": 1}]
    many = events.direct("change", changes=two)  # one request in the metrics
    for batch in ([PLAY, PLAY, {**PLAY, "id": "#"}], [many, many, many | {"changes": [7, {"counter": []}]}]):
        invoke({"batch": batch})
        (line,) = emf(capsys.readouterr().out)
        assert (line["service"], line["Replayed"], line["Refused"]) == (observe.SERVICE, [1.0], [1.0])
    (directive,) = line["_aws"]["CloudWatchMetrics"]
    assert (directive["Namespace"], directive["Dimensions"]) == ("Tally", [["service"]])


def test_a_log_line_carries_the_correlation_id_of_its_request(
    invoke: Invoke, capsys: pytest.CaptureFixture[str]
) -> None:
    invoke(HTTP_PLAY)
    invoke(PLAY)
    http, direct = logs(capsys.readouterr().out)
    assert (http["correlation_id"], http["operation"], http["status"]) == ("JKJaXmPLvHcESHA=", "increment", 200)
    assert direct["correlation_id"] == LambdaContext().aws_request_id
    assert events.KEY not in json.dumps([http, direct])


def test_the_secret_of_a_browser_is_in_no_answer_no_log_and_no_item(
    invoke: Invoke, store: Store, dead_store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not where it is taken, nor where its form, its counter or its id is refused, the store is away or Tally fails."""
    secret = "A-secret.of/one:browser=alone"
    page = {"counter": "hearts", "id": "home", "secret": secret}
    like = events.http("put_anonymous", **page, idempotency_key=events.KEY)
    answers = [
        invoke(like),
        invoke(like),
        invoke.http("get_anonymous", **page),
        invoke.http("delete_anonymous", **page),
    ]
    answers += [invoke.http("list_anonymous", secret=secret, query="of=hearts:home&of=likes:x")]
    answers.append(invoke.http("put_anonymous", **page))
    wrong = [{"secret": f"{secret},"}, {"secret": secret * 9}, {"counter": "likes"}, {"id": "#"}]
    answers += [invoke.http("put_anonymous", **{**page, **change}) for change in wrong]
    answers.append(handlers.entry("children_open", dead_store)(like, LambdaContext()))
    monkeypatch.setattr(children, "set_child", lambda *_: 1 // 0)
    answers.append(invoke(events.http("put_anonymous", **page)))
    assert [answer["statusCode"] for answer in answers] == [200] * 6 + [400, 400, 403, 400, 503, 500]
    settings = store.settings
    tables = (settings.counts_table, settings.receipts_table, settings.ledger_table)
    items = [item for table in tables for item in store.client.scan(TableName=table)["Items"]]
    printed = capsys.readouterr()
    assert len(items) == 3, "the number, the like, the receipt"
    assert "ZeroDivisionError" in printed.out
    assert secret not in json.dumps([answers, items]) + printed.out + printed.err


@pytest.mark.sdk
def test_a_log_line_says_how_long_the_store_took_and_in_how_many_attempts(
    invoke: Invoke, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    """The SDK's own retries, too, which nothing else shows."""
    failure = AWSResponse("", 500, {}, None)
    failure._content = b"{}"
    answers = [failure]

    def refuse_the_first(**_: Any) -> Any:
        return answers.pop() if answers else None

    store.client.meta.events.register("before-send.dynamodb", refuse_the_first)
    invoke(HTTP_PLAY)
    [line] = logs(capsys.readouterr().out)
    assert (line["status"], line["store_attempts"]) == (200, 2)
    assert 0 < line["store_ms"] <= line["took_ms"]
    invoke({**PLAY, "id": "#"})
    [refused] = logs(capsys.readouterr().out)
    assert (refused["store_attempts"], refused["store_ms"]) == (0, 0.0)


@pytest.fixture
def dead_store(settings: Settings) -> Store:
    """A store whose engine is not there."""
    return Store(dynamodb_client(endpoint_url="http://127.0.0.1:9"), settings)


def test_a_store_that_is_away_is_503_over_http_and_in_a_batch_and_raised_so_that_lambda_sends_it_again(
    dead_store: Store,
) -> None:
    answer = handlers.entry("increments_open", dead_store)(HTTP_PLAY, LambdaContext())
    assert answer["statusCode"] == 503
    assert answer["headers"]["retry-after"] == "1"
    document = events.body_of(answer)
    assert document["type"].endswith(":unreachable")
    assert document["request_id"] == "JKJaXmPLvHcESHA="
    answer = handlers.entry("increments_open", dead_store)({"batch": [PLAY]}, LambdaContext())
    assert [result["status"] for result in answer["results"]] == [503]
    with pytest.raises(StoreUnreachableError):
        handlers.entry("increments_open", dead_store)(PLAY, LambdaContext())
    for method in ("GET", "HEAD"):
        asked = events.http("health") | {"routeKey": f"{method} /health"}
        answer = handlers.entry("health", dead_store)(asked, LambdaContext())
        assert (answer["statusCode"], answer["body"] == "") == (503, method == "HEAD")


def test_a_batch_that_asks_for_it_raises_so_that_lambda_retries_it_and_not_for_refusals(
    dead_store: Store, invoke: Invoke
) -> None:
    with pytest.raises(StoreUnreachableError, match=r"^2 of 3 entries are to be sent again\. The first: "):
        handlers.entry("increments_open", dead_store)(
            {"batch": [PLAY, {**PLAY, "id": "#"}, PLAY], "on_failure": "raise"}, LambdaContext()
        )
    refused = invoke({"batch": [PLAY, {**PLAY, "id": "#"}], "on_failure": "raise"})
    assert [result["status"] for result in refused["results"]] == [200, 400]


@pytest.mark.sdk
def test_the_retry_of_a_batch_that_raised_counts_what_failed_and_replays_the_rest(invoke: Invoke, store: Store) -> None:
    """What Lambda does with an asynchronous invocation: the same event again."""
    attempts = []

    def fail_the_second(**_: Any) -> Any:
        attempts.append(1)
        if len(attempts) != 2:
            return None
        response = type("Response", (), {"status_code": 500})()
        metadata = {"HTTPStatusCode": 500}
        return response, {"Error": {"Code": "InternalServerError", "Message": ""}, "ResponseMetadata": metadata}

    stock = {"operation": "increment", "counter": "stock", "id": "mug", "amount": 1, "caller": "c"}
    batch = {"batch": [{**stock, "idempotency_key": f"k{number}"} for number in range(3)], "on_failure": "raise"}
    store.client.meta.events.register("before-call.dynamodb.TransactWriteItems", fail_the_second)
    with pytest.raises(StoreUnreachableError, match="1 of 3"):
        invoke(batch)
    results = invoke(batch)["results"]
    assert [(result["status"], result["replayed"]) for result in results] == [(200, True), (200, False), (200, True)]
    read = {"operation": "get_counter", "counter": "stock", "id": "mug", "caller": "c"}
    assert invoke(read)["body"]["value"] == 3


def test_the_entries_of_a_batch_are_done_in_order(invoke: Invoke) -> None:
    stock = {"counter": "stock", "id": "mug", "caller": "shop"}
    moves = [{"operation": "increment", **stock, "amount": 1, "idempotency_key": f"k{number}"} for number in range(3)]
    read = {"operation": "get_counter", "counter": "stock", "id": "mug", "caller": "shop"}
    setting = {"operation": "set_counter", **stock, "value": 50, "version": 3}
    results = invoke({"batch": [*moves, setting, moves[0]]})["results"]
    assert [(result["status"], result["replayed"]) for result in results] == [(200, False)] * 4 + [(200, True)]
    assert invoke(read)["body"]["value"] == 50


@pytest.mark.sdk
def test_a_batch_ends_in_time_and_what_did_not_fit_is_sent_again(store: Store, meter: Meter) -> None:
    """Each request takes 60 ms on this clock: what the slowest entry took must be left when another one begins."""
    entry = handlers.entry("increments", replace(store, clock=lambda: 0.060 * meter.requests))
    usage = {"operation": "increment", "counter": "usage", "id": "7c20", "amount": 1, "caller": "shop"}
    left = [{**usage, "idempotency_key": f"k{number}"} for number in range(100)]
    for counted in (41, 41, 18):
        deadline_s = entry.store.clock() + 2.51
        results = entry({"batch": left}, LambdaContext(remaining_ms=3010))["results"]
        assert entry.store.clock() < deadline_s
        assert [result["status"] for result in results] == [200] * counted + [503] * (len(left) - counted)
        left = left[counted:]
    assert not left


def test_a_table_that_is_missing_is_the_deployments_fault_and_503(engine: Engine) -> None:
    names = {f"TALLY_{table}_TABLE": f"not-there-{table}" for table in ("COUNTS", "RECEIPTS", "LEDGER")}
    settings = Settings.from_environment(names)
    store = Store(dynamodb_client(endpoint_url=engine.endpoint), settings)
    with pytest.raises(StoreRefusedError):
        handlers.entry("increments_open", store)(PLAY, LambdaContext())
    assert handlers.entry("reads", store)(events.http("get_counter_plays_short"), LambdaContext())["statusCode"] == 503


def test_a_bug_is_a_500_that_tells_nothing_and_is_logged_whole(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(call: Call, **_: Any) -> Any:
        raise KeyError("secret")

    answer = doing(store, broken)(HTTP_PLAY, LambdaContext())
    assert answer["statusCode"] == 500
    assert "secret" not in answer["body"]
    assert any("secret" in str(line.get("exception")) for line in logs(capsys.readouterr().out))


@pytest.mark.parametrize("event", [PLAY, {"batch": [PLAY, PLAY], "on_failure": "raise"}])
def test_a_bug_raises_so_that_lambda_sends_the_event_again_and_then_keeps_it(store: Store, event: Any) -> None:
    def broken(call: Call, **_: Any) -> Any:
        raise MemoryError

    with pytest.raises(TallyError, match="Tally failed"):
        doing(store, broken)(event, LambdaContext())


def test_what_does_not_add_up_fails_as_a_bug_and_nothing_is_written(
    invoke: Invoke, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = tallies.receipt_facts
    monkeypatch.setattr(tallies, "receipt_facts", lambda counter, id_, amount, at: said(counter, id_, 2 * amount, at))
    assert invoke(HTTP_PLAY)["statusCode"] == 500
    with pytest.raises(TallyError, match="Tally failed"):
        invoke(PLAY)
    monkeypatch.undo()
    assert invoke.read("plays", "9f3a")["value"] == 0
    assert invoke(PLAY)["replayed"] is False


@pytest.fixture
def sampled(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[float], None]]:
    """Draws the lots of the logger, which logs one success in twenty."""
    monkeypatch.setenv("POWERTOOLS_LOG_LEVEL", "WARNING")
    monkeypatch.setenv("POWERTOOLS_LOGGER_SAMPLE_RATE", "0.05")
    made = Logger(service="as the stack makes it")  # Powertools reads both
    monkeypatch.setattr(observe.logger, "sampling_rate", made.sampling_rate)
    monkeypatch.setattr(observe.logger, "initial_log_level", made.initial_log_level)
    yield lambda lot: monkeypatch.setattr(random, "random", lambda: lot)
    monkeypatch.undo()
    observe.logger.refresh_sample_rate_calculation()


def test_a_route_without_path_parameters_may_have_null_for_them(invoke: Invoke) -> None:
    """API Gateway leaves them out. An emulator of AWS says null."""
    event = events.http("get_visits")
    assert invoke({**event, "pathParameters": None})["statusCode"] == 200


@pytest.mark.parametrize(("lot", "logged"), [(0.04, [200, 200]), (0.06, [])])
def test_successes_are_sampled_by_invocation(
    store: Store, capsys: pytest.CaptureFixture[str], sampled: Callable[[float], None], lot: float, logged: list[int]
) -> None:
    sampled(lot)
    answers = handlers.entry("increments_open", store)({"batch": [PLAY, {**PLAY, "id": "77aa"}]}, LambdaContext())[
        "results"
    ]
    assert [answer["status"] for answer in answers] == [200, 200]
    printed = capsys.readouterr().out
    assert [line["status"] for line in logs(printed)] == logged


def test_refusals_failures_and_bugs_are_never_sampled_and_the_codes_own_faults_are_metered_by_its_version(
    store: Store,
    capsys: pytest.CaptureFixture[str],
    sampled: Callable[[float], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By this a deployment of new code is taken back. What a caller has to correct says nothing of the code."""

    def fail(call: Call, *, id: str, **_: Any) -> Any:
        raise {"busy": StoreUnreachableError("no answer"), "bug": RuntimeError("a bug")}[id]

    sampled(0.06)
    monkeypatch.setenv("_HANDLER", "handlers.increments")
    doing(store, fail)({"batch": [{**PLAY, "id": name} for name in ("#", "busy", "bug")]}, LambdaContext())
    handlers.entry("increments_open", store)({"batch": [PLAY, {**PLAY, "id": "#"}]}, LambdaContext())
    printed = capsys.readouterr().out
    found = [line for line in emf(printed) if "Failed" in line]
    assert [(line["Failed"], line["version"]) for line in found] == [([2.0], f"{observe.CODE_VERSION}.increments")]
    lines = logs(printed)[:-1]
    assert [line["status"] for line in lines if line["message"] == "answered"] == [400, 503, 500]
    assert [line["message"] for line in lines] == ["answered", "failed", "answered", "bug", "answered"]
    assert {line["level"] for line in lines} == {"WARNING", "ERROR"}


def test_a_play_logs_what_the_calculator_bills(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    """AWS bills the bytes of every line. Those of API Gateway and Lambda come on top."""
    assert handlers.entry("increments_open", store)(HTTP_PLAY, LambdaContext())["statusCode"] == 200
    [answer] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    assert len(answer) + cost.EVENT == pytest.approx(cost.ANSWER_LINE, rel=0.15)
