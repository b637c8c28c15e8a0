"""Every mutation of `make mutations` applies to the code, and names tests that exist."""

from __future__ import annotations

from tests.mutations import ROOT, mutations


def test_the_text_of_each_mutation_is_in_its_module_exactly_once() -> None:
    texts: dict[str, str] = {}
    problems = []
    for mutation in mutations():
        text = texts.setdefault(mutation.module, (ROOT / mutation.file).read_text())
        if text.count(mutation.old) != 1 or mutation.old == mutation.new:
            problems.append(f"{mutation.module}: {mutation.name}: {text.count(mutation.old)}")
    assert problems == []


def test_each_mutation_names_tests_that_exist() -> None:
    names = {name for mutation in mutations() for name in mutation.tests}
    assert [name for name in sorted(names) if not (ROOT / "tests" / f"{name}.py").exists()] == []
