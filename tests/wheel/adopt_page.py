"""Reads the files and commands of docs/adopt.md, in the section for teams with a CDK app."""

from __future__ import annotations

import re
from pathlib import Path

from tests.environments import ROOT

PAGE = ROOT / "docs" / "adopt.md"


def section() -> str:
    """Returns the section for teams with a CDK app."""
    match = re.search(r"^## In your own CDK app\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert match
    return match[1]


def write_files(folder: Path) -> list[str]:
    """Writes the files of the section, and returns their names."""
    files = dict(re.findall(r"^`([\w./]+)`\n\n```\w+\n(.*?)^```", section(), re.MULTILINE | re.DOTALL))
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return list(files)


def commands() -> list[str]:
    """Returns the commands of the section, in order."""
    return re.findall(r"^\$ (.*)$", section(), re.MULTILINE)
