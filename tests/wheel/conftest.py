"""Builds the wheel once a session for all workers, and makes an environment with only the wheel for the CDK."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from release import build
from tests.environments import ROOT
from tests.patience import PATIENCE_S

UV = str(Path(sys.executable).with_name("uv"))


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all workers share."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


def make_once(folder: Path, make: Callable[[Path], object]) -> Path:
    """Returns the folder. The first worker makes it."""
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            making = folder.with_suffix(".making")
            shutil.rmtree(making, ignore_errors=True)
            make(making)
            making.rename(folder)
    return folder


@pytest.fixture(scope="session")
def wheel(shared: Path) -> Path:
    [made] = make_once(shared / "dist", build.build).glob("*.whl")
    return made


def run(
    *command: str, cwd: Path, check: bool = True, variables: Mapping[str, str] = MappingProxyType({})
) -> subprocess.CompletedProcess[str]:
    """Run a command of a team, with nothing of this checkout but the tools `uv` and `cdk`."""
    paths = [str(Path(UV).parent), str(ROOT / "node_modules/.bin"), os.environ["PATH"]]
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "VIRTUAL_ENV", "JSII", "AWS_"))
    }
    own = {
        "PATH": os.pathsep.join(paths),
        "JSII_SILENCE_WARNING_END_OF_LIFE_NODE_VERSION": "20",
        "AWS_CDK_DISABLE_CLI_TELEMETRY": "true",
    }
    done = subprocess.run(
        command, cwd=cwd, env={**kept, **own, **variables}, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=PATIENCE_S,
    )  # fmt: skip
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


def installed(folder: Path, *packages: str) -> Path:
    """Make a virtual environment with these packages, and return its Python."""
    run(UV, "venv", "--quiet", "--python", sys.executable, str(folder), cwd=folder.parent)
    python = folder / "bin" / "python"
    run(UV, "pip", "install", "--quiet", "--python", str(python), *packages, cwd=folder.parent)
    return python


@pytest.fixture(scope="session")
def python(shared: Path, wheel: Path) -> Path:
    """The Python of an environment with `tallystick[cdk]`, cdk-nag for its rules, and nothing of the checkout."""

    def make(folder: Path) -> None:
        installed(folder, f"{wheel}[cdk,dev]", "cdk-nag>=3,<4")

    return make_once(shared / "team", make) / "bin" / "python"
