"""The scripts that pages of other sites load: the beacon, and the client with its elements."""

from __future__ import annotations

from pathlib import Path

from tally.errors import NotFoundError

from .texts import Text

MAX_AGE_S = 3600  # every browser has a new version within the hour
BEACON_FILE = "beacon.js"
SERVED_FILES = (BEACON_FILE, "auto.js", "tally.js", "elements.js")
CLIENT_FOLDER = Path(__file__).parents[1] / "javascript"
MEDIA_TYPE = "text/javascript"


def strip_comments(source: str) -> str:
    """Returns a script without indentation, and without the lines that begin with a comment."""
    lines = (line.strip() for line in source.splitlines())
    return "".join(f"{line}\n" for line in lines if line and not line.startswith("//"))


def read_script(name: str) -> Text:
    """Returns a script as browsers get it. Raises NotFoundError."""
    if name not in SERVED_FILES:
        raise NotFoundError(f"There is no script {name[:64]!r}. The scripts are {', '.join(SERVED_FILES)}.")
    return Text(strip_comments((CLIENT_FOLDER / name).read_text(encoding="utf-8")), MEDIA_TYPE, MAX_AGE_S)
