"""The positions of the event source mappings in their streams, in a file of the data folder.

The file lags by up to half a second, and a kill of `make dev` loses the last positions. After a restart, the functions
get some records a second time, and stream consumers skip the records that they have applied.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import NamedTuple


class Position(NamedTuple):
    """The position of a mapping in a shard: the last sequence number that it has passed; None: at the start."""

    sequence: str | None = None
    ended: bool = False
    """Whether the shard is closed and the mapping has read it to its end."""


class Positions:
    """All positions, by mapping, stream and shard. Without `path`, positions stay in memory."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._positions: dict[str, Position] = {}
        self._has_changed = False
        with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):  # no file, or one of another version
            stored = json.loads(path.read_bytes()) if path else {}
            self._positions = {name: Position(*position) for name, position in stored.items()}

    def get(self, mapping: str, stream: str, shard: str) -> Position:
        """Returns the position of a mapping, or the beginning of the shard if none is stored."""
        return self._positions.get(f"{mapping} {stream} {shard}", Position())

    def set(self, mapping: str, stream: str, shard: str, position: Position) -> None:
        name = f"{mapping} {stream} {shard}"
        self._has_changed |= self._positions.get(name) != position
        self._positions[name] = position

    def write(self) -> None:
        """Write the file if a position has changed."""
        if self._has_changed and self._path is not None:
            fresh = self._path.with_suffix(".new")
            fresh.write_text(json.dumps(self._positions))
            os.replace(fresh, self._path)
            self._has_changed = False
