"""`make deploy` and `make destroy`: errors, warnings and questions. tests/emulator runs the commands themselves."""

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
from tally.cli import account, assembly, deploy, destroy
from tally.cli.__main__ import main
from tally.cli.account import Account
from tally.cli.terminal import CommandError
from tally.dynamo import keys
from tally.streams import fingerprints
from tests.commands import error_of
from tests.infra.conftest import BEHIND_CDN, DECLARED, ROOT, Synthesize
from tests.infra.template import Template
from tests.infra.test_tables import MOMENT
from tests.patience import PATIENCE_S

Json = dict[str, Any]
ANN = "arn:aws:iam::123456789012:user/ann"
Run = Callable[[list[str]], int]
COST_WARNING = " a day: AWS Budgets can mail you"  # a part of the warning that every deploy prints


def run_deploy(arguments: list[str]) -> int:
    return main(["deploy", *arguments])


def run_destroy(arguments: list[str]) -> int:
    return main(["destroy", *arguments])


def client_error(code: str, message: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": message}}, "Call")


class Aws:
    """A fake of AWS for `make deploy` and `make destroy`. A ClientError in place of an answer is raised."""

    def __init__(self) -> None:
        self.caller: Json | ClientError = {"Account": "123456789012", "Arn": ANN}
        self.bootstrapped: dict[str, ClientError | None] = {"eu-west-1": None}
        """By region: the error of a read of the bootstrap's version; None: the read succeeds."""
        self.stacks: dict[tuple[str, str], Json] = {}  # by region and name
        self.deleted: list[str] = []  # ids of stacks
        self.failed_deletion: list[Json] = []
        """The events of a deletion that fails; empty: deletions succeed."""
        self.events: list[Json] = []
        """The events of a stack, the newest first."""
        self.tables: set[str] = set()
        self.fingerprints: Any = []
        """The items of the ledger with the schema fingerprints of counters."""
        self.concurrency: int | ClientError = 1000
        self.reserved_elsewhere = 0
        """The part of `concurrency` that other stacks reserve."""
        self.routes = {"GET /health"}
        self.throttled = {"GET /health"}
        """The routes for which the deployed stage has settings."""
        self.typed = ""
        """The text that the person at the terminal types."""
        self.cdk: list[list[str]] = []
        """The arguments of each call of `cdk`, which does nothing."""

    def client(self, service: str, region_name: str, **_: Any) -> Any:
        return getattr(self, f"_{service}")(region_name)

    def _sts(self, region: str) -> Any:
        return FakeClient(get_caller_identity=lambda: _answer(self.caller))

    def _ssm(self, region: str) -> Any:
        def get_parameter(Name: str) -> Json:
            assert Name == "/cdk-bootstrap/hnb659fds/version"
            missing = client_error("ParameterNotFound", "not found")
            return _answer(self.bootstrapped.get(region, missing) or {"Parameter": {"Value": "30"}})

        return FakeClient(get_parameter=get_parameter)

    def _lambda(self, region: str) -> Any:
        reserved_by_function = {
            _physical_name(name, resource): resource["Properties"].get("ReservedConcurrentExecutions", 0)
            for stack in self.stacks.values()
            for name, resource in stack["template"]["Resources"].items()
            if resource["Type"] == "AWS::Lambda::Function"
        }

        def settings() -> Json:
            if isinstance(self.concurrency, ClientError):
                raise self.concurrency
            unreserved = self.concurrency - self.reserved_elsewhere - sum(reserved_by_function.values())
            limits = {"ConcurrentExecutions": self.concurrency, "UnreservedConcurrentExecutions": unreserved}
            return {"AccountLimit": limits}

        def reserved(FunctionName: str) -> Json:
            reservation = reserved_by_function[FunctionName]
            return {"ReservedConcurrentExecutions": reservation} if reservation else {}

        return FakeClient(get_account_settings=settings, get_function_concurrency=reserved)

    def _apigatewayv2(self, region: str) -> Any:
        def pages(ApiId: str) -> list[Json]:
            return [{"Items": [{"RouteKey": route}]} for route in self.routes]

        return FakeClient(
            get_paginator=lambda name: FakeClient(paginate={"get_routes": pages}[name]),
            get_stage=lambda ApiId, StageName: {"RouteSettings": {key: {} for key in self.throttled}},
            delete_route_settings=lambda RouteKey, ApiId, StageName: self.throttled.remove(RouteKey),
        )

    def _dynamodb(self, region: str) -> Any:
        def describe_table(TableName: str) -> Json:
            if TableName not in self.tables:
                raise client_error("ResourceNotFoundException", "not found")
            return {}

        def query(**_: Any) -> Json:
            return {"Items": _answer(self.fingerprints)}

        return FakeClient(describe_table=describe_table, query=query)

    def _cloudformation(self, region: str) -> Any:
        def stack(StackName: str) -> Json:
            if (region, StackName) not in self.stacks:
                raise client_error("ValidationError", f"Stack with id {StackName} does not exist")
            return self.stacks[region, StackName]

        def wait(StackName: str, **_: Any) -> None:
            if self.failed_deletion:
                raise WaiterError("StackDeleteComplete", "Waiter encountered a terminal failure state", {})

        def resources(StackName: str) -> list[Json]:
            listed = stack(StackName)["template"]["Resources"].items()
            summary = [
                {
                    "LogicalResourceId": name,
                    "ResourceType": resource["Type"],
                    "PhysicalResourceId": _physical_name(name, resource),
                }
                for name, resource in listed
            ]
            return [{"StackResourceSummaries": summary}]

        def delete(StackName: str) -> None:
            [name] = [name for (_, name), stack in self.stacks.items() if stack["StackId"] == StackName]
            if self.stacks[region, name]["EnableTerminationProtection"]:
                raise client_error(
                    "ValidationError", f"Stack [{name}] cannot be deleted while TerminationProtection is enabled"
                )
            self.deleted.append(StackName)

        def events(**_: Any) -> list[Json]:
            return [{"StackEvents": self.failed_deletion or self.events}]

        def protect(StackName: str, *, EnableTerminationProtection: bool) -> None:
            self.stacks[region, StackName]["EnableTerminationProtection"] = EnableTerminationProtection

        pages = {"list_stack_resources": resources, "describe_stack_events": events}
        return FakeClient(
            describe_stacks=lambda StackName: {"Stacks": [stack(StackName)]},
            get_template=lambda StackName: {"TemplateBody": stack(StackName)["template"]},
            get_paginator=lambda name: FakeClient(paginate=pages[name]),
            get_waiter=lambda _: FakeClient(wait=wait),
            delete_stack=delete,
            update_termination_protection=protect,
        )

    def add_stack(self, name: str, template: Template, region: str = "eu-west-1", *, protected: bool = False) -> None:
        self.stacks[region, name] = {
            "StackId": f"id of {name}", "EnableTerminationProtection": protected, "template": template.body,
            "StackStatus": "CREATE_COMPLETE",
            "Outputs": [{"OutputKey": "StorageFormat", "OutputValue": template.outputs["StorageFormat"]["Value"]}]
            if "StorageFormat" in template.outputs else [],
        }  # fmt: skip


class FakeClient:
    """A client that has these methods."""

    def __init__(self, **calls: Callable[..., Any]) -> None:
        vars(self).update(calls)


def _answer(answer: Json | ClientError) -> Json:
    if isinstance(answer, ClientError):
        raise answer
    return answer


def _physical_name(logical: str, resource: Json) -> str:
    name = resource.get("Properties", {}).get("TableName")
    return name if isinstance(name, str) else f"Tally-prod-{logical}"


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Aws:
    """A fake of AWS, with the credentials of ann."""
    fake = Aws()
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    monkeypatch.setattr(boto3.Session, "client", lambda _, service, **options: fake.client(service, **options))
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr("builtins.input", lambda _: fake.typed)
    monkeypatch.setattr(deploy, "_run_cdk", lambda _, *arguments: fake.cdk.append(list(arguments)))
    return fake


def test_an_environment_without_credentials_gives_an_error_of_one_line() -> None:
    without_aws = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    missing_files = {"AWS_CONFIG_FILE": "/nonexistent", "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent"}
    run = subprocess.run(
        [sys.executable, "-m", "tally.cli", "destroy"], cwd=ROOT, text=True, capture_output=True, timeout=PATIENCE_S,
        stdin=subprocess.DEVNULL,
        env={**without_aws, **missing_files, "AWS_EC2_METADATA_DISABLED": "true", "AWS_REGION": "x"},
    )  # fmt: skip
    assert (run.returncode, run.stdout, run.stderr.count("\n")) == (2, "", 1)
    assert run.stderr.startswith("tally: there are no AWS credentials: sign in (aws sso login)")


@pytest.mark.parametrize("run", [run_deploy, run_destroy])
def test_a_missing_region_gives_an_error_of_one_line(
    run: Run, aws: Aws, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    assert error_of(run, [], capsys).startswith("there is no AWS region: set AWS_DEFAULT_REGION")


@pytest.mark.parametrize("run", [run_deploy, run_destroy])
def test_a_misspelt_option_is_refused_and_never_means_the_stage_dev(
    run: Run, aws: Aws, capsys: pytest.CaptureFixture[str]
) -> None:
    assert error_of(run, ["-c", "Stage=prod", "--yes"], capsys).startswith("context 'Stage' is unknown")
    assert "'stage' is not KEY=VALUE" in error_of(run, ["-c", "stage", "--yes"], capsys)
    assert (aws.cdk, aws.deleted) == ([], [])


def test_a_region_without_bootstrap_gives_an_error_of_one_line_with_the_command(
    aws: Aws, capsys: pytest.CaptureFixture[str]
) -> None:
    command = (
        "account 123456789012 was never bootstrapped in {0}: run node_modules/.bin/cdk bootstrap aws://123456789012/{0}"
    )
    # The edge of BEHIND_CDN is in us-east-1.
    cdn = [part for key, value in BEHIND_CDN.items() for part in ("-c", f"{key}={value}")]
    assert error_of(run_deploy, cdn, capsys) == command.format("us-east-1")
    aws.bootstrapped = {}
    assert error_of(run_deploy, [], capsys) == command.format("eu-west-1")
    assert aws.cdk == []


def test_without_a_terminal_both_commands_ask_for_the_option_yes(
    aws: Aws, dev: Template, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False)
    aws.add_stack("Tally-dev", dev)
    for run in (run_deploy, run_destroy):
        assert error_of(run, [], capsys) == "this command asks before it starts, and stdin is not a terminal: add --yes"
    assert (aws.cdk, aws.deleted) == ([], [])


@pytest.mark.parametrize(("text", "deploys"), [("y", True), ("", False), ("no", False)])
def test_deploy_shows_the_changes_asks_and_deploys_the_same_folder(
    text: str, deploys: bool, aws: Aws, behind_cdn: Template, capsys: pytest.CaptureFixture[str]
) -> None:
    """A person who may not read the bootstrap's parameter may deploy, because `cdk` reads it with its own role."""
    aws.typed = text
    aws.bootstrapped = dict.fromkeys(("eu-west-1", "us-east-1"), client_error("AccessDeniedException", "no"))
    folder = str(behind_cdn.folder)
    code = run_deploy(["--app", folder, "--import-existing-resources"])
    output = capsys.readouterr().out
    assert f"to account 123456789012, region eu-west-1, as {ANN}" in output
    assert "stack Tally-prod in eu-west-1: keeps its data when it is deleted" in output
    assert "stack Tally-prod-edge-eu-west-1 in us-east-1" in output
    assert aws.cdk[0] == ["diff", "--app", folder, "--import-existing-resources"]
    assert code == (0 if deploys else 1)
    assert [call[:4] for call in aws.cdk[1:]] == [["deploy", "--all", "--app", folder]] * deploys
    assert all(call[-1] == "--import-existing-resources" for call in aws.cdk)
    assert ("nothing is deployed" in output) != deploys


def test_the_app_is_synthesized_with_the_options(
    aws: Aws, dev: Template, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command also shows the options of `cdk.json`, but not `mfa`, which is empty."""
    monkeypatch.setattr(deploy, "ASSEMBLY", dev.folder)
    read_context = account.read_context
    monkeypatch.setattr(
        account, "read_context", lambda options: {"snapStart": False, "mfa": "", **read_context(options)}
    )
    assert run_deploy(["--yes", "-c", "stage=test", "--context=pageHosts=example.com"]) == 0
    options = ["-c", "stage=test", "-c", "pageHosts=example.com"]
    assert aws.cdk[0] == ["synth", "--quiet", "--output", str(dev.folder), *options]
    assert "\noptions: snapStart=False, stage=test, pageHosts=example.com\n" in capsys.readouterr().out


def test_a_deploy_that_would_replace_the_tables_of_a_stack_with_empty_ones_is_refused(
    aws: Aws, dev: Template, synthesize: Synthesize, capsys: pytest.CaptureFixture[str]
) -> None:
    """This stack has adopted restored tables, and the deploy lacks the option `-c tables` that names the tables.
    A deploy that adopts tables is not checked."""
    command = ["--yes", "--app", str(dev.folder)]
    aws.add_stack("Tally-dev", synthesize(stage="prod", tables=f"Tally-prod-{MOMENT}"))
    assert run_deploy(command) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"tally: Tally-dev counts in Tally-prod-{MOMENT}-counts, ")
    assert error.endswith("would get new, empty tables: see docs/restore.md for a stack that changes its tables\n")
    assert aws.cdk == []
    assert run_deploy([*command, "--import-existing-resources"]) == 0
    aws.add_stack("Tally-dev", dev)
    assert run_deploy(command) == 0


def test_a_deploy_may_add_and_remove_the_table_of_salts(aws: Aws, dev: Template, tmp_path: Path) -> None:
    shutil.copytree(dev.folder, tmp_path / "with salts")
    with_salts = Template(tmp_path / "with salts")
    with_salts.resources["SaltsTable"] = {"Type": assembly.TABLE, "Properties": {"TableName": "Tally-dev-salts"}}
    with_salts.path.write_text(json.dumps(with_salts.body))
    for before, after in ((dev, with_salts), (with_salts, dev)):
        aws.add_stack("Tally-dev", before)
        assert run_deploy(["--yes", "--app", str(after.folder)]) == 0


def test_a_deploy_of_code_that_reads_another_storage_format_than_the_stacks_is_refused(
    aws: Aws, dev: Template, capsys: pytest.CaptureFixture[str]
) -> None:
    """The option --import-existing-resources, which skips the check of the tables, does not skip this check."""
    aws.add_stack("Tally-dev", dev)
    aws.stacks["eu-west-1", "Tally-dev"]["Outputs"] = [{"OutputKey": "StorageFormat", "OutputValue": "7"}]
    for adopting in ([], ["--import-existing-resources"]):
        assert run_deploy(["--yes", "--app", str(dev.folder), *adopting]) == 2
        error = f"the stack Tally-dev has format 7, and this version reads format {keys.FORMAT}"
        assert capsys.readouterr().err == f"tally: {error}. Use the version of the stack\n"
    assert aws.cdk == []


@pytest.mark.parametrize("has_stack", [True, False], ids=["a stack", "tables that a first deploy adopts"])
def test_a_deploy_that_changes_the_fingerprint_of_a_counter_is_refused(
    aws: Aws, dev: Template, capsys: pytest.CaptureFixture[str], has_stack: bool
) -> None:
    """The deploy is allowed if the fingerprint fits or there is no ledger, and with a note if the person may not read
    the ledger."""
    command = ["--yes", "--app", str(dev.folder)]
    if has_stack:
        aws.add_stack("Tally-dev", dev)
    many_shards = {**fingerprints.fingerprint_of(DECLARED.counters["stock"]), "shards": fingerprints.MANY}
    aws.fingerprints = [{"SK": {"S": "stock"}, "fingerprint": {"S": json.dumps(many_shards)}}]
    assert run_deploy(command) == 2
    line = "counter 'stock' has counted in many shards: it can have no start, floor, ceiling, numbered or max_shards=1"
    assert capsys.readouterr().err == f"tally: {line}: {fingerprints.WHAT_TO_DO}\n"
    assert aws.cdk == []
    aws.fingerprints = [
        {"SK": {"S": "stock"}, "fingerprint": {"S": json.dumps({**many_shards, "shards": fingerprints.ONE})}}
    ]
    assert run_deploy(command) == 0
    aws.fingerprints = client_error("ResourceNotFoundException", "no such table")
    assert run_deploy(command) == 0
    assert "note: the declarations are not compared" not in capsys.readouterr().out
    aws.fingerprints = client_error("AccessDeniedException", "ann may not")
    assert run_deploy(command) == 0
    assert "note: the declarations are not compared with the stored data: " in capsys.readouterr().out


def commands_to_paste(folder: Path, outputs: Mapping[str, Mapping[str, str]], target: Account) -> str:
    """Returns the end of what a deploy prints. `outputs`: the outputs of each deployed stack, by the stack's name."""
    return deploy.what_to_call(assembly.read_stacks(folder, "eu-west-1"), outputs, target)


def test_a_deploy_first_removes_the_throttle_of_a_route_that_does_not_exist(
    aws: Aws, dev: Template, capsys: pytest.CaptureFixture[str]
) -> None:
    """API Gateway keeps the throttle of a deleted route, and then refuses each update: Unable to find Route by key."""
    aws.add_stack("Tally-dev", dev)
    aws.throttled.add("GET /counters/gone/{id}")
    assert run_deploy(["--yes", "--app", str(dev.folder)]) == 0
    assert aws.throttled == {"GET /health"}
    assert "deleted route: GET /counters/gone/{id}\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({}, [COST_WARNING]),
        ({"stage": "prod"}, ["-c mfa=required", "-c alarmEmail", COST_WARNING]),
        ({"stage": "prod", "mfa": "required", "alarmEmail": "a@example.com"}, [COST_WARNING]),
    ],
)  # fmt: skip
def test_a_deploy_warns_of_cost_and_of_missing_mfa_and_mail(
    options: dict[str, str], parts: list[str], aws: Aws
) -> None:
    warnings = list(deploy.warnings(Options.from_context(options), DECLARED, Account.from_environment(None, None)))
    assert len(warnings) == len(parts)
    assert [part for part, warning in zip(parts, warnings, strict=True) if part not in warning] == []


@pytest.mark.parametrize(
    ("concurrency", "needed"), [(10, None), (420, "435"), (435, None), (client_error("AccessDenied", "no"), None)]
)
def test_deploy_notes_that_the_account_runs_fewer_functions_at_once_than_the_template_needs(
    concurrency: Any, needed: str | None, aws: Aws, prod: Template, capsys: pytest.CaptureFixture[str]
) -> None:
    """Prod needs 435: its reservations (305), what AWS keeps unreserved (100), and CONCURRENCY_MIN (30).

    With 10, the deploy is refused without a note. The need comes from the template, because another app may have made
    the folder.
    """
    aws.concurrency = concurrency
    run_deploy(["--yes", "--app", str(prod.folder)])
    notes = re.findall("Lambda runs 420 functions at once .* and Tally needs ([0-9]+)\\.", capsys.readouterr().out)
    assert notes == [needed] * bool(needed)


def test_a_stack_without_reservations_needs_thirty_functions_at_once(
    aws: Aws, dev: Template, capsys: pytest.CaptureFixture[str]
) -> None:
    [stack] = assembly.read_stacks(dev.folder, "eu-west-1")
    for aws.concurrency, has_note in ((29, True), (30, False)):
        deploy.say_low_concurrency(stack, Account.from_environment(None, None))
        assert ("and Tally needs 30." in capsys.readouterr().out) == has_note


def test_the_advised_quota_is_the_need_if_the_need_is_above_a_thousand(
    aws: Aws, dev: Template, capsys: pytest.CaptureFixture[str]
) -> None:
    [stack] = assembly.read_stacks(dev.folder, "eu-west-1")
    aws.concurrency = 1000
    deploy.say_low_concurrency(stack._replace(reserved_concurrency=890), Account.from_environment(None, None))
    assert "--desired-value 1020 " in capsys.readouterr().out  # 890, the 100 unreserved, and CONCURRENCY_MIN (30)


@pytest.mark.parametrize(
    ("concurrency", "elsewhere", "has_stack", "available"),
    [  # available: the concurrency less 100, which AWS keeps unreserved, and less `elsewhere`; None: at least 305
        (10, 0, False, 0),  # a new account
        (404, 0, False, 304),
        (405, 0, False, None),
        (1000, 305, False, None),
        (1000, 610, False, 290),  # two other stages have reserved 305 each
        (1000, 595, True, None),  # the stack keeps what it has reserved
        (1000, 595, False, None),
        (1000, 596, True, 304),
        (client_error("AccessDenied", "no"), 0, False, None),
    ],
)
def test_a_stack_whose_reservations_the_account_cannot_give_is_refused_before_the_deploy(
    concurrency: Any, elsewhere: int, has_stack: bool, available: int | None, aws: Aws, prod: Template
) -> None:
    aws.concurrency, aws.reserved_elsewhere = concurrency, elsewhere
    if has_stack:
        aws.add_stack("Tally-prod", prod)
    arguments = assembly.read_stacks(prod.folder, "eu-west-1")[0], Account.from_environment(None, None), has_stack
    if available is None:
        deploy.check_reservations(*arguments)
        return
    with pytest.raises(CommandError, match=rf"Tally-prod reserves 305 .* can reserve {available}:") as refused:
        deploy.check_reservations(*arguments)
    quota = max(1000, concurrency + 305 - available)  # has room for all 305, and is not below AWS's default
    assert f"--desired-value {quota} " in str(refused.value)
    assert "-c strangersConcurrency=0" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_new_account_can_deploy_a_stack_without_reservations(aws: Aws, dev: Template) -> None:
    aws.concurrency = 10
    [stack] = assembly.read_stacks(dev.folder, "eu-west-1")
    deploy.check_reservations(stack, Account.from_environment(None, None), has_functions=False)
    assert stack.reserved_concurrency == 0


def test_a_new_account_with_too_low_a_quota_is_refused_before_the_deploy(
    aws: Aws, prod: Template, capsys: pytest.CaptureFixture[str]
) -> None:
    aws.concurrency = 10
    assert run_deploy(["--yes", "-c", "stage=prod", "--app", str(prod.folder)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not aws.cdk


@pytest.mark.parametrize(("text", "deploys"), [("y", True), ("no", False)])
def test_a_first_deploy_that_was_rolled_back_is_repeated_and_adopts_its_tables(
    text: str, deploys: bool, aws: Aws, prod: Template, capsys: pytest.CaptureFixture[str]
) -> None:
    """CloudFormation does not update such a stack, and deletes it only without protection. Its tables remain."""
    aws.typed = text
    aws.add_stack("Tally-prod", prod, protected=True)
    aws.stacks["eu-west-1", "Tally-prod"]["StackStatus"] = "ROLLBACK_COMPLETE"
    aws.tables = {"Tally-prod-counts", "Tally-prod-ledger", "other"}
    failed_event = {"LogicalResourceId": "Stage", "ResourceStatus": "CREATE_FAILED", "PhysicalResourceId": "s"}
    aws.events = [
        failed_event | {"LogicalResourceId": "Cancelled", "ResourceStatusReason": "Resource creation cancelled"},
        failed_event | {"ResourceStatusReason": "policy document length exceeds"},
        *(
            {"LogicalResourceId": "X", "ResourceStatus": "DELETE_SKIPPED", "ResourceType": type_,
             "PhysicalResourceId": name}
            for type_, name in (("AWS::DynamoDB::Table", "Tally-prod-counts"), ("AWS::S3::Bucket", "empty"))
        ),
    ]  # fmt: skip
    assert run_deploy(["--app", str(prod.folder)]) == (0 if deploys else 1)
    output = capsys.readouterr().out
    assert "the first deploy of Tally-prod failed" in output
    assert "  Stage: policy document length exceeds\n" in output
    assert "Cancelled" not in output
    assert "  bucket     empty\n" in output
    assert "  table " not in output, "the next deploy adopts the tables"
    assert "keeps these tables and adopts them: Tally-prod-counts, Tally-prod-ledger\n" in output
    assert aws.deleted == ["id of Tally-prod"] * deploys
    assert [call[0] for call in aws.cdk] == ["diff", "deploy"] * deploys
    assert all(call[-1] == "--import-existing-resources" for call in aws.cdk)


def test_an_edge_whose_first_deploy_failed_is_deleted_and_made_again(
    aws: Aws, behind_cdn: Template, edge: Template, capsys: pytest.CaptureFixture[str]
) -> None:
    """The main stack keeps its tables, so the deploy adopts no table."""
    aws.typed = "y"
    aws.bootstrapped |= {"us-east-1": None}
    aws.tables = {"Tally-prod-counts"}
    aws.add_stack("Tally-prod", behind_cdn, protected=True)
    aws.add_stack("Tally-prod-edge-eu-west-1", edge, "us-east-1", protected=True)
    aws.stacks["us-east-1", "Tally-prod-edge-eu-west-1"]["StackStatus"] = "ROLLBACK_COMPLETE"
    assert run_deploy(["--app", str(behind_cdn.folder)]) == 0
    assert "the first deploy of Tally-prod-edge-eu-west-1 failed" in capsys.readouterr().out
    assert aws.deleted == ["id of Tally-prod-edge-eu-west-1"]
    assert [call[0] for call in aws.cdk] == ["diff", "deploy"]
    assert not any("--import-existing-resources" in call for call in aws.cdk)


def test_deploy_ends_with_the_commands_of_the_readme_and_a_command_that_gets_a_token(aws: Aws, dev: Template) -> None:
    url = "https://abc.execute-api.eu-west-1.amazonaws.com"
    pool_outputs = {"UserPoolId": "eu-west-1_x", "MachineClientId": "machine", "TokenUrl": "https://t/oauth2/token"}
    text = commands_to_paste(
        dev.folder,
        {"Tally-dev": {"ApiUrl": url, "Counters": "plays, likes", **pool_outputs}},
        Account.from_environment(None, None),
    )
    readme = (ROOT / "README.md").read_text()
    for line in (deploy.PLAY_COMMAND, deploy.PLAYS_COMMAND):
        command = line.format(url="localhost:8080", key="5f0c2b9e-6f0a-4b63-8a37-0d1a4f0f6f11")
        assert f"$ {command}\n" in readme
        assert line.partition("{key}")[0].format(url=url) in text
    [token] = [line.strip() for line in text.splitlines() if "TOKEN=$(" in line]
    assert subprocess.run(["sh", "-n"], input=token, text=True, check=False).returncode == 0
    for part in ("https://t/oauth2/token", "machine:$(aws cognito-idp", "--user-pool-id eu-west-1_x"):
        assert part in token
    assert ".venv/bin/tally status --stack Tally-dev" in text
    assert "CNAME" not in text
    votes = commands_to_paste(
        dev.folder, {"Tally-dev": {"ApiUrl": url, "Counters": "votes"}}, Account.from_environment(None, None)
    )
    assert "  .venv/bin/tally count votes 9f3a --stack Tally-dev\n" in votes
    assert "/videos/" not in votes


def test_a_missing_stack_gives_an_error_of_one_line(aws: Aws, capsys: pytest.CaptureFixture[str]) -> None:
    error = error_of(run_destroy, ["--yes", "-c", "stage=prdo"], capsys)
    assert error == "there is no stack Tally-prdo in account 123456789012, region eu-west-1"
    assert destroy.stack_names("prod", "eu-west-1") == (
        names.stack_name("prod"),
        names.edge_stack_name("prod", "eu-west-1"),
    )


def test_protected_stacks_give_an_error_of_one_line_with_the_commands(
    aws: Aws, behind_cdn: Template, capsys: pytest.CaptureFixture[str]
) -> None:
    aws.add_stack("Tally-prod", behind_cdn, protected=True)
    aws.add_stack("Tally-prod-edge-eu-west-1", behind_cdn, "us-east-1", protected=True)
    error = error_of(run_destroy, ["--yes", "-c", "stage=prod"], capsys)
    commands = [shlex.split(command) for command in error.partition("run first: ")[2].split(" && ")]
    assert [command[-3:] for command in commands] == [
        ["us-east-1", "--stack-name", "Tally-prod-edge-eu-west-1"], ["eu-west-1", "--stack-name", "Tally-prod"],
    ]  # fmt: skip
    assert all(command[:3] == ["aws", "cloudformation", "update-termination-protection"] for command in commands)
    assert aws.deleted == []


def test_destroy_deletes_the_edge_first_and_names_the_resources_that_remain(
    aws: Aws, behind_cdn: Template, edge: Template, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command names each kept resource before the question and after the deletion."""
    aws.add_stack("Tally-prod", behind_cdn)
    aws.add_stack("Tally-prod-edge-eu-west-1", edge, "us-east-1")
    assert run_destroy(["--yes", "-c", "stage=prod"]) == 0
    assert aws.deleted == ["id of Tally-prod-edge-eu-west-1", "id of Tally-prod"]
    before, _, after = capsys.readouterr().out.partition("deleted; in account 123456789012 remain")
    retained = {
        id_: resource for id_, resource in behind_cdn.resources.items() if resource.get("DeletionPolicy") == "Retain"
    }
    names_kept = [_physical_name(id_, resource) for id_, resource in retained.items()]
    assert len(names_kept) >= 19, "without a kept resource, the next lines assert nothing"
    for name in names_kept:
        assert name in before
        assert f"{name}  (eu-west-1)" in after
    assert "deletes Tally-prod-edge-eu-west-1 in us-east-1: keeps 1\n  keeps bucket " in before
    assert after.splitlines()[-1] == '  make deploy ARGS="-c stage=prod --import-existing-resources"'
    assert "Tally-prod-counts" in names_kept, "CloudFormation adopts a table by its fixed name"


def test_destroy_prints_how_to_adopt_restored_tables(
    aws: Aws, synthesize: Synthesize, capsys: pytest.CaptureFixture[str]
) -> None:
    aws.add_stack("Tally-prod", synthesize(stage="prod", tables=f"Tally-prod-{MOMENT}"))
    assert run_destroy(["--yes", "-c", "stage=prod"]) == 0
    options = f'-c stage=prod -c tables=Tally-prod-{MOMENT} --import-existing-resources"'
    assert capsys.readouterr().out.strip().endswith(options)


@pytest.mark.parametrize(("text", "deletes"), [("Tally-dev", True), ("y", False), ("", False)])
def test_destroy_deletes_only_if_the_person_types_the_name(
    text: str, deletes: bool, aws: Aws, dev: Template, capsys: pytest.CaptureFixture[str]
) -> None:
    aws.add_stack("Tally-dev", dev)
    aws.typed = text
    assert run_destroy([]) == (0 if deletes else 1)
    assert aws.deleted == ["id of Tally-dev"] * deletes
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == ("deleted; nothing remains" if deletes else "nothing is deleted")


def test_a_stack_that_cannot_be_deleted_is_reported_in_one_line_with_the_reason(
    aws: Aws, dev: Template, capsys: pytest.CaptureFixture[str]
) -> None:
    aws.add_stack("Tally-dev", dev)
    failure = {"ResourceStatus": "DELETE_FAILED", "LogicalResourceId": "DeadLetterBucket", "PhysicalResourceId": "b"}
    stack_failure = failure | {"LogicalResourceId": "Tally-dev", "PhysicalResourceId": "id of Tally-dev"}
    aws.failed_deletion = [failure | {"ResourceStatusReason": "The bucket is not empty"}, stack_failure]
    assert run_destroy(["--yes"]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error == "tally: Tally-dev is not deleted: DeadLetterBucket: The bucket is not empty"
