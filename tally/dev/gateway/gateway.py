"""Serves the HTTP API with the declared routes, authorizers, throttles and CORS, as API Gateway does.

As at API Gateway, the answers of the gateway itself have the shape `{"message": …}`.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import IO, Any

from aiohttp import web
from multidict import CIMultiDict

from ..base.words import Say
from ..functions.worker import PAYLOAD_BYTES_MAX
from ..functions.workers import ThrottledError, Workers
from ..stack.template import Template
from . import cors, event
from .event import Response
from .routes import Bucket, Match, Routes, decoded
from .tokens import Issuer, TokenRefusedError, claim_text

BODY_BYTES_MAX = 10 * 1024 * 1024  # API Gateway's quota, as the next two constants
HEADER_BYTES_MAX = 10_240
INTEGRATION_S_MAX = 30.0
_ACCESS_LOG_FORMAT = '{"requestId": "$context.requestId", "route": "$context.routeKey", "status": "$context.status"}'
_LOG_VARIABLE = re.compile(r"\$context\.([A-Za-z.]+)")
_WHOLE_URL = re.compile(r"^https?://[^/?]*")  # RFC 9112, section 3.2.2: clients of proxies send a whole URL
_GATEWAY_HEADERS = {"content-length", "transfer-encoding", "connection", "date", "server"}  # the gateway sets these


class GatewayError(Exception):
    """API Gateway itself answers: `{"message": …}`. `reason`: for the access log, as `$context.authorizer.error`."""

    def __init__(self, status: int, message: str, reason: str = "", headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.reason = status, message, reason
        self.headers = dict(headers or {})


@dataclass
class LogEntry:
    """The values of one request for the access log, by their names in API Gateway's `$context`, and `function`."""

    started_s: float = field(default_factory=time.monotonic)
    values: dict[str, str] = field(default_factory=dict)

    def line(self, log_format: str) -> str:
        """Returns the line, with `-` for an unknown value."""
        self.values["responseLatency"] = str(round((time.monotonic() - self.started_s) * 1000))
        return _LOG_VARIABLE.sub(lambda match: self._value(match[1]), log_format) + "\n"

    def _value(self, name: str) -> str:
        """Returns the text of a variable: `error.messageString` with quotes. Log formats quote the other variables."""
        if name == "error.messageString" and "error.message" in self.values:
            return json.dumps(self.values["error.message"])
        return json.dumps(self.values.get(name, "-"))[1:-1]


class Gateway:
    """The HTTP API in front of the workers. Prints a line by `say` for each answer with a status of 500 or more."""

    def __init__(self, template: Template, workers: Workers, issuer: Issuer, access_log: IO[str], say: Say) -> None:
        self._workers, self._issuer, self._say = workers, issuer, say
        self._log, self._log_format = access_log, template.access_log_format or _ACCESS_LOG_FORMAT
        self.serve(template)

    def serve(self, template: Template) -> None:
        """Serve the routes of this template from now on."""
        self.template = template
        self._cors = template.cors
        self._routes = Routes(template.routes)
        self._buckets = {route.key: Bucket(route.throttle) for route in template.routes if route.throttle}

    async def handle(self, request: web.Request) -> web.Response:
        entry = LogEntry()
        request_id = base64.b64encode(os.urandom(11)).decode()
        headers = event.joined((name.lower(), value) for name, value in request.headers.items())
        try:
            response = await self._answer(request, headers, request_id, entry)
        except GatewayError as error:
            entry.values |= {"error.message": error.message, "authorizer.error": error.reason or "-"}
            body = json.dumps({"message": error.message}, separators=(",", ":")).encode()
            response = Response(error.status, body, (("content-type", "application/json"), *error.headers.items()))
        if self._cors and request.method != "OPTIONS":  # as API Gateway, replaces the function's CORS headers
            replaced = [(name, value) for name, value in response.headers if not name.startswith(cors.PREFIX)]
            replaced += cors.response_headers(self._cors, headers).items()
            response = Response(response.status, response.body, tuple(replaced))
        if response.status >= 500:
            reason = entry.values.get("integrationErrorMessage", "the function's own answer")
            log_hint = f"request {request_id}, log {entry.values.get('function', 'access')}.log"
            self._say(f"{response.status} for {entry.values.get('routeKey', 'no route')}: {reason} ({log_hint})")
        entry.values |= {
            "requestId": request_id,
            "requestTime": time.strftime("%d/%b/%Y:%H:%M:%S +0000", time.gmtime()),
            "identity.sourceIp": request.remote or "",
            "identity.userAgent": request.headers.get("user-agent", "-"),
            "httpMethod": request.method,
            "path": request.path,
            "status": str(response.status),
            "responseLength": str(len(response.body)),
        }
        self._log.write(entry.line(self._log_format))
        sent = CIMultiDict((name, value) for name, value in response.headers if name not in _GATEWAY_HEADERS)
        sent["apigw-requestid"] = request_id
        return web.Response(status=response.status, body=response.body, headers=sent)

    async def _answer(
        self, request: web.Request, headers: Mapping[str, str], request_id: str, entry: LogEntry
    ) -> Response:
        raw_path, _, query = _WHOLE_URL.sub("", request.raw_path).partition("?")
        line_bytes = len(request.method) + len(request.raw_path)
        if line_bytes + sum(len(name) + len(value) for name, value in request.raw_headers) > HEADER_BYTES_MAX:
            raise GatewayError(431, "Request Header Fields Too Large")
        try:
            path = decoded(raw_path)
        except ValueError:
            raise GatewayError(400, "Bad Request") from None
        match = self._routes.match(request.method, path)
        if match is None and self._cors and request.method == "OPTIONS":
            return Response(204, b"", tuple(cors.preflight(self._cors, headers).items()))
        if match is None:
            raise GatewayError(404, "Not Found")
        entry.values["routeKey"] = match.route.key
        bucket = self._buckets.get(match.route.key)
        if bucket and not bucket.take():
            raise GatewayError(429, "Too Many Requests")
        authorizer = self._authorize(match, headers.get("authorization", ""))
        try:
            body = await request.read()
        except web.HTTPRequestEntityTooLarge:  # the application's client_max_size is BODY_BYTES_MAX
            raise GatewayError(413, "Request Entity Too Large") from None
        api_event = event.event(request, path, query, body, match, authorizer, request_id)
        return await self._invoke_function(match, api_event, entry)

    def _authorize(self, match: Match, header: str) -> dict[str, Any] | None:
        """Returns the caller's part of the event; None if the route takes no token. Raises GatewayError (401, 403)."""
        route = match.route
        if not route.signed_in:
            return None
        if not header:
            raise GatewayError(401, "Unauthorized", "there is no token", {"www-authenticate": "Bearer"})
        scope = route.scope or ""
        try:
            claims = self._issuer.verify(header)
        except TokenRefusedError as error:
            description = str(error).replace('"', "'")
            challenge = f'Bearer scope="{scope}" error="invalid_token" error_description="{description}"'
            raise GatewayError(401, "Unauthorized", str(error), {"www-authenticate": challenge}) from None
        if route.scope and route.scope not in str(claims.get("scope", "")).split():
            challenge = f'Bearer scope="{scope}" error="insufficient_scope"'
            raise GatewayError(403, "Forbidden", "none of the scopes", {"www-authenticate": challenge})
        texts = {name: claim_text(value) for name, value in claims.items()}
        return {"claims": texts, "scopes": [route.scope] if route.scope else None}

    async def _invoke_function(self, match: Match, api_event: Mapping[str, Any], entry: LogEntry) -> Response:
        function = entry.values["function"] = match.route.function
        payload = json.dumps(api_event).encode()
        if len(payload) > PAYLOAD_BYTES_MAX:
            raise GatewayError(413, "Request Entity Too Large")
        started_s = time.monotonic()
        invocation = asyncio.ensure_future(self._workers.invoke(function, payload))
        try:
            # Shielded: as in Lambda, the function continues when the gateway stops waiting.
            outcome = await asyncio.wait_for(asyncio.shield(invocation), INTEGRATION_S_MAX)
        except (ThrottledError, TimeoutError) as error:
            entry.values["integrationErrorMessage"] = str(error) or f"no answer within {INTEGRATION_S_MAX:g} s"
            raise GatewayError(503, "Service Unavailable") from None
        finally:
            entry.values["integrationLatency"] = str(round((time.monotonic() - started_s) * 1000))
        reason = outcome.reason if outcome.failed else ""
        if not outcome.failed:
            try:
                return event.response(outcome.payload)
            except (event.AnswerError, ValueError) as error:
                reason = str(error)
        entry.values["integrationErrorMessage"] = reason
        raise GatewayError(500, "Internal Server Error")
