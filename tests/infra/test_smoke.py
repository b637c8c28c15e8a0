"""The smoke test of a deployed stack calls every operation, and cannot pass by mistake."""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from api.operation import Route
from cli import smoke
from counters import COUNTERS
from declarations import OPERATIONS
from tests.e2e.servers import Reply, Server


def token_of(**claims: str) -> str:
    return f"e30.{base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip('=')}.signature"


TOKEN = token_of(sub="auth0|alice", scope="tally/read tally/write")
ROUTES = {route.key: route for one in OPERATIONS for route in one.routes(COUNTERS)}


def good(route: Route) -> tuple[int, Any]:
    """The answer of the document, or the refusal that the smoke test expects."""
    status = route.operation.smoke[0]
    example = {} if route.operation.example is None else route.operation.example
    if route.operation.name == "get_openapi":
        example = {name: {} for name in ("openapi", "info", "servers", "tags", "paths", "components")}
    return status, example if status < 400 else {"title": "Refused"}


def matched(method: str, path: str) -> Route:
    """The most specific route."""
    fitting = (
        route
        for route in ROUTES.values()
        if route.method == method and re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", route.path), path)
    )
    return min(fitting, key=lambda route: route.path.count("{"))


class Stub:
    """Answers each route from `answers`, and records the requests."""

    def __init__(self) -> None:
        self.answers = {key: good(route) for key, route in ROUTES.items()}
        self.asked: list[str] = []
        self.keys: list[str] = []
        self.server = Server(self._answer)

    @property
    def url(self) -> str:
        return self.server.origin

    def _answer(self, method: str, target: str, headers: dict[str, str], body: bytes) -> Reply:
        route = matched(method, target.partition("?")[0])
        self.asked.append(route.key)
        status, answer = self.answers[route.key]
        if route.needs_caller and headers.get("authorization") != f"Bearer {TOKEN}":
            status, answer = 401, {"message": "Unauthorized"}
        key = headers.get("idempotency-key")
        replayed = {"Idempotency-Replayed": "true"} if key in self.keys else {}
        self.keys += [key] if key else []
        return Reply(status, json.dumps(answer).encode(), replayed)


@pytest.fixture
def stub() -> Iterator[Stub]:
    made = Stub()
    with made.server.running():
        yield made


Run = Callable[..., int]


@pytest.fixture
def run(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs it against the stub, unless another URL is given."""

    def run(**given: str) -> int:
        for name, value in {"URL": stub.url, "TOKEN": TOKEN, "PAGE": "", "WAIT": "", **given}.items():
            monkeypatch.setenv(name, value)
        return smoke.main()

    return run


def test_it_calls_every_route_under_a_key_of_its_own(stub: Stub, run: Run) -> None:
    assert run() == run() == 0
    assert set(stub.asked) == set(ROUTES)
    assert len(set(stub.keys)) == 2


@pytest.mark.parametrize("bad", [(500, {"title": "Failed"}), (200, ["text"]), (403, {"message": "Forbidden"})])
def test_each_broken_operation_fails_the_run(
    stub: Stub, run: Run, capsys: pytest.CaptureFixture[str], bad: tuple[int, Any]
) -> None:
    stub.answers = dict.fromkeys(ROUTES, bad)
    assert run(PAGE="https://example.com/a") == 1
    reported = [line.split()[1] for line in capsys.readouterr().out.splitlines() if line.startswith("failed")]
    assert {route.id for route in ROUTES.values()} <= set(reported)


def test_an_uncounted_page_is_a_failure_only_if_it_was_named(
    stub: Stub, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    stub.answers["POST /visits"] = (403, {"title": "Forbidden"})
    assert run() == 0
    assert re.search("^skipped +visit +.*PAGE=", capsys.readouterr().out, re.MULTILINE)
    assert run(PAGE="https://example.com/a") == 1


def test_a_token_without_scopes_skips_the_counters() -> None:
    scoped = {route.id for route in ROUTES.values() if route.scope}
    todo = smoke.calls("https://example.com/", "key", page_given=True)
    seen = {call.name: smoke.judge(call, smoke.Answer(403, {}, {}))[0] for call in todo}
    assert {name.removesuffix(" again") for name, state in seen.items() if state == "skipped"} == scoped
    assert smoke.scopes_of(token_of(sub="auth0|alice")) == set()


def test_an_api_that_lets_anybody_like_fails() -> None:
    todo = smoke.calls("https://example.com/", "key", page_given=False)
    [open_door] = [call for call in todo if call.name == "no token"]
    assert smoke.judge(open_door, smoke.Answer(200, {}, {"liked": True}))[0] == "failed"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"URL": ""}, "URL is missing: make smoke URL=https://… TOKEN=…"),
        ({"URL": "example.com"}, "'example.com' is no URL: make smoke URL=https://…"),
        ({"TOKEN": ""}, "no token to sign in with: it is missing"),
        ({"TOKEN": "a.b.c"}, "not a JWT with a sub"),
        ({"TOKEN": "a.MQ.c"}, "not a JWT with a sub"),
        ({"TOKEN": token_of(scope="tally/read")}, "not a JWT with a sub"),
        ({"WAIT": "ever"}, "give seconds from 0 to 3600"),
    ],
)
def test_what_it_needs_is_asked_for_in_one_line(
    run: Run, capsys: pytest.CaptureFixture[str], given: dict[str, str], message: str
) -> None:
    assert run(**given) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert message in line


@pytest.mark.parametrize(
    ("later", "status", "said"),
    [
        ({"value": 1, "bots": 0, "as_of": 2**40}, 0, "ok      rolled up"),
        ({"value": 0, "bots": 0, "as_of": 2**40}, 1, "failed  rolled up"),
        ({"value": 1, "bots": 0, "as_of": None}, 1, "failed  rolled up"),
        ({"value": 1, "bots": 0, "as_of": 1}, 1, "failed  rolled up"),
    ],
)
def test_it_waits_until_a_visit_is_rolled_up(
    stub: Stub, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, later: Any, status: int, said: str
) -> None:
    """The answer changes after the first look."""

    def sleep(_: float) -> None:
        stub.answers["GET /visits"] = (200, later)
        looks.append(1)

    looks: list[int] = []
    clock = SimpleNamespace(time=time.time, monotonic=lambda: len(looks), sleep=sleep)
    monkeypatch.setattr(smoke, "time", clock)
    stub.answers["GET /visits"] = (200, {"value": 1, "bots": 0, "as_of": None})
    assert smoke.attempt(stub.url, "", smoke.rolled_up("https://example.com/"), 3) == status
    assert len(looks) == (3 if status else 1)
    assert said in capsys.readouterr().out
