"""Functions that nobody calls: consumers of streams, and schedules. `does` completes "a function that …"."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from .needs import Table


class Schedule(NamedTuple):
    """A function that runs every `every_min` minutes."""

    function: str
    every_min: int
    does: str
    sends_events: bool = False
    """Whether it sends the events of counters with thresholds."""
    inspected_streams: tuple[Table, ...] = ()
    """The tables whose streams it looks into: their shards, and what waits in them. Then it looks into those of the
    team's tables, too."""


class StreamReader(NamedTuple):
    """A function that reads streams of tables, each stream shard in order."""

    function: str
    does: str
    streams: Mapping[Table, tuple[str, ...]]
    """The tables whose streams it reads, and the kinds of change (`INSERT`, `MODIFY`, `REMOVE`) that it gets of each;
    an empty tuple means all."""
    filter_attribute: str = ""
    """Of changes of these kinds it gets those alone whose new item has this attribute, and the attribute is true. A
    malformed item without it never reaches the consumer, so another consumer must get every change. Empty: it gets all.
    """
    key_prefixes: Mapping[Table, str] = MappingProxyType({})
    """Changes that it gets beside those kinds, whatever their kind: of items whose partition key begins so."""
    sends_events: bool = False
    """Whether it sends the events of counters with thresholds."""
    window_s: int = 1
    """For how many seconds a stream gathers records for it. One second is half of a reader's wait for a rollup."""
    team_tables: tuple[str, ...] = ()
    """The team's tables whose streams it reads, by the names that the counters give them: every change of each."""
