"""A queue for asynchronous events that Lambda gave up. Without the queue, Lambda drops a change after two retries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aws_cdk import Acknowledgment, Duration, RemovalPolicy, Validations
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from tally.api.operation import Route

from .functions import ALIAS
from .names import camel

RETENTION = Duration.days(14)  # the longest that SQS keeps a message


class FailedEvents(Construct):
    """The queue, as the failure destination of each function that writes for its callers."""

    queue: sqs.Queue

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        functions: Mapping[str, Sequence[Route]],
        aliases: Mapping[str, lambda_.Alias],
        keeps_data: bool,
    ) -> None:
        super().__init__(scope, id)
        self.queue = sqs.Queue(
            self,
            "Queue",
            encryption=sqs.QueueEncryption.SQS_MANAGED,
            enforce_ssl=True,
            retention_period=RETENTION,
            removal_policy=RemovalPolicy.RETAIN if keeps_data else RemovalPolicy.DESTROY,
        )
        Validations.of(self.queue).acknowledge(
            Acknowledgment(
                id="AwsSolutions-SQS3",
                reason="This is the queue of failed events itself: only a person reads it, after its alarm",
            )
        )
        # CDK's own destination would grant a function more than sending.
        on_failure = lambda_.CfnEventInvokeConfig.OnFailureProperty(destination=self.queue.queue_arn)
        destination = lambda_.CfnEventInvokeConfig.DestinationConfigProperty(on_failure=on_failure)
        for module, routes in functions.items():
            if not any(route.operation.writes for route in routes):
                continue
            alias = aliases[module]
            assert isinstance(alias.role, iam.Role)
            alias.role.add_to_policy(iam.PolicyStatement(actions=["sqs:SendMessage"], resources=[self.queue.queue_arn]))
            name = alias.lambda_.function_name
            config = lambda_.CfnEventInvokeConfig(
                self, camel(module), function_name=name, qualifier=ALIAS, destination_config=destination
            )
            config.node.add_dependency(alias)  # CloudFormation does not see that `qualifier` names the alias
