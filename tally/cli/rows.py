"""The rows of a file: numbers (id, value, perhaps a time), or children (parent, child, time), as CSV or JSON lines.

A row that cannot be imported comes as a Refused, with the number of its line and the reason.
"""

from __future__ import annotations

import argparse
import codecs
import csv
import json
import re
import shutil
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import IO, Any, NamedTuple

from tally import fields
from tally.counter import Counter
from tally.counting.receipts import DAY_S
from tally.errors import CallerError, InvalidInputError
from tally.maintenance.imports import VALUE_MAX, Child, Number, Refused

from .terminal import CommandError
from .values import stored_id

CSV, JSONL = "csv", "jsonl"
DELIMITERS = (",", ";", "\t")
FORMATS = (CSV, JSONL)
TIME_MAX_S = 10**11 - 1  # a larger number is in milliseconds
ID, VALUE, CHILD, AT = COLUMNS = ("id", "value", "child", "at")
_NUMBER = {
    ID: ("id", "video", "videoid", "page", "url"),
    VALUE: ("value", "count", "plays", "visits"),
    AT: (),  # only if it is named
}
_CHILD = {
    ID: ("post", "id", "postid", "parent"),
    CHILD: ("user", "child", "userid", "member"),
    AT: ("likedat", "at", "createdat", "time"),
}
"""The names that each column may have: lower case, letters only."""
_READING = {**_NUMBER, AT: ("at", "time", "readat")}
_ABOUT = {ID: "the id", VALUE: "the value", CHILD: "the child: who liked", AT: "the time"}
_WRITTEN = re.compile(r"[+-]?[0-9]{1,19}(\.[0-9]{1,19})?([eE][+-]?[0-9]{1,3})?")
_TOO_LONG = f"a field is longer than {csv.field_size_limit()} characters"
_Record = tuple[int, Sequence[Any]] | Refused
Named = Mapping[str, str]
"""The columns that a person named: the name of each."""


class Reading(NamedTuple):
    """A row of a file: what an old counter said of an id at a time. `line`: its number in the file."""

    line: int
    id: str
    value: int
    at_s: int


class Kind(NamedTuple):
    """A kind of rows: the columns with the names that each may have, and what makes a row of their values."""

    columns: Mapping[str, Sequence[str]]
    make: Callable[[int, Sequence[Any], Counter], Any]


class Column(NamedTuple):
    """A column: which one it is, the names that it may have, and the one that a person gave it."""

    which: str
    known: Sequence[str]
    given: str | None = None

    def place(self, names: Sequence[str]) -> int | None:
        """Where it is; None if it is not there. Raises InvalidInputError if two could be it."""
        if self.given is not None:
            found = [place for place, name in enumerate(names) if name == self.given]
        else:
            found = [place for place, name in enumerate(names) if re.sub(r"[^a-z]", "", name.lower()) in self.known]
        if len(found) > 1:
            both = " and ".join(names[place] for place in found[:2])
            raise InvalidInputError(f"{both} could both be it: --{self.which}-column must name one of its own")
        return found[0] if found else None


def form_of(name: str | None, given: str | None) -> str:
    """The form of a file: the given one, or by its name."""
    return given or (JSONL if Path(name or "").suffix.lower() in (".jsonl", ".ndjson") else CSV)


def counted(number: int) -> str:
    """`1 row`, `2 rows`."""
    return f"{number} row{'' if number == 1 else 's'}"


def read(lines: Iterable[str], form: str, kind: Kind, counter: Counter, named: Named) -> Iterator[Any]:
    """The rows, or why one cannot be read. The ids are as the counter stores them.

    Raises CommandError for missing columns.
    """
    for record in (_from_csv if form == CSV else _from_json)(lines, columns(kind.columns, named)):
        try:
            yield record if isinstance(record, Refused) else kind.make(record[0], record[1], counter)
        except CallerError as error:
            yield Refused(record[0], error.detail)


def add_columns(made: argparse.ArgumentParser, which: Iterable[str] = COLUMNS) -> None:
    """The options that name columns."""
    for one in which:
        made.add_argument(f"--{one}-column", metavar="NAME", help=f"the column, or the key of JSON, of {_ABOUT[one]}")


def named(given: argparse.Namespace) -> Named:
    """The columns that a person named."""
    names = {which: getattr(given, f"{which}_column", None) for which in COLUMNS}
    return {which: name for which, name in names.items() if name is not None}


def opened(name: str) -> IO[bytes]:
    """The file; for `-`, or a pipe, a copy, because it may be read more than once. Raises CommandError."""
    try:
        file = sys.stdin.buffer if name == "-" else Path(name).open("rb")  # noqa: SIM115  # the caller closes it
        if name == "-" or not file.seekable():
            copy = tempfile.TemporaryFile()  # noqa: SIM115
            shutil.copyfileobj(file, copy)
            copy.seek(0)
            file = copy
        begins = file.read(2)
        file.seek(0)
    except OSError as error:
        raise CommandError(f"{name}: {error.strerror or error}") from None
    if begins in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) or b"\0" in begins:
        file.close()
        raise CommandError(f"{name}: it is no UTF-8, but perhaps UTF-16: save it as UTF-8")
    return file


def columns(known: Mapping[str, Sequence[str]], named: Named) -> list[Column]:
    """The columns to look for: those that have names of their own, and those that a person named."""
    return [Column(which, names, named.get(which)) for which, names in known.items() if names or which in named]


def _number(line: int, row: Sequence[Any], counter: Counter) -> Number:
    id_, value, *at = row
    found = _value(value)
    if counter.delta is not None and not counter.start:
        if found * counter.delta < 0:
            below, up = ("below", "up") if counter.delta > 0 else ("above", "down")
            raise InvalidInputError(f"value must not be {below} 0: {counter.name} only counts {up}")
        if found % counter.delta:
            raise InvalidInputError(f"value must be a multiple of {counter.delta}, as {counter.name} counts")
    return Number(line, stored_id(counter, id_), found, seconds(at[0]) // DAY_S if at else None)


def _reading(line: int, row: Sequence[Any], counter: Counter) -> Reading:
    id_, value, at = row
    return Reading(line, stored_id(counter, id_), _value(value), seconds(at))


def _value(value: object) -> int:
    found = _whole(value)
    if found is None or abs(found) > VALUE_MAX:
        raise InvalidInputError(f"value must be a whole number from -{VALUE_MAX} to {VALUE_MAX}")
    return found


def _child(line: int, row: Sequence[Any], counter: Counter) -> Child:
    parent, child, at = row
    return Child(line, stored_id(counter, parent), fields.user(child, "child"), seconds(at))


def _whole(value: object) -> int | None:
    """The whole number that a value is, or that a text says. A float has each one in range exactly."""
    written = isinstance(value, str) and _WRITTEN.fullmatch(value.strip())
    return fields.integer(float(written[0]) if written else value)


def seconds(value: object) -> int:
    """Epoch seconds of a time: these, or ISO 8601. One without a zone is UTC."""
    found = _whole(value)
    if found is None and isinstance(value, str):
        try:
            when = datetime.fromisoformat(value.strip())
            found = int((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp())
        except (ValueError, OverflowError):
            found = None
    if found is None or not 0 <= found <= TIME_MAX_S:
        raise InvalidInputError("the time must be ISO 8601, or seconds since 1970")
    return found


def _from_csv(lines: Iterable[str], columns: Sequence[Column]) -> Iterator[_Record]:
    """The first line may name the columns: then they come in any order, among others.

    A quote that nobody closes would take in the rows up to the next one. So what is wrong over several lines costs the
    first of them only: the next row begins on the line after it. What Tally reads has no line breaks.
    """
    ahead = _Ahead(lines)
    places: Sequence[int] | None = None
    width, delimiter = len(columns), ""
    while ahead.more():
        number, first = ahead.number, ahead.first()
        if not delimiter and first.strip():
            delimiter = _delimiter(first, columns)
        try:
            row = next(csv.reader(ahead.taken(), strict=True, delimiter=delimiter or DELIMITERS[0]), [])
        except csv.Error as error:
            ahead.keep_first()
            too_long = len(first) > csv.field_size_limit() and "limit" in str(error)  # else a quote took in more lines
            yield Refused(number, _TOO_LONG if too_long else "a quote is not closed, or text stands behind one that is")
            continue
        if not row:
            continue
        if places is None:
            places = _header(row, columns)
            if places:
                width = len(row)
                continue
        if len(row) != width:
            ahead.keep_first()
            how = "" if places else "; a first line may name them (--id-column and others)"
            yield Refused(number, f"there must be {width} columns, and there are {len(row)}{how}")
            continue
        read = [row[place] for place in places] if places else row
        if any("\n" in one or "\r" in one for one in read):
            ahead.keep_first()
            yield Refused(number, "a quote takes in the lines below")
        else:
            yield number, read
    if places is None and any(column.given for column in columns):
        raise CommandError("the file is empty: its first line must name the columns")


class _Ahead:
    """The lines of a file. Those that a wrong row has taken can be read again. `number`: that of the next one."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._lines = iter(lines)
        self._again: deque[str] = deque()
        self._taken: list[str] = []
        self.number = 1

    def more(self) -> bool:
        """Whether there is a line more."""
        if not self._again:
            self._again.extend(islice(self._lines, 1))
        return bool(self._again)

    def first(self) -> str:
        """The next line, which stays."""
        return self._again[0]

    def taken(self) -> Iterator[str]:
        """The lines of one row."""
        self._taken = []
        while self.more():
            self._taken.append(self._again.popleft())
            self.number += 1
            yield self._taken[-1]

    def keep_first(self) -> None:
        """Give the lines of the last row back, but for its first one."""
        back = self._taken[1:]
        self._again.extendleft(reversed(back))
        self.number -= len(back)


def _delimiter(line: str, columns: Sequence[Column]) -> str:
    """What separates the columns: what the first line names them by, or has as many of as there are; else a comma."""
    split = {one: _split(line, one) for one in DELIMITERS}
    named = [one for one, row in split.items() if _names(row, columns)]
    as_many = [one for one, row in split.items() if len(row) == len(columns)]
    return next(iter(named + as_many), DELIMITERS[0])


def _split(line: str, delimiter: str) -> list[str]:
    """The columns of a line; none if one is too long."""
    try:
        return next(csv.reader([line], delimiter=delimiter), [])
    except csv.Error:
        return []


def _names(row: Sequence[str], columns: Sequence[Column]) -> bool:
    """Whether the row names the columns."""
    try:
        return None not in [column.place(row) for column in columns]
    except InvalidInputError:  # twice
        return True


def _header(names: Sequence[str], columns: Sequence[Column]) -> list[int]:
    """Where the columns are; empty if this is no header. Raises CommandError if it lacks one that a person named."""
    try:
        places = [column.place(names) for column in columns]
    except InvalidInputError as error:
        raise CommandError(error.detail) from None
    if None in places and any(column.given for column in columns):
        missing = columns[places.index(None)]
        wanted = f"no column {missing.given}" if missing.given else f"no column for the {missing.which}"
        more = "" if missing.given else f"; --{missing.which}-column names it"
        raise CommandError(f"there is {wanted}: there are {', '.join(names)}{more}")
    return [place for place in places if place is not None] if None not in places else []


def _from_json(lines: Iterable[str], columns: Sequence[Column]) -> Iterator[_Record]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            document = json.loads(line)
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict):
            yield Refused(number, "is no JSON object")
            continue
        names = list(document)
        try:
            places = [column.place(names) for column in columns]
        except InvalidInputError as error:
            yield Refused(number, error.detail)
            continue
        if None in places:
            yield Refused(number, f"must have {', '.join(one.given or one.known[0] for one in columns)}")
        else:
            yield number, [document[names[place]] for place in places if place is not None]


NUMBERS = Kind(_NUMBER, _number)
"""What was counted of each id."""
CHILDREN = Kind(_CHILD, _child)
"""The items that a counter counts, each with its parent and the time when it was made."""
READINGS = Kind(_READING, _reading)
"""What an old counter said of each id, and when."""
