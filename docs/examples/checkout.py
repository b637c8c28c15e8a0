"""A Lambda function that sells from a stock. It holds the items during the payment, and gives them back if it fails.

Step Functions or a queue may run it again for the same order: it sells once.
"""

from __future__ import annotations

from typing import Any

from tally.client import Tally
from tally.errors import HoldSettledError, LimitReachedError

PAY_WITHIN_S = 900

tally = Tally.from_environment(caller="checkout")  # once, at cold start


def charge(order: dict[str, Any]) -> bool:
    """Charge the customer; return whether they paid. You write this; it must be safe to run twice for one order."""
    return True


def refund(order: dict[str, Any]) -> None:
    """Pay the customer back. You write this, too."""


def handler(order: dict[str, Any], context: object) -> dict[str, Any]:
    """Sell `order["amount"]` of `order["item_id"]`."""
    item = order["item_id"]
    try:
        hold = tally.hold("stock", item, order["amount"], PAY_WITHIN_S, idempotency_key=order["order_id"])
    except LimitReachedError as refused:
        return {"sold": False, "left": refused.left}
    if not charge(order):
        tally.release_hold("stock", item, hold["hold"])
        return {"sold": False}
    try:
        tally.commit_hold("stock", item, hold["hold"])
    except HoldSettledError:  # paid too late: the hold has expired, and someone else may have the items
        refund(order)
        return {"sold": False}
    return {"sold": True}
