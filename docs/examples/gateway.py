"""A Lambda function before a language model. It reserves the most that a call may use, and commits what was used.

However many calls of a team run at once, none begins that its budget does not cover. A request is charged once.
"""

from __future__ import annotations

from typing import Any

from tally.client import Tally
from tally.errors import LimitReachedError

HOLD_S = 900  # longer than `complete` ever takes: it gives up after a minute
BYTES_A_TOKEN = 3  # or more: the estimate is on the safe side

tally = Tally.from_environment(caller="gateway")  # once, at cold start


def complete(request: dict[str, Any]) -> dict[str, Any]:
    """Ask the model: its `text`, and the `tokens` that the call used. You write this, with a time-out."""
    return {"text": "Hello", "tokens": 12}


def handler(request: dict[str, Any], context: object) -> dict[str, Any]:
    """Answer `request["prompt"]` with at most `request["max_tokens"]`, for the budget of `request["team"]`."""
    budget = ("tokens", request["team"])
    estimate = len(request["prompt"].encode()) // BYTES_A_TOKEN + 1 + request["max_tokens"]
    try:
        hold = tally.hold(*budget, estimate, HOLD_S, idempotency_key=request["id"])
    except LimitReachedError as refused:
        return {"status": 429, "left": refused.left, "retry_after_s": refused.retry_after_s}
    if hold["state"] != "held":  # Lambda runs the same request again: it was answered
        return {"status": 409}
    try:
        answer = complete(request)
    except Exception:
        tally.release_hold(*budget, hold["hold"])
        raise
    try:
        tally.commit_hold(*budget, hold["hold"], amount=answer["tokens"])
    except LimitReachedError:  # it used more than the debt allows, too
        tally.commit_hold(*budget, hold["hold"])  # what was held is charged at least
    return {"status": 200, **answer}
