"""The faults that the proxy injects, and the plans that choose a fault for a request."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any


class FaultKind(Enum):
    """What happens to a request. A forwarded request reaches the engine, so its change may be made."""

    LOSE_RESPONSE = "forwarded, then the connection is closed without an answer"
    SILENCE = "forwarded, never answered: the client's read times out"
    FAIL_AFTER = "forwarded, answered 500"
    FAIL_BEFORE = "not forwarded, answered 500"
    DROP_BEFORE = "not forwarded, the connection is closed"
    HANG_BEFORE = "not forwarded, never answered"
    THROTTLE = "not forwarded, ProvisionedThroughputExceededException"
    CONFLICT = "not forwarded, cancelled for a conflict (TransactionConflictException outside of transactions)"
    THROTTLED_TRANSACTION = "not forwarded, cancelled for throttling"
    CONDITION_AND_CONFLICT = "not forwarded, cancelled for a conflict and for a condition that failed"
    ERROR_BEFORE = "not forwarded, answered 400 with a code"
    ERROR_AFTER = "forwarded, answered 400 with a code"
    TRUNCATE = "forwarded, then the connection is closed in the middle of the answer"
    DELAY = "forwarded late, even if the client has gone; then answered"
    LATE_ANSWER = "forwarded, answered late"


UNFORWARDED = frozenset({
    FaultKind.FAIL_BEFORE, FaultKind.DROP_BEFORE, FaultKind.HANG_BEFORE,
    FaultKind.THROTTLE, FaultKind.CONFLICT, FaultKind.THROTTLED_TRANSACTION,
    FaultKind.CONDITION_AND_CONFLICT, FaultKind.ERROR_BEFORE,
})  # fmt: skip


@dataclass(frozen=True)
class Fault:
    """One fault. `at`: the index of the write that is in conflict or throttled (-1: the last write)."""

    kind: FaultKind
    at: int = -1
    failed_at: int = 0
    """CONDITION_AND_CONFLICT: the index of the write whose condition failed. `item`: the item it found, as JSON."""
    item: str = "{}"
    code: str = "TransactionConflict"
    """CONDITION_AND_CONFLICT: the code of the write at `at`. ERROR_BEFORE, ERROR_AFTER: the error's code."""
    delay_s: float = 0.0
    """DELAY, LATE_ANSWER: for how long."""


LOSE_RESPONSE = Fault(FaultKind.LOSE_RESPONSE)
SILENCE = Fault(FaultKind.SILENCE)
TRUNCATE = Fault(FaultKind.TRUNCATE)
FAIL_AFTER = Fault(FaultKind.FAIL_AFTER)
FAIL_BEFORE = Fault(FaultKind.FAIL_BEFORE)
DROP_BEFORE = Fault(FaultKind.DROP_BEFORE)
HANG_BEFORE = Fault(FaultKind.HANG_BEFORE)
THROTTLE = Fault(FaultKind.THROTTLE)
CONFLICT = Fault(FaultKind.CONFLICT)
THROTTLED_TRANSACTION = Fault(FaultKind.THROTTLED_TRANSACTION)


def condition_and_conflict(
    failed_at: int, conflict_at: int, item: Mapping[str, Any] | None = None, code: str = "TransactionConflict"
) -> Fault:
    """Cancels a transaction for a failed condition, which found `item`, and for the error `code` of a second write."""
    return Fault(
        FaultKind.CONDITION_AND_CONFLICT, at=conflict_at, failed_at=failed_at, item=json.dumps(item or {}), code=code
    )


def condition_failed(at: int, item: Mapping[str, Any] | None = None) -> Fault:
    """Cancels a transaction because the condition of one write failed. The condition found `item`."""
    return condition_and_conflict(failed_at=at, conflict_at=at, item=item)  # the failed condition replaces the conflict


def error_answer(code: str) -> Fault:
    """Answers 400 with this code, and does not forward the request."""
    return Fault(FaultKind.ERROR_BEFORE, code=code)


def error_after_write(code: str) -> Fault:
    """Forwards the request, and answers 400 with this code."""
    return Fault(FaultKind.ERROR_AFTER, code=code)


def delay(delay_s: float) -> Fault:
    """Delays the request on its way to the engine."""
    return Fault(FaultKind.DELAY, delay_s=delay_s)


def late_answer(delay_s: float) -> Fault:
    """Delays the answer on its way to the client."""
    return Fault(FaultKind.LATE_ANSWER, delay_s=delay_s)


Plan = Callable[[str, bytes, int], Fault | None]
"""(operation, body, number of earlier requests of this operation) -> the fault of this request, or None."""


def no_faults(operation: str, body: bytes, number: int) -> Fault | None:
    """A plan in which no request meets a fault."""
    return None


def always(fault: Fault, *operations: str) -> Plan:
    """Returns a plan in which each request of these operations meets the fault; without operations, each request."""
    return lambda operation, body, number: fault if not operations or operation in operations else None


def script(faults: Mapping[str, Sequence[Fault | None]]) -> Plan:
    """Returns a plan in which the first requests of each operation meet these faults, in this order."""

    def plan(operation: str, body: bytes, number: int) -> Fault | None:
        listed = faults.get(operation, ())
        return listed[number] if number < len(listed) else None

    return plan


def random_faults(seed: int, probabilities: Mapping[str, Mapping[Fault, float]]) -> Plan:
    """Returns a plan of random faults. A seed gives the n-th request of an operation the same fault in each run."""

    def plan(operation: str, body: bytes, number: int) -> Fault | None:
        chances = probabilities.get(operation)
        if not chances:
            return None
        remainder = random.Random(f"{seed}/{operation}/{number}").random()
        for fault, probability in chances.items():
            remainder -= probability
            if remainder < 0:
                return fault
        return None

    return plan
