"""The judge of the ledger: it compares what was expected of a tally in a minute with what was observed.

Rows are judged once they are settled (progress.horizon), and then deleted: equal ones without a trace, unequal ones
into the tally's drift row, in one transaction. Each row is deleted on condition that it is as it was read. So two
sweeps, a sweep that dies halfway, and a booking in between move each difference once.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from ..dynamo import keys, queries
from ..dynamo.client import Store
from ..dynamo.keys import Item
from ..dynamo.transactions import Write, apply_once
from ..errors import TallyError
from ..streams.progress import settled_minute

THREADS = keys.SLOTS  # one a slot, so that no slot waits for another's backlog; the client has 50 connections
GROUPS_MAX = 10_000  # tallies and minutes in one slot and run: twice what a thread judges in a minute, at 5 ms each
ROWS_OF_GROUP_MAX = 99  # a transaction takes 100 items, and one is the drift row; there are 16 buckets
_FIRST = "0"


class CrowdedLedgerError(TallyError):
    """One tally has more rows in one minute than there are buckets: Tally did not write them all."""


@dataclass(frozen=True)
class Row:
    """A ledger row: what one bucket of writers booked on one tally's minute. `booked`: when they last did."""

    key: tuple[str, str]
    counter: str
    target: str
    minute: int
    expected: int
    observed: int
    booked: int

    @property
    def of(self) -> tuple[int, str, str]:
        """Minute and tally: rows that share them are judged together."""
        return self.minute, self.counter, self.target


@dataclass
class Judged:
    """How many groups of rows were equal, were moved to a drift row, or were left for the next sweep."""

    equal: int = 0
    moved: int = 0
    left: int = 0
    finished: bool = True
    failures: list[Exception] = field(default_factory=list)

    def add(self, other: Judged) -> None:
        """Add the result of other groups."""
        self.equal += other.equal
        self.moved += other.moved
        self.left += other.left
        self.finished = self.finished and other.finished
        self.failures += other.failures


def row_of(item: Item) -> Row:
    """A stored ledger row. Raises KeyError or ValueError for one that Tally did not write."""
    return Row(
        key=(item["PK"]["S"], item["SK"]["S"]),
        counter=item["counter"]["S"],
        target=item["target"]["S"],
        minute=int(item["minute"]["N"]),
        expected=int(item.get("expected", {"N": "0"})["N"]),
        observed=int(item.get("observed", {"N": "0"})["N"]),
        booked=int(item["booked"]["N"]),
    )


def difference(rows: Iterable[Row]) -> int:
    """Observed less expected."""
    return sum(row.observed - row.expected for row in rows)


def settled(rows: Iterable[Row], horizon_s: int) -> bool:
    """Whether no consumer will book on these rows any more: all were last booked on before the horizon."""
    return all(row.minute < settled_minute(horizon_s) and row.booked <= horizon_s for row in rows)


def groups(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """The rows of each tally and minute. They follow each other, because the rows are in the order of their keys."""
    for _, group in itertools.groupby(rows, key=lambda row: row.of):
        yield list(group)


def sweep(store: Store, horizon_s: int, now_s: float, *, until_s: float) -> Judged:
    """Judge what is settled, oldest minutes first, in all slots at once, until time or GROUPS_MAX run out.

    The next sweep continues where this one stopped. `until_s`: on the store's clock. A slot that fails stops no other
    one: its error is in `failures`.
    """
    judged = Judged()
    # The judge mostly waits for DynamoDB: slot after slot, a sweep would judge fewer tallies than traffic can move.
    # All minutes of a tally are in one slot, so no two threads meet on its drift row.
    with ThreadPoolExecutor(THREADS, thread_name_prefix="slot") as threads:
        for slot in threads.map(lambda slot: _sweep_slot(store, slot, horizon_s, now_s, until_s), range(keys.SLOTS)):
            judged.add(slot)
    return judged


def _sweep_slot(store: Store, slot: int, horizon_s: int, now_s: float, until_s: float) -> Judged:
    judged = Judged()
    try:
        for group in groups(rows_of_slot(store, slot, settled_minute(horizon_s))):
            if store.clock() >= until_s or judged.equal + judged.moved >= GROUPS_MAX:
                judged.finished = False
                break
            if settled(group, horizon_s):
                _judge(store, group, now_s, judged)
            else:
                judged.left += 1
    except (TallyError, KeyError, TypeError, ValueError) as error:
        judged.failures.append(error)
    return judged


def rows_of_slot(store: Store, slot: int, before_minute: int) -> Iterator[Row]:
    """The rows of a slot, the oldest minute first, of minutes before this one."""
    last = f"{before_minute:010d}"  # sorts before every row of that minute
    for page in queries.pages(store, store.settings.ledger_table, f"LEDGER#{slot}", _FIRST, last):
        yield from map(row_of, page)


def _judge(store: Store, group: Sequence[Row], now_s: float, judged: Judged) -> None:
    if len(group) > ROWS_OF_GROUP_MAX:
        raise CrowdedLedgerError(f"{group[0].counter} {group[0].target} has {len(group)} rows in one minute.")
    amount = difference(group)
    gone = drop(store, group) if amount == 0 else _move(store, group, amount, now_s)
    if not gone:
        judged.left += 1
    elif amount == 0:
        judged.equal += 1
    else:
        judged.moved += 1


def drop(store: Store, group: Sequence[Row]) -> bool:
    """Delete equal rows if they are as they were read, all or none: half of them would not be equal."""
    return apply_once(store, [_delete(store, row) for row in group])


def _move(store: Store, group: Sequence[Row], amount: int, now_s: float) -> bool:
    """Move the difference of these rows to the tally's drift row, which is deleted at 0."""
    counter, target = group[0].counter, group[0].target
    key = keys.key(keys.DRIFT_KEY, keys.digest(counter, target))
    seen = queries.get(store.client, store.settings.ledger_table, key)
    since_s = min(row.booked for row in group)  # when the streams first reported it, not when it was judged
    drift = drift_write(store, key, seen, counter, target, amount, now_s, since_s=since_s)
    return apply_once(store, [*(_delete(store, row) for row in group), drift])


def drift_write(
    store: Store,
    key: Item,
    seen: Item,
    counter: str,
    target: str,
    amount: int,
    now_s: float,
    *,
    since_s: float | None = None,
) -> Write:
    """The write that adds to a drift row, or deletes it at 0, on condition that it is as it was read.

    `since_s`: when a new drift began; None: now.
    """
    table, now = store.settings.ledger_table, {"N": str(int(now_s))}
    condition, values = unchanged(seen)
    if seen and int(seen["drift"]["N"]) + amount == 0:
        delete = {"TableName": table, "Key": key, "ConditionExpression": condition}
        return {"Delete": {**delete, "ExpressionAttributeValues": values}}
    return {
        "Update": {
            "TableName": table,
            "Key": key,
            "UpdateExpression": "SET #counter = :counter, target = :target, judged = :now, confirmed = :no,"
            " since = if_not_exists(since, :since) ADD drift :amount",
            "ConditionExpression": condition,
            "ExpressionAttributeNames": {"#counter": "counter"},
            "ExpressionAttributeValues": {
                **values,
                ":counter": {"S": counter},
                ":target": {"S": target},
                ":now": now,
                ":since": now if since_s is None else {"N": str(int(since_s))},
                ":no": {"BOOL": False},
                ":amount": {"N": str(amount)},
            },
        }
    }


def unchanged(seen: Item) -> tuple[str, dict[str, Any]]:
    """The condition, with its values, that a drift row is as it was read; `seen` is empty if there was none."""
    if not seen:
        return "attribute_not_exists(PK)", {}
    return "drift = :drift AND judged = :judged", {":drift": seen["drift"], ":judged": seen["judged"]}


def _delete(store: Store, row: Row) -> Write:
    return {
        "Delete": {
            "TableName": store.settings.ledger_table,
            "Key": keys.key(*row.key),
            "ConditionExpression": "expected = :expected AND observed = :observed AND booked = :booked",
            "ExpressionAttributeValues": {
                ":expected": {"N": str(row.expected)},
                ":observed": {"N": str(row.observed)},
                ":booked": {"N": str(row.booked)},
            },
        }
    }
