"""`make generate` has written docs/reference.md from the docstrings of the code."""

from __future__ import annotations

import pytest

from release import reference
from tally.cdk.options import Options


def test_the_page_is_what_make_generate_writes() -> None:
    assert reference.PAGE.read_text(encoding="utf-8") == reference.page(), "stale: run `make generate`"


def test_each_field_option_metric_and_problem_has_a_docstring() -> None:
    assert reference.undocumented() == []


def test_a_missing_docstring_is_reported_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def without(cls: type) -> list[tuple[str, None, str]]:
        return [("stage", None, "")] if cls is Options else []

    monkeypatch.setattr(reference, "fields_of", without)
    assert reference.undocumented() == ["Options.stage"]
