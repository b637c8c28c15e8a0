"""The counters that Tally's own handlers count with. Every `counters.py` lists them beside its own."""

from .counter import Counter, Guarantee

PLAYS = Counter("plays", prefix="VID", sort_key="STATS#TOTAL", attribute="play_count", delta=1)
LIKES = Counter(
    "likes", prefix="POST", sort_key="META", attribute="likeTally", child="LIKE#USER#", parent_required=True, api=False
)
VISITS = Counter(  # by URL: /visits
    "visits", prefix="SITE", sort_key="VISITS", attribute="visits", delta=1, guarantee=Guarantee.ROLLUP, api=False
)
BOT_VISITS = Counter(
    "bot_visits", prefix="SITE", sort_key="BOTS", attribute="bot_visits", delta=1, guarantee=Guarantee.ROLLUP, api=False
)
SHIPPED = (PLAYS, LIKES, VISITS, BOT_VISITS)
