"""What each operation does and answers, declared once.

Handlers return plain dictionaries. Tests compare every real answer with these contracts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import operations
from tally import errors
from tally.errors import TallyError
from tally.operation import Operation

from .inputs import HOLD_EXAMPLE, KEY_EXAMPLE, PAGE_EXAMPLE

TAGS = {
    "plays": "Plays of a video. Anyone may send one, and each key counts once.",
    "posts": "Posts, each with its likes.",
    "likes": "Likes of posts. A like is its own receipt: liking twice changes nothing.",
    "visits": "Visits of pages. A script in the page sends them.",
    "counters": "The declared counters: move, read and set them.",
    "children": "Items that a counter counts, such as the members of a workspace. Each has a name of yours.",
    "tallies": "Many numbers at once, and one as a picture.",
    "holds": "An amount of stock that is taken for a while, then kept or given back.",
    "receipts": "Whether a change counted.",
    "series": "How tallies moved by the hour and by the day, to the last unit, and which moved most.",
    "drift": "Tallies whose stored number differs from the counted one.",
    "tally": "Tally itself.",
    "console": "A page for people who look at the numbers.",
}


@dataclass(frozen=True)
class Link:
    """A next call: the operation, and its parameters as OpenAPI runtime expressions on this answer."""

    to: Operation
    parameters: Mapping[str, str]


@dataclass(frozen=True)
class Contract:
    """What an operation does, in words, and the answers that do not follow from its declaration."""

    tag: str
    summary: str
    answer: str
    """The schema of its answers (schemas.py); empty if they are not JSON."""
    example: Any
    errors: tuple[type[TallyError], ...] = ()
    """The errors that not every operation has."""
    description: str = ""
    links: Mapping[str, Link] = field(default_factory=dict)
    schema: Mapping[str, Any] | None = None
    """The schema `answer` itself, if `schemas.py` does not have it."""


_POST_EXAMPLE = {
    "post_id": "a91f",
    "authorId": "auth0|7c20",
    "createdAt": 1785542401,
    "revision": 0,
    "likeTally": 2,
    "body": "Hello",
}
_STOCK = {"counter": "stock", "id": "7c20"}
_SAME_POST = {"id": "$request.path.id"}
_SAME_COUNTER = {"counter": "$request.path.counter", "id": "$request.path.id"}
_SAME_HOLD = {**_SAME_COUNTER, "hold": "$response.body#/hold_id"}
_SERIES = (
    "Every accepted change is in exactly one hour, so the series of a tally adds up to it. The hour that runs is in it"
    " up to `as_of`. `from` and `to` are rounded to whole hours or days."
)
_SERIES_EXAMPLE = {
    "counter": "plays",
    "id": "9f3a",
    "by": "hour",
    "series": [{"from": 1785535200, "value": 112}, {"from": 1785538800, "value": 97}],
    "repairs": [{"at": 1785536000, "value": -50, "how": "ledger"}],
    "since": 1785502800,
    "as_of": 1785542400,
}
_TOP = (
    "The list of an hour is exact. That of a longer span is merged from those of its hours: `error_max` says by how"
    " much a value may be off at most. Without `span` it is the newest one, up to `as_of`."
)
_TOP_EXAMPLE = {
    "counter": "plays",
    "by": "day",
    "span": "2026-07-31",
    "top": [{"id": "9f3a", "value": 1204}, {"id": "77b0", "value": 981}],
    "error_max": 0,
    "as_of": 1785542340,
}
_MEMBER = {"counter": "members", "id": "acme", "child": "auth0|7c20"}
_CHILD_LINKS = {"children": Link(operations.LIST_CHILDREN, _SAME_COUNTER)}
_SETTLED = {**_STOCK, "hold_id": HOLD_EXAMPLE, "state": "committed", "changed": True}

_STATUS_EXAMPLE = {
    "well": False,
    "parts": [
        {"name": "store", "state": "ok", "line": "it answers"},
        {"name": "drift", "state": "wrong", "line": "1 confirmed, 0 not yet: likes a91f +5"},
    ],
    "at": 1785542880,
    "as_of": 1785542760,
    "judged_up_to": 1785542640,
    "stack": "Tally-prod",
    "stage": "prod",
    "where": "--stack Tally-prod",
    "counters": [
        {
            "name": "likes",
            "visible": "now",
            "public": True,
            "pages": False,
            "children": True,
            "retired": False,
            "numbered": False,
            "max_shards": 16,
            "delta": None,
            "start": 0,
            "floor": None,
            "ceiling": None,
            "period": None,
        }
    ],
}
_MANY = "One entry for each key, in the order of the request. Give one target for all keys, or one for each."

CONTRACTS: dict[Operation, Contract] = {
    operations.PLAY: Contract(
        tag="plays",
        summary="Count a play",
        answer="play",
        example={"video_id": "9f3a", "counted": True, "visible": "now"},
        links={"plays": Link(operations.GET_PLAYS, {"id": "$request.path.id"})},
    ),
    operations.GET_PLAYS: Contract(
        tag="plays",
        summary="How often a video was played",
        description="0 if it was never played.",
        answer="plays",
        example={"video_id": "9f3a", "play_count": 51},
    ),
    operations.PUT_POST: Contract(
        tag="posts",
        summary="Create a post, or edit your own",
        description="Its creator is its author, and only the author may edit it. The same text again changes nothing.",
        answer="post",
        example=_POST_EXAMPLE,
        errors=(errors.ForbiddenError, errors.EditConflictError, errors.ParentRemovedError),
        links={"post": Link(operations.GET_POST, _SAME_POST), "like": Link(operations.LIKE, _SAME_POST)},
    ),
    operations.GET_POST: Contract(
        tag="posts",
        summary="A post with its likes",
        answer="post",
        example=_POST_EXAMPLE,
        errors=(errors.NotFoundError,),
    ),
    operations.DELETE_POST: Contract(
        tag="posts",
        summary="Delete your own post",
        description="Readers do not find it any more, and nobody likes it. Its likes are removed in the background: its"
        " id is free again after that, a quarter of an hour later at the earliest.",
        answer="deleted_post",
        example={"post_id": "a91f", "deleted": True, "changed": True},
        errors=(errors.NotFoundError, errors.ForbiddenError, errors.EditConflictError),
    ),
    operations.LIKE: Contract(
        tag="likes",
        summary="Like a post",
        description="The key is optional. With a key, a late retry does not repeat a like that you have since removed.",
        answer="like",
        example={"post_id": "a91f", "liked": True, "changed": True, "visible": "now"},
        errors=(errors.NotFoundError,),
    ),
    operations.UNLIKE: Contract(
        tag="likes",
        summary="Remove your like",
        description="If there is no like, nothing changes.",
        answer="like",
        example={"post_id": "a91f", "liked": False, "changed": True, "visible": "now"},
        errors=(errors.NotFoundError,),
    ),
    operations.GET_LIKE: Contract(
        tag="likes",
        summary="Whether you like a post",
        answer="like_state",
        example={"post_id": "a91f", "liked": True, "changed": False},
        errors=(errors.NotFoundError,),
    ),
    operations.LIST_LIKES: Contract(
        tag="likes",
        summary="Who likes a post, a page at a time",
        answer="likes",
        example={"post_id": "a91f", "likes": [{"user_id": "auth0|7c20", "likedAt": 1785542401}], "cursor": None},
        errors=(errors.NotFoundError,),
        links={"next": Link(operations.LIST_LIKES, {**_SAME_POST, "cursor": "$response.body#/cursor"})},
    ),
    operations.MY_LIKES: Contract(
        tag="likes",
        summary="Which of these posts you like",
        description="Up to 100 posts, in the order asked. It reads likes and no posts: a post that does not exist is"
        " not liked, and a like of a deleted post shows until it is removed in the background. API Gateway takes"
        " about 10 KB of URL and headers together.",
        answer="my_likes",
        example={"likes": [{"post_id": "a91f", "liked": True}]},
    ),
    operations.VISIT: Contract(
        tag="visits",
        summary="Count a visit",
        description="Crawlers count apart, by `User-Agent`. Visits are rolled up: reads show them within seconds.",
        answer="visit",
        example={"counted": True, "visible": "soon"},
        errors=(errors.ForbiddenError,),
    ),
    operations.GET_VISITS: Contract(
        tag="visits",
        summary="How often a page was visited",
        description="By people and by crawlers; 0 without a visit. The numbers hold every visit before `as_of`.",
        answer="visits",
        example={"url": PAGE_EXAMPLE, "visits": 1204, "bot_visits": 37, "as_of": 1785542401},
    ),
    operations.INCREMENT: Contract(
        tag="counters",
        summary="Move a counter",
        description="At a floor or ceiling Tally refuses the change and says how much is left. A refusal leaves"
        " no receipt: a retry with the same key may succeed later. A counter with periods counts in the period of now;"
        " a refusal says when the next one begins.",
        answer="increment",
        example={**_STOCK, "counted": True, "visible": "now"},
        errors=(errors.NotFoundError, errors.LimitReachedError, errors.CounterRetiredError),
        links={"value": Link(operations.GET_COUNTER, _SAME_COUNTER)},
    ),
    operations.CHANGE: Contract(
        tag="counters",
        summary="Move many counters together",
        description="All of the changes count, or none does. At a floor or ceiling Tally refuses all of them, names the"
        " entry, and says how much is left. A refusal leaves no receipt.",
        answer="changed",
        example={"counted": True, "changes": 2, "tallies": 2, "visible": "now"},
        errors=(errors.LimitReachedError, errors.CounterRetiredError),
    ),
    operations.GET_COUNTER: Contract(
        tag="counters",
        summary="The value of a counter",
        description="A counter with periods answers 404 for a period whose tally is kept no more.",
        answer="value",
        example={**_STOCK, "value": 98, "version": 7},
        errors=(errors.NotFoundError,),
        links={"set": Link(operations.SET_COUNTER, {**_SAME_COUNTER, "If-Match": "$response.header.ETag"})},
    ),
    operations.SET_COUNTER: Contract(
        tag="counters",
        summary="Set a counter that has not moved",
        description="Compare-and-set: it needs the `ETag` that the counter still has. A repeated request is a replay. A"
        " numbered counter moves forward only: Tally refuses (409) a value that would give its numbers out again.",
        answer="set_value",
        example={**_STOCK, "value": 98, "version": 8},
        errors=(
            errors.NotFoundError,
            errors.LimitReachedError,
            errors.CounterRetiredError,
            errors.PreconditionFailedError,
            errors.PreconditionRequiredError,
        ),
        links={"value": Link(operations.GET_COUNTER, _SAME_COUNTER)},
    ),
    operations.PUT_CHILD: Contract(
        tag="children",
        summary="Put a child, which then counts",
        description="The child is its own receipt: putting it again changes nothing. The key is optional. With a key, a"
        " late retry does not put a child that was removed since.",
        answer="changed_child",
        example={**_MEMBER, "counted": True, "changed": True, "visible": "now"},
        errors=(errors.NotFoundError, errors.ParentRemovedError, errors.CounterRetiredError),
        links=_CHILD_LINKS,
    ),
    operations.DELETE_CHILD: Contract(
        tag="children",
        summary="Remove a child, which then counts no more",
        description="If there is no such child, nothing changes.",
        answer="changed_child",
        example={**_MEMBER, "counted": False, "changed": True, "visible": "now"},
        errors=(errors.NotFoundError, errors.ParentRemovedError, errors.CounterRetiredError),
        links=_CHILD_LINKS,
    ),
    operations.GET_CHILD: Contract(
        tag="children",
        summary="Whether a child counts",
        answer="child",
        example={**_MEMBER, "counted": True},
        errors=(errors.NotFoundError,),
    ),
    operations.LIST_CHILDREN: Contract(
        tag="children",
        summary="The children that count, a page at a time",
        description="In the order of their percent-encoded names. `GET /counters/{counter}/{id}` says how many.",
        answer="children",
        example={
            "counter": "members",
            "id": "acme",
            "children": [{"child": "auth0|7c20", "since": 1785542401}],
            "cursor": None,
        },
        errors=(errors.NotFoundError,),
        links={"next": Link(operations.LIST_CHILDREN, {**_SAME_COUNTER, "cursor": "$response.body#/cursor"})},
    ),
    operations.HOLD: Contract(
        tag="holds",
        summary="Take an amount and hold it",
        description="Before Tally refuses, expired holds give back their amounts.",
        answer="hold",
        example={**_STOCK, "hold_id": HOLD_EXAMPLE, "amount": 2, "expires_at": 1785542401},
        errors=(errors.NotFoundError, errors.LimitReachedError, errors.CounterRetiredError),
        links={
            "commit": Link(operations.COMMIT_HOLD, _SAME_HOLD),
            "release": Link(operations.RELEASE_HOLD, _SAME_HOLD),
        },
    ),
    operations.COMMIT_HOLD: Contract(
        tag="holds",
        summary="Keep the amount of a hold",
        description="Committing twice changes nothing.",
        answer="settled_hold",
        example=_SETTLED,
        errors=(errors.NotFoundError, errors.HoldSettledError),
    ),
    operations.RELEASE_HOLD: Contract(
        tag="holds",
        summary="Give back the amount of a hold",
        description="Releasing twice changes nothing, nor does releasing after the hold expired.",
        answer="settled_hold",
        example={**_SETTLED, "state": "released"},
        errors=(errors.NotFoundError, errors.HoldSettledError, errors.LimitReachedError),
    ),
    operations.GET_TALLIES: Contract(
        tag="tallies",
        summary="Many numbers that anyone may read",
        description="1 to 100, in the order asked; 0 where nothing was counted. An entry that cannot be read has an"
        " `error`, and the others have their values. API Gateway takes about 10 KB of URL and headers together.",
        answer="tallies",
        example={
            "tallies": [
                {"counter": "likes", "id": "a91f", "value": 51},
                {"counter": "visits", "id": PAGE_EXAMPLE, "value": 1204, "as_of": 1785542401},
            ]
        },
    ),
    operations.GET_ANY_TALLIES: Contract(
        tag="tallies",
        summary="Many numbers of any counters",
        description="As `GET /tallies`, and of counters too that not anyone may read.",
        answer="tallies",
        example={"tallies": [{**_STOCK, "value": 98}]},
    ),
    operations.GET_COUNTER_BADGE: Contract(
        tag="tallies",
        summary="The value of a counter, as a picture",
        description="Of a counter that anyone may read.",
        answer="",
        example='<svg xmlns="http://www.w3.org/2000/svg"></svg>',
        errors=(errors.ForbiddenError, errors.NotFoundError),
    ),
    operations.GET_RECEIPT: Contract(
        tag="receipts",
        summary="Did an anonymous change count?",
        answer="receipt",
        example={
            "operation": "play",
            "target": "9f3a",
            "state": "counted",
            "answer": {"video_id": "9f3a", "counted": True, "visible": "now"},
        },
    ),
    operations.GET_OWN_RECEIPT: Contract(
        tag="receipts",
        summary="Did a change of mine count?",
        answer="receipt",
        example={"operation": "like", "target": "a91f", "state": "unknown"},
    ),
    operations.GET_RECEIPTS: Contract(
        tag="receipts",
        summary="Did these anonymous changes count?",
        description=_MANY,
        answer="receipts",
        example={"receipts": [{"key": KEY_EXAMPLE, "operation": "play", "target": "9f3a", "state": "unknown"}]},
    ),
    operations.GET_OWN_RECEIPTS: Contract(
        tag="receipts",
        summary="Did these changes of mine count?",
        description=_MANY,
        answer="receipts",
        example={"receipts": [{"key": KEY_EXAMPLE, "operation": "like", "target": "a91f", "state": "unknown"}]},
    ),
    operations.GET_BADGE: Contract(
        tag="visits",
        summary="How often a page was visited, as a picture",
        answer="",
        example='<svg xmlns="http://www.w3.org/2000/svg"></svg>',
        errors=(errors.ForbiddenError,),
    ),
    operations.BEACON: Contract(
        tag="visits",
        summary="The script that counts a page's visits",
        description='Embed it: `<script src="…/beacon.js" async></script>`.',
        answer="",
        example="(function () {})();",
    ),
    operations.GET_PLAYS_SERIES: Contract(
        tag="series",
        summary="Plays by the hour or by the day",
        description=_SERIES,
        answer="series",
        example=_SERIES_EXAMPLE,
    ),
    operations.GET_LIKES_SERIES: Contract(
        tag="series",
        summary="Likes by the hour or by the day",
        description=f"{_SERIES} A like adds one, an unlike takes one back.",
        answer="series",
        example={**_SERIES_EXAMPLE, "counter": "likes", "id": "a91f"},
    ),
    operations.GET_VISITS_SERIES: Contract(
        tag="series",
        summary="Visits by people, by the hour or by the day",
        description=_SERIES,
        answer="series",
        example={**_SERIES_EXAMPLE, "counter": "visits", "id": PAGE_EXAMPLE},
    ),
    operations.GET_SERIES: Contract(
        tag="series",
        summary="A counter by the hour or by the day",
        description=_SERIES,
        answer="series",
        example={**_SERIES_EXAMPLE, **_STOCK},
        errors=(errors.NotFoundError,),
    ),
    operations.GET_TOTAL_SERIES: Contract(
        tag="series",
        summary="All tallies of a counter together, by the hour or by the day",
        description=f"{_SERIES} `id` is empty.",
        answer="series",
        example={**_SERIES_EXAMPLE, "counter": "stock", "id": "", "repairs": []},
        errors=(errors.NotFoundError,),
    ),
    operations.GET_TOP: Contract(
        tag="series",
        summary="What moved most in an hour, a day or a month",
        description=_TOP,
        answer="top",
        example=_TOP_EXAMPLE,
    ),
    operations.GET_COUNTER_TOP: Contract(
        tag="series",
        summary="Which tallies of a counter moved most",
        description=_TOP,
        answer="top",
        example={**_TOP_EXAMPLE, "counter": "stock"},
        errors=(errors.NotFoundError,),
    ),
    operations.GET_DRIFT: Contract(
        tag="drift",
        summary="The tallies that drift, a page at a time",
        description="How far each tally is above (or below) the counted number, and since when. Empty if all is well.",
        answer="drift",
        example={
            "drift": [{"counter": "likes", "id": "a91f", "drift": 5, "since": 1785542401, "confirmed": True}],
            "cursor": None,
        },
        links={"next": Link(operations.GET_DRIFT, {"cursor": "$response.body#/cursor"})},
    ),
    operations.GET_DETAILS: Contract(
        tag="drift",
        summary="One tally: its shards, its drift, and who repaired it",
        description="Of any declared counter. The id of `visits` and `bot_visits` is the page's URL. At most 100"
        " repairs, the newest first.",
        answer="details",
        example={
            "counter": "likes",
            "id": "a91f",
            "value": 56,
            "shards": [{"shard": 0, "value": 51}, {"shard": 1, "value": 5}],
            "drift": {"drift": 5, "since": 1785542401, "confirmed": True},
            "judged_up_to": 1785542820,
            "repairs": [
                {"at": 1785456000, "amount": -50, "how": "ledger", "who": "ann", "why": "edited by hand on 3 May"}
            ],
        },
        errors=(errors.NotFoundError,),
    ),
    operations.GET_STATUS: Contract(
        tag="tally",
        summary="Whether all is well",
        description="Part by part, as far as a function can tell. What nobody can tell is `unknown`, and not well. And"
        " the counters that are declared.",
        answer="status",
        example=_STATUS_EXAMPLE,
    ),
    operations.HEALTH: Contract(
        tag="tally",
        summary="Whether Tally reaches its store",
        answer="health",
        description="And for how long Tally recognises a key: a client that keeps changes to send them later needs it.",
        example={"status": "ok", "version": "dev", "receipts_live_s": {"plays": 86400, "visits": 691200}},
    ),
    operations.GET_OPENAPI: Contract(
        tag="tally",
        summary="This document",
        answer="openapi",
        example=None,
    ),
    operations.GET_CONSOLE: Contract(
        tag="console",
        summary="The console",
        description="A page for browsers. Its headers let it load and run nothing from elsewhere.",
        answer="",
        example="<!doctype html>",
    ),
    operations.GET_CONSOLE_FILE: Contract(
        tag="console",
        summary="A module or a style sheet of the console",
        answer="",
        example="export {};",
        errors=(errors.NotFoundError,),
    ),
    operations.GET_CONSOLE_CONFIG: Contract(
        tag="console",
        summary="What the console knows of its stack",
        description="And how people sign in: at the stack's user pool (`pkce`), with a token of theirs (`token`), or"
        " with a name, in `make dev`.",
        answer="console_config",
        example={
            "stage": "prod",
            "stack": "Tally-prod",
            "region": "eu-west-1",
            "sign_in": {
                "kind": "pkce",
                "domain": "https://tally-prod-123456789012.auth.eu-west-1.amazoncognito.com",
                "client_id": "4h57kl2example",
                "redirect": "https://api.example.com/console",
            },
            "try_it": False,
        },
    ),
}
KEPT = tuple(dict.fromkeys(CONTRACTS[operation].answer for operation in operations.WITH_RECEIPTS.values()))
"""The schemas of the answers that receipts keep."""
