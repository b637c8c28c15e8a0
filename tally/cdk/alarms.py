"""The alarms: when each goes off, its text, and the topic that all of them notify."""

from __future__ import annotations

from dataclasses import dataclass
from math import nan

from aws_cdk import Acknowledgment, ArnFormat, Aws, Stack, Validations
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_cloudwatch_actions as actions
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_sns as sns
from aws_cdk import aws_sns_subscriptions as subscriptions
from cdk_monitoring_constructs import CustomMetricWithAlarm, CustomThreshold
from constructs import Construct

from .names import Names

_Missing = cloudwatch.TreatMissingData
ABOVE = cloudwatch.ComparisonOperator.GREATER_THAN_THRESHOLD
BELOW = cloudwatch.ComparisonOperator.LESS_THAN_THRESHOLD
AT_ONCE, WITHIN_HOURS, TODAY = "now", "within hours", "today"
BY_THROTTLES = nan  # a placeholder: the stack computes the threshold from the throttles of its routes


@dataclass(frozen=True)
class Alarm:
    """One kind of alarm. `name` is also the heading of its section in docs/runbook.md."""

    name: str
    description: str
    act: str
    """How soon a person has to act: AT_ONCE, WITHIN_HOURS (before the oldest unread stream record expires) or TODAY."""
    threshold: float  # in the unit of the metric
    periods: int
    """The alarm goes off after so many periods in a row beyond the threshold. The metric says how long a period is."""
    missing_data: cloudwatch.TreatMissingData = _Missing.NOT_BREACHING
    """What missing data means. NOT_BREACHING: nothing happened, so nothing is wrong."""
    compare: cloudwatch.ComparisonOperator = ABOVE

    def name_and_text(self, names: Names, subject: str = "") -> tuple[str, str]:
        """Returns the name and the text of an alarm. `subject`: a consumer, table or function, if each has an alarm."""
        suffix, addition = (f"-{subject}", f" ({subject})") if subject else ("", "")
        return self.name + suffix, f"{self.description}{addition}. {names.help_line(f'runbook.md#{self.name}')}"


# Missing data. IGNORE: the alarm keeps its state, because silence of the sweep or of a consumer does not mean that all
# is well. The alarms `sweep` and `iterator-age` report such silence. They have MISSING: without data, they turn to
# INSUFFICIENT_DATA, which notifies the topic. A new stack begins in this state, and so notifies nobody; with BREACHING
# it would. `drift` is a query with a line for each counter. AWS sets a line without data to OK, even with IGNORE.
DRIFT = Alarm(
    "drift", "Stored numbers have differed from accepted changes for 5 checked minutes", TODAY, 0, 1, _Missing.IGNORE
)
# One stuck shard sets this alarm off, because the metric needs proof from every shard. `iterator-age` would not show a
# disabled event source mapping, or a shard that nobody reads: Lambda reports one age for all shards of a function.
WATERMARK_AGE = Alarm(
    "watermark-age",
    "A stream consumer is stuck or behind: no proof of progress in every shard for over 10 minutes",
    WITHIN_HOURS,
    600,
    5,
    _Missing.IGNORE,
)
ITERATOR_AGE = Alarm(
    "iterator-age",
    "A stream consumer has been over a minute behind for 10 minutes",
    WITHIN_HOURS,
    60_000,
    2,
    _Missing.MISSING,
)
DEAD_LETTERS = Alarm(
    "dead-letters", "A stream consumer could not apply records and kept them as dead letters: redrive them", TODAY, 0, 1
)
LOST_RECORDS = Alarm(
    "lost-records",
    "Stream records may be lost: `as_of` waits until an operator acknowledges the loss",
    TODAY,
    0,
    1,
    _Missing.IGNORE,
)
SWEEP = Alarm(
    "sweep", "No sweep has succeeded for 10 minutes: nothing is checked", WITHIN_HOURS, 1, 2, _Missing.MISSING, BELOW
)
UNJUDGED = Alarm(
    "unjudged", "No sweep has finished its checks for 15 minutes: drift shows late", TODAY, 0, 15, _Missing.IGNORE
)
EVENTS = Alarm("events", "Threshold events have not been sent for over 15 minutes", TODAY, 900, 2, _Missing.IGNORE)
HOLDS = Alarm("holds", "Expired holds could not be released for 5 minutes", TODAY, 0, 5, _Missing.IGNORE)
FAILING = Alarm("5xx", "Over 1 % of the HTTP requests have failed for 10 minutes", AT_ONCE, 1, 2)
LATENCY = Alarm("latency", "One HTTP request in a hundred has taken over a second for 10 minutes", AT_ONCE, 1000, 10)
THROTTLES = Alarm("throttles", "DynamoDB has throttled more than one write a second for 5 minutes", AT_ONCE, 60, 5)
# Strangers' requests cost money. Tally answers them without an error, so no alarm on errors goes off.
TRAFFIC = Alarm(
    "traffic",
    "HTTP requests have been over four fifths of what the busiest route allows, for 10 minutes",
    AT_ONCE,
    BY_THROTTLES,
    2,
)
REFUSING = Alarm(
    "429", "Throttles of routes have refused over 1,000 requests in 5 minutes, twice in a row", AT_ONCE, 1000, 2
)
WRITE_UNITS = Alarm(
    "write-units",
    "Writes have cost over four fifths of what the busiest route allows, for 10 minutes",
    AT_ONCE,
    BY_THROTTLES,
    2,
)
# IGNORE, because SQS reports nothing about a queue that is idle for six hours, although events may still be there.
FAILED_EVENTS = Alarm(
    "failed-events", "Lambda has given up asynchronous events: they may not be counted", TODAY, 0, 1, _Missing.IGNORE
)
# If CloudFront or a firewall blocks every request, the API gets no request that could fail. MISSING is as for `sweep`:
# silence notifies the topic, and a new stack notifies nobody.
SILENCE = Alarm("silence", "No request has reached the API for six hours", AT_ONCE, 1, 6, _Missing.MISSING, BELOW)
EDGE_FAILING = Alarm(
    "edge-5xx", "CloudFront has answered over 5 % of the requests with an error for 10 minutes", AT_ONCE, 5, 2
)
EDGE_REFUSING = Alarm("edge-4xx", "CloudFront has refused over half of the requests for 15 minutes", AT_ONCE, 50, 3)
EDGE_BLOCKING = Alarm(
    "edge-blocked", "AWS WAF has refused over 10,000 requests in 5 minutes, twice in a row", TODAY, 10_000, 2
)
# The metric has only calls of the new code. Otherwise failing old code would stop the deploy that corrects it.
NEW_CODE = Alarm("new-code", "Newly deployed code fails: at least two calls in a minute", AT_ONCE, 1, 1)
ALARMS = tuple(value for value in list(vars().values()) if isinstance(value, Alarm))


def metric_with_alarm(
    names: Names, metric: cloudwatch.Metric | cloudwatch.MathExpression, alarm: Alarm, *, subject: str = ""
) -> CustomMetricWithAlarm:
    """Returns the metric with its alarm, for a widget."""
    name, description = alarm.name_and_text(names, subject)
    threshold = CustomThreshold(
        threshold=alarm.threshold,
        comparison_operator=alarm.compare,
        evaluation_periods=alarm.periods,
        datapoints_to_alarm=alarm.periods,
        treat_missing_data_override=alarm.missing_data,
        alarm_name_override=names.alarm(name),
        alarm_description_override=description,
        override_annotation_label=f"alarm: {alarm.name}",
        override_annotation_visibility=not subject,  # the labels of several alarms would overlap
    )
    return CustomMetricWithAlarm(metric=metric, alarm_friendly_name=name, add_alarm={"Alarm": threshold})


def create_alarm(
    scope: Construct,
    id: str,
    *,
    names: Names,
    metric: cloudwatch.Metric | cloudwatch.MathExpression,
    alarm: Alarm,
    topic: sns.ITopic,
    subject: str = "",
) -> cloudwatch.Alarm:
    """Creates an alarm that is on no dashboard."""
    name, description = alarm.name_and_text(names, subject)
    resource = cloudwatch.Alarm(
        scope,
        id,
        alarm_name=names.alarm(name),
        alarm_description=description,
        actions_enabled=True,
        metric=metric,
        threshold=alarm.threshold,
        evaluation_periods=alarm.periods,
        datapoints_to_alarm=alarm.periods,
        comparison_operator=alarm.compare,
        treat_missing_data=alarm.missing_data,
    )
    for add in (resource.add_alarm_action, resource.add_ok_action, resource.add_insufficient_data_action):
        add(actions.SnsAction(topic))
    return resource


def count_subscribers_statement(topic: sns.Topic) -> iam.PolicyStatement:
    """Returns the statement that allows to read how many subscribers the topic has."""
    return iam.PolicyStatement(actions=["sns:GetTopicAttributes"], resources=[topic.topic_arn])


class AlarmTopic(Construct):
    """The topic that every alarm notifies when it goes off and when it is over.

    KMS does not encrypt the topic, because alarms cannot publish to a topic with AWS's own key, and a customer key has
    a price. A message has an alarm's name and a number, and travels over TLS only.
    """

    topic: sns.Topic

    def __init__(self, scope: Construct, id: str, *, names: Names, email: str | None) -> None:
        super().__init__(scope, id)
        self.topic = sns.Topic(self, "Topic", display_name="Tally", enforce_ssl=True)
        # The policy that enforces TLS replaces SNS's default policy, which lets the account's alarms publish.
        self.topic.add_to_resource_policy(
            iam.PolicyStatement(
                sid="AlarmsOfThisAccount",
                actions=["sns:Publish"],
                principals=[iam.ServicePrincipal("cloudwatch.amazonaws.com")],
                resources=[self.topic.topic_arn],
                conditions={"StringEquals": {"aws:SourceAccount": Aws.ACCOUNT_ID}},
            )
        )
        self._names = names
        if email:
            self.topic.add_subscription(subscriptions.EmailSubscription(email))

    def grant_read_alarms(self, alias: lambda_.Alias) -> None:
        """Let a function read the states of the alarms with the stack's prefix, and the number of the subscribers."""
        function, role = alias.version.lambda_, alias.role
        assert isinstance(function, lambda_.Function)
        assert isinstance(role, iam.Role)
        function.add_environment("TALLY_ALARM_TOPIC", self.topic.topic_arn)  # only this Tally's alarms notify it
        alarms = Stack.of(self).format_arn(
            service="cloudwatch",
            resource="alarm",
            resource_name=self._names.alarm("*"),
            arn_format=ArnFormat.COLON_RESOURCE_NAME,
        )
        role.add_to_policy(iam.PolicyStatement(actions=["cloudwatch:DescribeAlarms"], resources=[alarms]))
        role.add_to_policy(count_subscribers_statement(self.topic))
        resource = f"arn:<AWS::Partition>:cloudwatch:<AWS::Region>:<AWS::AccountId>:alarm:{self._names.alarm('*')}"
        reason = "The function shows the states of the alarms whose names begin with the stack's name"
        Validations.of(role).acknowledge(Acknowledgment(id=f"AwsSolutions-IAM5[Resource::{resource}]", reason=reason))
