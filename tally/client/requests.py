"""The requests that other Lambdas can send to Tally, and the answers. `make generate` writes this: do not edit it.

`client.Tally` has a method for each request, and sends requests alone or in a batch. `caller` is who asks: a service's
name, or a user's `sub`. Without `idempotency_key`, the client makes a key. `used`: the amount is used already, and may
exceed the limit. `of`: numbers as `counter:id`, or of receipts, the operation that their keys were sent with.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, NotRequired, TypedDict

from .request import Request, sends


class Counted(TypedDict):
    """The change was counted."""

    counter: str
    id: str
    counted: Literal[True]
    visible: Literal["now", "soon"]  # Reads show the change `now`, or `soon`: within seconds. It counts either way.
    period: NotRequired[str]  # Of a counter with periods: the period, such as `2026-11`.
    number: NotRequired[int]  # Of a numbered counter: this change's number, which no other change has.
    last: NotRequired[bool]  # Whether a numbered counter has no number after this one.
    over: NotRequired[Literal[True]]  # The change exceeds the limit, as `used` allows within the `debt`.
    value: NotRequired[int]  # With `?value=true`, if visible now: the number after the change, strongly consistent.
    replayed: bool


class Visitor(TypedDict):
    """The visitor is counted in this period. `new`: false if an earlier visit in the period counted."""

    counter: str
    id: str
    period: str  # Of a counter with periods: the period, such as `2026-11`.
    new: bool
    visible: Literal["now", "soon"]  # Reads show the change `now`, or `soon`: within seconds. It counts either way.


class NewState(TypedDict):
    """The value was set."""

    counter: str
    id: str
    value: int
    version: int  # Every change increments the version. The `ETag` is the version in quotes.
    replayed: bool


class IdLimit(TypedDict):
    """The limit of one id. `override`: false for the declared limit, which may change with a deploy."""

    counter: str
    id: str
    limit: int
    override: bool
    replayed: bool


class Changed(TypedDict):
    """All changes were counted. `changes`: how many. `tallies`: how many numbers the changes moved."""

    counted: Literal[True]
    changes: int
    tallies: int
    visible: Literal["now", "soon"]  # Reads show the change `now`, or `soon`: within seconds. It counts either way.
    replayed: bool


class Voided(TypedDict):
    """The change is taken back. `changed`: false if an earlier request had taken the change back."""

    counter: str
    id: str
    period: NotRequired[str]  # Of a counter with periods: the period, such as `2026-11`.
    amount: int  # The amount that the change had added, and that the void takes back.
    changed: bool
    visible: Literal["now", "soon"]  # Reads show the change `now`, or `soon`: within seconds. It counts either way.


class AllVoided(TypedDict):
    """All changes under the key are taken back. `tallies`: how many numbers the changes had moved. `changed`: false
    if an earlier request had taken the changes back."""

    tallies: int
    changed: bool
    visible: Literal["now", "soon"]  # Reads show the change `now`, or `soon`: within seconds. It counts either way.


class Value(TypedDict):
    """A number. If it can be set, it has a version. If its changes are visible soon, it has `as_of`. With a ceiling
    or a floor, it has a `limit`, and how much is `left`."""

    counter: str
    id: str
    value: int
    period: NotRequired[str]  # Of a counter with periods: the period, such as `2026-11`.
    version: NotRequired[int]  # Every change increments the version. The `ETag` is the version in quotes.
    as_of: NotRequired[int | None]  # Seconds since 1970. Numbers have every change before this time. Null: unknown.
    about: NotRequired[Literal[True]]  # `as_of` is approximate, as the team's table gets no heartbeats.
    limit: NotRequired[int]  # The present ceiling of this id, or its floor if it has no ceiling.
    left: NotRequired[int]  # The amount that still fits up to `limit`. Below 0: how far the number is beyond `limit`.
    over: NotRequired[Literal[True]]  # The number is beyond `limit`. `left` says how far.
    resets_at: NotRequired[int]  # Of a counter with periods: when the period ends, in seconds since 1970.


class Unreadable(TypedDict):
    """A number that cannot be read, and why."""

    counter: str
    id: str
    error: dict[str, Any]


class Values(TypedDict):
    """Numbers, in the order of the request. Tally reads each number by itself, so they are not a snapshot."""

    tallies: list[Value | Unreadable]


class ChangedChild(TypedDict):
    """Whether the child is present now, and whether this request changed that."""

    counter: str
    id: str
    child: str
    present: bool
    changed: bool
    visible: Literal["now", "soon"]  # Reads show the change `now`, or `soon`: within seconds. It counts either way.
    value: NotRequired[int]  # With `?value=true`, if visible now: the number after the change, strongly consistent.
    replayed: bool


class Child(TypedDict):
    """Whether the child is present, and so counts."""

    counter: str
    id: str
    child: str
    present: bool


class Listed(TypedDict):
    """One child, by its name. `since`: when the child was put."""

    child: str
    since: int | None  # Seconds since 1970. Null: Tally did not put the child.


class ListedAnonymous(TypedDict):
    """A child without a user: a browser whose user is not signed in. `since`: the start of the day (UTC) of the put."""

    anonymous: Literal[True]
    since: int | None  # Seconds since 1970. Null: Tally did not put the child.


class Children(TypedDict):
    """A page of the children, in the order of their percent-encoded names. Children without a user come first.
    `cursor` is null on the last page."""

    counter: str
    id: str
    children: list[Listed | ListedAnonymous]
    cursor: str | None


class Mine(TypedDict):
    """For each id, in the order of the request, whether the caller is a child."""

    mine: list[Child | Unreadable]


class ChangedAnonymous(TypedDict):
    """Whether this browser is counted now, and whether this request changed that."""

    counter: str
    id: str
    present: bool
    changed: bool
    visible: Literal["now", "soon"]  # Reads show the change `now`, or `soon`: within seconds. It counts either way.
    value: NotRequired[int]  # With `?value=true`, if visible now: the number after the change, strongly consistent.
    replayed: bool


class Anonymous(TypedDict):
    """Whether this browser is counted."""

    counter: str
    id: str
    present: bool


class MineAnonymous(TypedDict):
    """For each id, in the order of the request, whether this browser is counted."""

    anonymous: list[Anonymous | Unreadable]


class Removed(TypedDict):
    """The id is removed, with its children. `changed`: false if there was nothing to remove."""

    counter: str
    id: str
    removed: Literal[True]
    changed: bool


class Held(TypedDict):
    """The amount is taken, and held until `expires_at`. In a replay, `state` is the present state."""

    counter: str
    id: str
    period: NotRequired[str]  # Of a counter with periods: the period, such as `2026-11`.
    hold: str
    amount: int
    expires_at: int  # Seconds since 1970.
    state: Literal["held", "committed", "released", "expired", "voided"]
    replayed: bool


class Settled(TypedDict):
    """The state of a hold, and whether this request changed the state."""

    counter: str
    id: str
    hold: str
    state: Literal["committed", "released", "voided"]
    amount: NotRequired[int]  # The whole amount that a commit took, or that a void gave back.
    changed: bool


class Post(TypedDict):
    """A post. `likes`: how many users like the post. `revision`: how often its author has edited the post."""

    id: str
    author: str
    created_at: int  # Seconds since 1970.
    revision: int
    likes: int
    body: str


class RemovedPost(TypedDict):
    """The post is removed. `changed`: false if an earlier request had removed the post."""

    id: str
    removed: Literal[True]
    changed: bool


class Visited(TypedDict):
    """A visit was counted. The receipt stores its target, the URL, and the answer. So the answer omits the URL."""

    counted: Literal[True]
    visible: Literal["now", "soon"]  # Reads show the change `now`, or `soon`: within seconds. It counts either way.
    replayed: bool


class Visits(TypedDict):
    """How often a page was visited: `value` by people, `bots` by crawlers. `id` is the page's canonical URL."""

    counter: Literal["visits"]
    id: str
    value: int
    bots: int
    visitors: NotRequired[int]  # Distinct visitors of today, in UTC, if they are counted.
    as_of: int | None  # Seconds since 1970. Numbers have every change before this time. Null: unknown.


class Receipt(TypedDict):
    """Whether a change was counted. `unknown`: it never arrived, Tally refused it, or its receipt has expired."""

    operation: Literal[
        "increment",
        "change",
        "set_counter",
        "put_limit",
        "delete_limit",
        "put_child",
        "delete_child",
        "put_mine",
        "delete_mine",
        "put_anonymous",
        "delete_anonymous",
        "hold",
        "change_hold",
        "visit",
    ]
    target: str
    key: str
    state: Literal["counted", "unknown"]
    voided: NotRequired[Literal[True]]  # The change was counted, and a void took it back.
    answer: NotRequired[dict[str, Any]]  # The first answer, without a child's name.


class Receipts(TypedDict):
    """Whether each change was counted, in the order of the request."""

    receipts: list[Receipt]


Point = TypedDict("Point", {"from": int, "value": int})
"""One hour or day."""


class RepairOfSeries(TypedDict):
    """A repair, which is in no hour or day of `series`, because it is not traffic."""

    at: int  # Seconds since 1970.
    value: int
    how: str  # The proof: `ledger` (drift), `recount` (children), `rebuild` (lost changes).
    added: int  # The part of `value` that the series lack: an error from before `since`, or lost changes.


class Series(TypedDict):
    """By how much a number moved in each hour or day. `from`: where the hour or day begins. `id`: empty for all ids."""

    counter: str
    id: str
    by: Literal["hour", "day"]
    series: list[Point]
    imports: list[Point]  # Imported rows by day, in UTC. They are not traffic, and in no hour or day of `series`.
    repairs: list[RepairOfSeries]
    since: int | None  # When the series begin, in seconds since 1970. Null: no series.
    as_of: int | None  # Seconds since 1970. Numbers have every change before this time. Null: unknown.


class TopEntry(TypedDict):
    """One id, and by how much its number moved."""

    id: str
    value: int


class Top(TypedDict):
    """The ids whose numbers moved most in a span, the largest move first."""

    counter: str
    by: Literal["hour", "day", "month"]
    span: str | None  # The hour, day or month, in UTC. Null: no hour is summed up yet.
    top: list[TopEntry]
    error_max: int  # The most by which a value may be too low or too high.
    as_of: int | None  # Seconds since 1970. Numbers have every change before this time. Null: unknown.


class Drifting(TypedDict):
    """A number that drifts, and since when. `drift`: the number less the accepted changes; below 0 if it is too low."""

    counter: str
    id: str
    period: NotRequired[str]  # Of a counter with periods: the period, such as `2026-11`.
    drift: int
    since: int  # Seconds since 1970.
    confirmed: bool  # A part of the drift has lasted for five judged minutes. A repair takes this part back.


class Drifts(TypedDict):
    """The numbers that drift now. `cursor` is null on the last page."""

    drift: list[Drifting]
    cursor: str | None


class Imported(TypedDict):
    """How much of a number was imported."""

    amount: int
    as_of: int  # Seconds since 1970. Later imports are not in `amount`.


class Shard(TypedDict):
    """One of the items that a number is spread over. `shard`: its position, from 0. `value`: its part of the number."""

    shard: int
    value: int


class Drift(TypedDict):
    """The drift of one number, as in `GET /drift`."""

    drift: int
    since: int  # Seconds since 1970.
    confirmed: bool


class Repair(TypedDict):
    """One repair. `how`: the proof, as `ledger` (drift), `recount` (children) or `rebuild` (lost changes)."""

    at: int  # Seconds since 1970.
    amount: int
    how: str
    who: str
    why: str


class Details(TypedDict):
    """One number. `drift` is null if the number does not drift. `imported` is null until Tally has summed up the
    first hour, and for a counter with periods."""

    counter: str
    id: str
    period: NotRequired[str]  # Of a counter with periods: the period, such as `2026-11`.
    value: int
    imported: Imported | None
    shards: list[Shard]
    drift: Drift | None
    judged_up_to: int | None  # Seconds since 1970. Tally has judged every earlier minute. Null: no minute.
    repairs: list[Repair]


class HealthCheck(TypedDict):
    """One health check. `line`: its result for people. `see`: the section of Tally's docs that says what to do."""

    name: str
    state: Literal["ok", "wrong", "unknown"]
    line: str
    see: str


class Declared(TypedDict):
    """One counter, as it is declared. `public`: anyone may read it. `listed`: anyone may list its ids. `counts`:
    what moves its numbers. The ids of `pages` and `page visitors` are URLs. `items` are in a team's table."""

    name: str
    visible: Literal["now", "soon"]
    changes: Literal["anyone", "caller", "service"]  # Who may change it. `caller`: any signed-in user.
    public: bool
    listed: bool
    counts: Literal["changes", "children", "pages", "page visitors", "visitors", "items"]
    watched: str | None  # The team's attribute that Tally checks, and whose drift it reports. Null: no attribute.
    retired: bool
    numbered: bool
    notifies: bool  # Whether it has thresholds, which make events.
    max_shards: int
    delta: int | None
    start: int
    floor: int | None
    ceiling: int | None
    debt: int
    limit_overrides: bool
    period: str | None
    timezone: str | None


class Status(TypedDict):
    """The health of the stack. `at`: when it was checked. `where`: the options with which `tally` finds this stack."""

    well: bool | None  # True: each part is ok. False: a part is wrong. Null: a part is unknown, no part is wrong.
    parts: list[HealthCheck]
    at: int  # Seconds since 1970.
    as_of: int | None  # Seconds since 1970. Numbers have every change before this time. Null: unknown.
    judged_up_to: int | None  # Seconds since 1970. Tally has judged every earlier minute. Null: no minute.
    stack: str
    stage: str
    where: str
    counters: list[Declared]


class Crossed(TypedDict):
    """A threshold event, as the bus gets it. `by`: its cause, such as a new `limit`. `sent`: the bus has the event."""

    event: str  # The id of the event. Each copy of the event has the same id.
    counter: str
    id: str
    period: NotRequired[str]  # Of a counter with periods: the period, such as `2026-11`.
    threshold: int
    percent: NotRequired[int]  # The threshold as a percentage of `limit`, the ceiling.
    limit: NotRequired[int]
    every: NotRequired[int]  # The threshold is a multiple of this.
    direction: Literal["up", "down"]
    value: int
    before: NotRequired[int]  # The number before the change; left out for a sum of shards.
    by: NotRequired[Literal["change", "edit", "limit", "removal", "repair"]]
    at: int  # Seconds since 1970.
    sequence: str  # Sorts the events of one number.
    sent: bool


class Events(TypedDict):
    """The newest events, the newest first."""

    events: list[Crossed]


class Health(TypedDict):
    """Tally reaches its store. `version`: the version of the deployed code."""

    status: Literal["ok"]
    version: str
    receipts_live_s: dict[str, int]  # The least number of seconds for which Tally recognises a key, by counter.


def increment(
    counter: str,
    id: str,
    *,
    amount: int | None = None,
    used: bool | None = None,
    value: bool | None = None,
    idempotency_key: str | None = None,
    caller: str | None = None,
) -> Request[Counted]:
    """Move a counter. Raises NotFoundError, LimitReachedError, CounterRetiredError."""
    return Request.of("increments", "increment", locals())


def add_visitor(
    counter: str, id: str, visitor: str, *, at: int | None = None, caller: str | None = None
) -> Request[Visitor]:
    """Count a visitor. Raises NotFoundError, LimitReachedError, CounterRetiredError."""
    return Request.of("increments", "add_visitor", locals())


def set_counter(
    counter: str, id: str, value: int, version: int, *, idempotency_key: str | None = None, caller: str | None = None
) -> Request[NewState]:
    """Set a counter, if it has the version that you read. Raises NotFoundError, LimitReachedError,
    CounterRetiredError, PreconditionFailedError, PreconditionRequiredError."""
    return Request.of("increments", "set_counter", locals())


def get_limit(counter: str, id: str, *, caller: str | None = None) -> Request[IdLimit]:
    """The limit of one id. Raises NotFoundError."""
    return Request.of("increments", "get_limit", locals())


def put_limit(
    counter: str, id: str, limit: int, *, idempotency_key: str | None = None, caller: str | None = None
) -> Request[IdLimit]:
    """Override the limit of one id. Raises NotFoundError."""
    return Request.of("increments", "put_limit", locals())


def delete_limit(
    counter: str, id: str, *, idempotency_key: str | None = None, caller: str | None = None
) -> Request[IdLimit]:
    """Reset the limit of one id to the declared one. Raises NotFoundError."""
    return Request.of("increments", "delete_limit", locals())


def change(
    changes: Iterable[Mapping[str, Any]],
    *,
    visible: str | None = None,
    idempotency_key: str | None = None,
    caller: str | None = None,
) -> Request[Changed]:
    """Move many counters under one key. Raises LimitReachedError, CounterRetiredError."""
    return Request.of("changes", "change", locals())


def void(counter: str, id: str, key: str, *, caller: str | None = None) -> Request[Voided]:
    """Take a change back. Raises NotFoundError, LimitReachedError, CounterRetiredError."""
    return Request.of("changes", "void", locals())


def void_changes(key: str, *, caller: str | None = None) -> Request[AllVoided]:
    """Take a batch back. Raises NotFoundError, LimitReachedError, CounterRetiredError."""
    return Request.of("changes", "void_changes", locals())


def get_counter(counter: str, id: str, *, period: str | None = None, caller: str | None = None) -> Request[Value]:
    """The value of a counter. Raises NotFoundError, NotCountedError."""
    return Request.of("reads", "get_counter", locals())


def get_tallies(of: Iterable[str], *, caller: str | None = None) -> Request[Values]:
    """Many numbers that anyone may read."""
    return Request.of("reads", "get_tallies", locals())


def get_any_tallies(of: Iterable[str], *, caller: str | None = None) -> Request[Values]:
    """Many numbers of any counters."""
    return Request.of("reads", "get_any_tallies", locals())


def put_child(
    counter: str,
    id: str,
    name: str,
    *,
    value: bool | None = None,
    idempotency_key: str | None = None,
    caller: str | None = None,
) -> Request[ChangedChild]:
    """Put a child, so that it counts. Raises NotFoundError, CounterRetiredError, ParentRemovedError."""
    return Request.of("children", "put_child", locals())


def delete_child(
    counter: str,
    id: str,
    name: str,
    *,
    value: bool | None = None,
    idempotency_key: str | None = None,
    caller: str | None = None,
) -> Request[ChangedChild]:
    """Remove a child, so that it does not count. Raises NotFoundError, CounterRetiredError, ParentRemovedError."""
    return Request.of("children", "delete_child", locals())


def get_child(counter: str, id: str, name: str, *, caller: str | None = None) -> Request[Child]:
    """Whether a child counts. Raises NotFoundError."""
    return Request.of("children", "get_child", locals())


def list_children(
    counter: str, id: str, *, limit: int | None = None, cursor: str | None = None, caller: str | None = None
) -> Request[Children]:
    """The children that count, a page at a time. Raises NotFoundError."""
    return Request.of("children", "list_children", locals())


def put_mine(
    counter: str, id: str, *, value: bool | None = None, idempotency_key: str | None = None, caller: str | None = None
) -> Request[ChangedChild]:
    """Count yourself, as with a like. Raises NotFoundError, CounterRetiredError, ParentRemovedError, ForbiddenError."""
    return Request.of("children", "put_mine", locals())


def delete_mine(
    counter: str, id: str, *, value: bool | None = None, idempotency_key: str | None = None, caller: str | None = None
) -> Request[ChangedChild]:
    """Stop counting yourself, as with an unlike. Raises NotFoundError, CounterRetiredError, ParentRemovedError,
    ForbiddenError."""
    return Request.of("children", "delete_mine", locals())


def get_mine(counter: str, id: str, *, caller: str | None = None) -> Request[Child]:
    """Whether you are counted. Raises NotFoundError, ForbiddenError."""
    return Request.of("children", "get_mine", locals())


def list_mine(of: Iterable[str], *, caller: str | None = None) -> Request[Mine]:
    """Which of these ids count you."""
    return Request.of("children", "list_mine", locals())


def put_anonymous(
    counter: str,
    id: str,
    secret: str,
    *,
    value: bool | None = None,
    idempotency_key: str | None = None,
    caller: str | None = None,
) -> Request[ChangedAnonymous]:
    """Count a browser without sign-in. Raises NotFoundError, CounterRetiredError, ParentRemovedError,
    ForbiddenError."""
    return Request.of("children", "put_anonymous", locals())


def delete_anonymous(
    counter: str,
    id: str,
    secret: str,
    *,
    value: bool | None = None,
    idempotency_key: str | None = None,
    caller: str | None = None,
) -> Request[ChangedAnonymous]:
    """Stop counting a browser without sign-in. Raises NotFoundError, CounterRetiredError, ParentRemovedError,
    ForbiddenError."""
    return Request.of("children", "delete_anonymous", locals())


def get_anonymous(counter: str, id: str, secret: str, *, caller: str | None = None) -> Request[Anonymous]:
    """Whether this secret is counted. Raises NotFoundError, ForbiddenError."""
    return Request.of("children", "get_anonymous", locals())


def list_anonymous(of: Iterable[str], secret: str, *, caller: str | None = None) -> Request[MineAnonymous]:
    """Which of these ids count the browser with this secret."""
    return Request.of("children", "list_anonymous", locals())


def remove_parent(counter: str, id: str, *, caller: str | None = None) -> Request[Removed]:
    """Remove an id with all its children. Raises NotFoundError, CounterRetiredError."""
    return Request.of("children", "remove_parent", locals())


def hold(
    counter: str, id: str, amount: int, ttl_s: int, *, idempotency_key: str | None = None, caller: str | None = None
) -> Request[Held]:
    """Take an amount and hold it. Raises NotFoundError, LimitReachedError, CounterRetiredError."""
    return Request.of("holds", "hold", locals())


def change_hold(
    counter: str,
    id: str,
    hold: str,
    *,
    amount: int | None = None,
    ttl_s: int | None = None,
    idempotency_key: str | None = None,
    caller: str | None = None,
) -> Request[Held]:
    """Change the amount of a hold, or when it expires. Raises NotFoundError, HoldSettledError, LimitReachedError,
    CounterRetiredError."""
    return Request.of("holds", "change_hold", locals())


def commit_hold(
    counter: str, id: str, hold: str, *, amount: int | None = None, caller: str | None = None
) -> Request[Settled]:
    """Commit a hold, at the held amount or at the used amount. Raises NotFoundError, HoldSettledError,
    LimitReachedError."""
    return Request.of("holds", "commit_hold", locals())


def release_hold(counter: str, id: str, hold: str, *, caller: str | None = None) -> Request[Settled]:
    """Release a hold, which gives its amount back. Raises NotFoundError, HoldSettledError, LimitReachedError."""
    return Request.of("holds", "release_hold", locals())


def void_hold(counter: str, id: str, hold: str, *, caller: str | None = None) -> Request[Settled]:
    """Void a committed hold. Raises NotFoundError, HoldSettledError, LimitReachedError, CounterRetiredError."""
    return Request.of("holds", "void_hold", locals())


def put_post(id: str, body: str, *, caller: str | None = None) -> Request[Post]:
    """Create a post, or edit your own. Raises ForbiddenError, EditConflictError, ParentRemovedError."""
    return Request.of("posts", "put_post", locals())


def get_post(id: str, *, caller: str | None = None) -> Request[Post]:
    """A post with its likes. Raises NotFoundError."""
    return Request.of("posts", "get_post", locals())


def delete_post(id: str, *, caller: str | None = None) -> Request[RemovedPost]:
    """Delete your own post. Raises NotFoundError, ForbiddenError."""
    return Request.of("posts", "delete_post", locals())


def visit(
    url: str,
    *,
    user_agent: str | None = None,
    address: str | None = None,
    idempotency_key: str | None = None,
    caller: str | None = None,
) -> Request[Visited]:
    """Count a visit. Raises ForbiddenError."""
    return Request.of("visits", "visit", locals())


def get_visits(url: str, *, caller: str | None = None) -> Request[Visits]:
    """How often a page was visited."""
    return Request.of("visits", "get_visits", locals())


def get_receipts(of: str, target: Iterable[str], key: Iterable[str], *, caller: str | None = None) -> Request[Receipts]:
    """Whether these anonymous changes counted. Raises NotCommittedError."""
    return Request.of("receipts", "get_receipts", locals())


def get_own_receipts(
    of: str, target: Iterable[str], key: Iterable[str], *, caller: str | None = None
) -> Request[Receipts]:
    """Whether these changes of mine counted. Raises NotCommittedError."""
    return Request.of("receipts", "get_own_receipts", locals())


def get_any_receipts(
    of: str, target: Iterable[str], key: Iterable[str], *, caller: str | None = None
) -> Request[Receipts]:
    """Whether these changes of a caller counted. Raises NotCommittedError."""
    return Request.of("receipts", "get_any_receipts", locals())


def get_series(
    of: str,
    *,
    by: str | None = None,
    from_: int | None = None,
    to: int | None = None,
    tz: str | None = None,
    caller: str | None = None,
) -> Request[Series]:
    """A number by the hour or by the day. Raises NotFoundError, ForbiddenError."""
    return Request.of("series", "get_series", locals())


def get_any_series(
    of: str,
    *,
    by: str | None = None,
    from_: int | None = None,
    to: int | None = None,
    tz: str | None = None,
    caller: str | None = None,
) -> Request[Series]:
    """A number of any counter by the hour or by the day. Raises NotFoundError."""
    return Request.of("series", "get_any_series", locals())


def get_top(
    counter: str, *, by: str | None = None, span: str | None = None, limit: int | None = None, caller: str | None = None
) -> Request[Top]:
    """The ids that moved most in an hour, a day or a month. Raises NotFoundError, ForbiddenError."""
    return Request.of("series", "get_top", locals())


def get_any_top(
    counter: str, *, by: str | None = None, span: str | None = None, limit: int | None = None, caller: str | None = None
) -> Request[Top]:
    """The ids of any counter that moved most. Raises NotFoundError."""
    return Request.of("series", "get_any_top", locals())


def get_drift(*, limit: int | None = None, cursor: str | None = None, caller: str | None = None) -> Request[Drifts]:
    """The numbers that drift, a page at a time."""
    return Request.of("drift", "get_drift", locals())


def get_details(counter: str, id: str, *, period: str | None = None, caller: str | None = None) -> Request[Details]:
    """One number: its shards, its drift, who repaired it, and how much of it was imported. Raises NotFoundError,
    NotCountedError."""
    return Request.of("drift", "get_details", locals())


def get_status(*, caller: str | None = None) -> Request[Status]:
    """The health of the stack."""
    return Request.of("drift", "get_status", locals())


def get_events(*, limit: int | None = None, caller: str | None = None) -> Request[Events]:
    """The newest events: numbers that crossed a threshold of their counter."""
    return Request.of("drift", "get_events", locals())


def health(*, caller: str | None = None) -> Request[Health]:
    """Whether Tally reaches its store."""
    return Request.of("health", "health", locals())


class Methods:
    """A method for each request above: it makes the request and sends it."""

    increment = sends(increment)
    add_visitor = sends(add_visitor)
    set_counter = sends(set_counter)
    get_limit = sends(get_limit)
    put_limit = sends(put_limit)
    delete_limit = sends(delete_limit)
    change = sends(change)
    void = sends(void)
    void_changes = sends(void_changes)
    get_counter = sends(get_counter)
    get_tallies = sends(get_tallies)
    get_any_tallies = sends(get_any_tallies)
    put_child = sends(put_child)
    delete_child = sends(delete_child)
    get_child = sends(get_child)
    list_children = sends(list_children)
    put_mine = sends(put_mine)
    delete_mine = sends(delete_mine)
    get_mine = sends(get_mine)
    list_mine = sends(list_mine)
    put_anonymous = sends(put_anonymous)
    delete_anonymous = sends(delete_anonymous)
    get_anonymous = sends(get_anonymous)
    list_anonymous = sends(list_anonymous)
    remove_parent = sends(remove_parent)
    hold = sends(hold)
    change_hold = sends(change_hold)
    commit_hold = sends(commit_hold)
    release_hold = sends(release_hold)
    void_hold = sends(void_hold)
    put_post = sends(put_post)
    get_post = sends(get_post)
    delete_post = sends(delete_post)
    visit = sends(visit)
    get_visits = sends(get_visits)
    get_receipts = sends(get_receipts)
    get_own_receipts = sends(get_own_receipts)
    get_any_receipts = sends(get_any_receipts)
    get_series = sends(get_series)
    get_any_series = sends(get_any_series)
    get_top = sends(get_top)
    get_any_top = sends(get_any_top)
    get_drift = sends(get_drift)
    get_details = sends(get_details)
    get_status = sends(get_status)
    get_events = sends(get_events)
    health = sends(health)
