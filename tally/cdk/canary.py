"""New code of the busy functions first serves a tenth of the calls. If the new code fails, it serves no calls."""

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

# A tenth of few calls shows nothing, so a function with few callers gets its new version at once.
CONFIG = codedeploy.LambdaDeploymentConfig.CANARY_10_PERCENT_5_MINUTES


class Canary(Construct):
    """CodeDeploy's deployments of the functions, and the alarms that roll a deployment back.

    An alarm judges answers of the new code, so callers are needed (docs/operate.md). A hook that called the new version
    first, would need a function, a role, and an event that every busy function answers without counting.

    A deploy updates the consumers first, and at once (`deploy_before`), because they must know what new code writes.
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
        """`failed`: for each function, the metric of the answers of its new code that are Tally's failures."""
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
            failing = create_alarm(self, id_, names=names, metric=metric, alarm=NEW_CODE, topic=topic, subject=module)
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
                reason="AWS made this policy for CodeDeploy, which can change aliases only",
            )
        )
