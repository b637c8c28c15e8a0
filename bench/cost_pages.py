"""`make cost` writes the figures of docs/cost.md again, by the calculator (cost.py)."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from tally.cli.strangers import worst_day
from tally.contract.declarations import Declarations

from . import ROOT, cost
from .cost import BILLS, PAGE, PROD, BilledStage, M, Month, bill, million, prices, series_writes

MILLIONS = {
    "visible now, by HTTP": ("now", 10_000),
    "in batches of 90": ("now, in batches", 10_000),
    "visible soon, by HTTP": ("soon", 10_000),
    "visible soon, of 10 ids": ("soon", 10),
    "likes": ("like", 10_000),
    "likes from a browser, each with a key": ("like with a key", 10_000),
    "holds, each committed": ("hold", 10_000),
    "holds, each committed at another amount": ("settled hold", 10_000),
    "reads of a number": ("read", 10_000),
}
VOLUMES = (1, 10, 100, 300)  # million changes a month, of 10,000 ids
STRANGERS = {
    "changes that are visible now, such as plays, of 10,000 ids": ("now", 10_000),
    "the same, each of another id": ("now", 300 * M),
    "changes that are visible soon, such as visits, of 10,000 ids": ("soon", 10_000),
    "the same, each of another one": ("soon", 300 * M),
    "likes without sign-in, each of another id": ("like with a key", 300 * M),
    "reads of a number": ("read", 10_000),
    "reads of 100 numbers at once": ("read of 100", 10_000),
    "reads of a post of 10 KB": ("read of a post", 10_000),
}


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """In Markdown: texts, then figures."""
    return "".join(f"| {' | '.join(row)} |\n" for row in (heads, ["---", *["---:"] * (len(heads) - 1)], *rows))


def _bills(columns: Mapping[str, tuple[Month, BilledStage, bool]]) -> str:
    bills = [bill(*column) for column in columns.values()]
    services = [service for service in bills[0] if max(one[service] for one in bills) >= 0.005]
    return _table(["USD a month", *columns], [[name, *(f"{one[name]:,.2f}" for one in bills)] for name in services])


def _by_volume() -> str:
    """What a million costs, by how many there are a month and in which way they count."""
    ways = {
        "visible now": ("now", False), "visible soon": ("soon", False),
        "now, with thresholds": ("now", True), "soon, with thresholds": ("soon", True),
    }  # fmt: skip
    rows = [
        [f"{of} million", *(f"${million(kind, amount=of * M, notifies=with_):.2f}" for kind, with_ in ways.values())]
        for of in VOLUMES
    ]
    return _table(["a million, of so many a month", *ways], rows)


def _parts() -> str:
    """What a million changes that show now are made of, by how many there are a month."""
    columns = []
    for of in VOLUMES:
        month = Month({"now": of * M})
        both = bill(month), bill()
        usd = {service: (both[0][service] - both[1][service]) / of for service in both[0]}
        call: dict[str, float] = defaultdict(float)
        cost.add_calls(month, PROD, call)
        series = series_writes(month)
        parts = {"the change's own writes": call["write"] - series, "the hours of the series": series}
        parts = {name: units * prices()["write"].usd / of / M for name, units in parts.items()}
        called = sum(
            call[name] * prices()[name].usd / prices()[name].per for name in ("invocation", "gb-second", "log")
        )
        parts |= {"request, function, log line": usd["HTTP API"] + usd["Data out"] + called / of}
        parts |= {"metrics": usd["CloudWatch metrics"], "storage": usd["DynamoDB storage"]}
        columns.append(parts | {"the ledger": usd["total"] - sum(parts.values()), "total": usd["total"]})
    rows = [[name, *(f"${parts[name]:.2f}" for parts in columns)] for name in columns[0]]
    return _table(["a million, visible now", *(f"of {of} million" for of in VOLUMES)], rows)


def fill_page(page: str) -> str:
    """The page with its tables, what its units cost, and the worst day of the counters and routes that there are."""

    def priced(row: re.Match[str]) -> str:
        usd = sum(float(row[n].strip() or 0) * prices()[name].usd for n, name in ((2, "write"), (3, "read")))
        return f"{row[1]} ${usd + 1e-9:.2f} |"  # half a cent counts

    ways = [[name, f"${round(20 * million(*of)) / 20:.2f}"] for name, of in MILLIONS.items()]
    a_day = [[name, f"${8.64 * million(*of):.0f}"] for name, of in STRANGERS.items()]
    tables = {name: _bills(columns) for name, columns in BILLS.items()} | {
        "millions": _table(["a million", "about"], ways),
        "parts": _parts(),
        "volumes": _by_volume(),
        "strangers": _table(["a day at 100 requests a second", "about"], a_day),
    }
    worst = worst_day(Declarations.load(ROOT / "lambdas/counters.py"), 1)
    page = re.sub(
        r"(<!-- make cost: (\w+) -->\n\n)(?:\|.*\n)*\n?", lambda marker: f"{marker[1]}{tables[marker[2]]}\n", page
    )
    page = re.sub(r"^(\|[^|]+\|([\d. ]*)\|([\d. ]*)\|) \$[\d.]+ \|$", priced, page, flags=re.M)
    return re.sub(r"(?<=cost up to \$)[\d,]+(?= a day)", f"{worst:,.0f}", page)


if __name__ == "__main__":
    PAGE.write_text(fill_page(PAGE.read_text("utf-8")), "utf-8")
