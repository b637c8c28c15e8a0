"""A Lambda function that spends credits which expire: each grant is an id of the counter `credits`.

A request is spent once under its key, of the grants that end first, all of it or nothing.
"""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

from tally.client import Tally
from tally.errors import KeyReusedError, LimitReachedError

TRIES = 5  # others spend the same grants at the same moment

tally = Tally.from_environment(caller="billing")  # once, at cold start


def grants(customer: str) -> dict[str, date]:
    """The grants of a customer, by their id, and the last day of each. You write this: your own table has them."""
    return {}


def handler(request: dict[str, Any], context: object) -> dict[str, Any]:
    """Spend `request["amount"]` of the credits of `request["customer"]`, once for `request["id"]`."""
    if request["amount"] < 1:
        raise ValueError("amount must be 1 or more: this function spends, and grants nothing")
    for _ in range(TRIES):
        parts, left = split(request["customer"], request["amount"])
        if left < request["amount"]:
            receipt = tally.get_own_receipts("change", ["changes"], [request["id"]])["receipts"][0]
            return {"spent": receipt["state"] == "counted"}  # an earlier run may have spent what is missing
        try:
            tally.change(parts, idempotency_key=request["id"])
            return {"spent": True}
        except KeyReusedError:  # an earlier run has spent it, of other grants
            return {"spent": True}
        except LimitReachedError:  # another request has spent of the same grant: look again
            continue
    raise TimeoutError("Others are spending the same grants. Send the request again.")


def split(customer: str, amount: int) -> tuple[list[dict[str, Any]], int]:
    """The changes that spend the amount, of the grants that end first, and what is left of all that have not ended."""
    today = datetime.now(UTC).date()
    valid = {grant: ends for grant, ends in grants(customer).items() if ends >= today}
    found = tally.get_any_tallies([f"credits:{grant}" for grant in valid])["tallies"] if valid else []
    values, parts, missing = {one["id"]: one["value"] for one in found}, [], amount
    for grant in sorted(valid, key=lambda one: valid[one]):
        if taken := min(missing, values[grant]):
            parts.append({"counter": "credits", "id": grant, "amount": -taken})
            missing -= taken
    return parts, sum(values.values())
