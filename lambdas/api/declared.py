"""What is no part of a page's name, as `counters.py` declares it. A file that says nothing of pages drops nothing."""

from __future__ import annotations

import counters
from tally import pages

PAGES = pages.declared(vars(counters))
