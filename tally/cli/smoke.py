"""Calls every operation of a deployed stack once over HTTP, and reports whether it works.

    make smoke URL=https://… TOKEN=… [PAGE=https://example.com/] [WAIT=600]

The test checks what only AWS can prove: each role allows the calls of its function, and tokens pass the authorizer.
PAGE is a page whose visits the stack counts. With WAIT the test waits, at most so many seconds, until a read shows a
visit. That proves that the streams reach their consumers and that the sweep runs. The test can be repeated, because
each run has ids of its own. An operation whose sample cannot succeed declares its statuses as `smoke_statuses`.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping, Set
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

from tally.api.operation import Route
from tally.api.texts import Text
from tally.contract import samples, schemas
from tally.contract.declarations import Declarations
from tally.counter import AMOUNT_MAX
from tally.errors import ConfigurationError

from .folder import counters as counters_file

TIMEOUT_S = 30  # API Gateway always answers within this time
PAGE_DEFAULT = "https://example.com/smoke"
WAIT_S_MAX = 3600
RETRY_S = 2.0


class HttpAnswer(NamedTuple):
    """An answer. `body`: the JSON, or the text if the answer is not JSON."""

    status: int
    headers: Mapping[str, str]
    body: Any


class Probe(NamedTuple):
    """One request of the smoke test. `is_expected`: checks the answer. `signed_in`: the request has the token."""

    name: str
    method: str
    path: str
    is_expected: Callable[[HttpAnswer], Any]
    signed_in: bool = False
    body: Any = None
    headers: Mapping[str, str] = {}
    skip_reason: Callable[[HttpAnswer], str] = lambda _: ""
    """Returns why an unexpected answer is not a failure; empty if it is a failure."""


def make_probes(
    declared: Declarations, page: str, key: str, *, page_given: bool, scopes: Set[str] = frozenset()
) -> list[Probe]:
    """Returns the probes of all routes, a parent before its child. `key`: an idempotency key that no run has used.
    `page_given`: the user names the page. `scopes`: of the token."""
    probes: list[Probe] = []
    for route in sorted(declared.routes, key=_turn):
        probes += _probes_of_route(declared, route, page, key, page_given, scopes)
    signed_in = next(probe for probe in probes if probe.signed_in and probe.method == "GET")
    probes.append(Probe("no token", "GET", signed_in.path, lambda answer: answer.status == 401))
    return probes


def _turn(route: Route) -> int:
    """Returns the turn of a route: a post before its likes, a put before a read, removals last."""
    if route.operation.name == "put_post":
        return 0
    turns_of_removals = {
        "release_hold": 3, "delete_limit": 3, "delete_mine": 3, "delete_child": 3, "delete_post": 5, "remove_parent": 4,
    }  # fmt: skip
    return turns_of_removals.get(route.operation.name, 1 if route.operation.writes else 2)


def _probes_of_route(
    declared: Declarations, route: Route, page: str, key: str, page_given: bool, scopes: Set[str]
) -> Iterator[Probe]:
    """Yields the probes of one route, from the sample request of the route and the ids of the smoke test."""
    operation, counters = route.operation, declared.counters
    values: dict[str, Any] = {"id": "smoke", "idempotency_key": key, "url": page}
    values["version"] = '"999999999"'  # an ETag that no item has
    values |= {"amount": AMOUNT_MAX} if operation.name == "hold" else {}  # more than most limits allow: 409
    if "{counter}" in route.path:
        values["counter"] = route.served_counters(counters)[0].name
    fields = samples.field_values(route, counters, **values)
    counter = counters.get(fields.get("counter", ""))
    if operation.module == "posts" or (counter and counter.parent_required):
        fields["id"] = f"smoke-{key}"  # each run puts and removes a parent of its own
    path, headers, body = samples.http_request(route, fields)
    members = _required_members(operation.answer)

    def is_expected(answer: HttpAnswer) -> bool:
        if answer.status in route.statuses:
            return members <= answer.body.keys() if members else isinstance(answer.body, str) and answer.body != ""
        return answer.status in operation.smoke_statuses and "title" in answer.body  # an error of Tally has a title

    def skip_reason(answer: HttpAnswer) -> str:
        if answer.status == 403 and route.scope and route.scope not in scopes:
            return f"the token has no scope {route.scope}"
        if answer.status == 403 and "url" in fields and not page_given:
            return f"this stack does not count pages of {urlsplit(page).hostname}; PAGE=… names one that it counts"
        return ""

    probe = Probe(route.id, route.method, path, is_expected, route.needs_caller, body or None, headers, skip_reason)
    yield probe
    if operation.name in ("increment", "visit"):
        is_replay: Callable[[HttpAnswer], bool] = lambda answer: answer.headers.get("idempotency-replayed") == "true"  # noqa: E731
        yield probe._replace(name=f"{route.id} again", is_expected=is_replay)


def _required_members(answer: Any) -> Set[str]:
    """Returns the members that the API document requires in each answer; empty for a text."""
    if answer is Text:
        return frozenset()
    named: dict[str, Any] = {}
    schemas.schema(answer, named)
    return frozenset(named[answer.__name__]["required"])


def send(url: str, token: str, probe: Probe) -> HttpAnswer:
    """Sends the request of a probe. If there is no answer, raises OSError or HTTPException."""
    headers = {"Accept": "application/json", "User-Agent": "tally-smoke", **probe.headers}
    data = None
    if probe.body is not None:
        data, headers["Content-Type"] = json.dumps(probe.body).encode(), "application/json"
    if probe.signed_in:
        headers["Authorization"] = f"Bearer {token}"
    request = urllib.request.Request(url + probe.path, data=data, headers=headers, method=probe.method)
    try:
        answer = urllib.request.urlopen(request, timeout=TIMEOUT_S)
    except urllib.error.HTTPError as error:
        answer = error
    with answer:
        text = answer.read().decode("utf-8", "replace")
    try:
        body = json.loads(text)
    except ValueError:
        body = text
    return HttpAnswer(answer.status, {name.lower(): value for name, value in answer.headers.items()}, body)


def assess(probe: Probe, answer: HttpAnswer) -> tuple[str, str]:
    """Returns `ok`, `skipped` or `failed`, and why."""
    try:
        if probe.is_expected(answer):
            return "ok", ""
    except (AttributeError, KeyError, TypeError):
        pass  # the body is of another type than the check expects
    if reason := probe.skip_reason(answer):
        return "skipped", reason
    return "failed", f"{answer.status} {json.dumps(answer.body)[:300]}"


def attempt_fails(url: str, token: str, probe: Probe, wait_s: float = 0) -> bool:
    """Sends the request until the answer is right or `wait_s` is over. Prints a line, and returns whether it failed."""
    began_s = time.monotonic()
    while True:
        try:
            result, note = assess(probe, send(url, token, probe))
        except (OSError, http.client.HTTPException) as error:  # no answer, or no answer in HTTP
            result, note = "failed", str(error)
        took_s = time.monotonic() - began_s
        if result != "failed" or took_s >= wait_s:
            print(f"{result:8}{probe.name:16}{took_s * 1000:6.0f} ms  {note}".rstrip(), flush=True)
            return result == "failed"
        time.sleep(RETRY_S)


def rolled_up_probe(page: str) -> Probe:
    """Returns a probe that succeeds when a read has every visit up to now: the consumers and the sweep have run."""
    began_s = time.time()

    def is_expected(answer: HttpAnswer) -> bool:
        counted = answer.body["value"] + answer.body["bots"]
        return answer.status == 200 and (answer.body["as_of"] or 0) >= began_s and counted > 0

    return Probe("rolled up", "GET", f"/visits?url={quote(page, safe='')}", is_expected)


def scopes_of(token: str) -> set[str]:
    """Returns the scopes of a JWT with a `sub`, without verification. Raises ValueError."""
    try:
        payload = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        return set(str(claims.get("scope", "")).split() if claims["sub"] else "")
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        raise ValueError("it is not a JWT with a sub" if token else "it is missing") from None


def _environment_problem(url: str, token: str, wait: str) -> str:
    """Returns the first fault of the environment; empty if there is no fault."""
    if urlsplit(url).scheme not in {"http", "https"}:
        wrong = f"{url!r} is not a URL" if url else "URL is missing"
        return f"{wrong}: make smoke URL=https://… TOKEN=…, where URL is the stack's output ApiUrl"
    if not (wait.isascii() and wait.isdigit() and int(wait) <= WAIT_S_MAX):
        return f"WAIT: give seconds from 0 to {WAIT_S_MAX}"
    try:
        scopes_of(token)
    except ValueError as error:
        return f"no token to sign in with: {error}; make smoke URL=… TOKEN=…"
    return ""


def main() -> int:
    """Returns 0 if every operation works, 1 if an operation fails, 2 for a wrong environment."""
    url, token, page, wait = (os.environ.get(name, "") for name in ("URL", "TOKEN", "PAGE", "WAIT"))
    if wrong := _environment_problem(url, token, wait or "0"):
        print(f"tally: {wrong}", file=sys.stderr)
        return 2
    try:
        declared = Declarations.load(counters_file())
    except ConfigurationError as error:
        print(f"tally: {error}", file=sys.stderr)
        return 2
    url = url.rstrip("/")
    key, scopes = str(uuid.uuid4()), scopes_of(token)
    probes = make_probes(declared, page or PAGE_DEFAULT, key, page_given=bool(page), scopes=scopes)
    failed = sum(attempt_fails(url, token, probe) for probe in probes)
    print(f"{failed} of {len(probes)} calls failed" if failed else "every operation works")
    if not failed and int(wait or 0) and "visits" in declared.counters:
        failed = attempt_fails(url, "", rolled_up_probe(page or PAGE_DEFAULT), int(wait))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
