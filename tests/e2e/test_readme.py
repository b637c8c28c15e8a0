"""Runs the `console` blocks of PAGES on `make dev`. Each command must print the output that the page shows."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable

from tests.e2e.dev import Dev
from tests.environments import ROOT
from tests.patience import PATIENCE_S

README_PORT = "8080"
END_MARK = "--- next ---"
# The parts of an output that differ from run to run.
AS_OF = re.compile(r'(?<="as_of":)\d+')
HOLD = re.compile(r'(?<="hold":")\d{10}-[\w-]{16}|(?<="expires_at":)\d+')
TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?= UTC)")
RETRY_AFTER = re.compile(r'(?<="retry_after_s":)\d+')
DAY_S = 24 * 3600
EDITS = re.compile(r"/dev/edit|\btally (check|repair|history) ")
"""The commands that edit a number by hand, and that check and repair the drift of the edit."""
# How the pages show today and the end of today.
TODAY_SHOWN, DAY_END_SHOWN = '"period":"2026-11-22"', '"resets_at":1795392000'
# In this order: the commands of a page use variables that the pages before it set.
PAGES = ("README.md", "docs/tutorial.md", "docs/transactions.md", "docs/limits.md", "docs/series.md")


def session(text: str) -> list[tuple[str, str]]:
    """Returns the commands of the `console` blocks of a page, each with the output that the page shows."""
    commands: list[tuple[str, str]] = []
    for block in re.findall(r"```console\n(.*?)```", text, flags=re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            commands.append((command, output.strip()))
    return commands


class Shell:
    """One shell, whose variables all commands share, as the commands of a reader do. `port`: of `make dev`."""

    def __init__(self, port: int) -> None:
        self._process = subprocess.Popen(
            ["bash"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=ROOT,
            env=os.environ | {"PORT": str(port)},
        )

    def run(self, command: str) -> str:
        """Returns the output of a command."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{{ {command}\n}} </dev/null; echo; echo '{END_MARK}'\n")
        process.stdin.flush()
        lines = []
        while (line := process.stdout.readline().rstrip("\n")) != END_MARK:
            assert line or process.poll() is None, f"the shell ended: {command}"
            lines.append(line)
        return "\n".join(lines).strip()

    def __enter__(self) -> Shell:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=PATIENCE_S)


def is_as_shown(output: str, shown: str) -> bool:
    """Returns whether an output is as the page shows. Times, ids of holds and seconds until a period ends may differ.
    But `as_of` must be about now, and a period must end within a day."""
    times = [int(digits) for digits in AS_OF.findall(output)]
    waits_s = [int(digits) for digits in RETRY_AFTER.findall(output)]
    shown = shown.replace(TODAY_SHOWN, f'"period":"{time.strftime("%Y-%m-%d", time.gmtime())}"')
    shown = shown.replace(DAY_END_SHOWN, f'"resets_at":{(int(time.time()) // DAY_S + 1) * DAY_S}')
    return (
        _without_times(output) == _without_times(shown)
        and all(abs(time.time() - at_s) <= PATIENCE_S for at_s in times)
        and all(1 <= wait_s <= DAY_S for wait_s in waits_s)
    )


def _without_times(text: str) -> str:
    """Returns the text with `#` in place of what may differ."""
    return TIME.sub("#", HOLD.sub("#", RETRY_AFTER.sub("#", AS_OF.sub("#", text))))


def run_until_as_shown(shell: Shell, command: str, shown: str) -> str:
    """Returns the output of a command. Repeats a command that begins with `sleep` until its output is as shown."""
    deadline_s = time.monotonic() + PATIENCE_S
    output = shell.run(command)
    while command.startswith("sleep ") and not is_as_shown(output, shown) and time.monotonic() < deadline_s:
        output = shell.run(command)
    return output


def test_the_commands_of_the_pages_print_the_output_that_the_pages_show(start: Callable[..., Dev]) -> None:
    port = start().wait_until_ready().port
    steps = [step for page in PAGES for step in session((ROOT / page).read_text())]
    if os.environ.get("ENGINE") == "dynamodb-local":  # its stream records have whole minutes, so drift takes minutes
        steps = [step for step in steps if not EDITS.search(step[0])]
    assert len(steps) > 14, "the pages have console blocks"
    with Shell(port) as shell:
        for command, shown in steps:
            output = run_until_as_shown(shell, command.replace(f"localhost:{README_PORT}", f"localhost:{port}"), shown)
            assert is_as_shown(output, shown), f"{command}\nanswers: {output}\nshown:   {shown}"
