"""What each operation does and answers: the one place where that is declared.

Handlers return plain dictionaries; the tests hold every answer that they really give against this.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import operations
from tally import errors
from tally.errors import TallyError
from tally.operation import Operation

from .inputs import HOLD_EXAMPLE, PAGE_EXAMPLE

TAGS = {
    "plays": "Plays of a video: anyone plays it, and each key counts once.",
    "posts": "Posts, each with its likes.",
    "likes": "Likes of posts. A like is its own receipt: liking twice changes nothing.",
    "visits": "Visits of pages, which a script in the page sends.",
    "counters": "Every counter that is declared: moved, numbered, set.",
    "holds": "An amount of stock, taken for a while: then kept, or given back.",
    "receipts": "Whether a change landed.",
    "drift": "Where what is stored is not what was counted.",
    "tally": "Tally itself.",
}


@dataclass(frozen=True)
class Link:
    """What to call next with what was answered: the operation, and its parameters as OpenAPI runtime expressions."""

    to: Operation
    parameters: Mapping[str, str]


@dataclass(frozen=True)
class Contract:
    """What an operation does, in words, and what it answers beside what follows from its declaration."""

    tag: str
    summary: str
    answer: str
    """Name of the schema of its answers (schemas.py); empty where it is no JSON."""
    example: Any
    errors: tuple[type[TallyError], ...] = ()
    """Those that not every operation has."""
    description: str = ""
    links: Mapping[str, Link] = field(default_factory=dict)


_POST_EXAMPLE = {
    "post_id": "a91f", "authorId": "auth0|7c20", "createdAt": 1785542401, "revision": 0, "likeTally": 2,
    "body": "Hello",
}  # fmt: skip
_STOCK = {"counter": "stock", "id": "7c20"}
_SAME_POST = {"id": "$request.path.id"}
_SAME_COUNTER = {"counter": "$request.path.counter", "id": "$request.path.id"}
_SAME_HOLD = {**_SAME_COUNTER, "hold": "$response.body#/hold_id"}
_SETTLED = {**_STOCK, "hold_id": HOLD_EXAMPLE, "state": "committed", "changed": True}

CONTRACTS: dict[Operation, Contract] = {
    operations.PLAY: Contract(
        "plays", "Count a play", "play", {"video_id": "9f3a", "counted": True, "visible": "now"},
        links={"plays": Link(operations.GET_PLAYS, {"id": "$request.path.id"})},
    ),
    operations.GET_PLAYS: Contract(
        "plays", "How often a video was played", "plays", {"video_id": "9f3a", "play_count": 51},
        description="0 if it was never played.",
    ),
    operations.PUT_POST: Contract(
        "posts", "Create a post, or edit your own", "post", _POST_EXAMPLE,
        (errors.ForbiddenError, errors.EditConflictError),
        "Whoever creates it is its author, and nobody else edits it. The text that is there already is no edit.",
        {"post": Link(operations.GET_POST, _SAME_POST), "like": Link(operations.LIKE, _SAME_POST)},
    ),
    operations.GET_POST: Contract("posts", "A post with its likes", "post", _POST_EXAMPLE, (errors.NotFoundError,)),
    operations.LIKE: Contract(
        "likes", "Like a post", "like", {"post_id": "a91f", "liked": True, "changed": True, "visible": "now"},
        (errors.NotFoundError,),
        "No key is needed. With one, a retry that comes late does not like again what was unliked meanwhile.",
    ),
    operations.UNLIKE: Contract(
        "likes", "Take your like back", "like",
        {"post_id": "a91f", "liked": False, "changed": True, "visible": "now"},
        (errors.NotFoundError,), "Unliking what you do not like changes nothing.",
    ),
    operations.GET_LIKE: Contract(
        "likes", "Whether you like a post", "like_state", {"post_id": "a91f", "liked": True, "changed": False},
        (errors.NotFoundError,),
    ),
    operations.LIST_LIKES: Contract(
        "likes", "Who likes a post, a page at a time", "likes",
        {"post_id": "a91f", "likes": [{"user_id": "auth0|7c20", "likedAt": 1785542401}], "cursor": None},
        (errors.NotFoundError,),
        links={"next": Link(operations.LIST_LIKES, {**_SAME_POST, "cursor": "$response.body#/cursor"})},
    ),
    operations.VISIT: Contract(
        "visits", "Count a visit", "visit", {"counted": True, "visible": "soon"}, (errors.ForbiddenError,),
        "Crawlers, by their `User-Agent`, are tallied apart. Visits are rolled up: reads show them within seconds.",
    ),
    operations.GET_VISITS: Contract(
        "visits", "How often a page was visited", "visits",
        {"url": PAGE_EXAMPLE, "visits": 1204, "bot_visits": 37, "as_of": 1785542401},
        description="By people, and by crawlers. 0 if it was never visited. They are rolled up: `as_of` says how far.",
    ),
    operations.INCREMENT: Contract(
        "counters", "Move a counter", "increment", {**_STOCK, "counted": True, "visible": "now"},
        (errors.NotFoundError, errors.LimitReachedError),
        "At a floor or ceiling it is refused, which says how much is left; a refusal leaves no receipt: the same key"
        " is judged afresh.",
        {"value": Link(operations.GET_COUNTER, _SAME_COUNTER)},
    ),
    operations.GET_COUNTER: Contract(
        "counters", "The value of a counter", "value", {**_STOCK, "value": 98, "version": 7},
        (errors.NotFoundError,),
        links={"set": Link(operations.SET_COUNTER, {**_SAME_COUNTER, "If-Match": "$response.header.ETag"})},
    ),
    operations.SET_COUNTER: Contract(
        "counters", "Set a counter that has not moved", "set_value", {**_STOCK, "value": 98, "version": 8},
        (errors.NotFoundError, errors.LimitReachedError, errors.PreconditionFailedError,
         errors.PreconditionRequiredError),
        "Compare-and-set: done only if the counter still has the `ETag`. The same request again is a replay.",
        {"value": Link(operations.GET_COUNTER, _SAME_COUNTER)},
    ),
    operations.HOLD: Contract(
        "holds", "Take an amount and hold it", "hold",
        {**_STOCK, "hold_id": HOLD_EXAMPLE, "amount": 2, "expires_at": 1785542401},
        (errors.NotFoundError, errors.LimitReachedError),
        "What expired holds have taken is given back before this is refused.",
        {"commit": Link(operations.COMMIT_HOLD, _SAME_HOLD), "release": Link(operations.RELEASE_HOLD, _SAME_HOLD)},
    ),
    operations.COMMIT_HOLD: Contract(
        "holds", "Keep what a hold has taken", "settled_hold", _SETTLED,
        (errors.NotFoundError, errors.HoldSettledError), "Committing twice changes nothing.",
    ),
    operations.RELEASE_HOLD: Contract(
        "holds", "Give back what a hold has taken", "settled_hold", {**_SETTLED, "state": "released"},
        (errors.NotFoundError, errors.HoldSettledError), "Releasing twice, or after it expired, changes nothing.",
    ),
    operations.GET_RECEIPT: Contract(
        "receipts", "Did an anonymous change land?", "receipt",
        {"operation": "play", "target": "9f3a", "state": "counted",
         "answer": {"video_id": "9f3a", "counted": True, "visible": "now"}},
    ),
    operations.GET_OWN_RECEIPT: Contract(
        "receipts", "Did a change of mine land?", "receipt",
        {"operation": "like", "target": "a91f", "state": "unknown"},
    ),
    operations.GET_BADGE: Contract(
        "visits", "How often a page was visited, as a picture", "", '<svg xmlns="http://www.w3.org/2000/svg"></svg>',
        (errors.ForbiddenError,),
    ),
    operations.BEACON: Contract(
        "visits", "The script that counts a page's visits", "", "(function () {})();",
        description='Embed it: `<script src="…/beacon.js" async></script>`.',
    ),
    operations.GET_DRIFT: Contract(
        "drift", "The tallies that drift, a page at a time", "drift",
        {
            "drift": [{"counter": "likes", "id": "a91f", "drift": 5, "since": 1785542401, "confirmed": True}],
            "cursor": None,
        },
        description="By how much a tally is above (or below) what was counted, and since when. Empty when all is well.",
        links={"next": Link(operations.GET_DRIFT, {"cursor": "$response.body#/cursor"})},
    ),
    operations.HEALTH: Contract(
        "tally", "Whether Tally reaches its store", "health", {"status": "ok", "version": "dev"}
    ),
    operations.GET_OPENAPI: Contract("tally", "This document", "openapi", None),
}  # fmt: skip
