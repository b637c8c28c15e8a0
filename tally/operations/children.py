"""Items that a counter counts: the members of a workspace by their names, or the users who like something."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, NotRequired, TypedDict

from tally import fields
from tally.api import kinds, needs
from tally.api.kinds import TALLY, ACounter, Cursor, Flag, Id, Key, Limit, Name, Secret
from tally.api.operation import READS, SELDOM, WRITES, Access, Answer, Call, operation
from tally.api.shapes import NewValue, Unreadable, WhenVisible
from tally.counter import CHILDREN, Counter
from tally.counting import anonymous, children, deletion, tallies
from tally.counting.receipts import Keyed
from tally.counting.tallies import Tally
from tally.errors import (
    CallerError,
    CounterRetiredError,
    ForbiddenError,
    InvalidInputError,
    NotFoundError,
    ParentRemovedError,
    problem,
)


class Child(TypedDict):
    """Whether the child is there, and so counts."""

    counter: str
    id: str
    child: str
    present: bool


class ChangedChild(Child):
    """Whether the child is there now, and whether this request changed that."""

    changed: bool
    visible: WhenVisible
    value: NotRequired[NewValue]


class Listed(TypedDict):
    """One child."""

    child: str
    since: Annotated[
        int | None, {"minimum": 0, "description": "Seconds since 1970. Null: it did not go through Tally."}
    ]


class ListedAnonymous(TypedDict):
    """A child without a user: a browser whose person did not sign in."""

    anonymous: Literal[True]
    since: Annotated[
        int | None, {"minimum": 0, "description": "Seconds since 1970. Null: it did not go through Tally."}
    ]


class Children(TypedDict):
    """The children, in the order of their percent-encoded names; those without a user come first. `cursor` is null on
    the last page."""

    counter: str
    id: str
    children: list[Listed | ListedAnonymous]
    cursor: str | None


class Mine(TypedDict):
    """Whether the caller is a child of each, in the order asked."""

    mine: list[Child | Unreadable]


class Anonymous(TypedDict):
    """Whether this browser is counted."""

    counter: str
    id: str
    present: bool


class ChangedAnonymous(Anonymous):
    """Whether this browser is counted now, and whether this request changed that."""

    changed: bool
    visible: WhenVisible
    value: NotRequired[NewValue]


class ListedOwn(TypedDict):
    """Whether this browser is counted by each, in the order asked."""

    anonymous: list[Anonymous | Unreadable]


class Removed(TypedDict):
    """It is removed, with its children. `changed`: by this request, and not by an earlier one."""

    counter: str
    id: str
    removed: Literal[True]
    changed: bool


def _no_children(counter: Counter) -> CallerError | None:
    """Why this counter has none."""
    return fields.counts_otherwise(counter, CHILDREN)


def _no_parents(counter: Counter) -> CallerError | None:
    """Why nobody removes a parent of this counter here."""
    if counter.parent_required:
        return InvalidInputError(
            f"{counter.name}: a {counter.prefix.lower()} is deleted by its author.", field="counter"
        )
    return _no_children(counter)


def _not_by_callers(counter: Counter) -> CallerError | None:
    """Why a caller is no child of this counter."""
    if (refusal := _no_children(counter)) or counter.changes != "service":
        return refusal
    return ForbiddenError(f"Callers do not change {counter.name} themselves: a service does.", field="counter")


def _not_by_anyone(counter: Counter) -> CallerError | None:
    """Why a browser without sign-in is no child of this counter."""
    if (refusal := _not_by_callers(counter)) or counter.changes == "anyone":
        return refusal
    return ForbiddenError(f"Callers change {counter.name} only when they are signed in.", field="counter")


def _needs_to_change(counters: Sequence[Counter]) -> needs.Needs:
    return needs.change_child(counters) | needs.find_before_refusal(counters) | needs.on(counters, "Query")


def _needs_to_look(counters: Sequence[Counter]) -> needs.Needs:
    return needs.on(counters, "BatchGetItem")


_ERRORS = (NotFoundError, CounterRetiredError, ParentRemovedError)
_MEMBER = {"counter": "members", "id": "acme", "child": "auth0|7c20"}
_LIKE = {"counter": "likes", "id": "a91f", "child": "auth0|7c20"}
_HEART = {"counter": "hearts", "id": "article-1"}


@operation(
    "PUT /counters/{counter}/{id}/child",
    access=Access.WRITE,
    throttle=WRITES,
    refuses=_no_children,
    needs=_needs_to_change,
    raises=_ERRORS,
    example={**_MEMBER, "present": True, "changed": True, "visible": "now"},
    counts=True,
)
def put_child(
    call: Call, *, counter: ACounter, id: Id, name: Name, idempotency_key: Key | None = None, value: Flag = False
) -> Answer[ChangedChild]:
    """Put a child, which then counts

    The child is its own receipt: putting it again changes nothing. The key is optional. With a key, a late retry does
    not put a child that was removed since.
    """
    return _set(call, "put_child", counter, id, name, True, idempotency_key, value)


@operation(
    "DELETE /counters/{counter}/{id}/child",
    access=Access.WRITE,
    throttle=WRITES,
    refuses=_no_children,
    needs=_needs_to_change,
    raises=_ERRORS,
    example={**_MEMBER, "present": False, "changed": True, "visible": "now"},
    counts=True,
)
def delete_child(
    call: Call, *, counter: ACounter, id: Id, name: Name, idempotency_key: Key | None = None, value: Flag = False
) -> Answer[ChangedChild]:
    """Remove a child, which is then not counted

    If there is no such child, nothing changes.
    """
    return _set(call, "delete_child", counter, id, name, False, idempotency_key, value)


@operation(
    "GET /counters/{counter}/{id}/child",
    access=Access.READ,
    throttle=READS,
    refuses=_no_children,
    needs=_needs_to_look,
    raises=[NotFoundError],
    example={**_MEMBER, "present": True},
)
def get_child(call: Call, *, counter: ACounter, id: Id, name: Name) -> Answer[Child]:
    """Whether a child counts"""
    return Answer(_child(counter, id, name, children.is_there(call, counter, id, name)))


@operation(
    "GET /counters/{counter}/{id}/children",
    access=Access.READ,
    as_counter="lists",
    throttle=SELDOM,
    refuses=_no_children,
    needs=lambda counters: needs.on(counters, "Query", "GetItem"),
    raises=[NotFoundError],
    example={
        "counter": "members",
        "id": "acme",
        "children": [{"child": "auth0|7c20", "since": 1785542401}],
        "cursor": None,
    },
    names_users=True,
)
def list_children(
    call: Call, *, counter: ACounter, id: Id, limit: Limit = fields.PAGE_SIZE_DEFAULT, cursor: Cursor | None = None
) -> Answer[Children]:
    """The children that count, a page at a time

    In the order of their percent-encoded names. `GET /counters/{counter}/{id}` says how many.
    """
    found, following = children.listed(call, counter, id, limit, cursor)
    listed = [
        {"anonymous": True, "since": since} if name is None else {"child": name, "since": since}
        for name, since in found
    ]
    return Answer({"counter": counter.name, "id": id, "children": listed, "cursor": following})


@operation(
    "PUT /counters/{counter}/{id}/mine",
    access=Access.SIGNED_IN,
    throttle=WRITES,
    alias="PUT {path}",
    refuses=_not_by_callers,
    needs=_needs_to_change,
    raises=(*_ERRORS, ForbiddenError),
    example={**_LIKE, "present": True, "changed": True, "visible": "now"},
    counts=True,
)
def put_mine(
    call: Call, *, counter: ACounter, id: Id, idempotency_key: Key | None = None, value: Flag = False
) -> Answer[ChangedChild]:
    """Be counted yourself, as by a like

    The key is optional. With a key, a late retry does not repeat a like that you have since removed.
    """
    return _set(call, "put_mine", counter, id, call.caller or "", True, idempotency_key, value)


@operation(
    "DELETE /counters/{counter}/{id}/mine",
    access=Access.SIGNED_IN,
    throttle=WRITES,
    alias="DELETE {path}",
    refuses=_not_by_callers,
    needs=_needs_to_change,
    raises=(*_ERRORS, ForbiddenError),
    example={**_LIKE, "present": False, "changed": True, "visible": "now"},
    counts=True,
)
def delete_mine(
    call: Call, *, counter: ACounter, id: Id, idempotency_key: Key | None = None, value: Flag = False
) -> Answer[ChangedChild]:
    """Be counted no more, as by an unlike

    If you are not counted, nothing changes.
    """
    return _set(call, "delete_mine", counter, id, call.caller or "", False, idempotency_key, value)


@operation(
    "GET /counters/{counter}/{id}/mine",
    access=Access.SIGNED_IN,
    throttle=READS,
    alias="GET {path}",
    refuses=_not_by_callers,
    needs=_needs_to_look,
    raises=[NotFoundError, ForbiddenError],
    example={**_LIKE, "present": True},
)
def get_mine(call: Call, *, counter: ACounter, id: Id) -> Answer[Child]:
    """Whether you are counted"""
    caller = call.caller or ""
    return Answer(_child(counter, id, caller, children.is_there(call, counter, id, caller)))


@operation(
    "GET /mine",
    access=Access.SIGNED_IN,
    throttle=READS,
    refuses=_not_by_callers,
    needs=_needs_to_look,
    example={"mine": [{**_LIKE, "present": True}]},
)
def list_mine(call: Call, *, of: Annotated[list[tuple[str, str]], kinds.many(TALLY, 100)]) -> Answer[Mine]:
    """Which of these count you

    Up to 100, in the order asked. It reads children and no parents: one that does not exist does not count you, and one
    that is being removed does until it is gone. API Gateway takes about 10 KB of URL and headers together.
    """
    caller = call.caller or ""
    return Answer({"mine": _which(call, of, _not_by_callers, lambda *_: caller)})


@operation(
    "PUT /counters/{counter}/{id}/anonymous",
    access=Access.ANYONE,
    throttle=SELDOM,
    refuses=_not_by_anyone,
    needs=_needs_to_change,
    raises=(*_ERRORS, ForbiddenError),
    example={**_HEART, "present": True, "changed": True, "visible": "now"},
    counts=True,
)
def put_anonymous(
    call: Call, *, counter: ACounter, id: Id, secret: Secret, idempotency_key: Key | None = None, value: Flag = False
) -> Answer[ChangedAnonymous]:
    """Be counted without sign-in

    Once for a secret and an id. Tally stores a hash of both, which names nobody. Who has the secret can take it back.
    """
    child = anonymous.name(counter, id, secret)
    return _set(call, "put_anonymous", counter, id, child, True, idempotency_key, value)


@operation(
    "DELETE /counters/{counter}/{id}/anonymous",
    access=Access.ANYONE,
    throttle=SELDOM,
    refuses=_not_by_anyone,
    needs=_needs_to_change,
    raises=(*_ERRORS, ForbiddenError),
    example={**_HEART, "present": False, "changed": True, "visible": "now"},
    counts=True,
)
def delete_anonymous(
    call: Call, *, counter: ACounter, id: Id, secret: Secret, idempotency_key: Key | None = None, value: Flag = False
) -> Answer[ChangedAnonymous]:
    """Be counted no more without sign-in

    If this secret is not counted, nothing changes.
    """
    child = anonymous.name(counter, id, secret)
    return _set(call, "delete_anonymous", counter, id, child, False, idempotency_key, value)


@operation(
    "GET /counters/{counter}/{id}/anonymous",
    access=Access.ANYONE,
    throttle=SELDOM,
    refuses=_not_by_anyone,
    needs=_needs_to_look,
    raises=[NotFoundError, ForbiddenError],
    example={**_HEART, "present": True},
)
def get_anonymous(call: Call, *, counter: ACounter, id: Id, secret: Secret) -> Answer[Anonymous]:
    """Whether this secret is counted"""
    child = anonymous.name(counter, id, secret)
    return Answer(_child(counter, id, child, children.is_there(call, counter, id, child)))


@operation(
    "GET /anonymous",
    access=Access.ANYONE,
    throttle=SELDOM,
    refuses=_not_by_anyone,
    needs=_needs_to_look,
    example={"anonymous": [{**_HEART, "present": True}]},
)
def list_anonymous(
    call: Call, *, of: Annotated[list[tuple[str, str]], kinds.many(TALLY, 100)], secret: Secret
) -> Answer[ListedOwn]:
    """Which of these count this secret

    As `GET /mine`.
    """
    own = _which(call, of, _not_by_anyone, lambda counter, id_: anonymous.name(counter, id_, secret))
    return Answer({"anonymous": own})


@operation(
    "DELETE /counters/{counter}/{id}",
    access=Access.WRITE,
    throttle=SELDOM,
    refuses=_no_parents,
    # It marks the parent and the shards of its number, and names it to the sweep.
    needs=lambda counters: (
        needs.on(counters, "Query", "GetItem", "UpdateItem") | needs.on_ledger({"DELETED": ["PutItem"]})
    ),
    raises=[NotFoundError, CounterRetiredError],
    example={"counter": "members", "id": "acme", "removed": True, "changed": True},
)
def remove_parent(call: Call, *, counter: ACounter, id: Id) -> Answer[Removed]:
    """Remove an id with all its children

    Readers find none of them any more. The children are removed in the background. The id is free again after that, a
    quarter of an hour later at the earliest.
    """
    changed = deletion.remove_parent(call, counter, id)
    return Answer({"counter": counter.name, "id": id, "removed": True, "changed": changed})


def _set(
    call: Call, operation: str, counter: Counter, id_: str, name: str, there: bool, key: str | None, value: bool
) -> Answer[Any]:
    keyed = None
    if key is not None:
        keyed = Keyed(operation, f"{counter.name}/{id_}", key, {"child": name}, counter.receipt_days)
    body = {"counter": counter.name, "id": id_, "present": there}  # the receipt keeps it: it names nobody
    counted, replayed = children.set_child(call, counter, id_, name, there, body, keyed)
    answer = {**_child(counter, id_, name, there), **counted}
    return Answer(tallies.with_value(call, counter, id_, answer) if value else answer, replayed=replayed)


def _child(counter: Counter, id_: str, quoted: str, present: bool) -> dict[str, Any]:
    """Whether a child is there. What is anonymous has no name to show."""
    name = {} if quoted.startswith(anonymous.MARK) else {"child": fields.user_name(quoted)}
    return {"counter": counter.name, "id": id_, **name, "present": present}


def _which(
    call: Call,
    of: Sequence[tuple[str, str]],
    refuses: Callable[[Counter], CallerError | None],
    child_of: Callable[[Counter, str], str],
) -> list[dict[str, Any]]:
    """Whether each of these has its child, or why that cannot be answered. `child_of`: the child's encoded name."""
    refused = {asked: error for asked in of if (error := _refused(call, *asked, refuses))}
    wanted = [Tally(call.counters[name], id_) for name, id_ in of if (name, id_) not in refused]
    names = {tally: child_of(*tally) for tally in wanted}
    present = children.present_of(call, names)

    def entry(name: str, id_: str) -> dict[str, Any]:
        if error := refused.get((name, id_)):
            return {"counter": name, "id": id_, "error": problem(error)}
        tally = Tally(call.counters[name], id_)
        return _child(*tally, names[tally], tally in present)

    return [entry(*asked) for asked in of]


def _refused(call: Call, name: str, id_: str, refuses: Callable[[Counter], CallerError | None]) -> CallerError | None:
    """Why an entry cannot be answered."""
    try:
        counter = fields.declared(name, "of", call.counters)
        fields.identifier(id_, "of")
    except CallerError as error:
        return error
    return refuses(counter)
