"""The requests that other Lambdas can send to Tally, one for each operation, and their typed results.

`client.Tally` sends a request, alone or in a batch. A request has its idempotency key from the start, given or made, so
a retry counts once. This module is part of the client's bundle: it imports nothing of `tally` (docs/client.md).
"""

from __future__ import annotations

import dataclasses
import functools
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Concatenate, Generic, NamedTuple, ParamSpec, Protocol, TypeVar

_SNAKE = {"authorId": "author_id", "createdAt": "created_at", "likeTally": "like_tally", "likedAt": "liked_at"}

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
_Fields = dict[str, str | int | list[str] | None]


@dataclass(frozen=True)
class Counted:
    """The change is counted.

    `replayed`: an earlier change with the same key was. That may be an attempt of this call whose answer was lost.
    """

    replayed: bool
    number: int | None = None
    """Of a numbered counter: the number that this change got."""
    last: bool | None = None
    """Of a numbered counter: whether no number is left after it."""
    visible: str = "now"
    """When reads show it: `now`, or `soon` (within seconds, after the rollup)."""
    period: str | None = None
    """Of a counter with periods: the one that it counted in, such as `2026-11`."""
    value: int | None = None
    """If asked for: the number that a read found right after the change. None if the change is visible soon."""


class Change(NamedTuple):
    """One of many changes under one key. `amount`: None for a counter with a step of its own."""

    counter: str
    id: str
    amount: int | None = None


@dataclass(frozen=True)
class Changed:
    """All of the changes are counted: how many, of how many tallies."""

    changes: int
    tallies: int
    replayed: bool
    visible: str = "now"
    """When reads show all of them: `now`, or `soon` (within seconds, after the rollup)."""


@dataclass(frozen=True)
class Plays:
    """How often a video was played."""

    video_id: str
    play_count: int


@dataclass(frozen=True)
class Post:
    """A post with its likes."""

    post_id: str
    author_id: str
    created_at: int
    """Epoch seconds."""
    revision: int
    """The number of edits."""
    like_tally: int
    body: str
    created: bool = False
    """Whether this call created it."""


@dataclass(frozen=True)
class Deleted:
    """The post is deleted. `changed`: by this call, and not by an earlier one."""

    post_id: str
    changed: bool


@dataclass(frozen=True)
class Liked:
    """Whether the caller likes the post, and whether this call changed that."""

    post_id: str
    liked: bool
    changed: bool
    replayed: bool
    visible: str = "now"
    """When the tally shows it: `now`, or `soon` (within seconds, after the rollup)."""
    value: int | None = None
    """If asked for: the number of likes that a read found right after the change."""


@dataclass(frozen=True)
class Liker:
    """A user who likes a post."""

    user_id: str
    liked_at: int | None
    """Epoch seconds; None for a like that did not go through Tally."""


@dataclass(frozen=True)
class Likers:
    """A page of the users who like a post. `cursor` asks for the next page; None on the last."""

    post_id: str
    likes: tuple[Liker, ...]
    cursor: str | None


@dataclass(frozen=True)
class MyLike:
    """Whether the caller likes the post."""

    post_id: str
    liked: bool


@dataclass(frozen=True)
class Drift:
    """A tally that drifts: how far it is above the accepted changes, since when, and whether that is confirmed."""

    counter: str
    id: str
    drift: int
    since: int
    """Epoch seconds."""
    confirmed: bool
    period: str | None = None
    """Of a counter with periods: which one."""


@dataclass(frozen=True)
class Drifting:
    """A page of the tallies that drift. `cursor` asks for the next page; None on the last."""

    drift: tuple[Drift, ...]
    cursor: str | None


@dataclass(frozen=True)
class Shard:
    """One of the items that a tally is spread over."""

    shard: int
    value: int


@dataclass(frozen=True)
class Repair:
    """One repair of a tally: by how much, by what watermark (`how`), by whom and why."""

    at: int
    """Epoch seconds."""
    amount: int
    how: str
    who: str
    why: str


@dataclass(frozen=True)
class Details:
    """One tally in detail. `drift`: None if it does not drift. `repairs`: at most 100, the newest first."""

    counter: str
    id: str
    value: int
    shards: tuple[Shard, ...]
    drift: Drift | None
    judged_up_to: int | None
    """Epoch seconds; None if nothing is judged, or if nobody judges this counter."""
    repairs: tuple[Repair, ...]
    period: str | None = None
    """Of a counter with periods: which one."""


@dataclass(frozen=True)
class Part:
    """A part of the status. `state`: `ok`, `wrong` or `unknown`. `line` says it to people."""

    name: str
    state: str
    line: str


@dataclass(frozen=True)
class Status:
    """Whether all is well. `well`: True if every part is, False if one is wrong, None if nobody can tell."""

    well: bool | None
    parts: tuple[Part, ...]
    at: int
    """Epoch seconds, as `as_of` (rolled up numbers) and `judged_up_to` (drift); None: not known yet."""
    as_of: int | None
    judged_up_to: int | None
    stack: str
    stage: str
    where: str
    """The options that lead the command `tally` to this stack."""
    counters: tuple[Mapping[str, Any], ...]
    """The declared counters, as the API document describes them."""


@dataclass(frozen=True)
class Visits:
    """How often a page was visited, by people and by crawlers."""

    url: str
    """As Tally normalises it."""
    visits: int
    bot_visits: int = 0
    as_of: int | None = None
    """Epoch seconds: the numbers include every visit that was counted before. None: the time is not known yet."""


@dataclass(frozen=True)
class Health:
    """`ok`, and the version that is deployed."""

    status: str
    version: str
    receipts_live_s: Mapping[str, int] = field(default_factory=dict)
    """For how many seconds at least a key is recognised, by counter."""


@dataclass(frozen=True)
class Value:
    """A counter. `set_counter` compares `version`; it is None for a counter that may spread over shards.

    `as_of` of a rolled up counter, in epoch seconds: the value includes every change that was counted before. None: the
    time is not known yet.
    """

    counter: str
    id: str
    value: int
    version: int | None = None
    replayed: bool = False
    as_of: int | None = None
    period: str | None = None
    """Of a counter with periods: which one."""


@dataclass(frozen=True)
class Child:
    """Whether the child of a counter counts, and whether this call changed that."""

    counter: str
    id: str
    child: str
    counted: bool
    changed: bool = False
    replayed: bool = False
    visible: str = "now"
    """When the number shows it: `now`, or `soon` (within seconds, after the rollup)."""


@dataclass(frozen=True)
class ListedChild:
    """A child that counts. `since`: epoch seconds; None for a child that did not go through Tally."""

    child: str
    since: int | None


@dataclass(frozen=True)
class Children:
    """A page of the children of a counter. `cursor` asks for the next page; None on the last."""

    counter: str
    id: str
    children: tuple[ListedChild, ...]
    cursor: str | None


@dataclass(frozen=True)
class Number:
    """One of many numbers. `value` is None if it cannot be read, and `error` then is the problem document."""

    counter: str
    id: str
    value: int | None = None
    period: str | None = None
    """Of a counter with periods: the current one."""
    as_of: int | None = None
    """Of a rolled up counter, in epoch seconds: the value includes every change that was counted before."""
    error: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Hold:
    """An amount that is taken until `expires_at` (epoch seconds), or until the hold is committed or released."""

    counter: str
    id: str
    hold_id: str
    amount: int
    expires_at: int
    replayed: bool


@dataclass(frozen=True)
class Settled:
    """The state of a hold: `committed`, `released`, or `expired`. `changed`: this call changed it."""

    counter: str
    id: str
    hold_id: str
    state: str
    changed: bool


@dataclass(frozen=True)
class Point:
    """By how much a tally moved in the hour or the day that begins at `from_s` (epoch seconds)."""

    from_s: int
    value: int


@dataclass(frozen=True)
class Repaired:
    """A repair of a tally: when (epoch seconds), by how much, and how. It is no traffic."""

    at: int
    value: int
    how: str


@dataclass(frozen=True)
class Series:
    """How a tally moved: every accepted change from `since` to `as_of` (epoch seconds; None: not known yet).

    `id` is empty for all tallies of the counter together.
    """

    counter: str
    id: str
    by: str
    series: tuple[Point, ...]
    repairs: tuple[Repaired, ...]
    since: int | None
    as_of: int | None


@dataclass(frozen=True)
class Place:
    """A tally on a top list."""

    id: str
    value: int


@dataclass(frozen=True)
class Top:
    """The tallies that moved most in a span of UTC. `error_max`: by how much a value may be off, at most."""

    counter: str
    by: str
    span: str | None
    top: tuple[Place, ...]
    error_max: int
    as_of: int | None


@dataclass(frozen=True)
class Receipt:
    """Whether a change was counted, and its answer. Not counted: never sent, refused, or its receipt has expired."""

    operation: str
    target: str
    counted: bool
    answer: Mapping[str, Any] | None


@dataclass(frozen=True)
class Reply:
    """The answer of a function."""

    status: int
    body: Mapping[str, Any]
    replayed: bool


@dataclass(frozen=True)
class Request(Generic[T_co]):
    """One operation of one function. `read` makes the result of the reply."""

    function: str
    operation: str
    read: Callable[[Reply], T_co]
    caller: str | None
    fields: Mapping[str, Any]

    @property
    def idempotency_key(self) -> str | None:
        """The key, given or made; None if the operation takes no key."""
        return self.fields.get("idempotency_key")


def _into(made: Callable[..., T]) -> Callable[[Reply], T]:
    """A function that reads a reply as a `made`. It ignores fields that `made` lacks: a newer Tally may send more."""
    return lambda reply: _read(made, {**reply.body, "replayed": reply.replayed, "created": reply.status == 201})


def _read(made: Callable[..., T], body: Mapping[str, Any]) -> T:
    names = {field.name for field in dataclasses.fields(made)}  # type: ignore[arg-type]
    found = {_SNAKE.get(name, name): value for name, value in body.items()}
    return made(**{name: value for name, value in found.items() if name in names})


def _likers(reply: Reply) -> Likers:
    likes = tuple(Liker(like["user_id"], like["likedAt"]) for like in reply.body["likes"])
    return Likers(reply.body["post_id"], likes, reply.body["cursor"])


def _my_likes(reply: Reply) -> tuple[MyLike, ...]:
    return tuple(MyLike(like["post_id"], like["liked"]) for like in reply.body["likes"])


def _drifting(reply: Reply) -> Drifting:
    found = (
        Drift(row["counter"], row["id"], row["drift"], row["since"], row["confirmed"], row.get("period"))
        for row in reply.body["drift"]
    )
    return Drifting(tuple(found), reply.body["cursor"])


def _details(reply: Reply) -> Details:
    body = reply.body
    drift = body["drift"] and _read(Drift, {**body, **body["drift"]})
    shards = tuple(_read(Shard, one) for one in body["shards"])
    repairs = tuple(_read(Repair, one) for one in body["repairs"])
    return _read(Details, {**body, "drift": drift, "shards": shards, "repairs": repairs})


def _status(reply: Reply) -> Status:
    parts = tuple(_read(Part, one) for one in reply.body["parts"])
    return _read(Status, {**reply.body, "parts": parts, "counters": tuple(reply.body["counters"])})


def _series(reply: Reply) -> Series:
    body = reply.body
    points = tuple(Point(point["from"], point["value"]) for point in body["series"])
    repairs = tuple(_read(Repaired, repair) for repair in body["repairs"])
    named = (body["counter"], body["id"], body["by"])
    return Series(*named, points, repairs, body["since"], body["as_of"])


def _top(reply: Reply) -> Top:
    body = reply.body
    places = tuple(Place(place["id"], place["value"]) for place in body["top"])
    return Top(body["counter"], body["by"], body["span"], places, body["error_max"], body["as_of"])


def _children(reply: Reply) -> Children:
    found = tuple(ListedChild(child["child"], child["since"]) for child in reply.body["children"])
    return Children(reply.body["counter"], reply.body["id"], found, reply.body["cursor"])


def _numbers(reply: Reply) -> tuple[Number, ...]:
    return tuple(_read(Number, entry) for entry in reply.body["tallies"])


def _receipt(reply: Reply) -> Receipt:
    return _receipt_of(reply.body)


def _receipts(reply: Reply) -> tuple[Receipt, ...]:
    return tuple(map(_receipt_of, reply.body["receipts"]))


def _receipt_of(body: Mapping[str, Any]) -> Receipt:
    return Receipt(body["operation"], body["target"], body["state"] == "counted", body.get("answer"))


def _request(
    function: str, operation: str, read: Callable[[Reply], T], caller: str | None, **fields: object
) -> Request[T]:
    given = {name: value for name, value in fields.items() if value is not None}
    return Request(function, operation, read, caller, given)


def _key(given: str | None) -> str:
    return secrets.token_urlsafe(18) if given is None else given


def play(
    video_id: str, *, value: bool | None = None, idempotency_key: str | None = None, caller: str | None = None
) -> Request[Counted]:
    """Count one play of a video. `value`: whether the answer has the number too."""
    fields: _Fields = {"video_id": video_id, "value": value, "idempotency_key": _key(idempotency_key)}
    return _request("plays", "play", _into(Counted), caller, **fields)


def get_plays(video_id: str) -> Request[Plays]:
    """How often a video was played."""
    return _request("plays", "get_plays", _into(Plays), None, video_id=video_id)


def put_post(post_id: str, body: str, *, caller: str | None = None) -> Request[Post]:
    """Create a post, or edit it as its author. Raises ForbiddenError, EditConflictError."""
    return _request("posts", "put_post", _into(Post), caller, post_id=post_id, body=body)


def get_post(post_id: str) -> Request[Post]:
    """A post with its likes. Raises NotFoundError."""
    return _request("posts", "get_post", _into(Post), None, post_id=post_id)


def delete_post(post_id: str, *, caller: str | None = None) -> Request[Deleted]:
    """Delete a post as its author; its likes go in the background. Raises NotFoundError, ForbiddenError."""
    return _request("posts", "delete_post", _into(Deleted), caller, post_id=post_id)


def like(
    post_id: str, *, value: bool | None = None, idempotency_key: str | None = None, caller: str | None = None
) -> Request[Liked]:
    """Like a post as the caller. `value`: whether the answer has the number too. Raises NotFoundError."""
    fields: _Fields = {"post_id": post_id, "value": value, "idempotency_key": _key(idempotency_key)}
    return _request("likes", "like", _into(Liked), caller, **fields)


def unlike(
    post_id: str, *, value: bool | None = None, idempotency_key: str | None = None, caller: str | None = None
) -> Request[Liked]:
    """Take the caller's like back. `value`: whether the answer has the number too. Raises NotFoundError."""
    fields: _Fields = {"post_id": post_id, "value": value, "idempotency_key": _key(idempotency_key)}
    return _request("likes", "unlike", _into(Liked), caller, **fields)


def get_like(post_id: str, *, caller: str | None = None) -> Request[Liked]:
    """Whether the caller likes a post. Raises NotFoundError."""
    return _request("likes", "get_like", _into(Liked), caller, post_id=post_id)


def list_likes(post_id: str, *, limit: int | None = None, cursor: str | None = None) -> Request[Likers]:
    """The users who like a post, at most `limit` (1 to 1,000), after `cursor`. Raises NotFoundError."""
    return _request("likes", "list_likes", _likers, None, post_id=post_id, limit=limit, cursor=cursor)


def my_likes(post_ids: Iterable[str], *, caller: str | None = None) -> Request[tuple[MyLike, ...]]:
    """Which of these posts, 1 to 100, the caller likes, in this order. A missing post is not liked."""
    return _request("likes", "my_likes", _my_likes, caller, post_ids=list(post_ids))


def visit(
    url: str, *, user_agent: str | None = None, idempotency_key: str | None = None, caller: str | None = None
) -> Request[Counted]:
    """Count one visit of a page; a crawler's `user_agent` counts apart. Raises ForbiddenError for an unlisted host."""
    key = _key(idempotency_key)
    return _request("visits", "visit", _into(Counted), caller, url=url, user_agent=user_agent, idempotency_key=key)


def get_visits(url: str) -> Request[Visits]:
    """How often a page was visited."""
    return _request("visits", "get_visits", _into(Visits), None, url=url)


def get_drift(*, limit: int | None = None, cursor: str | None = None, caller: str | None = None) -> Request[Drifting]:
    """The tallies that drift, at most `limit` (1 to 1,000), after `cursor`."""
    return _request("drifts", "get_drift", _drifting, caller, limit=limit, cursor=cursor)


def get_details(counter: str, id: str, *, period: str | None = None, caller: str | None = None) -> Request[Details]:
    """One tally of any declared counter, with its shards, its drift and its repairs. `id`: of visits a page's URL."""
    return _request("drifts", "get_details", _details, caller, counter=counter, id=id, period=period)


def get_status(*, caller: str | None = None) -> Request[Status]:
    """Whether all is well, part by part, and which counters there are."""
    return _request("drifts", "get_status", _status, caller)


def _get_series(
    operation: str,
    caller: str | None,
    by: str | None,
    from_s: int | None,
    to_s: int | None,
    zone: str | None,
    **of: str,
) -> Request[Series]:
    return _request("drifts", operation, _series, caller, by=by, from_s=from_s, to_s=to_s, zone=zone, **of)


def get_plays_series(
    video_id: str, *, by: str | None = None, from_s: int | None = None, to_s: int | None = None, zone: str | None = None
) -> Request[Series]:
    """The plays of a video by hour (of the last day) or by day (of the last month), or in a range of epoch seconds."""
    return _get_series("get_plays_series", None, by, from_s, to_s, zone, video_id=video_id)


def get_likes_series(
    post_id: str, *, by: str | None = None, from_s: int | None = None, to_s: int | None = None, zone: str | None = None
) -> Request[Series]:
    """The likes of a post by hour or by day."""
    return _get_series("get_likes_series", None, by, from_s, to_s, zone, post_id=post_id)


def get_visits_series(
    url: str, *, by: str | None = None, from_s: int | None = None, to_s: int | None = None, zone: str | None = None
) -> Request[Series]:
    """The visits of a page by people, by hour or by day."""
    return _get_series("get_visits_series", None, by, from_s, to_s, zone, url=url)


def get_series(
    counter: str,
    id: str,
    *,
    by: str | None = None,
    from_s: int | None = None,
    to_s: int | None = None,
    zone: str | None = None,
    caller: str | None = None,
) -> Request[Series]:
    """A counter by hour or by day."""
    return _get_series("get_series", caller, by, from_s, to_s, zone, counter=counter, id=id)


def get_total_series(
    counter: str,
    *,
    by: str | None = None,
    from_s: int | None = None,
    to_s: int | None = None,
    zone: str | None = None,
    caller: str | None = None,
) -> Request[Series]:
    """All tallies of a counter together, by hour or by day."""
    return _get_series("get_total_series", caller, by, from_s, to_s, zone, counter=counter)


def get_top(counter: str, *, by: str | None = None, span: str | None = None, limit: int | None = None) -> Request[Top]:
    """What moved most in an hour, a day or a month; `span`: `2026-11-22T13`, `2026-11-22` or `2026-11`."""
    return _request("drifts", "get_top", _top, None, counter=counter, by=by, span=span, limit=limit)


def get_counter_top(
    counter: str,
    *,
    by: str | None = None,
    span: str | None = None,
    limit: int | None = None,
    caller: str | None = None,
) -> Request[Top]:
    """Which tallies of a counter moved most."""
    return _request("drifts", "get_counter_top", _top, caller, counter=counter, by=by, span=span, limit=limit)


def health() -> Request[Health]:
    """Whether Tally can reach its store."""
    return _request("health", "health", _into(Health), None)


def increment(
    counter: str,
    id: str,
    amount: int | None = None,
    *,
    value: bool | None = None,
    idempotency_key: str | None = None,
    caller: str | None = None,
) -> Request[Counted]:
    """Move a counter by `amount`, or by its own delta. `value`: whether the answer has the number too.

    Raises LimitReachedError with `left`, and with `retry_after_s` if the amount fits into the next period.
    """
    fields: _Fields = {"counter": counter, "id": id, "amount": amount, "value": value}
    fields["idempotency_key"] = _key(idempotency_key)
    return _request("increments", "increment", _into(Counted), caller, **fields)


def change(
    changes: Iterable[Change | tuple[str, str] | tuple[str, str, int]],
    visible: str | None = None,
    *,
    idempotency_key: str | None = None,
    caller: str | None = None,
) -> Request[Changed]:
    """Make all of the changes, at most 1,000 of 90 tallies, or none of them. `visible`: `soon` for one receipt alone.

    Raises LimitReachedError with `left`; its members `entry`, `counter` and `id` name the change at fault.
    """
    entries = [{name: value for name, value in Change(*one)._asdict().items() if value is not None} for one in changes]
    key = _key(idempotency_key)
    return _request(
        "increments", "change", _into(Changed), caller, changes=entries, visible=visible, idempotency_key=key
    )


def get_counter(counter: str, id: str, *, period: str | None = None, caller: str | None = None) -> Request[Value]:
    """A counter's value, and its version if it has one.

    `period`: of a counter with periods, such as `2026-11`; None: the current one. Raises NotFoundError for one that is
    kept no more.
    """
    return _request("increments", "get_counter", _into(Value), caller, counter=counter, id=id, period=period)


def get_tallies(of: Iterable[tuple[str, str]]) -> Request[tuple[Number, ...]]:
    """The numbers that anyone may read, in this order: 1 to 100 of `(counter, id)`, as `("likes", "a91f")`."""
    return _request("tallies", "get_tallies", _numbers, None, of=[":".join(one) for one in of])


def get_any_tallies(of: Iterable[tuple[str, str]], *, caller: str | None = None) -> Request[tuple[Number, ...]]:
    """As `get_tallies`, of any counters."""
    return _request("tallies", "get_any_tallies", _numbers, caller, of=[":".join(one) for one in of])


def set_counter(
    counter: str, id: str, value: int, version: int, *, idempotency_key: str | None = None, caller: str | None = None
) -> Request[Value]:
    """Set a counter that still has `version`. Raises PreconditionFailedError with its `version` now."""
    key = _key(idempotency_key)
    fields: _Fields = {"counter": counter, "id": id, "value": value, "version": version, "idempotency_key": key}
    return _request("increments", "set_counter", _into(Value), caller, **fields)


def put_child(
    counter: str, id: str, child: str, *, idempotency_key: str | None = None, caller: str | None = None
) -> Request[Child]:
    """Put a child of a counter, which then counts. Raises NotFoundError if the counter needs a parent."""
    fields: _Fields = {"counter": counter, "id": id, "child": child, "idempotency_key": _key(idempotency_key)}
    return _request("likes", "put_child", _into(Child), caller, **fields)


def delete_child(
    counter: str, id: str, child: str, *, idempotency_key: str | None = None, caller: str | None = None
) -> Request[Child]:
    """Remove a child of a counter, which then counts no more. Raises NotFoundError if the counter needs a parent."""
    fields: _Fields = {"counter": counter, "id": id, "child": child, "idempotency_key": _key(idempotency_key)}
    return _request("likes", "delete_child", _into(Child), caller, **fields)


def get_child(counter: str, id: str, child: str, *, caller: str | None = None) -> Request[Child]:
    """Whether a child of a counter counts. Raises NotFoundError if the counter needs a parent."""
    return _request("likes", "get_child", _into(Child), caller, counter=counter, id=id, child=child)


def list_children(
    counter: str, id: str, *, limit: int | None = None, cursor: str | None = None, caller: str | None = None
) -> Request[Children]:
    """The children of a counter, at most `limit` (1 to 1,000), after `cursor`."""
    fields: _Fields = {"counter": counter, "id": id, "limit": limit, "cursor": cursor}
    return _request("likes", "list_children", _children, caller, **fields)


def hold(
    counter: str, id: str, amount: int, ttl_s: int, *, idempotency_key: str | None = None, caller: str | None = None
) -> Request[Hold]:
    """Take `amount` now; commit it within `ttl_s` seconds. Raises LimitReachedError with `left`."""
    key = _key(idempotency_key)
    fields: _Fields = {"counter": counter, "id": id, "amount": amount, "ttl_s": ttl_s, "idempotency_key": key}
    return _request("holds", "hold", _into(Hold), caller, **fields)


def commit_hold(counter: str, id: str, hold_id: str, *, caller: str | None = None) -> Request[Settled]:
    """Keep the amount of a hold. Raises HoldSettledError if it is released or expired, NotFoundError."""
    return _request("holds", "commit_hold", _into(Settled), caller, counter=counter, id=id, hold_id=hold_id)


def release_hold(counter: str, id: str, hold_id: str, *, caller: str | None = None) -> Request[Settled]:
    """Give back the amount of a hold. Raises HoldSettledError if it is committed, NotFoundError."""
    return _request("holds", "release_hold", _into(Settled), caller, counter=counter, id=id, hold_id=hold_id)


def get_receipt(of: str, target: str, idempotency_key: str, *, caller: str | None = None) -> Request[Receipt]:
    """Whether the change by the operation `of`, on `target`, with this key and caller, was counted.

    `target`: an id, `counter/id`, a page's URL, or `changes`.
    """
    fields: _Fields = {"of": of, "target": target, "idempotency_key": idempotency_key}
    return _request("receipts", "get_receipt", _receipt, caller, **fields)


def get_own_receipt(of: str, target: str, idempotency_key: str, *, caller: str | None = None) -> Request[Receipt]:
    """As `get_receipt`, but the caller must be named."""
    fields: _Fields = {"of": of, "target": target, "idempotency_key": idempotency_key}
    return _request("receipts", "get_own_receipt", _receipt, caller, **fields)


def get_receipts(
    of: str, targets: Iterable[str], idempotency_keys: Iterable[str], *, caller: str | None = None
) -> Request[tuple[Receipt, ...]]:
    """As `get_receipt`, of up to 100 keys, in their order. `targets`: one for all of them, or one for each."""
    return _many("get_receipts", of, targets, idempotency_keys, caller)


def get_own_receipts(
    of: str, targets: Iterable[str], idempotency_keys: Iterable[str], *, caller: str | None = None
) -> Request[tuple[Receipt, ...]]:
    """As `get_receipts`, but the caller must be named."""
    return _many("get_own_receipts", of, targets, idempotency_keys, caller)


def _many(
    operation: str, of: str, targets: Iterable[str], keys: Iterable[str], caller: str | None
) -> Request[tuple[Receipt, ...]]:
    fields: _Fields = {"of": of, "targets": list(targets), "idempotency_keys": list(keys)}
    return _request("receipts", operation, _receipts, caller, **fields)


class Sender(Protocol):
    """`client.Tally`: it knows how to send."""

    def send(self, request: Request[T]) -> T:
        """Send one request and return its result."""
        ...


def _sends(build: Callable[P, Request[T]]) -> Callable[Concatenate[Sender, P], T]:
    """The method that sends the request that `build` makes."""

    @functools.wraps(build)
    def send(sender: Sender, /, *arguments: P.args, **named: P.kwargs) -> T:
        return sender.send(build(*arguments, **named))

    return send


class Methods:
    """A method for each request above, for a Sender: it makes the request and sends it."""

    play = _sends(play)
    get_plays = _sends(get_plays)
    put_post = _sends(put_post)
    get_post = _sends(get_post)
    delete_post = _sends(delete_post)
    like = _sends(like)
    unlike = _sends(unlike)
    get_like = _sends(get_like)
    list_likes = _sends(list_likes)
    my_likes = _sends(my_likes)
    visit = _sends(visit)
    get_visits = _sends(get_visits)
    get_drift = _sends(get_drift)
    get_details = _sends(get_details)
    get_status = _sends(get_status)
    get_plays_series = _sends(get_plays_series)
    get_likes_series = _sends(get_likes_series)
    get_visits_series = _sends(get_visits_series)
    get_series = _sends(get_series)
    get_total_series = _sends(get_total_series)
    get_top = _sends(get_top)
    get_counter_top = _sends(get_counter_top)
    health = _sends(health)
    increment = _sends(increment)
    change = _sends(change)
    get_counter = _sends(get_counter)
    get_tallies = _sends(get_tallies)
    get_any_tallies = _sends(get_any_tallies)
    set_counter = _sends(set_counter)
    put_child = _sends(put_child)
    delete_child = _sends(delete_child)
    get_child = _sends(get_child)
    list_children = _sends(list_children)
    hold = _sends(hold)
    commit_hold = _sends(commit_hold)
    release_hold = _sends(release_hold)
    get_receipt = _sends(get_receipt)
    get_own_receipt = _sends(get_own_receipt)
    get_receipts = _sends(get_receipts)
    get_own_receipts = _sends(get_own_receipts)
