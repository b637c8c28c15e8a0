"""Lambda's Invoke API, so that `aws lambda invoke` and boto3 reach the local functions.

Source: "Invoke", AWS Lambda API reference (2015-03-31).
"""

from __future__ import annotations

import asyncio
import json
import uuid

from aiohttp import web

from ..base.words import Say
from .worker import PAYLOAD_BYTES_MAX
from .workers import ThrottledError, Workers

PATH = "/2015-03-31/functions/{name}/invocations"
EVENT_BYTES_MAX = 1024 * 1024  # Lambda's quota for asynchronous invocations
RETRIES_S = (1.0, 2.0)  # pauses before the two retries; Lambda waits one and two minutes


class Invoke:
    """The Invoke API in front of the workers. It calls `say` with a line when an asynchronous invocation fails."""

    def __init__(self, workers: Workers, say: Say) -> None:
        self._workers, self._say = workers, say
        self._running: set[asyncio.Task[None]] = set()

    async def handle(self, request: web.Request) -> web.Response:
        """Answer one call of Invoke."""
        # A name or an ARN (full or partial), with or without a qualifier.
        name = request.match_info["name"].rpartition("function:")[2].partition(":")[0]
        if name not in self._workers.functions:
            return _error(404, "ResourceNotFoundException", f"Function not found: {name}")
        kind = request.headers.get("x-amz-invocation-type", "RequestResponse")
        if kind == "DryRun":
            return web.Response(status=204)
        if kind not in {"RequestResponse", "Event"}:
            return _error(400, "InvalidParameterValueException", f"Unknown invocation type {kind[:64]!r}")
        largest = EVENT_BYTES_MAX if kind == "Event" else PAYLOAD_BYTES_MAX
        try:
            payload = await request.read() or b"{}"
            if len(payload) > largest:
                raise web.HTTPRequestEntityTooLarge(largest, len(payload))
            json.loads(payload)
        except web.HTTPRequestEntityTooLarge:
            return _error(413, "RequestTooLargeException", f"Request must be smaller than {largest} bytes")
        except (ValueError, RecursionError) as error:
            return _error(400, "InvalidRequestContentException", f"Could not parse request body into json: {error}")
        request_id = str(uuid.uuid4())
        if kind == "Event":
            task = asyncio.create_task(self._in_background(name, payload, request_id))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
            return web.Response(status=202, headers={"x-amzn-requestid": request_id})
        try:
            outcome = await self._workers.invoke(name, payload, request_id)
        except ThrottledError as error:
            return _error(429, "TooManyRequestsException", str(error))
        headers = {"x-amzn-requestid": request_id, "x-amz-executed-version": "$LATEST"}
        if outcome.failed:
            headers["x-amz-function-error"] = "Unhandled"
        return web.Response(body=outcome.payload, content_type="application/json", headers=headers)

    async def close(self) -> None:
        """Cancel the background invocations."""
        if self._running:
            self._say(f"{len(self._running)} asynchronous invocations had not ended: they are lost")
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def _in_background(self, name: str, payload: bytes, request_id: str) -> None:
        """Run an asynchronous invocation, and retry it twice."""
        reason = ""
        for pause_s in (0.0, *RETRIES_S):
            await asyncio.sleep(pause_s)
            try:
                outcome = await self._workers.invoke(name, payload, request_id)
            except ThrottledError as error:
                reason = str(error)
                continue
            if not outcome.failed:
                return
            reason = outcome.reason
        self._say(f"{name} failed {1 + len(RETRIES_S)} times on an event; the event is lost: {reason}")


def _error(status: int, kind: str, message: str) -> web.Response:
    body = {"Type": "User", "Message": message, "message": message}
    return web.json_response(body, status=status, headers={"x-amzn-errortype": kind})
