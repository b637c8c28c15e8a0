"""`make destroy`, `tally destroy`: shows what a stack keeps, asks, deletes it and its CDN, and says how to redeploy.

It reads the deployed stack from CloudFormation, so the checkout may have another version than the stack.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from botocore.exceptions import WaiterError

from tally.cdk.options import EDGE_REGION, Options

from . import account
from .account import Account
from .command import Command
from .folder import lambdas
from .terminal import CommandError, ask, check_answerable, note

POLL_S, POLLS_MAX = 5, 1440  # two hours; CloudFront deletes a distribution in minutes
_KEEPING_POLICIES = ("Retain", "RetainExceptOnCreate")
_KINDS = {
    "AWS::DynamoDB::Table": "table", "AWS::S3::Bucket": "bucket", "AWS::Cognito::UserPool": "user pool",
    "AWS::Logs::LogGroup": "log group", "AWS::SQS::Queue": "queue",
    "AWS::Backup::BackupVault": "vault",
}  # fmt: skip
_RESTORED_PREFIX = re.compile(r".+-[0-9]{8}T[0-9]{6}(?=-counts$)")  # of the tables that `tally restore` made


class KeptResource(NamedTuple):
    """A resource that outlives its stack."""

    kind: str
    name: str

    @classmethod
    def of(cls, resource: Mapping[str, Any]) -> KeptResource:
        """Returns the resource of a summary or of an event of CloudFormation."""
        kind = resource["ResourceType"]
        return cls(_KINDS.get(kind, kind), resource["PhysicalResourceId"])


class DeployedStack(NamedTuple):
    """A deployed stack. `id`: the ARN, by which CloudFormation also finds a deleted stack. `kept`: what remains."""

    name: str
    id: str
    region: str
    protected: bool
    kept: tuple[KeptResource, ...]


@account.option_errors_as_command_errors()
def destroy(args: argparse.Namespace) -> int:
    """Shows the stack, asks, deletes it, and prints what remains. If the stack is protected, raises CommandError."""
    stage = Options.from_context(account.read_context(args.context)).stage
    target = Account.from_environment(args.profile, args.region)
    name, edge = stack_names(stage, target.region)
    # Only the partition `aws` has CloudFront: other credentials do not know us-east-1.
    edge_stack = find_stack(target, edge, EDGE_REGION) if target.caller_arn.startswith("arn:aws:") else None
    stacks = [deployed for deployed in (edge_stack, find_stack(target, name, target.region)) if deployed]
    if not stacks:
        raise CommandError(f"there is no stack {name} in account {target.id}, region {target.region}")
    protected = [deployed for deployed in stacks if deployed.protected]
    if protected:
        unprotect = "aws cloudformation update-termination-protection --no-enable-termination-protection --region"
        commands = [[unprotect, one.region, "--stack-name", one.name, *target.profile_options] for one in protected]
        names = " and ".join(deployed.name for deployed in protected)
        first = " && ".join(map(" ".join, commands))
        raise CommandError(f"{names}: protected from deletion. To delete, run first: {first}")
    check_answerable(args.yes)
    print(f"in account {target.id}, as {target.caller_arn}")
    for deployed in stacks:
        print(f"deletes {deployed.name} in {deployed.region}: keeps {len(deployed.kept) or 'nothing'}")
        print("".join(f"  keeps {kept.kind} {kept.name}\n" for kept in deployed.kept), end="", flush=True)
    if not args.yes and ask(f"Type {name} to delete it: ") != name:
        print("nothing is deleted")
        return 1
    for deployed in stacks:
        note(f"deleting {deployed.name} in {deployed.region}: Ctrl-C stops the wait, not the deletion")
        delete(deployed, target)
    print(what_remains(stage, stacks, target))
    return 0


def stack_names(stage: str, region: str) -> tuple[str, str]:
    """Returns the names of a stage's stack and of the CDN's stack. An import of tally/cdk/names.py would load CDK."""
    return f"Tally-{stage}", f"Tally-{stage}-edge-{region}"


def find_stack(target: Account, name: str, region: str) -> DeployedStack | None:
    """Returns the deployed stack of this name, and what a deletion keeps of it; None if there is no such stack."""
    described = target.describe_stack(name, region)
    if described is None:
        return None
    template = target.client("cloudformation", region).get_template(StackName=name)["TemplateBody"]
    kept = {id for id, resource in template["Resources"].items() if resource.get("DeletionPolicy") in _KEEPING_POLICIES}
    existing = [one for one in target.resources(name, region) if one.get("PhysicalResourceId")]
    remaining = {KeptResource.of(one) for one in existing if one["LogicalResourceId"] in kept}
    protected = bool(described.get("EnableTerminationProtection"))
    return DeployedStack(name, described["StackId"], region, protected, tuple(sorted(remaining)))


def delete(stack: DeployedStack, target: Account) -> None:
    """Deletes a stack and waits. If that fails, raises CommandError with the reasons."""
    client = target.client("cloudformation", stack.region)
    client.delete_stack(StackName=stack.id)
    try:
        polls = {"Delay": POLL_S, "MaxAttempts": POLLS_MAX}
        client.get_waiter("stack_delete_complete").wait(StackName=stack.id, WaiterConfig=polls)
    except WaiterError as error:
        events = target.events(stack.id, stack.region)
        failed = [event for event in events if event["ResourceStatus"] == "DELETE_FAILED"]
        of_resources = [event for event in failed if event["PhysicalResourceId"] != stack.id]
        why = {f"{event['LogicalResourceId']}: {event.get('ResourceStatusReason', '')}" for event in of_resources}
        raise CommandError(f"{stack.name} is not deleted: {'; '.join(sorted(why)) or error}") from None


def what_remains(stage: str, stacks: Sequence[DeployedStack], target: Account) -> str:
    """Returns the names of the resources that remain, and the command that adopts the tables."""
    kept = [(stack.region, *resource) for stack in stacks for resource in stack.kept]
    if not kept:
        return "deleted; nothing remains"
    lines = [f"deleted; in account {target.id} remain, and are billed:"]
    lines += [f"  {kind:9}  {name}  ({region})" for region, kind, name in kept]
    tables = [name for _, kind, name in kept if kind == "table"]
    if tables:
        prefixes = {match[0] for match in map(_RESTORED_PREFIX.match, tables) if match}
        restored = "".join(f" -c tables={prefix}" for prefix in prefixes)
        lines += [
            "to get the stack back with these tables, run this with the same options as before (docs/restore.md):",
            f"  {target.environment_prefix}{deploy_command(f'-c stage={stage}{restored} --import-existing-resources')}",
        ]
    return "\n".join(lines)


def deploy_command(options: str) -> str:
    """Returns the command that deploys this folder with these options."""
    return f'make deploy ARGS="{options}"' if lambdas() else f"tally deploy {options}"


DESTROY = Command("destroy", destroy, account.add_arguments)
