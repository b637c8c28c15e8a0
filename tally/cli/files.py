"""Reads the rows of CSV and of JSON lines: numbers, children, or readings of an old counter (`Layout`).

The first line of a CSV, or the keys of each line of JSON, name the columns in any order. Other columns are ignored. A
row that cannot be read becomes a RefusedRow, with the number of the row's line and the reason.
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
TIME_MAX_S = 10**11 - 1  # in the year 5138: stored times have at most eleven digits
FLOAT_MAX = 2**53  # up to here a float holds every whole number exactly
SECONDS_MIN, SECONDS_MAX = 946_684_800, 2 * 10**9 - 1
"""2000-01-01 to 2033-05-18. A smaller number is a year, or a day of Excel. A larger number is in milliseconds, or an
hour of Google Analytics (2024050312). The bounds do not depend on today, so each run reads the same times."""
DATE_DIGITS = 8  # a date like 20240503
CHILD_COLUMN = 1  # the index of the child in `Layout.columns`
FIRST_BYTES = 16  # read to find the type of a file in NOT_TEXT
QUOTED_CHARACTERS_MAX = 80  # characters of a wrong first line that a message quotes
_DECIMAL_PATTERN = re.compile(r"[+-]?[0-9]{1,38}(\.[0-9]{1,19})?([eE][+-]?[0-9]{1,3})?")
_NOT_UTF8 = re.compile("[\udc80-\udcff]")  # what `surrogateescape` makes of a byte that is not UTF-8
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
"""What a file is instead of text, and what its owner can do, by the first bytes of the file."""
_TOO_LONG = f"a field is longer than {csv.field_size_limit()} characters"
_Record = tuple[int, Sequence[Any]] | RefusedRow  # the number of a line, and the values of its row


class OldReading(NamedTuple):
    """The value of an old counter for an id at a time (`at_s`, epoch seconds). `line`: the number of its line."""

    line: int
    id: str
    value: int
    at_s: int


class Layout(NamedTuple):
    """The columns of a file, and how its rows are made."""

    columns: Callable[[Counter], Sequence[str]]  # returns the required columns
    make: Callable[[int, Sequence[Any], Counter], Any]  # makes a row from the number and the values of its line
    optional: Sequence[str] = ()  # columns that a file may also have
    names_child: bool = False
    """Whether the second column names a child. Only the name of a child may contain line breaks."""


def format_of(name: str | None, format_option: str | None) -> str:
    """Returns the format that --format names, or else the format by the end of the file's name (default: CSV)."""
    return format_option or (JSONL if Path(name or "").suffix.lower() in (".jsonl", ".ndjson") else CSV)


def format_rows(number: int) -> str:
    """Returns `1 row`, `2 rows`."""
    return f"{number} row{'' if number == 1 else 's'}"


def read(lines: Iterable[str], file_format: str, layout: Layout, counter: Counter) -> Iterator[Any]:
    """Yields rows, or a RefusedRow for an unreadable row. If a CSV does not name its columns, raises CommandError."""
    needed = layout.columns(counter)

    def is_row(values: Sequence[str]) -> bool:
        try:
            layout.make(0, values, counter)  # 0: nobody reads the number of the line
        except CallerError:
            return False
        return True

    is_csv = file_format == CSV
    for record in _from_csv(lines, needed, layout, is_row) if is_csv else _from_json(lines, needed, layout.optional):
        if isinstance(record, RefusedRow):
            yield record
        elif any(_NOT_UTF8.search(str(value)) for value in record[1]):
            encoding = "not UTF-8, but perhaps Latin-1 or Windows-1252"
            yield RefusedRow(record[0], f"the line is {encoding}: save the file as UTF-8")
        else:
            try:
                yield layout.make(record[0], record[1], counter)
            except CallerError as error:
                yield RefusedRow(record[0], error.detail)


def open_input(name: str) -> IO[bytes]:
    """Opens a file of text. Copies stdin (`-`) or a pipe to a file that can be read twice. Raises CommandError."""
    try:
        file = sys.stdin.buffer if name == "-" else Path(name).open("rb")  # noqa: SIM115  # the caller closes it
        if name == "-" or not file.seekable():
            copy = tempfile.TemporaryFile()  # noqa: SIM115
            shutil.copyfileobj(file, copy)
            copy.seek(0)
            file = copy
        first_bytes = file.read(FIRST_BYTES)
        file.seek(0)
    except OSError as error:
        raise CommandError(f"{name}: {error.strerror or error}") from None
    file_type = next((file_type for start, file_type in NOT_TEXT.items() if first_bytes.startswith(start)), None)
    if file_type is None and b"\0" in first_bytes[:2]:  # UTF-16 without a byte order mark
        file_type = NOT_TEXT[codecs.BOM_UTF16_LE]
    if file_type is not None:
        file.close()
        raise CommandError(f"{name} is not text, but {file_type}")
    return file


def _make_number_row(line: int, row: Sequence[Any], counter: Counter) -> NumberRow:
    id_, value, *day = row
    amount = _parse_amount(value)
    if counter.delta is not None and not counter.start:  # then changes reach only multiples of the fixed step
        if amount * counter.delta < 0:
            side, direction = ("below", "up") if counter.delta > 0 else ("above", "down")
            raise InvalidInputError(f"value must not be {side} 0: {counter.name} only counts {direction}")
        if amount % counter.delta:
            raise InvalidInputError(f"value must be a multiple of {counter.delta}, as {counter.name} counts")
    return NumberRow(line, stored_id(counter, id_), amount, parse_seconds(day[0]) // DAY_S if day else None)


def _make_reading(line: int, row: Sequence[Any], counter: Counter) -> OldReading:
    id_, value, at = row
    return OldReading(line, stored_id(counter, id_), _parse_amount(value), parse_seconds(at))


def _parse_amount(value: object) -> int:
    whole = _parse_whole(value)
    if whole is None or abs(whole) > VALUE_MAX:
        raise InvalidInputError(f"value must be a whole number from -{VALUE_MAX} to {VALUE_MAX}")
    return whole


def _make_child_row(line: int, row: Sequence[Any], counter: Counter) -> ChildRow:
    parent, child, at = row
    if not (counter.changes == ANYONE and anonymous.is_child_name(child)):  # an anonymous browser is not a user
        child = fields.user(child, "child")
    return ChildRow(line, stored_id(counter, parent), child, parse_seconds(at))


def _parse_whole(value: object) -> int | None:
    """Returns a number or a text as an int; None if the number is not whole, or is a float that may be rounded."""
    if isinstance(value, str) and (written := _DECIMAL_PATTERN.fullmatch(value.strip())):
        number = Decimal(written[0])
        return int(number) if number == number.to_integral_value() else None
    return None if isinstance(value, float) and abs(value) > FLOAT_MAX else fields.integer_or_none(value)


def parse_seconds(value: object) -> int:
    """Returns the epoch seconds of a time: ISO 8601 (in UTC if it names no zone), a date of eight digits, or seconds
    since 1970. Raises InvalidInputError, also for a number that is probably not in seconds."""
    number = _parse_whole(value)
    if number is not None and len(str(number)) != DATE_DIGITS:
        if not SECONDS_MIN <= number <= SECONDS_MAX:
            wrong = f"the time {number}, in seconds since 1970, is before 2000 or after May 2033"
            raise InvalidInputError(f"{wrong}: write it as 2024-05-03 or 2024-05-03T10:00:00Z")
        return number
    try:
        when = datetime.fromisoformat(str(value if number is None else number).strip())
        at_s = int((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp())
    except (ValueError, OverflowError):
        at_s = -1  # refused below
    if not 0 <= at_s <= TIME_MAX_S:
        formats = "ISO 8601 from 1970 on, as 2024-05-03T10:00:00Z, or seconds since 1970"
        raise InvalidInputError(f"the time must be {formats}")
    return at_s


def _from_csv(
    lines: Iterable[str], needed: Sequence[str], layout: Layout, is_row: Callable[[Sequence[str]], bool]
) -> Iterator[_Record]:
    """Yields the records of a CSV. An open quote joins all lines up to the next quote. So if a record of several lines
    is wrong, refuses only its first line, and reads its second line as the next record. A record is wrong, too, if a
    value has line breaks and is not a child's name, or if one of its lines is a row by itself (`is_row`)."""
    buffer = _LineBuffer(lines)
    indexes, width = _read_header(buffer, needed, layout.optional)
    while buffer.has_more():
        line = buffer.line_number
        try:
            row = next(csv.reader(buffer.take_row(), strict=True), [])
        except csv.Error as error:
            buffer.push_back_rest()
            too_long = len(buffer.taken[0]) > csv.field_size_limit() and "limit" in str(error)  # else a quote is open
            yield RefusedRow(line, _TOO_LONG if too_long else "a quote is not closed, or has text behind its end")
            continue
        if not row:
            continue
        if len(row) != width:
            buffer.push_back_rest()
            yield RefusedRow(line, f"the row has {len(row)} columns, and the first line has {width}")
            continue
        values = [row[index] for index in indexes]
        with_breaks = [column for column, value in enumerate(values) if "\n" in value or "\r" in value]
        inner_rows = [inner for inner in buffer.inner_rows(with_ends=bool(with_breaks)) if len(inner) == width]
        may_break = not with_breaks or (layout.names_child and with_breaks == [CHILD_COLUMN])
        if not may_break or any(is_row([inner[index] for index in indexes]) for inner in inner_rows):
            buffer.push_back_rest()
            yield RefusedRow(line, "a quote is not closed on its line")
        # The quotes of a quoted id are doubled in the file.
        elif '"' in values[0] and values[0].replace('"', '""') not in "".join(buffer.taken):
            yield RefusedRow(line, "an id contains a quote, and is not quoted itself")
        else:
            yield line, values


class _LineBuffer:
    """Lines that can be read twice. `line_number`: of the next line. `taken`: the lines of the last row."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._lines = iter(lines)
        self._to_reread: deque[str] = deque()
        self.taken: list[str] = []
        self.line_number = 1

    def has_more(self) -> bool:
        if not self._to_reread:
            self._to_reread.extend(islice(self._lines, 1))
        return bool(self._to_reread)

    def take_row(self) -> Iterator[str]:
        """Yields lines until the reader has a row, and keeps these lines in `taken`."""
        self.taken = []
        while self.has_more():
            self.taken.append(self._to_reread.popleft())
            self.line_number += 1
            yield self.taken[-1]

    def inner_rows(self, *, with_ends: bool) -> Iterator[Sequence[str]]:
        """Yields the lines of the last row, except the first and the last, each read as a row. `with_ends`: also these
        two lines, without quotes, because the quotes around a line break are on different lines."""
        for line in self.taken[1:-1] + [self.taken[end].replace('"', "") for end in (0, -1) if with_ends]:
            with contextlib.suppress(csv.Error):
                yield next(csv.reader([line], strict=True), [])

    def push_back_rest(self) -> None:
        """Puts the lines of the last row back, except the first."""
        rest = self.taken[1:]
        self._to_reread.extendleft(reversed(rest))
        self.line_number -= len(rest)


def _read_header(buffer: _LineBuffer, needed: Sequence[str], optional: Sequence[str]) -> tuple[list[int], int]:
    """Returns the indexes of the columns to read, and the number of columns. Raises CommandError."""
    line = next((one for one in buffer.take_row() if one.strip()), "")
    try:
        names = next(csv.reader([line], strict=True), [])
    except csv.Error:
        names = []
    wanted = [*needed, *(one for one in optional if one in names)]
    if any(names.count(one) != 1 for one in wanted):
        shown = line.strip()
        shown = repr(shown if len(shown) <= QUOTED_CHARACTERS_MAX else f"{shown[:QUOTED_CHARACTERS_MAX]}…")
        columns = f"the columns {', '.join(needed)}, once each, with commas between"
        raise CommandError(f"the first line must name {columns}. It is {shown}")
    return [names.index(one) for one in wanted], len(names)


def _from_json(lines: Iterable[str], needed: Sequence[str], optional: Sequence[str]) -> Iterator[_Record]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            document = json.loads(line, object_pairs_hook=_unique_names)
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict):
            yield RefusedRow(number, "is not a JSON object, or has a name twice")
        elif document.keys() >= set(needed):
            yield number, [document[one] for one in (*needed, *optional) if one in document]
        else:
            yield RefusedRow(number, f"must have {', '.join(needed)}")


def _unique_names(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Returns the object of a line. If a name occurs twice, raises ValueError."""
    document = dict(pairs)
    if len(document) != len(pairs):
        raise ValueError("a name twice")
    return document


NUMBERS = Layout(lambda counter: ("id", "value"), _make_number_row, optional=("day",))
"""The number of each id, and, if the file has this column, the day of the number."""
CHILDREN = Layout(
    lambda counter: ("post", "user", "liked_at") if counter.name == LIKES.name else ("id", "child", "at"),
    _make_child_row, names_child=True,
)  # fmt: skip
"""The children that a counter counts, each with its parent and its time."""
READINGS = Layout(lambda counter: ("id", "value", "at"), _make_reading)
"""The values of an old counter for each id, each with its time."""
