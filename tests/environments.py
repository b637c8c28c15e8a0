"""Separate virtual environments, for packages that conflict with other packages or that few tests need."""

from __future__ import annotations

import fcntl
import hashlib
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def make_environment(requirements: Path) -> Path:
    """Returns the Python of an environment with this lock's pins. Makes the environment if it does not exist."""
    name = hashlib.sha256(requirements.read_bytes() + sys.version.encode()).hexdigest()[:12]
    folder = ROOT / ".build" / f"{requirements.parent.name}-{name}"
    python, ready = folder / "bin" / "python", folder / ".ready"
    folder.parent.mkdir(exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not ready.exists():
            uv = [sys.executable, "-m", "uv"]
            for arguments in (
                ["venv", "--quiet", "--clear", "--python", sys.executable, str(folder)],
                ["pip", "install", "--quiet", "--python", str(python), "--require-hashes", "-r", str(requirements)],
            ):
                subprocess.run([*uv, *arguments], check=True)
            ready.touch()
    return python
