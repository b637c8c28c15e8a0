"""A Lambda function that sells from a stock. It holds the items while the customer pays. If a card is declined, the
hold stays, and the customer may try a second card.

Step Functions or a queue may run the function several times for one order within a day, also at the same time. The
function sells the order once, or refunds it. After a refund, the customer sends a new order.
"""

from __future__ import annotations

from typing import Any

from tally.client import Tally
from tally.errors import HoldSettledError, LimitReachedError

PAY_WITHIN_S = 900  # for this long nobody else can buy the items

tally = Tally.from_environment(caller="checkout")  # once, at cold start


def charge(order: dict[str, Any]) -> bool:
    """If the order is not paid, charge the card. Return whether the order is paid. You write this."""
    return True


def refund(order: dict[str, Any]) -> None:
    """If the order is paid, pay the customer back. Afterwards the order is not paid. You write this."""


def handler(order: dict[str, Any], context: object) -> dict[str, Any]:
    """Sell `order["amount"]` of `order["item_id"]`. All runs of an order share one hold. Its state decides what
    a run does."""
    item, amount = ("stock", order["item_id"]), order["amount"]
    try:
        hold = tally.hold(*item, amount, PAY_WITHIN_S, idempotency_key=order["order_id"])
    except LimitReachedError as refused:  # no run of this order got a hold, so no run charged
        return {"sold": False, "left": refused.left}
    if hold["state"] in ("committed", "voided"):  # an earlier run sold; somebody may have voided the sale
        return {"sold": hold["state"] == "committed"}
    if hold["state"] == "released":  # an earlier run gave up, and may have died before the refund
        return give_up(order, hold["hold"])
    if not charge(order):
        return {"sold": False}
    try:
        tally.commit_hold(*item, hold["hold"], amount=amount)  # if the hold has expired, this takes the items again
    except (LimitReachedError, HoldSettledError):  # other customers have the items, or another run gave up
        return give_up(order, hold["hold"])
    return {"sold": True}


def give_up(order: dict[str, Any], hold: str) -> dict[str, Any]:
    """Release the hold, so that no run can sell the order, and refund the order."""
    try:
        tally.release_hold("stock", order["item_id"], hold)
    except HoldSettledError:  # another run sold the order, and somebody may have voided the sale: answer this
        return handler(order, None)
    refund(order)
    return {"sold": False}
