"""The counters that Tally's own handlers count with. Every `counters.py` lists them beside its own."""

from typing import Any

from .counter import ANYONE, Counter, Guarantee

PLAYS = Counter("plays", prefix="VID", sort_key="STATS#TOTAL", attribute="play_count", delta=1, read=ANYONE)
_OF_POSTS: dict[str, Any] = {"parent_required": True, "api": False, "read": ANYONE}  # with their posts: /posts
LIKES = Counter("likes", prefix="POST", sort_key="META", attribute="likeTally", child="LIKE#USER#", **_OF_POSTS)
_VISITS: dict[str, Any] = {"delta": 1, "guarantee": Guarantee.ROLLUP, "api": False, "read": ANYONE}  # by URL: /visits
VISITS = Counter("visits", prefix="SITE", sort_key="VISITS", attribute="visits", **_VISITS)
BOT_VISITS = Counter("bot_visits", prefix="SITE", sort_key="BOTS", attribute="bot_visits", **_VISITS)
OF_PAGES = (VISITS, BOT_VISITS)
"""The counters whose ids are URLs."""
SHIPPED = (PLAYS, LIKES, VISITS, BOT_VISITS)
