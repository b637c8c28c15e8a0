"""The command `export`: the tallies of a counter, or the items that it counts, for `import` or for a warehouse.

With --changes-since it writes those alone that Tally has changed since then. Each item has the minute of its last
change. The rollup writes later, on the minute of the change itself. So the next export begins where the rollup was
complete before this one began.
"""

from __future__ import annotations

import argparse
import csv
import importlib
import itertools
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tally.counter import Counter
from tally.counting import tallies
from tally.counting.children import SINCE
from tally.counting.tallies import GONE
from tally.dynamo import items, queries
from tally.dynamo.client import Store
from tally.dynamo.keys import Item, minute_of
from tally.fields import user_name
from tally.shipped import LIKES
from tally.streams import watermark

from . import rows, values
from .command import Command, Counters, Parser, UsageError, add_counter
from .connection import Stack
from .terminal import CommandError, bar, note

PARQUET = "parquet"
FORMATS = (*rows.FORMATS, PARQUET)
MARGIN = 5  # minutes that a change may take from its stamp to its write: a function runs for 30 s at most
BATCH = 10_000  # rows of Parquet in memory
INT64 = 2**63
Put = Callable[[Sequence[Any]], object]
Writer = Callable[[Any, Sequence[str]], AbstractContextManager[Put]]


def _arguments(made: Parser, counters: Counters) -> None:
    add_counter(made, counters, "whose numbers")
    made.add_argument("file", metavar="FILE", nargs="?", help="default: stdout")
    made.add_argument("--children", action="store_true", help="the items that it counts, instead of the numbers")
    made.add_argument("--format", choices=FORMATS, help="default: by the file's name; csv for stdout")
    made.add_argument(
        "--changes-since",
        metavar="TIME",
        type=values.second,
        help="only what changed, like 2026-11-22T10:30:00Z",
    )


def _check(given: argparse.Namespace) -> None:
    """Completes the form. Raises UsageError."""
    by_name = PARQUET if Path(given.file or "").suffix == f".{PARQUET}" else None
    given.format = given.format or by_name or rows.form_of(given.file, None)
    if given.format == PARQUET and given.file in (None, "-"):
        raise UsageError("--format parquet needs a FILE")


def _run(given: argparse.Namespace, stack: Stack) -> int:
    """Write the tallies, or the children, of a counter. It scans the counts table."""
    counter, store = given.counter, stack.store
    if given.children and not counter.child:
        raise CommandError(f"{counter.name} counts no items")
    children = ("post", "user", "liked_at") if counter == LIKES else ("id", "child", "at")
    names = children if given.children else ("id", "value")
    since_s, whole_s, written = given.changes_since, watermark.read(store).as_of(store.settings), 0
    since = None if since_s is None else store.settings.minute(since_s) - MARGIN
    writer: Writer = {PARQUET: _parquet, rows.CSV: _csv, rows.JSONL: _jsonl}[given.format]
    with _opened(given.file, binary=given.format == PARQUET) as file, writer(file, names) as put:
        for row in (_children if given.children else _numbers)(store, counter, since):
            put(row)
            written += 1
    note(f"exported {rows.counted(written)}")
    if since_s is not None and whole_s is None:
        note("nobody can tell since when the next one has to be: nothing is judged yet")
    elif whole_s is not None:
        note(f"the next one: --changes-since {datetime.fromtimestamp(whole_s, UTC).isoformat()}")
    return 0


@contextmanager
def _csv(file: Any, names: Sequence[str]) -> Iterator[Put]:
    made = csv.writer(file, lineterminator="\n")
    made.writerow(names)
    yield made.writerow


@contextmanager
def _jsonl(file: Any, names: Sequence[str]) -> Iterator[Put]:
    yield lambda row: file.write(json.dumps(dict(zip(names, row, strict=True))) + "\n")


@contextmanager
def _parquet(file: Any, names: Sequence[str]) -> Iterator[Put]:
    """Texts, whole numbers of 64 bits, and times of UTC. Raises CommandError for a larger one, or without pyarrow."""
    try:
        importlib.import_module("pyarrow.parquet")
        arrow: Any = importlib.import_module("pyarrow")
    except ImportError:
        raise CommandError("Parquet needs the package pyarrow, and it is not installed beside Tally") from None
    kinds = {"value": arrow.int64(), **dict.fromkeys(("at", "liked_at"), arrow.timestamp("s", tz="UTC"))}
    schema = arrow.schema([(name, kinds.get(name, arrow.string())) for name in names])
    batch: list[Sequence[Any]] = []

    def flush() -> None:
        columns = zip(*batch, strict=True) if batch else [()] * len(names)
        arrays = [arrow.array(column, kind) for column, kind in zip(columns, schema.types, strict=True)]
        made.write_batch(arrow.record_batch(arrays, schema=schema))
        batch.clear()

    def put(row: Sequence[Any]) -> None:
        if isinstance(row[-1], int) and not -INT64 <= row[-1] < INT64:
            raise CommandError(f"{row[0]}: {row[-1]} is too large for Parquet: use csv or jsonl")
        batch.append(row)
        if len(batch) == BATCH:
            flush()

    with arrow.parquet.ParquetWriter(file, schema) as made:
        yield put
        flush()


@contextmanager
def _opened(name: str | None, *, binary: bool) -> Iterator[Any]:
    """The file, which takes its name when it is whole. Raises CommandError."""
    if name in (None, "-"):
        yield sys.stdout
        return
    path, part = Path(str(name)), Path(f"{name}.part")
    how: dict[str, Any] = {"mode": "wb"} if binary else {"mode": "w", "encoding": "utf-8", "newline": ""}
    try:
        if path.exists() and not path.is_file():  # a pipe or a device
            with path.open(**how) as file:
                yield file
            return
        with part.open(**how) as file:
            yield file
        part.replace(path)
    except OSError as error:
        raise CommandError(f"{name}: {error.strerror or error}") from None
    finally:
        part.unlink(missing_ok=True)


def _collections(store: Store, counter: Counter) -> Iterator[tuple[str, list[Item]]]:
    """The items of each id of the counter's prefix. A scan returns item collections whole."""
    start = counter.partition_start
    with bar(queries.scan(store, store.settings.counts_table), "page", "scanned") as pages:
        found = (item for page in pages for item in page if item["PK"]["S"].startswith(start))
        for partition, same in itertools.groupby(found, lambda item: item["PK"]["S"]):
            yield partition.removeprefix(start), list(same)


def _changed(items: Iterable[Item], since: int | None) -> bool:
    """Whether one of them changed since a minute. One that does not say when it changed may have."""
    return since is None or any((minute_of(item) or since) >= since for item in items)


def _numbers(store: Store, counter: Counter, since: int | None) -> Iterator[tuple[str, int]]:
    """Each tally that changed: the sum of its shards. That of a deleted post is none."""
    for id_, found in _collections(store, counter):
        shards = [item for item in found if counter.shard_of(item["SK"]["S"]) is not None]
        if not _changed(shards, since):
            continue
        if any(counter.attribute in item for item in shards) and not any(GONE in item for item in shards):
            yield id_, tallies.total(counter, shards)


def _children(store: Store, counter: Counter, since: int | None) -> Iterator[tuple[str, str, int]]:
    """Each item that the counter counts and that changed: its parent, its own name, and when it was made."""
    first, last = counter.children
    for id_, found in _collections(store, counter):
        if any(GONE in item for item in found if item["SK"]["S"] == counter.sort_key):
            continue
        for item in found:
            if first <= item["SK"]["S"] < last and GONE not in item and _changed([item], since):
                yield id_, user_name(item["SK"]["S"].removeprefix(first)), items.number(item, SINCE)


EXPORT = Command(
    "export", "print the numbers of a counter, or what it counts, as `import` reads it", _run, _arguments, _check,
    examples="""  tally export plays plays.csv
  tally export plays plays.parquet               needs the package pyarrow
  tally export plays new.jsonl --changes-since 2026-11-22T10:30:00Z
""",
)  # fmt: skip
