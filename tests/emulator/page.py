"""Reads the sessions of a page: the commands, their output, and which commands only AWS can answer.

Commands are in `console` blocks, as in README.md: a line `$ command`, lines `> more` that continue it, and its output.
A line `…` matches any lines, and `…` in a line matches any characters. The answers that a person types are in the
output, too. A paragraph in italics before a block says why the block is not run: *Only AWS: …*
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ANY = "…"
QUESTION = r"(?:\[y/N\]|to delete it:)"
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
_BLOCK = re.compile(r"^(?:\*(?P<note>[^*]+)\*\n\n)?```(?P<language>.*)\n(?P<body>(?:.*\n)*?)```$", re.MULTILINE)
_ONLY_AWS, _WITH_FAULT = "Only AWS: ", "Rehearsed with a fault: "


class Step(NamedTuple):
    """A command of a page."""

    section: str
    command: str
    expected: str
    """The output that the command must print."""
    only_aws: str
    """Why the command is not run; empty if it is run."""
    has_fault: bool
    """Whether the command deploys a template with a fault."""

    @property
    def title(self) -> str:
        """Returns the first line of the command."""
        return self.command.splitlines()[0].rstrip(" \\")

    @property
    def answers(self) -> list[str]:
        """Returns what the person types after each question, in order."""
        return re.findall(rf"{QUESTION} (.*)$", self.expected, re.MULTILINE)


def read_steps(page: Path) -> list[Step]:
    """Returns every command of a page. Fails if a block is not a session."""
    text = page.read_text()
    return [step for block in _BLOCK.finditer(text) for step in _steps(text, block)]


def _steps(text: str, block: re.Match[str]) -> Iterator[Step]:
    assert block["language"] == "console", f"this block is {block['language']}, not console: {block['body']}"
    section = _HEADING.findall(text[: block.start()])[-1]
    note = " ".join((block["note"] or "").split())
    only_aws = note.removeprefix(_ONLY_AWS) if note.startswith(_ONLY_AWS) else ""
    for part in re.split(r"^\$ ", block["body"], flags=re.MULTILINE)[1:]:
        first, *lines = part.splitlines()
        continuation_lines = 0
        while continuation_lines < len(lines) and lines[continuation_lines].startswith("> "):
            continuation_lines += 1
        command = "\n".join([first, *(line.removeprefix("> ") for line in lines[:continuation_lines])])
        output = "\n".join(lines[continuation_lines:]).strip()
        yield Step(section, command, output, only_aws, has_fault=note.startswith(_WITH_FAULT))


def missing_lines(printed: str, expected: str) -> str:
    """Returns the first expected lines that the output lacks; empty if the output is as expected."""
    lines, parts = printed.strip().splitlines(), [part.splitlines() for part in _parts(expected)]
    start = 0  # the line behind the part before
    for number, part in enumerate(parts):
        last_index = len(lines) - len(part)
        most = 0 if number == 0 else last_index  # the first part begins the output
        least = max(start, last_index) if number == len(parts) - 1 else start  # the last part ends the output
        indexes = range(least, most + 1)
        index = next((index for index in indexes if _match(lines[index : index + len(part)], part)), None)
        if index is None:
            return "\n".join(part) or "nothing"  # the page shows no output
        start = index + len(part)
    return ""


def _parts(expected: str) -> list[str]:
    """Splits the expected output at the lines `…`."""
    return re.split(rf"^ *{ANY}(?:\n|\Z)", expected, flags=re.MULTILINE)


def _match(printed: list[str], expected: list[str]) -> bool:
    return len(printed) == len(expected) and all(
        re.fullmatch(".*".join(map(re.escape, line.split(ANY))), output_line.rstrip())
        for line, output_line in zip(expected, printed, strict=True)
    )
