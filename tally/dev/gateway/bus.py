"""A small EventBridge: it accepts PutEvents, prints each event at the terminal, and lists the last events.

Source: "Amazon EventBridge API Reference" (2015-10-07), PutEvents.
"""

from __future__ import annotations

import json
from collections import deque
from typing import Any
from uuid import uuid4

from aiohttp import web

from ..base.words import Say

PATH = "/dev/events"
NAME = "tally-local"
EVENTS_MAX = 200  # that the page lists
ENTRIES_MAX = 10  # of one PutEvents, as in EventBridge
_TARGET = "AWSEvents.PutEvents"


class LocalBus:
    """The bus of the stack. `say` gets a line for each event, the first time that it arrives."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._last: deque[dict[str, Any]] = deque(maxlen=EVENTS_MAX)

    def routes(self) -> list[web.RouteDef]:
        """POST is PutEvents; GET lists the events, the newest first."""
        return [web.get(PATH, self._list), web.post(PATH, self._put), web.post(f"{PATH}/", self._put)]

    async def _list(self, _: web.Request) -> web.Response:
        return web.json_response({"events": list(self._last)})

    async def _put(self, request: web.Request) -> web.Response:
        if request.headers.get("x-amz-target") != _TARGET:
            return web.json_response({"__type": "UnknownOperationException"}, status=400)
        entries = json.loads(await request.read())["Entries"]
        if not 1 <= len(entries) <= ENTRIES_MAX:
            return web.json_response({"__type": "ValidationException"}, status=400)
        answers = [self._add(entry) for entry in entries]
        failed = sum("ErrorCode" in answer for answer in answers)
        return web.json_response({"FailedEntryCount": failed, "Entries": answers})

    def _add(self, entry: dict[str, Any]) -> dict[str, str]:
        try:
            detail = json.loads(entry["Detail"])
            document = {"source": entry["Source"], "detail-type": entry["DetailType"], "detail": detail}
        except (KeyError, ValueError):
            return {"ErrorCode": "InvalidArgument", "ErrorMessage": "Source, DetailType or Detail is not valid."}
        if document not in self._last:
            part = f" ({detail['percent']} %)" if "percent" in detail else ""
            tally = f"{detail.get('counter')} {detail.get('id')} {detail.get('period', '')}".strip()
            crossed = "reached" if detail.get("direction") == "up" else "fell below"
            self._say(f"event: {tally} {crossed} {detail.get('threshold')}{part}: it is {detail.get('value')}")
        self._last.appendleft(document)
        return {"EventId": str(uuid4())}
