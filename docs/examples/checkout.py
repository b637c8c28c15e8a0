"""A Lambda function that sells from a stock: what is being paid for is nobody else's, and comes back if it is not paid.

Step Functions or a queue may run it again for the same order: it is sold once.
"""

from __future__ import annotations

from typing import Any

from tally.client import Tally
from tally.errors import HoldSettledError, LimitReachedError

PAY_WITHIN_S = 900

tally = Tally.from_environment(caller="checkout")  # once, at cold start


def charge(order: dict[str, Any]) -> bool:
    """Charge the customer; whether it was paid. Yours; it too must be safe to run twice for one order."""
    return True


def refund(order: dict[str, Any]) -> None:
    """Pay the customer back. Yours, too."""


def handler(order: dict[str, Any], context: object) -> dict[str, Any]:
    """Sell `order["amount"]` of `order["item_id"]`."""
    item = order["item_id"]
    try:
        hold = tally.hold("stock", item, order["amount"], PAY_WITHIN_S, idempotency_key=order["order_id"])
    except LimitReachedError as refused:
        return {"sold": False, "left": refused.left}
    if not charge(order):
        tally.release_hold("stock", item, hold.hold_id)
        return {"sold": False}
    try:
        tally.commit_hold("stock", item, hold.hold_id)
    except HoldSettledError:  # paid too late: the hold had expired, and the amount is somebody else's by now
        refund(order)
        return {"sold": False}
    return {"sold": True}
