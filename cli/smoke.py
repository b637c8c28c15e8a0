"""Calls every operation of a deployed stack once over HTTP, and reports whether it works.

    make smoke URL=https://… TOKEN=… [PAGE=https://example.com/] [WAIT=600]

It checks what only AWS can prove: each role allows its function's calls, and tokens pass the authorizer; with WAIT,
also that streams reach their consumers and the sweep judges. It can run again and again: it counts on its own video and
page, and on a post of the token's user.
"""

from __future__ import annotations

import argparse
import base64
import binascii
import hashlib
import http.client
import json
import os
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from email.message import Message
from functools import partial
from typing import Any
from urllib.parse import quote, urlsplit

import operations
from tally.operation import Operation, Source

TIMEOUT_S = 30  # API Gateway answers within that, whatever the function does
VIDEO = "smoke"
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


def counter_calls(key: str, scopes: Set[str]) -> list[Call]:
    """The operations on counters. Some calls expect a refusal, so that they change nothing."""
    usage, stock = "/counters/usage/smoke", "/counters/stock/smoke"
    hold = f"{stock}/holds/1700000000-{'A' * 16}"  # well formed, and it does not exist
    once = {"Idempotency-Key": key}

    def unscoped(scope: str) -> Callable[[Answer], str]:
        hint = f"the token has no scope {scope}"
        return lambda a: hint if a.status == 403 and scope not in scopes else ""

    def expected(status: int, member: str) -> Callable[[Answer], Any]:
        return lambda a: a.status == status and member in a.body

    def call(name: str, method: str, path: str, status: int, member: str, **more: Any) -> Call:
        scope = "tally/read" if method == "GET" else "tally/write"
        return Call(name, method, path, expected(status, member), signed_in=True, skip=unscoped(scope), **more)

    member = "/counters/members/smoke/children/smoke"
    most = {"amount": 10**9, "ttl_s": 1}
    together = [{"counter": "usage", "id": "smoke", "amount": 1}, {"counter": "plays", "id": VIDEO}]
    return [
        call("increment", "POST", f"{usage}/increments", 200, "counted", body={"amount": 1}, headers=once),
        call("change", "POST", "/changes", 200, "counted", body={"changes": together}, headers=once),
        call("get_counter", "GET", usage, 200, "value"),
        call("get_any_tallies", "GET", "/tallies/any?of=stock:smoke", 200, "tallies"),
        call("set_counter", "PUT", stock, 412, "version", body={"value": 1}, headers={"If-Match": '"999999999"'}),
        call("hold", "POST", f"{stock}/holds", 409, "left", body=most, headers=once),
        call("put_child", "PUT", member, 200, "changed"),
        call("get_child", "GET", member, 200, "counted"),
        call("list_children", "GET", f"{member.rpartition('/')[0]}?limit=1", 200, "children"),
        call("delete_child", "DELETE", member, 200, "changed"),
        call("get_drift", "GET", "/drift?limit=1", 200, "drift"),
        call("get_status", "GET", "/status", 200, "parts"),
        call("get_details", "GET", "/details?counter=stock&id=smoke", 200, "shards"),
        call("get_series", "GET", f"{stock}/series?by=day", 200, "series"),
        call("get_total_series", "GET", "/series/stock?by=day", 200, "series"),
        call("get_counter_top", "GET", "/top/stock?limit=1", 200, "top"),
        call("commit_hold", "POST", f"{hold}/commit", 404, "title"),
        call("release_hold", "DELETE", hold, 404, "title"),
    ]


def calls(user: str, page: str, key: str, *, page_given: bool, scopes: Set[str] = frozenset()) -> list[Call]:
    """Every operation, in an order in which each finds what it needs. `key`: new in each run."""
    post, deleted = f"/posts/smoke-{hashlib.sha256(user.encode()).hexdigest()[:16]}", f"/posts/smoke-{key}"
    plays, visits = f"/videos/{VIDEO}/plays", f"/visits?url={quote(page, safe='')}"
    receipt = f"/receipts?operation=play&target={VIDEO}&key={key}"
    once = {"Idempotency-Key": key}
    text = {"body": "A post of the smoke test."}
    visit = {"url": page, "key": key}

    def unlisted(answer: Answer) -> str:
        hint = f"this stack does not count pages of {urlsplit(page).hostname}; --page names one that it counts"
        return hint if answer.status == 403 and not page_given else ""

    listed = [
        Call("health", "GET", "/health", lambda a: a.status == 200 and a.body["status"] == "ok"),
        Call("play", "POST", plays, lambda a: a.status == 200 and a.body["counted"] is True, headers=once),
        Call("play again", "POST", plays, lambda a: a.headers.get("idempotency-replayed") == "true", headers=once),
        Call("get_plays", "GET", plays, lambda a: a.status == 200 and a.body["play_count"] >= 1),
        Call("get_counter of anyone", "GET", f"/counters/plays/{VIDEO}", lambda a: a.body["value"] >= 1),
        Call(
            "put_post", "PUT", post, lambda a: a.status in {200, 201} and a.body["post_id"], signed_in=True, body=text
        ),
        Call("get_post", "GET", post, lambda a: a.status == 200 and a.body["body"] == text["body"]),
        Call("put_post again", "PUT", deleted, lambda a: a.status == 201, signed_in=True, body=text),
        Call("delete_post", "DELETE", deleted, lambda a: a.status == 200 and a.body["changed"], signed_in=True),
        Call("like", "PUT", f"{post}/like", lambda a: a.status == 200 and a.body["liked"] is True, signed_in=True),
        Call("get_like", "GET", f"{post}/like", lambda a: a.status == 200 and a.body["liked"] is True, signed_in=True),
        Call("my_likes", "GET", f"/my/likes?post={post.rpartition('/')[2]}", _likes_it, signed_in=True),
        Call("list_likes", "GET", f"{post}/likes?limit=1", lambda a: a.status == 200 and len(a.body["likes"]) == 1),
        Call("unlike", "DELETE", f"{post}/like", lambda a: a.status == 200 and a.body["changed"], signed_in=True),
        Call(
            "visit",
            "POST",
            "/visits",
            lambda a: a.status == 202 and a.body["counted"] is True,
            body=visit,
            skip=unlisted,
        ),
        Call("get_visits", "GET", visits, lambda a: a.status == 200 and a.body["visits"] >= 0),
        Call("get_badge", "GET", visits.replace("?", "/badge.svg?"), lambda a: a.status == 200 and "<svg" in a.body),
        Call("beacon", "GET", "/beacon.js", lambda a: a.status == 200 and "sendBeacon" in a.body),
        Call("get_console", "GET", "/console", lambda a: a.status == 200 and "/console/app.js" in a.body),
        Call("get_console_file", "GET", "/console/uPlot.esm.js", lambda a: a.status == 200 and "uPlot" in a.body),
        Call("get_console_config", "GET", "/console/config.json", lambda a: a.status == 200 and a.body["sign_in"]),
        Call("get_openapi", "GET", "/openapi.json", lambda a: a.status == 200 and a.body["openapi"]),
        Call("get_tallies", "GET", f"/tallies?of=plays:{VIDEO}&of=stock:smoke", _one_is_private),
        Call("get_counter_badge", "GET", f"/counters/plays/{VIDEO}/badge.svg", lambda a: "<svg" in a.body),
        *counter_calls(key, scopes),
        Call("get_receipt", "GET", receipt, lambda a: a.status == 200 and a.body["state"] == "counted"),
        Call(
            "get_own_receipt",
            "GET",
            receipt.replace("?", "/own?"),
            lambda a: a.status == 200 and a.body["state"] == "unknown",
            signed_in=True,
        ),
        Call("get_receipts", "GET", receipt.replace("?", "/many?"), _counted_it),
        Call("get_visits_series", "GET", visits.replace("?", "/series?"), lambda a: a.status == 200 and a.body["by"]),
        Call("get_top", "GET", "/top?counter=plays&limit=1", lambda a: a.status == 200 and a.body["by"]),
        Call("get_own_receipts", "GET", receipt.replace("?", "/own/many?"), _answered_it, signed_in=True),
        Call("no token", "PUT", f"{post}/like", lambda a: a.status == 401),
    ]
    values = {"video_id": VIDEO, "post_id": post.rpartition("/")[2], "counter": "usage", "id": "smoke"}
    return [*listed, *other_reads({call.name for call in listed}, values)]


def _likes_it(answer: Answer) -> bool:
    return answer.status == 200 and [like["liked"] for like in answer.body["likes"]] == [True]


def _counted_it(answer: Answer) -> bool:
    return answer.status == 200 and [one["state"] for one in answer.body["receipts"]] == ["counted"]


def _answered_it(answer: Answer) -> bool:
    return answer.status == 200 and [one["state"] for one in answer.body["receipts"]] == ["unknown"]


def _one_is_private(answer: Answer) -> bool:
    plays, stock = answer.body["tallies"]
    return answer.status == 200 and plays["value"] >= 1 and "value" not in stock


def other_reads(named: Set[str], values: Mapping[str, str]) -> list[Call]:
    """Every other GET whose required fields are all in its path and among `values`: it must succeed."""
    found = []
    for operation in operations.OPERATIONS:
        path = {field.wire: values.get(field.name, "") for field in operation.fields if field.source is Source.PATH}
        needs = {field.wire for field in operation.fields if field.required}
        if operation.name not in named and operation.method == "GET" and needs <= path.keys() and all(path.values()):
            succeeds = partial(_succeeds, operation)
            url = operation.path.format_map(path)
            found.append(Call(operation.name, "GET", url, succeeds, signed_in=operation.needs_caller))
    return found


def _succeeds(operation: Operation, answer: Answer) -> bool:
    return answer.status in operation.success and isinstance(answer.body, dict)


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
    except (KeyError, TypeError):
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
        counted = answer.body["visits"] + answer.body["bot_visits"]
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
