"""The examples of docs/adopt.md for SAM, Serverless and Terraform: each tool reads its example."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

from tests.environments import ROOT, make_environment
from tests.infra.template import Template
from tests.patience import PATIENCE_S

PAGE = (ROOT / "docs/adopt.md").read_text()
EXAMPLE = ROOT / "docs/examples/play"
REQUIREMENTS = ROOT / "tests/other_tools/requirements.txt"
OSLS = "osls@4.3.1"  # a fork of Serverless 3; npm installs its 96 MB only for the test of Serverless
OUTPUTS = {  # of the stack Tally-prod
    "IncrementsFunctionArn": "arn:aws:lambda:eu-west-1:123456789012:function:increments:live",
    "InvokePolicyArn": "arn:aws:iam::123456789012:policy/invoke",
    "ApiUrl": "https://api.example.com",
}
TRANSLATE = """
import json, sys
from samtranslator.translator.transform import transform
from samtranslator.yaml_helper import yaml_parse
print(json.dumps(transform(yaml_parse(sys.stdin.read()), json.loads(sys.argv[1]), None)))
"""
PARSE = "import hcl2, json, sys; print(json.dumps(hcl2.load(sys.stdin)))"


def variables_with_invented_keys() -> dict[str, str]:
    """Returns environment variables with invented keys, so that no tool can reach an AWS account."""
    without_aws = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    keys = {"AWS_ACCESS_KEY_ID": "none", "AWS_SECRET_ACCESS_KEY": "none"}
    return without_aws | keys | {"AWS_REGION": "eu-west-1", "AWS_DEFAULT_REGION": "eu-west-1"}


def run_program(program: str, text: str, *arguments: str) -> Any:
    """Returns the JSON that a program prints for an example, in the virtual environment of tests/other_tools."""
    command = [str(make_environment(REQUIREMENTS)), "-c", program, *arguments]
    process = subprocess.run(
        command, input=text, env=variables_with_invented_keys(), capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


@pytest.fixture
def fake_aws_url() -> Iterator[str]:
    """The URL of a fake of AWS (moto) with a stack `Tally-prod` that has OUTPUTS."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    url = "http://{}:{}".format(*server.get_host_and_port())
    body = {
        "Resources": {"Topic": {"Type": "AWS::SNS::Topic"}},
        "Outputs": {name: {"Value": value} for name, value in OUTPUTS.items()},
    }
    client = boto3.client(
        "cloudformation", endpoint_url=url, region_name="eu-west-1", aws_access_key_id="x", aws_secret_access_key="x"
    )
    client.create_stack(StackName="Tally-prod", TemplateBody=json.dumps(body))
    yield url
    server.stop()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the example, with the layer that the page's command makes of the package `tally`."""
    copy = shutil.copytree(EXAMPLE, tmp_path / "docs/examples/play")
    (tmp_path / "tally").symlink_to(ROOT / "tally")
    (command,) = re.findall(r"^```sh\n(mkdir .*?)```", PAGE, flags=re.MULTILINE | re.DOTALL)
    subprocess.run(["sh", "-ec", command], cwd=tmp_path, check=True)
    return copy


def test_the_layer_of_the_page_has_every_module_that_the_client_imports(folder: Path) -> None:
    program = "import sys; sys.path.insert(0, 'layer/python'); import tally.client; print(tally.client.__file__)"
    process = subprocess.run([sys.executable, "-I", "-c", program], cwd=folder, capture_output=True, text=True)
    assert "layer/python/tally/client/" in process.stdout, process.stderr


def resolve(value: Any) -> str:
    """Returns a value of a template as text. A parameter has the value of the output with its name."""
    if isinstance(value, str):
        return value
    (text,) = value.values()  # of Ref, or of Fn::Sub
    return OUTPUTS[text] if "Ref" in value else re.sub(r"\$\{(\w+)\}", lambda name: OUTPUTS[name[1]], text)


def assert_may_count_plays(function: dict[str, Any], role: dict[str, Any]) -> None:
    """Fails unless the function has the ARN of Tally's function `increments`, and may invoke Tally's functions."""
    variables = function["Environment"]["Variables"]
    assert json.loads(resolve(variables["TALLY_FUNCTIONS"])) == {"increments": OUTPUTS["IncrementsFunctionArn"]}
    assert OUTPUTS["InvokePolicyArn"] in [resolve(arn) for arn in role["ManagedPolicyArns"]]
    assert function["Handler"] == "play.handler"
    assert len(function["Layers"]) == 1


def test_each_output_that_an_example_reads_is_an_output_of_the_stack(dev: Template) -> None:
    patterns = {
        "main.tf": r'outputs\["(\w+)"\]',
        "serverless.yml": r"\$\{cf:\$\{param:tally\}\.(\w+)\}",
        "template.yaml": r"^  (\w+):\n    Type: String",
    }
    for file, pattern in patterns.items():
        output_names = set(re.findall(pattern, (EXAMPLE / file).read_text(), flags=re.MULTILINE))
        assert {"IncrementsFunctionArn", "InvokePolicyArn"} <= output_names, file
        assert output_names <= dev.outputs.keys(), file
    assert set(re.findall(r"^\| `(\w+)` \|", PAGE, flags=re.MULTILINE)) == {"ApiUrl", "InvokePolicyArn"}
    assert dev.outputs.keys() >= OUTPUTS.keys()


@pytest.mark.long
def test_sam_translates_the_example_to_a_function_that_may_count_plays() -> None:
    text = (EXAMPLE / "template.yaml").read_text()
    # `sam package` uploads the folders, and replaces their paths by URLs.
    packaged = re.sub(r"(CodeUri|ContentUri): \S+", r"\1: s3://bucket/\1.zip", text)
    resources = run_program(TRANSLATE, packaged, json.dumps(OUTPUTS))["Resources"]
    assert_may_count_plays(resources["Play"]["Properties"], resources["PlayRole"]["Properties"])


@pytest.mark.long
def test_serverless_packages_a_function_that_may_count_plays(folder: Path, fake_aws_url: str) -> None:
    npm = ["npm", "exec", "--yes", f"--package={OSLS}", "--", "osls", "package"]
    variables = variables_with_invented_keys() | {"AWS_ENDPOINT_URL": fake_aws_url}
    process = subprocess.run(npm, cwd=folder, env=variables, capture_output=True, text=True, timeout=PATIENCE_S)
    assert process.returncode == 0, process.stdout + process.stderr
    resources = json.loads((folder / ".serverless/cloudformation-template-update-stack.json").read_text())["Resources"]
    assert_may_count_plays(
        resources["PlayLambdaFunction"]["Properties"], resources["IamRoleLambdaExecution"]["Properties"]
    )
    assert {path.name for path in folder.glob(".serverless/*.zip")} == {"play.zip", "client.zip"}


@pytest.mark.long
def test_the_example_for_terraform_has_a_function_that_may_count_plays() -> None:
    document = run_program(PARSE, (EXAMPLE / "main.tf").read_text())
    text = json.dumps(document)
    resources = {
        (kind.strip('"'), name.strip('"')): body
        for block in document["resource"]
        for kind, bodies in block.items()
        for name, body in bodies.items()
    }
    function = resources["aws_lambda_function", "play"]
    assert function["handler"] == '"play.handler"'
    assert 'outputs[\\"IncrementsFunctionArn\\"]' in json.dumps(function)
    assert "InvokePolicyArn" in json.dumps(resources["aws_iam_role_policy_attachment", "tally"])
    referred = re.findall(r"\b(aws_(?!cloudformation)\w+)\.(\w+)\.\w+", text)
    assert {(kind, name) for kind, name in referred} <= resources.keys()
