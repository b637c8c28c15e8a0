"""The links, files, functions and subpackages that the pages name exist, and the examples of the pages work."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from counters import COUNTERS
from tally import counter
from tally.cli import status
from tally.contract.declarations import OPERATIONS
from tally.contract.document import document_json
from tally.counter import Counter
from tally.drift import checks
from tally.dynamo import items

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/*.md")), ROOT / "bench/data/README.md"]
PUBLIC_MODULES = (  # pages name the keyword arguments of these modules
    "tally.counter", "tally.items", "tally.pages", "tally.transact", "tally.client", "tally.cdk.construct",
    "tally.records",
)  # fmt: skip
# If a text in backquotes begins with one of these folders, a file or folder of this path must exist.
FOLDERS = ("bench", "docs", "events", "lambdas", "stacks", "tally", "tests")
CODE_SUFFIXES = (".py", ".js", ".ts")


def without_code(page: Path) -> str:
    """Returns the page without its code blocks, and without the line above a block that names the block's file."""
    return re.sub(r"^(?: *`[^`\n]*`\n\n)? *```.*?^ *```", "\n\n", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Returns the anchors that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_link_leads_to_a_file_and_a_heading_and_each_file_in_backquotes_exists(page: Path) -> None:
    text = without_code(page)
    for target, anchor in re.findall(r"\]\(([^)#:\s]*)(?:#([^)]*))?\)", text):
        file = page.parent / target if target else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), f"{target}#{anchor}"
    # `tally/read` and `tally/write` are scopes of a token, not files.
    for path in re.findall(rf"`((?:{'|'.join(FOLDERS)})/(?!(?:read|write)`)[\w./-]+)`", text):
        assert (ROOT / path).exists(), path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_link_whose_text_is_a_file_name_leads_to_that_file(page: Path) -> None:
    links = re.findall(r"\[(?:\S*/)?(\w[\w-]*\.md)\]\((?:[^)#]*/)?([^)#/]*)", page.read_text())
    assert [(name, file) for name, file in links if file and name != file] == []


def test_each_page_and_section_that_code_names_exists() -> None:
    folders = (*FOLDERS, "release")
    sources = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in CODE_SUFFIXES]
    named_pages = {
        link for path in sources for link in re.findall(r"\bdocs/([a-z-]+\.md)(?:#([\w-]+))?", path.read_text())
    }
    assert len(named_pages) > 10
    for page, anchor in named_pages:
        assert (ROOT / "docs" / page).exists(), page
        assert not anchor or anchor in anchors(ROOT / "docs" / page), f"{page}#{anchor}"


def test_the_list_of_pages_has_each_page_once() -> None:
    listed = re.findall(r"^\| \[([\w-]+)\]\(\1\.md\) \|", (ROOT / "docs/README.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(page.stem for page in ROOT.glob("docs/*.md") if page.stem != "README")


def test_the_section_that_status_names_for_each_check_exists() -> None:
    assert checks.SECTIONS.keys() >= status.CHECKS.keys()
    for link in checks.SECTIONS.values():
        page, _, section = link.partition("#")
        assert section in anchors(ROOT / "docs" / page), link


def names_in(module: Path) -> set[str]:
    """Returns the names that a module defines, and the methods of its classes: `count`, `RequestHandler.__call__` …"""
    names: set[str] = set()
    for node in ast.parse(module.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
            methods = [part for part in node.body if isinstance(part, ast.FunctionDef)]
            names |= {f"{node.name}.{method.name}" for method in methods}
        if isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return names


def test_each_function_in_the_chains_of_internals_exists() -> None:
    text = (ROOT / "docs/internals.md").read_text()
    steps = re.findall(r"^(\w+/[\w/]+\.py): ([\w.]+)", text, re.MULTILINE)
    assert len(steps) > 30
    for module, name in steps:
        folders = [ROOT / "tally", ROOT]
        paths = [folder / module for folder in folders if (folder / module).exists()]
        assert len(paths) == 1, module
        assert name in names_in(paths[0]), f"{module}: {name}"


def test_internals_lists_every_subpackage() -> None:
    text = (ROOT / "docs/internals.md").read_text().partition("## The subpackages")[2]
    for path in (ROOT / "tally").glob("*/__init__.py"):
        assert f"    {path.parent.name}/ " in text, path


@pytest.mark.parametrize("subpackage", ["counting", "series", "dynamo", "records"])
def test_the_names_that_the_docstring_of_a_subpackage_lists_exist(subpackage: str) -> None:
    """The docstring has a line for each module that others use: `    receipts    `count_once`, `find_many`: …`."""
    docstring = importlib.import_module(f"tally.{subpackage}").__doc__ or ""
    for name, description in re.findall(r"^    (\w+) +(`.*)$", docstring, re.M):
        module = importlib.import_module(f"tally.{subpackage}.{name}")
        assert [member for member in re.findall(r"`(\w+)`", description) if not hasattr(module, member)] == [], name


def test_every_make_target_that_a_page_or_a_handler_names_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    texts = [*(page for page in PAGES if page.name != "CHANGELOG.md"), *ROOT.glob("lambdas/**/*.py")]
    named_targets = {(name, path.name) for path in texts for name in re.findall(r"`make ([a-z-]+)", path.read_text())}
    assert {(name, file) for name, file in named_targets if name not in targets} == set()


def test_each_keyword_argument_in_backquotes_exists() -> None:
    """A page names a keyword argument of a public function (`visible="soon"`), or a query parameter (`by=day`)."""
    functions: list[Callable[..., Any]] = []
    for module in PUBLIC_MODULES:
        for value in vars(importlib.import_module(module)).values():
            if inspect.isclass(value):
                functions += [method for method in vars(value).values() if inspect.isfunction(method)]
            functions += [value] if inspect.isfunction(value) else []
    keywords = {name for function in functions for name in inspect.signature(function).parameters}
    keywords |= set(re.findall(r'"in": "query", "name": "(\w+)"', document_json(OPERATIONS, COUNTERS)))
    words = {word for page in PAGES for word in re.findall(r"`([a-z_]+)=", page.read_text())}
    # Names of Powertools, and of the element <tally-count>.
    assert words - keywords == {"event_key_jmespath", "live"}


def test_every_declaration_of_a_counter_on_a_page_is_valid() -> None:
    blocks = [
        (page.name, block)
        for page in PAGES
        for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
        if re.search(r"^[A-Z_]+ = Counter\(", block, re.M) and "…" not in block
    ]
    assert {"limits.md", "visits.md"} <= {name for name, _ in blocks}
    for _, block in blocks:
        exec(block, {**vars(counter), "__name__": "counters"})


def test_the_counters_of_the_page_on_team_tables_count_its_example_items() -> None:
    text = (ROOT / "docs/team-tables.md").read_text()
    namespace: dict[str, Any] = {}
    counters: dict[str, Counter] = {}
    for block in (block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "COUNTERS" in block):
        exec(block, namespace)
        counters |= namespace["COUNTERS"]
    order = {"PK": "CUSTOMER#ann", "SK": "ORDER#1", "status": "open", "total": 12.5}
    ticket = {"PK": "TICKET#1", "status": "open", "queue": "hr desk"}
    like = {"PK": "POST#50", "SK": "LIKE#ann"}
    contributions = {
        name: [
            contribution
            for item in (order, ticket, like)
            if counter.items and (contribution := counter.items.contribution(items.to_wire(item)))
        ]
        for name, counter in counters.items()
    }
    assert contributions == {  # `spent` has scale=2, and an id has `~20` for a space
        "post_likes": [("50", 1)], "orders": [("ann", 1)], "spent": [("ann", 1250)], "tickets": [("hr~20desk", 1)],
    }  # fmt: skip


def test_no_page_has_more_words_than_its_budget() -> None:
    """The words of code count, too. The budget of docs/runbook.md is in tests/infra/test_monitoring.py.

    tests/infra/test_contributing.py runs this test after the recipes of CONTRIBUTING.md, which add 32 words to
    docs/reference.md.
    """
    budgets = {
        "CONTRIBUTING.md": 2700,
        "README.md": 700,
        "docs/browser.md": 1280,
        "docs/cost.md": 1310,
        "docs/front-door.md": 1100,
        "docs/how-it-works.md": 1500,
        "docs/internals.md": 1630,
        "docs/limits.md": 1300,
        "docs/operate.md": 1600,
        "docs/team-tables.md": 900,
        "docs/privacy.md": 1020,
        "docs/proof.md": 1210,
        "docs/records.md": 900,
        "docs/reference.md": 3070,
        "docs/restore.md": 1100,
        "docs/series.md": 1100,
        "docs/transactions.md": 1400,
        "docs/tutorial.md": 950,
        "docs/adopt.md": 1200,
        "docs/first-deploy.md": 1100,
        "docs/functions.md": 900,
        "docs/migrate.md": 1100,
        "docs/visits.md": 1090,
    }
    words = {page: len((ROOT / page).read_text().split()) for page in budgets}
    assert {page: count for page, count in words.items() if count > budgets[page]} == {}


REPLACED_PHRASES = (
    "counts? no more", "takes? it not", "may be had", "anew", "whoever", "by now", "what stands", "stands? for",
    "held against", "made room", "journal pages?", "sets? aside", "passe[sd] over", "poison messages?",
    "ledger (has )?(not )?(begins?|begun) again", "limits? of (its|their) own(?! shards)", "limits? of an id",
    "plan of an id",
)  # fmt: skip
"""Patterns of phrases that authors must not write. docs/internals.md has a table of the words to write instead."""


def test_no_page_or_code_has_a_replaced_phrase() -> None:
    code = [path for path in (ROOT / "tally").rglob("*") if path.suffix in CODE_SUFFIXES]
    for path in (*PAGES, *code):
        # The table of words may quote the phrases. A phrase may continue in the next line, even of a comment.
        text = re.sub(r"^\| [\w, ]+ \|.*", "", path.read_text("utf-8"), flags=re.MULTILINE)
        text = re.sub(r"\s+(?:(?:#|//|\*)\s)?\s*", " ", text)
        matches = re.finditer(rf".{{0,40}}\b(?:{'|'.join(REPLACED_PHRASES)})\b", text, re.IGNORECASE)
        assert [match[0] for match in matches] == [], path
