"""A Lambda function that shows a customer the page "Usage and limits": what is used, what is left, and until when."""

from __future__ import annotations

from time import gmtime, strftime
from typing import Any

from tally.client import Tally

SHOWN = {"calls": "Calls of today", "usage": "Jobs"}  # the page's name of each counter

tally = Tally.from_environment(caller="account")  # once, at cold start


def handler(event: dict[str, Any], context: object) -> dict[str, Any]:
    """Answer the page of the customer who is signed in. It costs one request, and one read unit for each number."""
    customer = event["requestContext"]["authorizer"]["jwt"]["claims"]["sub"]
    tallies = tally.get_any_tallies([f"{counter}:{customer}" for counter in SHOWN])["tallies"]
    rows = "".join(f"<tr><th>{SHOWN[one['counter']]}</th><td>{usage_text(one)}</td></tr>" for one in tallies)
    page = f"<!doctype html><title>Usage and limits</title><h1>Usage and limits</h1><table>{rows}</table>"
    return {"statusCode": 200, "headers": {"content-type": "text/html; charset=utf-8"}, "body": page}


def usage_text(tally: Any) -> str:
    """Return the page's text for a tally."""
    if "error" in tally:
        return "unknown at the moment"
    if "limit" not in tally:
        return f"{tally['value']:,} used"
    until = strftime(" until %d %B %H:%M UTC", gmtime(tally["resets_at"])) if "resets_at" in tally else ""
    return f"{tally['value']:,} of {tally['limit']:,} used, {max(0, tally['left']):,} left{until}"
