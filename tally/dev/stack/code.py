"""The folder of the functions' code: links to the sources, and a copy of `counters.py`.

The copy is the last one that was right. A person writes the file while the functions run, and a process that starts
between two saves would not load half of it.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from tally.home import LAMBDAS, PACKAGE, PACKAGES

from ..base.options import COUNTERS


def laid_out(counters: Path, folder: Path) -> Path:
    """Write the folder, which may be there from another start, and return it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    packages = PACKAGES.iterdir() if PACKAGES.is_dir() else ()
    for path in (*packages, *LAMBDAS.glob("*.py"), PACKAGE):
        if path.name != COUNTERS:
            (folder / path.name).symlink_to(path.resolve())
    take(folder, counters.read_bytes())
    return folder


def take(folder: Path, counters: bytes) -> bool:
    """Let the functions count by this text of `counters.py`. Whether it is another one than before."""
    kept = folder / COUNTERS
    if kept.is_file() and kept.read_bytes() == counters:
        return False
    written = kept.with_suffix(".new")
    written.write_bytes(counters)
    written.replace(kept)
    return True
