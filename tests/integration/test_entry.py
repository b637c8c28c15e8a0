"""Every function logs and writes metrics, and answers also if the store or Tally fails."""

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
HTTP_PLAY = events.http("increment_plays_short_route", idempotency_key=events.KEY)
REQUEST_ID = HTTP_PLAY["requestContext"]["requestId"]


def entry_with(store: Store, function: Callable[..., Any]) -> RequestHandler:
    """Returns a handler of increments that calls `function` in place of the operation's own function."""
    [*_, route] = [route for route in events.routes().values() if route.operation.name == "increment"]
    operation = copy.copy(route.operation)
    operation.function = function
    return RequestHandler([operation], [replace(route, operation=operation)], COUNTERS, PAGES, store)


class _Stdout:
    """Writes to the present stdout. The logger alone would keep its first stdout."""

    def write(self, text: str) -> None:
        sys.stdout.write(text)

    def flush(self) -> None:
        sys.stdout.flush()


@pytest.fixture(autouse=True)
def logs_to_stdout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observe.logger.registered_handler, "stream", _Stdout())


def printed_lines(printed: str, metrics: bool = True) -> list[dict[str, Any]]:
    """Returns the metrics that an invocation printed, or, without `metrics`, the log lines."""
    lines = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    return [line for line in lines if ("_aws" in line) == metrics]


def logs(printed: str) -> list[dict[str, Any]]:
    return printed_lines(printed, metrics=False)


def test_replays_and_refusals_of_the_whole_stack_are_metered_and_first_answers_are_not(
    invoke: Invoke, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = [{"counter": "plays", "id": "9f3a"}, {"counter": "usage", "id": "7c20", "amount": 1}]
    change = events.direct("change", changes=changes)  # the metrics count these two changes as one request
    for entries in ([PLAY, PLAY, {**PLAY, "id": "#"}], [change, change, change | {"changes": [7, {"counter": []}]}]):
        invoke({"batch": entries})
        (line,) = printed_lines(capsys.readouterr().out)
        assert (line["service"], line["Replayed"], line["Refused"]) == (observe.SERVICE, [1.0], [1.0])
    (directive,) = line["_aws"]["CloudWatchMetrics"]
    assert (directive["Namespace"], directive["Dimensions"]) == ("Tally", [["service"]])


def test_a_log_line_has_the_correlation_id_of_its_request(invoke: Invoke, capsys: pytest.CaptureFixture[str]) -> None:
    invoke(HTTP_PLAY)
    invoke(PLAY)
    http, direct = logs(capsys.readouterr().out)
    assert (http["correlation_id"], http["operation"], http["status"]) == (REQUEST_ID, "increment", 200)
    assert direct["correlation_id"] == LambdaContext().aws_request_id
    assert events.KEY not in json.dumps([http, direct])


def test_the_secret_of_a_browser_is_in_no_answer_in_no_log_and_in_no_item(
    invoke: Invoke, store: Store, dead_store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not even if Tally refuses the secret, the counter or the id, if the store does not answer, or if Tally fails."""
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
    wrong_fields = [{"secret": f"{secret},"}, {"secret": secret * 9}, {"counter": "likes"}, {"id": "#"}]
    answers += [invoke.http("put_anonymous", **{**page, **fields}) for fields in wrong_fields]
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
def test_a_log_line_has_the_time_and_the_number_of_attempts_of_the_store(
    invoke: Invoke, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    """The attempts include the SDK's own retries."""
    failure = AWSResponse("", 500, {}, None)
    failure._content = b"{}"
    answers = [failure]

    def fail_the_first(**_: Any) -> Any:
        return answers.pop() if answers else None

    store.client.meta.events.register("before-send.dynamodb", fail_the_first)
    invoke(HTTP_PLAY)
    [line] = logs(capsys.readouterr().out)
    assert (line["status"], line["store_attempts"]) == (200, 2)
    assert 0 < line["store_ms"] <= line["took_ms"]
    invoke({**PLAY, "id": "#"})
    [refused] = logs(capsys.readouterr().out)
    assert (refused["store_attempts"], refused["store_ms"]) == (0, 0.0)


@pytest.fixture
def dead_store(settings: Settings) -> Store:
    """A store at a port where nothing answers."""
    return Store(dynamodb_client(endpoint_url="http://127.0.0.1:9"), settings)


def test_an_unreachable_store_is_answered_with_503_but_raised_for_a_direct_event_so_that_lambda_retries(
    dead_store: Store,
) -> None:
    answer = handlers.entry("increments_open", dead_store)(HTTP_PLAY, LambdaContext())
    assert answer["statusCode"] == 503
    assert answer["headers"]["retry-after"] == "1"
    document = events.body_of(answer)
    assert document["type"].endswith(":unreachable")
    assert document["request_id"] == REQUEST_ID
    answer = handlers.entry("increments_open", dead_store)({"batch": [PLAY]}, LambdaContext())
    assert [result["status"] for result in answer["results"]] == [503]
    with pytest.raises(StoreUnreachableError):
        handlers.entry("increments_open", dead_store)(PLAY, LambdaContext())
    for method in ("GET", "HEAD"):
        event = events.http("health") | {"routeKey": f"{method} /health"}
        answer = handlers.entry("health", dead_store)(event, LambdaContext())
        assert (answer["statusCode"], answer["body"] == "") == (503, method == "HEAD")


def test_a_batch_with_on_failure_raise_raises_for_failures_and_not_for_refusals(
    dead_store: Store, invoke: Invoke
) -> None:
    with pytest.raises(StoreUnreachableError, match=r"^2 of 3 entries are to be sent again\. The first: "):
        handlers.entry("increments_open", dead_store)(
            {"batch": [PLAY, {**PLAY, "id": "#"}, PLAY], "on_failure": "raise"}, LambdaContext()
        )
    refused = invoke({"batch": [PLAY, {**PLAY, "id": "#"}], "on_failure": "raise"})
    assert [result["status"] for result in refused["results"]] == [200, 400]


@pytest.mark.sdk
def test_the_retry_of_a_batch_that_raised_counts_the_failed_entries_and_replays_the_other_entries(
    invoke: Invoke, store: Store
) -> None:
    """Lambda retries an asynchronous invocation with the same event."""
    write_attempts = []

    def fail_the_second(**_: Any) -> Any:
        """Returns None, so that the SDK sends the request, or what the SDK takes for DynamoDB's answer."""
        write_attempts.append(1)
        if len(write_attempts) != 2:
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


def test_the_entries_of_a_batch_are_run_in_order(invoke: Invoke) -> None:
    stock = {"counter": "stock", "id": "mug", "caller": "shop"}
    changes = [{"operation": "increment", **stock, "amount": 1, "idempotency_key": f"k{number}"} for number in range(3)]
    read = {"operation": "get_counter", "counter": "stock", "id": "mug", "caller": "shop"}
    setting = {"operation": "set_counter", **stock, "value": 50, "version": 3}
    results = invoke({"batch": [*changes, setting, changes[0]]})["results"]
    assert [(result["status"], result["replayed"]) for result in results] == [(200, False)] * 4 + [(200, True)]
    assert invoke(read)["body"]["value"] == 50


@pytest.mark.sdk
def test_a_batch_ends_in_time_and_its_last_entries_are_to_be_retried(store: Store, meter: Meter) -> None:
    """Each request takes 60 ms on this clock. An entry begins only if there is time for the slowest entry so far."""
    entry = handlers.entry("increments", replace(store, clock=lambda: 0.060 * meter.requests))
    usage = {"operation": "increment", "counter": "usage", "id": "7c20", "amount": 1, "caller": "shop"}
    entries = [{**usage, "idempotency_key": f"k{number}"} for number in range(100)]
    for run_count in (41, 41, 18):  # 41 entries take 2.46 s, and ANSWER_RESERVE_S leaves 2.51 of 3.01 s
        deadline_s = entry.store.clock() + 2.51
        results = entry({"batch": entries}, LambdaContext(remaining_ms=3010))["results"]
        assert entry.store.clock() < deadline_s
        assert [result["status"] for result in results] == [200] * run_count + [503] * (len(entries) - run_count)
        entries = entries[run_count:]
    assert not entries


def test_a_missing_table_is_answered_with_503_because_the_deployment_is_at_fault(engine: Engine) -> None:
    names = {f"TALLY_{table}_TABLE": f"not-there-{table}" for table in ("COUNTS", "RECEIPTS", "LEDGER")}
    settings = Settings.from_environment(names)
    store = Store(dynamodb_client(endpoint_url=engine.endpoint), settings)
    with pytest.raises(StoreRefusedError):
        handlers.entry("increments_open", store)(PLAY, LambdaContext())
    assert (
        handlers.entry("reads", store)(events.http("get_counter_plays_short_route"), LambdaContext())["statusCode"]
        == 503
    )


def test_a_bug_is_answered_with_500_without_its_message_and_the_log_has_the_message(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(call: Call, **_: Any) -> Any:
        raise KeyError("secret")

    answer = entry_with(store, fail)(HTTP_PLAY, LambdaContext())
    assert answer["statusCode"] == 500
    assert "secret" not in answer["body"]
    assert any("secret" in str(line.get("exception")) for line in logs(capsys.readouterr().out))


@pytest.mark.parametrize("event", [PLAY, {"batch": [PLAY, PLAY], "on_failure": "raise"}])
def test_a_bug_is_raised_for_a_direct_event_so_that_lambda_retries_and_then_keeps_the_event(
    store: Store, event: Any
) -> None:
    def fail(call: Call, **_: Any) -> Any:
        raise MemoryError

    with pytest.raises(TallyError, match="Tally failed"):
        entry_with(store, fail)(event, LambdaContext())


def test_a_receipt_that_differs_from_its_tally_fails_as_a_bug_and_writes_nothing(
    invoke: Invoke, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    receipt_facts = tallies.receipt_facts
    monkeypatch.setattr(
        tallies, "receipt_facts", lambda counter, id_, amount, at: receipt_facts(counter, id_, 2 * amount, at)
    )
    assert invoke(HTTP_PLAY)["statusCode"] == 500
    with pytest.raises(TallyError, match="Tally failed"):
        invoke(PLAY)
    monkeypatch.undo()
    assert invoke.read("plays", "9f3a")["value"] == 0
    assert invoke(PLAY)["replayed"] is False


@pytest.fixture
def set_random(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[float], None]]:
    """Returns a function that sets the logger's random number. The logger logs a success if the number is < 0.05."""
    monkeypatch.setenv("POWERTOOLS_LOG_LEVEL", "WARNING")
    monkeypatch.setenv("POWERTOOLS_LOGGER_SAMPLE_RATE", "0.05")
    stack_logger = Logger(service="as the stack makes it")  # a Logger reads both variables
    monkeypatch.setattr(observe.logger, "sampling_rate", stack_logger.sampling_rate)
    monkeypatch.setattr(observe.logger, "initial_log_level", stack_logger.initial_log_level)
    yield lambda number: monkeypatch.setattr(random, "random", lambda: number)
    monkeypatch.undo()
    observe.logger.refresh_sample_rate_calculation()


def test_an_event_without_path_parameters_may_have_null_in_their_place(invoke: Invoke) -> None:
    """API Gateway leaves path parameters out, and an emulator of AWS sends null."""
    event = events.http("get_visits")
    assert invoke({**event, "pathParameters": None})["statusCode"] == 200


@pytest.mark.parametrize(("number", "statuses"), [(0.04, [200, 200]), (0.06, [])])
def test_successes_are_sampled_by_invocation(
    store: Store, capsys: pytest.CaptureFixture[str], set_random: Callable[[float], None], number: float,
    statuses: list[int],
) -> None:  # fmt: skip
    set_random(number)
    answer = handlers.entry("increments_open", store)({"batch": [PLAY, {**PLAY, "id": "77aa"}]}, LambdaContext())
    assert [result["status"] for result in answer["results"]] == [200, 200]
    printed = capsys.readouterr().out
    assert [line["status"] for line in logs(printed)] == statuses


def test_refusals_failures_and_bugs_are_always_logged_and_failures_are_metered_by_the_codes_version(
    store: Store,
    capsys: pytest.CaptureFixture[str],
    set_random: Callable[[float], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A deploy rolls back by the metric of failures. Refusals are not failures, because the caller is at fault."""

    def fail(call: Call, *, id: str, **_: Any) -> Any:
        raise {"busy": StoreUnreachableError("no answer"), "bug": RuntimeError("a bug")}[id]

    set_random(0.06)
    monkeypatch.setenv("_HANDLER", "handlers.increments")
    entry_with(store, fail)({"batch": [{**PLAY, "id": name} for name in ("#", "busy", "bug")]}, LambdaContext())
    handlers.entry("increments_open", store)({"batch": [PLAY, {**PLAY, "id": "#"}]}, LambdaContext())
    printed = capsys.readouterr().out
    failures = [line for line in printed_lines(printed) if "Failed" in line]
    assert [(line["Failed"], line["version"]) for line in failures] == [([2.0], f"{observe.CODE_VERSION}.increments")]
    lines = logs(printed)[:-1]  # the last line is of the second invocation
    assert [line["status"] for line in lines if line["message"] == "answered"] == [400, 503, 500]
    assert [line["message"] for line in lines] == ["answered", "failed", "answered", "bug", "answered"]
    assert {line["level"] for line in lines} == {"WARNING", "ERROR"}


def test_a_play_logs_as_many_bytes_as_the_calculator_bills(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    """AWS bills the bytes of every line. The lines of API Gateway and Lambda are billed in addition."""
    assert handlers.entry("increments_open", store)(HTTP_PLAY, LambdaContext())["statusCode"] == 200
    [answer] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    assert len(answer) + cost.LOG_EVENT == pytest.approx(cost.ANSWER_LINE, rel=0.15)
