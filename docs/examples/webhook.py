"""Sends the events of thresholds to a URL, with an EventBridge rule and an API destination (docs/series.md)."""

from aws_cdk import Duration, SecretValue
from aws_cdk import aws_events as events
from aws_cdk import aws_events_targets as targets
from aws_cdk import aws_sqs as sqs
from constructs import Construct


class Webhook(Construct):
    """POSTs the detail of each event, with a secret header. The queue `given_up` keeps events that failed for a day."""

    def __init__(
        self, scope: Construct, id: str, *, bus_arn: str, url: str, header_value: SecretValue, rate_per_s: int = 50
    ) -> None:
        super().__init__(scope, id)
        secret = events.Authorization.api_key("X-Tally-Secret", header_value)
        connection = events.Connection(self, "Connection", authorization=secret)
        destination = events.ApiDestination(
            self, "Destination", connection=connection, endpoint=url, rate_limit_per_second=rate_per_s
        )
        self.given_up = sqs.Queue(self, "GivenUp", enforce_ssl=True, retention_period=Duration.days(14))
        events.Rule(
            self,
            "Rule",
            event_bus=events.EventBus.from_event_bus_arn(self, "Bus", bus_arn),
            event_pattern=events.EventPattern(source=["tally"], detail_type=["Threshold crossed"]),
            targets=[
                targets.ApiDestination(
                    destination,
                    event=events.RuleTargetInput.from_event_path("$.detail"),
                    dead_letter_queue=self.given_up,
                    max_event_age=Duration.hours(24),
                    retry_attempts=185,  # the maximum: max_event_age ends the retries earlier
                )
            ],
        )
