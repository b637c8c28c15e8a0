"""`make cost` updates the figures of docs/cost.md with the calculator (cost.py)."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

from tally.cli.strangers import worst_day_usd
from tally.contract.declarations import Declarations

from . import ROOT, cost
from .cost import BILLS, DEV, PAGE, PROD, M, Month, bill, million, prices, series_writes

MILLIONS = {  # for each row of the page: a kind of cost.KINDS, and over how many ids the changes spread
    "in batches of 90": ("now, in batches", 10_000),
    "visible soon, of 10 ids": ("soon", 10),
    "likes": ("like", 10_000),
    "likes from a browser, each with a key": ("like with a key", 10_000),
    "holds, each committed": ("hold", 10_000),
    "holds, each committed at another amount": ("hold, other amount", 10_000),
    "reads of a number": ("read", 10_000),
}
GROUPS = {"HTTP API": "HTTP API", "SnapStart": "Lambda", "Logs": "CloudWatch", "Data out": "Data out"}  # by service
VOLUMES, VOLUMES_IN_PARTS = (1, 10, 100, 300), (1, 300)  # million changes a month, of 10,000 ids
STRANGERS = {  # as MILLIONS, for the table of what strangers can cost
    "changes that show now, of 10,000 ids": ("now", 10_000),
    "changes that show now, another id each": ("now", 300 * M),
    "changes that show soon, of 10,000 ids": ("soon", 10_000),
    "changes that show soon, another id each": ("soon", 300 * M),
    "likes without sign-in": ("like with a key", 300 * M),
    "reads of a number": ("read", 10_000),
    "reads of 100 numbers": ("read of 100", 10_000),
    "reads of a post of 10 KB": ("read of a post", 10_000),
}


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a table in Markdown: a column of text, then figures."""
    return "".join(f"| {' | '.join(row)} |\n" for row in (heads, ["---", *["---:"] * (len(heads) - 1)], *rows))


def _bills_table() -> str:
    """Returns the costs of stacks by group of services. A group is in GROUPS, or is the first word of a service."""
    bills: list[dict[str, float]] = []
    for month_and_stage in BILLS.values():
        bills.append(defaultdict(float))
        for service, usd in bill(*month_and_stage).items():
            bills[-1][GROUPS.get(service, service.split()[0])] += usd
    groups = [group for group in bills[0] if max(column[group] for column in bills) >= 0.005]  # half a cent
    return _table(["USD a month", *BILLS], [[name, *(f"{column[name]:,.2f}" for column in bills)] for name in groups])


def _volumes_table() -> str:
    """Returns the cost of a million changes, by the changes a month and by the way of counting."""
    ways = {
        "visible now": ("now", False), "visible soon": ("soon", False),
        "now, with thresholds": ("now", True), "soon, with thresholds": ("soon", True),
    }  # fmt: skip
    rows = [
        [
            f"{volume} million",
            *(f"${million(kind, amount=volume * M, notifies=notifies):.2f}" for kind, notifies in ways.values()),
        ]
        for volume in VOLUMES
    ]
    return _table(["a million, by changes a month", *ways], rows)


def _parts_table() -> str:
    """Returns the parts of the cost of a million changes that are visible now, for VOLUMES_IN_PARTS changes a month."""
    columns = []
    for millions in VOLUMES_IN_PARTS:
        month = Month({"now": millions * M})
        idle = bill()
        usd = {service: (amount - idle[service]) / millions for service, amount in bill(month).items()}
        used: dict[str, float] = defaultdict(float)
        cost.add_calls(month, PROD, used)
        series = series_writes(month)
        units_of_parts = {"the change's own writes": used["write"] - series, "the hours of the series": series}
        parts = {name: units * prices()["write"].usd / millions / M for name, units in units_of_parts.items()}
        quantities = [(used[name], prices()[name]) for name in ("invocation", "gb-second", "log")]
        calls_usd = sum(quantity * price.usd / price.per for quantity, price in quantities)
        parts |= {"request, function, log line": usd["HTTP API"] + usd["Data out"] + calls_usd / millions}
        parts |= {"metrics": usd["CloudWatch metrics"], "storage": usd["DynamoDB storage"]}
        columns.append(parts | {"the ledger": usd["total"] - sum(parts.values()), "total": usd["total"]})
    rows = [[name, *(f"${parts[name]:.2f}" for parts in columns)] for name in columns[0]]
    return _table(["a million, visible now", *(f"of {millions} million" for millions in VOLUMES_IN_PARTS)], rows)


def fill_page(page: str) -> str:
    """Returns the page with its tables, the cost of an idle stack, and the worst day of the declared routes."""
    # Rounded to 5 cents. 100 requests a second are 8.64 million a day.
    million_rows = [[name, f"${round(20 * million(kind, ids)) / 20:.2f}"] for name, (kind, ids) in MILLIONS.items()]
    day_rows = [[name, f"${8.64 * million(kind, ids):.0f}"] for name, (kind, ids) in STRANGERS.items()]
    tables = {
        "bills": _bills_table(),
        "millions": _table(["a million", "about"], million_rows),
        "parts": _parts_table(),
        "volumes": _volumes_table(),
        "strangers": _table(["a day at 100 requests a second", "about"], day_rows),
    }
    worst = worst_day_usd(Declarations.load(ROOT / "lambdas/counters.py"), throttle_factor=1)
    marked = r"(<!-- make cost: (\w+) -->\n\n)(?:\|.*\n)*\n?"
    page = re.sub(marked, lambda marker: f"{marker[1]}{tables[marker[2]]}\n", page)
    dev, prod = (f"${bill(stage=stage, free_tier=True)['total']:.2f}" for stage in (DEV, PROD))
    page = re.sub(r"\$[\d.]+ in `dev`, and \$[\d.]+ in `prod`", f"{dev} in `dev`, and {prod} in `prod`", page)
    return re.sub(r"(?<=cost up to \$)[\d,]+(?= a day)", f"{worst:,.0f}", page)


if __name__ == "__main__":
    PAGE.write_text(fill_page(PAGE.read_text("utf-8")), "utf-8")
