"""Decides at random, by seed, which request meets which fault, and when the transactions on a key meet conflicts."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable

from tests.faults import Fault, FaultKind, Plan

FAULT_SHARE = 0.05
READ_TIMEOUT_S = 2.0  # of the product's client (CLIENT_CONFIG)
SLOW_FAULTS = (FaultKind.SILENCE, FaultKind.HANG_BEFORE)  # after these faults, the caller waits for READ_TIMEOUT_S
SLOW_FAULT_WEIGHT = 0.3  # every other fault has the weight 1
TRANSACTION_FAULTS = (FaultKind.THROTTLED_TRANSACTION, FaultKind.CONDITION_AND_CONFLICT)
LATE_SHARE = 0.3  # the share of the delayed requests and answers that arrive after READ_TIMEOUT_S; others: within 0.2 s
LATE_S_MAX = 3.0  # the longest delay; after READ_TIMEOUT_S the client sends a copy, so the delayed request arrives late
HOT_PHASE_EVERY_S, HOT_PHASE_S = 10.0, 2.0  # each key is hot for 2 s in 10 s
HOT_CONFLICT_SHARE = 0.7  # the share of the transactions on a hot key that conflict
HOT_KEYS = ('"VID#v0"', '"VID#v1"', '"USER#u0"', '"POST#p0"', '"PAGE#h0"', '"AD#m0#')  # m0: in each of its periods
WRITES = ("PutItem", "UpdateItem", "DeleteItem")
ERROR_CODES = ("ThrottlingException", "RequestLimitExceeded", "TransactionInProgressException")
ERROR_CODES_AFTER = (*ERROR_CODES, "InternalServerError")  # after the engine has carried out the request
_CONFLICT = Fault(FaultKind.CONFLICT)


def make_plan(seed: int, share: float = FAULT_SHARE, now_s: Callable[[], float] = time.monotonic) -> Plan:
    """Returns a plan with faults for this share of the requests, and with hot phases."""

    def choose_fault(operation: str, body: bytes, number: int) -> Fault | None:
        chance = random.Random(f"{seed}/{operation}/{number}")
        if operation == "TransactWriteItems" and chance.random() < conflict_chance(body, now_s()):
            return _CONFLICT
        return _fault(operation, body, chance) if chance.random() < share else None

    return choose_fault


def conflict_chance(body: bytes, now_s: float) -> float:
    """Returns how likely a conflict of a transaction is now. Each key has its own hot phases.

    A transaction of the rollup has a checkpoint and changes nearly every hot key, on a shard that other writers seldom
    change. So a hot phase does not affect the rollup.
    """
    if b'"CHECKPOINT#' in body:
        return 0.0
    for number, key in enumerate(HOT_KEYS):
        if key.encode() in body and (now_s + number * HOT_PHASE_S) % HOT_PHASE_EVERY_S < HOT_PHASE_S:
            return HOT_CONFLICT_SHARE
    return 0.0


def _fault(operation: str, body: bytes, chance: random.Random) -> Fault:
    kinds = list(FaultKind)
    if operation != "TransactWriteItems":
        kinds = [kind for kind in kinds if kind not in TRANSACTION_FAULTS]
        if operation not in WRITES:  # a read has no conflict
            kinds.remove(FaultKind.CONFLICT)
    kind = chance.choices(kinds, [SLOW_FAULT_WEIGHT if kind in SLOW_FAULTS else 1 for kind in kinds])[0]
    if kind is FaultKind.CONDITION_AND_CONFLICT and len(json.loads(body)["TransactItems"]) < 2:
        kind = FaultKind.CONFLICT  # a transaction of one write cannot have two reasons
    match kind:
        case FaultKind.DELAY | FaultKind.LATE_ANSWER:
            late = chance.random() < LATE_SHARE
            return Fault(kind, delay_s=chance.uniform(READ_TIMEOUT_S, LATE_S_MAX) if late else chance.uniform(0, 0.2))
        case FaultKind.ERROR_BEFORE:
            return Fault(kind, code=chance.choice(ERROR_CODES))
        case FaultKind.ERROR_AFTER:
            return Fault(kind, code=chance.choice(ERROR_CODES_AFTER))
        case FaultKind.CONDITION_AND_CONFLICT:
            return Fault(kind, at=0, failed_at=-1)  # the first write conflicts, the last write's condition fails
        case _:
            return Fault(kind)
