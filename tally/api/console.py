"""The console: a page, its modules and its style sheets, for people who look at the numbers.

Every caller gets the same files. The page signs people in, and calls the API as any other client does.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from tally.errors import NotFoundError

from .texts import Text

MAX_AGE_S = 0  # each load asks whether a file has changed, so no page mixes modules of two versions
CONSOLE_FOLDER = Path(__file__).parents[1] / "console"
_PAGE = "index.html"
_MEDIA_TYPES = {".js": "text/javascript", ".css": "text/css"}
# uPlot's files by the names that the page loads. uPlot's own module is three times as long as its minified script.
_CHART_FILES = {"uPlot.esm.js": "uPlot.iife.min.js", "uPlot.min.css": "uPlot.min.css"}
_UPLOT_FOLDER = Path(__file__).resolve().parents[2] / "node_modules/uplot"  # `resolve`: this file may be a link
_UPLOT_PATHS = {name: f"dist/{name}" for name in _CHART_FILES.values()} | {"uPlot.LICENSE": "LICENSE"}
UPLOT_FILES = {
    name: CONSOLE_FOLDER / name if (CONSOLE_FOLDER / name).exists() else _UPLOT_FOLDER / path
    for name, path in _UPLOT_PATHS.items()
}
"""The chart library and its licence. `make setup` installs the version that package-lock.json pins. A bundle and a
wheel have the files in CONSOLE_FOLDER."""
_HEADERS = (("cross-origin-resource-policy", "same-origin"), ("referrer-policy", "no-referrer"))


def read_page(config: Mapping[str, Any]) -> Text:
    """Returns the page. The page loads only what this stack serves, and signs people in at the pool of `config`."""
    headers = (
        *_HEADERS,
        ("content-security-policy", content_security_policy(str(config["sign_in"].get("domain", "")))),
        ("cross-origin-opener-policy", "same-origin"),
    )
    return Text((CONSOLE_FOLDER / _PAGE).read_text(encoding="utf-8"), "text/html", MAX_AGE_S, headers=headers)


def content_security_policy(domain: str) -> str:
    """Returns the Content-Security-Policy. `domain`: the origin that exchanges a code for a token; "" without one."""
    return "; ".join(
        (
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            " ".join(("connect-src 'self'", domain)).strip(),
            "img-src 'self' data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    )


def read_file(name: str) -> Text:
    """Returns a module or a style sheet. Raises NotFoundError."""
    path = _files().get(name)
    if path is None:
        raise NotFoundError(f"The console has no file {name[:64]!r}.")
    text = path.read_text(encoding="utf-8")
    if name == "uPlot.esm.js":  # makes the script a module
        text += "export default uPlot;\n"
    return Text(text, _MEDIA_TYPES[path.suffix], MAX_AGE_S, headers=_HEADERS)


@cache
def _files() -> dict[str, Path]:
    """Returns the files by name. A caller's name is looked up here, and never becomes part of a path."""
    own_files = {
        path.name: path
        for path in CONSOLE_FOLDER.iterdir()
        if path.suffix in _MEDIA_TYPES and path.name not in _CHART_FILES.values()
    }
    return own_files | {name: UPLOT_FILES[source] for name, source in _CHART_FILES.items()}
