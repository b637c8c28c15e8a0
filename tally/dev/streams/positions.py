"""The places that event source mappings have reached in their streams, kept in a file of the data folder.

The file is behind the truth by up to half a second. A restart from it, or a new file after `make dev` was killed before
its last write, only replays records. Stream consumers skip records that they have applied.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import NamedTuple


class Position(NamedTuple):
    """The place of a mapping in a shard: the last sequence number that it has passed."""

    sequence: str | None = None
    ended: bool = False
    """Whether the shard is closed and the mapping has read it to its end."""


class Positions:
    """All places, by mapping, stream and shard. Without `path` they stay in memory."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._places: dict[str, Position] = {}
        self._dirty = False
        with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):  # no file, or one of another version
            self._places = (
                {name: Position(*place) for name, place in json.loads(path.read_bytes()).items()} if path else {}
            )

    def get(self, mapping: str, stream: str, shard: str) -> Position:
        """The place of a mapping; the beginning if it has none."""
        return self._places.get(f"{mapping} {stream} {shard}", Position())

    def set(self, mapping: str, stream: str, shard: str, place: Position) -> None:
        """Move a mapping to a place."""
        name = f"{mapping} {stream} {shard}"
        self._dirty |= self._places.get(name) != place
        self._places[name] = place

    def write(self) -> None:
        """Write the file, if anything moved."""
        if self._dirty and self._path is not None:
            fresh = self._path.with_suffix(".new")
            fresh.write_text(json.dumps(self._places))
            os.replace(fresh, self._path)
            self._dirty = False
