"""Visits of a page: counted, read, and drawn as a badge."""

import os

import counters
import operations
from tally import fields, pages
from tally.api import badge, crawlers
from tally.api.entry import Answer, Entry
from tally.api.texts import Text
from tally.counting import tallies
from tally.counting.increments import Increment
from tally.dynamo.client import Call
from tally.shipped import BOT_VISITS, VISITS
from tally.streams import watermark

BADGE_MAX_AGE_S = 60  # a badge may be a minute old; without a cache every page view reads the table
_PAGES = pages.declared(vars(counters))

# Before Lambda takes a snapshot or provisions capacity nobody waits: load what visits need.
if os.environ.get("AWS_LAMBDA_INITIALIZATION_TYPE", "on-demand") != "on-demand":
    crawlers.is_crawler("anyone")
    fields.page("https://example.com/", "url", _PAGES)


def visit(call: Call, *, url: str, idempotency_key: str, user_agent: str | None = None) -> Increment:
    """Count one visit, once for each key. Crawlers count apart; a direct event without an agent is a person's visit.

    The answer does not repeat the URL, so that the receipt stores it only once.
    """
    crawler = user_agent is not None and crawlers.is_crawler(user_agent)
    counter = BOT_VISITS if crawler else VISITS
    return Increment(counter, url, 1, operations.VISIT.name, idempotency_key, {"counted": True}, status=202)


def get_visits(call: Call, *, url: str) -> Answer:
    """The visits of the page by people and by crawlers, and as of when."""
    as_of = watermark.as_of(call)  # before the numbers, which may then be newer but never older
    visits, bot_visits = tallies.read_together(call, [VISITS, BOT_VISITS], url)
    return Answer({"url": url, "visits": visits, "bot_visits": bot_visits, "as_of": as_of}, max_age_s=VISITS.kept_s)


def get_badge(call: Call, *, url: str) -> Answer:
    """The visits of the page by people, as a picture."""
    visits = tallies.read(call, VISITS, url)
    return Answer(Text(badge.svg("visits", visits), operations.GET_BADGE.media_type, BADGE_MAX_AGE_S))


handler = Entry(
    {operations.VISIT: visit, operations.GET_VISITS: get_visits, operations.GET_BADGE: get_badge}, pages=_PAGES
)
