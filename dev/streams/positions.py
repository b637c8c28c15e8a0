"""The position of each event source mapping in each shard: a file in the data folder, written atomically.

A lost file, or a lost last write, only replays records. Stream consumers skip records that they have applied.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .batches import State, Window

SHARDS_MAX = 1_000  # the file keeps the places that moved last


@dataclass(frozen=True)
class Place:
    """The place of a mapping in a shard: the last sequence number that it has passed, and the open window."""

    sequence: str | None = None
    window: tuple[int, int] | None = None
    state: State = field(default_factory=dict)
    ended: bool = False
    """Whether the shard is closed and the mapping has read it to its end."""

    def open_window(self) -> Window | None:
        """The open window, with its state."""
        return Window(*self.window, state=dict(self.state)) if self.window else None


class Positions:
    """All places, by mapping, stream and shard. Without `path` they stay in memory."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._places: dict[str, Place] = {}
        self._dirty = False
        if path is not None:
            with contextlib.suppress(
                OSError, ValueError, TypeError, AttributeError, KeyError, IndexError
            ):  # no file, or one of another version
                self._places = {name: _place(fields) for name, fields in json.loads(path.read_bytes()).items()}

    def get(self, mapping: str, stream: str, shard: str) -> Place:
        """The place of a mapping; the beginning if it has none."""
        return self._places.get(_name(mapping, stream, shard), Place())

    def set(self, mapping: str, stream: str, shard: str, place: Place) -> None:
        """Move a mapping to a place."""
        name = _name(mapping, stream, shard)
        if self._places.get(name) != place:
            self._places.pop(name, None)  # keeps the dictionary in the order of the last moves
            self._places[name] = place
            while len(self._places) > SHARDS_MAX:
                del self._places[next(iter(self._places))]
            self._dirty = True

    def write(self) -> None:
        """Write the file, if anything moved."""
        if not self._dirty or self._path is None:
            return
        fresh = self._path.with_suffix(".new")
        fresh.write_text(json.dumps({name: place.__dict__ for name, place in self._places.items()}))
        os.replace(fresh, self._path)
        self._dirty = False


def _name(mapping: str, stream: str, shard: str) -> str:
    return f"{mapping} {stream} {shard}"


def _place(fields: dict[str, Any]) -> Place:
    window, sequence = fields["window"], fields["sequence"]
    return Place(
        None if sequence is None else str(sequence),
        (int(window[0]), int(window[1])) if window else None,
        dict(fields["state"]),
        bool(fields["ended"]),
    )
