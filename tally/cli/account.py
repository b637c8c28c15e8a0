"""Where `make deploy` and `make destroy` act: an account and a region. What is missing is said at once, in one line."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import boto3
from botocore.exceptions import ClientError, EndpointConnectionError, NoCredentialsError

from tally.cdk.options import OptionsError

from .command import Command, Counters, Parser
from .connection import PATIENT
from .folder import folder, lambdas
from .terminal import CommandError, run_to_exit_status

QUALIFIER, QUALIFIER_DEFAULT = "@aws-cdk/core:bootstrapQualifier", "hnb659fds"  # CDK's own
UNRESERVED = 100  # AWS refuses to reserve the last hundred
CDK, CDK_VERSION = "node_modules/.bin/cdk", "2.1148.1"  # package.json: `make setup-cdk` installs it


@dataclass(frozen=True)
class Account:
    """Whose credentials these are, and the region they are used in."""

    session: boto3.Session
    id: str
    region: str
    caller_arn: str
    """The ARN of the caller."""
    profile: str | None = None

    @classmethod
    def from_environment(cls, profile: str | None, region: str | None) -> Account:
        """By the credentials and region of the environment. Raises CommandError for whatever is missing."""
        try:
            session = boto3.Session(profile_name=profile)
            # `cdk` reads the first name, too; boto3 knows the second one alone.
            named = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
            wanted = region or named or session.region_name
            if not wanted:
                raise CommandError("there is no AWS region: set AWS_DEFAULT_REGION=…, or give --region in ARGS")
            caller = session.client("sts", region_name=wanted, config=PATIENT).get_caller_identity()
        except NoCredentialsError:
            raise CommandError(
                "there are no AWS credentials: sign in (aws sso login), or set AWS_PROFILE, or AWS_ACCESS_KEY_ID and"
                " AWS_SECRET_ACCESS_KEY"
            ) from None
        except ClientError as error:
            why = error.response["Error"].get("Message", error)
            raise CommandError(f"AWS does not take these credentials: {why}: sign in again (aws sso login)") from None
        except EndpointConnectionError as error:
            raise CommandError(f"AWS does not answer: {error} Is {wanted} a region, and the network there?") from None
        return cls(session, caller["Account"], wanted, caller["Arn"], profile)

    def client(self, service: str, region: str = "") -> Any:
        """A client of a service, in this region unless another is named."""
        return self.session.client(
            service,  # type: ignore[call-overload]
            region_name=region or self.region,
            config=PATIENT,
        )

    @property
    def profile_options(self) -> list[str]:
        """The options of `cdk`, and of `aws`, that lead here."""
        return ["--profile", self.profile] if self.profile else []

    @property
    def environment_prefix(self) -> str:
        """What leads another command here: nothing, if the environment does."""
        needed = {"AWS_PROFILE": self.profile} if self.profile else {}
        if self.session.region_name != self.region:
            needed["AWS_DEFAULT_REGION"] = self.region
        return "".join(f"{name}={shlex.quote(value)} " for name, value in needed.items())

    def describe_stack(self, name: str, region: str = "") -> Any:
        """A stack, as CloudFormation describes it; None if there is none."""
        try:
            [described] = self.client("cloudformation", region).describe_stacks(StackName=name)["Stacks"]
        except ClientError as error:
            if "does not exist" in str(error):
                return None
            raise
        return described

    def resources(self, stack: str, region: str = "") -> list[Any]:
        """The resources of a stack that is there, as CloudFormation sums them up."""
        pages = self.client("cloudformation", region).get_paginator("list_stack_resources").paginate(StackName=stack)
        return [resource for page in pages for resource in page["StackResourceSummaries"]]

    def events(self, stack: str, region: str = "") -> list[Any]:
        """What happened to a stack, by its name or ARN, the newest first."""
        pages = self.client("cloudformation", region).get_paginator("describe_stack_events").paginate(StackName=stack)
        return [event for page in pages for event in page["StackEvents"]]

    def concurrency_limit(self) -> int | None:
        """How many functions Lambda runs at once for the account in this region; None for who may not ask."""
        try:
            return int(self.client("lambda").get_account_settings()["AccountLimit"]["ConcurrentExecutions"])
        except ClientError:
            return None

    def reservable_concurrency(self, functions: Iterable[str]) -> int | None:
        """How many invocations at once these functions can reserve, together; None for who may not ask."""
        client = self.client("lambda")
        try:
            left = int(client.get_account_settings()["AccountLimit"]["UnreservedConcurrentExecutions"])
            own = [client.get_function_concurrency(FunctionName=name) for name in functions]
        except ClientError:
            return None
        return max(0, left - UNRESERVED + sum(int(one.get("ReservedConcurrentExecutions", 0)) for one in own))

    def existing_tables(self, names: Iterable[str]) -> list[str]:
        """Those of the tables that are there."""
        client, existing = self.client("dynamodb"), []
        for name in sorted(names):
            try:
                client.describe_table(TableName=name)
                existing.append(name)
            except ClientError as error:
                if error.response["Error"]["Code"] != "ResourceNotFoundException":
                    raise
        return existing

    def check_bootstrap(self, region: str, qualifier: str) -> None:
        """Raise CommandError where `cdk bootstrap` never ran. Who may not look is not stopped: `cdk` looks itself."""
        try:
            self.client("ssm", region).get_parameter(Name=f"/cdk-bootstrap/{qualifier}/version")
        except ClientError as error:
            if error.response["Error"]["Code"] == "ParameterNotFound":
                command = " ".join(
                    [
                        shlex.join(cdk_command(shown=True)),
                        "bootstrap",
                        f"aws://{self.id}/{region}",
                        *self.profile_options,
                    ]
                )
                raise CommandError(f"account {self.id} was never bootstrapped in {region}: run {command}") from None


def add_arguments(parser: Parser, counters: Counters) -> None:
    """Add what says where to act, and with which options."""
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--profile", help="a profile of ~/.aws/config")
    parser.add_argument("--region", help="the AWS region (default: from the environment)")
    parser.add_argument("-c", "--context", action="append", type=_pair, default=[], metavar="KEY=VALUE",
                      help="an option of Tally")  # fmt: skip


def cdk_command(*, shown: bool = False) -> list[str]:
    """The command `cdk`: that of the checkout; elsewhere the one on the PATH, or the pinned one by npx.

    `shown`: for a person in that folder. Raises CommandError where Node or the CDK is missing.
    """
    if lambdas():
        if not (folder() / CDK).exists() or find_spec("aws_cdk") is None:
            raise CommandError("the CDK is missing: run `make setup-cdk`")
        return [CDK if shown else str(folder() / CDK)]
    if shutil.which("node") is None:
        raise CommandError("Node is missing, and `cdk` needs it: install Node 20 or newer")
    if find_spec("aws_cdk") is None:
        raise CommandError("the CDK is missing: install 'tallystick[cdk]'")
    return ["cdk"] if shutil.which("cdk") else ["npx", "--yes", f"aws-cdk@{CDK_VERSION}"]


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key, value


def read_context(given: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """The context of the deployment: that of `cdk.json`, and over it that of the command line."""
    file = folder() / "cdk.json"
    try:
        return {**json.loads(file.read_text(encoding="utf-8")).get("context", {}), **dict(given)}
    except OSError:
        raise CommandError(f"{file} is missing: go to the folder of your app, or run `tally init`") from None
    except (ValueError, AttributeError):
        raise CommandError(f"{file} is not JSON with the settings of `cdk`") from None


def translate_option_errors(run: Callable[[argparse.Namespace], int]) -> Callable[[argparse.Namespace], int]:
    """The command, which raises CommandError for options that are wrong."""

    def checks(given: argparse.Namespace) -> int:
        try:
            return run(given)
        except OptionsError as error:
            raise CommandError(str(error)) from None

    return checks


def run_as_make_target(command: Command, arguments: Sequence[str] | None) -> int:
    """Run a command as the target of `run_as_make_target` that has its name. `arguments`: what `ARGS` has."""
    parser = Parser(prog=f"make {command.name}", description=command.description, allow_abbrev=False)
    command.arguments(parser, {})
    given, others = parser.parse_known_args(arguments)
    if others and not command.passes_unknown_options:
        parser.error(f"unrecognized arguments: {' '.join(others)}")
    given.others = others
    return run_to_exit_status(lambda: command.run(given))
