"""The alarms: when each goes off, what it says, and where they all go."""

from __future__ import annotations

from dataclasses import dataclass

from aws_cdk import Aws, Stack
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_iam as iam
from aws_cdk import aws_sns as sns
from aws_cdk import aws_sns_subscriptions as subscriptions
from cdk_monitoring_constructs import CustomMetricWithAlarm, CustomThreshold
from constructs import Construct

PAGE = "docs/operations.md"
_Missing = cloudwatch.TreatMissingData
ABOVE = cloudwatch.ComparisonOperator.GREATER_THAN_THRESHOLD
BELOW = cloudwatch.ComparisonOperator.LESS_THAN_THRESHOLD


@dataclass(frozen=True)
class Alarm:
    """One kind of alarm. `name` is its section in docs/operations.md, too: `### Alarm: name`."""

    name: str
    says: str
    threshold: float
    periods: int
    """How many in a row; a period is the metric's own."""
    missing: cloudwatch.TreatMissingData = _Missing.NOT_BREACHING
    """What no data is; NOT_BREACHING: nothing happened, so nothing is wrong."""
    compare: cloudwatch.ComparisonOperator = ABOVE


# No news from the sweep or a consumer is no good news: the alarm stays as it is, and `sweep` or `iterator-age` tells.
# Those two turn to INSUFFICIENT_DATA in silence, which tells the topic, too: the pulse keeps all of them busy every
# minute. A new stack begins in that state, so nothing turns and nobody is woken; BREACHING would wake somebody.
DRIFT = Alarm("drift", "A recount confirmed that tallies differ from what was accepted", 0, 1, _Missing.IGNORE)
ROLLUP_LAG = Alarm(
    "rollup-lag", "Rolled up numbers have been over a minute behind for 5 minutes", 60, 5, _Missing.IGNORE
)
ITERATOR_AGE = Alarm(
    "iterator-age", "A stream consumer has been over a minute behind for 10 minutes", 60_000, 2, _Missing.MISSING
)
# Lambda tells the age per function: one of its mappings that is disabled hides behind the other.
STANDS_STILL = Alarm(
    "stands-still", "A stream consumer has not moved on in one of its streams for 5 minutes", 0, 5, _Missing.IGNORE
)
SET_ASIDE = Alarm("set-aside", "A stream consumer put records aside that it could not apply: redrive them", 0, 1)
SWEEP = Alarm("sweep", "No sweep has ended well for 10 minutes: nothing is judged", 1, 2, _Missing.MISSING, BELOW)
UNJUDGED = Alarm(
    "unjudged", "No sweep has come to the end of the ledger for 15 minutes: rows pile up", 0, 15, _Missing.IGNORE
)
FAILING = Alarm("5xx", "Over 1 % of the HTTP requests have failed for 10 minutes", 1, 2)
LATENCY = Alarm("latency", "One HTTP request in a hundred has taken over a second for 10 minutes", 1000, 10)
THROTTLES = Alarm("throttles", "DynamoDB has refused more than one write a second for 5 minutes", 60, 5)
# SQS says nothing of a queue that nobody touched for six hours: the events in it are still there.
DEAD_LETTERS = Alarm(
    "dead-letters", "Lambda has given up asynchronous events: they may not be counted", 0, 1, _Missing.IGNORE
)
ALARMS = (
    DRIFT, ROLLUP_LAG, ITERATOR_AGE, STANDS_STILL, SET_ASIDE, SWEEP, UNJUDGED,
    FAILING, LATENCY, THROTTLES, DEAD_LETTERS,
)  # fmt: skip


def watched(
    stack: Stack, metric: cloudwatch.Metric | cloudwatch.MathExpression, alarm: Alarm, *, of: str | None = None
) -> CustomMetricWithAlarm:
    """The metric with its alarm, called `Tally-prod-drift-likes`; `of`: what it is about, if there are several."""
    name = f"{alarm.name}-{of}" if of else alarm.name
    about = f"{alarm.says} ({of})" if of else alarm.says
    threshold = CustomThreshold(
        threshold=alarm.threshold,
        comparison_operator=alarm.compare,
        evaluation_periods=alarm.periods,
        datapoints_to_alarm=alarm.periods,
        treat_missing_data_override=alarm.missing,
        alarm_name_override=f"{stack.stack_name}-{name}",
        alarm_description_override=f"{about}. What to do: {PAGE}#alarm-{alarm.name}",
        override_annotation_label=f"alarm: {alarm.name}",
        override_annotation_visibility=of is None,  # several of one kind would draw one line over the other
    )
    return CustomMetricWithAlarm(metric=metric, alarm_friendly_name=name, add_alarm={"Alarm": threshold})


class AlarmTopic(Construct):
    """Where every alarm goes, and that it is over.

    Not encrypted with KMS: alarms cannot publish with AWS's own key, a key of ours bills by the month, and a message
    holds an alarm's name and a number. It travels over TLS only.
    """

    topic: sns.Topic

    def __init__(self, scope: Construct, id: str, *, email: str | None) -> None:
        super().__init__(scope, id)
        self.topic = sns.Topic(self, "Topic", display_name="Tally", enforce_ssl=True)
        # A topic with a policy of its own lets nobody in by default, and an alarm that may not publish is silent.
        self.topic.add_to_resource_policy(
            iam.PolicyStatement(
                sid="AlarmsOfThisAccount",
                actions=["sns:Publish"],
                principals=[iam.ServicePrincipal("cloudwatch.amazonaws.com")],
                resources=[self.topic.topic_arn],
                conditions={"StringEquals": {"aws:SourceAccount": Aws.ACCOUNT_ID}},
            )
        )
        if email:
            self.topic.add_subscription(subscriptions.EmailSubscription(email))
