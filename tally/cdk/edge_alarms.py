"""The alarms of the front door, in us-east-1: there CloudFront and its web ACL have their metrics."""

from __future__ import annotations

from aws_cdk import CfnOutput, Stack
from aws_cdk import aws_cloudfront as cloudfront
from aws_cdk import aws_cloudwatch as cloudwatch
from constructs import Construct

from . import alarms
from .metrics import FIVE_MINUTES
from .names import Names
from .options import Options

CLIENT_RATE, BODY_SIZE = "ClientRate", "BodySize"  # the rules of the web ACL
REQUESTS_MIN = 100
"""Requests in five minutes, from which on a share of refusals says something: strangers try what is not there."""


class EdgeAlarms(Construct):
    """What a caller gets who never reaches the API, and the topic that hears of it.

    The API's own alarms see none of this. An alarm publishes only to a topic of its own region.
    """

    def __init__(self, scope: Construct, id: str, *, distribution: cloudfront.Distribution, options: Options) -> None:
        super().__init__(scope, id)
        names = Names.of(Stack.of(self), options.docs_url)
        topic = alarms.AlarmTopic(self, "Alarms", names=names, email=options.alarm_email).topic

        def seen(name: str, statistic: str) -> cloudwatch.Metric:
            # https://docs.aws.amazon.com/AmazonCloudFront/latest/DeveloperGuide/programming-cloudwatch-metrics.html
            of = {"DistributionId": distribution.distribution_id, "Region": "Global"}
            return _metric("AWS/CloudFront", name, of, statistic)

        refused = cloudwatch.MathExpression(
            expression=f"IF(requests > {REQUESTS_MIN}, FILL(refused, 0), 0)",
            using_metrics={"requests": seen("Requests", "Sum"), "refused": seen("4xxErrorRate", "Average")},
            period=FIVE_MINUTES,
            label="refused",
        )
        # https://docs.aws.amazon.com/waf/latest/developerguide/waf-metrics.html: CloudFront's have no region.
        acl = {"WebACL": names.stack, "Rule": CLIENT_RATE}
        for id_, metric, kind in (
            ("Failing", seen("5xxErrorRate", "Average"), alarms.EDGE_FAILING),
            ("Refusing", refused, alarms.EDGE_REFUSING),
            ("Blocking", _metric("AWS/WAFV2", "BlockedRequests", acl, "Sum"), alarms.EDGE_BLOCKING),
        ):
            alarms.create_alarm(self, id_, names=names, metric=metric, alarm=kind, topic=topic)
        said = "Subscribe to this: every alarm of the front door goes there"
        CfnOutput(self, "TopicArn", value=topic.topic_arn, description=said).override_logical_id("AlarmTopicArn")


def _metric(namespace: str, name: str, dimensions: dict[str, str], statistic: str) -> cloudwatch.Metric:
    return cloudwatch.Metric(
        namespace=namespace,
        metric_name=name,
        dimensions_map=dimensions,
        statistic=statistic,
        period=FIVE_MINUTES,
        label=name,
    )
