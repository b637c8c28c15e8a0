"""docs/reference.md is what the code declares."""

from __future__ import annotations

import pytest

from release import reference
from tally.cdk.options import Options


def test_the_page_is_made_of_the_declarations_as_they_are() -> None:
    assert reference.PAGE.read_text(encoding="utf-8") == reference.page(), "stale: run `make generate`"


def test_each_field_option_metric_and_problem_has_a_docstring() -> None:
    assert reference.undocumented() == []


def test_a_docstring_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def without(cls: type) -> list[tuple[str, None, str]]:
        return [("stage", None, "")] if cls is Options else []

    monkeypatch.setattr(reference, "fields_of", without)
    assert reference.undocumented() == ["Options.stage"]
