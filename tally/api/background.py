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
    """Whether the function sends the events of counters with thresholds."""
    inspected_streams: tuple[Table, ...] = ()
    """The tables whose stream shards and waiting records the function inspects. If there are any, the function also
    inspects the streams of the team's tables."""


class StreamReader(NamedTuple):
    """A function that reads streams of tables, each stream shard in order."""

    function: str
    does: str
    streams: Mapping[Table, tuple[str, ...]]
    """The tables whose streams the function reads, and the kinds of change (`INSERT`, `MODIFY`, `REMOVE`) that it gets
    of each table; an empty tuple means all."""
    filter_attribute: str = ""
    """If set, the function gets only changes whose new item has this attribute with the value true. It never sees an
    item that lacks the attribute by a fault, so another consumer must get every change."""
    key_prefixes: Mapping[Table, str] = MappingProxyType({})
    """By table: the function also gets each change of an item whose partition key begins with this prefix."""
    sends_events: bool = False
    """Whether the function sends the events of counters with thresholds."""
    window_s: int = 1
    """For how many seconds Lambda gathers records. With 1, reads show a spilled change after about 2 seconds."""
    team_tables: tuple[str, ...] = ()
    """The team's tables, as counters name them, whose streams the function reads. It gets every change of them."""
