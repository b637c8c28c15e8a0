"""The rows of a file: numbers (id, value, perhaps their day), or children (parent, child, time), as CSV or JSON lines.

The first line of a CSV names the columns, in any order and among others; so do the keys of each line of JSON. A row
that cannot be imported comes as a RefusedRow, with the number of its line and the reason.
"""

from __future__ import annotations

import codecs
import contextlib
import csv
import json
import re
import shutil
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import IO, Any, NamedTuple

from tally import fields
from tally.builtin import LIKES
from tally.counter import ANYONE, Counter
from tally.counting import anonymous
from tally.counting.receipts import DAY_S
from tally.errors import CallerError, InvalidInputError
from tally.maintenance.imports import VALUE_MAX, ChildRow, NumberRow, RefusedRow

from .terminal import CommandError
from .values import stored_id

CSV, JSONL = "csv", "jsonl"
FORMATS = (CSV, JSONL)
TIME_MAX_S = 10**11 - 1
FLOAT_MAX = 2**53  # a float up to this is each whole number exactly
SECONDS_MIN, SECONDS_MAX = 946_684_800, 2 * 10**9 - 1
"""2000-01-01 to 2033-05-18. A smaller number is a year, or counts days as Excel does. A larger one is in milliseconds,
or an hour as Google Analytics writes it (2024050312). No clock decides: each run of a file must read the same rows."""
DATE_DIGITS = 8
BEGINS = 16  # bytes of a file that show what it is
SHOWN_MAX = 80  # characters of a first line that names other columns
_DECIMAL_PATTERN = re.compile(r"[+-]?[0-9]{1,38}(\.[0-9]{1,19})?([eE][+-]?[0-9]{1,3})?")
_NOT_UTF8 = re.compile("[\udc80-\udcff]")  # how Python reads a byte that is not UTF-8
NOT_TEXT = {
    codecs.BOM_UTF16_LE: "UTF-16: save it as UTF-8", codecs.BOM_UTF16_BE: "UTF-16: save it as UTF-8",
    b"\x1f\x8b": "compressed by gzip: `gunzip -c FILE | tally …` and - in place of FILE read it",
    b"\x28\xb5\x2f\xfd": "compressed by zstd: decompress it first", b"BZh": "compressed by bzip2: decompress it first",
    b"\xfd7zXZ": "compressed by xz: decompress it first",
    b"PK\x03\x04": "a ZIP archive or an Excel workbook: unpack it, or save the sheet as CSV in UTF-8",
    b"\xd0\xcf\x11\xe0": "an old Excel workbook: save the sheet as CSV in UTF-8",
    b"PAR1": "Parquet: write it as CSV or JSON lines",
    b"SQLite format 3": "a database of SQLite: export a table as CSV",
}  # fmt: skip
"""How files begin that are not text, and what each is."""
_TOO_LONG = f"a field is longer than {csv.field_size_limit()} characters"
_Record = tuple[int, Sequence[Any]] | RefusedRow


class OldReading(NamedTuple):
    """A row of a file: what an old counter said of an id at a time. `line`: its number in the file."""

    line: int
    id: str
    value: int
    at_s: int


class Layout(NamedTuple):
    """The columns that a file of a counter must have, those that it may have besides, and what makes a row of them."""

    columns: Callable[[Counter], Sequence[str]]
    make: Callable[[int, Sequence[Any], Counter], Any]
    optional: Sequence[str] = ()
    names_child: bool = False
    """Whether the second column names a child. Only that value may hold line breaks."""


def format_of(name: str | None, given: str | None) -> str:
    """The form of a file: the given one, or by its name."""
    return given or (JSONL if Path(name or "").suffix.lower() in (".jsonl", ".ndjson") else CSV)


def format_rows(number: int) -> str:
    """`1 row`, `2 rows`."""
    return f"{number} row{'' if number == 1 else 's'}"


def read(lines: Iterable[str], form: str, layout: Layout, counter: Counter) -> Iterator[Any]:
    """The rows, or why one cannot be read. The ids are as the counter stores them.

    Raises CommandError for a CSV whose first line does not name the columns.
    """
    needed = layout.columns(counter)

    def is_row(values: Sequence[str]) -> bool:
        try:
            layout.make(0, values, counter)
        except CallerError:
            return False
        return True

    asked = lines, needed, layout.optional
    for record in _from_csv(*asked, is_row, layout.names_child) if form == CSV else _from_json(*asked):
        try:
            if not isinstance(record, RefusedRow) and any(_NOT_UTF8.search(str(one)) for one in record[1]):
                raise InvalidInputError("it is not UTF-8, but perhaps Latin-1 or Windows-1252: save the file as UTF-8")
            yield record if isinstance(record, RefusedRow) else layout.make(record[0], record[1], counter)
        except CallerError as error:
            yield RefusedRow(record[0], error.detail)


def open_input(name: str) -> IO[bytes]:
    """The file; for `-`, or a pipe, a copy, because it may be read more than once. Raises CommandError."""
    try:
        file = sys.stdin.buffer if name == "-" else Path(name).open("rb")  # noqa: SIM115  # the caller closes it
        if name == "-" or not file.seekable():
            copy = tempfile.TemporaryFile()  # noqa: SIM115
            shutil.copyfileobj(file, copy)
            copy.seek(0)
            file = copy
        begins = file.read(BEGINS)
        file.seek(0)
    except OSError as error:
        raise CommandError(f"{name}: {error.strerror or error}") from None
    kind = next((kind for magic, kind in NOT_TEXT.items() if begins.startswith(magic)), None)
    if kind is None and b"\0" in begins[:2]:
        kind = NOT_TEXT[codecs.BOM_UTF16_LE]
    if kind is not None:
        file.close()
        raise CommandError(f"{name} is not text, but {kind}")
    return file


def _number(line: int, row: Sequence[Any], counter: Counter) -> NumberRow:
    id_, value, *day = row
    amount = _value(value)
    if counter.delta is not None and not counter.start:
        if amount * counter.delta < 0:
            below, up = ("below", "up") if counter.delta > 0 else ("above", "down")
            raise InvalidInputError(f"value must not be {below} 0: {counter.name} only counts {up}")
        if amount % counter.delta:
            raise InvalidInputError(f"value must be a multiple of {counter.delta}, as {counter.name} counts")
    return NumberRow(line, stored_id(counter, id_), amount, seconds(day[0]) // DAY_S if day else None)


def _reading(line: int, row: Sequence[Any], counter: Counter) -> OldReading:
    id_, value, at = row
    return OldReading(line, stored_id(counter, id_), _value(value), seconds(at))


def _value(value: object) -> int:
    whole = _whole(value)
    if whole is None or abs(whole) > VALUE_MAX:
        raise InvalidInputError(f"value must be a whole number from -{VALUE_MAX} to {VALUE_MAX}")
    return whole


def _child(line: int, row: Sequence[Any], counter: Counter) -> ChildRow:
    parent, child, at = row
    kept = counter.changes == ANYONE and anonymous.is_child_name(child)
    return ChildRow(line, stored_id(counter, parent), child if kept else fields.user(child, "child"), seconds(at))


def _whole(value: object) -> int | None:
    """Returns the whole number that a value or a text says; None if it says none, or if a float may be rounded."""
    if isinstance(value, str) and (written := _DECIMAL_PATTERN.fullmatch(value.strip())):
        number = Decimal(written[0])
        return int(number) if number == number.to_integral_value() else None
    return None if isinstance(value, float) and abs(value) > FLOAT_MAX else fields.integer_or_none(value)


def seconds(value: object) -> int:
    """Returns the epoch seconds of a time: ISO 8601, a date of eight digits, or a bare number of seconds since 1970.

    A time without a zone is UTC. Raises InvalidInputError, also for a bare number that is hardly in seconds.
    """
    bare = _whole(value)
    if bare is not None and len(str(bare)) != DATE_DIGITS:
        if not SECONDS_MIN <= bare <= SECONDS_MAX:
            raise InvalidInputError(
                f"the time {bare} would be before 2000 or after May 2033, if it is in seconds since 1970:"
                " write it as 2024-05-03 or 2024-05-03T10:00:00Z"
            )
        return bare
    try:
        when = datetime.fromisoformat(str(value if bare is None else bare).strip())
        at_s = int((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp())
    except (ValueError, OverflowError):
        at_s = -1
    if not 0 <= at_s <= TIME_MAX_S:
        raise InvalidInputError(
            "the time must be ISO 8601 from 1970 on, as 2024-05-03T10:00:00Z, or seconds since 1970"
        )
    return at_s


def _from_csv(
    lines: Iterable[str],
    needed: Sequence[str],
    optional: Sequence[str],
    is_row: Callable[[Sequence[str]], bool],
    names_child: bool,
) -> Iterator[_Record]:
    """A quote that nobody closes would take in the rows up to the next one. So what is wrong over several lines costs
    the first of them only: the next row begins on the line after it. Of what Tally reads, only the name of a child may
    have line breaks. No line of such a row is a row by itself, with its quotes or without."""
    ahead = _LineBuffer(lines)
    places, width = _header(ahead, needed, optional)
    while ahead.more():
        number, first = ahead.number, ahead.first()
        try:
            row = next(csv.reader(ahead.take_row(), strict=True), [])
        except csv.Error as error:
            ahead.push_back_rest()
            too_long = len(first) > csv.field_size_limit() and "limit" in str(error)  # else a quote took in more lines
            yield RefusedRow(
                number, _TOO_LONG if too_long else "a quote is not closed, or text stands behind one that is"
            )
            continue
        if not row:
            continue
        if len(row) != width:
            ahead.push_back_rest()
            yield RefusedRow(number, f"there must be {width} columns, and there are {len(row)}")
            continue
        read = [row[place] for place in places]
        broken = [number for number, one in enumerate(read) if "\n" in one or "\r" in one]
        if (broken and not (names_child and broken == [1])) or any(
            len(inner) == width and is_row([inner[place] for place in places])
            for inner in ahead.inner_rows(bool(broken))
        ):
            ahead.push_back_rest()
            yield RefusedRow(number, "a quote takes in the lines below")
        elif '"' in read[0] and read[0].replace('"', '""') not in ahead.text():
            yield RefusedRow(number, "a quote stands within an id that has no quotes around it")
        else:
            yield number, read


class _LineBuffer:
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

    def take_row(self) -> Iterator[str]:
        """The lines of one row."""
        self._taken = []
        while self.more():
            self._taken.append(self._again.popleft())
            self.number += 1
            yield self._taken[-1]

    def text(self) -> str:
        """The last row as the file has it."""
        return "".join(self._taken)

    def inner_rows(self, ends: bool) -> Iterator[Sequence[str]]:
        """The lines between the first and the last line of the last row, each read by itself. `ends`: also these two,
        without their quotes."""
        for line in self._taken[1:-1] + [self._taken[end].replace('"', "") for end in (0, -1) if ends]:
            with contextlib.suppress(csv.Error):
                yield next(csv.reader([line], strict=True), [])

    def push_back_rest(self) -> None:
        """Give the lines of the last row back, but for its first one."""
        back = self._taken[1:]
        self._again.extendleft(reversed(back))
        self.number -= len(back)


def _header(ahead: _LineBuffer, needed: Sequence[str], optional: Sequence[str]) -> tuple[list[int], int]:
    """Where the columns are that are read, and how many there are. Raises CommandError."""
    line = next((one for one in ahead.take_row() if one.strip()), "")
    try:
        names = next(csv.reader([line], strict=True), [])
    except csv.Error:
        names = []
    wanted = [*needed, *(one for one in optional if one in names)]
    if any(names.count(one) != 1 for one in wanted):
        shown = line.strip()
        shown = repr(shown if len(shown) <= SHOWN_MAX else f"{shown[:SHOWN_MAX]}…")
        raise CommandError(
            f"the first line must name the columns {', '.join(needed)}, once each, with commas between: it is {shown}"
        )
    return [names.index(one) for one in wanted], len(names)


def _from_json(lines: Iterable[str], needed: Sequence[str], optional: Sequence[str]) -> Iterator[_Record]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            document = json.loads(line, object_pairs_hook=_named_once)
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict):
            yield RefusedRow(number, "is no JSON object, or has a name twice")
        elif document.keys() >= set(needed):
            yield number, [document[one] for one in (*needed, *optional) if one in document]
        else:
            yield RefusedRow(number, f"must have {', '.join(needed)}")


def _named_once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """The object of a line. Raises ValueError."""
    document = dict(pairs)
    if len(document) != len(pairs):
        raise ValueError("a name twice")
    return document


def _child_columns(counter: Counter) -> Sequence[str]:
    return ("post", "user", "liked_at") if counter.name == LIKES.name else ("id", "child", "at")


NUMBERS = Layout(lambda counter: ("id", "value"), _number, optional=("day",))
"""What was counted of each id, perhaps in a day of its own."""
CHILDREN = Layout(_child_columns, _child, names_child=True)
"""The items that a counter counts, each with its parent and the time when it was made."""
READINGS = Layout(lambda counter: ("id", "value", "at"), _reading)
"""What an old counter said of each id, and when."""
