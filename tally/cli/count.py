"""The command `count`: counts one change, once per idempotency key. Invokes the functions of the stack, as a team's
service does."""

from __future__ import annotations

import argparse
import uuid
from typing import Any

from tally.builtin import VISITS
from tally.client import Tally
from tally.counter import AMOUNT_MAX, ANYONE
from tally.errors import LimitReachedError

from . import values
from .command import Command, Counters, Parser, UsageError, add_counter
from .connection import Stack
from .service import make_client
from .terminal import note, print_json_or_line

FUNCTIONS = ("increments", "visits")  # that count


def _add_arguments(parser: Parser, counters: Counters) -> None:
    add_counter(parser, counters, "the counter that counts the change")
    parser.add_argument("id", metavar="ID", help="the id of a post, a video, …; for visits the page's URL")
    about = "how much to count (default: the counter's step, or 1)"
    parser.add_argument("--amount", metavar="N", type=values.signed_number(AMOUNT_MAX), help=about)
    parser.add_argument("--visitor", metavar="NAME", help="the visitor, for a counter with unique=True")
    about = "somebody has used the amount already, so it may pass the limit, up to the debt"
    parser.add_argument("--used", action="store_true", help=about)
    about = "the idempotency key: the same key counts once (default: a new one)"
    parser.add_argument("--key", type=values.idempotency_key, help=about)


def _check_options(args: argparse.Namespace) -> None:
    has_visitor, counter = args.visitor is not None, args.counter
    if has_visitor and not counter.unique:
        raise UsageError(f"{counter.name} does not count visitors: leave out --visitor")
    if counter.unique and not has_visitor:
        raise UsageError(f"{counter.name} counts visitors: add --visitor NAME")
    if has_visitor and (args.amount is not None or args.key or args.used):
        raise UsageError("--visitor excludes --amount, --key and --used: a visitor counts 1, once, without a key")
    if args.used and not counter.debt:
        raise UsageError(f"{counter.name} has no debt, so no change may pass its limit: leave out --used")


def count(args: argparse.Namespace, stack: Stack) -> int:
    """Counts a change or a visitor, and prints the key, or whether the visitor is new. Returns 1 if a limit refuses."""
    key = args.key or str(uuid.uuid4())
    try:
        tally = make_client(args, stack, *FUNCTIONS, has_caller=args.counter.changes != ANYONE)
        if args.visitor is not None:
            visit = tally.add_visitor(args.counter.name, args.id, args.visitor)
            outcome = "counted" if visit["new"] else "was counted before, and not again"
            print_json_or_line(args, {**visit}, f"{args.counter.name} {args.id} {visit['period']}: {outcome}")
            return 0
        answer = _send(tally, args, key)
    except LimitReachedError as error:
        note(error.detail)
        return 1
    result = f", and is {answer['value']}" if "value" in answer else ", visible within seconds"
    outcome = "was counted before, and not again" if answer["replayed"] else f"counted{result}"
    outcome += ", beyond the limit" if answer.get("over") else ""
    print_json_or_line(args, {**answer, "key": key}, f"{args.counter.name} {args.id}: {outcome} (--key {key})")
    return 0


def _send(tally: Tally, args: argparse.Namespace, key: str) -> dict[str, Any]:
    counter, id_, amount = args.counter, args.id, args.amount
    if counter.name == VISITS.name and amount is None:
        return {**tally.visit(id_, idempotency_key=key)}
    if amount is None and counter.delta is None:
        amount = 1  # if the counter has a step, Tally takes the step
    return {**tally.increment(counter.name, id_, amount=amount, used=args.used, value=True, idempotency_key=key)}


COUNT = Command(
    "count", count, _add_arguments, _check_options, json=True,
    examples="""  tally count plays 9f3a --local                 prints the key: to retry, give it with --key
  tally count stock mug --amount -2 --stack Tally-prod
  tally count readers moby-dick --visitor ann --local
""",
)  # fmt: skip
