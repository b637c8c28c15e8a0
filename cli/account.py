"""Where `make deploy` and `make destroy` act: an account and a region. What is missing is said at once, in one line."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
from botocore.exceptions import BotoCoreError, ClientError, EndpointConnectionError, NoCredentialsError

from stacks.options import OptionsError

from .connection import PATIENT
from .terminal import CommandError

BAD, INTERRUPTED = 2, 130
QUALIFIER, QUALIFIER_DEFAULT = "@aws-cdk/core:bootstrapQualifier", "hnb659fds"  # CDK's own
SETTINGS = Path(__file__).parents[1] / "cdk.json"


@dataclass(frozen=True)
class Account:
    """Whose credentials these are, and the region they are used in."""

    session: boto3.Session
    id: str
    region: str
    who: str
    """The ARN of the caller."""
    profile: str | None = None

    @classmethod
    def found(cls, profile: str | None, region: str | None) -> Account:
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
    def options(self) -> list[str]:
        """The options of `cdk`, and of `aws`, that lead here."""
        return ["--profile", self.profile] if self.profile else []

    @property
    def prefix(self) -> str:
        """What leads another command here: nothing, if the environment does."""
        needed = {"AWS_PROFILE": self.profile} if self.profile else {}
        if self.session.region_name != self.region:
            needed["AWS_DEFAULT_REGION"] = self.region
        return "".join(f"{name}={shlex.quote(value)} " for name, value in needed.items())

    def stack(self, name: str, region: str = "") -> Any:
        """A stack, as CloudFormation describes it; None if there is none."""
        try:
            [found] = self.client("cloudformation", region).describe_stacks(StackName=name)["Stacks"]
        except ClientError as error:
            if "does not exist" in str(error):
                return None
            raise
        return found

    def resources(self, stack: str, region: str = "") -> list[Any]:
        """The resources of a stack that is there, as CloudFormation sums them up."""
        pages = self.client("cloudformation", region).get_paginator("list_stack_resources").paginate(StackName=stack)
        return [one for page in pages for one in page["StackResourceSummaries"]]

    def events(self, stack: str, region: str = "") -> list[Any]:
        """What happened to a stack, by its name or ARN, the newest first."""
        pages = self.client("cloudformation", region).get_paginator("describe_stack_events").paginate(StackName=stack)
        return [one for page in pages for one in page["StackEvents"]]

    def concurrency(self) -> int | None:
        """How many functions Lambda runs at once for the account in this region; None for who may not ask."""
        try:
            return int(self.client("lambda").get_account_settings()["AccountLimit"]["ConcurrentExecutions"])
        except ClientError:
            return None

    def tables(self, names: Iterable[str]) -> list[str]:
        """Those of the tables that are there."""
        client, found = self.client("dynamodb"), []
        for name in sorted(names):
            try:
                client.describe_table(TableName=name)
                found.append(name)
            except ClientError as error:
                if error.response["Error"]["Code"] != "ResourceNotFoundException":
                    raise
        return found

    def check_bootstrap(self, region: str, qualifier: str) -> None:
        """Raise CommandError where `cdk bootstrap` never ran. Who may not look is not stopped: `cdk` looks itself."""
        try:
            self.client("ssm", region).get_parameter(Name=f"/cdk-bootstrap/{qualifier}/version")
        except ClientError as error:
            if error.response["Error"]["Code"] == "ParameterNotFound":
                command = " ".join(["node_modules/.bin/cdk", "bootstrap", f"aws://{self.id}/{region}", *self.options])
                raise CommandError(f"account {self.id} was never bootstrapped in {region}: run {command}") from None


class Arguments(argparse.ArgumentParser):
    """What `ARGS` may have for both commands."""

    def __init__(self, target: str, does: str) -> None:
        super().__init__(prog=f"make {target}", description=does, allow_abbrev=False)
        self.add_argument("--yes", action="store_true", help="do not ask")
        self.add_argument("--profile", help="of ~/.aws/config")
        self.add_argument("--region", help="instead of that of the environment")
        self.add_argument("-c", "--context", action="append", type=_pair, default=[], metavar="KEY=VALUE",
                          help="an option of Tally")  # fmt: skip

    def error(self, message: str) -> Any:
        """Exit 2, with one line."""
        self.exit(BAD, f"tally: {message}\n")


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key, value


def context(given: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """The context of the deployment: that of `cdk.json`, and over it that of the command line."""
    return {**json.loads(SETTINGS.read_text())["context"], **dict(given)}


def run(command: Callable[[], int]) -> int:
    """The exit status of a command: 2 and one line for an error that a person can fix, 130 for Ctrl-C."""
    try:
        return command()
    except (CommandError, OptionsError) as error:
        print(f"tally: {error}", file=sys.stderr)
    except ClientError as error:
        print(f"tally: AWS refuses it: {error.response['Error'].get('Message', error)}", file=sys.stderr)
    except BotoCoreError as error:
        print(f"tally: the call to AWS failed: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        print("tally: stopped", file=sys.stderr)
        return INTERRUPTED
    return BAD
