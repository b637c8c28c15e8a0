"""Builds the wheel once for all workers of a session, and makes an environment with the wheel for CDK apps."""

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
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


def make_once(folder: Path, make: Callable[[Path], object]) -> Path:
    """Returns the folder, which the first worker fills. `make`: makes a folder at a path, with its content."""
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            unfinished = folder.with_suffix(".making")
            shutil.rmtree(unfinished, ignore_errors=True)
            make(unfinished)
            unfinished.rename(folder)
    return folder


@pytest.fixture(scope="session")
def wheel(shared: Path) -> Path:
    [path] = make_once(shared / "dist", build.build).glob("*.whl")
    return path


def run(
    *command: str, cwd: Path, check: bool = True, variables: Mapping[str, str] = MappingProxyType({})
) -> subprocess.CompletedProcess[str]:
    """Run a command as a team would. PATH begins with the folders of this checkout that have `uv` and `cdk`. Variables
    that lead Python or CDK to this checkout are removed. `check`: fail if the command fails."""
    paths = [str(Path(UV).parent), str(ROOT / "node_modules/.bin"), os.environ["PATH"]]
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "VIRTUAL_ENV", "JSII", "AWS_"))
    }
    settings = {
        "PATH": os.pathsep.join(paths),
        "JSII_SILENCE_WARNING_END_OF_LIFE_NODE_VERSION": "20",
        "AWS_CDK_DISABLE_CLI_TELEMETRY": "true",
    }
    result = subprocess.run(
        command, cwd=cwd, env={**inherited, **settings, **variables}, stdin=subprocess.DEVNULL, capture_output=True,
        text=True, timeout=PATIENCE_S,
    )  # fmt: skip
    assert not check or result.returncode == 0, result.stdout + result.stderr
    return result


def install(folder: Path, *packages: str) -> Path:
    """Make a virtual environment with these packages, and return its Python."""
    run(UV, "venv", "--quiet", "--python", sys.executable, str(folder), cwd=folder.parent)
    python = folder / "bin" / "python"
    run(UV, "pip", "install", "--quiet", "--python", str(python), *packages, cwd=folder.parent)
    return python


@pytest.fixture(scope="session")
def python(shared: Path, wheel: Path) -> Path:
    """The Python of an environment with the wheel, its extras `cdk` and `dev`, and the rules of cdk-nag."""

    def make_environment(folder: Path) -> None:
        install(folder, f"{wheel}[cdk,dev]", "cdk-nag>=3,<4")

    return make_once(shared / "team", make_environment) / "bin" / "python"
