"""What one deployment declares, and what follows from it: operations, functions, and what their roles grant."""

from __future__ import annotations

import runpy
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import permissions
from operations import CONSUMERS, OPERATIONS, SCHEDULES
from tally import pages
from tally.counter import Counter, declared
from tally.errors import ConfigurationError
from tally.operation import Consumer, Operation, Schedule, by_function, by_route
from tally.pages import Pages
from tally.shipped import SHIPPED


@dataclass(frozen=True)
class Declarations:
    """What one file `counters.py` declares, with the operations, schedules and consumers that serve it."""

    path: Path
    counters: Mapping[str, Counter]
    pages: Pages
    operations: tuple[Operation, ...] = OPERATIONS
    schedules: tuple[Schedule, ...] = SCHEDULES
    consumers: tuple[Consumer, ...] = CONSUMERS

    @classmethod
    def load(cls, path: Path) -> Declarations:
        """Run the file and check what it declares. Raises ConfigurationError: it says what is wrong with which."""
        if not path.is_file():
            raise ConfigurationError(f"{path} is missing: it declares the counters")
        module = runpy.run_path(str(path))
        found = module.get("COUNTERS")
        if not isinstance(found, Mapping) or not all(isinstance(counter, Counter) for counter in found.values()):
            raise ConfigurationError(f"{path} declares no COUNTERS: end it with COUNTERS = declared([…])")
        for counter in SHIPPED:
            if found.get(counter.name) != counter:
                raise ConfigurationError(
                    f"counter {counter.name!r}: {path} must list the one of tally.shipped, for Tally counts with it"
                )
        return cls(path, declared(found.values()), pages.declared(module))

    @property
    def functions(self) -> dict[str, list[Operation]]:
        """The operations of each function that serves some, by the function's module."""
        return by_function(self.operations)

    @cached_property
    def routes(self) -> list[Operation]:
        """The operations as the HTTP API serves them: a counter that anyone may read has a route of its own."""
        return list(by_route(self.operations, self.counters).values())

    @cached_property
    def needs(self) -> dict[str, permissions.Needs]:
        """What the role of each function grants on the tables, by the function's module."""
        return permissions.of_functions(self.counters)

    @cached_property
    def operator_needs(self) -> permissions.Needs:
        """What the policy of the command `tally` grants on the tables."""
        return permissions.of_operator(self.counters)
