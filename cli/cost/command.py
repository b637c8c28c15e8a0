"""`tally cost`: prints a bill. It needs no AWS and no stack."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from . import traffic, worst_day
from .prices import Bill, price_list
from .template import DEV, PROD, Stage, stages
from .traffic import BATCH, DIRECT, HTTP, Month
from .worst_day import Attack

_AMOUNT = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)([kMB]?)")
_SUFFIXES = {"": 1, "k": 10**3, "M": 10**6, "B": 10**9}
AMOUNT_MAX = 10**15
_AMOUNTS = {
    "plays": "plays (EXACT: reads show them at once)",
    "likes": "likes",
    "visits": "visits (ROLLUP: reads show them within seconds)",
    "increments": "increments of other EXACT counters",
    "holds": "holds, each committed later",
    "reads": "reads over HTTP",
}
_EXAMPLES = """amounts: of a month, as 1200, 50k, 5M or 1.5B

examples:
  tally cost                                       what dev and prod cost while nobody calls
  tally cost --plays 50M --likes 5M --visits 200M --reads 1B
  tally cost --plays 300M --via batch --items 1k   sent by other functions, 90 at a time, about 1,000 videos
  tally cost --worst-day                           all anonymous routes at their throttles

exit status: 0 printed, 2 bad input
"""


def add(commands: Any) -> None:
    """Add the command to the command line."""
    made = commands.add_parser(
        "cost",
        help="what Tally costs a month, for amounts of your own",
        description=f"What Tally costs a month in {price_list().region}, by the price list of {price_list().date}."
        " It needs no AWS account and no stack.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for name, about in _AMOUNTS.items():
        made.add_argument(f"--{name}", metavar="AMOUNT", type=_amount, default=0.0, help=about)
    made.add_argument(
        "--via", choices=(HTTP, BATCH, DIRECT), default=HTTP,
        help="how changes arrive: over HTTP (default), or from other functions in batches of 90 or alone",
    )  # fmt: skip
    made.add_argument(
        "--items", metavar="AMOUNT", type=_amount, default=Month.items,
        help="different videos, posts, pages and counters, equally busy (10k); fewer are cheaper to add up",
    )  # fmt: skip
    made.add_argument("--users", metavar="AMOUNT", type=_amount, default=0.0, help="users who sign in with Cognito (0)")
    made.add_argument(
        "--tokens", metavar="AMOUNT", type=_amount, default=None,
        help="token requests of programs (730 if they count over HTTP: one program keeps each token for its hour)",
    )  # fmt: skip
    made.add_argument("--stage", choices=(DEV, PROD), default=PROD, help="default: prod")
    made.add_argument(
        "--cdn", metavar="SHARE", type=_share, default=None,
        help="as -c cdn=true: the share of the reads that CloudFront answers itself (badges, beacons), as 0.9",
    )  # fmt: skip
    made.add_argument("--log-sampling", metavar="SHARE", type=_share, default=1.0, help="as -c logSampling (1)")
    made.add_argument("--tracing", choices=("callers", "all", "off"), default="callers", help="as -c tracing")
    made.add_argument("--free-tier", action="store_true", help="less AWS's free tier, for an account of its own")
    made.add_argument("--worst-day", action="store_true", help="a day of strangers on every anonymous route instead")
    made.add_argument("--json", action="store_true", help="print JSON")


def run(given: argparse.Namespace) -> int:
    """Print the bill, or the bills, that were asked for. Returns 0."""
    columns, assumes = _bills(given)
    if given.json:
        print(json.dumps(_document(columns, assumes)))
        return 0
    print(*table(columns), sep="\n")
    print(f"\nassumes: {assumes}")
    return 0


def check(given: argparse.Namespace) -> str:
    """What is wrong with the combination; empty if nothing is."""
    plain = {"via": HTTP, "items": Month.items, "cdn": None, "stage": PROD, "tokens": None}
    plain |= dict.fromkeys((*_AMOUNTS, "users"), 0)
    asked = [name for name, default in plain.items() if getattr(given, name) != default]
    if given.worst_day and asked:
        return f"--worst-day is prod with its throttles as amounts: leave --{asked[0]} out"
    if given.items < 1:
        return "--items must be 1 or more"
    return ""


def _bills(given: argparse.Namespace) -> tuple[dict[str, Bill], str]:
    day = f"prices of {price_list().region}, {price_list().date}"
    free = "less the free tier of an account of its own" if given.free_tier else "no free tier"
    if given.worst_day:
        attack = Attack(log_sampling=given.log_sampling, tracing=given.tracing != "off")
        found = {"one target": worst_day.usage(attack), "all different": worst_day.usage(replace(attack, dear=True))}
        how = "all anonymous routes at their throttles for 24 hours, which are targets and not ceilings"
        return {name: Bill(used, given.free_tier) for name, used in found.items()}, f"{day}; {free}; {how}"
    month = Month(
        **{name: getattr(given, name) for name in _AMOUNTS}, via=given.via, items=given.items, users=given.users,
        tokens=given.tokens, edge=given.cdn, log_sampling=given.log_sampling,
    )  # fmt: skip
    if not any(getattr(month, name) for name in (*_AMOUNTS, "users", "tokens")):
        names = [DEV, PROD]
        assumes = f"{day}; {free}; nobody calls; streams with 4 shards each"
    else:
        names = [given.stage]
        changes = {HTTP: "over HTTP", BATCH: "in batches of 90", DIRECT: "from other functions, alone"}[given.via]
        assumes = (
            f"{day}; {free}; evenly over a month of 730 hours; changes {changes}; {quantity(month.items)} items,"
            " equally busy; 15 ms a request at 512 MB"
        )
    return {
        name: Bill(traffic.usage(month, _traced(stages()[name], given.tracing)), given.free_tier) for name in names
    }, assumes


def _traced(stage: Stage, tracing: str) -> Stage:
    return replace(stage, traces_callers=tracing != "off", traces_background=tracing == "all")


def _document(columns: Mapping[str, Bill], assumes: str) -> dict[str, Any]:
    bills = {
        name: {
            "total_usd": round(bill.total, 2),
            "lines": [
                {"service": line.price.service, "unit": line.price.unit, "quantity": round(line.quantity, 3),
                 "usd": round(line.usd, 4)}
                for line in bill.lines
            ],
        }
        for name, bill in columns.items()
    }  # fmt: skip
    return {"region": price_list().region, "date": price_list().date, "assumes": assumes, "bills": bills}


def table(columns: Mapping[str, Bill]) -> list[str]:
    """The bills by service, side by side; of a single one the quantities too."""
    rows = [["", *(["quantity"] if len(columns) == 1 else []), *(f"{name}, USD" for name in columns)]]
    for service in price_list().services:
        if any(bill.of(service) >= 0.005 for bill in columns.values()):
            amounts = [f"{bill.of(service):,.2f}" for bill in columns.values()]
            rows.append([service, *([_quantities(columns, service)] if len(columns) == 1 else []), *amounts])
    rows.append(["total", *([""] if len(columns) == 1 else []), *(f"{bill.total:,.2f}" for bill in columns.values())])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    left = 2 if len(columns) == 1 else 1
    return [
        "  ".join(cell.ljust(width) if place < left else cell.rjust(width)
                  for place, (cell, width) in enumerate(zip(row, widths, strict=True))).rstrip()
        for row in rows
    ]  # fmt: skip


def _quantities(columns: Mapping[str, Bill], service: str) -> str:
    [bill] = columns.values()
    return ", ".join(f"{quantity(line.quantity)} {line.price.unit}" for line in bill.lines
                     if line.price.service == service)  # fmt: skip


def quantity(number: float) -> str:
    """As people read it: `12`, `3.4k`, `510M`."""
    for suffix, size in reversed(_SUFFIXES.items()):
        if number >= size:
            return f"{number / size:.3g}{suffix}" if number / size < 1000 else f"{number / size:,.0f}{suffix}"
    return f"{number:.2g}"


def _amount(value: str) -> float:
    found = _AMOUNT.fullmatch(value)
    if not found:
        raise argparse.ArgumentTypeError(f"{value!r} is no amount: give one like 1200, 50k, 5M or 1.5B")
    amount = float(found[1]) * _SUFFIXES[found[2]]
    if amount > AMOUNT_MAX:
        raise argparse.ArgumentTypeError(f"{value!r} is more than {AMOUNT_MAX:.0e} a month")
    return amount


def _share(value: str) -> float:
    if not re.fullmatch(r"0|1|[01]?\.[0-9]{1,6}", value) or float(value) > 1:
        raise argparse.ArgumentTypeError(f"{value!r} is no share: give one from 0 to 1, as 0.05")
    return float(value)
