"""A Lambda function that spends credits. Each grant of credits is an id of the counter `credits`, with a last day.

The function spends the whole amount of a request once, or nothing. It uses the grants that end first.
"""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

from tally.client import Tally
from tally.errors import KeyReusedError, LimitReachedError

TRIES = 5  # other requests may spend the same grants at the same time

tally = Tally.from_environment(caller="billing")  # once, at cold start


def grants(customer: str) -> dict[str, date]:
    """Return the last day of each grant of a customer, by the grant's id. You write this: your table has the grants."""
    return {}


def handler(request: dict[str, Any], context: object) -> dict[str, Any]:
    """Spend `request["amount"]` of the credits of `request["customer"]`, once for `request["id"]`."""
    if request["amount"] < 1:
        raise ValueError("amount must be 1 or more: this function spends, and grants nothing")
    for _ in range(TRIES):
        changes, left = plan_changes(request["customer"], request["amount"])
        if left < request["amount"]:
            receipt = tally.get_own_receipts("change", target=["changes"], key=[request["id"]])["receipts"][0]
            return {"spent": receipt["state"] == "counted"}  # an earlier run may have spent the credits
        try:
            tally.change(changes, idempotency_key=request["id"])
            return {"spent": True}
        except KeyReusedError:  # an earlier run spent the amount from other grants
            return {"spent": True}
        except LimitReachedError:  # another request spent the same grant: plan again
            continue
    raise TimeoutError("Other requests spend the same grants. Send this request again.")


def plan_changes(customer: str, amount: int) -> tuple[list[dict[str, Any]], int]:
    """Return the changes that spend the amount, and the credits that are left in all valid grants."""
    today = datetime.now(UTC).date()
    valid = {grant: ends for grant, ends in grants(customer).items() if ends >= today}
    tallies = tally.get_any_tallies([f"credits:{grant}" for grant in valid])["tallies"] if valid else []
    values, changes, missing = {answer["id"]: answer["value"] for answer in tallies}, [], amount
    for grant in sorted(valid, key=lambda grant: valid[grant]):
        if taken := min(missing, values[grant]):
            changes.append({"counter": "credits", "id": grant, "amount": -taken})
            missing -= taken
    return changes, sum(values.values())
