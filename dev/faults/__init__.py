"""Fault injection between boto3 and the DynamoDB engine, for tests and benchmarks.

`FaultProxy` is the proxy; `script`, `always` and `seeded` plan which request meets which fault.
"""

from .plans import (
    CONFLICT,
    DROP_BEFORE,
    FAIL_AFTER,
    FAIL_BEFORE,
    HANG_BEFORE,
    LOSE_RESPONSE,
    SILENCE,
    THROTTLE,
    THROTTLED_TRANSACTION,
    TRUNCATE,
    Fault,
    Kind,
    Plan,
    always,
    answer,
    answer_after,
    delay,
    late_answer,
    mixed,
    no_faults,
    refused,
    script,
    seeded,
)
from .proxy import FaultProxy

__all__ = [
    "CONFLICT",
    "DROP_BEFORE",
    "FAIL_AFTER",
    "FAIL_BEFORE",
    "HANG_BEFORE",
    "LOSE_RESPONSE",
    "SILENCE",
    "THROTTLE",
    "THROTTLED_TRANSACTION",
    "TRUNCATE",
    "Fault",
    "FaultProxy",
    "Kind",
    "Plan",
    "always",
    "answer",
    "answer_after",
    "delay",
    "late_answer",
    "mixed",
    "no_faults",
    "refused",
    "script",
    "seeded",
]
