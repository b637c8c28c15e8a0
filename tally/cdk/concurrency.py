"""Ceilings for the concurrency of functions that serve strangers, so that the account has concurrency left.

A throttle bounds the requests of a second, but not their duration. While DynamoDB is slow, strangers could use the
whole concurrency of the account. Lambda has no ceiling for several functions together, so each function has its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tally.api.operation import Route

from .options import Options

CALL_S_MAX = 0.05  # three times what a call takes (CHANGE_MS in bench/cost.py), because the store may be slow
CONCURRENCY_MIN = 10  # a page of the console requests ten files at once


def concurrency_limits(functions: Mapping[str, Sequence[Route]], options: Options) -> dict[str, int]:
    """Returns the ceiling of each function with a route for anyone, by name: what its busiest route needs at its full
    throttle, or its share of `strangers_concurrency`. Empty: the option is 0, or a stage without data has no option."""
    total = options.strangers_concurrency
    if total == 0 or (total is None and not options.keeps_data):
        return {}
    busiest_per_s = {
        function: max(route.throttle.scaled_by(options.throttle).rate_per_s for route in routes)
        for function, routes in functions.items()
        if any(not route.needs_caller for route in routes)
    }
    needed = {function: max(CONCURRENCY_MIN, math.ceil(CALL_S_MAX * rate)) for function, rate in busiest_per_s.items()}
    if total is None:
        return needed
    return {function: max(1, total * need // sum(needed.values())) for function, need in needed.items()}
