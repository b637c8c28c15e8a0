"""Receipts: reads whether a change was counted."""

import typing
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal, NotRequired, TypedDict

from tally import fields
from tally.api import needs
from tally.api.kind import choice, list_of
from tally.api.kinds import CALLER, KEY_EXAMPLE, KEYS_IN_QUERY, RECEIPT_TARGET
from tally.api.operation import READS, Access, Answer, Call, operation
from tally.counting import receipts
from tally.errors import InvalidInputError, NotCommittedError

KeyedOperation = Literal[
    "increment", "change", "set_counter", "put_limit", "delete_limit", "put_child", "delete_child", "put_mine",
    "delete_mine", "put_anonymous", "delete_anonymous", "hold", "change_hold", "visit",
]  # fmt: skip
KEYED_OPERATIONS = typing.get_args(KeyedOperation)
"""The operations whose changes leave receipts: a test compares them with the declarations."""


class Receipt(TypedDict):
    """Whether a change was counted. `unknown`: it never arrived, Tally refused it, or its receipt has expired."""

    operation: KeyedOperation
    target: str
    key: str
    state: Literal["counted", "unknown"]
    voided: NotRequired[Annotated[Literal[True], {"description": "The change was counted, and a void took it back."}]]
    answer: NotRequired[Annotated[dict[str, Any], {"description": "The first answer, without a child's name."}]]


class Receipts(TypedDict):
    """Whether each change was counted, in the order of the request."""

    receipts: list[Receipt]


OperationOfKey = Annotated[str, choice(*KEYED_OPERATIONS, description="The operation that the key was sent with.")]
Targets = Annotated[list[str], list_of(RECEIPT_TARGET, 100)]
Keys = Annotated[list[str], KEYS_IN_QUERY]
_EXAMPLE = {"operation": "increment", "target": "plays/9f3a", "key": KEY_EXAMPLE}
_ANSWER = {"counter": "plays", "id": "9f3a", "counted": True, "visible": "now"}
_UNKNOWN_EXAMPLE = {"receipts": [{**_EXAMPLE, "state": "unknown"}]}
_finds_receipts = partial(operation, throttle=READS, needs=lambda _: needs.FIND_RECEIPTS, raises=[NotCommittedError])


@_finds_receipts(
    "GET /receipts",
    access=Access.ANYONE,
    example={"receipts": [{**_EXAMPLE, "state": "counted", "answer": _ANSWER}]},
)
def get_receipts(call: Call, *, of: OperationOfKey, target: Targets, key: Keys) -> Answer[Receipts]:
    """Whether these anonymous changes counted

    The answer has an entry for each key, up to 100, in the order of the request. Give one target, or one for each key.
    """
    return _find(call, of, target, key)


@_finds_receipts("GET /receipts/own", access=Access.SIGNED_IN, example=_UNKNOWN_EXAMPLE)
def get_own_receipts(call: Call, *, of: OperationOfKey, target: Targets, key: Keys) -> Answer[Receipts]:
    """Whether these changes of mine counted

    The rules of `GET /receipts` hold.
    """
    return _find(call, of, target, key)


@_finds_receipts("GET /receipts/any", access=Access.READ, example=_UNKNOWN_EXAMPLE)
def get_any_receipts(
    call: Call, *, of: OperationOfKey, target: Targets, key: Keys, caller: Annotated[str, CALLER] | None = None
) -> Answer[Receipts]:
    """Whether these changes of a caller counted

    The rules of `GET /receipts` hold. `caller`: who made the changes; without it, the changes are anonymous.
    """
    return _find(replace(call, caller=caller), of, target, key)


def _find(call: Call, operation: str, targets: Sequence[str], keys: Sequence[str]) -> Answer[Receipts]:
    if len(targets) not in (1, len(keys)):
        raise InvalidInputError("target must be given once, or once for each key.", field="target")
    stored_targets = []  # the targets as they are in receipts
    for target in targets:
        counter, slash, id_ = target.partition("/")
        if operation == "visit":
            stored_targets.append(fields.page(target, "target", call.pages))
        else:  # `identifier` refuses an id that no receipt can have. The target of a batch, `changes`, has no slash
            stored_targets.append(f"{counter}/{fields.identifier(id_, 'target')}" if slash else target)
    stored_targets *= len(keys) // len(targets)  # one target is for all keys
    found = receipts.find_many(call, operation, list(zip(stored_targets, keys, strict=True)))
    entries: list[dict[str, Any]] = []
    for target, key, receipt in zip(stored_targets, keys, found, strict=True):
        members: dict[str, Any] = {"state": "unknown"}
        if receipt is not None:
            members = {"state": "counted", **({"voided": True} if receipt.is_voided else {}), "answer": receipt.body}
        entries.append({"operation": operation, "target": target, "key": key, **members})
    return Answer({"receipts": entries})
