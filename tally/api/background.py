"""Functions without callers: stream consumers and schedules. `does` completes "a function that …"."""

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
    """The tables whose streams it inspects: their shards, and the records that wait there. If not empty, it inspects
    the streams of the team's tables, too."""


class StreamReader(NamedTuple):
    """A function that reads streams of tables, each stream shard in order."""

    function: str
    does: str
    streams: Mapping[Table, tuple[str, ...]]
    """The tables whose streams it reads, and the kinds of change (`INSERT`, `MODIFY`, `REMOVE`) that it gets of each;
    an empty tuple means all."""
    filter_attribute: str = ""
    """If set, it gets only changes whose new item has this attribute with the value true. A malformed item without the
    attribute never reaches it, so another consumer must get every change."""
    key_prefixes: Mapping[Table, str] = MappingProxyType({})
    """By table: it also gets each change of an item whose partition key begins with this prefix."""
    sends_events: bool = False
    """Whether it sends the events of counters with thresholds."""
    window_s: int = 1
    """For how many seconds Lambda gathers records; 1 is half of the time until reads show a spilled change."""
    team_tables: tuple[str, ...] = ()
    """The team's tables whose streams it reads, as the counters name them. It gets every change of each table."""
