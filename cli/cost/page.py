"""Writes the tables of docs/cost.md, and what the templates of dev and prod say: `make cost`.

PYTHONPATH=lambdas python -m cli.cost.page
"""

from __future__ import annotations

import json
import math
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from . import template, traffic, units, worst_day
from .prices import Bill, Usage, price_list
from .template import BEFORE, DEV, PROD, Stage, stages
from .traffic import BATCH, Month
from .worst_day import Attack

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/cost.md"
MILLION = 1e6
BUSINESSES = {
    "a blog": Month(visits=300e3, likes=2e3, plays=5e3, reads=400e3, items=300, users=500),
    "a video site": Month(plays=10e6 * 365 / 12, likes=6e6, reads=900e6, items=50e3, users=100e3),
    "a shop": Month(increments=2e6, holds=1e6, visits=20e6, reads=30e6, items=5e3),
}
"""The video site has 10 million plays a day. The shop sells from a stock, with holds; its programs keep tokens."""
_MARKED = re.compile(r"(<!-- tally cost: ([\w-]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _usd(amount: float) -> str:
    cents = math.floor(amount * 100 + 0.5)  # half a cent is a cent
    return f"${cents / 100:,.2f}" if amount < 100 else f"${amount:,.0f}"


def _by_service(bills: Mapping[str, Bill]) -> str:
    """A column for each bill, a row for each service that costs a cent in one of them."""
    rows = [
        [service, *(_usd(bill.of(service)) for bill in bills.values())]
        for service in price_list().services
        if any(bill.of(service) >= 0.005 for bill in bills.values())
    ]
    totals = ["**together**", *(f"**{_usd(bill.total)}**" for bill in bills.values())]
    return _table(["a month", *bills], [*rows, totals])


def prices() -> str:
    """The price list."""
    rows = [
        [f"[{price.service}]({price.source})", price.unit, f"${price.usd:.10f}".rstrip("0").ljust(5, "0"),
         f"{price.per:,.0f}", "yes" if price.checked else "no"]
        for price in price_list().prices
    ]  # fmt: skip
    return _table(["service", "unit", "price", "for", "read elsewhere too"], rows)


def changes() -> str:
    """Write units of each change, and their price for a million."""
    found = {
        "`EXACT`: receipt and count in one transaction": (units.EXACT.writes, 0.0),
        f"`EXACT` in a batch of {units.BATCH} for one tally": (units.packed(units.BATCH, 1), 0.0),
        f"`EXACT` in a batch of {units.BATCH}, all different": (units.packed(units.BATCH, units.BATCH), 0.0),
        "`ROLLUP`, and `EXACT` that spilled: a receipt alone": (units.ROLLUP.writes, 0.0),
        "`ROLLUP` in a batch": (units.RECEIPT_IN_TRANSACTION, 0.0),
        "`FAST`: a plain `ADD`": (units.FAST.writes, 0.0),
        "a hold, and committing it": (units.HOLD.writes + units.COMMIT.writes, 0.0),
        "a hold, and its release or expiry, which leaves a receipt": (units.HOLD.writes + units.RELEASE.writes, 0.0),
        "like, or another child": (units.LIKE.writes, 0.0),
        "unlike, or the removal of another child: it reads the child first": (units.UNLIKE.writes, units.UNLIKE.reads),
        "a read of a tally, up to 16 shards": (0.0, units.READ),
        "which of 50 posts you like, in one request": (0.0, 50 * units.READ),
    }
    rows = [
        [what, f"{writes:.3g}" if writes else "", f"{reads:.3g}" if reads else "",
         _usd(Bill(Usage({"write": writes * MILLION, "read": reads * MILLION})).total)]
        for what, (writes, reads) in found.items()
    ]  # fmt: skip
    return _table(["change", "write units", "read units", "DynamoDB per million"], rows)


def million() -> str:
    """All that a million plays cost, among 300 million a month."""
    much = 300 * MILLION
    ways = {
        "`EXACT`, by HTTP": Month(plays=much),
        "in batches of 90": Month(plays=much, via=BATCH),
        "in batches, of one video": Month(plays=much, via=BATCH, items=1),
        "`ROLLUP`, by HTTP": Month(visits=much),
        "of 10 pages": Month(visits=much, items=10),
    }
    idle = traffic.usage(Month())
    bills = {}
    for name, month in ways.items():
        used = traffic.usage(month)
        bills[name] = Bill(Usage({id_: (quantity - idle[id_]) / 300 for id_, quantity in used.items()}))
    return _by_service(bills).replace("| a month |", "| a million |", 1)


def idle() -> str:
    """What stages cost while nobody calls."""
    names = {"before": BEFORE, "dev": DEV, "prod": PROD}
    bills = {title: Bill(traffic.usage(Month(), stages()[name])) for title, name in names.items()}
    bills |= {f"{name}, less the free tier": Bill(traffic.usage(Month(), stages()[name]), True) for name in (DEV, PROD)}
    return _by_service(bills)


def businesses() -> str:
    """Three businesses, before and now."""
    bills = {}
    for name, month in BUSINESSES.items():
        bills[f"{name}, before"] = Bill(traffic.usage(month, stages()[BEFORE]))
        bills[name] = Bill(traffic.usage(month))
    return _by_service(bills)


def worst() -> str:
    """The day, by service."""
    bills = {
        "one target": Bill(worst_day.usage(Attack())),
        "all different": Bill(worst_day.usage(Attack(dear=True))),
    }
    return _by_service(bills).replace("| a month |", "| a day |", 1)


def levers() -> str:
    """What makes the day cheaper."""
    ways = {
        "as deployed": Attack(),
        "`-c tracing=off`": Attack(tracing=False),
        "`-c logSampling=0`": Attack(log_sampling=0),
        "both": Attack(tracing=False, log_sampling=0),
        "throttles at a tenth": Attack(throttles=0.1),
        "`-c cdn=true`, strangers with 10 addresses": Attack(addresses=10),
        "with 100 addresses": Attack(addresses=100),
        "with 1,000 addresses": Attack(addresses=1000),
    }
    rows = [
        [name, *(_usd(Bill(worst_day.usage(replace(attack, dear=dear))).total) for dear in (False, True))]
        for name, attack in ways.items()
    ]
    return _table(["a day", "one target", "all different"], rows)


TABLES = {made.__name__: made for made in (prices, changes, million, idle, businesses, worst, levers)}


def written(page: str) -> str:
    """The page with every table as it is now. Raises KeyError for a marker that names no table."""
    return _MARKED.sub(lambda found: f"{found[1]}{TABLES[found[2]]()}{found[4]}", page)


def idle_metrics(tracked: int, consumers: int) -> int:
    """The custom metrics that the sweep writes every minute."""
    return units.METRICS_OF_COUNTER * tracked + units.METRICS_OF_CONSUMER * consumers + units.METRICS_OF_STACK


def main() -> int:
    """Synthesize both stages, and write the file and the page."""
    import app
    from declarations import Declarations

    declared = Declarations.load(ROOT / "lambdas/counters.py")
    context = json.loads((ROOT / "cdk.json").read_text())["context"] | {"aws:cdk:bundling-stacks": []}
    templates = {}
    for stage in (DEV, PROD):
        with tempfile.TemporaryDirectory() as folder:
            app.build({**context, "stage": stage}, folder).synth()
            templates[stage] = json.loads((Path(folder) / "Tally.template.json").read_text())
    tracked = len([counter for counter in declared.counters.values() if counter.tracked])
    metrics = idle_metrics(tracked, len(declared.consumers))
    found = {name: asdict(Stage.read(body, metrics)) for name, body in templates.items()}
    before = json.loads(template.KEPT.read_text())[BEFORE]
    template.KEPT.write_text(json.dumps({BEFORE: before, **found}, indent=2) + "\n")
    template.stages.cache_clear()
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
