"""The consumer copies the team's number into the tally item of the count, so that one read returns both numbers.

    tally item -> team_number, up#time, down#time
    WATCHED#bucket, digest -> counter, target, at, low, high, since, rule

`team_number`: its value in the newest record of the team's item. Time is divided into stretches (`stretch_s`). For each
stretch, `up#…` and `down#…` have by how much the number may be too low or too high, because the number may lag behind
the changes of this stretch, or may have moved before them. `WATCHED` lists the groups that team/watch.py checks. `at`:
when the group's newest record was made. The checks store the bounds of the number's excess (`low`, `high`), when the
first of these checks was (`since`), and the fields of `Watch` that they used (`rule`).

An attribute's name has the end of its stretch in epoch seconds. So the name stays right if `within_s` changes, and with
it the length of a stretch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from ..counter import Counter
from ..dynamo import items, keys
from ..dynamo.items import Write
from ..dynamo.keys import Item
from ..items import TEAM_NUMBER

UP, DOWN = "up#", "down#"
NO_NUMBER: Item = {"NULL": True}
"""The stored number of a group if the team's item with the number was removed, or has no number."""
STRETCHES_PER_WINDOW = 6  # so many stretches make up the declared `within_s`
STRETCHES_MAX = 200  # of an item, up and down each: those of 33 busy minutes if `within_s` is 60
STRETCHES_PER_WRITE_MAX = 100  # because DynamoDB takes expressions of up to 4 KB
PARTITIONS = 16  # of the list `WATCHED`, because one partition takes 1,000 write units a second


def stretch_s(counter: Counter) -> int:
    """Returns the length of a stretch of time, in seconds."""
    assert counter.watch is not None
    return max(1, counter.watch.within_s // STRETCHES_PER_WINDOW)


@dataclass
class TeamNumberNote:
    """What a run of records stores about the team's number of one group. `at_s`: when the newest record was made."""

    team_number: Item | None = None
    """The number to store, or NO_NUMBER; None: no record of the run has the number, so the stored number stays."""
    moves: dict[str, int] = field(default_factory=dict)
    """By attribute (`up#…`, `down#…`), the amount to add to its stretch."""
    at_s: int = 0
    scan_attribute: str = ""
    """The attribute in which an open scan stores the team's number; empty: no scan is open."""

    def move(self, counter: Counter, made_s: float, up: int, down: int) -> None:
        """Notes by how much the number may be too low (`up`) and too high (`down`) because of a record at `made_s`."""
        length_s = stretch_s(counter)
        end_s = (int(made_s) // length_s + 1) * length_s
        self.at_s = max(self.at_s, int(made_s))
        for name, amount in ((f"{UP}{end_s}", up), (f"{DOWN}{end_s}", down)):
            if amount:
                self.moves[name] = self.moves.get(name, 0) + amount

    def extend(self, update: dict[str, Any]) -> dict[str, Any]:
        """Returns the update of a tally item, extended by this note."""
        names = filter(None, (TEAM_NUMBER, self.scan_attribute)) if self.team_number is not None else ()
        return items.extend_update(update, sets=dict.fromkeys(names, self.team_number or NO_NUMBER), adds=self.moves)


def watch_key(counter: str, group: str) -> Item:
    """Returns the key of a listed group."""
    bucket = int(hashlib.sha256(group.encode()).hexdigest()[:8], 16) % PARTITIONS
    return keys.key(f"WATCHED#{bucket}", keys.tally_digest(counter, group))


def watch_write(table: str, counter: str, group: str, at_s: int) -> Write:
    """Returns the write that lists a group for the checks. The bounds of earlier checks stay."""
    return {
        "Update": {
            "TableName": table,
            "Key": watch_key(counter, group),
            "UpdateExpression": "SET #at = :at, #counter = :counter, target = :target",
            "ExpressionAttributeNames": {"#at": "at", "#counter": "counter"},
            "ExpressionAttributeValues": {":at": {"N": str(at_s)}, ":counter": {"S": counter}, ":target": {"S": group}},
        }
    }


def uncertainty(item: Mapping[str, Any], since_s: float) -> tuple[int, int]:
    """Returns by how much the number may be too low, and too high, because of the changes since `since_s`."""
    sums = dict.fromkeys((UP, DOWN), 0)
    for name, value in item.items():
        for start in sums:
            if name.startswith(start) and _stretch_end_s(name) > since_s:
                sums[start] += int(value["N"])
    return sums[UP], sums[DOWN]


def expired_stretches(item: Mapping[str, Any], since_s: float) -> list[str]:
    """Returns the attributes of stretches that ended before `since_s`, as many as one write removes."""
    ended = (name for start in (UP, DOWN) for name in _stretches(item, start) if _stretch_end_s(name) <= since_s)
    return list(islice(ended, STRETCHES_PER_WRITE_MAX))


def merged_stretches(item: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, int], Sequence[str]]]:
    """Merges the oldest stretches up, or down, if an item has more than STRETCHES_MAX. Yields new values and old names.

    After a merge, the bounds stay wide for longer. Without merges, the item would grow while a dead letter waits or a
    scan runs, and no stretch expires. DynamoDB bills each write by the whole item.
    """
    for start in (UP, DOWN):
        names = _stretches(item, start)
        if len(names) > STRETCHES_MAX:
            *merged, newest = names[:STRETCHES_PER_WRITE_MAX]
            yield {newest: sum(items.int_attribute(dict(item), name) for name in (*merged, newest))}, merged


def _stretches(item: Mapping[str, Any], start: str) -> list[str]:
    """Returns the names of the stretches that begin with `start`, the oldest first."""
    return sorted((name for name in item if name.startswith(start)), key=_stretch_end_s)


def _stretch_end_s(name: str) -> int:
    return int(name.partition("#")[2])
