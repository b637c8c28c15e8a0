"""Prints the document: `python -m openapi > openapi.json`."""

import sys

from openapi.document import text

sys.stdout.write(text(indent=1) + "\n")
