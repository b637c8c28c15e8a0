"""What browsers load: the script that pages embed, and the console.

They share a function that may read no table.
"""

from pathlib import Path

import operations
from tally.api import console
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


def get_console(call: Call) -> Answer:
    """The page of the console."""
    return Answer(console.page(call.store.settings.console))


def get_console_file(call: Call, *, file: str) -> Answer:
    """A module or style sheet of the console."""
    return Answer(console.file(file))


def get_console_config(call: Call) -> Answer:
    """What the console knows of its stack."""
    return Answer(call.store.settings.console)


handler = Entry(
    {
        operations.BEACON: beacon,
        operations.GET_CONSOLE: get_console,
        operations.GET_CONSOLE_FILE: get_console_file,
        operations.GET_CONSOLE_CONFIG: get_console_config,
    }
)
