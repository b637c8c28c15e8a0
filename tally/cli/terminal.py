"""What the commands print: results on stdout, progress and notes on stderr."""

from __future__ import annotations

import argparse
import csv
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime, tzinfo
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from tqdm import tqdm  # type: ignore[import-untyped]

    from tally.errors import TallyError


BAD, INTERRUPTED = 2, 130


class CommandError(Exception):
    """An error that a person at the terminal can fix, in one line."""


class Point(NamedTuple):
    """An hour or a day of a series, from `from_s` on. `part`: of which part it is known; empty: the whole."""

    from_s: int
    value: int
    part: str = ""


class Gap(NamedTuple):
    """What an old counter and Tally counted of so many ids from `from_s` to `to_s`. `tally`: None if it is unknown."""

    from_s: int
    to_s: int
    ids: int
    old: int
    tally: int | None

    @property
    def excess(self) -> int | None:
        """By how much the old number is too high; None if it is unknown."""
        return None if self.tally is None else self.old - self.tally

    @property
    def body(self) -> dict[str, int | None]:
        """What --json prints."""
        known = {"ids": self.ids, "old": self.old, "tally": self.tally, "off": self.excess}
        return {"from": self.from_s, "to": self.to_s, **known}

    def plus(self, other: Gap) -> Gap:
        """Both together, of the same time."""
        tally = None if self.tally is None or other.tally is None else self.tally + other.tally
        return self._replace(ids=self.ids + other.ids, old=self.old + other.old, tally=tally)


class WatchedValue(NamedTuple):
    """What one look saw at `at_s` (epoch seconds): the number, and by how much it moved since the look before.

    `error`: why it saw nothing; the value is that of the last one that did.
    """

    at_s: int
    value: int
    change: int
    error: str = ""


def progress_bar(things: Iterable[Any] | None, unit: str, does: str, total: int | None = None) -> tqdm[Any]:
    """The things, with a progress bar on stderr if that is a terminal; without things, a bar to move by hand."""
    hidden = not sys.stderr.isatty()
    return _tqdm()(things, does, total, leave=False, file=sys.stderr, disable=hidden, unit=f" {unit}")


def _tqdm() -> Any:
    """Imported here: the bare package writes a first folder without it."""
    from tqdm import tqdm

    return tqdm


def print_json_or_line(given: argparse.Namespace, body: object, line: str) -> None:
    """Print the body as JSON with --json, else the line."""
    say(json.dumps(body) if given.json else line)


def may_draw(given: argparse.Namespace) -> bool:
    """Whether to draw: stdout is a terminal that can, and nobody asked for CSV or JSON."""
    return not (given.csv or given.json) and sys.stdout.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")


def print_csv(names: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print CSV."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(names)
    writer.writerows(rows)


def remark(lines: Iterable[str], *, drawn: bool) -> None:
    """Say what the numbers mean: below a drawing, and beside CSV and JSON on stderr."""
    sys.stdout.flush()
    for line in lines:
        (say if drawn else note)(line)


def iso(epoch_s: int, zone: tzinfo) -> str:
    """A time in a zone, as CSV has it."""
    return datetime.fromtimestamp(epoch_s, zone).isoformat()


def _beside_bars(file: Any) -> AbstractContextManager[object]:
    """Where a line is printed. If nothing has imported tqdm, there is no bar that the line could meet."""
    return _tqdm().external_write_mode(file=file) if "tqdm" in sys.modules else nullcontext()


def say(line: str) -> None:
    """Print a result."""
    with _beside_bars(sys.stdout):
        print(line, flush=True)


def note(line: str) -> None:
    """Print a note."""
    with _beside_bars(sys.stderr):
        print(f"tally: {line}", file=sys.stderr, flush=True)


def run_to_exit_status(run: Callable[[], int]) -> int:
    """Returns the exit status of a command: 2 and one line for an error that a person can fix, 130 for Ctrl-C."""
    try:
        return run()
    except KeyboardInterrupt:
        note("stopped")
        return INTERRUPTED
    except Exception as error:
        if (line := _line(error)) is None:
            raise
        note(line)
    return BAD


def _line(error: Exception) -> str | None:
    """Returns the line for an error that a person can fix; None for another error. Imports what only errors need."""
    if isinstance(error, CommandError):
        return str(error)
    from botocore.exceptions import BotoCoreError, ClientError

    from tally.errors import TallyError

    if isinstance(error, TallyError):
        return explain_error(error)
    if isinstance(error, ClientError):
        return f"AWS refuses it: {error.response['Error'].get('Message', error)}"
    return f"the call to AWS failed: {error}" if isinstance(error, BotoCoreError) else None


def explain_error(error: TallyError) -> str:
    """Returns one line for an error of the store: AWS's own message if there is one."""
    from botocore.exceptions import BotoCoreError, ClientError

    cause = error.__cause__
    return str(cause) if isinstance(cause, ClientError | BotoCoreError) else error.detail


def check_answerable(yes: bool) -> None:
    """Raise CommandError if nobody could answer a question."""
    if not yes and not sys.stdin.isatty():
        raise CommandError("it asks before it begins, and this is no terminal: add --yes")


def ask(question: str) -> str:
    """What the person types; nothing at the end of the input."""
    try:
        return input(question).strip()
    except EOFError:
        print()
        return ""


def confirm(given: argparse.Namespace, question: str) -> bool:
    """Whether the person says yes, here or with --yes."""
    return given.yes or ask(f"{question} [y/N] ").lower() in ("y", "yes")


def viewers_zone() -> tzinfo:
    """The time zone of this machine; UTC if its settings name none that is known."""
    import tzlocal  # only where somebody asks for it

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what is odd about the settings: the zone is said in what is printed
            return tzlocal.get_localzone()
    except (KeyError, ValueError, OSError):
        return UTC


def format_utc_offset(epoch_s: float, zone: tzinfo) -> str:
    """How far a zone is from UTC at a time: `UTC+01:00`."""
    from_utc = datetime.fromtimestamp(epoch_s, zone).isoformat()[19:]
    return "UTC" if from_utc == "+00:00" else f"UTC{from_utc}"


def format_clock(epoch_s: float, zone: tzinfo, now_s: float) -> str:
    """A time in a zone as people read it, to the minute, without the day if that is today."""
    local = datetime.fromtimestamp(epoch_s, zone)
    today = local.date() == datetime.fromtimestamp(now_s, zone).date()
    return local.strftime("%H:%M" if today else "%Y-%m-%d %H:%M")
