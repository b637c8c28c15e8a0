"""The history: repairs of tallies, acknowledged losses, forgotten users and imports, each with who did it and why."""

from __future__ import annotations

import secrets
from collections import Counter as Multiset
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..dynamo import items, keys, queries
from ..dynamo.client import Call, Store
from ..dynamo.keys import Item
from ..dynamo.transactions import Write, put_alone, try_commit
from ..streams.loss import Loss

LEDGER, RECOUNT, REBUILD = "ledger", "recount", "rebuild"  # what proves a repair: drift row, children, lost receipts
_REMOVED = ("posts", "children", "holds")  # what a forget run removes


def repair_entry_write(
    store: Store, counter: str, target: str, now_s: float, numbers: Mapping[str, int], **texts: str
) -> Write:
    """Returns the write that records one repair of a tally.

    `numbers`: the number `before`, the `amount`, and its part `added`, which takes back no drift, so no series has it.
    `texts`: `by`, `why`, `how` (LEDGER, RECOUNT or REBUILD).
    """
    values: items.Values = {"at": int(now_s), **texts, **numbers, "after": numbers["before"] + numbers["amount"]}
    key = keys.key(keys.history_key(counter, target), _entry_name(now_s))
    return items.put_write(store.settings.ledger_table, key, values)


def acknowledgement_write(store: Store, lost: Loss, now_s: float, *, by: str, why: str) -> Write:
    """Returns the write that records who acknowledged a loss, and why."""
    values: items.Values = {**lost.values, "at": int(now_s), "by": by, "why": why}
    return items.put_write(store.settings.ledger_table, keys.key(keys.LOST_HISTORY_KEY, _entry_name(now_s)), values)


def acknowledged_losses(store: Store) -> Iterator[dict[str, Any]]:
    """Yields the acknowledged losses, the oldest first: each
    `{"at","by","why","consumer","since","until","resume_minute"}`."""
    return map(items.from_wire, queries.partition_items(store, store.settings.ledger_table, keys.LOST_HISTORY_KEY))


def _entry_name(now_s: float) -> str:
    return f"{int(now_s * 1000):015d}#{secrets.token_urlsafe(6)}"


def newest_repair(store: Store, counter: str, target: str) -> str:
    """Returns the name of the newest repair of a tally; empty if the tally was never repaired."""
    repairs = _newest_first(store, counter, target, 1)
    return str(repairs[0]["SK"]["S"]) if repairs else ""


def read_repairs(store: Store, counter: str, target: str) -> Iterator[dict[str, Any]]:
    """Yields the repairs of a tally, the oldest first: `{"at","by","why","how","amount","before","after","added"}`."""
    partition = keys.history_key(counter, target)
    return map(items.from_wire, queries.partition_items(store, store.settings.ledger_table, partition))


def latest_repairs(store: Store, counter: str, target: str, most: int) -> list[dict[str, Any]]:
    """Returns at most `most` repairs of a tally, as `read_repairs` yields them, the newest first."""
    return [items.from_wire(item) for item in _newest_first(store, counter, target, most)]


def _newest_first(store: Store, counter: str, target: str, most: int) -> list[Item]:
    table, partition = store.settings.ledger_table, keys.history_key(counter, target)
    return queries.query(store, table, partition, Limit=most, ScanIndexForward=False)


def forget_runs(store: Store, user: str) -> Iterator[dict[str, Any]]:
    """Yields the runs that removed a user's traces, the oldest first.

    Each is `{"at","by","why","found","posts","children","holds","finished"}`.
    """
    return map(items.from_wire, queries.partition_items(store, store.settings.ledger_table, keys.forgotten_key(user)))


@dataclass
class ForgetRun:
    """One run that removes a user's traces, as the history keeps it. The history does not keep the user's name."""

    store: Store
    user: str
    by: str
    why: str
    at_s: int
    found: int  # how many posts, children and holds the run has found
    removed: Multiset[str] = field(default_factory=Multiset)
    """How many `posts`, `children` and `holds` the run has removed."""
    name: str = field(default_factory=lambda: secrets.token_urlsafe(6))

    def note(self, *, finished: bool) -> None:
        """Writes how far the run has come, in place of the run's older entry. Raises what botocore's errors map to."""
        numbers = {"at": self.at_s, "found": self.found, **{kind: self.removed[kind] for kind in _REMOVED}}
        values: items.Values = {"by": self.by, "why": self.why, "finished": {"BOOL": finished}, **numbers}
        key = keys.key(keys.forgotten_key(self.user), f"{self.at_s * 1000:015d}#{self.name}")
        put_alone(Call(self.store), items.put_write(self.store.settings.ledger_table, key, values))


@dataclass(frozen=True)
class ImportRun:
    """One run of an import, as the history keeps it. `run`: its name. `digest`: the SHA-256 of its rows."""

    store: Store
    counter: str
    run: str
    by: str
    why: str
    at_s: int
    digest: str
    rows: int

    def begin(self) -> dict[str, Any] | None:
        """Records that the run begins, and returns None. If the run began before, returns its entry."""
        write = items.with_expected(self._item(finished=False, refused=0), items.EXPECT_NO_ITEM)
        if try_commit(self.store, [{"Put": write}]):
            return None
        return next((entry for entry in import_runs(self.store, self.counter) if entry["run"] == self.run), None)

    def finish(self, refused: int) -> None:
        """Records that the run has ended. `refused`: how many rows were not imported."""
        put_alone(Call(self.store), {"Put": self._item(finished=True, refused=refused)})

    def _item(self, *, finished: bool, refused: int) -> items.Write:
        values: items.Values = {
            "counter": self.counter, "run": self.run, "by": self.by, "why": self.why, "at": self.at_s,
            "digest": self.digest, "rows": self.rows, "refused": refused, "finished": {"BOOL": finished},
        }  # fmt: skip
        key = keys.key(keys.IMPORT_KEY, f"{self.counter}#{self.run}")
        return {"TableName": self.store.settings.ledger_table, "Item": key | items.to_wire(values)}


def import_runs(store: Store, counter: str = "") -> Iterator[dict[str, Any]]:
    """Yields the runs that imported into a counter; if `counter` is empty, the runs of all counters.

    Each is `{"counter","run","by","why","at","digest","rows","refused","finished"}`.
    """
    table = store.settings.ledger_table
    first, last = (f"{counter}#", f"{counter}$") if counter else (queries.SORT_KEY_MIN, queries.SORT_KEY_MAX)
    return map(items.from_wire, queries.partition_items(store, table, keys.IMPORT_KEY, first, last))
