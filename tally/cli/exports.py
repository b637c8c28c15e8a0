"""The command `export`: writes the numbers of a counter, its children, or the limits of its ids."""

from __future__ import annotations

import argparse
import csv
import io
import itertools
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC
from pathlib import Path
from typing import IO, Any

from tally.counter import Counter
from tally.counting import limits, periods, tallies
from tally.counting.children import CREATED_AT
from tally.counting.tallies import TOMBSTONE
from tally.dynamo import items, queries
from tally.dynamo.client import Store
from tally.dynamo.keys import Item
from tally.fields import decoded_user
from tally.items import RESERVED_GROUP_PREFIX
from tally.maintenance.imports import RefusedRow

from . import files
from .command import Command, Counters, Parser, UsageError, add_counter
from .connection import Stack
from .terminal import CommandError, iso, note, progress_bar

_LINE_BREAK = re.compile(r"[\r\n]")


def _add_arguments(parser: Parser, counters: Counters) -> None:
    add_counter(parser, counters, "the counter to export")
    parser.add_argument("file", metavar="FILE", nargs="?", help="the file to write (default: stdout)")
    content = parser.add_mutually_exclusive_group()
    content.add_argument("--children", action="store_true", help="export the items that the counter counts")
    content.add_argument("--limits", action="store_true", help="export the overrides of the limit")
    text = "the format of the file (default: by its name; csv for stdout)"
    parser.add_argument("--format", choices=files.FORMATS, help=text)


def _check_options(args: argparse.Namespace) -> None:
    """Completes the format. Raises UsageError."""
    if args.format is None and Path(args.file or "").suffix == ".parquet":
        raise UsageError("export does not write Parquet: export to .csv or .jsonl, and convert the file")
    args.format = files.format_of(args.file, args.format)
    if args.limits and not args.counter.limit_overrides:
        raise UsageError(f"{args.counter.name} is declared without limit_overrides, so no id has an override")


def export(args: argparse.Namespace, stack: Stack) -> int:
    """Writes the numbers, the children or the limits of a counter. Scans the counts table."""
    counter, store = args.counter, stack.store
    if args.children and not counter.child:
        hint = "" if counter.items is None else f": export the table {counter.items.table}"
        raise CommandError(f"{counter.name} has no children{hint}")
    stack.check_counted(counter)
    columns = ("id", "limit") if args.limits else (files.CHILDREN if args.children else files.NUMBERS).columns(counter)
    read_rows = _read_limits if args.limits else _read_children if args.children else _read_numbers
    written = 0
    with _open_output(args.file) as file:
        write_csv = _csv_writer(file, columns) if args.format == files.CSV else None
        for row in read_rows(store, counter):
            if args.children and write_csv:
                _check_importable(counter, columns, row)
            if write_csv:
                write_csv(row)
            else:
                file.write(json.dumps(dict(zip(columns, row, strict=True))) + "\n")
            written += 1
    note(f"exported {files.format_rows(written)}")
    return 0


def _csv_writer(file: IO[str], columns: Sequence[str]) -> Callable[[Sequence[Any]], object]:
    """Writes the names of the columns, and returns the function that writes a row."""
    minimal = csv.writer(file, lineterminator="\n")
    quoting = csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_ALL)
    minimal.writerow(columns)
    # Python before 3.13 does not quote a carriage return by itself.
    return lambda row: (quoting if any("\r" in str(one) for one in row) else minimal).writerow(row)


def _check_importable(counter: Counter, columns: Sequence[str], row: Sequence[Any]) -> None:
    """If the child's name has line breaks, and `import` would read one of its lines as a row, raises CommandError."""
    if not _LINE_BREAK.search(str(row[1])):
        return
    text = io.StringIO(newline="")
    _csv_writer(text, columns)(row)
    text.seek(0)
    if any(isinstance(one, RefusedRow) for one in files.read(text, files.CSV, files.CHILDREN, counter)):
        child = f"the child {row[1]!r} of {row[0]}"
        raise CommandError(f"{child} has a line that reads as a row of CSV. Export with --format jsonl")


@contextmanager
def _open_output(name: str | None) -> Iterator[IO[str]]:
    """Opens the output. Writes to `NAME.part`, and renames a complete file to `NAME`. Raises CommandError."""
    if name in (None, "-"):
        yield sys.stdout
        return
    path, partial = Path(str(name)), Path(f"{name}.part")
    open_options: dict[str, Any] = {"mode": "w", "encoding": "utf-8", "newline": ""}
    try:
        if path.exists() and not path.is_file():  # a pipe or a device
            with path.open(**open_options) as file:
                yield file
            return
        with partial.open(**open_options) as file:
            yield file
        partial.replace(path)
    except OSError as error:
        raise CommandError(f"{name}: {error.strerror or error}") from None
    finally:
        partial.unlink(missing_ok=True)


def _read_collections(store: Store, counter: Counter) -> Iterator[tuple[str, list[Item]]]:
    """Yields each id of the counter's prefix with all its items. A scan returns the items of a partition in a row."""
    start = counter.partition_start
    with progress_bar(queries.scan_pages(store, store.settings.counts_table), "page", "scanned") as pages:
        of_counter = (item for page in pages for item in page if item["PK"]["S"].startswith(start))
        for partition, in_partition in itertools.groupby(of_counter, lambda item: item["PK"]["S"]):
            yield partition.removeprefix(start), list(in_partition)


def _read_numbers(store: Store, counter: Counter) -> Iterator[tuple[str, int]]:
    """Yields each id that has a number. Leaves out removed parents, and reserved groups, which are Tally's own."""
    for id_, in_partition in _read_collections(store, counter):
        if counter.items is not None and id_.startswith(RESERVED_GROUP_PREFIX):
            continue
        shards = [item for item in in_partition if counter.shard_of(item["SK"]["S"]) is not None]
        if any(counter.attribute in item for item in shards) and not any(TOMBSTONE in item for item in shards):
            yield id_, tallies.sum_of_shards(counter, shards)


def _read_limits(store: Store, counter: Counter) -> Iterator[tuple[str, int]]:
    """Yields each id with an override, and the limit. Leaves out `ID#PERIOD`, whose tally copies the override of ID."""
    for id_, in_partition in _read_collections(store, counter):
        for item in in_partition:
            parsed = limits.parse_limits(counter, item)
            if item["SK"]["S"] == counter.sort_key and parsed.is_override and id_ == periods.answer_members(id_)["id"]:
                yield id_, int(parsed.limit or 0)


def _read_children(store: Store, counter: Counter) -> Iterator[tuple[str, str, str]]:
    """Yields each child that is not removed: parent, name, time. ISO 8601: `import` takes no seconds before 2000."""
    first, last = counter.child_range
    for id_, in_partition in _read_collections(store, counter):
        if any(TOMBSTONE in item for item in in_partition if item["SK"]["S"] == counter.sort_key):
            continue
        for item in in_partition:
            name = item["SK"]["S"]
            if first <= name < last and TOMBSTONE not in item:
                yield id_, decoded_user(name.removeprefix(first)), iso(items.int_attribute(item, CREATED_AT), UTC)


EXPORT = Command(
    "export", export, _add_arguments, _check_options,
    examples="""  tally export plays plays.csv
  tally export likes likes.jsonl --children
""",
    unknown_option_hint="an export always has every row",
)  # fmt: skip
