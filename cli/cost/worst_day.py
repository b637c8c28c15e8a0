"""What strangers can make a stage cost in a day: all anonymous routes together, each at its throttle."""

from __future__ import annotations

from dataclasses import dataclass

import operations
from counters import COUNTERS
from tally.operation import Access, Operation, by_route

from . import units
from .prices import Usage
from .template import PROD, Stage, stages
from .traffic import FUNCTION_GB, Month, consume, count, invoke, series, trace
from .units import DAY_S, GB, MONTH_S

MANY = 1e9


@dataclass(frozen=True)
class Attack:
    """How strangers call, and what was done about it."""

    dear: bool = False
    """Each request names another video or page, and reads ask for the longest answers; else all name the same one."""
    throttles: float = 1.0
    """The share of the declared throttles."""
    log_sampling: float = 1.0
    tracing: bool = True
    addresses: float | None = None
    """How many addresses call, with the rate rule for each before the API; None: there is no such rule."""

    @property
    def passed(self) -> float:
        """The share of the requests that the API sees."""
        if self.addresses is None:
            return self.throttles
        return min(1.0, self.addresses * units.CLIENT_PER_S / per_s()) * self.throttles


def anonymous() -> list[Operation]:
    """The operations that take callers without a token, once for each such route."""
    routes = by_route(operations.OPERATIONS, COUNTERS).values()
    return [operation for operation in routes if operation.access is Access.ANYONE]


def per_s() -> float:
    """The requests a second that all of their throttles let pass."""
    return sum(operation.throttle.rate_per_s for operation in anonymous())


def usage(attack: Attack, stage: Stage | None = None) -> Usage:
    """What the day takes, beside what the stage costs anyway."""
    used = Usage()
    _written(attack, stage or stages()[PROD], used)
    requests = 0.0
    for operation in anonymous():
        number = operation.throttle.rate_per_s * attack.passed * DAY_S
        requests += number
        read = units.READS.get(operation.name)
        if read is not None:
            units_read, answer_bytes = read[attack.dear]
            used["read"] += number * units_read
        else:
            answer_bytes = units.ANSWER_BYTES
            used["log"] += number * units.METRICS_LINE / GB
        used["transfer"] += number * answer_bytes / GB
    used["http"] += requests
    invoke(used, requests, units.REQUEST_MS, FUNCTION_GB)
    used["log"] += requests * (units.ACCESS_LINE + units.ANSWER_LINE * attack.log_sampling) / GB
    if attack.tracing:
        trace(used, requests, DAY_S)
    used["log-kept"] += used["log"] * units.LOG_COMPRESSED
    if attack.addresses is not None:
        used["edge"] += requests  # CloudFront bills no request that the rule blocks
        used["inspected"] += per_s() * DAY_S
        used["edge-transfer"] = used.pop("transfer")
    return used


def _written(attack: Attack, stage: Stage, used: Usage) -> None:
    """The changes, their receipts, and what the streams make of them."""
    rates = {operation.name: operation.throttle.rate_per_s * attack.passed for operation in anonymous()}
    month = Month(
        plays=rates["play"] * MONTH_S, visits=rates["visit"] * MONTH_S, items=MANY if attack.dear else 1, reads=0
    )
    whole = Usage()
    count(month, whole)
    series(month, whole, days=MONTH_S / DAY_S)
    consume(month, stage, whole)
    for id_, quantity in whole.items():
        used[id_] += quantity * DAY_S / MONTH_S
