"""A Lambda function that sells from a stock. It holds the items during the payment, and for a second card after a
declined one.

Step Functions or a queue may run it again for the same order within a day, and two runs may overlap: it sells once, or
pays back. After it has paid back, the customer sends a new order.
"""

from __future__ import annotations

from typing import Any

from tally.client import Tally
from tally.errors import HoldSettledError, LimitReachedError

PAY_WITHIN_S = 900  # so long nobody else can buy the items

tally = Tally.from_environment(caller="checkout")  # once, at cold start


def charge(order: dict[str, Any]) -> bool:
    """See that the order is paid: charge the card, unless the order is paid already; return whether it is. You write
    this."""
    return True


def refund(order: dict[str, Any]) -> None:
    """Pay the customer back, unless nothing is paid: then the order is not paid. You write this, too."""


def handler(order: dict[str, Any], context: object) -> dict[str, Any]:
    """Sell `order["amount"]` of `order["item_id"]`. An order has one hold, which decides for every run what becomes of
    the order."""
    item, amount = ("stock", order["item_id"]), order["amount"]
    try:
        hold = tally.hold(*item, amount, PAY_WITHIN_S, idempotency_key=order["order_id"])
    except LimitReachedError as refused:  # no run of this order has had a hold, so none has charged
        return {"sold": False, "left": refused.left}
    if hold["state"] in ("committed", "voided"):  # an earlier run sold, and somebody may have taken that back since
        return {"sold": hold["state"] == "committed"}
    if hold["state"] == "released":  # an earlier run gave up, and may have died before it paid back
        return give_up(order, hold["hold"])
    if not charge(order):
        return {"sold": False}
    try:
        tally.commit_hold(*item, hold["hold"], amount=amount)  # if the hold has expired, this takes the items again
    except (LimitReachedError, HoldSettledError):  # somebody else has the items, or another run gave up
        return give_up(order, hold["hold"])
    return {"sold": True}


def give_up(order: dict[str, Any], hold: str) -> dict[str, Any]:
    """Pay back, once no run can sell the order any more."""
    try:
        tally.release_hold("stock", order["item_id"], hold)
    except HoldSettledError:  # another run has sold it, and somebody may have taken that back since
        return handler(order, None)
    refund(order)
    return {"sold": False}
