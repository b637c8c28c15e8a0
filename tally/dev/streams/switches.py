"""Which event source mappings are enabled. All are at the start: `make dev` keeps nothing of it."""

from __future__ import annotations

import asyncio


class Switches:
    """The switches of the mappings, by name. Use it from one event loop."""

    def __init__(self) -> None:
        self._enabled_again: dict[str, asyncio.Event] = {}
        """An event for each disabled mapping."""

    def is_enabled(self, mapping: str) -> bool:
        """Whether the mapping delivers."""
        return mapping not in self._enabled_again

    def set(self, mapping: str, enabled: bool) -> None:
        """Enable or disable a mapping. An invocation that runs ends as it would have."""
        if not enabled:
            self._enabled_again.setdefault(mapping, asyncio.Event())
        elif waited := self._enabled_again.pop(mapping, None):
            waited.set()

    async def wait(self, mapping: str) -> None:
        """Return once the mapping is enabled."""
        while waited := self._enabled_again.get(mapping):
            await waited.wait()
