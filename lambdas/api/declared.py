"""What `counters.py` declares, for the operations. It is read when the first of them asks: a file that is broken stops
no import.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from tally import pages as rules
from tally.counter import Counter
from tally.pages import Pages


def counters() -> Mapping[str, Counter]:
    """COUNTERS, by name."""
    import counters

    return counters.COUNTERS


@cache
def pages() -> Pages:
    """PAGES: what is no part of a page's name. A file that says nothing of pages drops nothing."""
    import counters

    return rules.declared(vars(counters))
