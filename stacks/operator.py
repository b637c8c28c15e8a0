"""A policy for the people who run the command `tally`: it may read, repair and redrive, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable

from aws_cdk import Acknowledgment, ArnFormat, Stack, Validations
from aws_cdk import aws_iam as iam
from constructs import Construct

from tally.operation import Need

from .functions import statements
from .set_aside import SetAside
from .tables import Tables


class Operator(Construct):
    """The managed policy. It is attached to nobody."""

    policy: iam.ManagedPolicy

    def __init__(
        self, scope: Construct, id: str, *, needs: Iterable[Need], tables: Tables, set_aside: SetAside
    ) -> None:
        super().__init__(scope, id)
        stack = Stack.of(self)
        # The command knows only the name of the stack; the ARN ends in an id.
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
            # Another text would be another policy under another ARN, which nobody has attached.
            description="Lets people run the command tally: look, mend, redrive",
            statements=[
                iam.PolicyStatement(actions=["cloudformation:DescribeStacks"], resources=[by_name]),
                *statements(tables, needs),
                # A scan names no key, so a condition on keys would refuse it.
                iam.PolicyStatement(
                    actions=["dynamodb:Scan"], resources=[tables.counts.table_arn, tables.receipts.table_arn]
                ),
                iam.PolicyStatement(
                    actions=["s3:GetObject", "s3:DeleteObject"], resources=[bucket.arn_for_objects("*")]
                ),
                # Without this S3 answers "forbidden" for a missing object, and a redrive could not see that it is gone.
                iam.PolicyStatement(actions=["s3:ListBucket"], resources=[bucket.bucket_arn]),
            ],
        )
        self._acknowledge(stack, set_aside)

    def _acknowledge(self, stack: Stack, set_aside: SetAside) -> None:
        objects = f"<{set_aside.logical_id}.Arn>/*"
        stacks = f"arn:<AWS::Partition>:cloudformation:<AWS::Region>:<AWS::AccountId>:stack/{stack.stack_name}/*"
        reasons = {
            objects: "What is set aside lies under shard and sequence number, which nobody knows before; the bucket"
            " holds nothing else",
            stacks: "It is this one stack, whose arn ends in an id that the command does not know",
        }
        for resource, reason in reasons.items():
            rule = f"AwsSolutions-IAM5[Resource::{resource}]"
            Validations.of(self.policy).acknowledge(Acknowledgment(id=rule, reason=reason))
