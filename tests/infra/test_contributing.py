"""The recipes of CONTRIBUTING.md work: each is applied to a copy of the checkout, and its tests run there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.infra.conftest import ROOT

PATH_AND_DIFF = re.compile(r"^ *`([\w./-]+)`\n\n(?P<indent> *)```diff\n(.*?)^(?P=indent)```", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Change:
    """The changes of one file. `hunks`: pairs of old lines, which the file must have exactly once, and new lines."""

    path: str
    hunks: tuple[tuple[str, str], ...]

    @classmethod
    def read(cls, path: str, diff: str) -> Change:
        """Returns the change that a `diff` block describes."""
        hunks = []
        for hunk in re.split(r"^@@.*\n", diff, flags=re.MULTILINE):
            lines = [line for line in hunk.splitlines() if not line.startswith(("--- ", "+++ "))]
            old = "".join(f"{line[1:]}\n" for line in lines if not line.startswith("+"))
            hunks.append((old, "".join(f"{line[1:]}\n" for line in lines if not line.startswith("-"))))
        return cls(path, tuple(hunks))

    def apply(self, root: Path) -> None:
        """Change the file, or create it."""
        file = root / self.path
        text = file.read_text() if file.exists() else ""
        for old, new in self.hunks:
            assert text.count(old) == 1 or not text, f"{self.path} does not have exactly once:\n{old}"
            text = text.replace(old, new, 1) if text else new
        file.write_text(text)


def recipes() -> dict[str, list[Change]]:
    """Returns the changes of each recipe, by its title."""
    parts = re.split(r"^### To add (.*)\n", (ROOT / "CONTRIBUTING.md").read_text(), flags=re.MULTILINE)
    return {
        title: [Change.read(path, textwrap.dedent(diff)) for path, _, diff in PATH_AND_DIFF.findall(text)]
        for title, text in zip(parts[1::2], parts[2::2], strict=True)
    }


RECIPES = recipes()


def apply_all(copy: Path) -> None:
    """Apply the recipes in the order of the page, because a recipe may change lines of an earlier recipe."""
    for changes in RECIPES.values():
        for change in changes:
            change.apply(copy)


def test_each_recipe_applies_to_the_code_as_it_is(tmp_path: Path) -> None:
    """The long tests check whether the results of the recipes work."""
    for path in {change.path for changes in RECIPES.values() for change in changes}:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / path).is_file():
            (tmp_path / path).write_bytes((ROOT / path).read_bytes())
    apply_all(tmp_path)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the files that git does not ignore, with all recipes applied."""
    copy = tmp_path_factory.mktemp("checkout")
    list_files = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    for name in subprocess.run(list_files, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0"):
        if name and (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_bytes((ROOT / name).read_bytes())
    subprocess.run(["git", "init", "--quiet"], cwd=copy, check=True)  # tests ask git for the files that it knows
    subprocess.run(["git", "add", "--all"], cwd=copy, check=True)
    (copy / "node_modules").symlink_to(ROOT / "node_modules")
    apply_all(copy)
    # `make generate` runs the first two modules. The third writes the figures of docs/cost.md.
    run(copy, "-m", "tally.contract")
    run(copy, "-m", "release.reference")
    run(copy, "-m", "bench.cost_pages")
    run(copy, "-m", "ruff", "format", "--check", "--quiet", ".")
    run(copy, "-m", "ruff", "check", "--quiet", ".")
    run(copy, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()", "--no-cache")
    return copy


def run(checkout: Path, *arguments: str) -> None:
    """Run Python in the copy. `arguments`: of Python. If Python fails, the test fails with the output."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    environment |= {
        "PYTHONPATH": f"{checkout}{os.pathsep}{checkout / 'lambdas'}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "CDK_VALIDATION": "false",  # validation would double the time; test_synth.py validates the checkout
    }
    process = subprocess.run(
        [sys.executable, "-P", *arguments], cwd=checkout, env=environment, capture_output=True, text=True
    )  # fmt: skip
    assert process.returncode == 0, process.stdout + process.stderr


# The recipe's counter starts at 180.
SEATS = """
def test_seats_are_sold(invoke):
    seat = {"counter": "seats", "id": "LH400", "caller": "desk"}
    assert invoke.direct("increment", **seat, amount=-1, idempotency_key="order-1")["status"] == 200
    assert invoke.direct("get_counter", counter="seats", id="LH400")["body"]["value"] == 179
"""

ROUTE = """
def test_the_route_is_in_the_template(dev):
    routes = dev.of_type("AWS::ApiGatewayV2::Route").values()
    assert "GET /posts/{id}/author" in {route["Properties"]["RouteKey"] for route in routes}
"""


def run_tests(checkout: Path, *tests: str) -> None:
    run(checkout, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *tests)


@pytest.mark.long
def test_the_new_counter_operation_metric_and_fault_work(checkout: Path) -> None:
    """The counter must count, the operation must answer and be documented, and the metric must be written."""
    (checkout / "tests/integration/test_seats.py").write_text(SEATS)
    run_tests(
        checkout,
        "-m",
        "not long",
        "tests/integration/test_seats.py",
        "tests/integration/test_author.py",
        "tests/integration/test_busy.py",
        "tests/integration/command/test_counters.py",
        "tests/unit",
        "tests/integration/test_operations.py",
        "tests/integration/test_needs.py",
        "tests/invariants/test_fault_proxy.py::test_each_fault_forwards_or_stops_the_request_and_gives_the_client_its_error[unavailable]",
    )


@pytest.mark.long
def test_the_new_route_metric_and_alarm_are_in_the_template(checkout: Path) -> None:
    """The checkout's own tests compare the dashboard, the alarms and the runbook. They run in one process, so that they
    share the templates."""
    tests = "tests/infra/test_monitoring.py"
    (checkout / "tests/infra/test_new_route.py").write_text(ROUTE)
    run_tests(
        checkout,
        "tests/infra/test_new_route.py",
        f"{tests}::test_every_metric_that_the_code_writes_is_on_the_dashboard_or_in_an_alarm_and_no_other",
        f"{tests}::test_the_dimensions_of_a_metric_are_the_stack_and_a_counter_consumer_or_version",
        f"{tests}::test_the_dashboard_is_in_the_free_tier",
        f"{tests}::test_each_widget_that_the_runbook_names_is_on_the_dashboard",
        "tests/infra/test_reference.py",
        f"{tests}::test_an_alarm_leads_to_one_screen_that_says_what_to_do",
        f"{tests}::test_the_runbook_has_a_section_and_a_row_for_each_alarm_and_for_no_other",
        f"{tests}::test_each_alarm_goes_off_as_the_table_says",
    )
