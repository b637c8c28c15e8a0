"""What is in the wheel, by a rule: nothing but `tally` at its top, and each file from one of the checkout."""

from __future__ import annotations

import re
import subprocess
import zipfile
from pathlib import Path

import pytest

from release.build import BUNDLED_FILES
from tests.environments import ROOT

pytestmark = pytest.mark.long
BROUGHT_TO = {f"{folder}/{Path(path).name}": path for path, folder in BUNDLED_FILES.items()}
MADE = ("tally/cdk/packages/", "tally/console/uPlot")


@pytest.fixture(scope="module")
def files(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}


def test_nothing_but_tally_is_at_the_top(files: dict[str, bytes]) -> None:
    assert {name.partition("/")[0] for name in files} == {"tally", "tallystick-0.1.0.dist-info"}
    assert not any("__pycache__" in name or name.endswith(".pyc") for name in files)


def test_each_file_is_one_of_the_checkout_as_it_is_and_none_is_missing(files: dict[str, bytes]) -> None:
    known = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    found = {name for name in files if name.startswith("tally/") and not name.startswith(MADE)}
    assert found - BROUGHT_TO.keys() == {path for path in known if path.startswith("tally/")}
    assert len(found) > 200
    for name in found:
        assert files[name] == (ROOT / BROUGHT_TO.get(name, name)).read_bytes(), name
    assert not any(name.endswith("/counters.py") for name in files)  # a team brings its own


def test_the_packages_of_the_functions_are_there(files: dict[str, bytes]) -> None:
    pinned = re.findall(r"^([\w.-]+)==", (ROOT / "lambdas/requirements.txt").read_text(), re.MULTILINE)
    packages = [name.split("/")[3] for name in files if name.startswith(MADE[0])]
    assert {name.partition("-")[0] for name in packages if ".dist-info" in name} == {
        name.replace("-", "_") for name in pinned
    }
    assert not any(name.endswith(".so") for name in files)


def test_nothing_names_this_machine(files: dict[str, bytes]) -> None:
    for name, content in files.items():
        assert str(ROOT).encode() not in content, name
        assert not re.search(rb'"/tmp/|file:///', content) or "/packages/" in name or name.endswith(".py"), name
