"""Built-in counters. A deployment has the routes of posts and visits only if its `counters.py` lists these counters."""

from collections.abc import Iterable

from .counter import ANYONE, CALLER, SOON, Counter


class PostCounter(Counter):
    """A counter of the children of a post. Tally refuses a child whose post does not exist."""

    parent_required = True


PLAYS = Counter(
    "plays",
    prefix="VID",
    sort_key="STATS#TOTAL",
    attribute="play_count",
    delta=1,
    changes=ANYONE,
    read=ANYONE,
    path="/videos/{id}/plays",
)
LIKES = PostCounter(
    "likes",
    prefix="POST",
    sort_key="META",
    attribute="likeTally",
    child="LIKE#USER#",
    changes=CALLER,
    read=ANYONE,
    path="/posts/{id}/like",
)
VISITS = Counter(
    "visits",
    prefix="SITE",
    sort_key="VISITS",
    attribute="visits",
    visible=SOON,
    delta=1,
    pages=True,
    changes=ANYONE,
    read=ANYONE,
)
BOT_VISITS = Counter(
    "bot_visits",
    prefix="SITE",
    sort_key="BOTS",
    attribute="bot_visits",
    visible=SOON,
    delta=1,
    pages=True,
    changes=ANYONE,
    read=ANYONE,
)
PAGE_VISITORS = Counter(
    "page_visitors",
    prefix="SITE",
    sort_key="VISITORS",
    attribute="visitors",
    visible=SOON,
    unique=True,
    period="day",
    pages=True,
    read=ANYONE,
)
"""Visitors of a page in a day. Tally stores a hash of each visitor, under a salt that is deleted after the day."""
BUILTIN = (PLAYS, LIKES, VISITS, BOT_VISITS, PAGE_VISITORS)


def is_listed(counters: Iterable[Counter], builtin: Counter) -> bool:
    """Returns whether a counter has the built-in counter's name. With a team's thresholds, the two are not equal."""
    return any(counter.name == builtin.name for counter in counters)
