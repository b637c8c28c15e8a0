"""`make deploy` and `make destroy`: what is missing, what is asked and called. tests/emulator runs them for real."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError, WaiterError

from tally.cdk import names
from tally.cdk.options import Options
from tally.cli import account, deploy, destroy
from tally.cli.__main__ import main
from tally.cli.account import Account
from tally.cli.terminal import CommandError
from tally.dynamo import keys
from tally.streams import forms
from tests.commands import one_line
from tests.infra.conftest import BEHIND_CDN, DECLARED, ROOT, Synthesize
from tests.infra.template import Template
from tests.infra.test_tables import MOMENT
from tests.patience import PATIENCE_S

Json = dict[str, Any]
ANN = "arn:aws:iam::123456789012:user/ann"
Run = Callable[[list[str]], int]
STRANGERS = " a day: AWS Budgets can mail you"


def run_deploy(arguments: list[str]) -> int:
    return main(["deploy", *arguments])


def run_destroy(arguments: list[str]) -> int:
    return main(["destroy", *arguments])


def refused(code: str, message: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": message}}, "Call")


class Aws:
    """As much of AWS as both commands ask. What is deleted is no longer described."""

    def __init__(self) -> None:
        self.caller: Json | ClientError = {"Account": "123456789012", "Arn": ANN}
        self.bootstrapped: dict[str, ClientError | None] = {"eu-west-1": None}
        self.stacks: dict[tuple[str, str], Json] = {}
        self.deleted: list[str] = []
        self.stuck: list[Json] = []
        """The events of a deletion that fails."""
        self.events: list[Json] = []
        """Of a stack's life, the newest first."""
        self.tables: set[str] = set()
        self.forms: Any = []
        """The items of the ledger that say in which form counters have counted."""
        self.concurrency: int | ClientError = 1000
        self.elsewhere = 0
        """What functions of other stacks reserve of it."""
        self.routes = {"GET /health"}
        self.throttled = {"GET /health"}
        """The routes that the live stage has settings of."""
        self.typed = ""
        """What the person at the terminal types."""
        self.cdk: list[list[str]] = []
        """The calls of `cdk`, which does nothing."""

    def client(self, service: str, region_name: str, **_: Any) -> Any:
        return getattr(self, f"_{service}")(region_name)

    def _sts(self, region: str) -> Any:
        return Answers(get_caller_identity=lambda: _answer(self.caller))

    def _ssm(self, region: str) -> Any:
        def get_parameter(Name: str) -> Json:
            assert Name == "/cdk-bootstrap/hnb659fds/version"
            missing = refused("ParameterNotFound", "not found")
            return _answer(self.bootstrapped.get(region, missing) or {"Parameter": {"Value": "30"}})

        return Answers(get_parameter=get_parameter)

    def _lambda(self, region: str) -> Any:
        own = {
            _named(name, one): one["Properties"].get("ReservedConcurrentExecutions", 0)
            for stack in self.stacks.values()
            for name, one in stack["template"]["Resources"].items()
            if one["Type"] == "AWS::Lambda::Function"
        }

        def settings() -> Json:
            if isinstance(self.concurrency, ClientError):
                raise self.concurrency
            left = self.concurrency - self.elsewhere - sum(own.values())
            limits = {"ConcurrentExecutions": self.concurrency, "UnreservedConcurrentExecutions": left}
            return {"AccountLimit": limits}

        def reserved(FunctionName: str) -> Json:
            return {"ReservedConcurrentExecutions": own[FunctionName]} if own[FunctionName] else {}

        return Answers(get_account_settings=settings, get_function_concurrency=reserved)

    def _apigatewayv2(self, region: str) -> Any:
        def pages(ApiId: str) -> list[Json]:
            return [{"Items": [{"RouteKey": route}]} for route in self.routes]

        return Answers(
            get_paginator=lambda name: Answers(paginate={"get_routes": pages}[name]),
            get_stage=lambda ApiId, StageName: {"RouteSettings": {key: {} for key in self.throttled}},
            delete_route_settings=lambda RouteKey, ApiId, StageName: self.throttled.remove(RouteKey),
        )

    def _dynamodb(self, region: str) -> Any:
        def describe_table(TableName: str) -> Json:
            if TableName not in self.tables:
                raise refused("ResourceNotFoundException", "not found")
            return {}

        def query(**_: Any) -> Json:
            return {"Items": _answer(self.forms)}

        return Answers(describe_table=describe_table, query=query)

    def _cloudformation(self, region: str) -> Any:
        def found(StackName: str) -> Json:
            if (region, StackName) not in self.stacks:
                raise refused("ValidationError", f"Stack with id {StackName} does not exist")
            return self.stacks[region, StackName]

        def wait(StackName: str, **_: Any) -> None:
            if self.stuck:
                raise WaiterError("StackDeleteComplete", "Waiter encountered a terminal failure state", {})

        def resources(StackName: str) -> list[Json]:
            made = found(StackName)["template"]["Resources"].items()
            summary = [
                {"LogicalResourceId": name, "ResourceType": one["Type"], "PhysicalResourceId": _named(name, one)}
                for name, one in made
            ]
            return [{"StackResourceSummaries": summary}]

        def delete(StackName: str) -> None:
            [name] = [one for (_, one), stack in self.stacks.items() if stack["StackId"] == StackName]
            if self.stacks[region, name]["EnableTerminationProtection"]:
                raise refused(
                    "ValidationError", f"Stack [{name}] cannot be deleted while TerminationProtection is enabled"
                )
            self.deleted.append(StackName)

        def events(**_: Any) -> list[Json]:
            return [{"StackEvents": self.stuck or self.events}]

        def protect(StackName: str, *, EnableTerminationProtection: bool) -> None:
            self.stacks[region, StackName]["EnableTerminationProtection"] = EnableTerminationProtection

        pages = {"list_stack_resources": resources, "describe_stack_events": events}
        return Answers(
            describe_stacks=lambda StackName: {"Stacks": [found(StackName)]},
            get_template=lambda StackName: {"TemplateBody": found(StackName)["template"]},
            get_paginator=lambda name: Answers(paginate=pages[name]),
            get_waiter=lambda _: Answers(wait=wait),
            delete_stack=delete,
            update_termination_protection=protect,
        )

    def deployed(self, name: str, template: Template, region: str = "eu-west-1", *, protected: bool = False) -> None:
        self.stacks[region, name] = {
            "StackId": f"id of {name}", "EnableTerminationProtection": protected, "template": template.body,
            "StackStatus": "CREATE_COMPLETE",
            "Outputs": [{"OutputKey": "Format", "OutputValue": template.outputs["Format"]["Value"]}]
            if "Format" in template.outputs else [],
        }  # fmt: skip


class Answers:
    """A client with these calls."""

    def __init__(self, **calls: Callable[..., Any]) -> None:
        vars(self).update(calls)


def _answer(given: Json | ClientError) -> Json:
    if isinstance(given, ClientError):
        raise given
    return given


def _named(logical: str, resource: Json) -> str:
    name = resource.get("Properties", {}).get("TableName")
    return name if isinstance(name, str) else f"Tally-prod-{logical}"


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Aws:
    """AWS, for the credentials of ann."""
    made = Aws()
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    monkeypatch.setattr(boto3.Session, "client", lambda _, service, **how: made.client(service, **how))
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr("builtins.input", lambda _: made.typed)
    monkeypatch.setattr(deploy, "_run_cdk", lambda _, *arguments: made.cdk.append(list(arguments)))
    return made


def test_an_empty_environment_is_one_line() -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    nowhere = {"AWS_CONFIG_FILE": "/nonexistent", "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent"}
    run = subprocess.run(
        [sys.executable, "-m", "tally.cli", "destroy"], cwd=ROOT, text=True, capture_output=True, timeout=PATIENCE_S,
        stdin=subprocess.DEVNULL,
        env={**kept, **nowhere, "AWS_EC2_METADATA_DISABLED": "true", "AWS_REGION": "x"},
    )  # fmt: skip
    assert (run.returncode, run.stdout, run.stderr.count("\n")) == (2, "", 1)
    assert run.stderr.startswith("tally: there are no AWS credentials: sign in (aws sso login)")


@pytest.mark.parametrize("run", [run_deploy, run_destroy])
def test_no_region_is_one_line(
    run: Run, aws: Aws, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    assert one_line(run, [], capsys).startswith("there is no AWS region: set AWS_DEFAULT_REGION")


@pytest.mark.parametrize("run", [run_deploy, run_destroy])
def test_a_misspelt_option_never_means_the_stage_dev(run: Run, aws: Aws, capsys: pytest.CaptureFixture[str]) -> None:
    assert one_line(run, ["-c", "Stage=prod", "--yes"], capsys).startswith("context 'Stage' is unknown")
    assert "'stage' is not KEY=VALUE" in one_line(run, ["-c", "stage", "--yes"], capsys)
    assert (aws.cdk, aws.deleted) == ([], [])


def test_a_region_that_was_never_bootstrapped_is_one_line_with_the_command(
    aws: Aws, capsys: pytest.CaptureFixture[str]
) -> None:
    command = (
        "account 123456789012 was never bootstrapped in {0}: run node_modules/.bin/cdk bootstrap aws://123456789012/{0}"
    )
    cdn = [part for key, value in BEHIND_CDN.items() for part in ("-c", f"{key}={value}")]
    assert one_line(run_deploy, cdn, capsys) == command.format("us-east-1")
    aws.bootstrapped = {}
    assert one_line(run_deploy, [], capsys) == command.format("eu-west-1")
    assert aws.cdk == []


def test_without_a_terminal_it_says_how_to_answer(
    aws: Aws, dev: Template, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False)
    aws.deployed("Tally-dev", dev)
    for run in (run_deploy, run_destroy):
        said = one_line(run, [], capsys)
        assert said == "this command asks before it starts, and stdin is not a terminal: add --yes"
    assert (aws.cdk, aws.deleted) == ([], [])


@pytest.mark.parametrize(("text", "deploys"), [("y", True), ("", False), ("no", False)])
def test_it_shows_asks_and_deploys_what_it_showed(
    text: str, deploys: bool, aws: Aws, behind_cdn: Template, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who may not read the bootstrap's parameter is not stopped: `cdk` reads it with a role of its own."""
    aws.typed = text
    aws.bootstrapped = dict.fromkeys(("eu-west-1", "us-east-1"), refused("AccessDeniedException", "no"))
    folder = str(behind_cdn.folder)
    code = run_deploy(["--app", folder, "--import-existing-resources"])
    shown = capsys.readouterr().out
    assert f"to account 123456789012, region eu-west-1, as {ANN}" in shown
    assert "stack Tally-prod in eu-west-1: keeps its data when it is deleted" in shown
    assert "stack Tally-prod-edge-eu-west-1 in us-east-1" in shown
    assert aws.cdk[0] == ["diff", "--app", folder, "--import-existing-resources"]
    assert code == (0 if deploys else 1)
    assert [call[:4] for call in aws.cdk[1:]] == [["deploy", "--all", "--app", folder]] * deploys
    assert all(call[-1] == "--import-existing-resources" for call in aws.cdk)
    assert ("nothing is deployed" in shown) != deploys


def test_the_app_is_synthesized_with_the_options(
    aws: Aws, dev: Template, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of `cdk.json` are shown, too."""
    monkeypatch.setattr(deploy, "ASSEMBLY", dev.folder)
    found = account.read_context
    monkeypatch.setattr(account, "read_context", lambda given: {"snapStart": False, "mfa": "", **found(given)})
    assert run_deploy(["--yes", "-c", "stage=test", "--context=pageHosts=example.com"]) == 0
    options = ["-c", "stage=test", "-c", "pageHosts=example.com"]
    assert aws.cdk[0] == ["synth", "--quiet", "--output", str(dev.folder), *options]
    assert "\noptions: snapStart=False, stage=test, pageHosts=example.com\n" in capsys.readouterr().out


def test_a_stack_never_gets_empty_tables_in_place_of_those_it_counts_in(
    aws: Aws, dev: Template, synthesize: Synthesize, capsys: pytest.CaptureFixture[str]
) -> None:
    """A deploy that forgets `-c tables`, or over a stack whose tables CloudFormation named."""
    command = ["--yes", "--app", str(dev.folder)]
    aws.deployed("Tally-dev", synthesize(stage="prod", tables=f"Tally-prod-{MOMENT}"))
    assert run_deploy(command) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"tally: Tally-dev counts in Tally-prod-{MOMENT}-counts, ")
    assert said.endswith("would get new, empty tables: see docs/restore.md for a stack that changes its tables\n")
    assert aws.cdk == []
    assert run_deploy([*command, "--import-existing-resources"]) == 0
    aws.deployed("Tally-dev", dev)
    assert run_deploy(command) == 0


def test_a_stack_that_counts_gets_the_table_of_salts_and_loses_it_again(
    aws: Aws, dev: Template, tmp_path: Path
) -> None:
    shutil.copytree(dev.folder, tmp_path / "site")
    site = Template(tmp_path / "site")
    site.resources["SaltsTable"] = {"Type": deploy._TABLE, "Properties": {"TableName": "Tally-dev-salts"}}
    site.path.write_text(json.dumps(site.body))
    for before, after in ((dev, site), (site, dev)):
        aws.deployed("Tally-dev", before)
        assert run_deploy(["--yes", "--app", str(after.folder)]) == 0


def test_a_stack_never_gets_code_that_reads_its_data_in_another_format(
    aws: Aws, dev: Template, capsys: pytest.CaptureFixture[str]
) -> None:
    """Even where the tables are adopted: the code decides, not the names."""
    aws.deployed("Tally-dev", dev)
    aws.stacks["eu-west-1", "Tally-dev"]["Outputs"] = [{"OutputKey": "Format", "OutputValue": "7"}]
    for importing in ([], ["--import-existing-resources"]):
        assert run_deploy(["--yes", "--app", str(dev.folder), *importing]) == 2
        said = f"the stack Tally-dev has format 7, and this version reads format {keys.FORMAT}"
        assert capsys.readouterr().err == f"tally: {said}. Use the version of the stack\n"
    assert aws.cdk == []


@pytest.mark.parametrize("there", [True, False], ids=["a stack", "tables that a first deploy adopts"])
def test_a_counter_never_gets_another_form_than_it_has_counted_in(
    aws: Aws, dev: Template, capsys: pytest.CaptureFixture[str], there: bool
) -> None:
    """One that fits is not stopped, nor who may not read the ledger."""
    command = ["--yes", "--app", str(dev.folder)]
    if there:
        aws.deployed("Tally-dev", dev)
    spread = {**forms.form(DECLARED.counters["stock"]), "shards": forms.MANY}
    aws.forms = [{"SK": {"S": "stock"}, "form": {"S": json.dumps(spread)}}]
    assert run_deploy(command) == 2
    line = "counter 'stock' has counted in many shards: it can have no start, floor, ceiling, numbered or max_shards=1"
    assert capsys.readouterr().err == f"tally: {line}: {forms.WHAT_TO_DO}\n"
    assert aws.cdk == []
    aws.forms = [{"SK": {"S": "stock"}, "form": {"S": json.dumps({**spread, "shards": forms.ONE})}}]
    assert run_deploy(command) == 0
    aws.forms = refused("ResourceNotFoundException", "no such table")
    assert run_deploy(command) == 0
    assert "note: the declarations are not compared" not in capsys.readouterr().out
    aws.forms = refused("AccessDeniedException", "ann may not")
    assert run_deploy(command) == 0
    assert "note: the declarations are not compared with the stored data: " in capsys.readouterr().out


def called(folder: Path, outputs: Mapping[str, Mapping[str, str]], at: Account) -> str:
    return deploy.what_to_call(deploy.stacks_of(folder, "eu-west-1"), outputs, at)


def test_the_throttle_of_a_route_that_is_gone_goes_before_the_next_deploy(
    aws: Aws, dev: Template, capsys: pytest.CaptureFixture[str]
) -> None:
    """a5: the stage keeps it, and API Gateway then refuses each update: Unable to find Route by key."""
    aws.deployed("Tally-dev", dev)
    aws.throttled.add("GET /counters/gone/{id}")
    assert run_deploy(["--yes", "--app", str(dev.folder)]) == 0
    assert aws.throttled == {"GET /health"}
    assert "deleted route: GET /counters/gone/{id}\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, [STRANGERS]),
        ({"stage": "prod"}, ["-c mfa=required", "-c alarmEmail", STRANGERS]),
        ({"stage": "prod", "mfa": "required", "alarmEmail": "a@example.com"}, [STRANGERS]),
    ],
)  # fmt: skip
def test_it_says_what_a_person_should_know_before_they_say_yes(
    options: dict[str, str], said: list[str], aws: Aws
) -> None:
    found = list(deploy.warnings(Options.from_context(options), DECLARED, Account.from_environment(None, None)))
    assert len(found) == len(said)
    assert [part for part, whole in zip(said, found, strict=True) if part not in whole] == []


@pytest.mark.parametrize(
    ("concurrency", "needed"), [(10, None), (420, "435"), (435, None), (refused("AccessDenied", "no"), None)]
)
def test_it_says_how_many_functions_the_account_has_to_run_at_once_by_the_template(
    concurrency: Any, needed: str | None, aws: Aws, prod: Template, capsys: pytest.CaptureFixture[str]
) -> None:
    """The options of the call are not those of a folder that another app has made."""
    aws.concurrency = concurrency
    run_deploy(["--yes", "--app", str(prod.folder)])
    said = re.findall("Lambda runs 420 functions at once .* and Tally needs ([0-9]+)\\.", capsys.readouterr().out)
    assert said == [needed] * bool(needed)


def test_a_stack_that_reserves_nothing_needs_thirty(
    aws: Aws, dev: Template, capsys: pytest.CaptureFixture[str]
) -> None:
    [stack] = deploy.stacks_of(dev.folder, "eu-west-1")
    for aws.concurrency, said in ((29, True), (30, False)):
        deploy.say_low_concurrency(stack, Account.from_environment(None, None))
        assert ("and Tally needs 30." in capsys.readouterr().out) == said


@pytest.mark.parametrize(
    ("concurrency", "elsewhere", "there", "left"),
    [
        (10, 0, False, 0),  # a new account
        (404, 0, False, 304),
        (405, 0, False, None),
        (1000, 305, False, None),
        (1000, 610, False, 290),  # a third stage
        (1000, 595, True, None),  # it may keep what it has
        (1000, 595, False, None),
        (1000, 596, True, 304),
        (refused("AccessDenied", "no"), 0, False, None),
    ],
)
def test_what_an_account_cannot_reserve_is_refused_before_anything_is_deployed(
    concurrency: Any, elsewhere: int, there: bool, left: int | None, aws: Aws, prod: Template
) -> None:
    aws.concurrency, aws.elsewhere = concurrency, elsewhere
    if there:
        aws.deployed("Tally-prod", prod)
    given = deploy.stacks_of(prod.folder, "eu-west-1")[0], Account.from_environment(None, None), there
    if left is None:
        deploy.check_reservations(*given)
        return
    with pytest.raises(CommandError, match=rf"Tally-prod reserves 305 .* can reserve {left}:") as said:
        deploy.check_reservations(*given)
    wanted = max(1000, concurrency + 305 - left)
    assert f"--desired-value {wanted} " in str(said.value)
    assert "-c strangersConcurrency=0" in str(said.value)
    assert "\n" not in str(said.value)


def test_what_reserves_nothing_asks_for_nothing(aws: Aws, dev: Template) -> None:
    aws.concurrency = 10
    [stack] = deploy.stacks_of(dev.folder, "eu-west-1")
    deploy.check_reservations(stack, Account.from_environment(None, None), has_functions=False)
    assert stack.reserved_concurrency == 0


def test_a_new_account_gets_no_deploy_that_aws_would_refuse_halfway(
    aws: Aws, prod: Template, capsys: pytest.CaptureFixture[str]
) -> None:
    aws.concurrency = 10
    assert run_deploy(["--yes", "-c", "stage=prod", "--app", str(prod.folder)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not aws.cdk


@pytest.mark.parametrize(("text", "deploys"), [("y", True), ("no", False)])
def test_a_first_deploy_that_was_rolled_back_is_done_again(
    text: str, deploys: bool, aws: Aws, prod: Template, capsys: pytest.CaptureFixture[str]
) -> None:
    """a1: the stack is protected, takes no update, and its tables are there under their fixed names."""
    aws.typed = text
    aws.deployed("Tally-prod", prod, protected=True)
    aws.stacks["eu-west-1", "Tally-prod"]["StackStatus"] = "ROLLBACK_COMPLETE"
    aws.tables = {"Tally-prod-counts", "Tally-prod-ledger", "other"}
    failed = {"LogicalResourceId": "Stage", "ResourceStatus": "CREATE_FAILED", "PhysicalResourceId": "s"}
    aws.events = [
        failed | {"LogicalResourceId": "Late", "ResourceStatusReason": "Resource creation cancelled"},
        failed | {"ResourceStatusReason": "policy document length exceeds"},
        *(
            {"LogicalResourceId": "X", "ResourceStatus": "DELETE_SKIPPED", "ResourceType": type_,
             "PhysicalResourceId": name}
            for type_, name in (("AWS::DynamoDB::Table", "Tally-prod-counts"), ("AWS::S3::Bucket", "empty"))
        ),
    ]  # fmt: skip
    assert run_deploy(["--app", str(prod.folder)]) == (0 if deploys else 1)
    shown = capsys.readouterr().out
    assert "the first deploy of Tally-prod failed" in shown
    assert "  Stage: policy document length exceeds\n" in shown
    assert "Late" not in shown
    assert "  bucket     empty\n" in shown
    assert "  table " not in shown
    assert "keeps these tables and adopts them: Tally-prod-counts, Tally-prod-ledger\n" in shown
    assert aws.deleted == ["id of Tally-prod"] * deploys
    assert [call[0] for call in aws.cdk] == ["diff", "deploy"] * deploys
    assert all(call[-1] == "--import-existing-resources" for call in aws.cdk)


def test_an_edge_whose_first_deploy_failed_is_deleted_and_made_again(
    aws: Aws, behind_cdn: Template, edge: Template, capsys: pytest.CaptureFixture[str]
) -> None:
    """The stack before it stays as it is, with its tables: nothing is adopted."""
    aws.typed = "y"
    aws.bootstrapped |= {"us-east-1": None}
    aws.tables = {"Tally-prod-counts"}
    aws.deployed("Tally-prod", behind_cdn, protected=True)
    aws.deployed("Tally-prod-edge-eu-west-1", edge, "us-east-1", protected=True)
    aws.stacks["us-east-1", "Tally-prod-edge-eu-west-1"]["StackStatus"] = "ROLLBACK_COMPLETE"
    assert run_deploy(["--app", str(behind_cdn.folder)]) == 0
    assert "the first deploy of Tally-prod-edge-eu-west-1 failed" in capsys.readouterr().out
    assert aws.deleted == ["id of Tally-prod-edge-eu-west-1"]
    assert [call[0] for call in aws.cdk] == ["diff", "deploy"]
    assert not any("--import-existing-resources" in call for call in aws.cdk)


def test_it_ends_with_the_lines_of_the_readme_and_a_token(aws: Aws, dev: Template) -> None:
    url = "https://abc.execute-api.eu-west-1.amazonaws.com"
    of_pool = {"UserPoolId": "eu-west-1_x", "MachineClientId": "machine", "TokenUrl": "https://t/oauth2/token"}
    text = called(
        dev.folder,
        {"Tally-dev": {"ApiUrl": url, "Counters": "plays, likes", **of_pool}},
        Account.from_environment(None, None),
    )
    readme = (ROOT / "README.md").read_text()
    for line in (deploy.PLAY_COMMAND, deploy.PLAYS_COMMAND):
        shown = line.format(url="localhost:8080", key="5f0c2b9e-6f0a-4b63-8a37-0d1a4f0f6f11")
        assert f"$ {shown}\n" in readme
        assert line.partition("{key}")[0].format(url=url) in text
    [token] = [line.strip() for line in text.splitlines() if "TOKEN=$(" in line]
    assert subprocess.run(["sh", "-n"], input=token, text=True, check=False).returncode == 0
    for part in ("https://t/oauth2/token", "machine:$(aws cognito-idp", "--user-pool-id eu-west-1_x"):
        assert part in token
    assert ".venv/bin/tally status --stack Tally-dev" in text
    assert "CNAME" not in text
    votes = called(
        dev.folder, {"Tally-dev": {"ApiUrl": url, "Counters": "votes"}}, Account.from_environment(None, None)
    )
    assert "  .venv/bin/tally count votes 9f3a --stack Tally-dev\n" in votes
    assert "/videos/" not in votes


def test_no_such_stack_is_one_line(aws: Aws, capsys: pytest.CaptureFixture[str]) -> None:
    said = one_line(run_destroy, ["--yes", "-c", "stage=prdo"], capsys)
    assert said == "there is no stack Tally-prdo in account 123456789012, region eu-west-1"
    assert destroy.stack_names("prod", "eu-west-1") == (
        names.stack_name("prod"),
        names.edge_stack_name("prod", "eu-west-1"),
    )


def test_protected_stacks_are_one_line_with_what_to_run(
    aws: Aws, behind_cdn: Template, capsys: pytest.CaptureFixture[str]
) -> None:
    aws.deployed("Tally-prod", behind_cdn, protected=True)
    aws.deployed("Tally-prod-edge-eu-west-1", behind_cdn, "us-east-1", protected=True)
    said = one_line(run_destroy, ["--yes", "-c", "stage=prod"], capsys)
    commands = [shlex.split(command) for command in said.partition("run first: ")[2].split(" && ")]
    assert [command[-3:] for command in commands] == [
        ["us-east-1", "--stack-name", "Tally-prod-edge-eu-west-1"], ["eu-west-1", "--stack-name", "Tally-prod"],
    ]  # fmt: skip
    assert all(command[:3] == ["aws", "cloudformation", "update-termination-protection"] for command in commands)
    assert aws.deleted == []


def test_the_edge_goes_first_and_what_remains_is_named(
    aws: Aws, behind_cdn: Template, edge: Template, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before and after: every resource that the template keeps."""
    aws.deployed("Tally-prod", behind_cdn)
    aws.deployed("Tally-prod-edge-eu-west-1", edge, "us-east-1")
    assert run_destroy(["--yes", "-c", "stage=prod"]) == 0
    assert aws.deleted == ["id of Tally-prod-edge-eu-west-1", "id of Tally-prod"]
    before, _, after = capsys.readouterr().out.partition("deleted; in account 123456789012 remain")
    kept = [_named(name, one) for name, one in behind_cdn.resources.items() if one.get("DeletionPolicy") == "Retain"]
    assert len(kept) >= 19
    for name in kept:
        assert name in before
        assert f"{name}  (eu-west-1)" in after
    assert "deletes Tally-prod-edge-eu-west-1 in us-east-1: keeps 1\n  keeps bucket " in before
    assert after.splitlines()[-1] == '  make deploy ARGS="-c stage=prod --import-existing-resources"'
    assert "Tally-prod-counts" in kept, "CloudFormation adopts a table by its fixed name"


def test_restored_tables_are_adopted_by_their_moment(
    aws: Aws, synthesize: Synthesize, capsys: pytest.CaptureFixture[str]
) -> None:
    aws.deployed("Tally-prod", synthesize(stage="prod", tables=f"Tally-prod-{MOMENT}"))
    assert run_destroy(["--yes", "-c", "stage=prod"]) == 0
    wanted = f'-c stage=prod -c tables=Tally-prod-{MOMENT} --import-existing-resources"'
    assert capsys.readouterr().out.strip().endswith(wanted)


@pytest.mark.parametrize(("text", "deletes"), [("Tally-dev", True), ("y", False), ("", False)])
def test_the_name_must_be_typed(
    text: str, deletes: bool, aws: Aws, dev: Template, capsys: pytest.CaptureFixture[str]
) -> None:
    aws.deployed("Tally-dev", dev)
    aws.typed = text
    assert run_destroy([]) == (0 if deletes else 1)
    assert aws.deleted == ["id of Tally-dev"] * deletes
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == ("deleted; nothing remains" if deletes else "nothing is deleted")


def test_a_stack_that_cannot_be_deleted_is_reported_in_one_line_with_the_reason(
    aws: Aws, dev: Template, capsys: pytest.CaptureFixture[str]
) -> None:
    aws.deployed("Tally-dev", dev)
    event = {"ResourceStatus": "DELETE_FAILED", "LogicalResourceId": "DeadLetterBucket", "PhysicalResourceId": "b"}
    whole = event | {"LogicalResourceId": "Tally-dev", "PhysicalResourceId": "id of Tally-dev"}
    aws.stuck = [event | {"ResourceStatusReason": "The bucket is not empty"}, whole]
    assert run_destroy(["--yes"]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said == "tally: Tally-dev is not deleted: DeadLetterBucket: The bucket is not empty"
