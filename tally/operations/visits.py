"""Visits of pages: counted by a script in the page, read, and drawn as a badge."""

import os
from typing import Annotated, Any, Literal, NotRequired, TypedDict

from tally import fields
from tally.api import badge, crawlers, needs, scripts
from tally.api.kinds import ADDRESS, CLIENT_FILE, PAGE, PAGE_EXAMPLE, PAGE_OF_LISTED_HOST, USER_AGENT, KeyInHeaderOrBody
from tally.api.operation import READS, WRITES, Access, Answer, Call, operation
from tally.api.shapes import AsOf, Count, WhenVisible
from tally.api.texts import Text
from tally.builtin import BOT_VISITS, PAGE_VISITORS, VISITS, is_listed
from tally.counting import increments, periods, tallies, unique_visitors
from tally.counting.increments import Increment
from tally.dynamo import clock
from tally.errors import ForbiddenError, NotFoundError
from tally.pages import DROP_NOTHING
from tally.streams import watermark

BADGE_MAX_AGE_S = 60  # a badge may be a minute old, because without a cache every view of a page would read the table

# While Lambda takes a snapshot or provisions capacity, nobody waits. So load now what the first visit would load.
if os.environ.get("AWS_LAMBDA_INITIALIZATION_TYPE", "on-demand") != "on-demand":
    crawlers.is_crawler("anyone")
    fields.page("https://example.com/", "url", DROP_NOTHING)


class Visited(TypedDict):
    """A visit was counted. The receipt stores its target, the URL, and the answer. So the answer omits the URL."""

    counted: Literal[True]
    visible: WhenVisible


class Visits(TypedDict):
    """How often a page was visited: `value` by people, `bots` by crawlers. `id` is the page's canonical URL."""

    counter: Literal["visits"]
    id: str
    value: Count
    bots: Count
    visitors: NotRequired[
        Annotated[int, {"minimum": 0, "description": "Distinct visitors of today, in UTC, if they are counted."}]
    ]
    as_of: AsOf


@operation(
    "POST /visits",
    access=Access.ANYONE,
    throttle=WRITES,
    serves_only=[VISITS, BOT_VISITS, PAGE_VISITORS],
    needs=lambda counters: (
        needs.to_count(counters) | (needs.SALT_OF_DAY if is_listed(counters, PAGE_VISITORS) else needs.NOTHING)
    ),
    raises=[ForbiddenError],
    example={"counted": True, "visible": "soon"},
    success_statuses=[202],
    changes_numbers=True,
)
def visit(
    call: Call,
    *,
    url: Annotated[str, PAGE_OF_LISTED_HOST],
    idempotency_key: KeyInHeaderOrBody,
    user_agent: Annotated[str, USER_AGENT] | None = None,
    address: Annotated[str, ADDRESS] | None = None,
) -> Answer[Visited]:
    """Count a visit

    Crawlers are counted separately, by their `User-Agent`. A direct event without a `User-Agent` is a person's visit.
    Reads show visits within seconds.
    """
    crawler = user_agent is not None and crawlers.is_crawler(user_agent)
    counter = BOT_VISITS if crawler else VISITS
    increment = Increment(counter, url, amount=1, operation="visit", key=idempotency_key, body={"counted": True})
    body, replayed = increments.count(call, increment)
    if PAGE_VISITORS.name in call.counters and address and not crawler:  # a replay, too: the first call may have died
        unique_visitors.count_on_page(call, PAGE_VISITORS, url, address, user_agent or "")
    return Answer(body, status=202, replayed=replayed)


@operation(
    "GET /visits",
    access=Access.ANYONE,
    throttle=READS,
    serves_only=[VISITS, BOT_VISITS, PAGE_VISITORS],
    needs=lambda counters: needs.on_counts(counters, "Query") | needs.READ_WATERMARK,
    example={"counter": "visits", "id": PAGE_EXAMPLE, "value": 1204, "bots": 37, "as_of": 1785542401},
    is_cacheable=True,
)
def get_visits(call: Call, *, url: Annotated[str, PAGE]) -> Answer[Visits]:
    """How often a page was visited

    By people and by crawlers; 0 if nobody visited the page. The numbers include every visit before `as_of`.
    """
    as_of = watermark.as_of(call)  # read first, because the numbers may be newer than `as_of`, and must not be older
    visits, bots = tallies.read_counters(call, [VISITS, BOT_VISITS], url)
    body: dict[str, Any] = {"counter": VISITS.name, "id": url, "value": visits, "bots": bots, "as_of": as_of}
    if PAGE_VISITORS.name in call.counters:
        body["visitors"] = tallies.read(call, PAGE_VISITORS, periods.tally_id(PAGE_VISITORS, url, clock.now_s()))
    return Answer(body, max_age_s=VISITS.cache_s)


@operation(
    "GET /visits/badge.svg",
    access=Access.ANYONE,
    throttle=READS,
    serves_only=[VISITS],
    needs=lambda counters: needs.on_counts(counters, "Query"),
    raises=[ForbiddenError],
    example=badge.EXAMPLE,
    media_type=badge.MEDIA_TYPE,
    is_cacheable=True,
)
def get_visits_badge(call: Call, *, url: Annotated[str, PAGE_OF_LISTED_HOST]) -> Answer[Text]:
    """How often a page was visited, as a picture"""
    return Answer(Text(badge.svg("visits", tallies.read(call, VISITS, url)), badge.MEDIA_TYPE, BADGE_MAX_AGE_S))


@operation(
    "GET /client/{file}",
    access=Access.ANYONE,
    throttle=READS,
    raises=[NotFoundError],
    example="export class Tally {}",
    media_type=scripts.MEDIA_TYPE,
    is_cacheable=True,
)
def get_client_file(call: Call, *, file: Annotated[str, CLIENT_FILE]) -> Answer[Text]:
    """A script for pages of other sites

    `beacon.js` counts a page's visits: embed it with `<script src="…/client/beacon.js" async></script>`. `tally.js` is
    the client that counts each change exactly once, and `elements.js` has HTML elements for it. `auto.js` defines
    these elements in one tag: `<script type="module" src="…/client/auto.js"></script>`.
    """
    if file == scripts.BEACON_FILE and VISITS.name not in call.counters:
        raise NotFoundError("This deployment counts no visits, because counters.py does not list them.")
    return Answer(scripts.read_script(file))
