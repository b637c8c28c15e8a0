"""The judge: it compares, minute by minute, what was expected of each tally with what was observed.

A minute is judged once it is closed (streams/evidence.py): then its pages are complete. The judge sums them up in
memory and writes a drift row for each tally that is uneven. A row says up to which minute it is complete, and takes
each minute once. So two judges, a judge that dies halfway, and one that wakes up later, come to the same rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from ..dynamo import queries
from ..dynamo.client import Call, Store
from ..dynamo.keys import Item
from ..dynamo.transactions import Write, apply_once
from ..errors import StoreBusyError
from ..streams import evidence, pages
from ..streams.evidence import Evidence
from ..streams.pages import Entry
from . import rows
from .rows import Drift

ROWS_READ_MAX = 100  # DynamoDB's limit for one BatchGetItem
TRIES_MAX = 5  # at one row: another judge or a repair wrote it meanwhile


class Change(NamedTuple):
    """By how much a tally is uneven in one minute."""

    counter: str
    target: str
    amount: int


@dataclass
class Judged:
    """What one run of the judge did: how many minutes it judged, how many changes of drift rows it wrote or found
    written, and whether it came to the end of what is closed."""

    minutes: int = 0
    changes: int = 0
    finished: bool = True


def judge(store: Store, seen: Evidence, now_s: float, *, until_s: float) -> Judged:
    """Judge every closed minute, the oldest first, until the time runs out (`until_s`, on the store's clock).

    The next run continues with the minute that this one did not finish. `seen`: what may be concluded now.
    """
    result = Judged()
    neighbours = _Pairs(store)
    for minute in range(seen.judged + 1, seen.closed(store.settings) + 1) if seen.judged >= 0 else ():
        changes = _changes(differences(store, minute, neighbours))
        while chunk := list(islice(changes, ROWS_READ_MAX)):
            if store.clock() >= until_s:
                return Judged(result.minutes, result.changes, finished=False)
            _add(store, chunk, minute, now_s)
            result.changes += len(chunk)
        _advance(store, minute)
        result.minutes += 1
        if store.clock() >= until_s:
            result.finished = minute == seen.closed(store.settings)
            break
    return result


Net = dict[str, dict[str, int]]
"""By counter and id: observed less expected; only what is not 0."""


class _Pairs:
    """The halves of unlikes by minute: each minute is read once in a run, though its neighbours need it too."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._read: dict[int, list[Entry]] = {}

    def keep(self, minute: int, found: list[Entry]) -> None:
        """What the pages of a minute hold; the minutes before the last one are forgotten."""
        self._read = {at: halves for at, halves in self._read.items() if at >= minute - 1} | {minute: found}

    def of(self, minute: int) -> list[Entry]:
        if minute not in self._read:
            self._read[minute] = pages.pairs_of(self._store, minute)
        return self._read[minute]


def differences(store: Store, minute: int, neighbours: _Pairs | None = None) -> Net:
    """How uneven each tally is in a minute. An unlike counts on the minute of its older half."""
    net: Net = defaultdict(dict)
    halves: list[Entry] = []
    for page in pages.read(store, minute):
        halves += pages.pairs(page)
        for counter, (ids, expected, observed) in pages.sums(page).items():
            _sum_up(net[counter], ids, expected, observed)
    neighbours = neighbours or _Pairs(store)
    neighbours.keep(minute, halves)
    for half, amount in _unlikes(minute, neighbours).items():
        _sum_up(net[half[0]], [half[1]], [0], [amount])
    return net


def _sum_up(sums: dict[str, int], ids: Sequence[str], expected: Sequence[int], observed: Sequence[int]) -> None:
    """Add the differences, and forget those that come to 0: of a million tallies few are open at a time."""
    for id_, more, moved in zip(ids, expected, observed, strict=True):
        amount = sums.pop(id_, 0) + moved - more
        if amount:
            sums[id_] = amount


def _unlikes(minute: int, neighbours: _Pairs) -> dict[tuple[str, str, str], int]:
    """By counter, id and pair: how uneven the unlikes are whose older half is on this minute."""
    oldest: dict[tuple[str, str, str], int] = {}
    amounts: dict[tuple[str, str, str], int] = defaultdict(int)
    for at in (minute - 1, minute, minute + 1):
        for counter, id_, pair, expected, observed in neighbours.of(at):
            oldest.setdefault((counter, id_, pair), at)
            amounts[counter, id_, pair] += observed - expected
    return {half: amount for half, amount in amounts.items() if amount and oldest[half] == minute}


def _changes(net: Net) -> Iterator[Change]:
    """In an order that is the same for every judge."""
    for counter, sums in sorted(net.items()):
        for target, amount in sorted(sums.items()):
            yield Change(counter, target, amount)


def _add(store: Store, changes: Sequence[Change], minute: int, now_s: float) -> None:
    """Add a minute to the drift rows of some tallies, unless they have it."""
    wanted = [rows.key(change.counter, change.target) for change in changes]
    found = queries.get_many(Call(store), store.settings.ledger_table, wanted)
    seen = {item["SK"]["S"]: item for item in found}
    for change, key in zip(changes, wanted, strict=True):
        _add_one(store, change, key, seen.get(key["SK"]["S"], {}), minute, now_s)


def _add_one(store: Store, change: Change, key: Item, seen: Item, minute: int, now_s: float) -> None:
    for _ in range(TRIES_MAX):
        row = rows.drift_of(seen) if seen else None
        if row is not None and row.upto >= minute:
            return
        if apply_once(store, [_row(store, change, key, row, minute, now_s)]):
            return
        seen = queries.get(store.client, store.settings.ledger_table, key)
    raise StoreBusyError(f"The drift row of {change.counter} {change.target} keeps changing.")


def _row(store: Store, change: Change, key: Item, row: Drift | None, minute: int, now_s: float) -> Write:
    """The write of a drift row that adds a minute, on condition that the row is as it was read."""
    drift = (row.drift if row else 0) + change.amount
    condition, values = rows.unchanged(row)
    sets: dict[str, Item] = {
        "counter": {"S": change.counter},
        "target": {"S": change.target},
        "drift": {"N": str(drift)},
        "upto": {"N": str(minute)},
    }
    if drift == 0:
        sets["expiration"] = {"N": str(int(now_s) + rows.ZERO_KEPT_S)}
    elif row is None or row.drift == 0:
        sets["since"] = {"N": str(minute * store.settings.minute_s)}
    removed = "since" if drift == 0 else "expiration"
    return {
        "Update": {
            "TableName": store.settings.ledger_table,
            "Key": key,
            "UpdateExpression": "SET " + ", ".join(f"#{name} = :{name}" for name in sets) + f" REMOVE {removed}",
            "ConditionExpression": condition,
            "ExpressionAttributeNames": {f"#{name}": name for name in sets},
            "ExpressionAttributeValues": {f":{name}": value for name, value in sets.items()} | values,
        }
    }


def _advance(store: Store, minute: int) -> None:
    """Note that a minute is judged. Another judge may have been faster."""
    names: Mapping[str, str] = {"#judged": "judged"}
    apply_once(store, [{"Update": {
        "TableName": store.settings.ledger_table,
        "Key": evidence.JUDGE,
        "UpdateExpression": "SET #judged = :minute",
        "ConditionExpression": "#judged = :before",
        "ExpressionAttributeNames": names,
        "ExpressionAttributeValues": {":minute": {"N": str(minute)}, ":before": {"N": str(minute - 1)}},
    }}])  # fmt: skip
