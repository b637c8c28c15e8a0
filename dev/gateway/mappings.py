"""`/dev/mappings`: lists the event source mappings, and disables and enables one, as Lambda's UpdateEventSourceMapping.

So a person sees what a stalled consumer does to the numbers.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from aiohttp import web

from ..stack.mappings import StreamMapping
from ..stack.prepared import Stack
from ..streams.switches import Switches

PATH = "/dev/mappings"
_BODY = 'the body must be {"enabled": true} or {"enabled": false}'


class Mappings:
    """The resource. `say` gets a line for each change."""

    def __init__(self, stack: Stack, switches: Switches, say: Callable[[str], None]) -> None:
        short = {table: name for name, table in stack.tables.items()}
        self._mappings = {(one.function, short.get(one.table, one.table)): one for one in stack.template.mappings}
        self._switches, self._say = switches, say

    async def list(self, _: web.Request) -> web.Response:
        """Every mapping."""
        return web.json_response({"mappings": [self._shown(*key) for key in sorted(self._mappings)]})

    async def change(self, request: web.Request) -> web.Response:
        """Disable or enable one. 404: there is no such mapping; 400: the body says nothing else."""
        consumer, table = request.match_info["consumer"], request.match_info["table"]
        if (consumer, table) not in self._mappings:
            known = ", ".join("/".join(key) for key in sorted(self._mappings))
            return _refused(404, f"there is no mapping {consumer[:64]}/{table[:64]}: there are {known}")
        try:
            document = json.loads(await request.read())
        except (ValueError, RecursionError):
            document = None
        match document:
            case {"enabled": bool(enabled), **others} if not others:
                self._set(self._mappings[consumer, table], enabled, f"{consumer}/{table}")
                return web.json_response(self._shown(consumer, table))
        return _refused(400, _BODY)

    def _set(self, mapping: StreamMapping, enabled: bool, named: str) -> None:
        if self._switches.enabled(mapping.name) != enabled:
            self._switches.set(mapping.name, enabled)
            self._say(
                f"the mapping {named} is {'enabled' if enabled else 'disabled, until PATCH or a restart enables it'}"
            )

    def _shown(self, consumer: str, table: str) -> dict[str, object]:
        enabled = self._switches.enabled(self._mappings[consumer, table].name)
        return {"consumer": consumer, "table": table, "enabled": enabled}


def _refused(status: int, message: str) -> web.Response:
    return web.json_response({"message": message}, status=status)
