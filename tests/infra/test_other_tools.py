"""The examples of docs/adopt.md, as each tool reads them: SAM and Serverless make CloudFormation of theirs."""

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
OSLS = "osls@4.3.1"  # Serverless 3, continued by its users; npm brings it for this test alone: it has 96 MB
OUTPUTS = {
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


def bare() -> dict[str, str]:
    """An environment with no account but an invented one."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    keys = {"AWS_ACCESS_KEY_ID": "none", "AWS_SECRET_ACCESS_KEY": "none"}
    return own | keys | {"AWS_REGION": "eu-west-1", "AWS_DEFAULT_REGION": "eu-west-1"}


def read(program: str, text: str, *arguments: str) -> Any:
    """What a program of the tools' own environment prints of an example."""
    command = [str(make_environment(REQUIREMENTS)), "-c", program, *arguments]
    done = subprocess.run(command, input=text, env=bare(), capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def account() -> Iterator[str]:
    """The URL of an imitation of AWS, with a stack `Tally-prod` that has these outputs."""
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
    """The example with the layer, made as the page says."""
    copy = shutil.copytree(EXAMPLE, tmp_path / "docs/examples/play")
    (tmp_path / "tally").symlink_to(ROOT / "tally")
    (command,) = re.findall(r"^```sh\n(mkdir .*?)```", PAGE, flags=re.MULTILINE | re.DOTALL)
    subprocess.run(["sh", "-ec", command], cwd=tmp_path, check=True)
    return copy


def test_the_layer_of_the_page_has_all_that_the_client_imports(folder: Path) -> None:
    program = "import sys; sys.path.insert(0, 'layer/python'); import tally.client; print(tally.client.__file__)"
    done = subprocess.run([sys.executable, "-I", "-c", program], cwd=folder, capture_output=True, text=True)
    assert "layer/python/tally/client/" in done.stdout, done.stderr


def plain(value: Any) -> str:
    """A text of a template, with the parameters in it filled in: the translator leaves that to CloudFormation."""
    if isinstance(value, str):
        return value
    (text,) = value.values()  # of Ref, or of Fn::Sub
    return OUTPUTS[text] if "Ref" in value else re.sub(r"\$\{(\w+)\}", lambda found: OUTPUTS[found[1]], text)


def judge(function: dict[str, Any], role: dict[str, Any]) -> None:
    """A function that finds Tally and may invoke it."""
    variables = function["Environment"]["Variables"]
    assert json.loads(plain(variables["TALLY_FUNCTIONS"])) == {"increments": OUTPUTS["IncrementsFunctionArn"]}
    assert OUTPUTS["InvokePolicyArn"] in [plain(arn) for arn in role["ManagedPolicyArns"]]
    assert function["Handler"] == "play.handler"
    assert len(function["Layers"]) == 1


def test_each_output_that_an_example_reads_is_one_of_the_stack(dev: Template) -> None:
    read_by = {
        "main.tf": r'outputs\["(\w+)"\]',
        "serverless.yml": r"\$\{cf:\$\{param:tally\}\.(\w+)\}",
        "template.yaml": r"^  (\w+):\n    Type: String",
    }
    for file, pattern in read_by.items():
        named = set(re.findall(pattern, (EXAMPLE / file).read_text(), flags=re.MULTILINE))
        assert {"IncrementsFunctionArn", "InvokePolicyArn"} <= named, file
        assert named <= dev.outputs.keys(), file
    assert set(re.findall(r"^\| `(\w+)` \|", PAGE, flags=re.MULTILINE)) == {"ApiUrl", "InvokePolicyArn"}
    assert dev.outputs.keys() >= OUTPUTS.keys()


@pytest.mark.long
def test_sam_makes_a_function_that_may_count_plays() -> None:
    text = (EXAMPLE / "template.yaml").read_text()
    packaged = re.sub(r"(CodeUri|ContentUri): \S+", r"\1: s3://bucket/\1.zip", text)  # as `sam package` does
    resources = read(TRANSLATE, packaged, json.dumps(OUTPUTS))["Resources"]
    judge(resources["Play"]["Properties"], resources["PlayRole"]["Properties"])


@pytest.mark.long
def test_serverless_packages_a_function_that_may_count_plays(folder: Path, account: str) -> None:
    npm = ["npm", "exec", "--yes", f"--package={OSLS}", "--", "osls", "package"]
    environment = bare() | {"AWS_ENDPOINT_URL": account}
    done = subprocess.run(npm, cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    made = json.loads((folder / ".serverless/cloudformation-template-update-stack.json").read_text())["Resources"]
    judge(made["PlayLambdaFunction"]["Properties"], made["IamRoleLambdaExecution"]["Properties"])
    assert {path.name for path in folder.glob(".serverless/*.zip")} == {"play.zip", "client.zip"}


@pytest.mark.long
def test_terraform_reads_a_function_that_may_count_plays() -> None:
    made = read(PARSE, (EXAMPLE / "main.tf").read_text())
    text = json.dumps(made)
    resources = {
        (kind.strip('"'), name.strip('"')): body
        for block in made["resource"]
        for kind, named in block.items()
        for name, body in named.items()
    }
    function = resources["aws_lambda_function", "play"]
    assert function["handler"] == '"play.handler"'
    assert 'outputs[\\"IncrementsFunctionArn\\"]' in json.dumps(function)
    assert "InvokePolicyArn" in json.dumps(resources["aws_iam_role_policy_attachment", "tally"])
    referred = re.findall(r"\b(aws_(?!cloudformation)\w+)\.(\w+)\.\w+", text)
    assert {(kind, name) for kind, name in referred} <= resources.keys()
