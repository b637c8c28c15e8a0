"""Mutations: each removes a guard of the code that counts, judges, serves or stores numbers. Then a test must fail.

The files beside this one list the mutations, one file for each subpackage. `---` separates the mutations. Each is
`module | tests | name`, the text to remove, `=>`, and the text in its place. `make mutations` runs all mutations.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("tally", "lambdas", "stacks")
SCRIPTS = "tally/javascript/"
RUN_S_MAX = 3600  # a run of pytest that takes longer hangs
TIERS = ("not long", "long")
"""Mutations run the tests of `make test` first, then the tests that only `make test-all` runs."""
NO_TESTS = 5  # pytest's exit status


@dataclass(frozen=True)
class Mutation:
    """The removal of a guard. `old` becomes `new` in the module, and one of `tests` must fail.

    `module`: its path in the checkout without the suffix, such as `tally/errors`. `tests`: paths below
    `tests/`, also without the suffix.
    """

    name: str
    module: str
    old: str
    new: str
    tests: tuple[str, ...]

    @property
    def file(self) -> Path:
        """Returns the module's file, relative to the checkout."""
        return Path(f"{self.module}.{'js' if self.module.startswith(SCRIPTS) else 'py'}")

    def apply(self, root: Path) -> None:
        """Remove the guard in the checkout copy at `root`. Raises ValueError unless `old` occurs exactly once."""
        path = root / self.file
        text = path.read_text()
        if text.count(self.old) != 1:
            raise ValueError(f"{self.module}: {self.name}: its text occurs {text.count(self.old)} times")
        path.write_text(text.replace(self.old, self.new))


def mutations() -> list[Mutation]:
    """Returns every mutation, in the order of the files."""
    return [
        _parse(block)
        for file in sorted(Path(__file__).parent.glob("*.txt"))
        for block in file.read_text().split("\n---\n")
    ]


def _parse(block: str) -> Mutation:
    head, _, rest = block.strip("\n").partition("\n")
    module, tests, name = (part.strip() for part in head.split("|"))
    old, _, new = rest.partition("\n=>")
    return Mutation(name, module, old, new.removeprefix("\n"), tuple(tests.split()))


def failing_test(tests: Iterable[str], folder: Path, mutation: Mutation | None = None) -> str:
    """Copies the code into the empty `folder`, removes the guard in the copy, and runs the tests on the copy.

    Returns the first test that fails; "" if no test fails. `mutation`: None means the unchanged code, and only the
    tests of `make test`. Raises ValueError if the mutation does not apply, or if pytest does not run.
    """
    for name in (*FOLDERS, "tests/javascript"):  # tests/javascript imports the client by a relative path
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    files = filter(Path.is_file, ROOT.iterdir())
    folders = (ROOT / name for name in ("node_modules", "events"))  # the code reads them by a relative path
    for path in (*files, *folders):
        if not (folder / path.name).exists():
            (folder / path.name).symlink_to(path)
    if mutation:
        mutation.apply(folder)
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider"]
    command += ["-p", "no:xdist"] if mutation else ["--numprocesses", "auto", "--dist", "worksteal"]
    command += ["-o", f"pythonpath={folder} {folder / 'lambdas'} {ROOT}", *(f"tests/{test}.py" for test in tests)]
    for tier in TIERS if mutation else TIERS[:1]:
        if failed := _first_failure([*command, "-m", tier]):
            return f"{failed} (the long tier)" if tier == "long" else failed
    return ""


def _first_failure(command: Iterable[str]) -> str:
    """Returns the test that fails in this run of pytest; "" if no test fails."""
    process = subprocess.run(
        [*command],
        cwd=ROOT,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=RUN_S_MAX,
    )
    failed = re.search(r"^(?:FAILED|ERROR) [^\s:]*/(\S+?::.+?|\S+)(?: - .*)?$", process.stdout, re.MULTILINE)
    if process.returncode not in (0, NO_TESTS) and not failed:
        raise ValueError(f"pytest did not run: {process.stdout[-500:]}{process.stderr[-500:]}")
    return failed.group(1) if failed else ""
