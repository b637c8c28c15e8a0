"""The right numbers of a simulation, and functions that read tallies from the keys and images of records."""

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
    """What the simulation did, by tally."""

    accepted: defaultdict[Tally, int] = field(default_factory=lambda: defaultdict(int))
    """The right number."""
    starts: dict[Tally, int] = field(default_factory=dict)
    """The number before the first change, or before the streams were switched on, of tallies that began not at 0."""
    imported: defaultdict[Tally, int] = field(default_factory=lambda: defaultdict(int))
    """The part of the right number that was imported."""
    drifts: defaultdict[Tally, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    """The minute and the amount of each drift that the ledger must find, without repairs."""
    excesses: defaultdict[Tally, int] = field(default_factory=lambda: defaultdict(int))
    """The excess of the tally without repairs, from edits, lost records and dead letters of the rollup. The excess may
    differ from the drift: a dead letter of the bookkeeper makes drift, although the tally is right."""
    without_minute: set[Tally] = field(default_factory=set)
    """Tallies with an edit whose minute is not known. A schedule checks these only at its end."""
    repaired: defaultdict[Tally, int] = field(default_factory=lambda: defaultdict(int))
    """The sum of the repairs."""
    lost_changes: set[int] = field(default_factory=set)
    """The numbers of the spilled changes that the rollup has lost."""
    spilled: dict[int, float] = field(default_factory=dict)
    """The spilled changes that the rollup has not added: by the number of the change, when it was accepted."""

    def note_drift(self, tally: Tally, minute: int, amount: int) -> None:
        """Notes that a tally has an excess, from an edit, a loss or a dead letter. The ledger books it on `minute`."""
        self.drifts[tally].append((minute, amount))
        self.excesses[tally] += amount

    def drift(self, tally: Tally, last_minute: float = float("inf")) -> int:
        """Returns the drift of a tally in the minutes up to `last_minute`, and by repairs."""
        return sum(amount for minute, amount in self.drifts[tally] if minute <= last_minute) + self.repaired[tally]


MINUTES = Counter("minutes", prefix="MIN", sort_key="M", attribute="m", period="minute", keep_periods=2)
SOON_MINUTES = replace(MINUTES, name="soon_minutes", prefix="SOONMIN", visible="soon", keep_periods=3)
DECLARED = {**counters.COUNTERS, "minutes": MINUTES, "soon_minutes": SOON_MINUTES}
_COUNTERS: dict[str, list[Counter]] = defaultdict(list)
for _counter in DECLARED.values():
    _COUNTERS[_counter.prefix].append(_counter)


def tally_of(item: dict[str, Any]) -> Tally | None:
    """Returns the tally of an item by its key, or None if the item is not part of a tally."""
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


def moved_by(nonce_prefix: str, record: Record) -> tuple[Tally | None, int]:
    """Returns the tally that a write moved, and the amount; None and 0 if the write did not set such a nonce."""
    tally = tally_of(record["dynamodb"]["Keys"])
    new, old = record["dynamodb"].get("NewImage", {}), record["dynamodb"].get("OldImage", {})
    nonce = new.get("nonce", {}).get("S", "")
    if tally is None or not nonce.startswith(nonce_prefix) or nonce == old.get("nonce", {}).get("S"):
        return None, 0
    return tally, amount_of(tally, new) - amount_of(tally, old)
