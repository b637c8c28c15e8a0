"""The files that GitHub reads agree with the repository: commands, pins, and one version everywhere.

A pin waits if CONTRIBUTING.md says why it is not at the newest version.
"""

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


def read_yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def test_the_make_targets_of_the_workflows_and_the_script_of_the_ci_exist() -> None:
    existing_targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    runs = [
        step["run"] for path in WORKFLOWS for job in read_yaml(path)["jobs"].values()
        for step in job.get("steps", []) if "run" in step
    ]  # fmt: skip
    make_targets = {
        name for run in runs for line in re.findall(r"^make (.+)$", run, re.MULTILINE) for name in line.split()
    }
    assert make_targets == {"wheel", "npm"} <= existing_targets
    assert ".ci/run" in runs
    assert (ROOT / ".ci/run").is_file()


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_each_action_is_pinned_by_its_commit_except_two(path: Path) -> None:
    actions = re.findall(r"uses: (\S+?)(?:@(\S+))?(?: #.*)?$", path.read_text(), re.MULTILINE)
    unpinned = {name for name, version in actions if not re.fullmatch(r"[0-9a-f]{40}", version)}
    # The first is of this repository; PyPI asks for the branch `release/v1` of the second.
    assert unpinned <= {"./.github/workflows/ci.yml", "pypa/gh-action-pypi-publish"}


def test_only_a_job_that_publishes_may_get_an_identity_token_and_it_waits_for_the_tests() -> None:
    workflows = {path.name: read_yaml(path) for path in WORKFLOWS}
    assert all(workflow["permissions"] == {"contents": "read"} for workflow in workflows.values()), "of the other jobs"
    jobs = {(file, name): job for file, workflow in workflows.items() for name, job in workflow["jobs"].items()}
    publishing = {place: job for place, job in jobs.items() if "id-token" in job.get("permissions", {})}
    assert publishing.keys() == {("release.yml", "pypi"), ("release.yml", "npm")}
    for (_, name), job in publishing.items():
        assert (job["environment"], set(job["needs"])) == (name, {"test", "build"})


def test_the_client_can_be_packed_without_the_cdk() -> None:
    """`make npm` sets up only what `make dev` needs."""
    code = "import sys; sys.modules['aws_cdk'] = None; import release.npm"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_the_command_of_the_workflow_publishes_the_package_and_not_a_repository_of_github(tmp_path: Path) -> None:
    """Without `./`, npm reads `dist/client.tgz` as the repository `client.tgz` of the user `dist`."""
    [command] = re.findall(r"- run: (npm publish \S+)", (GITHUB / "workflows/release.yml").read_text())
    package = npm.pack(tmp_path / "dist")
    run = subprocess.run(
        f"{command} --dry-run --json --offline", shell=True, cwd=tmp_path, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    assert package.name in run.stdout


def test_dependabot_updates_each_folder_with_pins_and_leaves_out_the_pins_that_wait() -> None:
    updates = {update["package-ecosystem"]: update for update in read_yaml(GITHUB / "dependabot.yml")["updates"]}
    pins = subprocess.run(["git", "ls-files", "*requirements.in"], cwd=ROOT, capture_output=True, text=True, check=True)
    folders = {f"/{Path(path).parent.as_posix()}".removesuffix(".") for path in pins.stdout.split()}
    assert set(updates["pip"]["directories"]) == folders
    ignored = {entry["dependency-name"] for update in updates.values() for entry in update.get("ignore", [])}
    [sentence] = re.findall(r"newest version .*?\n\n", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)
    # CONTRIBUTING.md does not name Powertools: its patches are installed, and only its other versions wait.
    waiting_pins = re.findall(r"`(boto3-stubs|aws-cdk|@sparticuz/chromium)`", sentence)
    assert ignored - {"aws-lambda-powertools"} == set(waiting_pins)


def test_the_client_is_packed_with_the_version_of_the_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(npm.REPOSITORY_VARIABLE, "someone/tally")
    assert "version" not in json.loads((ROOT / npm.CLIENT_FOLDER / "package.json").read_text())
    package = npm.pack(tmp_path)
    assert package.name == f"tally-client-{version()}.tgz"
    subprocess.run(["tar", "xzf", str(package)], cwd=tmp_path, check=True)
    manifest = json.loads((tmp_path / "package/package.json").read_text())
    assert manifest["version"] == version()
    assert manifest["repository"]["url"] == "git+https://github.com/someone/tally.git"
    assert "private" not in manifest
    for file in (name for export in manifest["exports"].values() for name in export.values()):
        assert (tmp_path / "package" / file).is_file()
