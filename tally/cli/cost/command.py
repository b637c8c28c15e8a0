"""`tally cost`: prints what a month costs. It needs no AWS and no stack."""

from __future__ import annotations

import argparse
import re

from ..command import Command, Counters, Parser, UsageError
from .prices import bill, price_list
from .units import STAGES
from .usage import Month, usage

AMOUNT_MAX = 10**15
_AMOUNT = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)([kMB]?)")
_SUFFIXES = {"": 1, "k": 10**3, "M": 10**6, "B": 10**9}
_AMOUNTS = {
    "now": 'changes of counters that are visible "now", such as plays',
    "soon": 'changes of counters that are visible "soon", such as visits',
    "children": "likes, and other children",
    "holds": "holds, each committed later",
    "reads": "reads over HTTP",
    "users": "users who sign in with Cognito",
    "items": "different ids, equally busy (10k); fewer are cheaper to add up",
}


def _arguments(made: Parser, counters: Counters) -> None:
    for name, about in _AMOUNTS.items():
        default = Month._field_defaults[name]
        made.add_argument(f"--{name}", metavar="AMOUNT", type=_amount, default=default, help=about)
    made.add_argument("--batch", action="store_true", help="changes come from other functions, 90 at a time")
    made.add_argument("--free-tier", action="store_true", help="less AWS's free tier, for an account of its own")


def _amount(value: str) -> float:
    found = _AMOUNT.fullmatch(value)
    amount = float(found[1]) * _SUFFIXES[found[2]] if found else -1
    if not 0 <= amount <= AMOUNT_MAX:
        raise argparse.ArgumentTypeError(f"{value!r} is no amount up to 1e15: give one like 1200, 50k, 5M or 1.5B")
    return amount


def _check(given: argparse.Namespace) -> None:
    if given.items < 1:
        raise UsageError("--items must be 1 or more")


def _run(given: argparse.Namespace) -> int:
    """Print the bills of dev and prod, by service. Returns 0."""
    month = Month(**{name: getattr(given, name) for name in _AMOUNTS}, batch=given.batch)
    bills = {name: bill(usage(month, stage), free_tier=given.free_tier) for name, stage in STAGES.items()}
    for services in bills.values():
        services["total"] = sum(services.values())
    listed, calls = price_list(), month.changed or month.reads
    assumes = (
        f"prices of {listed.region}, {listed.date}; {'less the' if given.free_tier else 'no'} free tier",
        f"evenly over a month; {month.items:,.0f} ids, equally busy" if calls else "nobody calls",
        "15 ms a request at 512 MB; 4 shards a stream at first",
    )
    print(f"{'USD a month':24}{''.join(f'{name:>12}' for name in bills)}")
    for service in bills["prod"]:
        if max(each[service] for each in bills.values()) >= 0.005:
            print(f"{service:24}{''.join(f'{each[service]:12,.2f}' for each in bills.values())}")
    print("\nassumes: " + ";\n         ".join(assumes))
    return 0


COST = Command(
    "cost", "what Tally costs a month, for amounts of your own, by a dated price list", _run, _arguments,
    _check, stack=False,
    examples="""  tally cost                                       what dev and prod cost while nobody calls
  tally cost --now 50M --children 5M --soon 200M --reads 1B
  tally cost --now 300M --batch --items 1k         sent by other functions, 90 at a time, for 1,000 ids

amounts: of a month, as 1200, 50k, 5M or 1.5B
""",
)  # fmt: skip
