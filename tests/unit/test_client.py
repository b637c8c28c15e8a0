"""The client for other Lambdas: methods, errors, retries and batches. Its bundle imports no other module of Tally."""

from __future__ import annotations

import datetime
import inspect
import itertools
import json
import math
import shutil
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, NoReturn
from uuid import UUID

import botocore.exceptions
import pytest
from botocore.exceptions import ClientError

from tally import client, errors, fields
from tally.client import Request, Tally, requests
from tally.contract.declarations import OPERATIONS
from tally.errors import (
    CallerError,
    ConfigurationError,
    PayloadTooLargeError,
    RetryableError,
    StoreBusyError,
    StoreUnreachableError,
    TallyError,
)

ROOT = Path(errors.__file__).parents[1]
BUNDLE = ("__init__.py", "client", "errors.py", "ids.py")  # what another Lambda needs of `tally`
CLIENT_OPERATIONS = [operation for operation in OPERATIONS if hasattr(requests, operation.name)]
# No function answers with these errors: Tally's own code catches them, or raises only subclasses (CallerError).
ERRORS_IN_NO_ANSWER = {errors.AlreadyCountedError, errors.ChangeRefusedError, errors.HotTallyError, CallerError}


def with_subclasses(root: type[TallyError]) -> list[type[TallyError]]:
    return [root, *itertools.chain.from_iterable(with_subclasses(child) for child in root.__subclasses__())]


BUNDLE_ERRORS = [kind for kind in with_subclasses(TallyError) if kind.__module__ == errors.__name__]
ANSWERED_ERRORS = [kind for kind in BUNDLE_ERRORS if kind not in ERRORS_IN_NO_ANSWER]
BODY = {"counter": "plays", "id": "9f3a", "counted": True, "visible": "now"}
PLAYED = {"status": 200, "replayed": False, "body": BODY}  # a function's answer
PLAY = ("plays", "9f3a")  # the arguments of `increment`
COUNTED = {**BODY, "replayed": False}  # what `increment` returns


class FakeLambda:
    """A boto3 client for Lambda that gives these answers in order, and repeats the last answer.

    An answer is a document, bytes, an error to raise, a tuple with the document of a FunctionError, or a function that
    makes such an answer from the event.
    """

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.calls: list[dict[str, Any]] = []

    def invoke(self, **call: Any) -> dict[str, Any]:
        self.calls.append({**call, "Payload": json.loads(call["Payload"])})
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if callable(answer):
            answer = answer(self.calls[-1]["Payload"])
        if isinstance(answer, Exception):
            raise answer
        failed = {"FunctionError": "Unhandled"} if isinstance(answer, tuple) else {}
        document = answer[0] if isinstance(answer, tuple) else answer
        payload = document if isinstance(document, bytes) else json.dumps(document).encode()
        return {"StatusCode": 200, "Payload": BytesIO(payload), **failed}

    @property
    def events(self) -> list[dict[str, Any]]:
        return [call["Payload"] for call in self.calls]


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The client's pauses, in seconds. The client's clock shows the sum of the pauses, so nothing else takes time."""
    pauses_s: list[float] = []
    clock = SimpleNamespace(monotonic=lambda: sum(pauses_s), sleep=pauses_s.append)
    monkeypatch.setattr(client, "time", clock)
    return pauses_s


def tally(*answers: Any, **options: Any) -> tuple[Tally, FakeLambda]:
    """Returns a client with these options, and the Lambda that gives it these answers."""
    fake = FakeLambda(*answers)
    functions = {name: f"fn-{name}" for name in client.FUNCTIONS}
    return Tally(functions, lambda_client=fake, **options), fake


def slow_tally(pauses: list[float], answer: Any) -> tuple[Tally, FakeLambda]:
    """Returns a client with a deadline of 3 s whose calls take 1 s each. `answer`: makes the answer from the event."""
    return tally(lambda event: pauses.append(1.0) or answer(event), deadline_s=3)


def lambda_error(code: str, status: int = 400) -> ClientError:
    response: Any = {"Error": {"Code": code, "Message": "m"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(response, "Invoke")


def error_answer(error: TallyError) -> dict[str, Any]:
    return {"status": error.status, "replayed": False, "body": errors.problem_document(error, request_id="r-1")}


def test_the_client_has_every_operation_that_is_not_for_browsers() -> None:
    """`make generate` writes the client's methods from the operations."""
    left_out = {operation.name for operation in OPERATIONS} - {operation.name for operation in CLIENT_OPERATIONS}
    assert left_out == {
        "get_client_file", "get_visits_badge", "get_counter_badge", "get_console", "get_console_config",
        "get_console_file", "get_openapi",
    }  # fmt: skip
    for operation in CLIENT_OPERATIONS:
        build: Callable[..., Request[Any]] = getattr(requests, operation.name)
        arguments = {
            field.argument: [] if field.kind.list_max or field.name == "changes" else "x" for field in operation.fields
        }
        request = build(**arguments)
        assert (request.function, request.operation) == (operation.module, operation.name)
        assert set(request.fields) == {field.name for field in operation.fields} - {"caller"}  # the client adds it
        assert getattr(Tally, operation.name).__wrapped__ is build
        if operation.leaves_receipt:
            assert inspect.signature(build).parameters["idempotency_key"].default is None
            made_key = build(**{**arguments, "idempotency_key": None}).idempotency_key
            fields.idempotency_key(made_key, "key", anonymous=True)  # raises if the key is invalid


def test_the_bundle_imports_no_other_module_of_tally(tmp_path: Path) -> None:
    (tmp_path / "tally").mkdir()
    for name in BUNDLE:
        copy = shutil.copytree if (ROOT / "tally" / name).is_dir() else shutil.copy
        copy(ROOT / "tally" / name, tmp_path / "tally" / name)
    code = (
        "import sys; from tally.client import Tally, requests\n"
        "tally = Tally.from_environment(caller='c')\n"
        "checked = {'tally', 'counters', 'pydantic', 'aws_lambda_powertools', 'url_normalize'}\n"
        "print(sorted(name for name in sys.modules if name.partition('.')[0] in checked))"
    )
    variables = {"PYTHONPATH": str(tmp_path), "TALLY_FUNCTION_PREFIX": "x-", "AWS_DEFAULT_REGION": "eu-west-1"}
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], env=variables, capture_output=True, text=True, cwd=tmp_path
    )
    assert ran.stderr == ""
    assert ran.stdout.strip() == (
        "['tally', 'tally.client', 'tally.client.request', 'tally.client.requests', 'tally.errors', 'tally.ids']"
    )


@pytest.mark.parametrize("kind", ANSWERED_ERRORS, ids=lambda kind: kind.__name__)
def test_the_client_raises_the_error_class_that_a_function_answered_or_raised(
    kind: type[TallyError], pauses: list[float]
) -> None:
    members = {"field": "amount", "left": 3, "version": 7}
    error = kind("in words", **members)
    tally_client, _ = tally(error_answer(error))
    with pytest.raises(kind) as caught:
        tally_client.increment(*PLAY)
    assert type(caught.value) is kind
    assert caught.value.detail == errors.problem_document(error)["detail"]  # for a 500, not "in words"
    assert {name: caught.value.members[name] for name in members} == members
    (result,) = tally({"results": [error_answer(error)]})[0].batch([requests.increment(*PLAY)])
    assert type(result) is kind
    crashed = {"errorMessage": "in words", "errorType": kind.__name__, "requestId": "r", "stackTrace": ["  File …"]}
    tally_client, fake = tally((crashed,))
    with pytest.raises(kind, match=r"^in words$") as caught:
        tally_client.increment(*PLAY)
    assert type(caught.value) is kind
    assert len(fake.calls) == (client.ATTEMPTS_MAX if issubclass(kind, RetryableError) else 1)


@pytest.mark.parametrize(("status", "kind"), [(409, CallerError), (503, RetryableError), (500, TallyError)])
def test_an_unknown_error_of_a_newer_tally_is_raised_as_the_class_of_its_status(
    status: int, kind: type[TallyError], pauses: list[float]
) -> None:
    body = {"type": "urn:problem-type:tally:new-thing", "title": "t", "status": status, "detail": "d", "more": 1}
    with pytest.raises(TallyError) as caught:
        tally({"status": status, "replayed": False, "body": body})[0].increment(*PLAY)
    assert type(caught.value) is kind
    assert caught.value.members == {"more": 1}


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (lambda_error("TooManyRequestsException", 429), StoreBusyError),
        (lambda_error("ResourceConflictException", 409), StoreBusyError),
        (lambda_error("ServiceException", 500), StoreUnreachableError),
        (botocore.exceptions.ReadTimeoutError(endpoint_url="x"), StoreUnreachableError),
        (botocore.exceptions.EndpointConnectionError(endpoint_url="x"), StoreUnreachableError),
        (botocore.exceptions.ResponseStreamingError(error="x"), StoreUnreachableError),
        (botocore.exceptions.IncompleteReadError(actual_bytes=1, expected_bytes=2), StoreUnreachableError),
        (b'{"status": 2', StoreUnreachableError),
        (({"errorType": "Sandbox.Timedout", "errorMessage": "RequestId: r-1 Error"},), StoreUnreachableError),
        (({"errorMessage": "2026-08-01T00:00:00Z r-1 Task timed out after 15.00 seconds"},), StoreUnreachableError),
        (({"errorType": "Runtime.ExitError", "errorMessage": "signal: killed"},), StoreUnreachableError),
    ],
)  # fmt: skip
def test_a_temporary_error_is_retried_with_the_same_key(
    answer: Any, kind: type[TallyError], pauses: list[float]
) -> None:
    tally_client, fake = tally(answer, answer, PLAYED)
    assert tally_client.increment(*PLAY) == COUNTED
    assert len(fake.calls) == 3
    assert len({event["idempotency_key"] for event in fake.events}) == 1
    with pytest.raises(kind):
        tally(answer)[0].increment(*PLAY)


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (lambda_error("AccessDeniedException", 403), ConfigurationError),
        (lambda_error("InvalidRequestContentException"), ConfigurationError),
        (lambda_error("RequestTooLargeException", 413), PayloadTooLargeError),
        (botocore.exceptions.NoCredentialsError(), ConfigurationError),
        (({"errorType": "KeyError", "errorMessage": "'x'", "stackTrace": []},), TallyError),
        (error_answer(PayloadTooLargeError("x")), PayloadTooLargeError),
        ({"statusCode": 200, "body": "{}"}, ConfigurationError),
        ([], ConfigurationError),
    ],
)
def test_a_lasting_error_is_not_retried(answer: Any, kind: type[TallyError], pauses: list[float]) -> None:
    tally_client, fake = tally(answer)
    with pytest.raises(TallyError) as caught:
        tally_client.increment(*PLAY)
    (result,) = tally_client.batch([requests.increment(*PLAY)])
    assert (type(caught.value), type(result)) == (kind, kind)
    assert len(fake.calls) == 2
    assert pauses == []


def test_retries_end_after_a_number_of_attempts_with_growing_pauses(pauses: list[float]) -> None:
    tally_client, fake = tally(lambda_error("TooManyRequestsException"), deadline_s=1000)
    for _ in range(20):  # pauses are random
        fake.calls.clear()
        pauses.clear()
        with pytest.raises(StoreBusyError):
            tally_client.increment(*PLAY)
        assert len(fake.calls) == client.ATTEMPTS_MAX
        bounds = [
            min(client.PAUSE_MAX_S, client.PAUSE_FIRST_S * 2 ** (attempt - 1))
            for attempt in range(1, client.ATTEMPTS_MAX)
        ]
        assert all(0 <= pause <= bound for pause, bound in zip(pauses, bounds, strict=True))


def test_no_attempt_begins_if_it_could_last_beyond_the_deadline(pauses: list[float]) -> None:
    """An attempt takes 1 s, a third of the deadline. After two attempts and a pause, another could end too late."""
    tally_client, fake = slow_tally(pauses, lambda _: botocore.exceptions.ReadTimeoutError(endpoint_url="x"))
    with pytest.raises(StoreUnreachableError):
        tally_client.increment(*PLAY)
    assert len(fake.calls) == 2
    assert sum(pauses) <= 3


def test_a_batch_has_one_deadline_and_answers_busy_for_requests_that_it_did_not_send(pauses: list[float]) -> None:
    """An event has at most 100 requests. Three events take 3 s, which is the deadline."""
    tally_client, fake = slow_tally(pauses, lambda event: {"results": [PLAYED] * len(event["batch"])})
    results = tally_client.batch([requests.increment(*PLAY) for _ in range(450)])
    assert [type(result) for result in results] == [dict] * 300 + [StoreBusyError] * 150
    assert len(fake.calls) == 3


def test_the_boto3_client_times_out_after_a_third_of_the_deadline_and_does_not_retry() -> None:
    config = Tally({}, deadline_s=9).lambda_client.meta.config
    assert (config.connect_timeout, config.read_timeout, config.retries["total_max_attempts"]) == (1, 2, 1)
    short = Tally({}, deadline_s=3).lambda_client.meta.config
    assert (short.connect_timeout, short.read_timeout) == (0.5, 0.5), "their sum is a third of the deadline"


def test_each_request_gets_one_key_and_keeps_it_when_it_is_sent_twice(pauses: list[float]) -> None:
    keys = {requests.increment(*PLAY).idempotency_key for _ in range(100)}
    assert len(keys) == 100
    for key in keys:
        fields.idempotency_key(key, "key", anonymous=True)
    request = requests.increment(*PLAY)
    tally_client, fake = tally(PLAYED)
    tally_client.send(request)
    tally_client.send(request)
    assert [event["idempotency_key"] for event in fake.events] == [request.idempotency_key] * 2
    assert requests.get_counter(*PLAY).idempotency_key is None


def test_the_caller_of_a_request_replaces_the_caller_of_the_client() -> None:
    """A field without a value is not sent."""
    tally_client, fake = tally(PLAYED, caller="checkout")
    tally_client.increment("usage", "7c20", amount=0, idempotency_key="k")
    tally_client.increment(*PLAY, idempotency_key="k", caller="alice")
    anonymous, anonymous_fake = tally(PLAYED)
    anonymous.increment(*PLAY, idempotency_key="k")
    play = {"operation": "increment", "counter": "plays", "id": "9f3a", "idempotency_key": "k"}
    usage = play | {"counter": "usage", "id": "7c20", "amount": 0, "caller": "checkout"}
    assert fake.events + anonymous_fake.events == [usage, play | {"caller": "alice"}, play]
    assert {call["FunctionName"] for call in fake.calls} == {"fn-increments"}


def test_enqueued_events_and_batches_ask_lambda_to_retry_them(pauses: list[float]) -> None:
    single_client, single_fake = tally(lambda_error("TooManyRequestsException"), b"", caller="c")
    single_client.enqueue(requests.increment(*PLAY, idempotency_key="k"))
    calls = [(call["InvocationType"], call["Payload"]["idempotency_key"]) for call in single_fake.calls]
    assert calls == [("Event", "k")] * 2, "the first call was throttled"
    tally_client, fake = tally(lambda_error("TooManyRequestsException"), b"", caller="c")
    plays = [requests.increment(*PLAY, idempotency_key=f"k{number}") for number in range(150)]
    tally_client.enqueue_batch([*plays[:40], requests.put_mine("likes", "a91f", idempotency_key="k"), *plays[40:]])
    assert [call["InvocationType"] for call in fake.calls] == ["Event"] * 4, (
        "the throttled call, two batches of plays, and one of a like"
    )
    assert {event["on_failure"] for event in fake.events} == {"raise"}, "so Lambda learns of a failure, and retries"
    assert [call["FunctionName"] for call in fake.calls] == ["fn-increments"] * 3 + ["fn-children"]
    sent = [[entry["idempotency_key"] for entry in event["batch"]] for event in fake.events[1:]]
    keys = [f"k{number}" for number in range(150)]
    assert sent == [keys[:100], keys[100:], ["k"]]
    assert all(entry["caller"] == "c" for event in fake.events for entry in event["batch"])


def test_a_batch_that_is_not_enqueued_within_the_deadline_raises_an_error(pauses: list[float]) -> None:
    tally_client, fake = slow_tally(pauses, lambda _: b"")
    with pytest.raises(StoreBusyError, match="No time was left"):
        tally_client.enqueue_batch([requests.increment(*PLAY)] * 450)
    assert len(fake.calls) == 3


CIRCLE: list[Any] = []
CIRCLE.append(CIRCLE)
DEEP: Any = 0
for _ in range(100_000):
    DEEP = [DEEP]


class Broken:
    """An object whose `repr` raises."""

    def __repr__(self) -> NoReturn:
        raise RuntimeError("broken")


class BrokenList:
    """An iterable whose iterator raises."""

    def __iter__(self) -> NoReturn:
        raise RuntimeError("broken")


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        *((value, errors.InvalidInputError) for value in (
            math.nan, math.inf, Decimal("7.5"), Decimal("NaN"), Decimal("sNaN"), Decimal("1e999999"),
            Decimal("1e-999999"), 10**5000, 7j, b"9f3a", datetime.date(2026, 1, 1), "\ud800", object(), CIRCLE, DEEP,
            {("a", "b"): 1}, [{"id": b"x"}], type, Broken(), BrokenList(),
        )),
        ("x" * 1_000_001, PayloadTooLargeError),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_a_request_that_json_cannot_hold_fails_and_the_other_requests_of_its_batch_succeed(
    value: Any, kind: type[TallyError]
) -> None:
    """The bad value may be in any field. The request with the bad value is never sent."""
    tally_client, fake = tally(
        lambda event: {"results": [PLAYED] * len(event["batch"])} if "batch" in event else PLAYED
    )
    valid = requests.increment(*PLAY)
    for unsendable in (
        requests.increment("usage", value, amount=1),
        requests.increment("usage", "7c20", amount=value),
        requests.increment("usage", "7c20", amount=1, idempotency_key=value, caller=value),
        requests.change([{"counter": "usage", "id": "7c20", "amount": value}]),
    ):
        with pytest.raises(kind):
            tally_client.send(unsendable)
        with pytest.raises(kind):
            tally_client.enqueue(unsendable)
        assert fake.events == []
        assert [type(result) for result in tally_client.batch([valid, unsendable, valid])] == [dict, kind, dict]
        with pytest.raises(kind):
            tally_client.enqueue_batch([unsendable, valid, valid])
        assert [len(event["batch"]) for event in fake.events] == [2, 2]
        fake.calls.clear()


def test_a_generator_that_raises_is_not_sent_as_an_empty_list() -> None:
    tally_client, fake = tally(PLAYED)
    with pytest.raises(errors.InvalidInputError, match="ZeroDivisionError"):
        tally_client.change({"amount": 1 // zero} for zero in [0])
    assert fake.events == []


def test_decimals_are_sent_as_whole_numbers_and_uuids_as_text() -> None:
    uuid = UUID("5f0c2b9e-6f0a-4b63-8a37-0d1a4f0f6f11")
    entry = MappingProxyType({"counter": "stock", "id": uuid, "amount": Decimal("-2.0")})
    plain = {"counter": "stock", "id": str(uuid), "amount": -2}
    assert requests.increment("usage", "x", idempotency_key=uuid).idempotency_key == str(uuid)  # type: ignore[arg-type]
    tally_client, fake = tally(PLAYED, caller=uuid)
    tally_client.increment("usage", uuid, amount=Decimal("7E+1"), idempotency_key=uuid)  # type: ignore[arg-type]
    tally_client.change((entry for _ in range(2)), idempotency_key="k")
    tally_client.get_tallies({uuid})  # type: ignore[arg-type]
    usage, change, read = fake.events
    assert usage == usage | dict.fromkeys(("id", "idempotency_key", "caller"), str(uuid)) | {"amount": 70}
    assert change["changes"] == [plain] * 2
    assert [str(uuid)] in read.values()


def test_a_batch_takes_a_generator_and_answers_each_request() -> None:
    """A generator has no length. If `batch` raised an error after it had sent some requests, callers
    would repeat the sent requests."""
    tally_client, fake = tally(lambda event: {"results": [PLAYED] * len(event["batch"])})
    assert tally_client.batch(requests.increment("plays", f"v{number}") for number in range(120)) == [COUNTED] * 120
    tally_client.enqueue_batch(requests.increment("plays", f"v{number}") for number in range(3))
    assert [len(event["batch"]) for event in fake.events] == [100, 20, 3]


def test_a_batch_is_split_into_events_that_lambda_takes() -> None:
    """An event has at most 1 MB, so three posts of 300 kB."""
    tally_client, fake = tally(lambda event: {"results": [PLAYED] * len(event["batch"])})
    tally_client.batch([requests.put_post(f"p{number}", "x" * 300_000) for number in range(7)])
    assert [len(event["batch"]) for event in fake.events] == [3, 3, 1]


def test_a_request_to_a_function_without_a_name_fails_with_the_name_of_its_module() -> None:
    (result,) = Tally({"posts": "x"}, lambda_client=FakeLambda(PLAYED)).batch([requests.increment(*PLAY)])
    assert isinstance(result, ConfigurationError)
    assert "'increments'" in result.detail


def test_from_environment_reads_the_names_of_the_functions() -> None:
    arn = "arn:aws:lambda:eu-west-1:123456789012:function:plays:live"
    variables = {"TALLY_FUNCTIONS": '{"reads": "a"}', "POLLS_FUNCTIONS": json.dumps({"plays": arn})}
    polls = Tally.from_environment(variables, variable="POLLS_FUNCTIONS", caller="c", deadline_s=6)
    assert (polls.functions, polls.caller, polls.deadline_s) == ({"plays": arn}, "c", 6)
    assert Tally.from_environment(variables, lambda_client=object()).functions == {"reads": "a"}
    prefixed = Tally.from_environment({"TALLY_FUNCTION_PREFIX": "tally-prod-", "TALLY_FUNCTION_QUALIFIER": "live"})
    assert prefixed.functions["increments"] == "tally-prod-increments:live"
    assert set(prefixed.functions) == set(client.FUNCTIONS) == {operation.module for operation in CLIENT_OPERATIONS}
    assert Tally.from_environment({"TALLY_FUNCTION_PREFIX": ""}).functions["posts"] == "posts"
    with pytest.raises(ConfigurationError, match="Neither OTHER_FUNCTIONS nor TALLY_FUNCTION_PREFIX"):
        Tally.from_environment(variables, variable="OTHER_FUNCTIONS")
    for bad in ("[]", '{"a": 1}'):
        with pytest.raises(ConfigurationError, match="TALLY_FUNCTIONS"):
            Tally.from_environment({"TALLY_FUNCTIONS": bad})


def test_a_batch_resends_only_the_requests_with_a_503_and_answers_in_order(pauses: list[float]) -> None:
    busy, reused = error_answer(StoreBusyError("x")), error_answer(errors.KeyReusedError("x"))
    replayed = {**PLAYED, "replayed": True}
    tally_client, fake = tally(
        {"results": [PLAYED, busy, reused, busy]}, {"results": [replayed, busy]}, {"results": [PLAYED]}
    )
    results = tally_client.batch(
        [requests.increment("plays", f"v{number}", idempotency_key=f"k{number}") for number in range(4)]
    )
    assert [type(result).__name__ for result in results] == ["dict", "dict", "KeyReusedError", "dict"]
    assert [isinstance(result, dict) and result["replayed"] for result in results] == [False, True, False, False]
    sent = [[entry["idempotency_key"] for entry in event["batch"]] for event in fake.events]
    assert sent == [["k0", "k1", "k2", "k3"], ["k1", "k3"], ["k3"]]
