"""All names of the template, in one place, so that two Tallys never share a name.

A name that is unique in all regions of an account has the region in it, because a stage may be in two regions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from aws_cdk import Aws, Fn, Stack, Token
from constructs import Construct

from .option_parsers import RESERVED_BY_COGNITO, OptionsError

BASE_CHARACTERS_MAX = 41  # AWS Backup takes 50 for a vault's name, which is the base and nine more
HIDDEN_ID = "Default"  # CDK leaves a construct with this id out of logical ids


@dataclass(frozen=True)
class Names:
    """The names of one Tally. The names follow Tally's path in the stack, as CDK's logical ids do."""

    stack: str
    """The stack's name: `Tally-prod`."""
    path: tuple[str, ...] = ()
    """The ids of the constructs from the stack down to Tally, without HIDDEN_ID."""
    docs: str = "docs"
    """Where people read the pages of docs/: a URL, or the folder."""

    @classmethod
    def of(cls, scope: Construct, docs: str = docs) -> Names:
        """Returns the names of the Tally in this scope: a stack, or a construct in a stack."""
        stack = Stack.of(scope)
        ids = [above.node.id for above in scope.node.scopes[len(stack.node.scopes) :]]
        return cls(stack.stack_name, tuple(id for id in ids if id != HIDDEN_ID), docs)

    def check(self, *, with_users: bool) -> None:
        """Raise OptionsError if an AWS service would refuse a name. `with_users`: the stack has a user pool."""
        if Token.is_unresolved(self.stack):
            raise OptionsError("Tally cannot be in a nested stack: its tables have fixed names, made of the stack's")
        if not re.fullmatch("[A-Za-z][A-Za-z0-9-]*", self.base) or len(self.base) > BASE_CHARACTERS_MAX:
            raise OptionsError(
                f"Tally's name would be {self.base!r}, made of its stack's name and of its constructs' ids:"
                f" it must have up to {BASE_CHARACTERS_MAX} letters, digits and hyphens, and begin with a letter"
            )
        for word in RESERVED_BY_COGNITO if with_users else ():
            if word in self.base.lower():
                raise OptionsError(f"Tally's name would be {self.base!r}: Cognito refuses a domain with {word!r} in it")

    @property
    def base(self) -> str:
        """The beginning of all names: `Tally-prod`, or `Tally-prod-Shop`. It is unique in an account and region, and it
        is also the name of the API, and the dimension `service` of metrics and log lines."""
        return "-".join((self.stack, *self.path))

    @property
    def dashboard_name(self) -> str:
        """The name of the dashboard: `Tally-prod-eu-west-1`."""
        return f"{self.base}-{Aws.REGION}"

    def help_line(self, section: str) -> str:
        """Returns the line of a mail that names a section of the docs, such as `runbook.md#drift`."""
        return f"What to do: {self.docs}/{section}"

    def alarm(self, kind: str) -> str:
        """Returns the name of an alarm: `Tally-prod-watermark-age-rollup`."""
        return f"{self.base}-{kind}"

    @property
    def access_log(self) -> str:
        """The log group of the API: `/aws/vendedlogs/Tally-prod-1a2b3c4d`.

        API Gateway writes the name of each access log into one policy of the region, which has 5,120 characters. A name
        that begins with `/aws/vendedlogs/` is not in the policy. The log group outlives its stack, so a stack that is
        created again needs another name.
        """
        return f"/aws/vendedlogs/{self._base_with_stack_id}"

    @property
    def vault(self) -> str:
        """The name of the backup vault and of the backup plan: `Tally-prod-1a2b3c4d`. A vault outlives its stack, so a
        stack that is created again needs another name."""
        return self._base_with_stack_id

    @property
    def _base_with_stack_id(self) -> str:
        id_of_stack = Fn.select(2, Fn.split("/", Aws.STACK_ID))
        return f"{self.base}-{Fn.select(0, Fn.split('-', id_of_stack))}"

    def login_domain(self, account: str) -> str:
        """Returns the user pool's domain prefix. It has the account's number, because it must be unique in a region."""
        return f"{self.base.lower()}-{account}"

    def table(self, name: str, restored: str = "") -> str:
        """Returns the name of a table: `Tally-prod-counts`, or restored to a time `Tally-prod-20261122T103000-counts`.

        CloudFormation would generate a new name in each stack. With a fixed name, a deploy that lacks the option
        `tables` after a restore fails, because a table of this name exists. So no stack starts with empty tables.
        """
        return "-".join((self.base, *filter(None, [restored]), name))

    def logical_id(self, name: str) -> str:
        """Returns a logical id that must never change, because another id would be a new, empty resource."""
        return "".join((*self.path, name))


def camel(module: str) -> str:
    """Returns the name of a function in logical ids and outputs: `IncrementsOpen` for `increments_open`."""
    return "".join(part.capitalize() for part in module.split("_"))


def stack_name(stage: str) -> str:
    """Returns the name of a stage's stack: `Tally-prod`."""
    return f"Tally-{stage}"


def edge_stack_name(stage: str, region: str) -> str:
    """Returns the name of a stage's stack in us-east-1, with the stage's region, because a stage may be in several."""
    return f"{stack_name(stage)}-edge-{region}"
