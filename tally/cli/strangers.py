"""The cost of strangers who use every public route as often as its throttle allows. `tally deploy` shows it."""

from __future__ import annotations

from tally.api.operation import Access
from tally.contract.declarations import Declarations

USD_PER_MILLION = {"now": 5.50, "soon": 4.94, "like with a key": 8.04, "read": 1.49, "number": 0.125}
"""The price of a million requests: changes that are visible now or soon, likes with a key, and reads. No two have
the same id. `number`: a million numbers beyond the first of each read. A test compares these with bench/cost.py."""


def worst_day_usd(declared: Declarations, throttle_factor: float) -> float:
    """Returns the US dollars of a day on which strangers use every public route as often as its throttle allows, times
    `throttle_factor`. If a read may name many numbers, each read names as many as it may."""
    total = 0.0
    for route in declared.routes:
        if route.access is Access.ANYONE:
            counters = route.served_counters(declared.counters)
            kinds = ["like with a key" if counter.counts_children else counter.visible for counter in counters]
            # Only a read may serve no counter, and the price of a read is set below. So this default is never used.
            usd = max((USD_PER_MILLION[kind] for kind in kinds), default=USD_PER_MILLION["soon"])
            if any(counter.unique for counter in counters):
                usd += USD_PER_MILLION["soon"]  # a visit also counts a visitor
            if not route.operation.writes:
                numbers = max([1, *(field.kind.list_max for field in route.fields)])
                usd = USD_PER_MILLION["read"] + USD_PER_MILLION["number"] * (numbers - 1)
            total += usd * route.throttle.scaled_by(throttle_factor).rate_per_s * 86_400 / 1e6
    return total
