"""Packs the CDK's Python modules into one archive: 240 MB become 90, most of them its JavaScript. `make setup` runs it.

Python imports from the archive as from a folder, so nothing is missing. It keeps no bytecode for an archive: before the
first synth, of `make dev` or a deployment, `--compile` puts that of what the stacks load there. `make test` installs
the package whole again, because mypy reads no archive.
"""

from __future__ import annotations

import shutil
import sys
import zipfile
from collections.abc import Collection
from importlib import import_module
from importlib.metadata import distribution
from importlib.util import cache_from_source
from pathlib import Path

NAME = "cdk_folded"


def fold(package: Path, loaded: Collection[str]) -> None:
    """Move the modules below `package` to an archive beside it. A path file there makes Python look into it.

    `loaded`: the full names of modules that were imported, so that their bytecode is there. A folder with other files
    than sources stays.
    """
    site = package.parent
    with zipfile.ZipFile(site / f"{NAME}.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for parent in (package, package / "interfaces"):
            archive.mkdir(parent.relative_to(site).as_posix())  # extend_path() finds a part of a package by its folder
            for source in sorted(parent.glob("*/__init__.py")):
                folder = source.parent
                if {path.name for path in folder.iterdir()} <= {"__init__.py", "__pycache__"}:
                    name = folder.relative_to(site)
                    bytecode = Path(cache_from_source(str(source)))
                    kept = bytecode if ".".join(name.parts) in loaded and bytecode.is_file() else source
                    archive.write(kept, name / f"__init__{kept.suffix}")
                    shutil.rmtree(folder)
    (site / f"{NAME}.pth").write_text(f"{NAME}.zip\n")


def main() -> int:
    """Fold the installed CDK; with `--compile` once more, with the bytecode of what the stacks load.

    1: they do not load. They may hold anything, and what is wrong with them is not for now.
    """
    package = Path(str(distribution("aws-cdk-lib").locate_file("aws_cdk")))
    if "--compile" in sys.argv:
        archive = package.parent / f"{NAME}.zip"
        if not archive.exists():
            return 0
        print("tally: compiling what the stacks use of the CDK (once)", flush=True)
        zipfile.ZipFile(archive).extractall(package.parent)
        try:
            import_module("app")  # it loads every service that a stack imports, and what those build on
        except Exception:
            return 1
    fold(package, sys.modules)
    return 0


if __name__ == "__main__":
    sys.exit(main())
