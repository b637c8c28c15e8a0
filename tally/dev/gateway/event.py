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

from ..base.account import ACCOUNT
from ..stack.template import Route

_TEXT_TYPES = ("application/json", "application/javascript", "application/xml")
_API_ID = "local"


class AnswerError(Exception):
    """The function's answer has another format: API Gateway's 500."""


@dataclass(frozen=True)
class HttpRequest:
    """An HTTP request."""

    method: str
    path: str
    """Decoded, without the query."""
    query: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    source_ip: str
    protocol: str
    request_id: str
    port: int


@dataclass(frozen=True)
class Response:
    """An HTTP response to send."""

    status: int
    body: bytes
    headers: tuple[tuple[str, str], ...] = field(default=())


def event(
    request: HttpRequest, route: Route, path_parameters: Mapping[str, str], authorizer: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The event for the function of `route`."""
    headers = joined((name.lower(), value) for name, value in request.headers)
    cookies = [cookie.strip() for cookie in headers.pop("cookie", "").split(";") if cookie.strip()]
    host = headers.setdefault("host", "localhost")
    headers |= {
        "x-forwarded-for": request.source_ip,
        "x-forwarded-port": str(request.port),
        "x-forwarded-proto": "http",
    }
    now_s = time.time()
    lambda_event: dict[str, Any] = {
        "version": "2.0",
        "routeKey": route.key,
        "rawPath": request.path,
        "rawQueryString": request.query,
        "headers": headers,
        "requestContext": {
            "accountId": ACCOUNT,
            "apiId": _API_ID,
            "domainName": host,
            "domainPrefix": host.partition(".")[0].partition(":")[0],
            "http": {
                "method": request.method,
                "path": request.path,
                "protocol": request.protocol,
                "sourceIp": request.source_ip,
                "userAgent": headers.get("user-agent", ""),
            },
            "requestId": request.request_id,
            "routeKey": route.key,
            "stage": "$default",
            "time": time.strftime("%d/%b/%Y:%H:%M:%S +0000", time.gmtime(now_s)),
            "timeEpoch": int(now_s * 1000),
        },
        "isBase64Encoded": False,
    }
    query = joined(parse_qsl(request.query, keep_blank_values=True))
    optional = {"cookies": cookies, "queryStringParameters": query, "pathParameters": dict(path_parameters)}
    lambda_event |= {name: value for name, value in optional.items() if value}
    if authorizer is not None:
        lambda_event["requestContext"]["authorizer"] = {"jwt": authorizer}
    if request.body:
        lambda_event["body"], lambda_event["isBase64Encoded"] = _body(request.body, headers)
    return lambda_event


def joined(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Names and values. A comma joins the values of one name."""
    by_name: dict[str, str] = {}
    for name, value in pairs:
        by_name[name] = f"{by_name[name]},{value}" if name in by_name else value
    return by_name


def _body(body: bytes, headers: Mapping[str, str]) -> tuple[str, bool]:
    """The body as text. If it is compressed or its type is not text: in base64, and True."""
    media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    if (media_type.startswith("text/") or media_type in _TEXT_TYPES) and "content-encoding" not in headers:
        try:
            return body.decode(), False
        except UnicodeDecodeError:
            pass  # its type says text, its bytes do not
    return base64.b64encode(body).decode(), True


def response(payload: bytes) -> Response:
    """The response in a function's answer. Raises AnswerError."""
    answer = json.loads(payload)
    if not isinstance(answer, dict) or "statusCode" not in answer:  # format 2.0 accepts any JSON as the body
        body = answer if isinstance(answer, str) else json.dumps(answer)
        return Response(200, body.encode(), (("content-type", "application/json"),))
    try:
        status = int(answer["statusCode"])
        headers = [(str(name).lower(), _header(value)) for name, value in (answer.get("headers") or {}).items()]
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


def _header(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
