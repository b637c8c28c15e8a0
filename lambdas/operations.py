"""Every operation of Tally, and the functions that run by schedule or on streams.

The handlers, the stack (routes, throttles), the local gateway and the OpenAPI document follow from this list. A new
operation also needs an entry in `permissions.py` and in `openapi/answers.py`, and its handler in `functions/`.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter

from tally.counter import Counter
from tally.fields import Kind
from tally.operation import Access, Consumer, Field, Operation, Schedule, Source, Table, Throttle, by_function
from tally.shipped import LIKES, PLAYS, VISITS

READS = Throttle(rate_per_s=1000, burst=2000)
WRITES = Throttle(rate_per_s=500, burst=1000)
SELDOM = Throttle(rate_per_s=100, burst=200)
RARE = Throttle(rate_per_s=10, burst=20)
A_FILE = Throttle(rate_per_s=100, burst=400)  # the console loads a dozen at once

_COUNTS_CHILDREN: Callable[[Counter], bool] = attrgetter("counts_children")
_SETTABLE: Callable[[Counter], bool] = attrgetter("settable")
_JOINS: Callable[[Counter], bool] = attrgetter("joins")
_HOLDABLE: Callable[[Counter], bool] = attrgetter("holdable")
_PUBLIC: Callable[[Counter], bool] = attrgetter("public")
_MAY_HAVE_HOLDS: Callable[[Counter], bool] = attrgetter("may_have_holds")

_KEY = Field("idempotency_key", Kind.KEY, Source.HEADER, "Idempotency-Key")
# A page that is left sends by `navigator.sendBeacon`, which takes no headers.
_KEY_OR_BODY = Field("idempotency_key", Kind.KEY, Source.HEADER, "Idempotency-Key", body_wire="key")
_OPTIONAL_KEY = Field("idempotency_key", Kind.KEY, Source.HEADER, "Idempotency-Key", required=False)
_VALUE = Field("value", Kind.FLAG, Source.QUERY, "value", required=False)
_PAGE_SIZE = Field("limit", Kind.PAGE_SIZE, Source.QUERY, "limit", required=False)
_CURSOR = Field("cursor", Kind.CURSOR, Source.QUERY, "cursor", required=False)

_VIDEO = Field("video_id", Kind.ID, Source.PATH, "id")

PLAY = Operation(
    name="play",
    function="plays",
    method="POST",
    path="/videos/{id}/plays",
    access=Access.ANYONE,
    throttle=WRITES,
    fields=(_VIDEO, _KEY_OR_BODY, _VALUE),
    counter=PLAYS,
    counts=True,
    increments=True,
    takes_beacon=True,
)
GET_PLAYS = Operation(
    name="get_plays",
    function="plays",
    method="GET",
    path="/videos/{id}/plays",
    access=Access.ANYONE,
    throttle=READS,
    fields=(_VIDEO,),
    counter=PLAYS,
    success=(200, 304),
)
ON_VIDEOS = (PLAY, GET_PLAYS)

_POST = Field("post_id", Kind.ID, Source.PATH, "id")

PUT_POST = Operation(
    name="put_post",
    function="posts",
    method="PUT",
    path="/posts/{id}",
    access=Access.SIGNED_IN,
    throttle=SELDOM,
    fields=(_POST, Field("body", Kind.TEXT, Source.BODY, "body")),
    success=(200, 201),
)
GET_POST = Operation(
    name="get_post",
    function="posts",
    method="GET",
    path="/posts/{id}",
    access=Access.ANYONE,
    throttle=READS,
    fields=(_POST,),
    success=(200, 304),
)
DELETE_POST = Operation(
    name="delete_post",
    function="posts",
    method="DELETE",
    path="/posts/{id}",
    access=Access.SIGNED_IN,
    throttle=SELDOM,
    fields=(_POST,),
)
LIKE = Operation(
    name="like",
    function="likes",
    method="PUT",
    path="/posts/{id}/like",
    access=Access.SIGNED_IN,
    throttle=WRITES,
    fields=(_POST, _OPTIONAL_KEY, _VALUE),
    counter=LIKES,
    counts=True,
)
UNLIKE = Operation(
    name="unlike",
    function="likes",
    method="DELETE",
    path="/posts/{id}/like",
    access=Access.SIGNED_IN,
    throttle=WRITES,
    fields=(_POST, _OPTIONAL_KEY, _VALUE),
    counter=LIKES,
    counts=True,
)
GET_LIKE = Operation(
    name="get_like",
    function="likes",
    method="GET",
    path="/posts/{id}/like",
    access=Access.SIGNED_IN,
    throttle=READS,
    fields=(_POST,),
    counter=LIKES,
)
LIST_LIKES = Operation(
    name="list_likes",
    function="likes",
    method="GET",
    path="/posts/{id}/likes",
    access=Access.ANYONE,
    throttle=SELDOM,
    fields=(_POST, _PAGE_SIZE, _CURSOR),
    counter=LIKES,
    names_users=True,
)
MY_LIKES = Operation(
    name="my_likes",
    function="likes",
    method="GET",
    path="/my/likes",
    access=Access.SIGNED_IN,
    throttle=READS,
    fields=(Field("post_ids", Kind.ID, Source.QUERY, "post", many_max=100),),  # one BatchGetItem reads 100 items
    counter=LIKES,
)
ON_POSTS = (PUT_POST, GET_POST, DELETE_POST, LIKE, UNLIKE, GET_LIKE, LIST_LIKES, MY_LIKES)

VISIT = Operation(
    name="visit",
    function="visits",
    method="POST",
    path="/visits",
    access=Access.ANYONE,
    throttle=WRITES,
    fields=(
        Field("url", Kind.LISTED_PAGE, Source.BODY, "url"),
        Field("idempotency_key", Kind.KEY, Source.BODY, "key"),
        Field("user_agent", Kind.USER_AGENT, Source.HEADER, "User-Agent", required=False),
    ),
    counter=VISITS,
    success=(202,),
    counts=True,
    increments=True,
    takes_beacon=True,
)
GET_VISITS = Operation(
    name="get_visits",
    function="visits",
    method="GET",
    path="/visits",
    access=Access.ANYONE,
    throttle=READS,
    fields=(Field("url", Kind.PAGE, Source.QUERY, "url"),),
    counter=VISITS,
    success=(200, 304),
)
GET_BADGE = Operation(
    name="get_badge",
    function="visits",
    method="GET",
    path="/visits/badge.svg",
    access=Access.ANYONE,
    throttle=READS,
    fields=(Field("url", Kind.LISTED_PAGE, Source.QUERY, "url"),),
    counter=VISITS,
    success=(200, 304),
    media_type="image/svg+xml",
)
BEACON = Operation(
    name="beacon",
    function="beacon",
    method="GET",
    path="/beacon.js",
    access=Access.ANYONE,
    throttle=READS,
    success=(200, 304),
    media_type="text/javascript",
)
ON_PAGES = (VISIT, GET_VISITS, GET_BADGE, BEACON)

_COUNTERS = "/counters/{counter}/{id}"
_COUNTER = Field("counter", Kind.COUNTER, Source.PATH, "counter")
_ANY_COUNTER = Field("counter", Kind.ANY_COUNTER, Source.PATH, "counter")
_ID = Field("id", Kind.ID, Source.PATH, "id")
_PERIOD = Field("period", Kind.PERIOD, Source.QUERY, "period", required=False)
_HOLD = Field("hold_id", Kind.HOLD, Source.PATH, "hold")

INCREMENT = Operation(
    name="increment",
    function="increments",
    method="POST",
    path=f"{_COUNTERS}/increments",
    access=Access.WRITE,
    throttle=WRITES,
    fields=(_COUNTER, _ID, Field("amount", Kind.AMOUNT, Source.BODY, "amount", required=False), _KEY, _VALUE),
    counts=True,
    increments=True,
    serves=lambda counter: not counter.counts_children,
)
CHANGE = Operation(
    name="change",
    function="increments",
    method="POST",
    path="/changes",
    access=Access.WRITE,
    throttle=SELDOM,
    fields=(
        Field("changes", Kind.CHANGES, Source.BODY, "changes"),
        Field("visible", Kind.VISIBLE, Source.BODY, "visible", required=False, choices=("now", "soon")),
        _KEY,
    ),
    counts=True,
    serves=_JOINS,
    body_bytes_max=256 * 1024,  # 1,000 changes with the longest names, ids and amounts
)
GET_COUNTER = Operation(
    name="get_counter",
    function="increments",
    method="GET",
    path=_COUNTERS,
    access=Access.READ,
    throttle=READS,
    fields=(_COUNTER, _ID, _PERIOD),
    opens=SELDOM,  # many counters may be open to strangers
)
SET_COUNTER = Operation(
    name="set_counter",
    function="increments",
    method="PUT",
    path=_COUNTERS,
    access=Access.WRITE,
    throttle=WRITES,
    fields=(
        _COUNTER,
        _ID,
        Field("value", Kind.VALUE, Source.BODY, "value"),
        Field("version", Kind.VERSION, Source.HEADER, "If-Match"),
        _OPTIONAL_KEY,
    ),
    counts=True,
    serves=_SETTABLE,
)
HOLD = Operation(
    name="hold",
    function="holds",
    method="POST",
    path=f"{_COUNTERS}/holds",
    access=Access.WRITE,
    throttle=WRITES,
    fields=(
        _COUNTER,
        _ID,
        _KEY,
        Field("amount", Kind.HELD_AMOUNT, Source.BODY, "amount"),
        Field("ttl_s", Kind.TTL, Source.BODY, "ttl_s"),
    ),
    success=(201,),
    counts=True,
    serves=_HOLDABLE,
)
COMMIT_HOLD = Operation(
    name="commit_hold",
    function="holds",
    method="POST",
    path=f"{_COUNTERS}/holds/{{hold}}/commit",
    access=Access.WRITE,
    throttle=WRITES,
    fields=(_COUNTER, _ID, _HOLD),
    counts=True,
    serves=_MAY_HAVE_HOLDS,
)
RELEASE_HOLD = Operation(
    name="release_hold",
    function="holds",
    method="DELETE",
    path=f"{_COUNTERS}/holds/{{hold}}",
    access=Access.WRITE,
    throttle=WRITES,
    fields=(_COUNTER, _ID, _HOLD),
    counts=True,
    serves=_MAY_HAVE_HOLDS,
)

_CHILDREN = f"{_COUNTERS}/children"
_CHILD = Field("child", Kind.CHILD, Source.PATH, "child")

PUT_CHILD = Operation(
    name="put_child",
    function="likes",
    method="PUT",
    path=f"{_CHILDREN}/{{child}}",
    access=Access.WRITE,
    throttle=WRITES,
    fields=(_COUNTER, _ID, _CHILD, _OPTIONAL_KEY),
    counts=True,
    serves=_COUNTS_CHILDREN,
)
DELETE_CHILD = Operation(
    name="delete_child",
    function="likes",
    method="DELETE",
    path=f"{_CHILDREN}/{{child}}",
    access=Access.WRITE,
    throttle=WRITES,
    fields=(_COUNTER, _ID, _CHILD, _OPTIONAL_KEY),
    counts=True,
    serves=_COUNTS_CHILDREN,
)
GET_CHILD = Operation(
    name="get_child",
    function="likes",
    method="GET",
    path=f"{_CHILDREN}/{{child}}",
    access=Access.READ,
    throttle=READS,
    fields=(_COUNTER, _ID, _CHILD),
    serves=_COUNTS_CHILDREN,
)
LIST_CHILDREN = Operation(
    name="list_children",
    function="likes",
    method="GET",
    path=_CHILDREN,
    access=Access.READ,
    throttle=SELDOM,
    fields=(_COUNTER, _ID, _PAGE_SIZE, _CURSOR),
    serves=_COUNTS_CHILDREN,
)

ON_CHILDREN = (PUT_CHILD, DELETE_CHILD, GET_CHILD, LIST_CHILDREN)
ON_COUNTERS = (INCREMENT, CHANGE, GET_COUNTER, SET_COUNTER, HOLD, COMMIT_HOLD, RELEASE_HOLD, *ON_CHILDREN)

_TALLIES = Field("of", Kind.TALLY, Source.QUERY, "of", many_max=100)

GET_TALLIES = Operation(
    name="get_tallies",
    function="tallies",
    method="GET",
    path="/tallies",
    access=Access.ANYONE,
    throttle=SELDOM,  # a request reads up to 100 tallies
    fields=(_TALLIES,),
    success=(200, 304),
)
GET_ANY_TALLIES = Operation(
    name="get_any_tallies",
    function="tallies",
    method="GET",
    path="/tallies/any",
    access=Access.READ,
    throttle=SELDOM,
    fields=(_TALLIES,),
)
GET_COUNTER_BADGE = Operation(
    name="get_counter_badge",
    function="tallies",
    method="GET",
    path=f"{_COUNTERS}/badge.svg",
    access=Access.ANYONE,
    throttle=SELDOM,
    fields=(_COUNTER, _ID),
    success=(200, 304),
    media_type="image/svg+xml",
    serves=_PUBLIC,
)
ON_TALLIES = (GET_TALLIES, GET_ANY_TALLIES, GET_COUNTER_BADGE)

WITH_RECEIPTS = {
    operation.name: operation
    for operation in (*ON_VIDEOS, *ON_PAGES, *ON_POSTS, *ON_COUNTERS)
    if operation.leaves_receipt
}
_RECEIPT_FIELDS = (
    Field("of", Kind.OPERATION, Source.QUERY, "operation", choices=tuple(WITH_RECEIPTS)),
    Field("target", Kind.TARGET, Source.QUERY, "target"),
    Field("idempotency_key", Kind.KEY, Source.QUERY, "key"),
)

GET_RECEIPT = Operation(
    name="get_receipt",
    function="receipts",
    method="GET",
    path="/receipts",
    access=Access.ANYONE,
    throttle=SELDOM,
    fields=_RECEIPT_FIELDS,
)
GET_OWN_RECEIPT = Operation(
    name="get_own_receipt",
    function="receipts",
    method="GET",
    path="/receipts/own",
    access=Access.SIGNED_IN,
    throttle=SELDOM,
    fields=_RECEIPT_FIELDS,
)
_MANY_RECEIPTS_FIELDS = (  # one BatchGetItem reads 100 items
    _RECEIPT_FIELDS[0],
    Field("targets", Kind.TARGET, Source.QUERY, "target", many_max=100),
    Field("idempotency_keys", Kind.KEY, Source.QUERY, "key", many_max=100),
)
GET_RECEIPTS = Operation(
    name="get_receipts",
    function="receipts",
    method="GET",
    path="/receipts/many",
    access=Access.ANYONE,
    throttle=RARE,
    fields=_MANY_RECEIPTS_FIELDS,
)
GET_OWN_RECEIPTS = Operation(
    name="get_own_receipts",
    function="receipts",
    method="GET",
    path="/receipts/own/many",
    access=Access.SIGNED_IN,
    throttle=RARE,
    fields=_MANY_RECEIPTS_FIELDS,
)
ON_RECEIPTS = (GET_RECEIPT, GET_OWN_RECEIPT, GET_RECEIPTS, GET_OWN_RECEIPTS)

_SERIES = (
    Field("by", Kind.CHOICE, Source.QUERY, "by", required=False, choices=("hour", "day")),
    Field("from_s", Kind.TIME, Source.QUERY, "from", required=False),
    Field("to_s", Kind.TIME, Source.QUERY, "to", required=False),
    Field("zone", Kind.ZONE, Source.QUERY, "tz", required=False),
)
_TOP = (
    Field("by", Kind.CHOICE, Source.QUERY, "by", required=False, choices=("hour", "day", "month")),
    Field("span", Kind.SPAN, Source.QUERY, "span", required=False),
    Field("limit", Kind.TOP_SIZE, Source.QUERY, "limit", required=False),
)

GET_PLAYS_SERIES = Operation(
    name="get_plays_series",
    function="drifts",
    method="GET",
    path="/videos/{id}/plays/series",
    access=Access.ANYONE,
    throttle=SELDOM,
    success=(200, 304),
    fields=(_VIDEO, *_SERIES),
    counter=PLAYS,
)
GET_LIKES_SERIES = Operation(
    name="get_likes_series",
    function="drifts",
    method="GET",
    path="/posts/{id}/likes/series",
    access=Access.ANYONE,
    throttle=SELDOM,
    success=(200, 304),
    fields=(_POST, *_SERIES),
    counter=LIKES,
)
GET_VISITS_SERIES = Operation(
    name="get_visits_series",
    function="drifts",
    method="GET",
    path="/visits/series",
    access=Access.ANYONE,
    throttle=SELDOM,
    success=(200, 304),
    fields=(Field("url", Kind.PAGE, Source.QUERY, "url"), *_SERIES),
    counter=VISITS,
)
GET_SERIES = Operation(
    name="get_series",
    function="drifts",
    method="GET",
    path=f"{_COUNTERS}/series",
    access=Access.READ,
    throttle=SELDOM,
    fields=(_COUNTER, _ID, *_SERIES),
    opens=RARE,
)
GET_TOTAL_SERIES = Operation(
    name="get_total_series",
    function="drifts",
    method="GET",
    path="/series/{counter}",  # below `/counters/{counter}` it would hide the tally `series`
    access=Access.READ,
    throttle=SELDOM,
    fields=(_ANY_COUNTER, *_SERIES),
    opens=RARE,
)
GET_TOP = Operation(
    name="get_top",
    function="drifts",
    method="GET",
    path="/top",
    access=Access.ANYONE,
    throttle=RARE,  # a list changes three times an hour
    success=(200, 304),
    fields=(
        Field("counter", Kind.CHOICE, Source.QUERY, "counter", choices=("plays", "likes", "visits", "bot_visits")),
        *_TOP,
    ),
)
GET_COUNTER_TOP = Operation(
    name="get_counter_top",
    function="drifts",
    method="GET",
    path="/top/{counter}",
    access=Access.READ,
    throttle=SELDOM,
    fields=(_ANY_COUNTER, *_TOP),
    opens=RARE,
)
SERIES = (GET_PLAYS_SERIES, GET_LIKES_SERIES, GET_VISITS_SERIES, GET_SERIES, GET_TOTAL_SERIES)
ON_SERIES = (*SERIES, GET_TOP, GET_COUNTER_TOP)

GET_DRIFT = Operation(
    name="get_drift",
    function="drifts",
    method="GET",
    path="/drift",
    access=Access.READ,
    throttle=SELDOM,
    fields=(_PAGE_SIZE, _CURSOR),
)
GET_STATUS = Operation(
    name="get_status",
    function="drifts",
    method="GET",
    path="/status",
    access=Access.READ,
    throttle=RARE,
)
GET_DETAILS = Operation(
    name="get_details",
    function="drifts",
    method="GET",
    path="/details",
    access=Access.READ,
    throttle=SELDOM,
    # In the query: API Gateway decodes a path before it looks for the route, and the id of a page has slashes.
    fields=(
        Field("counter", Kind.ANY_COUNTER, Source.QUERY, "counter"),
        Field("id", Kind.TARGET, Source.QUERY, "id"),
        _PERIOD,
    ),
)
HEALTH = Operation(
    name="health",
    function="health",
    method="GET",
    path="/health",
    access=Access.ANYONE,
    throttle=RARE,
)
GET_OPENAPI = Operation(
    name="get_openapi",
    function="health",
    method="GET",
    path="/openapi.json",
    access=Access.ANYONE,
    throttle=RARE,
    success=(200, 304),
)
ON_TALLY = (GET_STATUS, GET_DRIFT, GET_DETAILS, HEALTH, GET_OPENAPI)

GET_CONSOLE = Operation(
    name="get_console",
    function="beacon",
    method="GET",
    path="/console",
    access=Access.ANYONE,
    throttle=RARE,
    success=(200, 304),
    media_type="text/html",
    any_query=True,
)
GET_CONSOLE_FILE = Operation(
    name="get_console_file",
    function="beacon",
    method="GET",
    path="/console/{file}",
    access=Access.ANYONE,
    throttle=A_FILE,
    fields=(Field("file", Kind.ID, Source.PATH, "file"),),
    success=(200, 304),
    media_type="text/*",
)
GET_CONSOLE_CONFIG = Operation(
    name="get_console_config",
    function="beacon",
    method="GET",
    path="/console/config.json",
    access=Access.ANYONE,
    throttle=RARE,
)
ON_CONSOLE = (GET_CONSOLE, GET_CONSOLE_FILE, GET_CONSOLE_CONFIG)

OPERATIONS = (
    *ON_COUNTERS, *ON_TALLIES, *ON_RECEIPTS, *ON_VIDEOS, *ON_POSTS, *ON_PAGES, *ON_SERIES,
    *ON_TALLY, *ON_CONSOLE,
)  # fmt: skip

SCHEDULES = (
    Schedule(
        function="sweep",
        every_min=1,
        does="judges the ledger, gives back what expired holds have taken, and removes the likes of deleted posts",
        watches=(Table.COUNTS, Table.RECEIPTS),
    ),
)
CONSUMERS = (
    Consumer(
        function="rollup",
        does="adds up what was accepted without its tally",
        streams={Table.RECEIPTS: ("INSERT", "MODIFY"), Table.COUNTS: ("INSERT",)},
        prefixes={Table.COUNTS: "HEARTBEAT#"},  # a heartbeat is written over the one before
    ),
    Consumer(
        function="drift",
        does="books what was accepted, and what the tallies did, in the ledger",
        streams={Table.RECEIPTS: ("INSERT", "MODIFY"), Table.COUNTS: ()},
    ),
)


def functions() -> dict[str, list[Operation]]:
    """The operations of each Lambda function that serves some, by the name of its module."""
    return by_function(OPERATIONS)
