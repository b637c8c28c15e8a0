"""A page as a session: its commands, what they must print, and which of them only AWS can answer.

Commands are in `console` blocks, as in README.md: a line `$ command`, lines `> more` that continue it, then its output.
A line `…` stands for any lines, and `…` in a line for any characters. What a person types after a question is in the
output, too. A paragraph in italics before a block says why it is not played: *Only AWS: …*
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ANY = "…"
QUESTION = r"(?:\[y/N\]|to delete it:)"
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
_BLOCK = re.compile(r"^(?:\*(?P<mark>[^*]+)\*\n\n)?```(?P<kind>.*)\n(?P<body>(?:.*\n)*?)```$", re.MULTILINE)
_ONLY_AWS, _BROKEN = "Only AWS: ", "Rehearsed with a fault: "


class Step(NamedTuple):
    """A command of a page."""

    section: str
    command: str
    shown: str
    """What it must print."""
    only_aws: str
    """Why it is not played; empty if it is."""
    broken: bool
    """Whether what it deploys has a fault."""

    @property
    def title(self) -> str:
        """The first line of the command."""
        return self.command.splitlines()[0].rstrip(" \\")

    @property
    def answers(self) -> list[str]:
        """What the person types, question by question."""
        return re.findall(rf"{QUESTION} (.*)$", self.shown, re.MULTILINE)


def steps(page: Path) -> list[Step]:
    """Every command of a page. Fails for a block that is no session."""
    text = page.read_text()
    return [step for block in _BLOCK.finditer(text) for step in _steps(text, block)]


def _steps(text: str, block: re.Match[str]) -> Iterator[Step]:
    assert block["kind"] == "console", f"a block is {block['kind']}, and nobody plays it: {block['body']}"
    section = _HEADING.findall(text[: block.start()])[-1]
    mark = " ".join((block["mark"] or "").split())
    why = mark.removeprefix(_ONLY_AWS) if mark.startswith(_ONLY_AWS) else ""
    for part in re.split(r"^\$ ", block["body"], flags=re.MULTILINE)[1:]:
        first, *lines = part.splitlines()
        more = 0
        while more < len(lines) and lines[more].startswith("> "):
            more += 1
        command = "\n".join([first, *(line.removeprefix("> ") for line in lines[:more])])
        yield Step(section, command, "\n".join(lines[more:]).strip(), why, mark.startswith(_BROKEN))


def differs(printed: str, shown: str) -> str:
    """The lines of a page that an output does not have, in their order; empty if the output is the page's."""
    lines, parts = printed.strip().splitlines(), [part.splitlines() for part in _parts(shown)]
    at = 0
    for number, part in enumerate(parts):
        last = len(lines) - len(part)
        begins, ends = number == 0, number == len(parts) - 1
        places = range(max(at, last) if ends else at, (0 if begins else last) + 1)
        found = next((place for place in places if _alike(lines[place : place + len(part)], part)), None)
        if found is None:
            return "\n".join(part) or "nothing"
        at = found + len(part)
    return ""


def _parts(shown: str) -> list[str]:
    """What stands between the lines `…`."""
    return re.split(rf"^ *{ANY}(?:\n|\Z)", shown, flags=re.MULTILINE)


def _alike(printed: list[str], shown: list[str]) -> bool:
    return len(printed) == len(shown) and all(
        re.fullmatch(".*".join(map(re.escape, line.split(ANY))), other.rstrip())
        for line, other in zip(shown, printed, strict=True)
    )
