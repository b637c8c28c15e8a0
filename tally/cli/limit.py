"""The command `limit`: shows, sets or deletes the override of an id, through Tally's Lambda functions."""

from __future__ import annotations

import argparse
import uuid

from tally import fields
from tally.counter import AMOUNT_MAX
from tally.ids import id_of

from . import values
from .command import Command, Counters, Parser, UsageError, add_counter
from .connection import Stack
from .service import make_client
from .terminal import print_json_or_line


def _add_arguments(parser: Parser, counters: Counters) -> None:
    add_counter(parser, counters, "a counter with limit_overrides")
    parser.add_argument("id", metavar="ID", help="the id whose limit it is, without a period")
    change = parser.add_mutually_exclusive_group()
    limit = values.signed_number(AMOUNT_MAX, may_be_zero=True)
    change.add_argument("limit", metavar="LIMIT", nargs="?", type=limit, help="set this limit for the id")
    change.add_argument("--declared", action="store_true", help="reset the id to the declared limit")
    parser.add_argument("--key", type=values.idempotency_key, help="the idempotency key (default: a new one)")


def _check_options(args: argparse.Namespace) -> None:
    args.id = fields.identifier(id_of(args.id), "ID")
    if not args.counter.limit_overrides:
        raise UsageError(f"{args.counter.name} is declared without limit_overrides, so all ids have one limit")
    if args.key and args.limit is None and not args.declared:
        raise UsageError("--key goes with LIMIT or --declared")


def print_limit(args: argparse.Namespace, stack: Stack) -> int:
    """Prints the limit. Returns 0."""
    tally, name, key = make_client(args, stack, "increments"), args.counter.name, args.key or str(uuid.uuid4())
    if args.declared:
        answer = tally.delete_limit(name, args.id, idempotency_key=key)
    elif args.limit is not None:
        answer = tally.put_limit(name, args.id, args.limit, idempotency_key=key)
    else:
        answer = tally.get_limit(name, args.id)
    origin = "its own" if answer["override"] else "as declared"
    print_json_or_line(args, {**answer}, f"{name} {args.id}: {answer['limit']}, {origin}")
    return 0


LIMIT = Command(
    "limit", print_limit, _add_arguments, _check_options, json=True,
    examples="""  tally limit calls 7c20 --stack Tally-prod
  tally limit calls 7c20 1000000 --stack Tally-prod
  tally limit calls 7c20 --declared --stack Tally-prod
""",
)  # fmt: skip
