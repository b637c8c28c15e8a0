"""Voids: takes an earlier change back by the key that it was counted under, once, in its own period.

A void is a batch of the opposite amounts (batch.py). The void's key is the nonce of the change's receipt, and the
void's caller is the change's caller, even if a service asks for the void. So every void of one change has the same
receipt, and a second void is a replay. The void's transaction also marks the receipt of the change (`voided`). Until
the receipt expires, a late copy of the change is a replay, and counts nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ..counter import Counter
from ..dynamo import clock, items
from ..dynamo.client import Call
from ..dynamo.keys import Item
from ..errors import InvalidInputError, NotFoundError, WriteRefusedError
from . import batch, periods, receipts
from .batch import Batch, TeamWrites
from .receipts import DAY_S, VOIDED_AT, ChangeAnswer, ReceiptKey
from .tallies import Tally

OPERATION = "void"


class Voided(NamedTuple):
    """The amounts of the change that was voided, by tally, and the answer of the void."""

    amounts: Mapping[Tally, int]
    answer: ChangeAnswer


def void(call: Call, receipt_key: ReceiptKey) -> Voided:
    """Takes back the change whose receipt has the key `receipt_key` of the caller `call.caller`.

    Reads the receipt for 1 RCU. The void of a change of one tally costs 6 WCU, or 4 WCU if the rollup moves the tally.

    Raises NotFoundError if there is no live receipt, or if the period of a tally is not kept. Raises LimitReachedError,
    and writes nothing, if a tally has no room for the amount. If a counter of the change is not declared, or is not
    batchable now, raises InvalidInputError. Raises CounterRetiredError, and the errors of batch.count.
    """
    receipt, now_s = receipts.find_receipt(call, receipt_key), clock.now_s()
    amounts = _voided_amounts(receipt, call.counters, now_s)
    # Only a receipt that is not voided (None) is marked. It keeps its nonce, so it is no new receipt for the consumers.
    as_read, marked = {"nonce": receipt["nonce"], VOIDED_AT: None}, {VOIDED_AT: int(now_s)}
    table = call.store.settings.receipts_table
    # A batch takes further writes only as a team's writes, so the mark is sent as a team's write.
    mark = TeamWrites([items.update_write(table, {"id": receipt["id"]}, marked, expected=as_read)])
    opposite = Batch(len(amounts), {tally: -amount for tally, amount in amounts.items()}, team=mark, is_void=True)
    # The void's receipt lives as long as the receipt of the change.
    days = (int(receipt["expiration"]["N"]) - int(now_s)) // DAY_S + 1
    try:
        answer = batch.count(call, opposite, operation=OPERATION, key=receipt["nonce"]["S"], soon=False, days=days)
    except WriteRefusedError:  # the receipt that was read has expired, and a new change has put a receipt under its id
        raise NotFoundError("Another change has just used this key.", field="key") from None
    return Voided(amounts, answer)


def _voided_amounts(receipt: Item, counters: Mapping[str, Counter], now_s: float) -> dict[Tally, int]:
    """Returns the amounts of the receipt's change, by tally of the period in which the change was counted."""
    changes = [(receipt["counter"]["S"], receipt["target"]["S"], receipt["amount"])] if "counter" in receipt else [
        (name, id_, amount)
        for part in ("changes", "soon")  # of a batch: what it added itself, and what the rollup adds
        for name, ids in receipt.get(part, {"M": {}})["M"].items()
        for id_, amount in ids["M"].items()
    ]  # fmt: skip
    amounts: dict[Tally, int] = {}
    for name, id_, amount in changes:
        counter = counters.get(name)
        if counter is None or not counter.is_batchable:
            raise InvalidInputError(f"As {name} is declared now, its changes cannot be voided.", field="key")
        if not periods.is_kept(counter, id_, now_s):
            raise periods.not_kept_error(counter, id_, "key")
        amounts[Tally(counter, id_)] = int(amount["N"])
    return amounts
