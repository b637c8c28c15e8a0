"""All spellings of a page's address become one canonical URL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import counters
from tally import fields
from tally.errors import ConfigurationError, InvalidInputError
from tally.pages import DROP_NOTHING, Pages

SPELLINGS = Path(__file__).with_name("page_spellings.txt")
PATHS_ALONE = Pages(drop=("*",), trailing_slash="drop", index=("index.html", "index.php", "default.aspx"))
DECLARATIONS = {"the shipped declaration": counters.PAGES, "paths alone": PATHS_ALONE, "nothing dropped": DROP_NOTHING}

# Parts of paths and queries that the rules of page addresses treat specially.
PATH = ["a", "", "index.html", "index.php", ".", "..", "%69ndex.html", ";sid=1", "..;sid=1", "a%3BSID=1;b"]
PATH += ["index.html;sid", "a;n=x%3Fsid%3D7", "..%23sid=1", "%26sid=1"]
QUERY = ["a=1", "", "utm_source=x", "UTM_x", "fbclid", "utm%5Fa=b", "?", "q=%26"]
QUERY += ["code=1", "state=2", "sid=1;code=2", "a;sid=1", ";", "sid%3D7", "n=/x%3Fsid%3D7%26b", "n=sid%3D7", "/x?sid=7"]


def cases() -> Iterator[tuple[str, str, str]]:
    """Yields the name of a declaration, a canonical URL, and an address that must become this URL."""
    declaration = canonical = ""
    for line in SPELLINGS.read_text(encoding="utf-8").splitlines():
        if line.startswith("= "):
            declaration = line[2:]
        elif line.startswith(" "):
            yield declaration, canonical, line.strip()
        elif line and not line.startswith("#"):
            canonical = line


def test_all_spellings_of_a_page_become_its_canonical_url() -> None:
    results = [(name, page, fields.page(spelling, "url", DECLARATIONS[name])) for name, page, spelling in cases()]
    assert [(name, page, result) for name, page, result in results if result != page] == []
    assert len({(name, spelling) for name, _, spelling in cases()}) == len(results) >= 200
    assert {name for name, _, _ in results} == set(DECLARATIONS)


def test_the_length_limit_holds_for_the_canonical_url() -> None:
    """The parameters of an advertisement may be longer than the longest canonical URL."""
    tracked = f"https://example.com/a?utm_term={'%D0%BA' * 300}&yclid={'7' * 300}"
    assert fields.page(tracked, "url", counters.PAGES) == "https://example.com/a"
    longest = "https://example.com/".ljust(fields.CANONICAL_URL_BYTES_MAX, "a")
    assert fields.page(f"{longest}?utm_source=x#part", "url", counters.PAGES) == longest
    for too_long in (f"{longest}a", f"{longest}?a", f"{tracked}{'7' * fields.URL_BYTES_MAX}"):
        with pytest.raises(InvalidInputError):
            fields.page(too_long, "url", counters.PAGES)


@settings(max_examples=300)
@given(
    st.lists(st.sampled_from(PATH), max_size=5),
    st.lists(st.sampled_from(QUERY), max_size=5),
    st.sampled_from(list(DECLARATIONS.values())),
)
def test_a_canonical_url_is_its_own_canonical_url(path: list[str], query: list[str], pages: Pages) -> None:
    """So a caller can ask with the URL that Tally answered."""
    page = fields.page(f"https://example.com/{'/'.join(path)}?{'&'.join(query)}", "url", pages)
    assert fields.page(page, "url", pages) == page


@pytest.mark.parametrize(
    "invalid",
    [
        {"drop": "utm_*"}, {"drop": ["utm_*"]}, {"drop": ("",)}, {"drop": ("utm_*x",)}, {"drop": ("a&b",)},
        {"drop": ("a+",)}, {"drop": ("a*+b",)},
        {"drop": (7,)}, {"drop": ("a=b",)}, {"index": ("a/b",)}, {"index": ("",)}, {"index": ("*",)},
        {"trailing_slash": "add"}, {"trailing_slash": True},
    ],
    ids=str,
)  # fmt: skip
def test_an_invalid_declaration_of_pages_is_refused_with_its_field(invalid: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=f"PAGES: {next(iter(invalid))} "):
        Pages(**invalid)
