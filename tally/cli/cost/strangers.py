"""What strangers can cost who use up every route that is for anyone."""

from __future__ import annotations

from tally.api.operation import Access
from tally.contract.declarations import Declarations

from . import units
from .prices import bill
from .units import DAYS, MONTH_S
from .usage import Month, usage


def worst_day(declared: Declarations, share: float) -> float:
    """US dollars of a day on which strangers use up every route for anyone, in prod. `share`: of each throttle.

    A read of many numbers reads as many as it can; each request is about another id.
    """
    now = soon = reads = more = 0.0
    for route in declared.routes:
        requests = route.throttle.at(share).rate_per_s * MONTH_S if route.access is Access.ANYONE else 0
        counted = route.served(declared.counters) if route.operation.by_counter else []
        if not route.operation.writes:
            reads += requests
            more += requests * (max([1, *(one.kind.many_max for one in route.fields)]) - 1)
        elif counted and all(counter.visible == "now" for counter in counted):
            now += requests
        else:
            soon += requests
    month = Month(now=now, soon=soon, reads=reads, items=max(1, now + soon))
    used, idle = (usage(one, units.STAGES["prod"]) for one in (month, Month()))
    used["read"] += more * units.READ
    return (sum(bill(used).values()) - sum(bill(idle).values())) / DAYS
