"""Prints for the commands: results on stdout, progress and notes on stderr."""

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

BAD, INTERRUPTED = 2, 130  # exit statuses


class CommandError(Exception):
    """An error that the user can fix, in one line."""


class Point(NamedTuple):
    """An hour or a day of a series, from `from_s` on. `part`: what of it `value` covers, such as `so far`."""

    from_s: int
    value: int
    part: str = ""


class ComparedSpan(NamedTuple):
    """The counts of `ids` ids by an old counter and by Tally, from `from_s` to `to_s`. `tally`: None if unknown."""

    from_s: int
    to_s: int
    ids: int
    old: int
    tally: int | None

    @property
    def excess(self) -> int | None:
        """By how much the old number is too high; None if Tally's number is unknown."""
        return None if self.tally is None else self.old - self.tally

    @property
    def body(self) -> dict[str, int | None]:
        """The JSON of --json."""
        known = {"ids": self.ids, "old": self.old, "tally": self.tally, "excess": self.excess}
        return {"from": self.from_s, "to": self.to_s, **known}

    def plus(self, other: ComparedSpan) -> ComparedSpan:
        """Returns the sum of two spans of the same time."""
        tally = None if self.tally is None or other.tally is None else self.tally + other.tally
        return self._replace(ids=self.ids + other.ids, old=self.old + other.old, tally=tally)


class WatchedValue(NamedTuple):
    """A number at `at_s` (epoch seconds), and its change since the read before. `error`: why the read failed, or empty.
    If the read failed, `value` is the last number that was read."""

    at_s: int
    value: int
    change: int
    error: str = ""


def progress_bar(iterable: Iterable[Any] | None, unit: str, description: str, total: int | None = None) -> tqdm[Any]:
    """Returns `iterable` with a progress bar, if stderr is a terminal. `iterable` None: the caller updates the bar."""
    hidden = not sys.stderr.isatty()
    return _tqdm()(iterable, description, total, leave=False, file=sys.stderr, disable=hidden, unit=f" {unit}")


def _tqdm() -> Any:
    """Imports tqdm late, because the package without its extras lacks tqdm."""
    from tqdm import tqdm

    return tqdm


def print_json_or_line(args: argparse.Namespace, body: object, line: str) -> None:
    """Prints the body as JSON with --json, else the line."""
    say(json.dumps(body) if args.json else line)


def may_draw(args: argparse.Namespace) -> bool:
    """Returns whether to draw: stdout is a capable terminal, and the options do not ask for CSV or JSON."""
    return not (args.csv or args.json) and sys.stdout.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")


def print_csv(names: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Prints CSV."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(names)
    writer.writerows(rows)


def remark(lines: Iterable[str], *, is_drawn: bool) -> None:
    """Prints remarks: on stdout below a drawing (`is_drawn`), else on stderr, because stdout has CSV or JSON."""
    sys.stdout.flush()
    for line in lines:
        (say if is_drawn else note)(line)


def iso(epoch_s: int, zone: tzinfo) -> str:
    """Returns a time in a zone as ISO 8601."""
    return datetime.fromtimestamp(epoch_s, zone).isoformat()


def _beside_bars(file: Any) -> AbstractContextManager[object]:
    """Returns the context in which a line does not break a progress bar. Without tqdm there is no bar."""
    return _tqdm().external_write_mode(file=file) if "tqdm" in sys.modules else nullcontext()


def say(line: str) -> None:
    """Prints a result."""
    with _beside_bars(sys.stdout):
        print(line, flush=True)


def note(line: str) -> None:
    """Prints a note."""
    with _beside_bars(sys.stderr):
        print(f"tally: {line}", file=sys.stderr, flush=True)


def run_to_exit_status(run: Callable[[], int]) -> int:
    """Returns the exit status of a command: 2, with one line, for an error that the user can fix, 130 for Ctrl-C."""
    try:
        return run()
    except KeyboardInterrupt:
        note("stopped")
        return INTERRUPTED
    except CommandError as error:
        note(str(error))
    except Exception as error:
        from botocore.exceptions import BotoCoreError, ClientError  # imported late, because only errors need them

        from tally.errors import TallyError

        if isinstance(error, TallyError):
            note(explain_error(error))
        elif isinstance(error, ClientError):
            note(f"AWS refused a call: {error.response['Error'].get('Message', error)}")
        elif isinstance(error, BotoCoreError):
            note(f"the call to AWS failed: {error}")
        else:
            raise
    return BAD


def explain_error(error: TallyError) -> str:
    """Returns the message of an error, or AWS's own message if AWS caused the error."""
    from botocore.exceptions import BotoCoreError, ClientError

    cause = error.__cause__
    return str(cause) if isinstance(cause, ClientError | BotoCoreError) else error.detail


def check_answerable(yes: bool) -> None:
    """If stdin is not a terminal, so that a question has no answer, raises CommandError."""
    if not yes and not sys.stdin.isatty():
        raise CommandError("this command asks before it starts, and stdin is not a terminal: add --yes")


def ask(question: str) -> str:
    """Returns what the user types; empty at the end of the input."""
    try:
        return input(question).strip()
    except EOFError:
        print()
        return ""


def confirm(args: argparse.Namespace, question: str) -> bool:
    """Returns whether the user says yes, here or with --yes."""
    return args.yes or ask(f"{question} [y/N] ").lower() in ("y", "yes")


def viewers_zone() -> tzinfo:
    """Returns the time zone of this machine; UTC if its settings name an unknown zone."""
    import tzlocal  # imported late, because most commands do not need it

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # tzlocal warns of odd settings, and the output shows the zone
            return tzlocal.get_localzone()
    except (KeyError, ValueError, OSError):
        return UTC


def format_utc_offset(epoch_s: float, zone: tzinfo) -> str:
    """Returns the distance of a zone from UTC at a time: `UTC+01:00`."""
    from_utc = datetime.fromtimestamp(epoch_s, zone).isoformat()[19:]
    return "UTC" if from_utc == "+00:00" else f"UTC{from_utc}"


def format_clock(epoch_s: float, zone: tzinfo, now_s: float) -> str:
    """Returns a time in a zone to the minute, without the date if it is today."""
    local = datetime.fromtimestamp(epoch_s, zone)
    today = local.date() == datetime.fromtimestamp(now_s, zone).date()
    return local.strftime("%H:%M" if today else "%Y-%m-%d %H:%M")
