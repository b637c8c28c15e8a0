"""A stack of Tally in the emulator: its assembly, its `cdk` commands, and calls of its functions and API."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from aws_cdk import App

import app
from stacks.tally_stack import TallyStack
from tally.cdk.bundling import Bundle
from tally.cdk.names import camel
from tally.cdk.options import Options
from tally.contract.declarations import Declarations
from tests.emulator.server import ACCOUNT, REGION, Emulator
from tests.environments import ROOT
from tests.infra.conftest import context_of_cdk_json
from tests.patience import PATIENCE_S

Json = dict[str, Any]
MINUTE_S = 3  # the length of a minute of the ledger, as in `make dev`, so that no test waits for a real minute
TEMPLATE = "Tally.template.json"
UNSUPPORTED_TYPES = ("AWS::CodeDeploy::", "AWS::Backup::BackupSelection")
NEVER_WRITTEN_METRIC = {"Namespace": "Tally", "MetricName": "Silent", "Statistic": "Sum", "Period": 60}


def synthesize(out: Path, counters: Path = app.LAMBDAS / "counters.py", **options: str) -> Path:
    """Synthesizes the app into `out`, with the bundled code, and without cdk-nag, which other tests run."""
    cdk = App(context={**context_of_cdk_json(), **options}, outdir=str(out), analytics_reporting=False)
    declarations = Declarations.load(counters)
    parsed = Options.from_context(cdk.node.get_all_context())
    bundle = Bundle(app.LAMBDAS, declarations, parsed.likers_visible, cache_folder=out.parent / f"{out.name}.bundle")
    TallyStack(cdk, "Tally", declarations=declarations, options=parsed, bundle=bundle)
    cdk.synth()
    return out


def without_unsupported(template: Json) -> Json:
    """Returns the template without the features that the emulator lacks.

    Without CodeDeploy, new code gets all calls at once. AWS Backup selects no tables. In place of an expression, an
    alarm reads a metric that nobody writes. The issuer is made of the pool's id, and there is no SnapStart.
    Mappings deliver nothing, because streams.py delivers in their place. A minute of the ledger takes MINUTE_S.
    """
    resources = {
        name: resource
        for name, resource in template["Resources"].items()
        if not resource["Type"].startswith(UNSUPPORTED_TYPES)
    }
    supported = {**template, "Resources": json.loads(json.dumps(resources), object_hook=_make_issuer_of_pool_id)}
    for resource in supported["Resources"].values():
        resource.get("UpdatePolicy", {}).pop("CodeDeployLambdaAliasUpdate", None)
        if resource["Type"] == "AWS::CloudWatch::Alarm" and resource["Properties"].pop("Metrics", None):
            resource["Properties"] |= NEVER_WRITTEN_METRIC
        if resource["Type"] == "AWS::Lambda::EventSourceMapping":
            resource["Properties"]["Enabled"] = False
        if resource["Type"] == "AWS::Lambda::Function":
            resource["Properties"].pop("SnapStart", None)
            resource["Properties"]["Environment"]["Variables"]["TALLY_MINUTE_S"] = str(MINUTE_S)
    return supported


def _make_issuer_of_pool_id(node: Json) -> Json:
    match node:
        case {"Fn::GetAtt": [pool, "ProviderURL"]}:
            region, suffix = {"Ref": "AWS::Region"}, {"Ref": "AWS::URLSuffix"}
            return {"Fn::Join": ["", ["https://cognito-idp.", region, ".", suffix, "/", {"Ref": pool}]]}
    return node


def rewritten_copy(assembly: Path, change: Callable[[Json], Json]) -> Path:
    """Makes a copy of the assembly beside the assembly, with a changed template. Returns the copy."""
    copy = assembly.with_name(f"{assembly.name}-{change.__name__}")
    shutil.copytree(assembly, copy, dirs_exist_ok=True)
    rewrite_template(copy, change)
    return copy


def rewrite_template(assembly: Path, change: Callable[[Json], Json], id: str = "Tally") -> None:
    """Changes the template of the stack `id` in an assembly.

    `cdk deploy` uploads each template once, under its hash, so a changed template needs another hash.
    """
    path = assembly / f"{id}.template.json"
    old = path.read_text()
    new = json.dumps(change(json.loads(old)))
    path.write_text(new)
    before, after = (hashlib.sha256(text.encode()).hexdigest() for text in (old, new))
    for name in ("manifest.json", f"{id}.assets.json"):
        text = (assembly / name).read_text()
        assert before in text, f"{name} does not have the template's hash"
        (assembly / name).write_text(text.replace(before, after))


@dataclass(frozen=True)
class Answer:
    """An HTTP answer. `body`: the JSON that the answer has."""

    status: int
    body: Any


class Stack:
    """A deployed stack in an emulator. `home`: the folder for files of `cdk`. `name`: by default `Tally-<stage>`."""

    def __init__(self, emulator: Emulator, home: Path, stage: str = "dev", name: str = "") -> None:
        self.emulator, self.home, self.name = emulator, home, name or f"Tally-{stage}"
        self.environment = emulator.environment(home)
        self.client = emulator.client

    def bootstrap(self) -> None:
        """Runs `cdk bootstrap`, which an account needs once."""
        self.cdk("bootstrap", f"aws://{ACCOUNT}/{REGION}")

    def deploy(
        self, assembly: Path, change: Callable[[Json], Json] = without_unsupported, *, adopting: bool = False
    ) -> subprocess.CompletedProcess[str]:
        """Runs `cdk deploy` with an assembly whose template `change` has changed. Returns the command's result.

        `adopting`: import existing resources, which needs a change set.
        """
        vars(self).pop("outputs", None)  # the next access reads the new outputs
        changed = rewritten_copy(assembly, change)
        method = "--import-existing-resources" if adopting else "--method=direct"
        options = (method, "--require-approval=never", "--progress=bar")
        return self.cdk("deploy", *options, "--app", str(changed), check=False)

    def destroy(self, *options: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Runs `make destroy` without the question of `make destroy`."""
        return self.make("destroy", check=check, ARGS=" ".join(["--yes", *options]))

    def make(self, target: str, *, check: bool = True, **variables: str) -> subprocess.CompletedProcess[str]:
        """Runs `make` against the emulator, without variables of the `make` that runs the tests, such as ARGS."""
        environment = {name: value for name, value in self.environment.items() if not name.startswith("MAKE")}
        process = subprocess.run(
            ["make", "--no-print-directory", target], cwd=ROOT, env={**environment, **variables},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE_S,
        )  # fmt: skip
        assert not check or process.returncode == 0, process.stdout + process.stderr
        return process

    def cdk(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Runs the `cdk` of this checkout against the emulator."""
        command = [str(ROOT / "node_modules" / ".bin" / "cdk"), *arguments, "--no-notices"]
        process = subprocess.run(
            command, cwd=self.home, env=self.environment, capture_output=True, text=True, timeout=PATIENCE_S
        )
        assert not check or process.returncode == 0, process.stdout + process.stderr
        return process

    @property
    def status(self) -> str:
        """Returns CloudFormation's status of the stack."""
        return str(self._describe()["StackStatus"])

    def failed_resources(self) -> dict[str, str]:
        """Returns why resources could not be made or changed, by their logical ids."""
        return {
            event["LogicalResourceId"]: event.get("ResourceStatusReason", "")
            for event in self._events()
            if event["ResourceStatus"] in ("CREATE_FAILED", "UPDATE_FAILED")
        }

    def _events(self) -> list[Json]:
        """Returns CloudFormation's events, newest first."""
        pages = self.client("cloudformation").get_paginator("describe_stack_events").paginate(StackName=self.name)
        return [event for page in pages for event in page["StackEvents"]]

    @cached_property
    def outputs(self) -> dict[str, str]:
        """Returns the stack's outputs since the last deploy."""
        return {output["OutputKey"]: output["OutputValue"] for output in self._describe()["Outputs"]}

    def _describe(self) -> Json:
        stack: Json = self.client("cloudformation").describe_stacks(StackName=self.name)["Stacks"][0]
        return stack

    def resources(self) -> dict[str, tuple[str, str]]:
        """Returns the type and the physical id of each resource, by logical id."""
        pages = self.client("cloudformation").get_paginator("list_stack_resources").paginate(StackName=self.name)
        summaries = [resource for page in pages for resource in page["StackResourceSummaries"]]
        return {
            summary["LogicalResourceId"]: (summary["ResourceType"], summary["PhysicalResourceId"])
            for summary in summaries
        }

    def alias(self, module: str) -> str:
        """Returns the ARN of the alias `live` of the function of a module."""
        [arn] = [
            id
            for name, (type_, id) in self.resources().items()
            if type_ == "AWS::Lambda::Alias" and f"Functions{camel(module)}Live" in name
        ]
        return arn

    def invoke(self, alias: str, event: Json) -> Json:
        """Invokes a function directly, and returns the answer. Fails if the function fails."""
        answer = self.client("lambda").invoke(FunctionName=alias, Payload=json.dumps(event))
        payload: Json = json.loads(answer["Payload"].read())
        assert "FunctionError" not in answer, payload
        return payload

    @property
    def url(self) -> str:
        """Returns the API's URL with its id in the path, because hosts under `localhost` do not resolve everywhere."""
        api = self.outputs["ApiUrl"].partition("//")[2].partition(".")[0]
        return f"{self.emulator.url}/_aws/execute-api/{api}/$default"

    def call(self, method: str, path: str, body: object = None, token: str = "", **headers: str) -> Answer:
        """Sends one HTTP request. Keywords are headers, with `_` in place of `-`."""
        header_fields = {name.replace("_", "-"): value for name, value in headers.items()}
        if token:
            header_fields["Authorization"] = f"Bearer {token}"
        content = None
        if body is not None:
            content, header_fields["Content-Type"] = json.dumps(body).encode(), "application/json"
        return _answer(urllib.request.Request(self.url + path, content, header_fields, method=method))

    def user_token(self, email: str = "ann@example.com", password: str = "Correct-horse-7-battery") -> str:
        """Adds a user, and returns an access token of the user."""
        cognito, pool = self.client("cognito-idp"), self.outputs["UserPoolId"]
        cognito.admin_create_user(UserPoolId=pool, Username=email, MessageAction="SUPPRESS")
        cognito.admin_set_user_password(UserPoolId=pool, Username=email, Password=password, Permanent=True)
        signed_in = cognito.admin_initiate_auth(
            UserPoolId=pool, ClientId=self.outputs["UserPoolClientId"], AuthFlow="ADMIN_USER_PASSWORD_AUTH",
            AuthParameters={"USERNAME": email, "PASSWORD": password},
        )  # fmt: skip
        return str(signed_in["AuthenticationResult"]["AccessToken"])

    def machine_token(self) -> str:
        """Returns a token with all scopes, which the pool gives to programs for their client credentials."""
        client, pool = self.outputs["MachineClientId"], self.outputs["UserPoolId"]
        described = self.client("cognito-idp").describe_user_pool_client(UserPoolId=pool, ClientId=client)
        secret = described["UserPoolClient"]["ClientSecret"]
        headers = {
            "Authorization": f"Basic {base64.b64encode(f'{client}:{secret}'.encode()).decode()}",
            "Content-Type": "application/x-www-form-urlencoded",
        }
        form = b"grant_type=client_credentials&scope=tally/read+tally/write"
        answer = _answer(urllib.request.Request(f"{self.emulator.url}/oauth2/token", form, headers, method="POST"))
        assert answer.status == 200, answer
        return str(answer.body["access_token"])

    def items(self, table: str, partition_key: str) -> list[Mapping[str, Any]]:
        """Returns the items of one partition. `table`: `Counts` or `Ledger`."""
        pages = self.client("dynamodb").get_paginator("query").paginate(
            TableName=self.outputs[f"{table}TableName"], ConsistentRead=True, KeyConditionExpression="PK = :pk",
            ExpressionAttributeValues={":pk": {"S": partition_key}},
        )  # fmt: skip
        return [item for page in pages for item in page["Items"]]


def _answer(request: urllib.request.Request) -> Answer:
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
            return Answer(response.status, json.loads(response.read()))
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, json.loads(error.read()))
