"""What GitHub reads of this repository agrees with the repository: commands, pins that wait, the one version."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from release import npm
from tally.paths import version
from tests.environments import ROOT

GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def test_each_command_of_a_workflow_is_one_that_the_repository_has() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    runs = [
        step["run"] for path in WORKFLOWS for job in read(path)["jobs"].values()
        for step in job.get("steps", []) if "run" in step
    ]  # fmt: skip
    made = {name for run in runs for line in re.findall(r"^make (.+)$", run, re.MULTILINE) for name in line.split()}
    assert made == {"wheel", "npm"} <= targets
    assert ".ci/run" in runs


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_an_action_is_pinned_by_its_commit_unless_its_makers_say_otherwise(path: Path) -> None:
    used = re.findall(r"uses: (\S+?)(?:@(\S+))?(?: #.*)?$", path.read_text(), re.MULTILINE)
    loose = {name for name, at in used if not re.fullmatch(r"[0-9a-f]{40}", at)}
    assert loose <= {"./.github/workflows/ci.yml", "pypa/gh-action-pypi-publish"}


def test_only_a_job_that_publishes_may_ask_for_an_identity_and_it_waits_for_the_tests() -> None:
    jobs = read(GITHUB / "workflows/release.yml")["jobs"]
    publishing = {name for name, job in jobs.items() if "id-token" in job.get("permissions", {})}
    assert publishing == {"pypi", "npm"}
    for name in publishing:
        assert jobs[name]["environment"] == name
        assert set(jobs[name]["needs"]) == {"test", "build"}


def test_the_client_is_packed_without_the_cdk() -> None:
    """`make npm` sets up no more than `make dev` needs."""
    without = "import sys; sys.modules['aws_cdk'] = None; import release.npm"
    subprocess.run([sys.executable, "-c", without], cwd=ROOT, check=True)


def test_npm_publishes_the_package_and_not_a_repository_of_github(tmp_path: Path) -> None:
    """npm reads `dist/client.tgz` as the repository `client.tgz` of `dist`."""
    [command] = re.findall(r"- run: (npm publish \S+)", (GITHUB / "workflows/release.yml").read_text())
    package = npm.pack(tmp_path / "dist")
    run = subprocess.run(
        f"{command} --dry-run --json --offline", shell=True, cwd=tmp_path, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    assert package.name in run.stdout


def test_updates_are_asked_for_each_folder_of_pins_but_for_the_pins_that_wait() -> None:
    asked = {update["package-ecosystem"]: update for update in read(GITHUB / "dependabot.yml")["updates"]}
    pins = subprocess.run(["git", "ls-files", "*requirements.in"], cwd=ROOT, capture_output=True, text=True, check=True)
    folders = {f"/{Path(path).parent.as_posix()}".removesuffix(".") for path in pins.stdout.split()}
    assert set(asked["pip"]["directories"]) == folders
    waiting = {one["dependency-name"] for update in asked.values() for one in update.get("ignore", [])}
    [said] = re.findall(r"newest version .*?\n\n", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)
    assert waiting - {"aws-lambda-powertools"} == set(re.findall(r"`(boto3-stubs|aws-cdk|@sparticuz/chromium)`", said))


def test_the_client_is_packed_with_the_version_of_the_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(npm.REPOSITORY_VARIABLE, "someone/tally")
    assert "version" not in json.loads((ROOT / npm.CLIENT_FOLDER / "package.json").read_text())
    package = npm.pack(tmp_path)
    assert package.name == f"tally-client-{version()}.tgz"
    subprocess.run(["tar", "xzf", str(package)], cwd=tmp_path, check=True)
    described = json.loads((tmp_path / "package/package.json").read_text())
    assert described["version"] == version()
    assert described["repository"]["url"] == "git+https://github.com/someone/tally.git"
    assert "private" not in described
    for file in (name for export in described["exports"].values() for name in export.values()):
        assert (tmp_path / "package" / file).is_file()
