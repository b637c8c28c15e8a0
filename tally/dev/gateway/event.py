"""API Gateway's payload format 2.0: an HTTP request becomes an event, a function's answer becomes a response.

Source: "Create AWS Lambda proxy integrations for HTTP APIs in API Gateway", AWS's developer guide.
"""

from __future__ import annotations

import base64
import binascii
import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

from aiohttp import web

from ..base.account import ACCOUNT
from .routes import Match

_TEXT_TYPES = ("application/json", "application/javascript", "application/xml")
_API_ID = "local"
Authorizer = Mapping[str, Any] | None
"""The caller's claims and scopes; None: the route takes no token."""


class AnswerError(Exception):
    """The function's answer is not of format 2.0, so API Gateway answers 500."""


@dataclass(frozen=True)
class Response:
    """An HTTP response to send."""

    status: int
    body: bytes
    headers: tuple[tuple[str, str], ...] = field(default=())


def event(
    request: web.Request, path: str, query: str, body: bytes, match: Match, authorizer: Authorizer, request_id: str
) -> dict[str, Any]:
    """Returns the event for the function of a route. `path`: decoded, without the query."""
    headers = joined((name.lower(), value) for name, value in request.headers.items())
    cookies = [cookie.strip() for cookie in headers.pop("cookie", "").split(";") if cookie.strip()]
    host, source_ip = headers.setdefault("host", "localhost"), request.remote or ""
    address = request.transport.get_extra_info("sockname") if request.transport else None
    headers |= {"x-forwarded-for": source_ip, "x-forwarded-port": str(address[1] if address else 0)}
    headers["x-forwarded-proto"] = "http"
    http = {"method": request.method, "path": path, "sourceIp": source_ip, "userAgent": headers.get("user-agent", "")}
    http["protocol"] = f"HTTP/{request.version.major}.{request.version.minor}"
    now_s = time.time()
    lambda_event: dict[str, Any] = {
        "version": "2.0",
        "routeKey": match.route.key,
        "rawPath": path,
        "rawQueryString": query,
        "headers": headers,
        "requestContext": {
            "accountId": ACCOUNT,
            "apiId": _API_ID,
            "domainName": host,
            "domainPrefix": host.partition(".")[0].partition(":")[0],
            "http": http,
            "requestId": request_id,
            "routeKey": match.route.key,
            "stage": "$default",
            "time": time.strftime("%d/%b/%Y:%H:%M:%S +0000", time.gmtime(now_s)),
            "timeEpoch": int(now_s * 1000),
            **({} if authorizer is None else {"authorizer": {"jwt": authorizer}}),
        },
        "isBase64Encoded": False,
    }
    parameters = joined(parse_qsl(query, keep_blank_values=True))
    optional = {"cookies": cookies, "queryStringParameters": parameters, "pathParameters": dict(match.parameters)}
    lambda_event |= {name: value for name, value in optional.items() if value}
    if body:
        lambda_event["body"], lambda_event["isBase64Encoded"] = _body(body, headers)
    return lambda_event


def joined(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Returns the value of each name. A comma joins the values of one name."""
    by_name: dict[str, str] = {}
    for name, value in pairs:
        by_name[name] = f"{by_name[name]},{value}" if name in by_name else value
    return by_name


def _body(body: bytes, headers: Mapping[str, str]) -> tuple[str, bool]:
    """Returns the body, and whether it is in base64: a compressed body is, and a body that is not text."""
    media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    if (media_type.startswith("text/") or media_type in _TEXT_TYPES) and "content-encoding" not in headers:
        try:
            return body.decode(), False
        except UnicodeDecodeError:
            pass  # the bytes are not the text that the type promises
    return base64.b64encode(body).decode(), True


def response(payload: bytes) -> Response:
    """Returns the response in a function's answer. Raises AnswerError, or ValueError if the answer is not JSON."""
    answer = json.loads(payload)
    if not isinstance(answer, dict) or "statusCode" not in answer:  # format 2.0 accepts any JSON as the body
        body = answer if isinstance(answer, str) else json.dumps(answer)
        return Response(200, body.encode(), (("content-type", "application/json"),))
    try:
        status = int(answer["statusCode"])
        named = (answer.get("headers") or {}).items()
        headers = [(str(name).lower(), one if isinstance(one, str) else json.dumps(one)) for name, one in named]
        headers += [("set-cookie", str(cookie)) for cookie in answer.get("cookies") or []]
        body = answer.get("body") or ""
        raw = base64.b64decode(body, validate=True) if answer.get("isBase64Encoded") else str(body).encode()
    except (ValueError, TypeError, AttributeError, binascii.Error) as error:
        raise AnswerError(f"the function's answer is malformed: {error}") from None
    if not 100 <= status <= 599:
        raise AnswerError(f"the function's answer has the status {status}")
    if not any(name == "content-type" for name, _ in headers):
        headers.append(("content-type", "text/plain;charset=utf-8"))
    return Response(status, raw, tuple(headers))
