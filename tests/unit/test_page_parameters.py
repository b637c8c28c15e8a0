"""Each parameter that is no part of a page's name, as shipped, is from a public list, or says what else it is from."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

import counters
from tally.pages import CREDENTIALS, TRACKING

FILE = Path(__file__).with_name("page_parameters.txt")
LINES = FILE.read_text(encoding="utf-8").splitlines()
SOURCES = {line.split()[2]: line.split()[1] for line in LINES if re.match("# (list|else) +[a-z]", line)}
LISTS = [name for name, kind in SOURCES.items() if kind == "list"]


def named(group: str) -> dict[str, list[str]]:
    """The names of a group, each with where it is from."""
    start = LINES.index(f"= {group}") + 1
    rows = [line.split() for line in LINES[start:]]
    return {
        row[0]: row[1:] for row in rows[: next((at for at, row in enumerate(rows) if row[:1] == ["="]), None)] if row
    }


def test_each_name_that_is_dropped_says_where_it_is_from() -> None:
    assert counters.PAGES.drop == (*TRACKING, *CREDENTIALS)
    for group, names in (("TRACKING", TRACKING), ("CREDENTIALS", CREDENTIALS)):
        found = named(group)
        assert (sorted(found), len(set(names))) == (sorted(names), len(names))
        assert {name: of for name, of in found.items() if not of or not set(of) <= SOURCES.keys()} == {}


def test_the_page_says_how_many_names_there_are() -> None:
    page = (Path(__file__).parents[2] / "docs/visits.md").read_text(encoding="utf-8")
    for group, names in (("TRACKING", TRACKING), ("CREDENTIALS", CREDENTIALS)):
        [(some, others)] = re.findall(rf"`{group}`: (`.*?`) and (\d+) others", page)
        assert len(some.split(", ")) + int(others) == len(names)


@pytest.mark.skipif("PUBLIC_LISTS" not in os.environ, reason="PUBLIC_LISTS names no folder with the lists")
def test_the_lists_have_the_names_that_are_said_to_be_of_them() -> None:
    folder = Path(os.environ["PUBLIC_LISTS"])
    texts = {path.parent.name: path.read_text(encoding="utf-8") for path in folder.glob("*/*") if path.is_file()}
    assert texts.keys() & set(LISTS), "the folder has none of them"
    for group in ("TRACKING", "CREDENTIALS"):
        for name, of in named(group).items():
            for source in texts.keys() & set(of):
                assert re.search(pattern(name), texts[source], re.IGNORECASE), f"{source} has no {name}"


def pattern(name: str) -> str:
    before = "" if name.startswith("*") else r"(?<![a-z0-9_-])"
    after = "" if name.endswith("*") else r"(?![a-z0-9_-])"
    return before + re.escape(name.strip("*")) + after
