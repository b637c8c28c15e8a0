"""Children, which a counter counts: the members of a workspace by name, or the users who like something."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, Literal, NotRequired, TypedDict

from tally import fields
from tally.api import needs
from tally.api.kind import list_of
from tally.api.kinds import TALLY, ChildName, Cursor, DeclaredCounter, Id, IncludeValue, Key, PageSize, Secret
from tally.api.operation import RATE_100_PER_S, READS, WRITES, Access, Answer, Call, operation
from tally.api.shapes import NewValue, Unreadable, WhenVisible
from tally.counter import CHILDREN, Counter
from tally.counting import anonymous, children, deletion, tallies
from tally.counting.receipts import ReceiptKey
from tally.counting.tallies import Tally
from tally.errors import (
    CallerError,
    CounterRetiredError,
    ForbiddenError,
    InvalidInputError,
    NotFoundError,
    ParentRemovedError,
    problem_document,
)

Since = Annotated[int | None, {"minimum": 0, "description": "Seconds since 1970. Null: Tally did not put the child."}]


class Child(TypedDict):
    """Whether the child is present, and so counts."""

    counter: str
    id: str
    child: str
    present: bool


class ChangedChild(Child):
    """Whether the child is present now, and whether this request changed that."""

    changed: bool
    visible: WhenVisible
    value: NotRequired[NewValue]


class Listed(TypedDict):
    """One child, by its name. `since`: when the child was put."""

    child: str
    since: Since


class ListedAnonymous(TypedDict):
    """A child without a user: a browser whose user is not signed in. `since`: the start of the day (UTC) of the put."""

    anonymous: Literal[True]
    since: Since


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


class MineAnonymous(TypedDict):
    """For each id, in the order of the request, whether this browser is counted."""

    anonymous: list[Anonymous | Unreadable]


class Removed(TypedDict):
    """The id is removed, with its children. `changed`: false if there was nothing to remove."""

    counter: str
    id: str
    removed: Literal[True]
    changed: bool


def _refusal_of_children(counter: Counter) -> CallerError | None:
    """Returns why this counter has no children; None if it has."""
    return fields.refusal_unless_counts(counter, CHILDREN)


def _refusal_of_removal(counter: Counter) -> CallerError | None:
    """Returns why a service cannot remove a parent of this counter; None if it can."""
    if not counter.parent_required:  # otherwise the parents are posts, which `delete_post` removes with their texts
        return _refusal_of_children(counter)
    return InvalidInputError(f"{counter.name}: only its author deletes a {counter.prefix.lower()}.", field="counter")


def _refusal_of_callers(counter: Counter) -> CallerError | None:
    """Returns why a caller cannot be a child of this counter; None if the caller can."""
    if (refusal := _refusal_of_children(counter)) or counter.changes != "service":
        return refusal
    return ForbiddenError(f"Callers do not change {counter.name} themselves: a service does.", field="counter")


def _refusal_of_anonymous(counter: Counter) -> CallerError | None:
    """Returns why a browser whose user is not signed in cannot be a child of this counter; None if it can."""
    if (refusal := _refusal_of_callers(counter)) or counter.changes == "anyone":
        return refusal
    return ForbiddenError(f"Callers change {counter.name} only when they are signed in.", field="counter")


def _needs_to_change(counters: Sequence[Counter]) -> needs.Needs:
    """Returns the access that a change of a child needs. `Query` reads the number for an answer with `value`."""
    change = needs.to_change_child(counters) | needs.on_counts(counters, "Query")
    return change | needs.to_find_receipt_before_refusal(counters)


def _needs_to_read(counters: Sequence[Counter]) -> needs.Needs:
    return needs.on_counts(counters, "BatchGetItem")


CountersAndIds = Annotated[list[tuple[str, str]], list_of(TALLY, 100)]
_ERRORS = (NotFoundError, CounterRetiredError, ParentRemovedError)
_ACME = {"counter": "members", "id": "acme"}
_MEMBER = {**_ACME, "child": "auth0|7c20"}
_LIKE = {"counter": "likes", "id": "a91f", "child": "auth0|7c20"}
_HEART = {"counter": "hearts", "id": "article-1"}
_CHANGED = {"changed": True, "visible": "now"}
_changes = partial(operation, needs=_needs_to_change, changes_numbers=True)
_changes_child = partial(
    _changes, access=Access.WRITE, throttle=WRITES, refusal_for=_refusal_of_children, raises=_ERRORS
)
_changes_mine = partial(  # these calls have a caller: `call.caller or ""` is for the type checker
    _changes,
    access=Access.SIGNED_IN,
    throttle=WRITES,
    refusal_for=_refusal_of_callers,
    raises=(*_ERRORS, ForbiddenError),
)
_changes_anonymous = partial(
    _changes,
    access=Access.ANYONE,
    throttle=RATE_100_PER_S,
    refusal_for=_refusal_of_anonymous,
    raises=(*_ERRORS, ForbiddenError),
)


@_changes_child("PUT /counters/{counter}/{id}/child", example={**_MEMBER, "present": True, **_CHANGED})
def put_child(
    call: Call,
    *,
    counter: DeclaredCounter,
    id: Id,
    name: ChildName,
    idempotency_key: Key | None = None,
    value: IncludeValue = False,
) -> Answer[ChangedChild]:
    """Put a child, so that it counts

    If the child is present, nothing changes. The key is optional. With a key, a late retry does not put back a child
    that was removed after the first request.
    """
    return _set_child(call, "put_child", counter, id, name, idempotency_key, value, present=True)


@_changes_child("DELETE /counters/{counter}/{id}/child", example={**_MEMBER, "present": False, **_CHANGED})
def delete_child(
    call: Call,
    *,
    counter: DeclaredCounter,
    id: Id,
    name: ChildName,
    idempotency_key: Key | None = None,
    value: IncludeValue = False,
) -> Answer[ChangedChild]:
    """Remove a child, so that it does not count

    If there is no such child, nothing changes.
    """
    return _set_child(call, "delete_child", counter, id, name, idempotency_key, value, present=False)


@operation(
    "GET /counters/{counter}/{id}/child",
    access=Access.READ,
    throttle=READS,
    refusal_for=_refusal_of_children,
    needs=_needs_to_read,
    raises=[NotFoundError],
    example={**_MEMBER, "present": True},
)
def get_child(call: Call, *, counter: DeclaredCounter, id: Id, name: ChildName) -> Answer[Child]:
    """Whether a child counts"""
    return Answer(_child_body(counter, id, name, children.has_child(call, counter, id, name)))


@operation(
    "GET /counters/{counter}/{id}/children",
    access=Access.READ,
    audience_field="lists",
    throttle=RATE_100_PER_S,
    refusal_for=_refusal_of_children,
    needs=lambda counters: needs.on_counts(counters, "Query", "GetItem"),
    raises=[NotFoundError],
    example={**_ACME, "children": [{"child": "auth0|7c20", "since": 1785542401}], "cursor": None},
    names_users=True,
)
def list_children(
    call: Call,
    *,
    counter: DeclaredCounter,
    id: Id,
    limit: PageSize = fields.PAGE_SIZE_DEFAULT,
    cursor: Cursor | None = None,
) -> Answer[Children]:
    """The children that count, a page at a time

    The children are in the order of their percent-encoded names. `GET /counters/{counter}/{id}` says how many they are.
    """
    page, next_cursor = children.list_children(call, counter, id, limit, cursor)
    listed = [
        {"anonymous": True, "since": since} if name is None else {"child": name, "since": since} for name, since in page
    ]
    return Answer({"counter": counter.name, "id": id, "children": listed, "cursor": next_cursor})


@_changes_mine(
    "PUT /counters/{counter}/{id}/mine", short_route="PUT {path}", example={**_LIKE, "present": True, **_CHANGED}
)
def put_mine(
    call: Call, *, counter: DeclaredCounter, id: Id, idempotency_key: Key | None = None, value: IncludeValue = False
) -> Answer[ChangedChild]:
    """Count yourself, as with a like

    The key is optional. With a key, a late retry does not repeat a like that you have removed.
    """
    return _set_child(call, "put_mine", counter, id, call.caller or "", idempotency_key, value, present=True)


@_changes_mine(
    "DELETE /counters/{counter}/{id}/mine", short_route="DELETE {path}", example={**_LIKE, "present": False, **_CHANGED}
)
def delete_mine(
    call: Call, *, counter: DeclaredCounter, id: Id, idempotency_key: Key | None = None, value: IncludeValue = False
) -> Answer[ChangedChild]:
    """Stop counting yourself, as with an unlike

    If you are not counted, nothing changes.
    """
    return _set_child(call, "delete_mine", counter, id, call.caller or "", idempotency_key, value, present=False)


@operation(
    "GET /counters/{counter}/{id}/mine",
    access=Access.SIGNED_IN,
    throttle=READS,
    short_route="GET {path}",
    refusal_for=_refusal_of_callers,
    needs=_needs_to_read,
    raises=[NotFoundError, ForbiddenError],
    example={**_LIKE, "present": True},
)
def get_mine(call: Call, *, counter: DeclaredCounter, id: Id) -> Answer[Child]:
    """Whether you are counted"""
    caller = call.caller or ""
    return Answer(_child_body(counter, id, caller, children.has_child(call, counter, id, caller)))


@operation(
    "GET /mine",
    access=Access.SIGNED_IN,
    throttle=READS,
    refusal_for=_refusal_of_callers,
    needs=_needs_to_read,
    example={"mine": [{**_LIKE, "present": True}]},
)
def list_mine(call: Call, *, of: CountersAndIds) -> Answer[Mine]:
    """Which of these ids count you

    1 to 100 ids, in the order of the request. An id that does not exist does not count you. An id that is being removed
    counts you until your child is removed. With long ids send fewer: URL and headers may have 10 KB.
    """
    return Answer({"mine": _answer_each(call, of, _refusal_of_callers, lambda *_: call.caller or "")})


@_changes_anonymous("PUT /counters/{counter}/{id}/anonymous", example={**_HEART, "present": True, **_CHANGED})
def put_anonymous(
    call: Call,
    *,
    counter: DeclaredCounter,
    id: Id,
    secret: Secret,
    idempotency_key: Key | None = None,
    value: IncludeValue = False,
) -> Answer[ChangedAnonymous]:
    """Count a browser without sign-in

    A secret counts once for each id. Tally stores only a hash of secret and id, until a `DELETE` with the same secret.
    """
    child = anonymous.child_name(counter, id, secret)
    return _set_child(call, "put_anonymous", counter, id, child, idempotency_key, value, present=True)


@_changes_anonymous("DELETE /counters/{counter}/{id}/anonymous", example={**_HEART, "present": False, **_CHANGED})
def delete_anonymous(
    call: Call,
    *,
    counter: DeclaredCounter,
    id: Id,
    secret: Secret,
    idempotency_key: Key | None = None,
    value: IncludeValue = False,
) -> Answer[ChangedAnonymous]:
    """Stop counting a browser without sign-in

    If this secret is not counted, nothing changes.
    """
    child = anonymous.child_name(counter, id, secret)
    return _set_child(call, "delete_anonymous", counter, id, child, idempotency_key, value, present=False)


@operation(
    "GET /counters/{counter}/{id}/anonymous",
    access=Access.ANYONE,
    throttle=RATE_100_PER_S,
    refusal_for=_refusal_of_anonymous,
    needs=_needs_to_read,
    raises=[NotFoundError, ForbiddenError],
    example={**_HEART, "present": True},
)
def get_anonymous(call: Call, *, counter: DeclaredCounter, id: Id, secret: Secret) -> Answer[Anonymous]:
    """Whether this secret is counted"""
    child = anonymous.child_name(counter, id, secret)
    return Answer(_child_body(counter, id, child, children.has_child(call, counter, id, child)))


@operation(
    "GET /anonymous",
    access=Access.ANYONE,
    throttle=RATE_100_PER_S,
    refusal_for=_refusal_of_anonymous,
    needs=_needs_to_read,
    example={"anonymous": [{**_HEART, "present": True}]},
)
def list_anonymous(call: Call, *, of: CountersAndIds, secret: Secret) -> Answer[MineAnonymous]:
    """Which of these ids count the browser with this secret

    The browser has put itself without sign-in. The rules of `GET /mine` apply.
    """
    own = _answer_each(call, of, _refusal_of_anonymous, lambda counter, id_: anonymous.child_name(counter, id_, secret))
    return Answer({"anonymous": own})


@operation(
    "DELETE /counters/{counter}/{id}",
    access=Access.WRITE,
    throttle=RATE_100_PER_S,
    refusal_for=_refusal_of_removal,
    # `remove_parent` marks the parent and the shards of its tally, and lists the parent for the sweep.
    needs=lambda counters: (
        needs.on_counts(counters, "Query", "GetItem", "UpdateItem") | needs.on_ledger({"DELETED": ["PutItem"]})
    ),
    raises=[NotFoundError, CounterRetiredError],
    example={**_ACME, "removed": True, "changed": True},
)
def remove_parent(call: Call, *, counter: DeclaredCounter, id: Id) -> Answer[Removed]:
    """Remove an id with all its children

    Reads no longer find the id and its children. The children are removed in the background. The id can be used again
    15 minutes after the last child is removed, at the earliest.
    """
    changed = deletion.remove_parent(call, counter, id)
    return Answer({"counter": counter.name, "id": id, "removed": True, "changed": changed})


def _set_child(
    call: Call, operation: str, counter: Counter, id_: str, name: str, key: str | None, value: bool, *, present: bool
) -> Answer[Any]:
    """Puts or removes a child, under `key` if it is not None. `value`: whether the answer has the new number."""
    receipt_key = None
    if key is not None:
        receipt_key = ReceiptKey(operation, f"{counter.name}/{id_}", key, {"child": name}, counter.receipt_days)
    body = {"counter": counter.name, "id": id_, "present": present}  # receipts store this, and only a hash of the child
    answered, replayed = children.set_child(call, counter, id_, name, present, body, receipt_key)
    answer = {**_child_body(counter, id_, name, present), **answered}
    return Answer(tallies.with_value(call, counter, id_, answer) if value else answer, replayed=replayed)


def _child_body(counter: Counter, id_: str, encoded_name: str, present: bool) -> dict[str, Any]:
    """Returns an answer that says whether a child is present. An anonymous child is not named."""
    name = {} if encoded_name.startswith(anonymous.CHILD_NAME_PREFIX) else {"child": fields.decoded_user(encoded_name)}
    return {"counter": counter.name, "id": id_, **name, "present": present}


def _answer_each(
    call: Call,
    of: Sequence[tuple[str, str]],
    refusal_for: Callable[[Counter], CallerError | None],
    child_of: Callable[[Counter, str], str],
) -> list[dict[str, Any]]:
    """Returns for each counter and id of `of` whether the child that `child_of` names is present, or an error."""
    refused: dict[tuple[str, str], CallerError] = {}
    for name, id_ in of:
        try:
            counter = fields.declared_counter(name, "of", call.counters)
            fields.identifier(id_, "of")
            if refusal := refusal_for(counter):
                raise refusal
        except CallerError as error:
            refused[name, id_] = error
    readable = [Tally(call.counters[name], id_) for name, id_ in of if (name, id_) not in refused]
    names = {tally: child_of(*tally) for tally in readable}
    present = children.parents_with_child(call, names)

    def entry(name: str, id_: str) -> dict[str, Any]:
        if error := refused.get((name, id_)):
            return {"counter": name, "id": id_, "error": problem_document(error)}
        tally = Tally(call.counters[name], id_)
        return _child_body(*tally, names[tally], tally in present)

    return [entry(*pair) for pair in of]
