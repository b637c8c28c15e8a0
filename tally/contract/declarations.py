"""What one deployment declares, and what follows from it: operations, routes, functions, and what their roles grant."""

from __future__ import annotations

import contextlib
import importlib
import runpy
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from tally import operations, pages
from tally.api.needs import NOTHING, Needs
from tally.api.operation import Operation, Route, functions, of_file, of_function, served_by
from tally.api.unattended import Schedule, StreamReader
from tally.contract.views import Counted
from tally.counter import Counter, declared
from tally.errors import ConfigurationError
from tally.operations import items
from tally.pages import Pages
from tally.shipped import BOT_VISITS, PAGE_VISITORS, SHIPPED, VISITS

OPERATIONS: tuple[Operation, ...] = tuple(
    one for name in operations.SERVING for one in of_file(importlib.import_module(f"tally.operations.{name}"))
)
READERS: tuple[StreamReader, ...] = tuple(
    importlib.import_module(f"tally.operations.{name}").READER for name in operations.CONSUMERS
)
SCHEDULES: tuple[Schedule, ...] = tuple(
    importlib.import_module(f"tally.operations.{name}").SCHEDULE for name in operations.SCHEDULES
)


@dataclass(frozen=True)
class Declarations:
    """What one file `counters.py` declares, with the operations, schedules and stream readers that serve it."""

    path: Path
    counters: Mapping[str, Counter]
    pages: Pages
    undeclared: tuple[str, ...] = ()
    """The names of counters that the file makes and COUNTERS does not list."""
    operations: tuple[Operation, ...] = OPERATIONS
    schedules: tuple[Schedule, ...] = SCHEDULES

    @classmethod
    def load(cls, path: Path) -> Declarations:
        """Run the file and check what it declares. Raises ConfigurationError: it says what is wrong, and where."""
        if not path.is_file():
            raise ConfigurationError(f"{path} is missing: it declares the counters")
        try:
            with contextlib.redirect_stdout(sys.stderr):  # a person's print is no part of what a command prints
                module = runpy.run_path(str(path))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # whatever a person's file raises, SystemExit too
            raise ConfigurationError(_why(path, error)) from error
        given = module.get("COUNTERS")
        if not isinstance(given, Mapping) or not given or not all(isinstance(one, Counter) for one in given.values()):
            raise ConfigurationError(f"{path} declares no COUNTERS: end it with COUNTERS = declared([…])")
        counters = declared(given.values())
        if counters != dict(given):
            raise ConfigurationError(f"{path}: COUNTERS has a counter by another name than its own: {', '.join(given)}")
        undeclared = [
            name
            for name, one in module.items()
            if isinstance(one, Counter) and one != counters.get(one.name) and one not in SHIPPED
        ]
        declarations = cls(path, counters, pages.declared(module), tuple(undeclared))
        declarations.check()
        return declarations

    @property
    def warnings(self) -> list[str]:
        """What is odd about the file, though it is right: counters that it makes and does not list."""
        return [
            f"{self.path}: {name} is no counter of this deployment: COUNTERS does not list it"
            for name in self.undeclared
            if not name.startswith("_")
        ]

    def check(self) -> None:
        """Raise ConfigurationError if a counter has the name of a shipped one, and differs in more than `notify` and
        `lists`; or if two operations have one route, as by the `path` of a counter.
        """
        for counter in SHIPPED:
            given = self.counters.get(counter.name, counter)
            if replace(given, notify=counter.notify, lists=counter.lists) != counter:
                raise ConfigurationError(
                    f"counter {counter.name!r}: {self.path} must list the one of tally.shipped,"
                    " or name its own otherwise"
                )
        if (VISITS.name in self.counters) != (BOT_VISITS.name in self.counters):
            raise ConfigurationError(
                f"counter {VISITS.name!r}: {self.path} must list {BOT_VISITS.name!r} beside it: crawlers count apart"
            )
        if PAGE_VISITORS.name in self.counters and VISITS.name not in self.counters:
            raise ConfigurationError(
                f"counter {PAGE_VISITORS.name!r}: {self.path} must list {VISITS.name!r} beside it: a visit names them"
            )
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
        return [route for operation in self.operations for route in operation.routes(self.counters)]

    @cached_property
    def readers(self) -> tuple[StreamReader, ...]:
        """The functions that read streams."""
        of_items = items.reader(self.counters.values())
        readers = READERS if of_items is None else (*READERS, of_items)
        # Somebody waits for events, so the reader that sends them gathers records for one second.
        return tuple(one._replace(window_s=1) if one.sends and self.notifies else one for one in readers)

    @property
    def notifies(self) -> bool:
        """Whether a counter has thresholds, and so makes events."""
        return any(counter.notifies for counter in self.counters.values())

    @cached_property
    def own_tables(self) -> dict[str, Counted]:
        """What counts the items of the team's tables, by the names of these."""
        counting = [(name, one.items) for name, one in self.counters.items() if one.items is not None]
        return {
            table: {name: (of.key, of.sort, of.needs_images) for name, of in counting if of.table == table}
            for table in dict.fromkeys(of.table for _, of in counting)
        }

    @cached_property
    def needs(self) -> dict[str, Needs]:
        """What the role of each function grants on the tables, by its name."""
        counters = list(self.counters.values())
        unattended = [*(one.function for one in self.readers), *(one.function for one in self.schedules)]
        return {name: self._needs(name, routes) for name, routes in self.functions.items()} | {
            name: importlib.import_module(f"tally.operations.{name}").needed(counters) for name in unattended
        }

    def _needs(self, name: str, routes: list[Route]) -> Needs:
        """What the operations of a function need, for the counters that it serves."""
        counters = served_by(name, routes, self.counters)
        serving = of_function(name, routes, self.operations, self.counters)
        return NOTHING.union(*(operation.needs(operation.served(counters)) for operation in serving))


def _why(path: Path, error: BaseException) -> str:
    """Why the file does not run, in one line: the place in it, and the error."""
    line: int | None = None
    if isinstance(error, SyntaxError) and error.filename and error.lineno:  # of this file, or of one that it imports
        path, line = Path(error.filename), error.lineno
    else:
        frames = traceback.extract_tb(error.__traceback__)
        line = next((frame.lineno for frame in reversed(frames) if frame.filename == str(path)), None)
    what = str(error.msg if isinstance(error, SyntaxError) else error)
    kind = "" if isinstance(error, ConfigurationError) else type(error).__name__
    where = f"{path}, line {line}" if line else str(path)
    return " ".join(": ".join(filter(None, (where, kind, what))).split())
