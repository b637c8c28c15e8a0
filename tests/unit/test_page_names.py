"""One page is one page, however its address is spelt."""

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

CASES = Path(__file__).with_name("page_spellings.txt")
PATHS_ALONE = Pages(drop=("*",), trailing_slash="drop", index=("index.html", "index.php", "default.aspx"))
DECLARATIONS = {"the shipped declaration": counters.PAGES, "paths alone": PATHS_ALONE, "nothing dropped": DROP_NOTHING}

QUERY = ["a=1", "", "utm_source=x", "UTM_x", "fbclid", "utm%5Fa=b", "?", "q=%26"]
QUERY += ["code=1", "state=2", "sid=1;code=2", "a;sid=1", ";", "sid%3D7", "n=/x%3Fsid%3D7%26b", "n=sid%3D7", "/x?sid=7"]


def cases() -> Iterator[tuple[str, str, str]]:
    """The name of the declaration, the page, and an address that names it."""
    declaration = page = ""
    for line in CASES.read_text(encoding="utf-8").splitlines():
        if line.startswith("= "):
            declaration = line[2:]
        elif line.startswith(" "):
            yield declaration, page, line.strip()
        elif line and not line.startswith("#"):
            page = line


def test_spellings_of_one_page_become_one_and_of_two_pages_two() -> None:
    found = [(name, page, fields.page(spelt, "url", DECLARATIONS[name])) for name, page, spelt in cases()]
    assert [(name, page, made) for name, page, made in found if made != page] == []
    assert len({(name, spelt) for name, _, spelt in cases()}) == len(found) >= 200
    assert {name for name, _, _ in found} == set(DECLARATIONS)


def test_only_what_is_left_of_an_address_counts_for_its_length() -> None:
    """An advertisement may add more than a page may have."""
    tracked = f"https://example.com/a?utm_term={'%D0%BA' * 300}&yclid={'7' * 300}"
    assert fields.page(tracked, "url", counters.PAGES) == "https://example.com/a"
    longest = "https://example.com/".ljust(fields.PAGE_BYTES_MAX, "a")
    assert fields.page(f"{longest}?utm_source=x#part", "url", counters.PAGES) == longest
    for more in (f"{longest}a", f"{longest}?a", f"{tracked}{'7' * fields.RAW_PAGE_BYTES_MAX}"):
        with pytest.raises(InvalidInputError):
            fields.page(more, "url", counters.PAGES)


@settings(max_examples=300)
@given(
    st.lists(
        st.sampled_from(
            [
                "a",
                "",
                "index.html",
                "index.php",
                ".",
                "..",
                "%69ndex.html",
                ";sid=1",
                "..;sid=1",
                "a%3BSID=1;b",
                "index.html;sid",
                "a;n=x%3Fsid%3D7",
                "..%23sid=1",
                "%26sid=1",
            ]
        ),
        max_size=5,
    ),
    st.lists(
        st.sampled_from(
            [
                "a=1",
                "",
                "utm_source=x",
                "UTM_x",
                "fbclid",
                "utm%5Fa=b",
                "?",
                "q=%26",
                "code=1",
                "state=2",
                "sid=1;code=2",
                "a;sid=1",
            ]
        ),
        max_size=5,
    ),
    st.sampled_from(list(DECLARATIONS.values())),
)
def test_a_page_names_itself(path: list[str], query: list[str], pages: Pages) -> None:
    """Whatever Tally answers as a page's URL, a caller can ask with."""
    page = fields.page(f"https://example.com/{'/'.join(path)}?{'&'.join(query)}", "url", pages)
    assert fields.page(page, "url", pages) == page


@pytest.mark.parametrize(
    "wrong",
    [
        {"drop": "utm_*"}, {"drop": ["utm_*"]}, {"drop": ("",)}, {"drop": ("utm_*x",)}, {"drop": ("a&b",)},
        {"drop": ("a+",)}, {"drop": ("a*+b",)},
        {"drop": (7,)}, {"drop": ("a=b",)}, {"index": ("a/b",)}, {"index": ("",)}, {"index": ("*",)},
        {"trailing_slash": "add"}, {"trailing_slash": True},
    ],
    ids=str,
)  # fmt: skip
def test_a_declaration_that_cannot_work_names_its_field(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=f"PAGES: {next(iter(wrong))} "):
        Pages(**wrong)
