"""The price list, and bills: what quantities of its units cost."""

from __future__ import annotations

import functools
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

LIST = Path(__file__).with_name("prices.toml")


class Usage(dict[str, float]):
    """Quantities by the ids of their prices; 0 of what is not there. They are averages, so they have fractions."""

    def __missing__(self, id_: str) -> float:
        return 0.0


@dataclass(frozen=True)
class Price:
    """One line of the list. `usd` is for `per` units."""

    id: str
    service: str
    unit: str
    usd: float
    per: float
    source: str
    checked: str = ""
    """Where else somebody has read this price; empty: nowhere."""
    above: tuple[tuple[float, float], ...] = ()
    """The quantity of a month from which on each price holds, ascending."""
    free: float = 0
    """The free tier of an account."""

    def of(self, quantity: float, *, free_tier: bool = False) -> float:
        """US dollars for this quantity in a month."""
        left = max(0.0, quantity - (self.free if free_tier else 0))
        steps = [(0.0, self.usd), *self.above]
        ends = [start for start, _ in steps[1:]] + [float("inf")]
        parts = ((min(left, end) - start) * usd for (start, usd), end in zip(steps, ends, strict=True) if left > start)
        return sum(parts) / self.per


class PriceList(NamedTuple):
    """All prices of one region and day, in the order in which bills show them."""

    region: str
    date: str
    prices: tuple[Price, ...]


@functools.cache
def price_list() -> PriceList:
    """The list in prices.toml."""
    read = tomllib.loads(LIST.read_text(encoding="utf-8"))
    prices = [Price(**entry | {"above": tuple(map(tuple, entry.get("above", ())))}) for entry in read["price"]]
    return PriceList(read["region"], read["date"], tuple(prices))


class Line(NamedTuple):
    """What one unit costs on a bill."""

    price: Price
    quantity: float
    usd: float


class Bill:
    """The bill for some usage. Raises KeyError for a unit that has no price."""

    def __init__(self, usage: Usage, *, free_tier: bool = False) -> None:
        prices = price_list().prices
        unknown = usage.keys() - {price.id for price in prices}
        if unknown:
            raise KeyError(f"no price for {', '.join(sorted(unknown))}")
        used = [(price, usage[price.id]) for price in prices if usage[price.id]]
        self.lines = [Line(price, quantity, price.of(quantity, free_tier=free_tier)) for price, quantity in used]
        self.total = sum(line.usd for line in self.lines)

    def of(self, service: str) -> float:
        """US dollars for one service."""
        return sum(line.usd for line in self.lines if line.price.service == service)


def by_service(bills: list[Bill]) -> dict[str, list[float]]:
    """US dollars of each bill, for each service that costs a cent in one of them."""
    services = dict.fromkeys(price.service for price in price_list().prices)
    found = {service: [bill.of(service) for bill in bills] for service in services}
    return {service: amounts for service, amounts in found.items() if max(amounts) >= 0.005}
