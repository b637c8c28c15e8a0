"""The command `import`: imports numbers or children from a file. Under the name of a run, each row counts once.

It reads the file twice: first it checks every row and writes nothing, then it imports in chunks. Before it counts a
row, it stores the run and a digest of the rows in the history. So a run is never counted twice, nor continued with
other rows.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import IO, Any

from tally.counter import Counter
from tally.counting import periods
from tally.drift import history
from tally.drift.checks import format_time
from tally.drift.history import ImportRun
from tally.dynamo import clock
from tally.dynamo.client import Call, Store
from tally.errors import RetryableError, StoreRefusedError, TallyError
from tally.maintenance import imports
from tally.maintenance.imports import ChildRow, Chunk, NumberRow, RefusedRow

from . import files, values
from .command import Command, Counters, Parser, add_counter
from .connection import Stack
from .files import format_rows
from .terminal import CommandError, note, print_json_or_line, progress_bar, say

PRINTED_LINES_MAX = 20  # bad rows that the command prints, and also refused rows
RUN_CHARACTERS = 16  # without --run, so many characters of the rows' SHA-256 are the run's name
BUSY_MAX, BUSY_S_MAX = 30, 20.0  # how often a chunk waits for busy tables, and the longest wait
BAD_INPUT = 2
_DAYS_MAX = imports.RESTART_S_MAX // 86400  # after these days a run cannot go on


def _add_arguments(parser: Parser, counters: Counters) -> None:
    columns = "a file with the columns id and value, or for likes post, user and liked_at; - is stdin"
    parser.add_argument("file", metavar="FILE", help=columns)
    into = parser.add_mutually_exclusive_group(required=True)
    add_counter(into, counters, "add the values to the numbers of this counter", "--counter")
    add_counter(into, counters, "put the children that this counter counts, as likes", "--children")
    run = "the name of the run (default: from the SHA-256 of its rows)"
    parser.add_argument("--run", metavar="NAME", type=values.run_name, help=run)
    format_text = "the format of the file (default: by its name; csv for stdin)"
    parser.add_argument("--format", choices=files.FORMATS, help=format_text)
    parser.add_argument("--skip-bad", action="store_true", help="import the other rows if some cannot be imported")


@dataclass
class CheckedFile:
    """The result of a check. `bad_rows`: how many rows cannot be imported. `first_bad`: the first of these rows."""

    rows: int = 0
    """How many rows can be read."""
    orphans: int = 0
    """How many of the rows that can be read have a parent that does not exist."""
    expired: int = 0
    """How many rows are of periods that Tally does not keep."""
    total: int = 0  # the sum of the values
    digest: str = ""
    """The SHA-256 of the rows that can be read, equal for CSV and JSON lines."""
    bad_rows: int = 0
    first_bad: list[RefusedRow] = field(default_factory=list)

    def refuse(self, row: RefusedRow) -> None:
        """Adds a row that cannot be imported."""
        self.bad_rows += 1
        if len(self.first_bad) < PRINTED_LINES_MAX:
            self.first_bad.append(row)


@dataclass(frozen=True)
class RowSource:
    """The rows of a file for one counter. `are_children`: each row is a child, not a number."""

    file: IO[bytes]
    file_format: str
    counter: Counter
    are_children: bool

    def rows(self) -> Iterator[NumberRow | ChildRow | RefusedRow]:
        """Yields every row, from the start of the file."""
        self.file.seek(0)
        text = io.TextIOWrapper(self.file, "utf-8-sig", errors="surrogateescape", newline="")
        try:
            layout = files.CHILDREN if self.are_children else files.NUMBERS
            yield from files.read(text, self.file_format, layout, self.counter)
        finally:
            text.detach()

    def chunks(self) -> Iterator[Chunk[NumberRow] | Chunk[ChildRow]]:
        """Yields the readable rows in chunks, always the same chunks: the key under which one counts has its number."""
        good: Iterator[Any] = (row for row in self.rows() if not isinstance(row, RefusedRow))
        return imports.child_chunks(good) if self.are_children else imports.number_chunks(self.counter, good)


def import_file(args: argparse.Namespace, stack: Stack) -> int:
    """Checks a file, and with --yes imports it. Returns 1 if a row was refused, 2 if bad rows stopped the import."""
    counter: Counter = args.children or args.counter
    if wrong := imports.refusal_of_import(counter, children=bool(args.children)):
        raise CommandError(wrong)
    store = stack.store
    with files.open_input(args.file) as file:
        source = RowSource(file, files.format_of(args.file, args.format), counter, bool(args.children))
        checked = _check_rows(source, store)
        name = args.run or checked.digest[:RUN_CHARACTERS]
        for bad in checked.first_bad:
            note(f"line {bad.line}: {bad.why}")
        if checked.expired:
            note(f"{format_rows(checked.expired)} of periods that {counter.name} does not keep: nobody can read them")
        if checked.bad_rows and not args.skip_bad:
            bad_rows, hidden = format_rows(checked.bad_rows), checked.bad_rows - len(checked.first_bad)
            hidden_text = f" ({hidden} more than these)" if hidden else ""
            note(f"{bad_rows} cannot be imported{hidden_text}, so no row is imported; --skip-bad leaves these rows out")
            return BAD_INPUT
        if not args.yes:
            total = "" if source.are_children else f", {checked.total} in all"
            skipped = f", {format_rows(checked.bad_rows)} left out" if checked.bad_rows else ""
            rows = f"{counter.name}: {format_rows(checked.rows - checked.orphans)}{total}{skipped}"
            say(f"would import into {rows}, as the run {name}; --yes does it")
            for entry in history.import_runs(store, counter.name):
                note(_format_run(entry))
            return 0
        run = ImportRun(store, counter.name, name, args.by, args.why, int(clock.now_s()), checked.digest, checked.rows)
        return _import_rows(source, store, run)


def _check_rows(source: RowSource, store: Store) -> CheckedFile:
    """Reads every row. Counts a row whose parent does not exist as a row that cannot be imported."""
    checked, digest = CheckedFile(), hashlib.sha256()
    lines: dict[str, list[int]] = {}
    existing_parents: set[str] = set()
    with progress_bar(source.rows(), "row", "checked") as rows:
        for row in rows:
            if isinstance(row, RefusedRow):
                checked.refuse(row)
                continue
            checked.rows += 1
            digest.update(json.dumps(row[1:]).encode())  # without the line's number
            if isinstance(row, NumberRow):
                checked.total += row.value
                checked.expired += not periods.is_kept(source.counter, row.id, clock.now_s())
            elif row.id not in existing_parents:
                lines.setdefault(row.id, []).append(row.line)
                if len(lines) == imports.PARENTS_MAX:
                    _check_parents(source.counter, store, lines, existing_parents, checked)
    _check_parents(source.counter, store, lines, existing_parents, checked)
    checked.digest = digest.hexdigest()
    return checked


def _check_parents(
    counter: Counter, store: Store, lines: dict[str, list[int]], existing_parents: set[str], checked: CheckedFile
) -> None:
    """Refuses the rows whose parents do not exist, and adds the other parents to `existing_parents`. `lines`: the lines
    of the rows to check, by parent; empty at the end."""
    missing = imports.missing_parents(Call(store), counter, list(lines)) if lines else set()
    for id_ in missing:
        for line in lines[id_]:
            checked.orphans += 1
            checked.refuse(RefusedRow(line, f"there is no {counter.prefix.lower()} {id_}"))
    existing_parents |= lines.keys() - missing
    lines.clear()


def _import_rows(source: RowSource, store: Store, import_run: ImportRun) -> int:
    """Imports the rows that the run has not imported. Returns 1 if a row was refused. If the run began with other rows,
    or too long ago, raises CommandError."""
    earlier = import_run.begin()  # the entry in the history, if the run was started before
    if earlier is not None:
        if earlier["digest"] != import_run.digest:
            raise CommandError(f"the run {import_run.run} began with other rows: give these rows another --run NAME")
        if earlier["finished"]:
            say(f"the run {import_run.run} ended before: {format_rows(earlier['rows'])}, {earlier['refused']} refused")
            return 1 if earlier["refused"] else 0
        if clock.now_s() > earlier["at"] + imports.RESTART_S_MAX:
            began = f"the run {import_run.run} began at {format_time(earlier['at'])}"
            raise CommandError(f"{began}: its receipts have expired, so it cannot go on")
        import_run = replace(import_run, by=earlier["by"], why=earlier["why"], at_s=earlier["at"])  # as it began
    note(f"the run {import_run.run}: if it stops, start it again within {_DAYS_MAX} days; each row counts once")
    imported = refused = existed = 0
    with progress_bar(None, "row", "imported", import_run.rows) as bar:
        for chunk in source.chunks():
            if clock.now_s() > import_run.at_s + imports.RESTART_S_MAX:
                raise CommandError(f"the run {import_run.run} is {_DAYS_MAX} days old: its first receipts expire soon")
            refused_rows, existing = _commit(source, store, import_run.run, chunk)
            for row in refused_rows[: max(0, PRINTED_LINES_MAX - refused)]:
                note(f"line {row.line}: {row.why}")
            refused, existed = refused + len(refused_rows), existed + existing
            imported += len(chunk.rows) - len(refused_rows) - existing
            bar.update(len(chunk.rows))
    import_run.finish(refused)
    parts = [f"imported {format_rows(imported)}"]
    parts += [f"{existed} existed"] * bool(existed) + [f"{refused} refused"] * bool(refused)
    say(f"{', '.join(parts)}, as the run {import_run.run}")
    return 1 if refused else 0


def _commit(source: RowSource, store: Store, run: str, chunk: Any) -> tuple[list[RefusedRow], int]:
    """Imports a chunk once, and retries while the store is busy: a new table needs minutes to grow. Returns the refused
    rows, and how many children existed before."""
    counter, wait_s = source.counter, 0.25
    for _ in range(BUSY_MAX):
        try:
            if not source.are_children:
                return imports.import_numbers(Call(store), counter, run, chunk), 0
            body = imports.import_children(Call(store), counter, run, chunk)
            ids = {row.line: row.id for row in chunk.rows}
            reasons = {line: f"there is no {counter.prefix.lower()} {ids[line]}" for line in body["missing"]}
            return [RefusedRow(line, why) for line, why in reasons.items()], int(body["already"])
        except StoreRefusedError:  # other callers try again; this command ends, because a person must mend it
            raise
        except RetryableError:
            time.sleep(wait_s)
            wait_s = min(2 * wait_s, BUSY_S_MAX)
        except TallyError as error:
            raise CommandError(f"the import stopped: {error.detail}") from None
    raise CommandError("the store is busy: run this again later, and the import goes on")


def print_runs(args: argparse.Namespace, stack: Stack) -> int:
    """Prints the runs, by counter."""
    for entry in history.import_runs(stack.store):
        print_json_or_line(args, entry, _format_run(entry))
    return 0


def _format_run(entry: Mapping[str, Any]) -> str:
    did = f"{'imported' if entry['finished'] else 'began to import'} {format_rows(entry['rows'] - entry['refused'])}"
    refused = f", {entry['refused']} refused" if entry["refused"] else ""
    run = f"{format_time(entry['at'])}  {entry['counter']}: the run {entry['run']}"
    return f"{run} {did}{refused}, by {entry['by']}: {entry['why']}"


IMPORT = Command(
    "import", import_file, _add_arguments,
    write_option="--yes",
    unknown_option_hint="a file names its columns id and value, for likes post, user and liked_at (docs/migrate.md)",
    examples="""  tally import plays.csv --counter plays         checks the file; with --yes, imports it
  psql --csv -c 'SELECT slug AS id, views AS value FROM stats' | tally import - --counter plays
""",
)  # fmt: skip
