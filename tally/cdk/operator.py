"""A policy for the people who run the command `tally`. It allows what the command and the runbook do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from aws_cdk import Acknowledgment, ArnFormat, Stack, Validations
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_sns as sns
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from tally.api import needs as need
from tally.api.needs import Need, Needs
from tally.counter import Counter

from .alarms import count_subscribers_statement
from .dead_letters import DeadLetters
from .functions import policy_statements
from .streams import Streams
from .tables import Tables


def runbook_statements(
    failed_events: sqs.Queue, streams: Streams, sweep: lambda_.Alias, topic: sns.Topic
) -> list[iam.PolicyStatement]:
    """Returns the statements for the steps of docs/runbook.md that do not use the command `tally`. To invoke a function
    with a failed event, an operator also needs `InvokePolicy`."""
    consumers = [arn for one in streams.consumers for arn in (one.function_arn, one.lambda_.function_arn)]
    return [
        iam.PolicyStatement(
            actions=["sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:GetQueueAttributes"],
            resources=[failed_events.queue_arn],
        ),
        # ListEventSourceMappings takes no resource. DescribeAlarms asks for a topic, whose alarms have any name.
        iam.PolicyStatement(actions=["lambda:ListEventSourceMappings", "cloudwatch:DescribeAlarms"], resources=["*"]),
        iam.PolicyStatement(
            actions=["lambda:GetEventSourceMapping", "lambda:UpdateEventSourceMapping"],
            resources=[mapping.attr_event_source_mapping_arn for mapping in streams.mappings],
            # `FunctionArn` is the mapping's function, or the one that a request sets. Nobody may set another function.
            conditions={"StringEqualsIfExists": {"lambda:FunctionArn": consumers}},
        ),
        iam.PolicyStatement(actions=["lambda:InvokeFunction"], resources=[sweep.function_arn]),
        count_subscribers_statement(topic),
    ]


def operator_needs(counters: Mapping[str, Counter]) -> Needs:
    """Returns the needs of the command `tally`, without its scans: it reads, repairs, redrives, forgets and imports."""
    every = list(counters.values())
    of_users = [counter for counter in every if counter.counts_users]
    of_children = [counter for counter in every if counter.counts_children]
    on_ledger = {
        "JUDGE": ("GetItem", "ConditionCheckItem"),
        "SEGMENT#": ("PutItem",),  # a redrive books each record in its own segment
        "DRIFT": ("Query", "GetItem", "UpdateItem", "ConditionCheckItem"),
        "DEADLETTER": ("Query", "GetItem", "DeleteItem"),
        "LOST": ("Query", "PutItem", "DeleteItem"),
        "HISTORY#": ("Query", "PutItem"),
        "HOLDS#": ("Query", "GetItem", "PutItem", "DeleteItem"),  # `tally forget` releases a user's holds
        "DELETED": ("PutItem",),
        "PROGRESS": ("GetItem",),
        **dict.fromkeys(("SERIES#", "RUNNING#", "TOP#"), ("Query",)),
    }
    if any(counter.notifies for counter in every):
        on_ledger |= dict.fromkeys(("EVENT#", "SENT#"), ("Query",))
    if any(counter.items is not None for counter in every):
        on_ledger |= {
            "ITEMS": ("GetItem", "UpdateItem", "ConditionCheckItem"),  # a scan of existing items
            "PASSED": ("GetItem",),
            "SEEN#": ("UpdateItem",),
            "FINGERPRINT": ("UpdateItem",),
        }
    watched = [counter for counter in every if counter.watch]
    if watched:
        on_ledger["WATCHED#"] = ("Query", "GetItem", "UpdateItem", "DeleteItem")
    # BatchGetItem reads overrides and children. If it is allowed for every counter, the actions share one statement.
    repair = need.on_counts(every, "Query", "BatchGetItem", "UpdateItem", "ConditionCheckItem")
    repair |= need.on_counts(watched, "GetItem")
    forget = need.on_counts(of_users, "GetItem", "PutItem", "DeleteItem")
    import_ = need.on_counts(of_children, "PutItem", "UpdateItem")
    events = need.to_make_events(every)  # of a redriven record
    receipts = need.PUT_RECEIPT | need.FIND_RECEIPT | need.FIND_RECEIPTS
    return repair | forget | import_ | events | receipts | need.on_ledger(on_ledger) | need.READ_FINGERPRINTS


class Operator(Construct):
    """The managed policy. A deployer attaches it to people."""

    policy: iam.ManagedPolicy

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        needs: Iterable[Need],
        tables: Tables,
        dead_letters: DeadLetters,
        extra_statements: Sequence[iam.PolicyStatement],
    ) -> None:
        super().__init__(scope, id)
        stack = Stack.of(self)
        # The command knows the name of the stack, but not the id at the end of its ARN.
        by_name = stack.format_arn(
            service="cloudformation",
            resource="stack",
            resource_name=f"{stack.stack_name}/*",
            arn_format=ArnFormat.SLASH_RESOURCE_NAME,
        )
        bucket, scanned = dead_letters.bucket, [tables.counts.table_arn, tables.receipts.table_arn]
        objects = [bucket.arn_for_objects("*")]
        self.policy = iam.ManagedPolicy(
            self,
            "Policy",
            # With another description, CloudFormation would make a new policy, which nobody has attached.
            description="Lets people run the command tally: look, mend, redrive",
            statements=[
                iam.PolicyStatement(actions=["cloudformation:DescribeStacks"], resources=[by_name]),
                *policy_statements(tables, needs),
                # A scan names no key, so a condition on keys would refuse it.
                iam.PolicyStatement(actions=["dynamodb:Scan"], resources=scanned),
                iam.PolicyStatement(actions=["s3:GetObject", "s3:DeleteObject"], resources=objects),
                # Without this, S3 answers "forbidden" for a missing object, and a redrive could not see why.
                iam.PolicyStatement(actions=["s3:ListBucket"], resources=[bucket.bucket_arn]),
                *extra_statements,
            ],
        )
        self._acknowledge(stack, dead_letters)

    def _acknowledge(self, stack: Stack, dead_letters: DeadLetters) -> None:
        objects = f"<{dead_letters.logical_id}.Arn>/*"
        stacks = f"arn:<AWS::Partition>:cloudformation:<AWS::Region>:<AWS::AccountId>:stack/{stack.stack_name}/*"
        reasons = {
            "*": "lambda:ListEventSourceMappings takes no resource, and cloudwatch:DescribeAlarms is called for a"
            " topic, whatever the names of its alarms: both only read",
            objects: "The key of a dead letter has a shard and a sequence number, which are unknown before; the bucket"
            " holds nothing else",
            stacks: "This is one stack, whose ARN ends in an id that the command does not know",
        }
        for resource, reason in reasons.items():
            rule = f"AwsSolutions-IAM5[Resource::{resource}]"
            Validations.of(self.policy).acknowledge(Acknowledgment(id=rule, reason=reason))
