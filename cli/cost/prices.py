"""The price list, and bills: what quantities of its units cost."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

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


@dataclass(frozen=True)
class PriceList:
    """All prices of one region and day, in the order in which bills show them."""

    region: str
    date: str
    prices: tuple[Price, ...]

    @property
    def services(self) -> list[str]:
        """The services, each once."""
        return list(dict.fromkeys(price.service for price in self.prices))


@functools.cache
def price_list() -> PriceList:
    """The list in prices.toml."""
    read = tomllib.loads(LIST.read_text(encoding="utf-8"))
    prices = [Price(**entry | {"above": tuple(map(tuple, entry.get("above", ())))}) for entry in read["price"]]
    return PriceList(read["region"], read["date"], tuple(prices))


@dataclass(frozen=True)
class Line:
    """What one unit costs on a bill."""

    price: Price
    quantity: float
    usd: float


@dataclass(frozen=True)
class Bill:
    """The bill for some usage. Raises KeyError for a unit that has no price."""

    usage: Usage
    free_tier: bool = False

    def __post_init__(self) -> None:
        unknown = self.usage.keys() - {price.id for price in price_list().prices}
        if unknown:
            raise KeyError(f"no price for {', '.join(sorted(unknown))}")

    @property
    def lines(self) -> Iterator[Line]:
        """What was used."""
        for price in price_list().prices:
            if quantity := self.usage[price.id]:
                yield Line(price, quantity, price.of(quantity, free_tier=self.free_tier))

    def of(self, service: str) -> float:
        """US dollars for one service."""
        return sum(line.usd for line in self.lines if line.price.service == service)

    @property
    def total(self) -> float:
        """US dollars for everything."""
        return sum(line.usd for line in self.lines)
