"""New code of the busy functions serves a tenth of the calls first, and none if it fails."""

from __future__ import annotations

from collections.abc import Mapping

from aws_cdk import Acknowledgment, Validations
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_cloudwatch_actions as actions
from aws_cdk import aws_codedeploy as codedeploy
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_sns as sns
from constructs import Construct

from . import alarms
from .metrics import errors_of_new_code
from .names import Names, camel

# Behind functions with few callers a tenth of the calls shows nothing: those move at once.
CONFIG = codedeploy.LambdaDeploymentConfig.CANARY_10_PERCENT_5_MINUTES


class Canary(Construct):
    """The deployments of the functions, by CodeDeploy, and the alarm that takes one back.

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
        failed: cloudwatch.Metric,
        topic: sns.ITopic,
    ) -> None:
        """`failed`: the answers that are the new code's own fault. What gives no answer, Lambda counts."""
        super().__init__(scope, id)
        self._names, self._topic = names, topic
        failing = self._alarm(failed)
        application = codedeploy.LambdaApplication(self, "Application")
        role = iam.Role(
            self,
            "Role",
            assumed_by=iam.ServicePrincipal("codedeploy.amazonaws.com"),
            description="Moves the callers of Tally's functions to a new version",
        )
        for module, alias in aliases.items():
            codedeploy.LambdaDeploymentGroup(
                self,
                camel(module),
                application=application,
                alias=alias,
                role=role,
                deployment_config=CONFIG,
                alarms=[failing, self._alarm(errors_of_new_code(alias), of=module)],
                auto_rollback=codedeploy.AutoRollbackConfig(deployment_in_alarm=True, failed_deployment=True),
            )
        Validations.of(role).acknowledge(
            Acknowledgment(
                id="AwsSolutions-IAM4[Policy::arn:<AWS::Partition>:iam::aws:policy/service-role/"
                "AWSCodeDeployRoleForLambdaLimited]",
                reason="It is what AWS has for this, and lets CodeDeploy change aliases only",
            )
        )

    def _alarm(self, metric: cloudwatch.Metric, *, of: str | None = None) -> cloudwatch.Alarm:
        """The alarm on a metric of new code. `of`: the function, if it is of one."""
        kind = alarms.NEW_CODE
        name, description = kind.described(of)
        made = cloudwatch.Alarm(
            self,
            f"{camel(of or '')}Failing",
            alarm_name=self._names.alarm(name),
            alarm_description=description,
            actions_enabled=True,
            metric=metric,
            threshold=kind.threshold,
            evaluation_periods=kind.periods,
            datapoints_to_alarm=kind.periods,
            comparison_operator=kind.compare,
            treat_missing_data=kind.missing,
        )
        for add in (made.add_alarm_action, made.add_ok_action, made.add_insufficient_data_action):
            add(actions.SnsAction(self._topic))
        return made
