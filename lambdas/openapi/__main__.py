"""Prints the document: `python -m openapi > openapi.json`."""

import sys

from counters import COUNTERS
from openapi.document import text

sys.stdout.write(text(COUNTERS, indent=1) + "\n")
