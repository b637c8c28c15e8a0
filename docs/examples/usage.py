"""A Lambda function that shows a customer the page "Usage and limits": what is used, what is left, and until when."""

from __future__ import annotations

from time import gmtime, strftime
from typing import Any

from tally.client import Tally

LABELS = {"calls": "Calls of today", "usage": "Jobs"}  # by counter

tally = Tally.from_environment(caller="account")  # once, at cold start


def handler(event: dict[str, Any], context: object) -> dict[str, Any]:
    """Answer the page of the customer who is signed in. The page costs a request, and a read unit for each number."""
    customer = event["requestContext"]["authorizer"]["jwt"]["claims"]["sub"]
    tallies = tally.get_any_tallies([f"{counter}:{customer}" for counter in LABELS])["tallies"]
    rows = "".join(f"<tr><th>{LABELS[answer['counter']]}</th><td>{usage_text(answer)}</td></tr>" for answer in tallies)
    page = f"<!doctype html><title>Usage and limits</title><h1>Usage and limits</h1><table>{rows}</table>"
    return {"statusCode": 200, "headers": {"content-type": "text/html; charset=utf-8"}, "body": page}


def usage_text(answer: Any) -> str:
    """Return the page's text for the answer about one tally."""
    if "error" in answer:
        return "unknown at the moment"
    if "limit" not in answer:
        return f"{answer['value']:,} used"
    until = strftime(" until %d %B %H:%M UTC", gmtime(answer["resets_at"])) if "resets_at" in answer else ""
    return f"{answer['value']:,} of {answer['limit']:,} used, {max(0, answer['left']):,} left{until}"
