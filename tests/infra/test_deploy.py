"""A real `cdk bootstrap` and `cdk deploy`, against moto instead of AWS.

It shows that the pinned command reads the assembly, that the bundle is uploaded and whole, and that references meet.
It does not show that AWS accepts the stack, and nothing of what moto's CloudFormation skips: expiry, and the API, the
aliases with what calls them, Cognito, dashboard and alarms, which are taken out of the template first.
"""

from __future__ import annotations

import io
import json
import os
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest

import app
import operations
from tests.infra.conftest import ROOT, context_of_cdk_json
from tests.infra.template import Template

ACCOUNT, REGION = "123456789012", "eu-west-1"
DEPLOYED = ("AWS::DynamoDB::Table", "AWS::IAM::Role", "AWS::IAM::Policy", "AWS::Lambda::Function")
DEPLOYED += ("AWS::Lambda::Version", "AWS::Logs::LogGroup", "AWS::S3::Bucket", "AWS::SQS::Queue", "AWS::SNS::Topic")
CONSUMERS = {consumer.function for consumer in operations.CONSUMERS}
START_S_MAX = 30.0
COMMAND_S_MAX = 100.0
PLAY_TWICE = """
import importlib, json, sys, types
sys.path[:0] = [sys.argv[1]]
import boto3
before = set(sys.modules)
plays = importlib.import_module("functions.plays")
key = "0123456789abcdefghijkl"
event = {"operation": "play", "video_id": "9f3a", "idempotency_key": key}
context = types.SimpleNamespace(aws_request_id="r", get_remaining_time_in_millis=lambda: 10_000)
answers = [plays.handler(event, context), plays.handler(event, context)]
answers.append(plays.handler({"operation": "get_plays", "video_id": "9f3a"}, context))
files = [getattr(sys.modules[name], "__file__", None) or "" for name in set(sys.modules) - before]
print("RESULT" + json.dumps({"answers": answers, "files": files}))
"""

pytestmark = pytest.mark.timeout(300)  # a loaded machine; alone it takes 20 to 30 s


@dataclass(frozen=True)
class Cloud:
    """moto, the template that was deployed into it, and the environment of commands that use it."""

    template: Template
    environment: dict[str, str]

    def client(self, service: str) -> Any:
        return boto3.client(
            service,  # type: ignore[call-overload]
            endpoint_url=self.environment["AWS_ENDPOINT_URL"],
            region_name=REGION,
            aws_access_key_id="local",
            aws_secret_access_key="local",
        )

    def physical_ids(self) -> dict[str, tuple[str, str]]:
        """Type and name of each resource, by logical id."""
        pages = self.client("cloudformation").get_paginator("list_stack_resources").paginate(StackName="Tally-dev")
        found = [resource for page in pages for resource in page["StackResourceSummaries"]]
        return {each["LogicalResourceId"]: (each["ResourceType"], each["PhysicalResourceId"]) for each in found}


@pytest.fixture(scope="module")
def moto_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with closing(socket.create_server(("localhost", 0))) as taken:
        port = taken.getsockname()[1]
    command = [str(Path(sys.executable).with_name("moto_server")), "--port", str(port)]
    log = tmp_path_factory.mktemp("moto") / "log"
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as server:
        try:
            deadline_s = time.monotonic() + START_S_MAX
            while True:
                try:
                    socket.create_connection(("localhost", port), timeout=1).close()
                    break
                except OSError:
                    assert server.poll() is None, log.read_text()
                    assert time.monotonic() < deadline_s
                    time.sleep(0.1)
            yield f"http://localhost:{port}"
        finally:
            server.kill()


def reduced(folder: Path) -> None:
    """Remove from the template the resources that moto does not make, and their outputs."""
    path = folder / "Tally.template.json"
    body = json.loads(path.read_text())
    body["Resources"] = {name: found for name, found in body["Resources"].items() if found["Type"] in DEPLOYED}
    body["Outputs"] = {
        name: found for name, found in body["Outputs"].items() if name.endswith(("TableName", "BucketName"))
    }
    path.write_text(json.dumps(body))


@pytest.fixture(scope="module")
def cloud(moto_url: str, tmp_path_factory: pytest.TempPathFactory) -> Cloud:
    out = tmp_path_factory.mktemp("cdk.out")
    app.build(context_of_cdk_json(), str(out)).synth()
    reduced(out)
    environment = {
        **os.environ,
        "AWS_ENDPOINT_URL": moto_url,
        "AWS_REGION": REGION,
        "AWS_ACCESS_KEY_ID": "local",
        "AWS_SECRET_ACCESS_KEY": "local",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CDK_DISABLE_CLI_TELEMETRY": "true",
        "HOME": str(tmp_path_factory.mktemp("home")),  # the command stores accounts there
    }
    cdk = [str(ROOT / "node_modules" / ".bin" / "cdk"), "--app", str(out), "--no-notices"]
    for arguments in (
        ["bootstrap", f"aws://{ACCOUNT}/{REGION}"],
        ["deploy", "--method=direct", "--require-approval=never", "--progress=events"],
    ):
        command = [cdk[0], *arguments, *cdk[1:]]
        run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=COMMAND_S_MAX)
        assert run.returncode == 0, run.stdout + run.stderr
    return Cloud(Template(out), environment)


def test_every_resource_of_the_template_exists(cloud: Cloud) -> None:
    """The command can report success after a failed change, and moto skips unknown types: so compare."""
    wanted = {name: found["Type"] for name, found in cloud.template.resources.items()}
    assert {name: type_ for name, (type_, _) in cloud.physical_ids().items()} == wanted


def test_tables_have_their_keys_and_streams(cloud: Cloud) -> None:
    made, dynamodb = cloud.physical_ids(), cloud.client("dynamodb")
    streams = {}
    for name in ("CountsTable", "ReceiptsTable", "LedgerTable"):
        table = dynamodb.describe_table(TableName=made[name][1])["Table"]
        assert table["KeySchema"] == cloud.template.resources[name]["Properties"]["KeySchema"]
        streams[name] = table.get("StreamSpecification", {}).get("StreamViewType")
    assert streams == {"CountsTable": "NEW_AND_OLD_IMAGES", "ReceiptsTable": "NEW_AND_OLD_IMAGES", "LedgerTable": None}


def test_functions_know_the_tables_and_have_their_roles(cloud: Cloud) -> None:
    made, awslambda = cloud.physical_ids(), cloud.client("lambda")
    for module, name in cloud.template.functions().items():
        function = awslambda.get_function_configuration(FunctionName=made[name][1])
        variables = function["Environment"]["Variables"]
        assert variables["TALLY_COUNTS_TABLE"] == made["CountsTable"][1]
        assert variables["TALLY_RECEIPTS_TABLE"] == made["ReceiptsTable"][1]
        assert variables.get("TALLY_SET_ASIDE_BUCKET") == (made["SetAsideBucket"][1] if module in CONSUMERS else None)
        assert function["Handler"] == f"functions.{module}.handler"
        role = cloud.template.resources[name]["Properties"]["Role"]["Fn::GetAtt"][0]
        assert function["Role"].endswith(f"/{made[role][1]}")


def test_the_uploaded_bundle_counts_with_only_the_runtime_beside_it(cloud: Cloud, tmp_path: Path) -> None:
    """The handler from the deployed zip, with the deployed environment, on the deployed tables."""
    function = cloud.template.resources[cloud.template.functions()["plays"]]["Properties"]
    bucket = f"cdk-hnb659fds-assets-{ACCOUNT}-{REGION}"
    zipped = cloud.client("s3").get_object(Bucket=bucket, Key=function["Code"]["S3Key"])["Body"].read()
    with zipfile.ZipFile(io.BytesIO(zipped)) as archive:
        modules = {*operations.functions(), *CONSUMERS, *(schedule.function for schedule in operations.SCHEDULES)}
        assert {f"functions/{module}.py" for module in modules} <= set(archive.namelist())
        archive.extractall(tmp_path)
    made = cloud.physical_ids()
    deployed = cloud.client("lambda").get_function_configuration(
        FunctionName=made[cloud.template.functions()["plays"]][1]
    )
    environment = {**cloud.environment, **deployed["Environment"]["Variables"], "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-P", "-c", PLAY_TWICE, str(tmp_path)]
    run = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=COMMAND_S_MAX)
    assert run.returncode == 0, run.stderr
    [line] = [line for line in run.stdout.splitlines() if line.startswith("RESULT")]
    result = json.loads(line.removeprefix("RESULT"))
    assert [answer["replayed"] for answer in result["answers"]] == [False, True, False]
    assert result["answers"][2]["body"] == {"video_id": "9f3a", "play_count": 1}
    runtime = ("boto3", "botocore", "s3transfer", "dateutil", "urllib3", "six")
    packages = {Path(file).parts for file in result["files"] if "site-packages" in file}
    foreign = {parts[parts.index("site-packages") + 1] for parts in packages}
    assert not {name.removesuffix(".py") for name in foreign} - set(runtime)
