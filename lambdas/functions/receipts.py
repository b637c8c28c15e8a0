"""Receipts: did my change count?"""

from typing import Any

import counters
import operations
from tally import pages
from tally.api.entry import Answer, Entry
from tally.counting import receipts
from tally.dynamo.client import Call
from tally.errors import InvalidInputError

_PAGES = pages.declared(vars(counters))


def get_receipt(call: Call, *, of: str, target: str, idempotency_key: str) -> Answer:
    """`counted`, with the answer of that time, or `unknown`: never sent, refused, or older than receipts live."""
    target = _target(of, target)
    return Answer(_state(of, target, receipts.find(call, of, target, idempotency_key)))


def get_receipts(call: Call, *, of: str, targets: list[str], idempotency_keys: list[str]) -> Answer:
    """The same of each key, in the order asked. `targets`: one for all keys, or one for each."""
    if len(targets) not in (1, len(idempotency_keys)):
        raise InvalidInputError("target must be given once, or once for each key.", field="target")
    named = [_target(of, target) for target in targets] * (len(idempotency_keys) // len(targets))
    found = receipts.find_many(call, of, list(zip(named, idempotency_keys, strict=True)))
    entries = zip(named, idempotency_keys, found, strict=True)
    return Answer({"receipts": [{"key": key, **_state(of, target, body)} for target, key, body in entries]})


def _target(of: str, target: str) -> str:
    return operations.WITH_RECEIPTS[of].asked_target(target, "target", _PAGES)


def _state(of: str, target: str, body: receipts.Body | None) -> dict[str, Any]:
    state = {"operation": of, "target": target, "state": "unknown" if body is None else "counted"}
    return state if body is None else {**state, "answer": body}


handler = Entry(
    {
        operations.GET_RECEIPT: get_receipt,
        operations.GET_OWN_RECEIPT: get_receipt,
        operations.GET_RECEIPTS: get_receipts,
        operations.GET_OWN_RECEIPTS: get_receipts,
    }
)
