"""The cost of strangers who use every public route to its limit. `tally deploy` prints it before it asks."""

from __future__ import annotations

from tally.api.operation import Access
from tally.contract.declarations import Declarations

USD_PER_MILLION = {"now": 5.50, "soon": 4.94, "like with a key": 8.04, "read": 1.49, "number": 0.125}
"""The price of a million requests of each kind, each for another id. `number`: the price of a million numbers that
reads name beside their first number.

A test compares these prices with the units and prices of bench/cost.py.
"""


def worst_day(declared: Declarations, share: float) -> float:
    """Returns the US dollars of a day on which strangers use every public route to its limit. If a read may name many
    numbers, each read names as many as it may. `share`: the factor on each throttle."""
    total = 0.0
    for route in declared.routes:
        if route.access is Access.ANYONE:
            served = route.served_counters(declared.counters)
            counters = served if route.operation.has_counter_in_path else []
            kind = "now" if counters and all(counter.visible == "now" for counter in counters) else "soon"
            if counters and all(counter.counts_children for counter in counters):
                kind = "like with a key"
            usd = USD_PER_MILLION[kind]
            if any(counter.unique for counter in served):
                usd += USD_PER_MILLION["soon"]  # a visit also counts a visitor
            if not route.operation.writes:
                numbers = max([1, *(field.kind.list_max for field in route.fields)])
                usd = USD_PER_MILLION["read"] + USD_PER_MILLION["number"] * (numbers - 1)
            total += usd * route.throttle.scaled_by(share).rate_per_s * 86_400 / 1e6
    return total
