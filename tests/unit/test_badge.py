"""The badge shows a short number, and its title and label have the whole number."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

from hypothesis import given, settings
from hypothesis import strategies as st

from tally.api import badge

SVG = "{http://www.w3.org/2000/svg}"


@settings(max_examples=300)
@given(st.integers(min_value=0, max_value=10**15))
def test_a_badge_shows_the_number_or_up_to_a_tenth_less(number: int) -> None:
    text = badge.abbreviate(number)
    shown_number = float(text.rstrip("kMBT")) * {"k": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}.get(text[-1], 1)
    assert number * 0.9 < shown_number <= number or number == shown_number == 0
    assert len(text) <= 5


@given(
    st.sampled_from(["visits", "<&>\"'", "plays & likes", "</text><script>alert(1)</script>"]), st.integers(0, 10**9)
)
def test_a_badge_is_well_formed_and_has_the_whole_number(label: str, number: int) -> None:
    root = ElementTree.fromstring(badge.svg(label, number))
    title = root.find(f"{SVG}title")
    assert (root.tag, root.get("role")) == (f"{SVG}svg", "img")
    assert title is not None
    assert title.text == root.get("aria-label") == f"{label}: {number:,}"
    assert [text.text for text in root.iter(f"{SVG}text")] == [label, badge.abbreviate(number)]
    assert {element.tag.removeprefix(SVG) for element in root.iter()} == {"svg", "title", "rect", "path", "g", "text"}
