"""Checks values of the command line and converts them. For a wrong value, a check raises an error of one line."""

from __future__ import annotations

import argparse
import functools
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from zoneinfo import ZoneInfo

from tally import fields
from tally.contract.counters_file import CountersFile
from tally.counter import Counter
from tally.counting import periods
from tally.dynamo import clock
from tally.errors import InvalidInputError
from tally.ids import ID_PATTERN, group_of, id_of
from tally.pages import DEFAULT_PAGES, Pages

from . import folder

RUN_CHARACTERS_MAX = 64  # of an import's --run
TIME_MAX_S = 95_617_584_000  # the year 5000: the latest time of a series


@functools.cache
def _pages(file: Path) -> Pages:
    """Returns the page rules of a `counters.py`. The command has loaded this file before, so the file has no faults."""
    return CountersFile.load(file).pages if file.is_file() else DEFAULT_PAGES


def resolve_id(counter: Counter, id_: str) -> str:
    """Returns the id as the counter stores it. If the counter has periods, an id without a period gets the present
    period. Raises InvalidInputError."""
    if counter.period is None or "#" in id_:
        return stored_id(counter, id_)
    return periods.tally_id(counter, _canonical_id(counter, id_), clock.now_s())


def complete_id(args: argparse.Namespace) -> None:
    """Replaces the ID of a command line by the id as its counter stores it. Raises InvalidInputError."""
    if args.id is not None:
        args.id = resolve_id(args.counter, args.id)


def stored_id(counter: Counter, id_: object) -> str:
    """Returns the id as the counter stores it: `ID#PERIOD`, if the counter has periods. Raises InvalidInputError."""
    if counter.period is None or not isinstance(id_, str):
        return _canonical_id(counter, id_)
    name, _, period = id_.partition("#")
    id_ = f"{_canonical_id(counter, name)}#{period}"
    if not periods.is_valid_tally_id(counter, id_):
        raise InvalidInputError(f"ID must name a {counter.period}: give ID#PERIOD.", field="ID")
    return id_


def _canonical_id(counter: Counter, name: object) -> str:
    """Returns the id of what a person typed: a page's canonical URL, or a text in the spelling of tally/ids.py (`hr
    desk` is `hr~20desk`). Raises InvalidInputError."""
    id_ = name
    if isinstance(name, str) and not counter.pages:
        id_ = id_of(name) if counter.items is None else group_of(name)
    return fields.counted_id(counter, id_, "ID", _pages(folder.counters()))


def user_id(value: str) -> str:
    """Checks and returns the `sub` of a user's tokens."""
    try:
        fields.user(value, "ID")
    except InvalidInputError as error:
        raise argparse.ArgumentTypeError(error.detail) from None
    return value


def idempotency_key(value: str) -> str:
    """Checks and returns an idempotency key. An empty key is an error: perhaps a variable of the shell is not set."""
    try:
        return fields.idempotency_key(value, "KEY", anonymous=False)
    except InvalidInputError as error:
        raise argparse.ArgumentTypeError(error.detail) from None


def declared_counter(counters: Mapping[str, Counter]) -> Callable[[str], Counter]:
    """Returns a function that checks the name of a counter and returns the counter."""

    def checked(name: str) -> Counter:
        if name not in counters:
            file = folder.counters()
            known = f"choose from {', '.join(counters)}" if file.is_file() else folder.missing_text(file)
            raise argparse.ArgumentTypeError(f"there is no counter {name!r}: {known}")
        return counters[name]

    return checked


def epoch_seconds(value: str) -> int:
    """Returns the epoch seconds of a time like 2026-11-22T10:30:00Z. The time must have a zone."""
    try:
        when = datetime.fromisoformat(value)
    except ValueError:
        when = None
    if when is None or when.tzinfo is None or when.microsecond:
        raise argparse.ArgumentTypeError(f"{value!r} is not a time with a time zone, like 2026-11-22T10:30:00Z")
    return int(when.timestamp())


def vault_arn(value: str) -> str:
    """Checks and returns the ARN of a vault of AWS Backup."""
    from tally.cdk.option_parsers import VAULT_PATTERN  # imported late, because the import takes long

    if not re.fullmatch(VAULT_PATTERN, value):
        raise argparse.ArgumentTypeError(f"{value!r} is not arn:aws:backup:<region>:<account>:backup-vault:<name>")
    return value


def date_time(value: str) -> datetime:
    """Returns the time that a text names, or the start of the day. If the text names no zone, the time has no zone."""
    try:
        return datetime.fromisoformat(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{value!r} is not a time like 2026-11-22T10:30 or 2026-11-22") from None


def to_epoch_seconds(when: datetime | None, zone: tzinfo) -> int | None:
    """Returns the epoch seconds of a time, or None. `zone`: for a time without a zone. Raises InvalidInputError."""
    if when is None:
        return None
    try:
        at_s = int((when if when.tzinfo else when.replace(tzinfo=zone)).timestamp())
    except (OverflowError, ValueError):
        at_s = -1
    if not 0 <= at_s <= TIME_MAX_S:
        raise InvalidInputError(f"{when.isoformat()} is not between 1970 and 5000.")
    return at_s


def time_zone(value: str) -> tzinfo:
    """Returns a time zone by its name."""
    try:
        return UTC if value == "UTC" else ZoneInfo(value)
    except (KeyError, ValueError, OSError):
        raise argparse.ArgumentTypeError(f"{value!r} is not a time zone of this machine, like Europe/Berlin") from None


def add_time_zone(parser: argparse.ArgumentParser) -> None:
    """Adds --tz, for a command whose rows have times."""
    text = "the time zone, like Europe/Berlin (default: of this machine)"
    parser.add_argument("--tz", metavar="ZONE", type=time_zone, help=text)


def add_limit(parser: argparse.ArgumentParser, default: int, most: int) -> None:
    """Adds --limit, for a command that lists at most `most` things."""
    text = f"how many to list (default: {default})"
    parser.add_argument("--limit", metavar="N", type=whole_number(1, most), default=default, help=text)


def whole_number(least: int, most: int) -> Callable[[str], int]:
    """Returns a function that checks a whole number from `least` to `most` and returns it as an int."""

    def checked(value: str) -> int:
        if not (value.isascii() and value.isdigit() and len(value) <= 9 and least <= int(value) <= most):
            raise argparse.ArgumentTypeError(f"{value!r} is not a whole number from {least} to {most}")
        return int(value)

    return checked


def signed_number(most: int, *, may_be_zero: bool = False) -> Callable[[str], int]:
    """Returns a function that checks a whole number from -`most` to `most`, 0 only if `may_be_zero`, and returns it."""

    def checked(value: str) -> int:
        if not re.fullmatch(r"[+-]?[0-9]{1,19}", value) or not (0 if may_be_zero else 1) <= abs(int(value)) <= most:
            but = "" if may_be_zero else ", except 0"
            raise argparse.ArgumentTypeError(f"{value!r} is not a whole number from -{most} to {most}{but}")
        return int(value)

    return checked


def run_name(value: str) -> str:
    """Checks and returns the name of an import's run."""
    if len(value) > RUN_CHARACTERS_MAX or not ID_PATTERN.fullmatch(value):
        raise argparse.ArgumentTypeError(f"must be 1 to {RUN_CHARACTERS_MAX} of A-Z a-z 0-9 . _ : ~ @ -")
    return value


def history_text(most: int) -> Callable[[str], str]:
    """Returns a function that checks a text for the history and returns the text without outer spaces."""

    def checked(value: str) -> str:
        text = value.strip()
        if not text or len(text) > most or not text.isprintable():
            raise argparse.ArgumentTypeError(f"must have 1 to {most} printable characters")
        return text

    return checked
