"""The script that pages embed."""

from pathlib import Path

import operations
from tally.api.entry import Answer, Entry
from tally.api.texts import Text
from tally.dynamo.client import Call

MAX_AGE_S = 3600  # a new version is everywhere within the hour
SOURCE = Path(__file__).with_name("beacon.js")


def deployed(source: str) -> str:
    """The script for browsers: without indentation, and without comments, which all have lines of their own."""
    lines = (line.strip() for line in source.splitlines())
    return "".join(f"{line}\n" for line in lines if line and not line.startswith("//"))


SCRIPT = Text(deployed(SOURCE.read_text(encoding="utf-8")), operations.BEACON.media_type, MAX_AGE_S)


def beacon(call: Call) -> Answer:
    """The script."""
    return Answer(SCRIPT)


handler = Entry({operations.BEACON: beacon})
