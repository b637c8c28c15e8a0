"""A web server's log: its visits, and the number of visits of each page."""

from __future__ import annotations

import gzip
import re
import zlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tally.contract.declarations import Declarations
from tally.dev.base.errors import LocalError
from tally.errors import ConfigurationError, InvalidInputError
from tally.fields import page
from tally.pages import Pages
from tally.paths import LAMBDAS

SITE = "http://kennedy.example"
_GZIP_MAGIC = b"\x1f\x8b"
# Common log format. A client of HTTP/0.9 sent no version, so the version may be missing.
_LINE = re.compile(r'\S+ \S+ \S+ \[[^\]]+\] "[A-Z]+ (/\S*)(?: HTTP/[0-9.]+)?" [0-9]{3} (?:[0-9]+|-)')


@dataclass(frozen=True)
class Visit:
    """One request of the log. `url` is the logged path on SITE; `page` is the URL as Tally normalises it."""

    line: int
    """The line's number, from 1."""
    url: str
    page: str


@dataclass(frozen=True)
class Weblog:
    """The log in a file: the file's name, the visits, and the number of lines that are not a request for a page."""

    name: str
    visits: tuple[Visit, ...]
    malformed: int

    def page_visits(self) -> Counter[str]:
        """Returns the number of visits of each page."""
        return Counter(visit.page for visit in self.visits)


def read_log(path: Path) -> Weblog:
    """Read a log, gzipped or plain. Raises LocalError if it is unreadable or has no visit."""
    try:
        raw = path.read_bytes()
        text = gzip.decompress(raw) if raw.startswith(_GZIP_MAGIC) else raw
    except (OSError, EOFError, zlib.error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise LocalError(f"the log {path} cannot be read: {reason}") from None
    try:
        pages = Declarations.load(LAMBDAS / "counters.py").pages
    except ConfigurationError as error:
        raise LocalError(str(error)) from None
    lines = text.splitlines()
    visits = tuple(visit for number, line in enumerate(lines, 1) if (visit := _visit(number, line, pages)))
    if not visits:
        raise LocalError(f"the log {path} has no request in common log format")
    return Weblog(path.name, visits, len(lines) - len(visits))


def _visit(number: int, line: bytes, pages: Pages) -> Visit | None:
    """Returns the visit in a line, or None if the line is malformed."""
    try:
        match = _LINE.fullmatch(line.decode())
        if match is None:
            return None
        url = SITE + match[1]
        return Visit(number, url, page(url, "url", pages))
    except (UnicodeDecodeError, InvalidInputError):
        return None
