"""The README's session is run as it stands there, and its curl lines give the answers that it shows."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.dev import Dev

ROOT = Path(__file__).resolve().parent.parent.parent
README_PORT = "8080"
SESSION_S_MAX = 60


def session(text: str) -> list[tuple[str, str]]:
    """The commands of the `console` blocks, each with the output that is shown for it."""
    steps: list[tuple[str, str]] = []
    for block in re.findall(r"```console\n(.*?)```", text, flags=re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            steps.append((command, output.strip()))
    return steps


def run(commands: list[str]) -> list[str]:
    """Run the commands in one shell, as a reader would paste them; the output of each."""
    mark = "--- next ---"
    script = f"\necho; echo '{mark}'\n".join(commands)
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, timeout=SESSION_S_MAX, check=False, cwd=ROOT
    )
    return [output.strip() for output in done.stdout.split(mark)]


def test_the_session_gives_the_answers_that_the_readme_shows(start: Callable[..., Dev]) -> None:
    port = start().wait_until_ready().port
    steps = session((ROOT / "README.md").read_text())
    assert len(steps) > 10
    outputs = run([command.replace(f"localhost:{README_PORT}", f"localhost:{port}") for command, _ in steps])
    for (command, shown), output in zip(steps, outputs, strict=True):
        assert output == shown, command


@pytest.mark.parametrize("page", [*sorted(ROOT.glob("docs/*.md")), ROOT / "README.md"], ids=lambda page: page.name)
def test_links_between_the_docs_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), target
