"""The bus of threshold events, if a counter declares thresholds. The team makes the rules on the bus."""

from __future__ import annotations

from aws_cdk import aws_events as events
from aws_cdk import aws_iam as iam
from constructs import Construct

from tally.streams.events import SOURCE

from .names import Names


class EventBus(Construct):
    """Uses the bus with the ARN `arn`. If `arn` is empty, makes a bus."""

    arn: str

    def __init__(self, scope: Construct, id: str, *, names: Names, arn: str) -> None:
        super().__init__(scope, id)
        self.arn = arn or events.EventBus(self, "Bus", event_bus_name=names.base).event_bus_arn

    def grant_put_events(self, role: iam.Role) -> None:
        """Lets the functions of a role send events to the bus, but only with Tally's source."""
        of_tally = {"StringEquals": {"events:source": SOURCE}}
        put = iam.PolicyStatement(actions=["events:PutEvents"], resources=[self.arn], conditions=of_tally)
        role.add_to_policy(put)
