"""Tests of what comes from other stores. They begin servers, and run what docs/old-numbers.md shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tally.dynamo.client import Store
from tests.commands import Command
from tests.environments import ROOT
from tests.old_numbers import stores

PAGE = (ROOT / "docs/old-numbers.md").read_text()
RECIPES = dict(re.findall(r"^`(\w+\.\w+)`\n\n```\w+\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL))
Read = Callable[..., Path]


@pytest.fixture
def reading(tmp_path: Path) -> Read:
    """Runs a recipe of the page, with this in its environment, and with parts of its text replaced; the file that it
    writes."""

    def read(recipe: str, *replaced: tuple[str, str], **environment: str) -> Path:
        text = RECIPES[recipe]
        for old, new in replaced:
            assert old in text
            text = text.replace(old, new)
        python = sys.executable if recipe.startswith("dynamodb") else stores.python()
        command = ["sh", "-ec", text] if recipe.endswith(".sh") else [python, "-c", text]
        file = tmp_path / f"{recipe}-{len(list(tmp_path.iterdir()))}.csv"
        with file.open("wb") as out:
            subprocess.run(command, env=os.environ | environment, stdout=out, check=True)
        return file

    return read


@pytest.fixture
def command(store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(store, tmp_path, capsys)
