"""A policy for whoever runs the command `tally`: it may look, mend and redrive, and no more."""

from __future__ import annotations

from aws_cdk import Acknowledgment, ArnFormat, Stack, Validations
from aws_cdk import aws_iam as iam
from constructs import Construct

import counters
import permissions

from .functions import statements
from .set_aside import BUCKET_ID, SetAside
from .tables import Tables


class Operator(Construct):
    """The managed policy. Nobody has it until somebody attaches it."""

    policy: iam.ManagedPolicy

    def __init__(self, scope: Construct, id: str, *, tables: Tables, set_aside: SetAside) -> None:
        super().__init__(scope, id)
        stack = Stack.of(self)
        # The command knows the stack by its name alone; the arn ends in an id that it has yet to learn.
        by_name = stack.format_arn(
            service="cloudformation",
            resource="stack",
            resource_name=f"{stack.stack_name}/*",
            arn_format=ArnFormat.SLASH_RESOURCE_NAME,
        )
        bucket = set_aside.bucket
        self.policy = iam.ManagedPolicy(
            self,
            "Policy",
            description="Lets people run the command tally: look, mend, redrive",
            statements=[
                iam.PolicyStatement(actions=["cloudformation:DescribeStacks"], resources=[by_name]),
                *statements(tables, permissions.of_operator(counters.COUNTERS)),
                # A scan names no key, so no condition on keys lets it through.
                iam.PolicyStatement(actions=["dynamodb:Scan"], resources=[tables.counts.table_arn]),
                iam.PolicyStatement(
                    actions=["s3:GetObject", "s3:DeleteObject"], resources=[bucket.arn_for_objects("*")]
                ),
                # Without it S3 says that a missing object is forbidden, and a redrive could not tell.
                iam.PolicyStatement(actions=["s3:ListBucket"], resources=[bucket.bucket_arn]),
            ],
        )
        self._acknowledge(stack)

    def _acknowledge(self, stack: Stack) -> None:
        reasons = {
            f"AwsSolutions-IAM5[Resource::<{BUCKET_ID}.Arn>/*]": "What is set aside lies under shard and sequence"
            " number, which nobody knows before; the bucket holds nothing else",
            "AwsSolutions-IAM5[Resource::arn:<AWS::Partition>:cloudformation:<AWS::Region>:<AWS::AccountId>:stack/"
            f"{stack.stack_name}/*]": "It is this one stack, whose arn ends in an id that the command does not know",
        }
        for rule, reason in reasons.items():
            Validations.of(self.policy).acknowledge(Acknowledgment(id=rule, reason=reason))
