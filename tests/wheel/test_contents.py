"""The wheel has only `tally` at its top, and each of its files is a file of the checkout."""

from __future__ import annotations

import re
import subprocess
import zipfile
from pathlib import Path

import pytest

from release.build import BUNDLED_FILES
from tests.environments import ROOT

pytestmark = pytest.mark.long
# The files of the checkout that are in another folder of the wheel, by their names there.
BUNDLED_FROM = {f"{folder}/{Path(path).name}": path for path, folder in BUNDLED_FILES.items()}
BUILT = ("tally/cdk/packages/", "tally/console/uPlot")  # how files begin that the build adds


@pytest.fixture(scope="module")
def files(wheel: Path) -> dict[str, bytes]:
    """The files of the wheel, by their names."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}


def test_only_tally_and_its_metadata_are_at_the_top(files: dict[str, bytes]) -> None:
    assert {name.partition("/")[0] for name in files} == {"tally", "tallystick-0.1.0.dist-info"}
    assert not any("__pycache__" in name or name.endswith(".pyc") for name in files)


def test_the_wheel_has_each_file_of_tally_unchanged(files: dict[str, bytes]) -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    shipped = {name for name in files if name.startswith("tally/") and not name.startswith(BUILT)}
    assert shipped - BUNDLED_FROM.keys() == {path for path in tracked if path.startswith("tally/")}
    assert len(shipped) > 200
    for name in shipped:
        assert files[name] == (ROOT / BUNDLED_FROM.get(name, name)).read_bytes(), name
    assert not any(name.endswith("/counters.py") for name in files)  # each team has its own


def test_the_wheel_has_the_packages_of_the_functions(files: dict[str, bytes]) -> None:
    text = (ROOT / "lambdas/requirements.txt").read_text().replace("-", "_")  # as the wheel spells names
    pinned = re.findall(r"^([\w.]+)==", text, re.MULTILINE)
    packages = [name.split("/")[3] for name in files if name.startswith(BUILT[0])]
    assert {name.partition("-")[0] for name in packages if ".dist-info" in name} == {*pinned}
    assert not any(name.endswith(".so") for name in files), "a function may run on ARM or on x86"


def test_no_file_has_a_path_of_this_machine(files: dict[str, bytes]) -> None:
    """Code may name `/tmp/` and `file:///` in general."""
    for name, content in files.items():
        assert str(ROOT).encode() not in content, name
        assert not re.search(rb'"/tmp/|file:///', content) or "/packages/" in name or name.endswith(".py"), name
