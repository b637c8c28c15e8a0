"""What the `counters.py` of this process declares, for the operations: `handlers.py` says which file that is.

The package knows nobody's counters by itself. A stack and a tool import what functions serve, and declare nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType

from tally import pages as rules
from tally.counter import Counter
from tally.pages import Pages

_counters: Mapping[str, Counter] = {}
_pages: Pages = rules.AS_SPELT


def by(module: ModuleType) -> None:
    """Declare what this module does. A file that says nothing of pages drops nothing from their names."""
    global _counters, _pages
    _counters, _pages = module.COUNTERS, rules.declared(vars(module))


def counters() -> Mapping[str, Counter]:
    """COUNTERS, by name."""
    return _counters


def pages() -> Pages:
    """PAGES: what is no part of a page's name."""
    return _pages
