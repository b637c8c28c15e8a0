"""The cost of strangers who use every public route to its limit. `tally deploy` prints it before it asks."""

from __future__ import annotations

from collections.abc import Sequence

from tally.api.operation import Access
from tally.contract.declarations import Declarations
from tally.counter import Counter

USD_PER_MILLION = {"now": 5.50, "soon": 4.94, "like with a key": 8.04, "read": 1.49, "number": 0.125}
"""The price of a million requests of each kind, each about another id. `number`: of a million more numbers in one read.

A test compares them with the units and prices of bench/cost.py.
"""


def worst_day(declared: Declarations, share: float) -> float:
    """Returns the US dollars of a day on which strangers use every public route to its limit.

    `share`: the part of each throttle. A read of many numbers reads the maximum.
    """
    total = 0.0
    for route in declared.routes:
        if route.access is Access.ANYONE:
            counted = route.served_counters(declared.counters) if route.operation.has_counter_in_path else []
            usd = USD_PER_MILLION[_kind(counted)]
            if any(counter.unique for counter in route.served_counters(declared.counters)):
                usd += USD_PER_MILLION["soon"]  # a visit also counts a visitor
            if not route.operation.writes:
                usd = USD_PER_MILLION["read"] + USD_PER_MILLION["number"] * (
                    max([1, *(field.kind.list_max for field in route.fields)]) - 1
                )
            total += usd * route.throttle.scaled_by(share).rate_per_s * 86_400 / 1e6
    return total


def _kind(counted: Sequence[Counter]) -> str:
    """Returns the kind of a change of these counters."""
    if counted and all(counter.counts_children for counter in counted):
        return "like with a key"
    return "now" if counted and all(counter.visible == "now" for counter in counted) else "soon"
