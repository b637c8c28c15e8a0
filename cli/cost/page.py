"""`make cost`: reads what of a stack is billed from the templates of dev and prod, and writes docs/cost.md's tables."""

from __future__ import annotations

import json
import math
import re
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from . import units, usage
from .prices import Bill, Usage, by_service, price_list
from .usage import DEV, PROD, STAGES, Month, Stage, stages

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/cost.md"
BUSINESSES = {
    "a blog": Month(soon=300e3, children=2e3, now=5e3, reads=400e3, items=300, users=500),
    "a video site": Month(now=10e6 * 365 / 12, children=6e6, reads=900e6, items=50e3, users=100e3),
    "a shop": Month(now=2e6, holds=1e6, soon=20e6, reads=30e6, items=5e3),
}
_MARKED = re.compile(r"(<!-- tally cost: ([\w-]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _usd(amount: float) -> str:
    cents = math.floor(amount * 100 + 0.5)  # half a cent is a cent
    return f"${cents / 100:,.2f}" if amount < 100 else f"${amount:,.0f}"


def _bills(corner: str, bills: dict[str, Bill]) -> str:
    """A column for each bill, a row for each service that costs a cent in one of them."""
    rows = [[service, *map(_usd, amounts)] for service, amounts in by_service(list(bills.values())).items()]
    return _table([corner, *bills], [*rows, ["**together**", *(f"**{_usd(bill.total)}**" for bill in bills.values())]])


def prices() -> str:
    """The price list."""
    rows = [
        [f"[{price.service}]({price.source})", price.unit, f"${price.usd:.10f}".rstrip("0").ljust(5, "0"),
         f"{price.per:,.0f}", "yes" if price.checked else "no"]
        for price in price_list().prices
    ]  # fmt: skip
    return _table(["service", "unit", "price", "for", "read elsewhere too"], rows)


def changes() -> str:
    """Write and read units of each change, and their price for a million."""
    found = {
        "visible now: receipt and count in one transaction": (units.NOW.writes, 0),
        f"the same in a batch of {units.BATCH} for one id": (units.packed(units.BATCH, 1), 0),
        f"the same in a batch of {units.BATCH}, all different": (units.packed(units.BATCH, units.BATCH), 0),
        "visible soon, and one of a hot key that spilled: a receipt alone": (units.SOON.writes, 0),
        "visible soon, in a batch": (units.RECEIPT_IN_TRANSACTION, 0),
        "a hold, and committing it": (units.HOLD.writes + units.COMMIT.writes, 0),
        "a hold, and its release or expiry, which leaves a receipt": (units.HOLD.writes + units.RELEASE.writes, 0),
        "a like, or another child": (units.CHILD.writes, 0),
        "its removal, which reads the child first": (units.CHILD_GONE.writes, units.CHILD_GONE.reads),
        "a read of a number, up to 16 shards": (0, units.READ),
        "which of 50 posts you like, in one request": (0, 50 * units.READ),
    }
    rows = [
        [what, f"{writes:.3g}" if writes else "", f"{reads:.3g}" if reads else "",
         _usd(Bill(Usage({"write": writes * 1e6, "read": reads * 1e6})).total)]
        for what, (writes, reads) in found.items()
    ]  # fmt: skip
    return _table(["change", "write units", "read units", "DynamoDB per million"], rows)


def million() -> str:
    """All that a million changes cost, among 300 million a month."""
    ways = {
        "visible now, by HTTP": Month(now=300e6),
        "in batches of 90": Month(now=300e6, batch=True),
        "in batches, of one id": Month(now=300e6, batch=True, items=1),
        "visible soon, by HTTP": Month(soon=300e6),
        "of 10 ids": Month(soon=300e6, items=10),
    }
    idle = usage.usage(Month())
    more = {
        name: {id_: (used - idle[id_]) / 300 for id_, used in usage.usage(one).items()} for name, one in ways.items()
    }
    return _bills("a million", {name: Bill(Usage(used)) for name, used in more.items()})


def idle() -> str:
    """What stages cost while nobody calls."""
    used = {name: usage.usage(Month(), stage) for name, stage in stages().items()}
    free = {f"{name}, less the free tier": Bill(one, free_tier=True) for name, one in used.items()}
    return _bills("a month", {name: Bill(one) for name, one in used.items()} | free)


def businesses() -> str:
    """Three businesses."""
    return _bills("a month", {name: Bill(usage.usage(month)) for name, month in BUSINESSES.items()})


def worst() -> str:
    """The day of strangers."""
    ways = {"one id": False, "all different": True}
    return _bills("a day", {name: Bill(usage.worst_day(dear=dear)) for name, dear in ways.items()})


TABLES = {made.__name__: made for made in (prices, changes, million, idle, businesses, worst)}


def written(page: str) -> str:
    """The page with every table as it is now. Raises KeyError for a marker that names no table."""
    return _MARKED.sub(lambda found: f"{found[1]}{TABLES[found[2]]()}{found[4]}", page)


def main() -> int:
    """Synthesize both stages, and write the file and the page."""
    import app
    from declarations import Declarations

    declared = Declarations.load(ROOT / "lambdas/counters.py")
    context = json.loads((ROOT / "cdk.json").read_text())["context"] | {"aws:cdk:bundling-stacks": []}
    found = {}
    for stage in (DEV, PROD):
        with tempfile.TemporaryDirectory() as folder:
            app.build({**context, "stage": stage}, folder).synth()
            template = json.loads((Path(folder) / "Tally.template.json").read_text())
        found[stage] = asdict(Stage.read(template, len(declared.counters), len(declared.readers)))
    STAGES.write_text(json.dumps(found, indent=2) + "\n")
    stages.cache_clear()
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
