"""The rows of a file that is imported: numbers (id, value), or children (parent, child, time), as CSV or JSON lines.

A row that cannot be imported comes as a Refused, with the number of its line and the reason.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tally import fields
from tally.counter import Counter
from tally.counting.imports import VALUE_MAX, Child, Number, Refused
from tally.errors import CallerError, InvalidInputError

from .values import stored_id

CSV, JSONL = "csv", "jsonl"
FORMATS = (CSV, JSONL)
TIME_MAX_S = 10**11 - 1  # a larger number is in milliseconds
_NUMBER = (("id", "video", "videoid", "page", "url"), ("value", "count", "plays", "visits"))
_CHILD = (
    ("post", "id", "postid", "parent"),
    ("user", "child", "userid", "member"),
    ("likedat", "at", "createdat", "time"),
)
"""The names that each column may have: lower case, letters only."""
_WHOLE = re.compile(r"[+-]?[0-9]{1,19}")
_Record = tuple[int, Sequence[Any]] | Refused


def form_of(name: str | None, given: str | None) -> str:
    """The form of a file: the given one, or by its name."""
    return given or (JSONL if Path(name or "").suffix in (".jsonl", ".ndjson") else CSV)


def counted(number: int) -> str:
    """`1 row`, `2 rows`."""
    return f"{number} row{'' if number == 1 else 's'}"


def numbers(lines: Iterable[str], form: str, counter: Counter) -> Iterator[Number | Refused]:
    """What was counted of each id. The ids are as the counter stores them."""
    return _read(lines, form, _NUMBER, lambda line, row: _number(line, row, counter))


def children(lines: Iterable[str], form: str, counter: Counter) -> Iterator[Child | Refused]:
    """The items that a counter counts, each with its parent and the time when it was made."""
    return _read(lines, form, _CHILD, lambda line, row: _child(line, row, counter))


def _read(
    lines: Iterable[str], form: str, columns: Sequence[Sequence[str]], make: Callable[[int, Sequence[Any]], Any]
) -> Iterator[Any]:
    for record in (_from_csv if form == CSV else _from_json)(lines, columns):
        try:
            yield record if isinstance(record, Refused) else make(*record)
        except CallerError as error:
            yield Refused(record[0], error.detail)


def _number(line: int, row: Sequence[Any], counter: Counter) -> Number:
    id_, value = row
    found = _whole(value)
    if found is None or abs(found) > VALUE_MAX:
        raise InvalidInputError(f"value must be a whole number from -{VALUE_MAX} to {VALUE_MAX}")
    if counter.delta is not None and (found % counter.delta or found * counter.delta < 0) and not counter.start:
        raise InvalidInputError(f"value must be a multiple of {counter.delta}, as {counter.name} counts")
    return Number(line, stored_id(counter, id_), found)


def _child(line: int, row: Sequence[Any], counter: Counter) -> Child:
    parent, child, at = row
    return Child(line, stored_id(counter, parent), fields.user(child, "child"), _seconds(at))


def _whole(value: object) -> int | None:
    if isinstance(value, str) and _WHOLE.fullmatch(value.strip()):
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _seconds(value: object) -> int:
    """Epoch seconds of a time: these, or ISO 8601. One without a zone is UTC."""
    found = int(value) if isinstance(value, float) and value.is_integer() else _whole(value)
    if found is None and isinstance(value, str):
        try:
            when = datetime.fromisoformat(value.strip())
            found = int((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp())
        except (ValueError, OverflowError):
            found = None
    if found is None or not 0 <= found <= TIME_MAX_S:
        raise InvalidInputError("the time must be ISO 8601, or seconds since 1970")
    return found


def _from_csv(lines: Iterable[str], columns: Sequence[Sequence[str]]) -> Iterator[_Record]:
    """The first line may name the columns: then they come in any order, among others."""
    reader = csv.reader(lines, strict=True)
    places: Sequence[int] | None = None
    while True:
        try:
            row = next(reader, None)
        except csv.Error as error:
            yield Refused(reader.line_num, str(error))
            continue
        if row is None:
            return
        if places is None:
            places = _places(row, columns)
            if places:
                continue
        if not row:
            continue
        if places and len(row) > max(places):
            yield reader.line_num, [row[place] for place in places]
        elif not places and len(row) == len(columns):
            yield reader.line_num, row
        else:
            yield Refused(reader.line_num, f"there must be {len(columns)} columns, and there are {len(row)}")


def _from_json(lines: Iterable[str], columns: Sequence[Sequence[str]]) -> Iterator[_Record]:
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
        places = _places(names, columns)
        if places:
            yield number, [document[names[place]] for place in places]
        else:
            yield Refused(number, f"must have {', '.join(known[0] for known in columns)}")


def _places(names: Sequence[str], columns: Sequence[Sequence[str]]) -> list[int]:
    """Where the columns are; empty if these are no names of all of them."""
    plain = [re.sub(r"[^a-z]", "", name.lower()) for name in names]
    places = [next((place for place, name in enumerate(plain) if name in known), None) for known in columns]
    return [place for place in places if place is not None] if None not in places else []
