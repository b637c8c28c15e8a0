"""`tally cost`: prints a bill. It needs no AWS and no stack."""

from __future__ import annotations

import argparse
import json
import re

from ..command import Command, Counters, Parser, UsageError
from . import usage
from .prices import Bill, by_service, price_list
from .usage import DEV, PROD, Month

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
}
_EXAMPLES = """  tally cost                                       what dev and prod cost while nobody calls
  tally cost --now 50M --children 5M --soon 200M --reads 1B
  tally cost --now 300M --batch --items 1k         sent by other functions, 90 at a time, for 1,000 ids
  tally cost --worst-day                           every anonymous route at its throttle

amounts: of a month, as 1200, 50k, 5M or 1.5B
"""


def _arguments(made: Parser, counters: Counters) -> None:
    for name, about in _AMOUNTS.items():
        made.add_argument(f"--{name}", metavar="AMOUNT", type=_amount, default=0.0, help=about)
    made.add_argument("--batch", action="store_true", help="changes come from other functions, 90 at a time")
    made.add_argument("--items", metavar="AMOUNT", type=_amount, default=Month.items,
                      help="different ids, equally busy (10k); fewer are cheaper to add up")  # fmt: skip
    made.add_argument("--stage", choices=(DEV, PROD), default=PROD, help="default: prod")
    made.add_argument("--free-tier", action="store_true", help="less AWS's free tier, for an account of its own")
    made.add_argument("--worst-day", action="store_true", help="a day of strangers on every anonymous route instead")


def _check(given: argparse.Namespace) -> None:
    asked = [name for name in _AMOUNTS if getattr(given, name)]
    if given.worst_day and asked:
        raise UsageError(f"--worst-day is prod with its throttles as amounts: leave --{asked[0]} out")
    if given.items < 1:
        raise UsageError("--items must be 1 or more")


def _run(given: argparse.Namespace) -> int:
    """Print the bill, or the bills, that were asked for. Returns 0."""
    month = Month(**{name: getattr(given, name) for name in _AMOUNTS}, batch=given.batch, items=given.items)
    if given.worst_day:
        assumes = "each anonymous route at its throttle for 24 hours; a throttle is a target and no ceiling"
        used = {"one id": usage.worst_day(dear=False), "all different": usage.worst_day(dear=True)}
    elif any(getattr(given, name) for name in _AMOUNTS):
        assumes = f"evenly over 730 hours; {given.items:,.0f} ids, equally busy; 15 ms a request at 512 MB"
        used = {given.stage: usage.usage(month, usage.stages()[given.stage])}
    else:
        assumes = "nobody calls; streams with 4 shards each"
        used = {name: usage.usage(month, stage) for name, stage in usage.stages().items()}
    bills = {name: Bill(one, free_tier=given.free_tier) for name, one in used.items()}
    free = "less the free tier of an account of its own" if given.free_tier else "no free tier"
    assumes = f"prices of {price_list().region}, {price_list().date}; {free}; {assumes}"
    print(_json(bills, assumes) if given.json else f"{_table(bills)}\n\nassumes: {assumes}")
    return 0


def _json(bills: dict[str, Bill], assumes: str) -> str:
    found = {
        name: {
            "total_usd": round(bill.total, 2),
            "lines": [
                {"service": price.service, "unit": price.unit, "quantity": round(quantity, 3), "usd": round(usd, 4)}
                for price, quantity, usd in bill.lines
            ],
        }
        for name, bill in bills.items()
    }
    return json.dumps({"region": price_list().region, "date": price_list().date, "assumes": assumes, "bills": found})


def _table(bills: dict[str, Bill]) -> str:
    """The bills by service, side by side."""
    amounts = by_service(list(bills.values())) | {"total": [bill.total for bill in bills.values()]}
    rows = [["", *(f"{name}, USD" for name in bills)]]
    rows += [[service, *(f"{usd:,.2f}" for usd in each)] for service, each in amounts.items()]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    )


def _amount(value: str) -> float:
    found = _AMOUNT.fullmatch(value)
    amount = float(found[1]) * _SUFFIXES[found[2]] if found else -1
    if not 0 <= amount <= AMOUNT_MAX:
        raise argparse.ArgumentTypeError(f"{value!r} is no amount up to 1e15: give one like 1200, 50k, 5M or 1.5B")
    return amount


COST = Command(
    "cost", "what Tally costs a month, for amounts of your own, by a dated price list", _run, _arguments, _check,
    examples=_EXAMPLES, json=True, stack=False,
)  # fmt: skip
