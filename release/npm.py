"""`make npm`: the JavaScript client as npm's package `tally-client`, a `.tgz` that `npm publish` takes.

The package has the files of `tally/javascript/`, LICENSE, and the version of pyproject.toml.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tally.paths import version

from .build import ROOT, BuildError, git_files, run

CLIENT_FOLDER = "tally/javascript/"
REPOSITORY_VARIABLE = "GITHUB_REPOSITORY"
"""GitHub's runners set this variable to `owner/name`. npm compares the repository with the workflow that publishes."""


def package_json() -> dict[str, object]:
    """Returns the client's `package.json`, with the version and the repository."""
    package = json.loads((ROOT / CLIENT_FOLDER / "package.json").read_text(encoding="utf-8"))
    del package["private"]  # npm refuses to publish a private package
    repository = os.environ.get(REPOSITORY_VARIABLE)
    origin = {"repository": {"type": "git", "url": f"git+https://github.com/{repository}.git"}} if repository else {}
    return {"name": package.pop("name"), "version": version(), **package, **origin}


def pack(out_folder: Path) -> Path:
    """Write the package into `out_folder`, and return its path. Raises BuildError."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder)
        for path in (*(path for path in git_files() if path.startswith(CLIENT_FOLDER)), "LICENSE"):
            shutil.copyfile(ROOT / path, source / Path(path).name)
        (source / "package.json").write_text(json.dumps(package_json(), indent=2), encoding="utf-8")
        out_folder.mkdir(parents=True, exist_ok=True)
        command = ["npm", "pack", "--silent", "--pack-destination", str(out_folder.resolve())]
        process = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=60)
        if process.returncode:
            raise BuildError(f"npm could not pack the client: {' '.join(process.stderr.split())}")
        return out_folder / process.stdout.strip()


if __name__ == "__main__":
    sys.exit(run("npm", pack))
