"""Loads one file `counters.py`. It imports no operation, so a command that needs only the counters starts fast."""

from __future__ import annotations

import contextlib
import runpy
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from tally import pages
from tally.builtin import BOT_VISITS, BUILTIN, PAGE_VISITORS, VISITS
from tally.counter import Counter, declared
from tally.errors import ConfigurationError
from tally.pages import Pages


@dataclass(frozen=True)
class CountersFile:
    """The counters and the pages that one file declares, without their routes."""

    path: Path
    counters: Mapping[str, Counter]
    pages: Pages
    unlisted: tuple[str, ...] = ()
    """The file's variables for counters that COUNTERS does not list."""

    @classmethod
    def load(cls, path: Path) -> Self:
        """Runs the file and checks what it declares. Raises ConfigurationError, which says what is wrong, and where."""
        if not path.is_file():
            raise ConfigurationError(f"{path} is missing: it declares the counters")
        try:
            with contextlib.redirect_stdout(sys.stderr):  # what the file prints must not mix with what a command prints
                module = runpy.run_path(str(path))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # the file may raise anything, also SystemExit
            raise ConfigurationError(_failure_line(path, error)) from error
        value = module.get("COUNTERS")
        if not isinstance(value, Mapping) or not value or not all(isinstance(one, Counter) for one in value.values()):
            raise ConfigurationError(f"{path} declares no COUNTERS: end the file with COUNTERS = declared([…])")
        counters = declared(value.values())
        names = ", ".join(name for name, counter in value.items() if name != counter.name)
        if names:
            raise ConfigurationError(f"{path}: COUNTERS has a counter under another name than its own: {names}")
        unlisted = [
            name
            for name, one in module.items()
            if isinstance(one, Counter) and one != counters.get(one.name) and one not in BUILTIN
        ]
        file = cls(path, counters, pages.declared_pages(module), tuple(unlisted))
        file.check()
        return file

    @property
    def warnings(self) -> list[str]:
        """A warning for each counter that the file makes and does not list."""
        return [
            f"{self.path}: {name} is not a counter of this deployment, because COUNTERS does not list it"
            for name in self.unlisted
            if not name.startswith("_")
        ]

    def check(self) -> None:
        """Raises ConfigurationError in two cases: a counter has the name of a built-in counter and differs in more than
        `notify` and `lists`, or a built-in counter needs another counter that is not listed."""
        for counter in BUILTIN:
            listed = self.counters.get(counter.name, counter)
            if replace(listed, notify=counter.notify, lists=counter.lists) != counter:
                must = "must list the counter of tally.builtin, or give its own counter another name"
                raise ConfigurationError(f"counter {counter.name!r}: {self.path} {must}")
        for counter, needed in ((VISITS, BOT_VISITS), (BOT_VISITS, VISITS), (PAGE_VISITORS, VISITS)):
            if counter.name in self.counters and needed.name not in self.counters:
                counted = "crawlers" if needed is BOT_VISITS else "the visits"
                must = f"must list {needed.name!r}, too, which counts {counted}"
                raise ConfigurationError(f"counter {counter.name!r}: {self.path} {must}")


def _failure_line(path: Path, error: BaseException) -> str:
    """Returns in one line why the file does not run: the file and line, and the error."""
    line: int | None = None
    if isinstance(error, SyntaxError) and error.filename and error.lineno:  # in this file, or in a file that it imports
        path, line = Path(error.filename), error.lineno
    else:
        frames = traceback.extract_tb(error.__traceback__)
        line = next((frame.lineno for frame in reversed(frames) if frame.filename == str(path)), None)
    message = str(error.msg if isinstance(error, SyntaxError) else error)
    error_type = "" if isinstance(error, ConfigurationError) else type(error).__name__
    where = f"{path}, line {line}" if line else str(path)
    return " ".join(": ".join(filter(None, (where, error_type, message))).split())
