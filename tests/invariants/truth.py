"""What a simulation did to tallies, and so the right numbers. Reads tallies from the records' keys and images."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import Any

import counters
from tally.counter import Counter
from tests.invariants.stream_model import Record

Tally = tuple[str, str]
"""Counter and id."""


@dataclass
class Truth:
    """What the simulation did, and so the right numbers."""

    accepted: defaultdict[Tally, int] = field(default_factory=lambda: defaultdict(int))
    """What each tally should say."""
    began: dict[Tally, int] = field(default_factory=dict)
    """What each said before its streams were switched on, or before its first change; without it, 0."""
    imported: defaultdict[Tally, int] = field(default_factory=lambda: defaultdict(int))
    """What of it was imported."""
    edits: defaultdict[Tally, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    """What the ledger knows as drift of each tally, repairs aside: minute and amount."""
    off: defaultdict[Tally, int] = field(default_factory=lambda: defaultdict(int))
    """By how much each tally is off, repairs aside: by edits, and by what the rollup has lost or set aside. The ledger
    has no say in it: a dead letter of the bookkeeper makes drift, and the tally stays right."""
    unbooked: set[Tally] = field(default_factory=set)
    """Tallies with edits that no minute can be told for: looked at in the end."""
    repaired: defaultdict[Tally, int] = field(default_factory=lambda: defaultdict(int))
    """By how much repairs moved each tally."""
    lost: set[int] = field(default_factory=set)
    """The changes that were written alone and that the rollup has lost for good."""
    spilled: dict[int, float] = field(default_factory=dict)
    """When each change was accepted that was written alone and is not in its tally yet."""

    def note_edit(self, tally: Tally, minute: int, amount: int) -> None:
        """Note that a tally is wrong by an amount, which the ledger books on a minute."""
        self.edits[tally].append((minute, amount))
        self.off[tally] += amount

    def drift(self, tally: Tally, through: float = float("inf")) -> int:
        """Returns the drift of a tally by its edits in the minutes up to `through`, and by repairs."""
        edits = sum(amount for minute, amount in self.edits[tally] if minute <= through)
        return edits + self.repaired[tally]


MINS = Counter("mins", prefix="MIN", sort_key="M", attribute="m", period="minute", keep_periods=2)
SOON_MINS = replace(MINS, name="soon_mins", prefix="SOONMIN", visible="soon", keep_periods=3)
DECLARED = {**counters.COUNTERS, "mins": MINS, "soon_mins": SOON_MINS}
_COUNTERS: dict[str, list[Counter]] = defaultdict(list)
for _counter in DECLARED.values():
    _COUNTERS[_counter.prefix].append(_counter)


def tally_of(item: dict[str, Any]) -> Tally | None:
    """Returns the tally of an item, by its key; None for any other item."""
    if "PK" not in item:
        return None
    prefix, _, id_ = item["PK"]["S"].partition("#")
    for counter in _COUNTERS.get(prefix, ()):
        if item["SK"]["S"] == counter.sort_key or item["SK"]["S"].startswith(f"{counter.sort_key}#"):
            return counter.name, id_
    return None


def amount_of(tally: Tally, item: dict[str, Any]) -> int:
    """Returns the number in a tally's item."""
    counter = DECLARED[tally[0]]
    return int(item.get(counter.attribute, {"N": counter.start})["N"])


def moved_by(start: str, record: Record) -> tuple[Tally | None, int]:
    """Returns the tally that a write with such a new nonce moved, and the amount."""
    tally = tally_of(record["dynamodb"]["Keys"])
    new, old = record["dynamodb"].get("NewImage", {}), record["dynamodb"].get("OldImage", {})
    nonce = new.get("nonce", {}).get("S", "")
    if tally is None or not nonce.startswith(start) or nonce == old.get("nonce", {}).get("S"):
        return None, 0
    return tally, amount_of(tally, new) - amount_of(tally, old)
