"""Runs the files of docs/transactions.md as a team does: a function, and a program that calls it against `make dev`."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.e2e.dev import Dev, bare_environment
from tests.environments import ROOT
from tests.patience import PATIENCE_S


def test_the_program_of_the_transactions_page_sells_once(dev: Dev, tmp_path: Path) -> None:
    page = (ROOT / "docs/transactions.md").read_text().replace("localhost:8080", f"localhost:{dev.port}")
    files = dict(re.findall(r"^`(\w+\.py)`\n\n```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE))
    assert files.keys() == {"orders.py", "try_it.py"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    ran = subprocess.run(
        [sys.executable, "-W", "error", "try_it.py"],
        cwd=tmp_path,
        env=bare_environment(PYTHONPATH=str(ROOT)),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    stack = dev.call("GET", "/dev/stack").body
    assert stack["transact"]["settings"]["TALLY_MINUTE_S"] == str(stack["minute_s"])
