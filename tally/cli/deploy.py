"""`make deploy`, `tally deploy`: checks what it needs, shows the changes, asks, deploys, and prints what to call.

`cdk diff` and `cdk deploy` use one assembly, so the deploy makes the changes that the user has seen.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tally.cdk.options import EDGE_REGION, Options
from tally.contract.declarations import Declarations
from tally.errors import StoreRefusedError
from tally.streams import fingerprints

from . import account, connection, destroy
from .account import UNRESERVED, Account
from .assembly import TABLE, AssemblyStack, read_stacks
from .command import Command, Counters, Parser
from .folder import counters, lambdas
from .strangers import worst_day_usd
from .terminal import CommandError, check_answerable, confirm, explain_error

ASSEMBLY = Path("cdk.out")
# Once a minute, two consumers read two streams of four shards each, while the sweep runs. 13 are left for other calls.
CONCURRENCY_MIN = 2 * 2 * 4 + 1 + 13
ADOPT = "--import-existing-resources"  # the option of `cdk` that takes existing tables into the stack
_NEVER_DEPLOYED = ("ROLLBACK_COMPLETE", "ROLLBACK_FAILED", "CREATE_FAILED")  # states after a first deploy that failed
_CANCELLED = "cancelled"  # CloudFormation stopped a resource because another resource failed
_API, _FUNCTION = "AWS::ApiGatewayV2::Api", "AWS::Lambda::Function"
# The first two calls of README.md, with the address of the stack and a new key.
PLAY_COMMAND = "curl -s -X POST {url}/videos/9f3a/plays -H 'Idempotency-Key: {key}'"
PLAYS_COMMAND = "curl -s {url}/videos/9f3a/plays"
_SECRET_COMMAND = (
    "aws cognito-idp describe-user-pool-client --region {region} --user-pool-id {pool} --client-id {client}"
    " --query UserPoolClient.ClientSecret --output text{profile}"
)
_READ_TOKEN_COMMAND = "python3 -c 'import json,sys; print(json.load(sys.stdin)[\"access_token\"])'"
_TOKEN_COMMAND = 'TOKEN=$(curl -s {url} -d grant_type=client_credentials -u "{client}:$({secret})" | {read_token})'


@account.option_errors_as_command_errors()
def deploy(args: argparse.Namespace) -> int:
    """Shows the changes, asks, deploys, and prints what to call. Returns 1 if `cdk` failed or the user said no."""
    cdk_options: Sequence[str] = args.others  # options of the user that only `cdk deploy` gets
    target, declared = _check_and_show_target(args)
    assembly = Path(args.app) if args.app else ASSEMBLY
    context = [part for key, value in args.context for part in ("-c", f"{key}={value}")]
    if not args.app and _run_cdk(target, "synth", "--quiet", "--output", str(assembly), *context):
        return 1
    stacks = read_stacks(assembly, target.region)
    for stack in stacks:
        kept = "keeps its data when it is deleted" if stack.keeps_data else "keeps nothing when it is deleted"
        print(f"stack {stack.name} in {stack.region}: {kept}", flush=True)
    import_options = [option for option in cdk_options if option.startswith(ADOPT)]
    descriptions = [target.describe_stack(stack.name, stack.region) for stack in stacks]
    running = descriptions[0]  # the stack of the API; None if it does not exist
    pairs = zip(stacks, descriptions, strict=True)
    failed = [stack for stack, description in pairs if description and description["StackStatus"] in _NEVER_DEPLOYED]
    check_reservations(stacks[0], target, has_functions=running is not None and stacks[0] not in failed)
    say_low_concurrency(stacks[0], target)
    if failed:
        adopted = _delete_failed_stacks(args, target, failed)
        if adopted is None:
            return 1
        if adopted and not import_options:
            import_options = [ADOPT]
            cdk_options = [*cdk_options, ADOPT]
        running = None if stacks[0] in failed else running
    if running:
        _check_running(target, stacks[0], running, may_change_tables=bool(import_options))
    _check_fingerprints(target, stacks[0], declared)
    if _run_cdk(target, "diff", "--app", str(assembly), *import_options):
        return 1
    if not confirm(args, "Deploy this?"):
        print("nothing is deployed")
        return 1
    if running:
        _delete_stale_throttles(target, stacks[0].name)
    return _deploy_assembly(assembly, stacks, target, cdk_options)


def _check_and_show_target(args: argparse.Namespace) -> tuple[Account, Declarations]:
    """Checks what the deploy needs, prints its target, and returns the account and the declarations of the app."""
    context = account.read_context(args.context)
    options = Options.from_context(context)
    if options.cdn and not lambdas():  # outside a checkout
        raise CommandError("a CDN is a second stack, which only a checkout of Tally has: see docs/front-door.md")
    account.cdk_command()  # raises CommandError if `cdk` or Node is missing
    target = Account.from_environment(args.profile, args.region)
    options.check_region(target.region, target.id)
    qualifier = str(context.get(account.QUALIFIER) or account.QUALIFIER_DEFAULT)
    edge = [EDGE_REGION] if options.cdn else []
    for region in dict.fromkeys([target.region, *edge]):
        target.check_bootstrap(region, qualifier)
    check_answerable(args.yes)
    # CDK's own settings have `:` or `@` in their names.
    settings = {key: value for key, value in context.items() if ":" not in key and "@" not in key}
    pairs = [f"{key}={value}" for key, value in settings.items() if value not in (None, "")]
    shown = f"those of {args.app}" if args.app else ", ".join(pairs) or "none: the defaults of docs/reference.md"
    print(f"to account {target.id}, region {target.region}, as {target.caller_arn}\noptions: {shown}", flush=True)
    declared = Declarations.load(counters())
    for warning in warnings(options, declared, target):
        print(f"note: {warning}", flush=True)
    return target, declared


def _delete_stale_throttles(target: Account, stack: str) -> None:
    """Deletes the throttles of deleted routes. A deploy that deletes a route leaves the route's throttle in the stage.
    After that, API Gateway rejects every update of the stage: "Unable to find Route by key"."""
    apis = [one["PhysicalResourceId"] for one in target.resources(stack) if one["ResourceType"] == _API]
    client = target.client("apigatewayv2")
    for api in filter(None, apis):
        stage = {"ApiId": api, "StageName": "$default"}
        pages = client.get_paginator("get_routes").paginate(ApiId=api)
        routes = {route["RouteKey"] for page in pages for route in page["Items"]}
        for key in sorted(client.get_stage(**stage).get("RouteSettings", {}).keys() - routes):
            print(f"deletes the throttle of a deleted route: {key}", flush=True)
            client.delete_route_settings(RouteKey=key, **stage)


def check_reservations(stack: AssemblyStack, target: Account, has_functions: bool) -> None:
    """If AWS would reject the concurrency that the stack reserves during the deploy, raises CommandError.
    `has_functions`: the stack has functions now. Their reservations count as free, because the deploy replaces them."""
    if not stack.reserved_concurrency:
        return
    resources = target.resources(stack.name) if has_functions else []
    functions = [one["PhysicalResourceId"] for one in resources if one["ResourceType"] == _FUNCTION]
    reservable = target.reservable_concurrency(functions)
    if reservable is not None and reservable < stack.reserved_concurrency:
        request = _quota_request(target, stack.reserved_concurrency - reservable)
        raise CommandError(
            f"{stack.name} reserves {stack.reserved_concurrency} of the functions that Lambda runs at once in this"
            f" account and region, and can reserve {reservable}: others reserved some, and AWS keeps the last"
            f" {UNRESERVED} unreserved. Ask AWS for more, which is free: {request}. Until AWS agrees, deploy with"
            " -c strangersConcurrency=0 and without reservedConcurrency"
        )


def _quota_request(target: Account, missing: int = 0) -> str:
    wanted = max(1000, (target.concurrency_limit() or 0) + missing)  # AWS's usual limit is 1,000
    request = "aws service-quotas request-service-quota-increase --service-code lambda --quota-code L-B99A9384"
    return f"{request} --desired-value {wanted} --region {target.region}"


def say_low_concurrency(stack: AssemblyStack, target: Account) -> None:
    """Prints a note if Lambda runs fewer functions at once than the stack needs."""
    limit, reserved = target.concurrency_limit(), stack.reserved_concurrency
    needed = CONCURRENCY_MIN + (reserved + UNRESERVED if reserved else 0)
    if limit is not None and limit < needed:
        print(
            f"note: Lambda runs {limit} functions at once in this account and region, and Tally needs {needed}. With"
            " fewer, numbers and drift checks are late, and callers get 503. Ask AWS for more, which is free:"
            f" {_quota_request(target, needed - limit)}",
            flush=True,
        )


def warnings(options: Options, declared: Declarations, target: Account) -> Iterator[str]:
    """Yields the warnings that a user reads before the question whether to deploy."""
    if options.keeps_data and not options.issuer and options.mfa != "REQUIRED":
        yield "users sign in without a second factor: -c mfa=required requires one"
    if options.keeps_data and not options.alarm_email:
        yield "no address gets the alarms by mail: set -c alarmEmail=…, or subscribe to the topic yourself"
    usd = worst_day_usd(declared, options.throttle)
    yield f"strangers who use every public route to its limit cost up to ${usd:,.0f} a day: AWS Budgets can mail you"


def _delete_failed_stacks(
    args: argparse.Namespace, target: Account, failed: Sequence[AssemblyStack]
) -> list[str] | None:
    """Asks, and deletes the stacks whose first deploy failed, because CloudFormation cannot update such a stack.
    Returns the names of the tables that exist, which the next deploy adopts; None if the user said no."""
    tables = target.existing_tables(table for stack in failed for table in stack.tables)
    for stack in failed:
        print(f"the first deploy of {stack.name} failed, and CloudFormation rolled it back. The reasons:")
        events = target.events(stack.name, stack.region)
        failures = [event for event in reversed(events) if event["ResourceStatus"].endswith("_FAILED")]
        reasons = [f"  {one['LogicalResourceId']}: {one.get('ResourceStatusReason', '')}\n" for one in failures]
        print("".join(one for one in dict.fromkeys(reasons) if _CANCELLED not in one), end="")
        kept = [destroy.KeptResource.of(event) for event in events if event["ResourceStatus"] == "DELETE_SKIPPED"]
        unused = [f"  {one.kind:9}  {one.name}\n" for one in sorted(set(kept)) if one.name not in tables]
        if unused:
            print(f"the deploy below replaces these resources, so you may delete them:\n{''.join(unused)}", end="")
    kept_tables = ", ".join(tables) or "none"
    print(f"Tally deletes the stack first, keeps these tables and adopts them: {kept_tables}", flush=True)
    if not confirm(args, "Delete it, and deploy again?"):
        print("nothing is deleted, and nothing is deployed")
        return None
    for stack in reversed(failed):  # the CDN's stack before the API's stack, which the CDN uses
        client = target.client("cloudformation", stack.region)
        client.update_termination_protection(EnableTerminationProtection=False, StackName=stack.name)
        if rolled_back := destroy.find_stack(target, stack.name, stack.region):
            destroy.delete(rolled_back, target)
    return tables


def _check_running(target: Account, stack: AssemblyStack, running: Any, *, may_change_tables: bool) -> None:
    """If the running stack stores data in another format than this version of Tally, or would get new, empty tables,
    raises CommandError. `running`: CloudFormation's description of the stack. `may_change_tables`: ADOPT was passed."""
    outputs = {output["OutputKey"]: output["OutputValue"] for output in running.get("Outputs", [])}
    connection.check_format(stack.name, outputs.get("StorageFormat", stack.format), stack.format)
    tables = [one for one in target.resources(stack.name) if one["ResourceType"] == TABLE]
    used = {one.get("PhysicalResourceId", "") for one in tables} - {""}  # "": CloudFormation has not made the table
    if used and not stack.tables <= used and not may_change_tables:
        present = f"{stack.name} counts in {', '.join(sorted(used - stack.tables))}"
        hint = "see docs/restore.md for a stack that changes its tables"
        raise CommandError(f"{present}, and would get new, empty tables: {hint}")


def _check_fingerprints(target: Account, stack: AssemblyStack, declared: Declarations) -> None:
    """If the declaration of a counter does not fit the data in the tables, raises ConfigurationError. Also checks a
    first deploy, which may adopt tables. If the user may not read the ledger, only the sweep checks it later."""
    names = {name.rpartition("-")[2]: name for name in stack.tables}  # by the table's kind, such as `counts`
    try:
        stored = fingerprints.read_all(connection.store_of_tables(names, target.region, target.client("dynamodb")))
    except StoreRefusedError as error:
        why = explain_error(error)
        if "ResourceNotFoundException" not in why:  # before the first deploy there are no tables
            print(f"note: the declarations are not compared with the stored data: {why}", flush=True)
        return
    fingerprints.check(stored, declared.counters)


def _deploy_assembly(assembly: Path, stacks: Sequence[AssemblyStack], target: Account, extras: Sequence[str]) -> int:
    """Deploys the assembly, and prints what to call. `extras`: options of the user for `cdk deploy`."""
    with tempfile.TemporaryDirectory() as folder:
        outputs_file = Path(folder) / "outputs.json"
        options = ["--require-approval", "never", "--outputs-file", str(outputs_file)]
        if _run_cdk(target, "deploy", "--all", "--app", str(assembly), *options, *extras):
            print("tally: not deployed: see the error of cdk above", file=sys.stderr)
            return 1
        outputs = json.loads(outputs_file.read_text()) if outputs_file.exists() else {}
    if stacks[0].name in outputs:  # with --no-execute, `cdk` writes no outputs
        print(what_to_call(stacks, outputs, target))
    return 0


def _run_cdk(target: Account, *arguments: str) -> int:
    """Runs `cdk`, which prints its output to the user, and returns its exit status."""
    command = [*account.cdk_command(), *arguments, *target.profile_options]
    region = {"AWS_REGION": target.region, "AWS_DEFAULT_REGION": target.region}  # so that `cdk` uses this region
    # `cdk` runs the app with this Python, which has the app's packages, even if no virtual environment is active.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    return subprocess.run(command, env={**os.environ, **region, "PATH": path}, check=False).returncode


def what_to_call(stacks: Sequence[AssemblyStack], outputs: Mapping[str, Mapping[str, str]], target: Account) -> str:
    """Returns the address of the API, and commands to paste. `outputs`: of each stack, by the stack's name."""
    main, main_outputs = stacks[0], outputs[stacks[0].name]
    url, cnames = main_outputs["ApiUrl"], [(one, outputs.get(one.name, {}).get("CnameTarget")) for one in stacks]
    cname_lines = [f"  # {one.descriptions['CnameTarget']}: {cname}" for one, cname in cnames if cname]
    tally = f"{target.environment_prefix}{'.venv/bin/' if lambdas() else ''}tally"
    stack = shlex.quote(main.name)
    counters = main_outputs["Counters"].split(", ")
    if "plays" in counters:
        about = "count a play, once for its key, and read the count"
        calls = [PLAY_COMMAND.format(url=url, key=uuid.uuid4()), PLAYS_COMMAND.format(url=url)]
    else:
        about = "count once for the key, and read the number"
        calls = [f"{tally} {command} {counters[0]} 9f3a --stack {stack}" for command in ("count", "get")]
    return "\n".join(
        [
            f"\n{main.name} answers at {url}\n",
            *([*cname_lines, ""] if cname_lines else []),
            f"  # {about}",
            *(f"  {call}" for call in calls),
            "",
            *_token_commands(main_outputs, target),
            f"  # see the numbers in a browser (docs/operate.md says who may): {url}/console",
            *([f"  make smoke URL={url} TOKEN=$TOKEN WAIT=600"] if lambdas() else []),
            f"  {tally} status --stack {stack}",
        ]
    )


def _token_commands(outputs: Mapping[str, str], target: Account) -> list[str]:
    """Returns the lines on how to get a token: a command for the client of programs, or a hint to your own issuer."""
    if "TokenUrl" not in outputs:
        return ["  # your issuer makes the tokens: TOKEN=…"]
    client = outputs["MachineClientId"]
    profile = f" {shlex.join(target.profile_options)}" if target.profile_options else ""
    secret = _SECRET_COMMAND.format(region=target.region, pool=outputs["UserPoolId"], client=client, profile=profile)
    token = _TOKEN_COMMAND.format(url=outputs["TokenUrl"], client=client, secret=secret, read_token=_READ_TOKEN_COMMAND)
    about = "get a token for a program, valid for an hour, with the scopes tally/read and tally/write"
    return [f"  # {about}", f"  {token}"]


def _add_arguments(parser: Parser, counters: Counters) -> None:
    account.add_arguments(parser, counters)
    parser.add_argument("-a", "--app", help="deploy this folder, which `cdk synth` made")


DEPLOY = Command(
    "deploy", deploy, _add_arguments, passes_unknown_options=True,
    examples="  tally deploy -c stage=prod -c pageHosts=example.com",
)  # fmt: skip
