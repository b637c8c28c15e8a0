"""`make wheel`: the distribution `tallystick`, laid out in a temporary folder from the files that git knows.

In the wheel nothing but `tally` is at the top. A checkout's files are in three places below it:

    tally/         lambdas/tally as it is: the core and the typed client; and `cdk`, the construct
    tally/_rooms/  the other rooms of the house as modules, their imports rewritten
    tally/_home/   what is read or deployed, where a checkout has it (lambdas/home.py): the sources of the functions and
                   their packages, what browsers load, `cdk.json`, and the template that `tally dev` reads

Uncommitted changes are in it. What git ignores never is.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from dev.base.errors import LocalError
from dev.stack import synth

from .rewriting import RewriteError, rewritten

ROOT = Path(__file__).resolve().parents[1]
UPLOT = ("dist/uPlot.iife.min.js", "dist/uPlot.min.css", "LICENSE")
ROOMS = ("stacks/", "cli/", "dev/", "lambdas/api/", "lambdas/operations/")
ROOM_FILES = ("lambdas/counters.py", "lambdas/declarations.py", "lambdas/home.py")
CORE = "lambdas/tally/"
COUNTERS = "lambdas/counters.py"  # a team brings its own
DATA = ("lambdas/", "clients/js/")
DATA_FILES = ("cdk.json",)
NOT_DATA = ("clients/js/test/", COUNTERS)
PACKAGING = ("pyproject.toml", "README.md", "LICENSE")
BUILD_S_MAX = 300


class BuildError(Exception):
    """The wheel cannot be built. The message is one line."""


def exported(target: Path) -> list[str]:
    """Copy the files that git knows or would know, as they are now, and uPlot. Their paths."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if run.returncode:
        raise BuildError(f"git does not list the files of {ROOT}: {' '.join(run.stderr.split())}")
    paths = sorted({path for path in run.stdout.split("\0") if path and (ROOT / path).is_file()})
    uplot = [f"node_modules/uplot/{name}" for name in UPLOT]
    for path in [*paths, *uplot]:
        _copy(ROOT / path, target / path)
    return [*paths, *uplot]


def laid_out(checkout: Path, paths: Iterable[str], target: Path) -> None:
    """Write the package, as the wheel has it, from an exported checkout. Raises RewriteError."""
    found = list(paths)
    rooms = {path: path.removeprefix("lambdas/") for path in found if path.startswith(ROOMS) or path in ROOM_FILES}
    modules = {_module(name) for name in rooms.values() if name.endswith(".py")}
    home = [path for path in found if path.startswith((*DATA, "node_modules/")) or path in DATA_FILES]
    for path in found:
        if path.startswith(CORE):
            _copy(checkout / path, target / "tally" / path.removeprefix(CORE))
        if path in PACKAGING:
            _copy(checkout / path, target / path)
    for path, name in rooms.items():
        _copy_room(checkout / path, target / "tally/_rooms" / name, modules)
    (target / "tally/_rooms/__init__.py").write_text(
        '"""The rooms of Tally\'s house. Nothing here is a public name."""\n'
    )
    _copy_room(checkout / "release/cdk.py", target / "tally/cdk.py", modules)
    for path in home:
        if not path.startswith(NOT_DATA):
            _copy(checkout / path, target / "tally/_home" / path)


def _module(name: str) -> str:
    return name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _copy(path: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, target)


def _copy_room(path: Path, target: Path, modules: set[str]) -> None:
    _copy(path, target)
    if path.suffix == ".py":
        target.write_text(rewritten(str(path), path.read_text(encoding="utf-8"), modules), encoding="utf-8")


def prepared(checkout: Path, home: Path) -> None:
    """Add what takes a registry or Node, so that a team's synth and `tally dev` need neither.

    The packages of the functions for Lambda's processor, and the template of the shipped counters.
    """
    sys.path.insert(0, str(ROOT / "lambdas"))
    from stacks.bundling import install

    install(checkout / "lambdas/requirements.txt", home / "packages")
    for path in synth.assembly(checkout).glob("*.json"):
        if path.name in ("manifest.json", "tree.json") or path.name.endswith(".template.json"):
            _copy(path, home / "template" / path.name)


def build(out: Path) -> Path:
    """Build the wheel into the folder `out`, and return its path. Raises BuildError."""
    with tempfile.TemporaryDirectory() as folder:
        checkout, stage, made = Path(folder, "checkout"), Path(folder, "stage"), Path(folder, "made")
        laid_out(checkout, exported(checkout), stage)
        prepared(checkout, stage / "tally/_home")
        command = [sys.executable, "-m", "uv", "build", "--quiet", "--wheel", "--offline", "--out-dir", str(made)]
        run = subprocess.run([*command, str(stage)], capture_output=True, text=True, timeout=BUILD_S_MAX)
        if run.returncode:
            raise BuildError(f"uv does not build the wheel: {' '.join(run.stderr.split())}")
        [wheel] = made.glob("*.whl")
        out.mkdir(parents=True, exist_ok=True)
        return Path(shutil.move(wheel, out / wheel.name))


def main(arguments: Sequence[str] | None = None) -> int:
    """Build, and print where the wheel is. For an error that a person can fix: one line, and 1."""
    parser = argparse.ArgumentParser(prog="make wheel", description=main.__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="the folder of the wheel (dist)")
    given = parser.parse_args(arguments)
    try:
        wheel = build(given.out)
    except (BuildError, RewriteError, LocalError, OSError) as error:
        print(f"tally: {error}", file=sys.stderr)
        return 1
    print(f"{wheel} ({wheel.stat().st_size // 1024} KB)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
