"""`make deploy`: says what is missing at once, shows what it will do, asks, deploys, and says what to call.

The real work is done by `cdk`: it makes the assembly once, and shows and deploys that.
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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from stacks.options import EDGE_REGION, Options

from . import account
from .account import Account, Arguments
from .connection import check_format
from .terminal import CommandError, answer, check_answerable

CDK = Path("node_modules/.bin/cdk")
ASSEMBLY = Path("cdk.out")
ROOT = Path(__file__).parents[1]
_TABLE = "AWS::DynamoDB::Table"
# The first of README.md. A video and a key of their own: the second line shows what the first one counted.
PLAY = "curl -s -X POST {url}/videos/9f3a/plays -H 'Idempotency-Key: {key}'"
PLAYS = "curl -s {url}/videos/9f3a/plays"
_SECRET = (
    "aws cognito-idp describe-user-pool-client --region {region} --user-pool-id {pool} --client-id {client}"
    " --query UserPoolClient.ClientSecret --output text{profile}"
)
_ACCESS_TOKEN = "python3 -c 'import json,sys; print(json.load(sys.stdin)[\"access_token\"])'"
_TOKEN = 'TOKEN=$(curl -s {url} -d grant_type=client_credentials -u "{client}:$({secret})" | {access_token})'


class Deployed(NamedTuple):
    """One stack of the assembly."""

    name: str
    region: str
    keeps_data: bool
    descriptions: Mapping[str, str]
    """What its outputs say of themselves."""
    tables: frozenset[str]
    """The names of its tables."""
    format: str
    """The form of what it stores; empty for the edge."""


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if it is deployed, 1 if `cdk` failed or the person said no, 2 and one line if something is missing."""
    parser = Arguments("deploy", "Deploy Tally to the account and region of your credentials.")
    parser.add_argument("-a", "--app", help="a folder that `cdk synth` made, instead of a new one")
    given, others = parser.parse_known_args(arguments)
    return account.run(lambda: deploy(given, others))


def deploy(given: argparse.Namespace, others: Sequence[str]) -> int:
    """Show, ask, deploy, and say what to call. `others`: options for `cdk deploy` alone."""
    context = account.context(given.context)
    options = Options.from_context(context)
    at = Account.found(given.profile, given.region)
    qualifier = str(context.get(account.QUALIFIER) or account.QUALIFIER_DEFAULT)
    edge = [EDGE_REGION] if options.cdn else []
    for region in dict.fromkeys([at.region, *edge]):
        at.check_bootstrap(region, qualifier)
    check_answerable(given.yes)
    # CDK's own have `:` or `@` in their names.
    own = [f"{key}={value}" for key, value in context.items() if ":" not in key and "@" not in key and value]
    shown = f"those of {given.app}" if given.app else ", ".join(own) or "none: the defaults of docs/operations.md"
    print(f"to account {at.id}, region {at.region}, as {at.who}\noptions: {shown}", flush=True)
    assembly = Path(given.app) if given.app else ASSEMBLY
    pairs = [part for key, value in given.context for part in ("-c", f"{key}={value}")]
    if not given.app and _cdk(at, "synth", "--quiet", "--output", str(assembly), *pairs):
        return 1
    stacks = stacks_of(assembly, at.region)
    for stack in stacks:
        kept = "keeps its data when it is deleted" if stack.keeps_data else "keeps nothing when it is deleted"
        print(f"stack {stack.name} in {stack.region}: {kept}", flush=True)
    importing = [option for option in others if option.startswith("--import-existing-resources")]
    if running := at.stack(stacks[0].name):
        outputs = {output["OutputKey"]: output["OutputValue"] for output in running.get("Outputs", [])}
        check_format(stacks[0].name, outputs.get("Format", stacks[0].format), stacks[0].format)
        if not importing:
            _check_tables(at, stacks[0])
    if _cdk(at, "diff", "--app", str(assembly), *importing):
        return 1
    if not given.yes and answer("Deploy this? [y/N] ").lower() not in ("y", "yes"):
        print("nothing is deployed")
        return 1
    return _deploy(assembly, stacks, at, others)


def _check_tables(at: Account, stack: Deployed) -> None:
    """Raise CommandError if a stack that counts would get other tables, which are empty."""
    counting = {one.get("PhysicalResourceId", "") for one in at.resources(stack.name) if one["ResourceType"] == _TABLE}
    counting -= {""}  # one that is not made yet
    if counting and not stack.tables <= counting:
        raise CommandError(
            f"{stack.name} counts in {', '.join(sorted(counting - stack.tables))}, and would get new, empty tables: see"
            " docs/restore.md for a stack that changes its tables"
        )


def _deploy(assembly: Path, stacks: Sequence[Deployed], at: Account, others: Sequence[str]) -> int:
    """Deploy what was shown, and say what to call."""
    with tempfile.TemporaryDirectory() as folder:
        outputs = Path(folder) / "outputs.json"
        asked = ["--require-approval", "never", "--outputs-file", str(outputs)]
        if _cdk(at, "deploy", "--all", "--app", str(assembly), *asked, *others):
            print("tally: it is not deployed: what cdk says above is the reason", file=sys.stderr)
            return 1
        found = json.loads(outputs.read_text()) if outputs.exists() else {}
    if stacks[0].name in found:  # not with --no-execute
        print(what_to_call(stacks, found, at))
    return 0


def _cdk(at: Account, *arguments: str) -> int:
    """The pinned command, for the person to see. Its exit status."""
    command = [str(ROOT / CDK), *arguments, *at.options]
    region = {"AWS_REGION": at.region, "AWS_DEFAULT_REGION": at.region}  # it asks nobody for another one
    return subprocess.run(command, env={**os.environ, **region}, check=False).returncode


def stacks_of(assembly: Path, region: str) -> list[Deployed]:
    """The stacks in a folder of `cdk synth`, first the one of the API. Raises CommandError for another folder."""
    try:
        artifacts = json.loads((assembly / "manifest.json").read_text())["artifacts"]
    except (OSError, ValueError, KeyError):
        raise CommandError(f"{assembly} is no folder that `cdk synth` made") from None
    found = []
    for name, artifact in artifacts.items():
        if artifact["type"] == "aws:cloudformation:stack":
            properties, own = artifact["properties"], artifact["environment"].rpartition("/")[2]
            template = json.loads((assembly / properties["templateFile"]).read_text())
            outputs, resources = template.get("Outputs", {}), template["Resources"].values()
            found.append(
                Deployed(
                    properties.get("stackName", name),
                    region if own == "unknown-region" else own,
                    bool(properties.get("terminationProtection")),
                    {output: one.get("Description", "") for output, one in outputs.items()},
                    frozenset(one["Properties"]["TableName"] for one in resources if one["Type"] == _TABLE),
                    outputs.get("Format", {}).get("Value", ""),
                )
            )
    return sorted(found, key=lambda stack: "ApiUrl" not in stack.descriptions)


def what_to_call(stacks: Sequence[Deployed], outputs: Mapping[str, Mapping[str, str]], at: Account) -> str:
    """The address, and commands to paste. `outputs`: of each stack, by its name."""
    main, found = stacks[0], outputs[stacks[0].name]
    url, names = found["ApiUrl"], [(stack, outputs.get(stack.name, {}).get("CnameTarget")) for stack in stacks]
    cnames = [f"  # {stack.descriptions['CnameTarget']}: {target}" for stack, target in names if target]
    return "\n".join(
        [
            f"\n{main.name} answers at {url}\n",
            *([*cnames, ""] if cnames else []),
            "  # count a play, once for its key, and read the count",
            f"  {PLAY.format(url=url, key=uuid.uuid4())}",
            f"  {PLAYS.format(url=url)}\n",
            *_token(found, at),
            f"  # look at the numbers in a browser; docs/console.md says who may: {url}/console",
            f"  make smoke URL={url} TOKEN=$TOKEN WAIT=600",
            f"  {at.prefix}.venv/bin/tally status --stack {shlex.quote(main.name)}",
        ]
    )


def _token(outputs: Mapping[str, str], at: Account) -> list[str]:
    """How to get a token: by the pool's client for programs, or from the issuer of the options."""
    if "TokenUrl" not in outputs:
        return ["  # tokens come from the issuer that you gave: TOKEN=…"]
    client, profile = outputs["MachineClientId"], f" {shlex.join(at.options)}" if at.options else ""
    secret = _SECRET.format(region=at.region, pool=outputs["UserPoolId"], client=client, profile=profile)
    token = _TOKEN.format(url=outputs["TokenUrl"], client=client, secret=secret, access_token=_ACCESS_TOKEN)
    return [
        "  # a token of a program, with the scopes tally/read and tally/write, for an hour; then a call of each",
        f"  {token}",
    ]


if __name__ == "__main__":
    sys.exit(main())
