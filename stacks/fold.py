"""Packs the CDK's Python modules into one archive: 240 MB become 90, most of them its JavaScript. `make setup` runs it.

Python imports from the archive as from a folder, so nothing is missing. It keeps no bytecode for an archive: what the
stacks load is compiled here. `make test` installs the package whole again, because mypy reads no archive.
"""

from __future__ import annotations

import py_compile
import shutil
import sys
import tomllib
import zipfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from fnmatch import fnmatch
from importlib.metadata import distribution
from pathlib import Path

NAME = "cdk_folded"
SETTINGS = Path(__file__).parents[1] / "pyproject.toml"


def fold(package: Path, loaded: Sequence[str]) -> None:
    """Move the modules below `package` to an archive beside it. A path file there makes Python look into it.

    `loaded`: the full names, or patterns of them, of modules to compile. A folder with other files than sources stays.
    """
    site = package.parent
    parents = (package, package / "interfaces")
    sources = [source for parent in parents for source in sorted(parent.glob("*/__init__.py")) if _alone(source)]
    names = {source: ".".join(source.parent.relative_to(site).parts) for source in sources}
    compiled = [source for source, name in names.items() if any(fnmatch(name, one) for one in loaded)]
    with ProcessPoolExecutor() as processes:
        kept = dict(zip(compiled, processes.map(py_compile.compile, compiled), strict=True))
    with zipfile.ZipFile(site / f"{NAME}.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for parent in parents:
            archive.mkdir(parent.relative_to(site).as_posix())  # extend_path() finds a part of a package by its folder
        for source in sources:
            file = Path(kept.get(source) or source)  # a source that does not compile stays one
            archive.write(file, source.relative_to(site).with_suffix(file.suffix))
            shutil.rmtree(source.parent)
    (site / f"{NAME}.pth").write_text(f"{NAME}.zip\n")


def _alone(source: Path) -> bool:
    return {path.name for path in source.parent.iterdir()} <= {"__init__.py", "__pycache__"}


def loaded_by_the_stacks() -> list[str]:
    """The modules that mypy reads: those that a stack imports, and those that they build on. A test compares."""
    overrides = tomllib.loads(SETTINGS.read_text())["tool"]["mypy"]["overrides"]
    [modules] = [part["module"] for part in overrides if part.get("follow_imports") == "normal"]
    return list(modules)


def main() -> int:
    """Fold the installed CDK."""
    fold(Path(str(distribution("aws-cdk-lib").locate_file("aws_cdk"))), loaded_by_the_stacks())
    return 0


if __name__ == "__main__":
    sys.exit(main())
