"""The synthesized template breaks no rule of CDK's validation plugins or cfn-lint, and is always the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.infra.conftest import ROOT, UNBUNDLED, context_of_cdk_json
from tests.infra.template import Template


@pytest.mark.parametrize("template_fixture", ["dev", "prod", "lavish", "behind_cdn"])
def test_no_plugin_reports_a_violation(request: pytest.FixtureRequest, template_fixture: str) -> None:
    """CDK lists a plugin only if it reports something. test_rules.py shows that the plugins run."""
    report = json.loads((request.getfixturevalue(template_fixture).folder / "validation-report.json").read_text())
    assert report["pluginReports"] == []


@pytest.mark.long
def test_cfn_lint_finds_nothing(dev: Template, behind_cdn: Template, edge: Template) -> None:
    paths = [str(template.path) for template in (dev, behind_cdn, edge)]
    command = [str(Path(sys.executable).with_name("cfn-lint")), *paths]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


@pytest.mark.long
def test_another_process_synthesizes_the_same_template_byte_for_byte(dev: Template, tmp_path: Path) -> None:
    """The process has another hash seed, because the order of a set must not change the template."""
    variables = {
        **os.environ,
        "CDK_OUTDIR": str(tmp_path),
        "CDK_CONTEXT_JSON": json.dumps({**context_of_cdk_json(), **UNBUNDLED}),
        "CDK_VALIDATION": "false",  # validation takes seconds, and changes no template
        "PYTHONHASHSEED": "1",
    }
    subprocess.run([sys.executable, "app.py"], cwd=ROOT, env=variables, check=True, capture_output=True)
    assert Template(tmp_path).text == dev.text
