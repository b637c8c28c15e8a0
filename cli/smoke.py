"""Calls every operation of a deployed stack once over HTTP, and reports whether it works.

    make smoke URL=https://… TOKEN=… [PAGE=https://example.com/] [WAIT=600]

It checks what only AWS can prove: each role allows its function's calls, and tokens pass the authorizer; with WAIT,
also that streams reach their consumers and the sweep judges. It can run again and again: the calls are the samples of
the operations, with ids of their own, and a declaration says what it expects where that is no success.
"""

from __future__ import annotations

import argparse
import base64
import binascii
import http.client
import json
import os
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from email.message import Message
from typing import Any
from urllib.parse import quote, urlsplit

from api import samples, schemas
from api.operation import Route
from api.texts import Text
from counters import COUNTERS
from declarations import OPERATIONS

TIMEOUT_S = 30  # API Gateway answers within that, whatever the function does
ID = "smoke"
PAGE_DEFAULT = "https://example.com/smoke"
WAIT_S_MAX = 3600
LOOK_AGAIN_S = 2.0
WAYS = {"ok": 0, "skipped": 0, "failed": 1}


@dataclass(frozen=True)
class Answer:
    """An answer. `body` is the JSON, or the text if it is not JSON."""

    status: int
    headers: Mapping[str, str]
    body: Any


@dataclass(frozen=True)
class Call:
    """One request of the smoke test and the check of its answer."""

    name: str
    method: str
    path: str
    expected: Callable[[Answer], Any]
    signed_in: bool = False
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    skip: Callable[[Answer], str] = lambda _: ""
    """Why an unexpected answer is not a failure; empty if it is one."""


def calls(user: str, page: str, key: str, *, page_given: bool, scopes: Set[str] = frozenset()) -> list[Call]:
    """Every route once, in an order in which each finds what it needs; a change twice. `key`: new in each run."""
    post = f"{ID}-{key}"
    routes = [route for one in OPERATIONS for route in one.routes(COUNTERS)]
    found = [call for route in sorted(routes, key=_turn) for call in _calls(route, post, page, key, page_given, scopes)]
    found.append(Call("no token", "GET", "/mine?of=likes:smoke", lambda a: a.status == 401))
    return found


def _turn(route: Route) -> int:
    """A post comes before its likes, what is read after what is put, and what is removed at the end."""
    if route.operation.name == "put_post":
        return 0
    removes = {"release_hold": 3, "delete_mine": 3, "delete_child": 3, "delete_post": 5, "remove_parent": 4}
    return removes.get(route.operation.name, 1 if route.operation.writes else 2)


def _calls(route: Route, post: str, page: str, key: str, page_given: bool, scopes: Set[str]) -> Iterator[Call]:
    """The calls of one route: its sample with ids of the smoke test."""
    operation = route.operation
    named: dict[str, Any] = {"id": ID, "idempotency_key": key, "url": page, "version": '"999999999"'}
    named |= {"amount": 10**9} if operation.name == "hold" else {}
    if "{counter}" in route.path:  # a counter with a route of its own would be answered by that one
        own = {one.fixed["counter"] for one in operation.routes(COUNTERS) if one.fixed and not one.short}
        rest = [counter.name for counter in route.served(COUNTERS) if counter.name not in own]
        named |= {"counter": rest[0]} if rest else {}
    fields = samples.values(route, COUNTERS, **named)
    if operation.module == "posts" or fields.get("counter") == "likes":  # likes need a post
        fields["id"] = post
    path, headers, body = samples.request(route, fields)
    members = _members(operation.answer)

    def expected(answer: Answer) -> bool:
        if answer.status in route.statuses:
            return members <= answer.body.keys() if members else isinstance(answer.body, str) and answer.body != ""
        return answer.status in operation.smoke and "title" in answer.body

    def skip(answer: Answer) -> str:
        if answer.status == 403 and route.scope and route.scope not in scopes:
            return f"the token has no scope {route.scope}"
        if answer.status == 403 and "url" in fields and not page_given:
            return f"this stack does not count pages of {urlsplit(page).hostname}; --page names one that it counts"
        return ""

    made = Call(route.id, route.method, path, expected, route.needs_caller, body or None, headers, skip)
    yield made
    if operation.keyed and operation.increments:
        yield replace(
            made, name=f"{route.id} again", expected=lambda a: a.headers.get("idempotency-replayed") == "true"
        )


def _members(answer: Any) -> Set[str]:
    """What the document says that each answer has; nothing for a text."""
    if answer is Text:
        return frozenset()
    named: dict[str, Any] = {}
    schemas.schema(answer, named)
    return frozenset(named[answer.__name__]["required"])


def send(url: str, token: str, call: Call) -> Answer:
    """Make the call. Raises OSError or HTTPException if there is no answer."""
    headers = {"Accept": "application/json", "User-Agent": "tally-smoke", **call.headers}
    data = None
    if call.body is not None:
        data, headers["Content-Type"] = json.dumps(call.body).encode(), "application/json"
    if call.signed_in:
        headers["Authorization"] = f"Bearer {token}"
    request = urllib.request.Request(url + call.path, data=data, headers=headers, method=call.method)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
            return _answer(response.status, response.headers, response.read())
    except urllib.error.HTTPError as error:
        with error:
            return _answer(error.code, error.headers, error.read())


def _answer(status: int, headers: Message, raw: bytes) -> Answer:
    text = raw.decode("utf-8", "replace")
    try:
        body = json.loads(text)
    except ValueError:
        body = text
    return Answer(status, {name.lower(): value for name, value in headers.items()}, body)


def judge(call: Call, answer: Answer) -> tuple[str, str]:
    """`ok`, `skipped` or `failed`, with a note."""
    try:
        if call.expected(answer):
            return "ok", ""
    except (AttributeError, KeyError, TypeError):
        pass  # the body has another form
    if reason := call.skip(answer):
        return "skipped", reason
    return "failed", f"{answer.status} {json.dumps(answer.body)[:300]}"


def run(url: str, token: str, todo: Sequence[Call]) -> int:
    """Make the calls one after the other and print a line for each. Returns the number of failures."""
    failed = 0
    for call in todo:
        started_s = time.monotonic()
        way, note = attempt(url, token, call)
        took_ms = (time.monotonic() - started_s) * 1000
        print(f"{way:8}{call.name:16}{took_ms:6.0f} ms  {note}".rstrip(), flush=True)
        failed += WAYS[way]
    return failed


def attempt(url: str, token: str, call: Call) -> tuple[str, str]:
    """Make the call: `ok`, `skipped` or `failed`, with a note."""
    try:
        return judge(call, send(url, token, call))
    except (OSError, http.client.HTTPException) as error:  # no answer, or one that is not HTTP
        return "failed", str(error)


def wait_until_rolled_up(url: str, page: str, wait_s: int) -> int:
    """Wait until reads include every visit until now: consumers and sweep have done their part. 0, or 1 if not."""
    began_s, until_s = time.time(), time.monotonic() + wait_s

    def expected(answer: Answer) -> bool:
        counted = answer.body["value"] + answer.body["bots"]
        return answer.status == 200 and (answer.body["as_of"] or 0) >= began_s and counted > 0

    call = Call("rolled up", "GET", f"/visits?url={quote(page, safe='')}", expected)
    way, note = attempt(url, "", call)
    while way == "failed" and time.monotonic() < until_s:
        time.sleep(LOOK_AGAIN_S)
        way, note = attempt(url, "", call)
    print(f"{way:8}{call.name:16}{time.time() - began_s:6.0f} s   {note}".rstrip(), flush=True)
    return WAYS[way]


def claims_of(token: str) -> tuple[str, set[str]]:
    """The `sub` and the scopes of a JWT, without verification. Raises ValueError if it is not a JWT."""
    try:
        payload = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        return str(claims["sub"]), set(str(claims.get("scope", "")).split())
    except (IndexError, KeyError, TypeError, ValueError, binascii.Error):
        raise ValueError("it is not a JWT with a sub") from None


def _seconds(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > WAIT_S_MAX:
        raise argparse.ArgumentTypeError(f"give seconds from 0 to {WAIT_S_MAX}")
    return int(text)


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if every operation works, 1 if one failed, 2 without a URL or a token."""
    parser = argparse.ArgumentParser(prog="make smoke", description="Call every operation of a stack once.")
    parser.add_argument("--url", default=os.environ.get("URL", ""), help="the stack's ApiUrl (or URL)")
    parser.add_argument(
        "--token", default=os.environ.get("TOKEN", ""), help="a token that its authorizer takes (or TOKEN)"
    )
    parser.add_argument("--page", default=os.environ.get("PAGE", ""), help="a page whose visits it counts (or PAGE)")
    parser.add_argument(
        "--wait", type=_seconds, default=os.environ.get("WAIT", "0"), metavar="SECONDS",
        help="how long a visit may take to show: up to four minutes on a new stack (or WAIT; 0: do not wait)",
    )  # fmt: skip
    given = parser.parse_args(arguments)
    if urlsplit(given.url).scheme not in {"http", "https"}:
        wrong = f"{given.url!r} is no URL" if given.url else "URL is missing"
        parser.error(f"{wrong}: make smoke URL=https://… TOKEN=…, where URL is the stack's output ApiUrl")
    try:
        user, scopes = claims_of(given.token)
    except ValueError as error:
        wrong = str(error) if given.token else "it is missing"
        parser.error(f"no token to sign in with: {wrong}; make smoke URL=… TOKEN=…")
    todo = calls(user, given.page or PAGE_DEFAULT, str(uuid.uuid4()), page_given=bool(given.page), scopes=scopes)
    url = given.url.rstrip("/")
    failed = run(url, given.token, todo)
    print(f"{failed} of {len(todo)} calls failed" if failed else "every operation works")
    if given.wait and not failed:
        failed = wait_until_rolled_up(url, given.page or PAGE_DEFAULT, given.wait)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
