"""The AWS account and region of `make deploy` and `make destroy`, and what these commands need there."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import boto3
from botocore.exceptions import ClientError, EndpointConnectionError, NoCredentialsError

from tally.cdk.options import OptionsError

from .command import Counters, Parser
from .connection import PATIENT
from .folder import folder, lambdas
from .terminal import CommandError

QUALIFIER, QUALIFIER_DEFAULT = "@aws-cdk/core:bootstrapQualifier", "hnb659fds"  # CDK's own context key and default
UNRESERVED = 100  # concurrent invocations that no account may reserve
CDK, CDK_VERSION = "node_modules/.bin/cdk", "2.1148.1"  # the version that package.json names, too


@dataclass(frozen=True)
class Account:
    """The AWS account of the user's credentials, and the region that commands use."""

    session: boto3.Session
    id: str
    region: str
    caller_arn: str
    profile: str | None = None

    @classmethod
    def from_environment(cls, profile: str | None, region: str | None) -> Account:
        """Returns the account of the environment's credentials. If something is missing, raises CommandError."""
        try:
            session = boto3.Session(profile_name=profile)
            # `cdk` reads AWS_REGION and AWS_DEFAULT_REGION, but boto3 reads only AWS_DEFAULT_REGION.
            region = region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
            region = region or session.region_name
            if not region:
                raise CommandError("there is no AWS region: set AWS_DEFAULT_REGION=…, or give --region")
            caller = session.client("sts", region_name=region, config=PATIENT).get_caller_identity()
        except NoCredentialsError:
            hint = "sign in (aws sso login), or set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            raise CommandError(f"there are no AWS credentials: {hint}") from None
        except ClientError as error:
            why = error.response["Error"].get("Message", error)
            raise CommandError(f"AWS rejects these credentials: {why}: sign in again (aws sso login)") from None
        except EndpointConnectionError as error:
            raise CommandError(f"AWS does not answer: {error} Check the region {region} and the network.") from None
        return cls(session, caller["Account"], region, caller["Arn"], profile)

    def client(self, service: str, region: str = "") -> Any:
        """Returns a client of a service. `region`: empty for the region of this account."""
        make: Any = self.session.client
        return make(service, region_name=region or self.region, config=PATIENT)

    @property
    def profile_options(self) -> list[str]:
        """The options that select this account, for `cdk` and for `aws`."""
        return ["--profile", self.profile] if self.profile else []

    @property
    def environment_prefix(self) -> str:
        """The prefix of a command with the variables that select this account and region; empty if none is needed."""
        needed = {"AWS_PROFILE": self.profile} if self.profile else {}
        if self.session.region_name != self.region:
            needed["AWS_DEFAULT_REGION"] = self.region
        return "".join(f"{name}={shlex.quote(value)} " for name, value in needed.items())

    def describe_stack(self, name: str, region: str = "") -> Any:
        """Returns CloudFormation's description of a stack, or None if the stack does not exist."""
        try:
            [described] = self.client("cloudformation", region).describe_stacks(StackName=name)["Stacks"]
        except ClientError as error:
            if "does not exist" in str(error):
                return None
            raise
        return described

    def resources(self, stack: str, region: str = "") -> list[Any]:
        """Returns CloudFormation's summaries of the resources of a stack."""
        pages = self.client("cloudformation", region).get_paginator("list_stack_resources").paginate(StackName=stack)
        return [resource for page in pages for resource in page["StackResourceSummaries"]]

    def events(self, stack: str, region: str = "") -> list[Any]:
        """Returns the events of a stack, the newest first. `stack`: the name or the ARN."""
        pages = self.client("cloudformation", region).get_paginator("describe_stack_events").paginate(StackName=stack)
        return [event for page in pages for event in page["StackEvents"]]

    def concurrency_limit(self) -> int | None:
        """Returns how many functions Lambda runs at once in this region, or None if the caller may not ask."""
        try:
            return int(self.client("lambda").get_account_settings()["AccountLimit"]["ConcurrentExecutions"])
        except ClientError:
            return None

    def reservable_concurrency(self, functions: Iterable[str]) -> int | None:
        """Returns how much concurrency these functions can reserve in all, or None if the caller may not ask."""
        client = self.client("lambda")
        try:
            free = int(client.get_account_settings()["AccountLimit"]["UnreservedConcurrentExecutions"])
            reserved = [client.get_function_concurrency(FunctionName=name) for name in functions]
        except ClientError:
            return None
        return max(0, free - UNRESERVED + sum(int(one.get("ReservedConcurrentExecutions", 0)) for one in reserved))

    def existing_tables(self, names: Iterable[str]) -> list[str]:
        """Returns the names whose tables exist."""
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
        """If `cdk bootstrap` never ran in a region, raises CommandError. If the caller may not ask, does nothing."""
        try:
            self.client("ssm", region).get_parameter(Name=f"/cdk-bootstrap/{qualifier}/version")
        except ClientError as error:
            if error.response["Error"]["Code"] == "ParameterNotFound":
                cdk, environment = shlex.join(cdk_command(shown=True)), f"aws://{self.id}/{region}"
                command = " ".join([cdk, "bootstrap", environment, *self.profile_options])
                raise CommandError(f"account {self.id} was never bootstrapped in {region}: run {command}") from None


def add_arguments(parser: Parser, counters: Counters) -> None:
    """Adds the options for the account and for the settings of Tally."""
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--profile", help="a profile of ~/.aws/config")
    parser.add_argument("--region", help="the AWS region (default: from the environment)")
    pair, text = "KEY=VALUE", "an option of Tally"
    parser.add_argument("-c", "--context", action="append", type=_parse_pair, default=[], metavar=pair, help=text)


def cdk_command(*, shown: bool = False) -> list[str]:
    """Returns the command that runs `cdk`. `shown`: as a user types it in the checkout. Raises CommandError."""
    if lambdas():
        if not (folder() / CDK).exists() or find_spec("aws_cdk") is None:
            raise CommandError("the CDK is missing: run `make setup-cdk`")
        return [CDK if shown else str(folder() / CDK)]
    if shutil.which("node") is None:
        raise CommandError("Node is missing, and `cdk` needs it: install Node 20 or newer")
    if find_spec("aws_cdk") is None:
        raise CommandError("the CDK is missing: install 'tallystick[cdk]'")
    return ["cdk"] if shutil.which("cdk") else ["npx", "--yes", f"aws-cdk@{CDK_VERSION}"]


def _parse_pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key, value


def read_context(pairs: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Returns the context of the deployment: from `cdk.json`, replaced by the pairs of the command line."""
    file = folder() / "cdk.json"
    try:
        return {**json.loads(file.read_text(encoding="utf-8")).get("context", {}), **dict(pairs)}
    except OSError:
        raise CommandError(f"{file} is missing: go to the folder of your app, or run `tally init`") from None
    except (ValueError, AttributeError):
        raise CommandError(f"{file} is not JSON with the settings of `cdk`") from None


@contextmanager
def option_errors_as_command_errors() -> Iterator[None]:
    """Raises CommandError in place of OptionsError."""
    try:
        yield
    except OptionsError as error:
        raise CommandError(str(error)) from None
