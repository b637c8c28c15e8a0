"""The bucket for stream records that no consumer could apply. They stay until an operator redrives them, or expire."""

from __future__ import annotations

from aws_cdk import Acknowledgment, Duration, RemovalPolicy, Validations
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_s3 as s3
from constructs import Construct

from tally.api.background import StreamReader

from .names import Names

# Nobody needs an older version for long: it has the newest version's record, or a record that somebody redrove.
NONCURRENT_RETENTION = Duration.days(7)


class DeadLetters(Construct):
    """The bucket. It holds the last copy of an accepted change: a stream forgets its records after a day.

    The bucket is versioned, so no consumer can overwrite a record before its redrive. If the stack is deleted, nothing
    empties the bucket: that would need a Lambda function with the right to delete, for a bucket that is usually empty.
    In `dev` an empty bucket is deleted with the stack; any other bucket stays.
    """

    bucket: s3.Bucket
    logical_id: str

    def __init__(self, scope: Construct, id: str, *, names: Names, keeps_data: bool, expires_days: int) -> None:
        super().__init__(scope, id)
        expires = Duration.days(expires_days)
        self.bucket = s3.Bucket(
            self,
            "Bucket",
            encryption=s3.BucketEncryption.S3_MANAGED,  # KMS would bill and limit each write, as it would on the tables
            block_public_access=s3.BlockPublicAccess.BLOCK_ALL,
            object_ownership=s3.ObjectOwnership.BUCKET_OWNER_ENFORCED,
            enforce_ssl=True,
            versioned=True,
            lifecycle_rules=[
                s3.LifecycleRule(expiration=expires, noncurrent_version_expiration=NONCURRENT_RETENTION),
                s3.LifecycleRule(expired_object_delete_marker=True),
            ],
            removal_policy=RemovalPolicy.RETAIN if keeps_data else RemovalPolicy.DESTROY,
        )
        resource = self.bucket.node.default_child
        assert isinstance(resource, s3.CfnBucket)
        self.logical_id = names.logical_id("DeadLetterBucket")
        # Under another logical id, CloudFormation would make a new, empty bucket.
        resource.override_logical_id(self.logical_id)
        Validations.of(self.bucket).acknowledge(
            Acknowledgment(
                id="AwsSolutions-S1",
                reason="Two functions write here, and only when something is wrong: each write is in their logs, with"
                " its key, and raises an alarm. Access logs would repeat this in a second bucket",
            )
        )

    def grant_put(self, consumer: StreamReader, alias: lambda_.Alias) -> None:
        """Let a consumer put records under its own name. It may not read, delete, or write under another name."""
        role = alias.role
        assert isinstance(role, iam.Role)
        objects = self.bucket.arn_for_objects(f"{consumer.function}/*")
        role.add_to_policy(iam.PolicyStatement(actions=["s3:PutObject"], resources=[objects]))
        Validations.of(role).acknowledge(
            Acknowledgment(
                id=f"AwsSolutions-IAM5[Resource::<{self.logical_id}.Arn>/{consumer.function}/*]",
                reason="The key of a record has a shard and a sequence number, which a template cannot know. The"
                " consumer may put records under its own name and do nothing else",
            )
        )
