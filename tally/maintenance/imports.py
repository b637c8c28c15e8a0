"""Imports numbers and children that were counted elsewhere. A run counts each chunk of rows once.

The chunks depend only on the rows. So a run that was killed and is started again makes the same chunks, and finds the
receipts of the committed chunks. A receipt has a digest of the chunk's rows, so a run with the same name and other rows
is refused. The journal expects an import like every accepted change. But an import is not traffic. Imported receipts
and children have a mark, so that series list imports apart, and top lists leave imports out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Generic, NamedTuple, TypeVar

from .. import fields
from ..counter import Counter
from ..counting import anonymous, batch, increments, tallies
from ..counting.batch import Batch
from ..counting.children import CREATED_AT, accepts_children_condition
from ..counting.receipts import IMPORT, IMPORTED, Body, ReceiptDraft, ReceiptKey, count_once
from ..counting.tallies import TOMBSTONE, Tally, minute_now
from ..dynamo import queries
from ..dynamo.client import Call
from ..dynamo.keys import key
from ..dynamo.transactions import (
    CONDITION_FAILED,
    TRANSACTION_ITEMS_MAX,
    Write,
    put_receipt,
    send,
    sleep_or_raise_busy,
)
from ..errors import AlreadyCountedError, LimitReachedError, PreconditionFailedError

KEPT_DAYS = 30
"""The life of an import's receipts. The options of the counter and of the deployment do not change this life."""
RESTART_S_MAX = (KEPT_DAYS - 1) * 24 * 3600
"""A run may import for so long after its first start, also after a restart. The first receipts expire a day later."""
VALUE_MAX = 10**37  # of one row: a tally has at most 38 digits, so a tally has room for nine such rows
ROWS_MAX = 1000  # of a chunk, which has TALLIES_MAX tallies at most
PARENTS_MAX = 100  # DynamoDB's limit of a BatchGetItem


class NumberRow(NamedTuple):
    """A row of a file: a number that was counted for an id. `line`: the line number in the file. `day`: the day since
    1970 on which the number was counted; None: not known, so the row belongs to the day of the import."""

    line: int
    id: str
    value: int
    day: int | None = None


class ChildRow(NamedTuple):
    """A row of a file: a child of the parent `id`. `child`: the child's encoded name. `at_s`: when it was put."""

    line: int
    id: str
    child: str
    at_s: int


Row = TypeVar("Row", NumberRow, ChildRow)


class RefusedRow(NamedTuple):
    """A row that was not imported, and why."""

    line: int
    why: str


class Chunk(NamedTuple, Generic[Row]):
    """Rows that are counted with one receipt. `place`: the chunk's place in its run, from 0."""

    place: int
    rows: list[Row]


def sets_number(counter: Counter) -> bool:
    """Returns whether an import sets the number instead of adding to it: if the counter is numbered or has a start."""
    return counter.numbered or counter.start != 0


def refusal_of_import(counter: Counter, *, children: bool) -> str:
    """Returns why numbers, or `children`, cannot be imported into a counter; empty if they can."""
    if counter.retired:
        return f"{counter.name} is retired: it takes no more changes"
    if counter.items is not None:
        return fields.wrong_kind_error(counter).detail
    if counter.counts_children and not children:
        return f"{counter.name} counts children: import the children with --children {counter.name}"
    if children and not counter.counts_children:
        return f"{counter.name} counts no children: import its numbers with --counter {counter.name}"
    return ""


def number_chunks(counter: Counter, rows: Iterable[NumberRow]) -> Iterator[Chunk[NumberRow]]:
    """Yields chunks, each of one day. If rows set numbers, or a limit may refuse a row, each row is a chunk."""
    rows_max = 1 if counter.is_conditional else ROWS_MAX
    place = 0
    for _, of_day in groupby(rows, attrgetter("day")):
        for chunk in _chunked(of_day, lambda count, id_count: count <= rows_max and id_count <= fields.TALLIES_MAX):
            yield chunk._replace(place=place)
            place += 1


def child_chunks(rows: Iterable[ChildRow]) -> Iterator[Chunk[ChildRow]]:
    """Yields chunks, in order. A chunk's receipt, its children and their tallies fit into one transaction."""
    return _chunked(rows, lambda count, id_count: 1 + count + id_count <= TRANSACTION_ITEMS_MAX)


def _chunked(rows: Iterable[Row], fits: Callable[[int, int], bool]) -> Iterator[Chunk[Row]]:
    """Yields chunks. `fits`: whether a number of rows, with a number of ids, fits into one chunk."""
    chunk, ids = Chunk[Row](0, []), set[str]()
    for row in rows:
        if not fits(len(chunk.rows) + 1, len(ids) + (row.id not in ids)):
            yield chunk
            chunk, ids = Chunk(chunk.place + 1, []), set()
        chunk.rows.append(row)
        ids.add(row.id)
    if chunk.rows:
        yield chunk


def import_numbers(call: Call, counter: Counter, run: str, chunk: Chunk[NumberRow]) -> list[RefusedRow]:
    """Counts a chunk once. Returns the rows that a limit or an existing number refused. `run`: the name of the run.

    The rows count what happened outside Tally. So a sum may go beyond a limit by the counter's `debt`. If the run has
    counted other rows at this place, raises KeyReusedError. Raises CounterRetiredError and StoreBusyError.
    """
    name = f"{run}/{chunk.place}"
    chunk_day = chunk.rows[0].day
    assert all(row.day == chunk_day for row in chunk.rows), "a receipt has one day"
    sums: dict[Tally, int] = {}
    for row in chunk.rows:
        tally = Tally(counter, row.id)
        sums[tally] = sums.get(tally, 0) + row.value
    try:
        if sets_number(counter):  # version 0: only if the tally has no number
            for (_, id_), value in sums.items():
                increments.set_value(
                    call, counter, id_, value, 0, operation=IMPORT, key=name, days=KEPT_DAYS, imported_day=chunk_day,
                    debt=counter.debt,
                )  # fmt: skip
            return []
        changes = Batch(len(chunk.rows), sums, first_entry=dict.fromkeys(sums, 0), may_use_debt=True)
        key_ = f"{counter.name}/{name}"  # the id of a batch's receipt does not contain the counter
        batch.count(call, changes, operation=IMPORT, key=key_, soon=False, days=KEPT_DAYS, imported_day=chunk_day)
    except (LimitReachedError, PreconditionFailedError) as error:
        # Drops `changes[0], stock mug: `, because the command names the row's line. Drops `Nothing was counted.`, as
        # other chunks of the run may be counted.
        why = error.detail.rpartition(": ")[2].removesuffix(" Nothing was counted.")
        return [RefusedRow(row.line, why) for row in chunk.rows]
    return []


def missing_parents(call: Call, counter: Counter, ids: Sequence[str]) -> set[str]:
    """Returns the ids whose parent does not exist, if the counter needs parents. `ids`: at most PARENTS_MAX."""
    if not counter.parent_required:
        return set()
    keys = [tallies.key(counter, id_, 0) for id_ in ids]
    table = call.store.settings.counts_table
    parents = queries.get_many(call, table, keys, ProjectionExpression=f"PK, {TOMBSTONE}")
    present = {item["PK"]["S"].removeprefix(counter.partition_start) for item in parents if TOMBSTONE not in item}
    return set(ids) - present


def import_children(call: Call, counter: Counter, run: str, chunk: Chunk[ChildRow]) -> Body:
    """Puts the children of a chunk once, and moves their tallies. Returns `{"imported","already","missing"}`.

    `already`: how many rows have a child that existed before or that an earlier row has, too. `missing`: the lines of
    children whose parents do not exist. A child of a browser without sign-in (anonymous.py) stores only its day.
    If the run has put other children at this place, raises KeyReusedError. Raises StoreBusyError.
    """
    chunk = chunk._replace(rows=[row._replace(at_s=anonymous.stored_at_s(row.child, row.at_s)) for row in chunk.rows])
    payload = {"children": [[row.id, row.child, row.at_s] for row in chunk.rows]}
    receipt_key = ReceiptKey(IMPORT, counter.name, f"{run}/{chunk.place}", payload, KEPT_DAYS)
    return count_once(call, receipt_key, lambda draft: _import_chunk(call, counter, chunk, draft)).body


def _import_chunk(call: Call, counter: Counter, chunk: Chunk[ChildRow], draft: ReceiptDraft) -> Body:
    """Tries until a transaction commits. The next try leaves out children that exist or lack a parent."""
    rows = {(row.id, row.child): row for row in reversed(chunk.rows)}  # the first row of a child wins
    missing: set[str] = set()
    retries = call.retries()
    while True:
        todo = [row for row in rows.values() if row.id not in missing]
        missing_lines = [row.line for row in chunk.rows if row.id in missing]
        already = len(chunk.rows) - len(missing_lines) - len(todo)
        body: Body = {"imported": len(todo), "already": already, "missing": missing_lines}
        receipt = draft.receipt(call, body)
        if not todo:
            put_receipt(call, receipt)
            return body
        parents = list(dict.fromkeys(row.id for row in todo))
        sent = send(call.store.client, [receipt, *_import_writes(call, counter, todo, parents)], retries=call.retries)
        if sent.committed:
            return body
        if sent.codes[0] == CONDITION_FAILED:  # the receipt exists
            raise AlreadyCountedError(sent.reasons[0].item or {})
        if sent.condition_failed and not sent.is_busy:
            codes = sent.codes[1:]  # of the children in `todo`, then of the parents
            for row, code in zip(todo, codes, strict=False):
                if code == CONDITION_FAILED:
                    del rows[row.id, row.child]
            parents_with_codes = zip(parents, codes[len(todo) :], strict=False)
            missing.update(id_ for id_, code in parents_with_codes if code == CONDITION_FAILED)
            continue
        sent.raise_unless_busy()
        sleep_or_raise_busy(retries)


def _import_writes(call: Call, counter: Counter, todo: Sequence[ChildRow], parents: Sequence[str]) -> list[Write]:
    """Returns Puts, which fail if the child exists, and Updates of tallies, which fail if the parent does not exist."""
    table, minute = call.store.settings.counts_table, minute_now(call)
    unless_present = {"ConditionExpression": f"attribute_not_exists(SK) OR attribute_exists({TOMBSTONE})"}
    puts = list[Write]()
    for row in todo:
        where = key(counter.partition_start + row.id, counter.child_range[0] + row.child)
        numbers = {CREATED_AT: {"N": str(row.at_s)}, "at": {"N": str(minute)}}
        item = {**where, **numbers, **IMPORTED, "nonce": {"S": call.nonce}}
        puts.append({"Put": {"TableName": table, "Item": item, **unless_present}})
    amounts = {id_: sum(row.id == id_ for row in todo) for id_ in parents}
    assert sum(amounts.values()) == len(puts)
    parent_exists = {"ConditionExpression": accepts_children_condition(counter)}
    moves: list[Write] = [
        {"Update": {**tallies.add_write(call, counter, id_, 0, amount, minute), **parent_exists}}
        for id_, amount in amounts.items()
    ]
    return puts + moves
