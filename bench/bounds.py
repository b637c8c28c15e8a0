"""What the journal costs and how fast it is, each figure beside the one of abc542c and the bound that it must keep."""

from __future__ import annotations

from dataclasses import dataclass

BEFORE = "abc542c"  # the last version with ledger rows; its figures are quoted from issue 8


@dataclass(frozen=True)
class Bounded:
    """One figure. `before`: that of abc542c, as text; empty if nobody measured it."""

    what: str
    unit: str
    before: str
    measured: float
    bound: float
    least: bool = False
    """The bound is the least that holds, not the most."""
    full_only: bool = False
    """A quick run does not judge it: it is a time, or small numbers cost more each."""

    @property
    def held(self) -> bool:
        """Whether it keeps its bound."""
        return self.measured >= self.bound if self.least else self.measured <= self.bound

    @property
    def shown(self) -> str:
        """The figure: `8`, `3.15`, `412,000`."""
        return number(self.measured)

    @property
    def limit(self) -> str:
        """The bound: `≤ 3.2`."""
        return f"{'≥' if self.least else '≤'} {number(self.bound)}"


def number(value: float) -> str:
    """Two decimals for small numbers, none for large ones."""
    return f"{value:,.0f}" if value == int(value) or value >= 1000 else f"{value:,.2f}".rstrip("0")


def plural(number: int, noun: str) -> str:
    """`1 shard`, `16 shards`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
