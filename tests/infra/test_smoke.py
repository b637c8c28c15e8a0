"""The smoke test calls every operation of a deployed stack, and fails if an operation fails."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tally.cli import smoke
from tally.contract.declarations import Declarations
from tests.e2e.servers import Reply, Server
from tests.environments import ROOT


def token_of(**claims: str) -> str:
    """Returns an unsigned JWT with these claims."""
    return f"e30.{base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip('=')}.signature"


TOKEN = token_of(sub="auth0|alice", scope="tally/read tally/write")
DECLARED = Declarations.load(ROOT / "lambdas/counters.py")
ROUTES = {route.id: route for route in DECLARED.routes}
PAGE = "https://example.com/a"
Run = Callable[..., int]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Returns a function that runs the smoke test with these environment variables."""

    def run(**variables: str) -> int:
        for name, value in {"URL": "https://api", "TOKEN": TOKEN, "PAGE": "", "WAIT": "", **variables}.items():
            monkeypatch.setenv(name, value)
        return smoke.main()

    return run


def test_the_smoke_test_of_a_stack_with_votes_alone_calls_the_routes_of_votes(tmp_path: Path) -> None:
    text = 'VOTES = Counter("votes", prefix="POLL", sort_key="VOTES", attribute="votes", delta=1)'
    (tmp_path / "counters.py").write_text(
        f"from tally.counter import Counter, declared\n{text}\nCOUNTERS = declared([VOTES])\n"
    )
    declared = Declarations.load(tmp_path / "counters.py")
    calls = {call.name: call for call in smoke.make_probes(declared, PAGE, "key", page_given=False)}
    assert calls.keys() == {route.id for route in declared.routes} | {"no token", "increment again"}
    assert calls["increment"].path == "/counters/votes/smoke/increments"
    assert not calls["no token"].signed_in


def test_the_smoke_test_calls_every_route_and_each_run_has_another_key(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """tests/integration/test_operations.py checks the answers of the routes."""
    probes: list[smoke.Probe] = []
    monkeypatch.setattr(smoke, "send", lambda url, token, call: probes.append(call))
    monkeypatch.setattr(smoke, "assess", lambda call, answer: ("ok", ""))
    assert run() == run() == 0
    assert {call.name for call in probes} >= ROUTES.keys()
    keys = {call.headers["Idempotency-Key"] for call in probes if "Idempotency-Key" in call.headers}
    assert len(keys) == 2, "one key for each of the two runs"


@pytest.mark.parametrize("answer", [(500, {"title": "Failed"}), (200, ["text"]), (403, {"message": "Forbidden"})])
def test_each_broken_operation_fails_the_run(
    run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, answer: tuple[int, Any]
) -> None:
    monkeypatch.setattr(smoke, "send", lambda url, token, call: smoke.HttpAnswer(answer[0], {}, answer[1]))
    assert run(PAGE=PAGE) == 1
    failed_operations = {line.split()[1] for line in capsys.readouterr().out.splitlines() if line.startswith("failed")}
    assert failed_operations >= ROUTES.keys()


def test_a_call_carries_the_token_and_the_body_and_any_status_is_an_answer() -> None:
    requests: list[tuple[str, str | None, bytes]] = []

    def answer(method: str, target: str, headers: dict[str, str], body: bytes) -> Reply:
        requests.append((f"{method} {target}", headers.get("authorization"), body))
        return Reply(409, b'{"title": "Refused"}', {"Idempotency-Replayed": "true"})

    server = Server(answer)
    with server.running():
        probe = smoke.Probe("x", "PUT", "/a", is_expected=bool, signed_in=True, body={"amount": 1})
        reply = smoke.send(server.origin, token="t", probe=probe)
    assert requests == [("PUT /a", "Bearer t", b'{"amount": 1}')]
    assert (reply.status, reply.body) == (409, {"title": "Refused"})
    assert reply.headers["idempotency-replayed"] == "true"


@pytest.mark.parametrize(("page_given", "state"), [(False, "skipped"), (True, "failed")])
def test_an_uncounted_page_is_a_failure_only_if_the_person_named_the_page(page_given: bool, state: str) -> None:
    probes = smoke.make_probes(DECLARED, PAGE, "key", page_given=page_given, scopes=smoke.scopes_of(TOKEN))
    [visit] = [call for call in probes if call.name == "visit"]
    assert smoke.assess(visit, smoke.HttpAnswer(403, {}, {"title": "Forbidden"}))[0] == state


def test_with_a_token_without_scopes_the_routes_with_a_scope_are_skipped() -> None:
    scoped = {route.id for route in ROUTES.values() if route.scope}
    scopes = smoke.scopes_of(token_of(sub="auth0|alice"))
    assert scopes == set()
    probes = smoke.make_probes(DECLARED, PAGE, "key", page_given=True, scopes=scopes)
    states = {call.name: smoke.assess(call, smoke.HttpAnswer(403, {}, {}))[0] for call in probes}
    assert {name.removesuffix(" again") for name, state in states.items() if state == "skipped"} == scoped


def test_an_api_that_answers_a_route_for_users_without_a_token_fails_the_smoke_test() -> None:
    probes = smoke.make_probes(DECLARED, PAGE, "key", page_given=False)
    [call_without_token] = [call for call in probes if call.name == "no token"]
    assert smoke.assess(call_without_token, smoke.HttpAnswer(200, {}, {"liked": True}))[0] == "failed"


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"URL": ""}, "URL is missing: make smoke URL=https://… TOKEN=…"),
        ({"TOKEN": ""}, "no token to sign in with: it is missing"),
        ({"TOKEN": "a.b.c"}, "not a JWT with a sub"),
        ({"TOKEN": token_of(scope="tally/read")}, "not a JWT with a sub"),
        ({"WAIT": "ever"}, "give seconds from 0 to 3600"),
    ],
)
def test_a_missing_or_invalid_variable_gives_an_error_of_one_line(
    run: Run, capsys: pytest.CaptureFixture[str], variables: dict[str, str], message: str
) -> None:
    assert run(**variables) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert message in line


@pytest.mark.parametrize(
    ("later", "fails"),
    [
        ({"value": 1, "bots": 0, "as_of": 2**40}, False),
        ({"value": 0, "bots": 0, "as_of": 2**40}, True),  # no visit
        ({"value": 1, "bots": 0, "as_of": 1}, True),  # the watermark is older than the run
    ],
)
def test_the_smoke_test_waits_until_a_visit_is_rolled_up(
    monkeypatch: pytest.MonkeyPatch, later: Any, fails: bool
) -> None:
    """The first answer has no `as_of`, and every further answer is `later`. A pause moves the clock by one second."""
    pauses: list[int] = []
    clock = SimpleNamespace(time=time.time, monotonic=lambda: len(pauses), sleep=pauses.append)
    monkeypatch.setattr(smoke, "time", clock)
    first = {"value": 1, "bots": 0, "as_of": None}
    monkeypatch.setattr(smoke, "send", lambda *_: smoke.HttpAnswer(200, {}, later if pauses else first))
    assert smoke.attempt_fails("https://api", "", smoke.rolled_up_probe(PAGE), wait_s=3) is fails
    assert len(pauses) == (3 if fails else 1)
