"""A folder with its counters alone, as the package's user has it: the routes and the code are those of the checkout.

tests/wheel does the same with a wheel.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tally import home
from tally.dev.base.errors import LocalError
from tally.dev.stack import code, packaged, synth
from tally.dev.stack.template import synthesized
from tests.e2e.dev import ROOT

SEATS = """
SEATS = Counter("seats", prefix="FLIGHT", sort_key="SEATS", attribute="free", start=180, floor=0, path="/seats/{id}")
COUNTERS = declared([*COUNTERS.values(), SEATS])
"""


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a team, whose package has the template of this checkout."""
    monkeypatch.setattr(packaged, "TEMPLATE", synth.assembly(ROOT))
    (tmp_path / "counters.py").write_text((ROOT / "lambdas/counters.py").read_text())
    return tmp_path


@pytest.mark.long
def test_the_routes_are_those_that_the_stack_would_have(app: Path, copied: Callable[[str], Path]) -> None:
    with (app / "counters.py").open("a") as file:
        file.write(SEATS)
    checkout = copied((app / "counters.py").read_text())
    wanted = synthesized(checkout, {"likersVisible": "signedIn"})
    found = packaged.template(app, {"likersVisible": "signedIn"})
    assert "POST /seats/{id}" in {route.key for route in found.routes}
    assert {route.key: route for route in found.routes} == {route.key: route for route in wanted.routes}
    assert (found.tables, found.mappings, found.schedules, found.cors) == (
        wanted.tables, wanted.mappings, wanted.schedules, wanted.cors,
    )  # fmt: skip


@pytest.fixture
def copied(tmp_path: Path) -> Callable[[str], Path]:
    """A checkout with other counters."""

    def copy(counters: str) -> Path:
        made = tmp_path / "checkout"
        made.mkdir()
        for name in ("app.py", "cdk.json", "requirements.txt"):
            shutil.copy(ROOT / name, made)
        for name in ("stacks", "lambdas", "tally"):
            shutil.copytree(ROOT / name, made / name, ignore=shutil.ignore_patterns("__pycache__"))
        (made / "node_modules").symlink_to(ROOT / "node_modules")
        (made / "lambdas/counters.py").write_text(counters)
        return made

    return copy


def test_the_code_is_the_packages_with_a_copy_of_the_right_counters(app: Path) -> None:
    file = app / "counters.py"
    for _ in range(2):  # a second start finds the first one's
        task = code.laid_out(file, app / ".tally/task")
        assert (task / "handlers.py").resolve() == home.LAMBDAS / "handlers.py"
        assert (task / "tally").resolve() == home.PACKAGE
    right = file.read_bytes()
    file.write_text("COUNTERS = ")
    assert (task / "counters.py").read_bytes() == right
    assert not code.take(task, right)
    assert code.take(task, b"COUNTERS = {}")
    assert {path.name for path in task.iterdir()} == {"counters.py", "handlers.py", "tally"}


def test_counters_that_do_not_run_are_one_line(app: Path) -> None:
    (app / "counters.py").write_text("def")
    with pytest.raises(LocalError, match=r"counters\.py, line \d+: SyntaxError: ") as wrong:
        packaged.template(app, {})
    assert "\n" not in str(wrong.value)


def test_an_option_that_is_wrong_is_one_line(app: Path) -> None:
    with pytest.raises(LocalError, match="likersVisible is 'all': it must be one of anyone, signedIn, nobody"):
        packaged.template(app, {"likersVisible": "all"})
