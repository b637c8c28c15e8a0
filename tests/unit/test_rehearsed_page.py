"""How a page is read that is played, and when an output is the page's."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.emulator.page import differs, steps

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        ("a\nb", "a\nb"),
        ("a\nb", "…\nb"),
        ("a\nb", "a\n…"),
        ("b", "…\nb"),
        ("a\nx\ny\nc", "a\n…\nc"),
        ("k\nx\ny", "…\nx\n…"),
        ("a\nb\nb", "…\nb"),
        ("took 5 ms", "took … ms"),
        ("a\n\nb", "a\n\nb"),
        ("", ""),
        ("", "…"),
    ],
)
def test_an_output_is_the_pages(printed: str, shown: str) -> None:
    assert differs(printed, shown) == ""


@pytest.mark.parametrize(
    ("printed", "shown", "lacks"),
    [
        ("a\nb", "a", "a"),
        ("a", "a\n…\na", "a"),
        ("b\na", "a\n…", "a"),
        ("k\ny", "…\nx\n…", "x"),
        ("b\na", "…\na\n…\nb\n…", "b"),
        ("an error", "", "nothing"),
        ("took 5 s", "took … ms", "took … ms"),
    ],
)
def test_an_output_is_not_the_pages(printed: str, shown: str, lacks: str) -> None:
    assert differs(printed, shown) == lacks


def test_a_page_is_read_as_a_person_reads_it(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# Title\n\n## One\n\nText.\n\n```console\n$ first\n$ second \\\n>   more\nDelete it? [y/N] y\ndone\n```\n\n"
        "*Only AWS: it sends\nmails.*\n\n```console\n$ third\n```\n\n## Two\n\n"
        "*Rehearsed with a fault: an alarm.*\n\n```console\n$ fourth\n```\n"
    )
    found = steps(page)
    assert [(one.section, one.command) for one in found] == [
        ("One", "first"), ("One", "second \\\n  more"), ("One", "third"), ("Two", "fourth"),
    ]  # fmt: skip
    assert (found[1].answers, found[1].shown) == (["y"], "Delete it? [y/N] y\ndone")
    assert [one.only_aws for one in found] == ["", "", "it sends mails.", ""]
    assert [one.broken for one in found] == [False, False, False, True]


def test_a_block_that_nobody_plays_is_an_error(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Title\n\n```sh\nmake deploy\n```\n")
    with pytest.raises(AssertionError, match="nobody plays it"):
        steps(page)


def test_the_first_hour_breaks_one_deploy_and_leaves_little_out() -> None:
    found = steps(ROOT / "docs/first-deploy.md")
    assert sum(one.broken for one in found) == 1
    assert len([one for one in found if one.only_aws]) < len(found) / 10
