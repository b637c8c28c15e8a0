"""A Lambda function in front of a language model. It holds the tokens that a call may use, and commits the used tokens.

Even if many calls of a team run at once, a call begins only if the team's budget covers it. A request is charged once,
also if Lambda or a queue runs the function twice for the request. A stored answer is charged even if its hold has
expired. If two runs overlap, the first run that commits decides the charge.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any
from uuid import uuid4

from tally.client import Tally
from tally.errors import HoldSettledError, LimitReachedError

HOLD_S = 120  # longer than `complete` takes, which gives up after a minute
BYTES_A_TOKEN = 3  # a token has 3 bytes or more, so the estimate is rather too high

tally = Tally.from_environment(caller="gateway")  # once, at cold start


def kept_answer(request: dict[str, Any]) -> dict[str, Any] | None:
    """Return the answer that `complete` stored for `request["id"]`, or None. You write this."""
    return None


def complete(request: dict[str, Any]) -> dict[str, Any]:
    """Ask the model, and store the answer for `request["id"]`. Return its `text`, and the `tokens` that the call used.
    You write this, with a time-out."""
    return {"text": "Hello", "tokens": 12}


def handler(request: dict[str, Any], context: object) -> dict[str, Any]:
    """Answer `request["prompt"]` with at most `request["max_tokens"]`, for the budget of `request["team"]`."""
    budget = ("tokens", request["team"])
    estimate = len(request["prompt"].encode()) // BYTES_A_TOKEN + 1 + request["max_tokens"]
    second_hold = None
    try:
        hold = tally.hold(*budget, estimate, HOLD_S, idempotency_key=request["id"])
        answer = kept_answer(request)
        if hold["state"] == "expired" and answer is None:  # an earlier run died, so this run places a new hold
            second_hold = tally.hold(*budget, estimate, HOLD_S, idempotency_key=str(uuid4()))
    except LimitReachedError as refused:
        return {"status": 429, "left": refused.left, "retry_after_s": refused.retry_after_s}
    if hold["state"] not in ("held", "expired"):  # an earlier run was charged
        return {"status": 200, **answer} if answer else {"status": 409}
    try:
        answer = answer or complete(request)  # if the model fails, the next run gets the same hold
    finally:
        if second_hold:
            tally.release_hold(*budget, second_hold["hold"])
    charge(budget, hold["hold"], answer["tokens"])
    return {"status": 200, **answer}


def charge(budget: tuple[str, str], hold: str, tokens: int) -> None:
    """Commit the used tokens once. If the budget has no room for so many, commit the held amount."""
    try:
        try:
            tally.commit_hold(*budget, hold, amount=tokens)  # if the hold has expired, this takes the tokens again
        except LimitReachedError:
            tally.commit_hold(*budget, hold)  # the held amount
    except HoldSettledError:
        charge_late(budget, hold, tokens)


def charge_late(budget: tuple[str, str], hold: str, tokens: int) -> None:
    """Commit as many of the used tokens as the budget has room for. The hold has expired. If another run was charged,
    commit nothing, because a request is charged once."""
    with suppress(HoldSettledError):
        while True:
            try:
                tally.commit_hold(*budget, hold, amount=tokens)
                return
            except LimitReachedError as refused:  # `left` is less than `tokens`, and may be below 0
                tokens = max(0, refused.left or 0)
