"""What is in the wheel, by a rule: nothing but `tally` at its top, and each file from one of the checkout."""

from __future__ import annotations

import re
import subprocess
import zipfile
from pathlib import Path

import pytest

from release.rewriting import RewriteError, rewritten
from tests.environments import ROOT

MODULES = {"operations", "operations.visits", "api", "api.kinds", "cli.commands"}
ROOMS = ("api/", "operations/", "counters.py", "declarations.py", "home.py")  # below lambdas/


def source(name: str) -> str:
    """The file of the checkout that a file of the wheel is made from; empty for what the build makes."""
    place, _, rest = name.removeprefix("tally/").partition("/")
    if place == "_rooms":
        return "" if rest == "__init__.py" else f"lambdas/{rest}" if rest.startswith(ROOMS) else rest
    if place == "_home":
        return "" if rest.startswith(("packages/", "template/")) else rest
    return "release/cdk.py" if name == "tally/cdk.py" else f"lambdas/{name}"


@pytest.fixture(scope="module")
def files(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}


@pytest.mark.long
def test_nothing_but_tally_is_at_the_top(files: dict[str, bytes]) -> None:
    assert {name.partition("/")[0] for name in files} == {"tally", "tallystick-0.1.0.dist-info"}
    assert {name.partition("/")[0] for name in files if "/_home/" in name} == {"tally"}
    assert not any("__pycache__" in name or name.endswith(".pyc") for name in files)


@pytest.mark.long
def test_each_file_is_one_of_the_checkout(files: dict[str, bytes]) -> None:
    """As it is, but for the modules of the rooms, whose imports are rewritten."""
    found = {name: path for name in files if name.startswith("tally/") and (path := source(name))}
    assert len(found) > 300
    for name, path in found.items():
        rewrites = name.endswith(".py") and (name.startswith("tally/_rooms/") or name == "tally/cdk.py")
        assert rewrites or files[name] == (ROOT / path).read_bytes(), name


@pytest.mark.long
def test_each_room_is_there_and_a_teams_own_counters_are_not(files: dict[str, bytes]) -> None:
    known = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    wanted = [path for path in known if path.startswith(("stacks/", "cli/", "dev/", "lambdas/", "clients/js/"))]
    made = {source(name) for name in files if name.startswith("tally/")}
    tests = [path for path in wanted if path.startswith("clients/js/test/")]
    assert len(wanted) > 200
    assert [path for path in wanted if path not in made] == tests
    assert "tally/_home/lambdas/counters.py" not in files


@pytest.mark.long
def test_the_packages_of_the_functions_and_the_template_are_there(files: dict[str, bytes]) -> None:
    pinned = re.findall(r"^([\w.-]+)==", (ROOT / "lambdas/requirements.txt").read_text(), re.MULTILINE)
    have = {
        name.split("/")[3].partition("-")[0] for name in files if "/_home/packages/" in name and ".dist-info/" in name
    }
    assert have == {name.replace("-", "_") for name in pinned}
    assert b"AWS::DynamoDB::Table" in files["tally/_home/template/Tally.template.json"]
    assert not any(name.endswith(".so") for name in files)


@pytest.mark.long
def test_nothing_names_this_machine(files: dict[str, bytes]) -> None:
    for name, content in files.items():
        assert str(ROOT).encode() not in content, name
        assert not re.search(rb'"/tmp/|file:///', content) or "/packages/" in name or name.endswith(".py"), name


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("from api.kinds import X\n", "from tally._rooms.api.kinds import X\n"),
        ("import operations\n", "from tally._rooms import operations\n"),
        ("import operations as all\n", "from tally._rooms import operations as all\n"),
        ('é = "é"; import_module(f"operations.{é}")\n', 'é = "é"; import_module(f"tally._rooms.operations.{é}")\n'),
        ('import_module("cli.commands")\n', 'import_module("tally._rooms.cli.commands")\n'),
        ("from .api import X\n", "from .api import X\n"),
        ('page(f"operations.md#{name}")\n', 'page(f"operations.md#{name}")\n'),
        ("from apis import api\n# from api import X\n", "from apis import api\n# from api import X\n"),
    ],
)
def test_an_import_of_a_room_is_rewritten(before: str, after: str) -> None:
    assert rewritten("x.py", before, MODULES) == after


@pytest.mark.parametrize(
    "text",
    [
        "import api.kinds\n",
        "import os, operations\n",
        "import_module(name)\n",
        'import_module(f"{room}.visits")\n',
        'RUN = ["python", "-m", "cli.commands"]\n',
        'sys.modules[f"operations.{name}"]\n',
    ],
)
def test_a_name_that_cannot_be_rewritten_ends_the_build(text: str) -> None:
    with pytest.raises(RewriteError, match=r"^x\.py:2: "):
        rewritten("x.py", f"\n{text}", MODULES)
