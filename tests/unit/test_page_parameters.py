"""Each parameter that the shipped PAGES drops is from a public list, or page_parameters.txt names another source."""

from __future__ import annotations

import itertools
import os
import re
from pathlib import Path

import pytest

import counters
from tally.pages import CREDENTIALS, TRACKING

FILE = Path(__file__).with_name("page_parameters.txt")
LINES = FILE.read_text(encoding="utf-8").splitlines()
# Whether each source is a public list (`list`) or another source (`else`), by its name.
SOURCES = {line.split()[2]: line.split()[1] for line in LINES if re.match("# (list|else) +[a-z]", line)}
LISTS = [name for name, kind in SOURCES.items() if kind == "list"]


def sources_of_group(group: str) -> dict[str, list[str]]:
    """Returns the sources of each name of a group."""
    start = LINES.index(f"= {group}") + 1
    rows = itertools.takewhile(lambda row: row[:1] != ["="], (line.split() for line in LINES[start:]))
    return {row[0]: row[1:] for row in rows if row}


def test_each_dropped_name_has_a_known_source() -> None:
    assert counters.PAGES.drop == (*TRACKING, *CREDENTIALS)
    for group, names in (("TRACKING", TRACKING), ("CREDENTIALS", CREDENTIALS)):
        sources = sources_of_group(group)
        assert (sorted(sources), len(set(names))) == (sorted(names), len(names))
        assert {name: cited for name, cited in sources.items() if not cited or not set(cited) <= SOURCES.keys()} == {}


def test_the_page_names_some_parameters_and_the_number_of_the_others() -> None:
    page = (Path(__file__).parents[2] / "docs/visits.md").read_text(encoding="utf-8")
    for group, names in (("TRACKING", TRACKING), ("CREDENTIALS", CREDENTIALS)):
        [(examples, others)] = re.findall(rf"`{group}`: (`.*?`) and (\d+) others", page)
        assert len(examples.split(", ")) + int(others) == len(names)


@pytest.mark.skipif("PUBLIC_LISTS" not in os.environ, reason="PUBLIC_LISTS names no folder with the lists")
def test_each_public_list_has_the_names_that_cite_it() -> None:
    folder = Path(os.environ["PUBLIC_LISTS"])
    texts = {path.parent.name: path.read_text(encoding="utf-8") for path in folder.glob("*/*") if path.is_file()}
    assert texts.keys() & set(LISTS), "the folder has no list that is cited"
    for group in ("TRACKING", "CREDENTIALS"):
        for name, cited in sources_of_group(group).items():
            for source in texts.keys() & set(cited):
                assert re.search(pattern_of(name), texts[source], re.IGNORECASE), f"{source} has no {name}"


def pattern_of(name: str) -> str:
    """Returns the pattern of a dropped name as a whole word. `*` at an end of the name matches any continuation."""
    before = "" if name.startswith("*") else r"(?<![a-z0-9_-])"
    after = "" if name.endswith("*") else r"(?![a-z0-9_-])"
    return before + re.escape(name.strip("*")) + after
