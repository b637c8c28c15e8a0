"""`make wheel` builds the distribution `tallystick`: `tally/`, and the files that a team's synth and `tally dev` need:

    tally/cdk/lambdas/     the handlers and their pins (tally/paths.py)
    tally/cdk/packages/    the functions' packages for Lambda's processor
    tally/console/uPlot.*  the charts
    tally/cli/cdk.json     the settings that `tally init` writes

The wheel includes uncommitted changes, but no file that git ignores.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from tally.api.console import UPLOT_FILES

ROOT = Path(__file__).resolve().parents[1]
BUNDLED_FILES = {
    "lambdas/handlers.py": "tally/cdk/lambdas",
    "lambdas/requirements.txt": "tally/cdk/lambdas",
    "cdk.json": "tally/cli",
    **dict.fromkeys(("pyproject.toml", "README.md", "LICENSE"), "."),
}
BUILD_S_MAX = 300  # a build takes seconds; if uv hangs, `make wheel` must not hang


class BuildError(Exception):
    """The wheel cannot be built. The message is one line."""


def git_files() -> list[str]:
    """Returns the paths of the tracked files, and of the new files that git does not ignore."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if process.returncode:
        raise BuildError(f"git could not list the files of {ROOT}: {' '.join(process.stderr.split())}")
    return sorted({path for path in process.stdout.split("\0") if path and (ROOT / path).is_file()})


def lay_out(paths: Iterable[str], target: Path) -> None:
    """Write the files of the wheel to `target`, without the functions' packages."""
    for path in paths:
        if path.startswith("tally/"):
            _copy(ROOT / path, target / path)
    for path, folder in BUNDLED_FILES.items():
        _copy(ROOT / path, target / folder / Path(path).name)
    for name, file in UPLOT_FILES.items():
        _copy(file, target / "tally/console" / name)


def _copy(path: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, target)


def build(out_folder: Path) -> Path:
    """Build the wheel into `out_folder`, and return its path. Raises BuildError."""
    from tally.cdk.bundling import BundlingError, install_packages  # imported here: `make npm` works without the CDK

    with tempfile.TemporaryDirectory() as folder:
        source, built = Path(folder, "source"), Path(folder, "built")
        lay_out(git_files(), source)
        try:
            install_packages(ROOT / "lambdas/requirements.txt", source / "tally/cdk/packages")
        except BundlingError as error:
            raise BuildError(str(error)) from None
        command = [sys.executable, "-m", "uv", "build", "--quiet", "--wheel", "--offline", "--out-dir", str(built)]
        process = subprocess.run([*command, str(source)], capture_output=True, text=True, timeout=BUILD_S_MAX)
        if process.returncode:
            raise BuildError(f"uv could not build the wheel: {' '.join(process.stderr.split())}")
        [wheel] = built.glob("*.whl")
        out_folder.mkdir(parents=True, exist_ok=True)
        return Path(shutil.move(wheel, out_folder / wheel.name))


def run(target: str, make: Callable[[Path], Path]) -> int:
    """Make a file in the folder `--out`, and print its path. For an error that a person can fix, print one line and
    return 1."""
    parser = argparse.ArgumentParser(prog=f"make {target}", description="Make a file, and print its path.")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="the folder of the file (dist)")
    options = parser.parse_args()
    try:
        file = make(options.out)
    except (BuildError, OSError, subprocess.TimeoutExpired) as error:
        print(f"tally: {error}", file=sys.stderr)
        return 1
    print(f"{file} ({file.stat().st_size // 1024} KB)")
    return 0


if __name__ == "__main__":
    sys.exit(run("wheel", build))
