"""The command `receipt`: looks up a change of any caller by its idempotency key."""

from __future__ import annotations

import argparse
import json

from tally import fields
from tally.counting import batch, receipts
from tally.dynamo.client import Call
from tally.errors import InvalidInputError

from . import values
from .command import Command, Counters, Parser, UsageError, add_number
from .connection import Stack
from .terminal import print_json_or_line

# The operations that leave receipts: of a counter of children, of pages, and of other numbers.
CHILD_OPERATIONS = ("put_mine", "delete_mine", "put_anonymous", "delete_anonymous", "put_child", "delete_child")
PAGE_OPERATIONS = ("visit",)
NUMBER_OPERATIONS = ("increment", "set_counter", "hold", "change_hold", "put_limit", "delete_limit")
BATCH_OPERATION = "change"  # the receipt of a batch belongs to no single number
NO_RECEIPT = "no receipt: this caller (--caller) never sent the change, Tally refused it, or the receipt expired"


def _add_arguments(parser: Parser, counters: Counters) -> None:
    add_number(parser, counters)
    parser.add_argument("key", metavar="KEY", type=values.idempotency_key, help="the idempotency key of the change")
    parser.add_argument("--caller", metavar="NAME", help="the caller: the `sub` of the token (default: not signed in)")


def _check_options(args: argparse.Namespace) -> None:
    values.complete_id(args)
    if args.counter.items is not None:
        raise UsageError(fields.wrong_kind_error(args.counter).detail)
    if args.counter.unique:
        hint = "send the visit again, and the answer says if it is new"
        raise UsageError(f"{args.counter.name} counts visitors, not keys: {hint}")
    try:
        args.caller = None if args.caller is None else fields.user(args.caller, "--caller")
    except InvalidInputError as error:
        raise UsageError(error.detail) from None


def print_receipt(args: argparse.Namespace, stack: Stack) -> int:
    """Prints the receipt of a change. Returns 0 if the change was counted, 1 if there is no receipt."""
    call, key, counter = Call(stack.store, args.caller), args.key, args.counter
    target = args.id if counter.pages else f"{counter.name}/{args.id.partition('#')[0]}"  # a receipt has no period
    if counter.pages or counter.counts_children:
        targets = dict.fromkeys(PAGE_OPERATIONS if counter.pages else CHILD_OPERATIONS, target)
    else:
        targets = {**dict.fromkeys(NUMBER_OPERATIONS, target), BATCH_OPERATION: batch.RECEIPT_TARGET}
    for operation, target in targets.items():
        [receipt] = receipts.find_many(call, operation, [(target, key)])
        if receipt is not None:
            voided = {"voided": True} if receipt.is_voided else {}
            body = {"state": "counted", **voided, "operation": operation, "target": target, "key": key}
            later = ", and voided later" if receipt.is_voided else ""
            line = f"counted  {operation} {target}, once{later}; the answer was {json.dumps(receipt.body)}"
            print_json_or_line(args, {**body, "answer": receipt.body}, line)
            return 0
    print_json_or_line(args, {"state": "unknown", "key": key}, f"unknown  {NO_RECEIPT}")
    return 1


RECEIPT = Command(
    "receipt", print_receipt, _add_arguments, _check_options, json=True,
    examples="""  tally receipt plays 9f3a 5f0c2b9e-6f0a-4b63-8a37-0d1a4f0f6f11
  tally receipt likes a91f like-1 --caller 'auth0|7c20' --stack Tally-prod
""",
)  # fmt: skip
