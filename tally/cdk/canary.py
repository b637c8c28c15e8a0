"""New code of the busy functions serves a tenth of the calls first, and none if it fails."""

from __future__ import annotations

from collections.abc import Mapping

from aws_cdk import Acknowledgment, Validations
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_codedeploy as codedeploy
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_sns as sns
from constructs import Construct

from .alarms import NEW_CODE, create_alarm
from .metrics import new_code_failures
from .names import Names, camel

# Behind functions with few callers a tenth of the calls shows nothing: those move at once.
CONFIG = codedeploy.LambdaDeploymentConfig.CANARY_10_PERCENT_5_MINUTES


class Canary(Construct):
    """The deployments of the functions, by CodeDeploy, and the alarms that take one back.

    They see what the new code answers, so they need callers: docs/operate.md#new-code has the odds. A hook that
    calls the new version before it gets traffic would take a function of its own, with a role, and an event that every
    busy function answers from the tables without counting anything: over a hundred lines.

    The consumers move first and at once (`Streams.precede`): they must know what new code writes, and what they missed
    waits in the streams.
    """

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        names: Names,
        aliases: Mapping[str, lambda_.Alias],
        failed: Mapping[str, cloudwatch.Metric],
        topic: sns.ITopic,
    ) -> None:
        """`failed`: of each function, the answers that are the new code's own fault."""
        super().__init__(scope, id)
        application = codedeploy.LambdaApplication(self, "Application")
        role = iam.Role(
            self,
            "Role",
            assumed_by=iam.ServicePrincipal("codedeploy.amazonaws.com"),
            description="Moves the callers of Tally's functions to a new version",
        )
        for module, alias in aliases.items():
            metric, id_ = new_code_failures(failed[module], alias), f"{camel(module)}Failing"
            failing = create_alarm(self, id_, names=names, metric=metric, alarm=NEW_CODE, topic=topic, of=module)
            codedeploy.LambdaDeploymentGroup(
                self,
                camel(module),
                application=application,
                alias=alias,
                role=role,
                deployment_config=CONFIG,
                alarms=[failing],
                auto_rollback=codedeploy.AutoRollbackConfig(deployment_in_alarm=True, failed_deployment=True),
            )
        Validations.of(role).acknowledge(
            Acknowledgment(
                id="AwsSolutions-IAM4[Policy::arn:<AWS::Partition>:iam::aws:policy/service-role/"
                "AWSCodeDeployRoleForLambdaLimited]",
                reason="It is what AWS has for this, and lets CodeDeploy change aliases only",
            )
        )
