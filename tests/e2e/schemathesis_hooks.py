"""Hooks for schemathesis. They make valid requests obey rules that join several fields or count bytes.

An OpenAPI schema cannot state such rules. The hooks leave invalid requests unchanged. schemathesis.toml names this
module.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import time
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import schemathesis
from schemathesis import Case, HookContext, Response
from schemathesis.core.failures import Failure
from schemathesis.generation.meta import TestPhase
from schemathesis.openapi.checks import IgnoredAuth, UnsupportedMethodResponse, UseAfterFree

import counters
from tally import fields
from tally.api.kinds import KEY_EXAMPLE, PAGE_EXAMPLE
from tally.api.operation import Route
from tally.contract.declarations import OPERATIONS
from tally.counter import Counter
from tally.counting import periods
from tally.errors import InvalidInputError
from tally.series import read, top
from tests.e2e.schemathesis_run import COUNTED_KEY, send

VERSION_EXAMPLE = '"7"'
UNWRITTEN_VERSION = '"0"'  # the version of a tally that nobody has written
STOCKED = "7c20"  # the id for which schemathesis_run.py makes a large stock
TTL_S = 3600  # how long a hold lasts
HELD_AMOUNT_MAX = 1000  # far less than the stock, so that each commit of a hold fits
POSTED = "a91f"  # the id of a post that schemathesis_run.py makes
ZONE = "Europe/Berlin"
GATEWAY_MESSAGES = {400: "Bad Request", 429: "Too Many Requests"}
"""API Gateway's own messages. 400: the path has a broken encoding. 429: the call is throttled."""
READS_OF_NOTHING = {
    "get_limit",  # the declared limit, of an id without an override
    "get_child", "get_mine", "get_anonymous",  # {"present": false}
    "get_counter", "get_counter_badge",  # 0
    "list_children",  # an empty list
}  # fmt: skip
"""The reads that answer 200 if nothing is stored, also after a DELETE."""
_ROUTES = {route.key: route for operation in OPERATIONS for route in operation.routes(counters.COUNTERS)}
_NUMBERS = itertools.count()  # for new keys, new ids, and the hours of top lists
_POSTS: list[str] = []  # the encoded ids of generated posts
_RUN = os.urandom(4).hex()  # each run on the same data has its own keys


def _route(case: Case) -> Route:
    return _ROUTES[case.operation.label]


def _name(case: Case) -> str:
    """Returns the name of the operation."""
    return _route(case).operation.name


@schemathesis.hook
def map_case(context: HookContext, case: Case) -> Case:
    """Changes a valid request so that the request obeys the rules."""
    if not _is_positive(case):
        return case
    body = {name: _accepted(value) for name, value in case.body.items()} if isinstance(case.body, dict) else {}
    if case.media_type == "text/plain":  # Tally wants JSON in the text, but schemathesis makes any text
        body = {"url": f"https://text.example/{quote(str(case.body), safe='')[:600]}", "key": KEY_EXAMPLE}
        if _name(case) != "visit":
            del body["url"]
    if "url" in body:
        body["url"] = _page_url(str(body["url"]))
    _fit_query(case)
    _fit_range(case)
    if "counter" in (case.path_parameters or {}):
        _fit_counter(case, body)
    elif _name(case) == "increment" and "amount" in body:  # a route of one counter, such as POST /videos/{id}/plays
        body["amount"] = counters.COUNTERS[_route(case).fixed_fields["counter"]].delta
    if _name(case) == "change" and body.get("visible") == "soon":
        for change in body["changes"]:
            change["counter"] = "usage"  # a counter with limits needs `visible` "now"
    if "visitor" in body:
        body["visitor"] = _cut(str(body["visitor"]), fields.USER_BYTES_MAX)
    if _name(case) in ("increment", "visit") and "key" not in body:  # the key is in the header or in the body
        case.headers.setdefault("Idempotency-Key", KEY_EXAMPLE)
    _set_new_key(case, body)
    if body:
        case.body = json.dumps(body) if case.media_type == "text/plain" else body
    return case


def _accepted(value: object) -> object:
    """Returns a value that Tally accepts: 7 for 7.0, which JSON Schema allows, and a text that is not too long."""
    if isinstance(value, list):
        return [_accepted(item) for item in value]
    if isinstance(value, dict):
        return {name: _accepted(member) for name, member in value.items()}
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return _cut(value, fields.TEXT_BYTES_MAX) if isinstance(value, str) else value


def _cut(text: str, bytes_max: int) -> str:
    return text.encode()[:bytes_max].decode(errors="ignore")


def _texts(value: object) -> list[str]:
    """Returns the values of a query parameter, which may be repeated."""
    return [str(entry) for entry in value] if isinstance(value, list) else [str(value)]


def _page_url(raw: str) -> str:
    """Returns the URL of a page. The URL has a valid host, and is short enough after Tally has normalised the URL."""
    scheme, _, rest = raw.partition("://")
    host = "".join(character for character in rest if character.isascii() and character.isalnum())[:60]
    if raw == PAGE_EXAMPLE or scheme.lower() not in ("http", "https"):
        return PAGE_EXAMPLE
    return f"{scheme}://{host or 'a'}.example/{quote(rest, safe='')[:600]}"


def _fit_query(case: Case) -> None:
    """Makes the query's URLs, cursors (encoded users) and ids acceptable for the operation and the counter."""
    query = dict(case.query)
    if "url" in query:
        query["url"] = _page_url(str(query["url"]))
    if "cursor" in query:
        query["cursor"] = fields.encode_cursor(quote(str(query["cursor"]), safe="")[: fields.USER_BYTES_MAX])
    if "target" in query:
        of_pages = query.get("of") == "visit"
        # Tally accepts ids of 256 characters.
        targets = [_page_url(one) if of_pages else _cut(one, 200) for one in _texts(query["target"])]
        # Tally accepts one target for all keys, or one target for each key.
        query["target"] = targets if len(targets) == len(_texts(query.get("key"))) else targets[:1]
    if "name" in query:
        query["name"] = _cut(str(query["name"]), fields.USER_BYTES_MAX // 12)  # an encoded character has up to 12 bytes
    if _name(case) == "get_details":
        text = str(query["id"])
        of_pages = counters.COUNTERS[query["counter"]].pages
        query["id"] = _page_url(text) if of_pages else re.sub(r"[^A-Za-z0-9]", "-", text)[: fields.ID_CHARACTERS_MAX]
    if query != case.query:
        case.query = query


def _fit_range(case: Case) -> None:
    """Makes a range of a series that is not empty and not too long, and a span of a top list as long as `by` says.
    The spans are hours since 1970, or their days or months."""
    query = dict(case.query)
    if "tz" in query:
        query["tz"] = ZONE
    for name in ("from", "to"):  # if the range is wrong, leave out `from`, and then `to`
        if _name(case) in ("get_series", "get_any_series") and not _is_range(query):
            query.pop(name, None)
    if "span" in query:
        span_format = top.SPAN_FORMATS[query.get("by", top.DAY)]
        query["span"] = datetime.fromtimestamp(next(_NUMBERS) * 3600, UTC).strftime(span_format)
    if query != case.query:
        case.query = query


def _is_range(query: dict[str, Any]) -> bool:
    try:
        from_s, to_s = (fields.epoch_s(query[name], name) if name in query else None for name in ("from", "to"))
        read.range_of(query.get("by", read.HOUR), from_s, to_s, query.get("tz"), time.time())
    except InvalidInputError:
        return False
    return True


def _fit_counter(case: Case, body: dict[str, Any]) -> None:
    """Makes counter, id, amount, limit and version agree.

    A counter with a `delta` accepts no other amount. A counter without a `delta` needs an amount. A link may name a
    counter that the operation does not serve. If no link gave the version, the request writes a new tally, whose
    version is known. A hold needs a stock that is not empty. A limit must not be below 0.
    """
    served = {counter.name for counter in _route(case).served_counters(counters.COUNTERS)}
    path = {name: unquote(value) for name, value in case.path_parameters.items()}  # schemathesis encodes them
    is_fuzzed = case.meta is not None and case.meta.phase.name is TestPhase.FUZZING
    if is_fuzzed and _name(case) == "hold":
        path["id"] = STOCKED
    if "hold" in path and "amount" in body:
        body["amount"] %= HELD_AMOUNT_MAX
    if _name(case) == "change_hold":  # a positive amount, or a time that ends within seven days of the placement
        body["ttl_s"] = min(body.get("ttl_s", TTL_S), fields.HOLD_TTL_MAX_S - TTL_S)
        body |= {"amount": body["amount"] or 1} if "amount" in body else {}
    if _name(case) == "put_limit":
        body["limit"] = abs(body["limit"])  # Tally refuses a ceiling below 0
    if path["counter"] not in served:
        path["counter"] = min(served)  # any counter, but the same in each run
    counter = counters.COUNTERS[path["counter"]]
    if _name(case) == "increment" and counter.delta is None:
        body.setdefault("amount", 1)
        case.media_type = "application/json"
    elif _name(case) == "increment" and "amount" in body:
        body["amount"] = counter.delta
    if "If-Match" in case.headers and (is_fuzzed or case.headers["If-Match"] == VERSION_EXAMPLE):
        path["id"], case.headers["If-Match"] = f"{_RUN}-{next(_NUMBERS)}", UNWRITTEN_VERSION
    if any(unquote(case.path_parameters[name]) != value for name, value in path.items()):
        case.path_parameters = path  # assign only a change: schemathesis checks an assigned value again


def _place_hold() -> dict[str, str]:
    """Places a hold, and returns the parameters of its path."""
    url, token = os.environ["TALLY_URL"], os.environ["TALLY_TOKEN"]
    body = {"amount": 1, "ttl_s": TTL_S}
    hold = send(url, "POST", f"/counters/stock/{STOCKED}/holds", body, token, key=os.urandom(16).hex())
    return {name: hold[name] for name in ("counter", "id", "hold")}


def _set_new_key(case: Case, body: dict[str, Any]) -> None:
    """Replaces the key of the example by a new key. With the same key, all calls but the first are replays or get 422.

    A void names the key of a change that Tally has counted.
    """
    if "key" in body and "Idempotency-Key" in case.headers:  # Tally refuses two different keys
        case.headers.pop("Idempotency-Key")
    if _name(case) in ("void", "void_changes"):
        if body.get("key") == KEY_EXAMPLE:
            body["key"] = COUNTED_KEY
            body.pop("caller", None)  # the default is the caller of the request, who made the change
        return
    for members, name in ((case.headers, "Idempotency-Key"), (body, "key")):
        if members.get(name) == KEY_EXAMPLE:
            members[name] = f"{_RUN}-0000-4000-8000-{next(_NUMBERS):012d}"


@schemathesis.hook
def before_call(context: HookContext, case: Case, kwargs: dict[str, Any]) -> None:
    """Replaces values that a link or an example cannot know.

    A deletion deletes a generated post, because the examples of other operations need the post `POSTED`. A link may
    give a period to a counter without periods. Each request about a hold gets a new hold, because hold ids are random.
    The coverage phase tests ids of holds, so its requests keep the ids.
    """
    if "hold" in case.path_parameters and _is_positive(case) and case.meta.phase.name is not TestPhase.COVERAGE:
        case.path_parameters = _place_hold()
    if _name(case) == "delete_post" and unquote(case.path_parameters["id"]) == POSTED:
        has_post = bool(_POSTS) and _is_positive(case)
        case.path_parameters = {"id": _POSTS.pop() if has_post else f"{_RUN}-{next(_NUMBERS)}"}
    if _name(case) in ("get_counter", "get_details") and "period" in case.query:
        _fit_period(case)
    if _name(case) == "add_visitor" and _is_positive(case) and "at" in (body := dict(case.body)):
        case.body = {**body, "at": int(time.time()) - int(body["at"]) % 3600}  # within the last hour


def _fit_period(case: Case) -> None:
    """Asks for the current period of a counter, or for no period if the counter has no periods."""
    counter = _counter(case)
    if not _is_positive(case) or counter is None:
        return
    shown = periods.answer_members(periods.tally_id(counter, "x", time.time()))
    rest = {name: value for name, value in case.query.items() if name != "period"}
    case.query = {**rest, "period": shown["period"]} if "period" in shown else rest


def _is_positive(case: Case) -> bool:
    """Returns whether schemathesis made a request that is valid by the document."""
    return case.meta is not None and case.meta.generation.mode.is_positive


def _counter(case: Case) -> Counter | None:
    """Returns the declared counter that the path or the query names; None: neither names a declared counter."""
    named = {**(case.query or {}), **(case.path_parameters or {})}.get("counter")
    return counters.COUNTERS.get(unquote(str(named)))


@schemathesis.hook
def after_call(context: HookContext, case: Case, response: Response) -> None:
    """Remembers each new post, so that `before_call` can delete it."""
    if _name(case) == "put_post" and response.status_code == 201:
        _POSTS.append(quote(response.json()["id"], safe=""))


@schemathesis.hook
def filter_failure(context: HookContext, failure: Failure, case: Case, response: Response) -> bool:
    """Returns whether a failure counts. A failure that the document allows does not count.

    For a method without a route, API Gateway answers 404 and never 405. A public counter needs no token. The gateway
    gives its own answers before it reads the token. These answers are not problem documents.
    """
    gateway_message = GATEWAY_MESSAGES.get(response.status_code)
    if gateway_message and response.json() == {"message": gateway_message}:
        return False
    if "Invalid component: positive test case" in failure.message:  # schemathesis does not say what is invalid
        return False
    if isinstance(failure, UseAfterFree) and _name(case) in READS_OF_NOTHING:
        return False
    if "?" in unquote(urlsplit(str(response.request.url)).path):
        return False  # API Gateway cuts the path at "?", so another route answers
    if response.status_code == 200 and _route(case).operation.has_counter_in_path:
        counter = _counter(case)
        has_token = "Authorization" in (response.request.headers or {})
        if counter is not None and counter.public and (not has_token or isinstance(failure, IgnoredAuth)):
            return False
    has_route = not isinstance(failure, UnsupportedMethodResponse)
    return has_route or response.status_code != 404 or response.json() != {"message": "Not Found"}
