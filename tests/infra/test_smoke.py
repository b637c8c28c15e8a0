"""The smoke test of a deployed stack calls every operation, and cannot pass by mistake."""

from __future__ import annotations

import base64
import json
import re
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import pytest
from tally.operation import by_route

import operations
from cli import smoke
from counters import COUNTERS

CLAIMS = (
    base64.urlsafe_b64encode(json.dumps({"sub": "auth0|alice", "scope": "tally/read tally/write"}).encode())
    .decode()
    .rstrip("=")
)
TOKEN = f"e30.{CLAIMS}.signature"
ROUTES = by_route(operations.OPERATIONS, COUNTERS)
GOOD: dict[str, tuple[int, Any]] = {
    "GET /health": (200, {"status": "ok"}),
    "POST /videos/{id}/plays": (200, {"counted": True}),
    "GET /videos/{id}/plays": (200, {"play_count": 1}),
    "PUT /posts/{id}": (201, {"post_id": "smoke"}),
    "DELETE /posts/{id}": (200, {"deleted": True, "changed": True}),
    "GET /posts/{id}": (200, {"body": "A post of the smoke test."}),
    "PUT /posts/{id}/like": (200, {"liked": True, "changed": True}),
    "GET /posts/{id}/like": (200, {"liked": True}),
    "GET /my/likes": (200, {"likes": [{"post_id": "smoke", "liked": True}]}),
    "GET /posts/{id}/likes": (200, {"likes": [{"user_id": "auth0|alice"}]}),
    "DELETE /posts/{id}/like": (200, {"liked": False, "changed": True}),
    "POST /visits": (202, {"counted": True}),
    "GET /visits": (200, {"visits": 1}),
    "GET /visits/badge.svg": (200, "<svg/>"),
    "GET /beacon.js": (200, "navigator.sendBeacon()"),
    "GET /console": (200, '<script src="/console/app.js">'),
    "GET /console/{file}": (200, "var uPlot"),
    "GET /console/config.json": (200, {"sign_in": {"kind": "token"}}),
    "GET /openapi.json": (200, {"openapi": "3.1.0"}),
    "GET /drift": (200, {"drift": [], "cursor": None}),
    "GET /status": (200, {"well": True, "parts": []}),
    "GET /details": (200, {"value": 0, "shards": []}),
    "GET /visits/series": (200, {"by": "hour"}),
    "GET /top": (200, {"by": "day"}),
    "GET /counters/{counter}/{id}/series": (200, {"series": []}),
    "GET /series/{counter}": (200, {"series": []}),
    "GET /top/{counter}": (200, {"top": []}),
    "GET /tallies": (200, {"tallies": [{"value": 1}, {"error": {}}]}),
    "GET /tallies/any": (200, {"tallies": [{"value": 1}]}),
    "GET /counters/{counter}/{id}/badge.svg": (200, "<svg/>"),
    "GET /receipts": (200, {"state": "counted"}),
    "GET /receipts/own": (200, {"state": "unknown"}),
    "GET /receipts/many": (200, {"receipts": [{"state": "counted"}]}),
    "GET /receipts/own/many": (200, {"receipts": [{"state": "unknown"}]}),
    "POST /counters/{counter}/{id}/increments": (200, {"counted": True}),
    "POST /changes": (200, {"counted": True}),
    "GET /counters/{counter}/{id}": (200, {"value": 1}),
    "GET /counters/plays/{id}": (200, {"value": 1}),
    "PUT /counters/{counter}/{id}": (412, {"version": 1}),
    "PUT /counters/{counter}/{id}/children/{child}": (200, {"changed": True}),
    "GET /counters/{counter}/{id}/children/{child}": (200, {"counted": True}),
    "GET /counters/{counter}/{id}/children": (200, {"children": []}),
    "DELETE /counters/{counter}/{id}/children/{child}": (200, {"changed": True}),
    "POST /counters/{counter}/{id}/holds": (409, {"left": 0}),
    "POST /counters/{counter}/{id}/holds/{hold}/commit": (404, {"title": "Not found"}),
    "DELETE /counters/{counter}/{id}/holds/{hold}": (404, {"title": "Not found"}),
}


class Stub(ThreadingHTTPServer):
    """Answers each route from `answers`, and records the requests."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers = {route: (operation.success[0], {}) for route, operation in ROUTES.items()} | GOOD
        self.asked: list[str] = []
        self.keys: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Stub

    def answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path = re.sub(r"^/(videos|posts)/[^/]+", r"/\1/{id}", self.path.split("?")[0])
        path = re.sub(r"^/(top|series)/[^/]+$", r"/\1/{counter}", path)
        path = re.sub(r"^/counters/(?!plays/[^/]+$|{counter}/)[^/]+/[^/]+", "/counters/{counter}/{id}", path)
        path = re.sub(r"^/counters/plays/[^/]+$", "/counters/plays/{id}", path)
        path = re.sub(r"/holds/[^/]+", "/holds/{hold}", path)
        path = re.sub(r"/children/[^/]+", "/children/{child}", path)
        path = re.sub(r"^/console/(?!config)[^/]+", "/console/{file}", path)
        route = f"{self.command} {path}"
        operation = ROUTES[route]
        self.server.asked.append(operation.name)
        status, body = self.server.answers[route]
        if operation.needs_caller and self.headers["Authorization"] != f"Bearer {TOKEN}":
            status, body = 401, {"message": "Unauthorized"}
        raw = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(raw)))
        key = self.headers["Idempotency-Key"]
        if key in self.server.keys:
            self.send_header("Idempotency-Replayed", "true")
        if key:
            self.server.keys.append(key)
        self.end_headers()
        self.wfile.write(raw)

    do_GET = do_PUT = do_POST = do_DELETE = answer

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def stub() -> Iterator[Stub]:
    with Stub() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def run(stub: Stub, *more: str) -> int:
    return smoke.main(["--url", stub.url, "--token", TOKEN, *more])


def test_it_calls_every_operation(stub: Stub) -> None:
    assert run(stub) == 0
    assert set(stub.asked) == {operation.name for operation in operations.OPERATIONS}


def test_each_run_counts_under_a_key_of_its_own(stub: Stub) -> None:
    assert run(stub) == run(stub) == 0
    assert len(set(stub.keys)) == 2


@pytest.mark.parametrize("route", GOOD)
@pytest.mark.parametrize("bad", [(500, {"title": "Failed"}), (200, ["text"]), (403, {"message": "Forbidden"})])
def test_one_broken_operation_fails_the_run(
    stub: Stub, capsys: pytest.CaptureFixture[str], route: str, bad: tuple[int, Any]
) -> None:
    stub.answers[route] = bad
    assert run(stub, "--page", "https://example.com/a") == 1
    broken = {operation.name for operation in operations.OPERATIONS if operation.route == route}
    reported = [line.split()[1] for line in capsys.readouterr().out.splitlines() if line.startswith("failed")]
    assert broken <= set(reported)


def test_an_uncounted_page_is_a_failure_only_if_it_was_named(stub: Stub, capsys: pytest.CaptureFixture[str]) -> None:
    stub.answers["POST /visits"] = (403, {"title": "Forbidden"})
    assert run(stub) == 0
    assert re.search("^skipped +visit .*--page", capsys.readouterr().out, re.MULTILINE)
    assert run(stub, "--page", "https://example.com/a") == 1


def test_a_token_without_scopes_skips_the_counters(stub: Stub, capsys: pytest.CaptureFixture[str]) -> None:
    claims = base64.urlsafe_b64encode(json.dumps({"sub": "auth0|alice"}).encode()).decode().rstrip("=")
    todo = smoke.counter_calls("key", set())
    assert [smoke.judge(call, smoke.Answer(403, {}, {}))[0] for call in todo] == ["skipped"] * len(todo)
    assert smoke.claims_of(f"e30.{claims}.signature") == ("auth0|alice", set())


def test_an_api_that_lets_anybody_like_fails() -> None:
    todo = smoke.calls("alice", "https://example.com/", "key", page_given=False)
    [open_door] = [call for call in todo if call.name == "no token"]
    assert smoke.judge(open_door, smoke.Answer(200, {}, {"liked": True}))[0] == "failed"


def test_nobody_there(capsys: pytest.CaptureFixture[str]) -> None:
    with Stub() as closed:
        url = closed.url
    assert smoke.main(["--url", url, "--token", TOKEN]) == 1
    # A second play, a post to delete, a like without a token, and one route of those that open a counter to anyone.
    calls = len(operations.OPERATIONS) + 4
    assert f"{calls} of {calls} calls failed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--url", "", "--token", TOKEN], "URL is missing: make smoke URL=https://… TOKEN=…"),
        (["--url", "example.com", "--token", TOKEN], "'example.com' is no URL: make smoke URL=https://…"),
        (["--url", "http://localhost", "--token", ""], "no token to sign in with: it is missing"),
        (["--url", "http://localhost", "--token", "a.b.c"], "not a JWT with a sub"),
        (["--url", "http://localhost", "--token", "a.MQ.c"], "not a JWT with a sub"),
    ],
)
def test_what_it_needs_is_asked_for_in_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        smoke.main(arguments)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("later", "status", "said"),
    [
        ({"visits": 1, "bot_visits": 0, "as_of": 2**40}, 0, "ok      rolled up"),
        ({"visits": 0, "bot_visits": 0, "as_of": 2**40}, 1, "failed  rolled up"),
        ({"visits": 1, "bot_visits": 0, "as_of": None}, 1, "failed  rolled up"),
        ({"visits": 1, "bot_visits": 0, "as_of": 1}, 1, "failed  rolled up"),
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
    stub.answers["GET /visits"] = (200, {"visits": 1, "bot_visits": 0, "as_of": None})
    assert smoke.wait_until_rolled_up(stub.url, "https://example.com/", 3) == status
    assert len(looks) == (3 if status else 1)
    assert said in capsys.readouterr().out


def test_a_wait_is_a_number_of_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        smoke.main(["--url", "http://localhost", "--token", TOKEN, "--wait", "ever"])
    assert "give seconds from 0 to 3600" in capsys.readouterr().err
