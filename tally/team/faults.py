"""Faults: how many items of a counter have each fault, and an example of each. Each fault is a group of the counter.

The numbers are exact: when somebody corrects an item, one transaction moves it from the group of its fault to its own
group. An amount that cannot be added never makes a record a dead letter, and never stops a scan.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ..counter import Counter
from ..counting import tallies
from ..dynamo import items
from ..dynamo.client import Call, Store
from ..dynamo.transactions import try_commit
from ..images import Image
from ..items import EXAMPLE, FAULT_KINDS, RESERVED_GROUP_PREFIX, Fault, Items
from . import scan_state

EXAMPLE_CHARACTERS_MAX = 300


class FaultCount(NamedTuple):
    """How many items of a counter have one fault. `example`: an item with the fault, perhaps corrected later."""

    kind: str
    items: int
    example: str

    def __str__(self) -> str:
        return f"{self.items:,} with {FAULT_KINDS[self.kind]}, such as {self.example}"


def example(declaration: Items, image: Image, keys: Iterable[str]) -> str:
    """Returns the keys of an item that cannot be counted, and why; empty for any other item."""
    result = declaration.contribution_or_fault(image)
    if not isinstance(result, Fault):
        return ""
    key_values = ", ".join(str(next(iter(image[name].values()))) for name in keys)
    return f"{key_values}: {result.why}"[:EXAMPLE_CHARACTERS_MAX]


def read_faults(store: Store, counter: Counter, *, remove_stale: bool = False) -> Iterator[FaultCount]:
    """Yields the faults that items of a counter have now.

    `remove_stale`: removes the example of a fault that no item has. Keeps the example while a scan of these groups is
    open, because a scan stores examples before it sets the numbers of items.
    """
    scan = scan_state.read_scan(store, counter.name) if remove_stale else None
    for kind in FAULT_KINDS:
        group = f"{RESERVED_GROUP_PREFIX}{kind}"
        shards = tallies.read_shards(Call(store), counter, group)
        number, examples = tallies.sum_of_shards(counter, shards), [one for one in shards if EXAMPLE in one]
        if number:
            yield FaultCount(kind, number, next((one[EXAMPLE]["S"] for one in examples), "?"))
            continue
        if scan is None or scan.covers(counter, group):
            continue
        for shard in examples:
            key = {name: shard[name] for name in ("PK", "SK")}
            removing = items.remove_attributes_write(store.settings.counts_table, key, [EXAMPLE])["Update"]
            removal = {"Update": items.with_expected(removing, {EXAMPLE: shard[EXAMPLE]})}
            try_commit(store, [removal, scan_state.same_scan_check_write(store, scan)])
