"""A Lambda function that sells from a stock. It holds the items during the payment, and gives them back if it fails.

Step Functions or a queue may run it again for the same order: it sells once. A customer whose card is declined may send
the same order with another card.
"""

from __future__ import annotations

from typing import Any

from tally.client import Tally
from tally.errors import HoldSettledError, LimitReachedError

PAY_WITHIN_S = 900
TRIES_MAX = 20  # holds of one order, one after the other

tally = Tally.from_environment(caller="checkout")  # once, at cold start


def charge(order: dict[str, Any]) -> bool:
    """See that the order is paid: charge the card, unless the order is paid already; return whether it is. You write
    this."""
    return True


def refund(order: dict[str, Any]) -> None:
    """Pay the customer back: then the order is not paid. You write this, too."""


def hold_for(order: dict[str, Any]) -> dict[str, Any]:
    """The hold of this order: the one that it has, or else a new one. Raises LimitReachedError.

    A hold that was given back, or has expired, holds nothing any more: the next one has the next key.
    """
    for number in range(TRIES_MAX):
        key = f"{order['order_id']}/{number}"
        hold = tally.hold("stock", order["item_id"], order["amount"], PAY_WITHIN_S, idempotency_key=key)
        if hold["state"] in ("held", "committed"):
            return {**hold}
    raise LimitReachedError("This order was tried too often.")


def handler(order: dict[str, Any], context: object) -> dict[str, Any]:
    """Sell `order["amount"]` of `order["item_id"]`."""
    try:
        hold = hold_for(order)
    except LimitReachedError as refused:
        return {"sold": False, "left": refused.left}
    if hold["state"] == "committed":  # by an earlier run
        return {"sold": True}
    if not charge(order):
        tally.release_hold("stock", order["item_id"], hold["hold"])
        return {"sold": False}
    try:
        tally.commit_hold("stock", order["item_id"], hold["hold"])
    except HoldSettledError:  # paid too late: the hold has expired, and someone else may have the items
        refund(order)
        return {"sold": False}
    return {"sold": True}
