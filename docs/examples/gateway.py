"""A Lambda function before a language model. It reserves the most that a call may use, and commits what was used.

However many calls of a team run at once, none begins that its budget does not cover. A request is charged once, also if
Lambda or a queue runs it again: an answer that was kept is charged, whatever became of its hold. If two runs overlap,
the first one that commits decides what is charged.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any
from uuid import uuid4

from tally.client import Tally
from tally.errors import HoldSettledError, LimitReachedError

HOLD_S = 120  # longer than `complete` takes: it gives up after a minute
BYTES_A_TOKEN = 3  # or more: the estimate is on the safe side

tally = Tally.from_environment(caller="gateway")  # once, at cold start


def kept_answer(request: dict[str, Any]) -> dict[str, Any] | None:
    """The answer that `complete` kept for `request["id"]`; None if there is none. You write this."""
    return None


def complete(request: dict[str, Any]) -> dict[str, Any]:
    """Ask the model: its `text`, and the `tokens` that the call used. Keep the answer for `request["id"]`. You write
    this, with a time-out."""
    return {"text": "Hello", "tokens": 12}


def handler(request: dict[str, Any], context: object) -> dict[str, Any]:
    """Answer `request["prompt"]` with at most `request["max_tokens"]`, for the budget of `request["team"]`."""
    budget = ("tokens", request["team"])
    estimate = len(request["prompt"].encode()) // BYTES_A_TOKEN + 1 + request["max_tokens"]
    cover = None
    try:
        hold = tally.hold(*budget, estimate, HOLD_S, idempotency_key=request["id"])
        answer = kept_answer(request)
        if hold["state"] == "expired" and answer is None:  # an earlier run died: this one needs room of its own
            cover = tally.hold(*budget, estimate, HOLD_S, idempotency_key=str(uuid4()))
    except LimitReachedError as refused:
        return {"status": 429, "left": refused.left, "retry_after_s": refused.retry_after_s}
    if hold["state"] not in ("held", "expired"):  # an earlier run was charged
        return {"status": 200, **answer} if answer else {"status": 409}
    try:
        answer = answer or complete(request)  # if it fails, the next run finds the same hold
    finally:
        if cover:
            tally.release_hold(*budget, cover["hold"])
    charge(budget, hold["hold"], answer["tokens"])
    return {"status": 200, **answer}


def charge(budget: tuple[str, str], hold: str, tokens: int) -> None:
    """Write down what was used, once. If there is no room for it, write down what was held."""
    try:
        try:
            tally.commit_hold(*budget, hold, amount=tokens)  # if the hold has expired, this takes the tokens again
        except LimitReachedError:
            tally.commit_hold(*budget, hold)  # what was held
    except HoldSettledError:
        charge_late(budget, hold, tokens)


def charge_late(budget: tuple[str, str], hold: str, tokens: int) -> None:
    """Write down as much of what was used as there is room for, now that the hold has expired. If another run was
    charged, write down nothing: a request is charged once."""
    with suppress(HoldSettledError):
        while True:
            try:
                tally.commit_hold(*budget, hold, amount=tokens)
                return
            except LimitReachedError as refused:  # `left` is less than these tokens, and may be below 0
                tokens = max(0, refused.left or 0)
