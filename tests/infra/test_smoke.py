"""The smoke test of a deployed stack calls every operation, and cannot pass by mistake."""

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
    return f"e30.{base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip('=')}.signature"


TOKEN = token_of(sub="auth0|alice", scope="tally/read tally/write")
DECLARED = Declarations.load(ROOT / "lambdas/counters.py")
ROUTES = {route.id: route for route in DECLARED.routes}
PAGE = "https://example.com/a"
Run = Callable[..., int]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs it with these settings."""

    def run(**given: str) -> int:
        for name, value in {"URL": "https://api", "TOKEN": TOKEN, "PAGE": "", "WAIT": "", **given}.items():
            monkeypatch.setenv(name, value)
        return smoke.main()

    return run


def test_of_votes_alone_it_calls_what_there_is(tmp_path: Path) -> None:
    text = 'VOTES = Counter("votes", prefix="POLL", sort_key="VOTES", attribute="votes", delta=1)'
    (tmp_path / "counters.py").write_text(
        f"from tally.counter import Counter, declared\n{text}\nCOUNTERS = declared([VOTES])\n"
    )
    declared = Declarations.load(tmp_path / "counters.py")
    calls = {call.name: call for call in smoke.make_probes(declared, PAGE, "key", page_given=False)}
    assert calls.keys() == {route.id for route in declared.routes} | {"no token", "increment again"}
    assert calls["increment"].path == "/counters/votes/smoke/increments"
    assert not calls["no token"].signed_in


def test_it_calls_every_route_under_a_key_of_its_own(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """tests/integration/test_operations.py judges what each route answers."""
    made: list[smoke.Probe] = []
    monkeypatch.setattr(smoke, "send", lambda url, token, call: made.append(call))
    monkeypatch.setattr(smoke, "assess", lambda call, answer: ("ok", ""))
    assert run() == run() == 0
    assert {call.name for call in made} >= ROUTES.keys()
    assert len({call.headers["Idempotency-Key"] for call in made if "Idempotency-Key" in call.headers}) == 2


@pytest.mark.parametrize("bad", [(500, {"title": "Failed"}), (200, ["text"]), (403, {"message": "Forbidden"})])
def test_each_broken_operation_fails_the_run(
    run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, bad: tuple[int, Any]
) -> None:
    monkeypatch.setattr(smoke, "send", lambda url, token, call: smoke.HttpAnswer(bad[0], {}, bad[1]))
    assert run(PAGE=PAGE) == 1
    reported = {line.split()[1] for line in capsys.readouterr().out.splitlines() if line.startswith("failed")}
    assert reported >= ROUTES.keys()


def test_a_call_carries_the_token_and_the_body_and_any_status_is_an_answer() -> None:
    asked: list[tuple[str, str | None, bytes]] = []

    def answer(method: str, target: str, headers: dict[str, str], body: bytes) -> Reply:
        asked.append((f"{method} {target}", headers.get("authorization"), body))
        return Reply(409, b'{"title": "Refused"}', {"Idempotency-Replayed": "true"})

    server = Server(answer)
    with server.running():
        found = smoke.send(server.origin, "t", smoke.Probe("x", "PUT", "/a", bool, True, {"amount": 1}))
    assert asked == [("PUT /a", "Bearer t", b'{"amount": 1}')]
    assert (found.status, found.body, found.headers["idempotency-replayed"]) == (409, {"title": "Refused"}, "true")


@pytest.mark.parametrize(("page_given", "state"), [(False, "skipped"), (True, "failed")])
def test_an_uncounted_page_is_a_failure_only_if_it_was_named(page_given: bool, state: str) -> None:
    todo = smoke.make_probes(DECLARED, PAGE, "key", page_given=page_given, scopes=smoke.scopes_of(TOKEN))
    [visit] = [call for call in todo if call.name == "visit"]
    assert smoke.assess(visit, smoke.HttpAnswer(403, {}, {"title": "Forbidden"}))[0] == state


def test_a_token_without_scopes_skips_the_counters() -> None:
    scoped = {route.id for route in ROUTES.values() if route.scope}
    todo = smoke.make_probes(DECLARED, "https://example.com/", "key", page_given=True)
    seen = {call.name: smoke.assess(call, smoke.HttpAnswer(403, {}, {}))[0] for call in todo}
    assert {name.removesuffix(" again") for name, state in seen.items() if state == "skipped"} == scoped
    assert smoke.scopes_of(token_of(sub="auth0|alice")) == set()


def test_an_api_that_lets_anybody_like_fails() -> None:
    todo = smoke.make_probes(DECLARED, "https://example.com/", "key", page_given=False)
    [open_door] = [call for call in todo if call.name == "no token"]
    assert smoke.assess(open_door, smoke.HttpAnswer(200, {}, {"liked": True}))[0] == "failed"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"URL": ""}, "URL is missing: make smoke URL=https://… TOKEN=…"),
        ({"TOKEN": ""}, "no token to sign in with: it is missing"),
        ({"TOKEN": "a.b.c"}, "not a JWT with a sub"),
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
    ("later", "status"),
    [
        ({"value": 1, "bots": 0, "as_of": 2**40}, 0),
        ({"value": 0, "bots": 0, "as_of": 2**40}, 1),
        ({"value": 1, "bots": 0, "as_of": 1}, 1),
    ],
)
def test_it_waits_until_a_visit_is_rolled_up(monkeypatch: pytest.MonkeyPatch, later: Any, status: int) -> None:
    """The answer changes after the first look."""
    looks: list[int] = []
    clock = SimpleNamespace(time=time.time, monotonic=lambda: len(looks), sleep=looks.append)
    monkeypatch.setattr(smoke, "time", clock)
    first = {"value": 1, "bots": 0, "as_of": None}
    monkeypatch.setattr(smoke, "send", lambda *_: smoke.HttpAnswer(200, {}, later if looks else first))
    assert smoke.attempt_fails("https://api", "", smoke.rolled_up_probe(PAGE), 3) == status
    assert len(looks) == (3 if status else 1)
