"""A Lambda function that shows a customer the page "Usage and limits": what is used, what is left, and until when."""

from __future__ import annotations

from time import gmtime, strftime
from typing import Any

from tally.client import Tally

SHOWN = {"calls": "Calls of today", "usage": "Jobs"}  # counters, and their names for people

tally = Tally.from_environment(caller="account")  # once, at cold start


def handler(event: dict[str, Any], context: object) -> dict[str, Any]:
    """Answer the page of the customer who is signed in. It is one request, and one read unit for each number."""
    customer = event["requestContext"]["authorizer"]["jwt"]["claims"]["sub"]
    found = tally.get_any_tallies([f"{counter}:{customer}" for counter in SHOWN])["tallies"]
    rows = "".join(f"<tr><th>{SHOWN[one['counter']]}</th><td>{said(one)}</td></tr>" for one in found)
    page = f"<!doctype html><title>Usage and limits</title><h1>Usage and limits</h1><table>{rows}</table>"
    return {"statusCode": 200, "headers": {"content-type": "text/html; charset=utf-8"}, "body": page}


def said(one: Any) -> str:
    """Return what the page says of a number."""
    if "error" in one:
        return "unknown at the moment"
    if "limit" not in one:
        return f"{one['value']:,} used"
    until = strftime(" until %d %B %H:%M UTC", gmtime(one["resets_at"])) if "resets_at" in one else ""
    return f"{one['value']:,} of {one['limit']:,} used, {max(0, one['left']):,} left{until}"
