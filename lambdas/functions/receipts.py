"""Receipts: did my change count?"""

import counters
import operations
from tally import pages
from tally.api.entry import Answer, Entry
from tally.counting import receipts
from tally.dynamo.client import Call

_PAGES = pages.declared(vars(counters))


def get_receipt(call: Call, *, of: str, target: str, idempotency_key: str) -> Answer:
    """`counted`, with the answer of that time, or `unknown`: never sent, refused, or older than receipts live."""
    target = operations.WITH_RECEIPTS[of].asked_target(target, "target", _PAGES)
    body = receipts.find(call, of, target, idempotency_key)
    state = {"operation": of, "target": target, "state": "unknown" if body is None else "counted"}
    return Answer(state if body is None else {**state, "answer": body})


handler = Entry({operations.GET_RECEIPT: get_receipt, operations.GET_OWN_RECEIPT: get_receipt})
