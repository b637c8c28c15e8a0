"""Which addresses are one page: the declaration in `counters.py`, beyond what RFC 3986 says of spellings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from urllib.parse import SplitResult

from .errors import ConfigurationError

KEEP, DROP = "keep", "drop"
_PARAMETER = re.compile(r"\*|[A-Za-z0-9._~\[\]-]+\*?")
_FILE = re.compile(r"[A-Za-z0-9._~-]+")


@dataclass(frozen=True)
class Pages:
    """What is no part of a page's name. A wrong field raises ConfigurationError. Without fields, nothing is dropped."""

    drop: tuple[str, ...] = ()
    """Parameters of the query, in any case. With a `*` at its end, a name stands for all that begin so."""
    trailing_slash: str = KEEP
    """`drop`: `/a/` is `/a`. `keep`: they are two pages."""
    index: tuple[str, ...] = ()
    """Files that stand for their folder. With `index.html`, `/a/index.html` is `/a/`."""

    def __post_init__(self) -> None:
        for field, form in (("drop", _PARAMETER), ("index", _FILE)):
            names = getattr(self, field)
            if not isinstance(names, tuple) or not all(isinstance(name, str) for name in names):
                raise ConfigurationError(f"PAGES: {field} is {names!r}, but must be a tuple of names")
            for name in names:
                if not form.fullmatch(name):
                    raise ConfigurationError(f"PAGES: {field} has {name!r}, but a name has the form {form.pattern}")
        if self.trailing_slash not in (KEEP, DROP):
            raise ConfigurationError(f"PAGES: trailing_slash is {self.trailing_slash!r}, but must be {KEEP} or {DROP}")

    def named(self, address: SplitResult) -> SplitResult:
        """The page's own address. `address` is normalised by RFC 3986; applied again, this changes nothing."""
        return address._replace(path=self._path(address.path), query=self._query(address.query))

    def _path(self, path: str) -> str:
        while True:  # each turn makes it shorter
            if self.trailing_slash == DROP:
                path = path.rstrip("/")
            folder, _, file = path.rpartition("/")
            if file not in self.index:
                return path or "/"
            path = f"{folder}/"

    def _query(self, query: str) -> str:
        return "&".join(parameter for parameter in query.split("&") if not self._drops(parameter)) if query else ""

    def _drops(self, parameter: str) -> bool:
        name = parameter.partition("=")[0].lower()
        names, beginnings = self._dropped
        return name in names or name.startswith(beginnings)

    @cached_property
    def _dropped(self) -> tuple[frozenset[str], tuple[str, ...]]:
        names = [name.lower() for name in self.drop]
        return frozenset(names), tuple(name[:-1] for name in names if name.endswith("*"))


AS_SPELT = Pages()
"""Nothing is dropped: RFC 3986 alone."""


def declared(counters: Mapping[str, object]) -> Pages:
    """PAGES of what `counters.py` declares. Without it nothing is dropped. Raises ConfigurationError."""
    found = counters.get("PAGES", AS_SPELT)
    if not isinstance(found, Pages):
        raise ConfigurationError("counters.py: PAGES must be a Pages(…)")
    return found
