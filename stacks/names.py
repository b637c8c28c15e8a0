"""Every name that the template gives to something: one place, so that two Tallys never share one."""

from __future__ import annotations

from dataclasses import dataclass

from aws_cdk import Stack
from constructs import Construct

HIDDEN_ID = "Default"  # CDK leaves a construct with this id out of logical ids


@dataclass(frozen=True)
class Names:
    """The names of one Tally. They follow its path in the stack, as CDK's logical ids do."""

    stack: str
    """The stack's name: `Tally-prod`."""
    path: tuple[str, ...] = ()
    """The ids from the stack down to the scope of Tally, without hidden ones."""

    @classmethod
    def of(cls, scope: Construct) -> Names:
        """The names of the Tally in this scope: a stack, or a construct in one."""
        stack = Stack.of(scope)
        ids = [above.node.id for above in scope.node.scopes[len(stack.node.scopes) :]]
        return cls(stack.stack_name, tuple(id for id in ids if id != HIDDEN_ID))

    @property
    def base(self) -> str:
        """How all names begin that are unique in an account and region: `Tally-prod`, or `Tally-prod-Shop`."""
        return "-".join((self.stack, *self.path))

    @property
    def api(self) -> str:
        """The HTTP API."""
        return self.base

    @property
    def dashboard(self) -> str:
        """The dashboard."""
        return self.base

    def alarm(self, kind: str) -> str:
        """An alarm: `Tally-prod-drift-likes`."""
        return f"{self.base}-{kind}"

    def login_domain(self, account: str) -> str:
        """The domain prefix of the user pool, with the account's number because it is unique in the region."""
        return f"{self.base.lower()}-{account}"

    def logical_id(self, name: str) -> str:
        """The logical id of a resource that must keep it for ever, because another id is a new, empty resource."""
        return "".join((*self.path, name))


def stack_name(stage: str) -> str:
    """The stack of a stage: `Tally-prod`."""
    return f"Tally-{stage}"
