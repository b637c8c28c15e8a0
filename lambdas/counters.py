"""The counters of this deployment: the file that a team edits.

Add a declaration to COUNTERS and deploy: the handlers, the roles, the metrics and the OpenAPI document follow from it.
Each is checked when this module is imported. What the fields mean is said in tally/counter.py.
"""

from tally.counter import Counter, Guarantee, declared

PLAYS = Counter("plays", prefix="VID", sort_key="STATS#TOTAL", attribute="play_count", delta=1)
LIKES = Counter("likes", prefix="POST", sort_key="META", attribute="likeTally", child="LIKE#USER#", api=False)
VISITS = Counter(  # by URL: /visits
    "visits", prefix="SITE", sort_key="VISITS", attribute="visits", delta=1, guarantee=Guarantee.ROLLUP, api=False
)
BOT_VISITS = Counter(
    "bot_visits", prefix="SITE", sort_key="BOTS", attribute="bot_visits", delta=1, guarantee=Guarantee.ROLLUP, api=False
)
USAGE = Counter("usage", prefix="USER", sort_key="USAGE", attribute="usage")
STOCK = Counter("stock", prefix="ITEM", sort_key="STOCK", attribute="qty", floor=0)
CONTEST = Counter(
    "contest", prefix="CONTEST", sort_key="LEFT", attribute="left", start=100, delta=-1, floor=0, numbered=True
)
TICKET = Counter("ticket", prefix="QUEUE", sort_key="TICKETS", attribute="last_ticket", delta=1, numbered=True)

COUNTERS = declared([PLAYS, LIKES, VISITS, BOT_VISITS, USAGE, STOCK, CONTEST, TICKET])
