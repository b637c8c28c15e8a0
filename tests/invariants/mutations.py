"""Takes each guard of the counting core away, one at a time, and shows that a test notices.

    python -m tests.invariants.mutations [part of "module: name"]

Each mutation is a replacement in a copy of `lambdas/`; the checkout stays as it is. Not part of `make test`: it takes
about ten minutes. Exits with 1 if a mutation survives.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RUN_S_MAX = 300


@dataclass(frozen=True)
class Mutation:
    """One guard taken away: `old` becomes `new` in `lambdas/tally/<module>.py`; `tests` must fail."""

    name: str
    module: str
    old: str
    new: str
    tests: str


def mutations() -> list[Mutation]:
    """Those listed in mutations.txt: `module | tests | name`, then the text that goes, `=>`, and what comes for it."""
    found = []
    for block in Path(__file__).with_suffix(".txt").read_text().split("\n---\n"):
        head, _, rest = block.strip("\n").partition("\n")
        module, tests, name = (part.strip() for part in head.split("|"))
        old, _, new = rest.partition("\n=>")
        found.append(Mutation(name, module, old, new.removeprefix("\n"), tests))
    return found


def failing_test(mutation: Mutation, copy: Path) -> str:
    """The first test that fails with the guard gone; empty if none does. Raises ValueError if it does not apply."""
    shutil.copytree(ROOT / "lambdas", copy, ignore=shutil.ignore_patterns("__pycache__"))
    file = copy / "tally" / f"{mutation.module}.py"
    text = file.read_text()
    if text.count(mutation.old) != 1:
        raise ValueError(f"{mutation.name}: stands {text.count(mutation.old)} times in {mutation.module}.py")
    file.write_text(text.replace(mutation.old, mutation.new))
    files = [f"tests/{test}.py" for test in mutation.tests.split()]
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider"]
    ran = subprocess.run(
        [*command, "-o", f"pythonpath={ROOT} {copy}", *files],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=RUN_S_MAX,
    )
    failed = re.search(r"^(?:FAILED|ERROR) [^\s:]*/(\S+?::.+?|\S+)(?: - .*)?$", ran.stdout, re.MULTILINE)
    if ran.returncode and not failed:
        raise ValueError(f"{mutation.name}: pytest did not run: {ran.stdout[-500:]}{ran.stderr[-500:]}")
    return failed.group(1) if failed else ""


def main(part: str) -> int:
    """Run those whose name holds `part`; the number of survivors."""
    survivors = 0
    for mutation in mutations():
        if part not in f"{mutation.module}: {mutation.name}":
            continue
        with tempfile.TemporaryDirectory() as folder:
            test = failing_test(mutation, Path(folder) / "lambdas")
        survivors += not test
        print(f"{'caught  ' if test else 'SURVIVED'} {mutation.module}: {mutation.name}\n         {test}", flush=True)
    return survivors


if __name__ == "__main__":
    sys.exit(bool(main(" ".join(sys.argv[1:]))))
