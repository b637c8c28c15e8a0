"""The counters of this deployment: the file that a team edits.

Add a declaration to COUNTERS and deploy. The API, the roles, the metrics and the OpenAPI document follow from it.
`tally/counter.py` explains the fields; importing this file checks them.
"""

from tally.builtin import BOT_VISITS, LIKES, PLAYS, VISITS
from tally.counter import ANYONE, Counter, declared
from tally.notify import Notify
from tally.pages import CREDENTIALS, TRACKING, Pages

USAGE = Counter("usage", prefix="USER", sort_key="USAGE", attribute="usage")
STOCK = Counter("stock", prefix="ITEM", sort_key="STOCK", attribute="qty", floor=0)
CONTEST = Counter(
    "contest", prefix="CONTEST", sort_key="LEFT", attribute="left", start=100, delta=-1, floor=0, numbered=True
)
CALLS = Counter(
    "calls", prefix="CLIENT", sort_key="CALLS", attribute="calls", ceiling=1_000, limit_overrides=True, period="day",
    keep_periods=35, notify=Notify(percent=(80, 100)),
)  # fmt: skip
TICKET = Counter("ticket", prefix="QUEUE", sort_key="TICKETS", attribute="last_ticket", delta=1, numbered=True)
MEMBERS = Counter("members", prefix="WORKSPACE", sort_key="MEMBERS", attribute="members", child="MEMBER#USER#")
HEARTS = Counter(
    "hearts", prefix="PAGE", sort_key="HEARTS", attribute="hearts", child="HEART#USER#", changes=ANYONE, read=ANYONE
)
READERS = Counter(
    "readers", prefix="BOOK", sort_key="READERS", attribute="readers", unique=True, period="day", visible="soon"
)

COUNTERS = declared([PLAYS, LIKES, VISITS, BOT_VISITS, USAGE, STOCK, CONTEST, TICKET, CALLS, MEMBERS, HEARTS, READERS])

# The parts of a URL that do not name its page. A change here renames pages: docs/visits.md says what follows.
PAGES = Pages(drop=(*TRACKING, *CREDENTIALS), trailing_slash="keep", index=("index.html",))
