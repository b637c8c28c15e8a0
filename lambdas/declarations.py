"""What one deployment declares, and what follows from it: operations, routes, functions, and what their roles grant."""

from __future__ import annotations

import importlib
import runpy
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import operations
from api.needs import NOTHING, Needs
from api.operation import Operation, Route, functions, of_file, of_function, served_by
from api.unattended import Schedule, StreamReader
from tally import pages
from tally.counter import Counter, declared
from tally.errors import ConfigurationError
from tally.pages import Pages
from tally.shipped import SHIPPED

OPERATIONS: tuple[Operation, ...] = tuple(
    one for name in operations.SERVING for one in of_file(importlib.import_module(f"operations.{name}"))
)
READERS: tuple[StreamReader, ...] = tuple(
    importlib.import_module(f"operations.{name}").READER for name in operations.CONSUMERS
)
SCHEDULES: tuple[Schedule, ...] = tuple(
    importlib.import_module(f"operations.{name}").SCHEDULE for name in operations.SCHEDULES
)


@dataclass(frozen=True)
class Declarations:
    """What one file `counters.py` declares, with the operations, schedules and stream readers that serve it."""

    path: Path
    counters: Mapping[str, Counter]
    pages: Pages
    operations: tuple[Operation, ...] = OPERATIONS
    schedules: tuple[Schedule, ...] = SCHEDULES
    readers: tuple[StreamReader, ...] = READERS

    @classmethod
    def load(cls, path: Path) -> Declarations:
        """Run the file and check what it declares. Raises ConfigurationError: it says what is wrong with which."""
        if not path.is_file():
            raise ConfigurationError(f"{path} is missing: it declares the counters")
        try:
            module = runpy.run_path(str(path))
        except ConfigurationError:
            raise
        except Exception as error:  # whatever a person's file raises
            raise ConfigurationError(f"{path} does not run: {type(error).__name__}: {error}") from error
        found = module.get("COUNTERS")
        if not isinstance(found, Mapping) or not all(isinstance(counter, Counter) for counter in found.values()):
            raise ConfigurationError(f"{path} declares no COUNTERS: end it with COUNTERS = declared([…])")
        for counter in SHIPPED:
            if found.get(counter.name) != counter:
                raise ConfigurationError(
                    f"counter {counter.name!r}: {path} must list the one of tally.shipped, for Tally counts with it"
                )
        made = cls(path, declared(found.values()), pages.declared(module))
        made.check()
        return made

    def check(self) -> None:
        """Raise ConfigurationError if two operations have one route, as by the `path` of a counter."""
        seen: dict[str, Route] = {}
        for route in self.routes:
            other = seen.setdefault(route.key, route)
            if other is not route:
                own, taken = (route, other) if route.short else (other, route)
                raise ConfigurationError(
                    f"counter {own.fixed.get('counter')!r}: path gives {route.key}, which is the route of {taken.id}"
                )

    @cached_property
    def functions(self) -> dict[str, list[Route]]:
        """The routes of each function that serves some, by its name."""
        return functions(self.operations, self.counters)

    @cached_property
    def routes(self) -> list[Route]:
        """Every route of the HTTP API."""
        return [route for one in self.operations for route in one.routes(self.counters)]

    @cached_property
    def needs(self) -> dict[str, Needs]:
        """What the role of each function grants on the tables, by its name."""
        counters = list(self.counters.values())
        unattended = (*operations.CONSUMERS, *operations.SCHEDULES)
        return {name: self._needs(name, routes) for name, routes in self.functions.items()} | {
            name: importlib.import_module(f"operations.{name}").needed(counters) for name in unattended
        }

    def _needs(self, name: str, routes: list[Route]) -> Needs:
        """What the operations of a function need, for the counters that it serves."""
        counters = served_by(name, routes, self.counters)
        found = of_function(name, routes, self.operations)
        return NOTHING.union(*(one.needs(one.served(counters)) for one in found))
