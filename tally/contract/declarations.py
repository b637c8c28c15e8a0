"""The declarations of a deployment, and what follows: operations, routes, functions, and what their roles grant."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from functools import cached_property

from tally import operations
from tally.api.background import Schedule, StreamReader
from tally.api.needs import NOTHING, Needs
from tally.api.operation import (
    Operation,
    Route,
    counters_of_function,
    operations_of,
    operations_of_function,
    routes_by_function,
)
from tally.contract.counters_file import CountersFile
from tally.contract.stream_views import KeysByCounter
from tally.errors import ConfigurationError
from tally.operations import items

OPERATIONS: tuple[Operation, ...] = tuple(
    one for name in operations.SERVING for one in operations_of(importlib.import_module(f"tally.operations.{name}"))
)
READERS: tuple[StreamReader, ...] = tuple(
    importlib.import_module(f"tally.operations.{name}").READER for name in operations.CONSUMERS
)
SCHEDULES: tuple[Schedule, ...] = tuple(
    importlib.import_module(f"tally.operations.{name}").SCHEDULE for name in operations.SCHEDULES
)


@dataclass(frozen=True)
class Declarations(CountersFile):
    """The counters that one file `counters.py` declares, with the operations, schedules and readers that serve them."""

    operations: tuple[Operation, ...] = OPERATIONS
    schedules: tuple[Schedule, ...] = SCHEDULES

    def check(self) -> None:
        """Also raises ConfigurationError if two operations have the same route, which a counter's `path` can cause."""
        super().check()
        by_key: dict[str, Route] = {}
        for route in self.routes:
            other = by_key.setdefault(route.key, route)
            if other is not route:
                own, taken = (route, other) if route.is_short else (other, route)
                name = own.fixed_fields.get("counter")
                raise ConfigurationError(f"counter {name!r}: path gives {route.key}, which is the route of {taken.id}")

    @cached_property
    def routes_by_function(self) -> dict[str, list[Route]]:
        """The routes of each function that has routes, by the function's name."""
        return routes_by_function(self.operations, self.counters)

    @cached_property
    def routes(self) -> list[Route]:
        """Every route of the HTTP API."""
        return [route for operation in self.operations for route in operation.routes(self.counters)]

    @cached_property
    def readers(self) -> tuple[StreamReader, ...]:
        """The functions that read streams."""
        of_items = items.reader(self.counters.values())
        readers = READERS if of_items is None else (*READERS, of_items)
        # Receivers wait for events, so the reader that sends them waits only a second for more records.
        return tuple(one._replace(window_s=1) if one.sends_events and self.notifies else one for one in readers)

    @property
    def notifies(self) -> bool:
        """Whether a counter has thresholds, and so makes events."""
        return any(counter.notifies for counter in self.counters.values())

    @cached_property
    def team_tables(self) -> dict[str, KeysByCounter]:
        """The counters of each table of the team, with the names of the keys, and whether a counter needs images."""
        counting = [(name, one.items) for name, one in self.counters.items() if one.items is not None]
        return {
            table: {
                name: (of.partition_key, of.sort_key, of.needs_images) for name, of in counting if of.table == table
            }
            for table in dict.fromkeys(of.table for _, of in counting)
        }

    @cached_property
    def needs(self) -> dict[str, Needs]:
        """The access to tables that the role of each function grants, by the name of the function."""
        counters = list(self.counters.values())
        unattended = [*(one.function for one in self.readers), *(one.function for one in self.schedules)]
        needs = {}
        for name, routes in self.routes_by_function.items():
            served = counters_of_function(name, routes, self.counters)
            serving = operations_of_function(name, routes, self.operations, self.counters)
            needs[name] = NOTHING.union(*(operation.needs(operation.served_counters(served)) for operation in serving))
        for name in unattended:
            needs[name] = importlib.import_module(f"tally.operations.{name}").needed(counters)
        return needs
