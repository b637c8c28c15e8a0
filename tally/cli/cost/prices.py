"""The price list, and the bill for some quantities of its units."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple


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
    """All prices of one region and day by their ids, in the order in which bills show them."""

    region: str
    date: str
    prices: Mapping[str, Price]


@functools.cache
def price_list() -> PriceList:
    """The list in prices.toml."""
    read = tomllib.loads(Path(__file__).with_name("prices.toml").read_text(encoding="utf-8"))
    prices = [Price(**entry | {"above": tuple(map(tuple, entry.get("above", ())))}) for entry in read["price"]]
    return PriceList(read["region"], read["date"], {price.id: price for price in prices})


def bill(used: Mapping[str, float], *, free_tier: bool = False) -> dict[str, float]:
    """US dollars by service, for quantities by the ids of their prices. Raises KeyError for a unit without a price."""
    prices = price_list().prices
    found = dict.fromkeys((price.service for price in prices.values()), 0.0)
    for id_, quantity in used.items():
        found[prices[id_].service] += prices[id_].of(quantity, free_tier=free_tier)
    return found
