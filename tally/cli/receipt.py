"""The command `receipt`: whether a change was counted, of any caller, by its idempotency key."""

from __future__ import annotations

import argparse
import json

from tally import fields
from tally.counter import ITEMS, Counter
from tally.counting import batch, receipts
from tally.dynamo.client import Call
from tally.errors import InvalidInputError

from . import values
from .command import Command, Counters, Parser, UsageError, add_counter
from .connection import Stack
from .terminal import print_json_or_line

OF_CHILDREN = ("put_mine", "delete_mine", "put_anonymous", "delete_anonymous", "put_child", "delete_child")
OF_PAGES = ("visit",)
OF_OTHERS = ("increment", "set_counter", "hold", "change_hold", "put_limit", "delete_limit")
BATCH_OPERATION = "change"  # its receipt names no number: one key, many changes
NOT_KNOWN = (
    "unknown  no receipt: it was never sent here by this caller (--caller), was refused, or is older than receipts live"
)


def _arguments(parser: Parser, counters: Counters) -> None:
    add_counter(parser, counters)
    parser.add_argument("id", metavar="ID", help="the id of a post, a video, …; for visits the page's URL")
    parser.add_argument("key", metavar="KEY", type=values.key, help="the idempotency key of the change")
    parser.add_argument("--caller", metavar="NAME", help="the caller: the `sub` of the token (default: not signed in)")


def _check(given: argparse.Namespace) -> None:
    values.complete_id(given)
    if given.counter.counts == ITEMS and (refusal := fields.counts_otherwise(given.counter)):
        raise UsageError(refusal.detail)
    if given.counter.unique:
        raise UsageError(f"{given.counter.name} counts visitors, not keys: send a visit again, and it says what it was")
    try:
        given.caller = None if given.caller is None else fields.user(given.caller, "--caller")
    except InvalidInputError as error:
        raise UsageError(error.detail) from None


def _receipt(given: argparse.Namespace, stack: Stack) -> int:
    """Print what became of the change. 0: it was counted, 1: it is not known."""
    call, key = Call(stack.store, given.caller), given.key
    for operation, target in _operations_with_key(given.counter, given.id):
        [found] = receipts.find_many(call, operation, [(target, key)])
        if found is not None:
            voided = {"voided": True} if found.voided else {}
            body = {"state": "counted", **voided, "operation": operation, "target": target, "key": key}
            since = ", and taken back since" if found.voided else ""
            said = f"counted  {operation} {target}, once{since}; the answer was {json.dumps(found.body)}"
            print_json_or_line(given, {**body, "answer": found.body}, said)
            return 0
    print_json_or_line(given, {"state": "unknown", "key": key}, NOT_KNOWN)
    return 1


def _operations_with_key(counter: Counter, id_: str) -> list[tuple[str, str]]:
    """The operations that change a number under a key, each with the target that its receipts name."""
    if counter.pages:
        return [(operation, id_) for operation in OF_PAGES]
    target = f"{counter.name}/{id_.partition('#')[0]}"  # without the period
    if counter.counts_children:
        return [(operation, target) for operation in OF_CHILDREN]
    return [*((operation, target) for operation in OF_OTHERS), (BATCH_OPERATION, batch.RECEIPT_TARGET)]


RECEIPT = Command(
    "receipt", _receipt, _arguments, _check, json=True,
    examples="""  tally receipt plays 9f3a 5f0c2b9e-6f0a-4b63-8a37-0d1a4f0f6f11
  tally receipt likes a91f like-1 --caller 'auth0|7c20' --stack Tally-prod
""",
)  # fmt: skip
