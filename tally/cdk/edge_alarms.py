"""The alarms of the front door, in us-east-1, where CloudFront and its web ACL have their metrics."""

from __future__ import annotations

from aws_cdk import CfnOutput, Stack
from aws_cdk import aws_cloudfront as cloudfront
from aws_cdk import aws_cloudwatch as cloudwatch
from constructs import Construct

from . import alarms
from .metrics import FIVE_MINUTES, metric
from .names import Names
from .options import Options

CLIENT_RATE, BODY_SIZE = "ClientRate", "BodySize"  # the rules of the web ACL
REQUESTS_MIN = 100
"""With fewer requests in five minutes, the share of refusals means nothing, because strangers try wrong paths."""


class EdgeAlarms(Construct):
    """Alarms on the answers of CloudFront and AWS WAF, and the topic that they notify.

    The API's own alarms do not see requests that never reach the API. An alarm publishes only to a topic of its region.
    """

    def __init__(self, scope: Construct, id: str, *, distribution: cloudfront.Distribution, options: Options) -> None:
        super().__init__(scope, id)
        names = Names.of(Stack.of(self), options.docs_url)
        topic = alarms.AlarmTopic(self, "Alarms", names=names, email=options.alarm_email).topic

        def of_distribution(name: str, statistic: str) -> cloudwatch.Metric:
            # https://docs.aws.amazon.com/AmazonCloudFront/latest/DeveloperGuide/programming-cloudwatch-metrics.html
            dimensions = {"DistributionId": distribution.distribution_id, "Region": "Global"}
            return metric("AWS/CloudFront", name, dimensions, statistic, period=FIVE_MINUTES, label=name)

        refused = cloudwatch.MathExpression(
            expression=f"IF(requests > {REQUESTS_MIN}, FILL(refused, 0), 0)",
            using_metrics={
                "requests": of_distribution("Requests", "Sum"),
                "refused": of_distribution("4xxErrorRate", "Average"),
            },
            period=FIVE_MINUTES,
            label="refused",
        )
        # https://docs.aws.amazon.com/waf/latest/developerguide/waf-metrics.html: no dimension Region.
        acl, name = {"WebACL": names.stack, "Rule": CLIENT_RATE}, "BlockedRequests"
        blocked = metric("AWS/WAFV2", name, acl, "Sum", period=FIVE_MINUTES, label=name)
        for id_, watched, alarm in (
            ("Failing", of_distribution("5xxErrorRate", "Average"), alarms.EDGE_FAILING),
            ("Refusing", refused, alarms.EDGE_REFUSING),
            ("Blocking", blocked, alarms.EDGE_BLOCKING),
        ):
            alarms.create_alarm(self, id_, names=names, metric=watched, alarm=alarm, topic=topic)
        about = "Subscribe to this topic: it gets every alarm of the front door"
        CfnOutput(self, "TopicArn", value=topic.topic_arn, description=about).override_logical_id("AlarmTopicArn")
