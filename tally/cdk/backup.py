"""Copies of the three tables in a vault of another region or account. The copies survive the loss of this region.

Global tables do not fit. If two regions write one item, the last writer wins, and the other change is lost without a
trace. A transaction is atomic only in its own region, so another region may see a receipt without its count. Global
tables with strong consistency take no transactions.

DynamoDB's export to S3 has all tables as of one second, so holds and drift would fit the counts. But something has to
start the export each day, and an export costs three times as much a month as AWS Backup.
"""

from __future__ import annotations

from aws_cdk import Acknowledgment, RemovalPolicy, Validations
from aws_cdk import aws_backup as backup
from aws_cdk import aws_events as events
from aws_cdk import aws_events_targets as targets
from aws_cdk import aws_iam as iam
from aws_cdk import aws_sns as sns
from constructs import Construct

from tally.contract.deployment import TABLES

from .names import Names
from .tables import Tables

DAILY = "cron(0 3 * * ? *)"  # UTC
# The least that AWS takes. AWS Backup gives up a copy that begins later, so all copies of a day begin within this time.
START_WINDOW_MIN = 60
LOCAL_RETENTION_DAYS = 3  # enough for a large table, whose copy to the other vault takes hours
REMOTE_RETENTION_DAYS = 7
HELP_PAGE = "restore.md#one-region"
POLICY = "AWSBackupServiceRolePolicyForBackup"


class Backup(Construct):
    """AWS Backup copies the tables once a day: first into a vault of the stack, and from there to the other vault.

    AWS Backup copies each table at its own moment, all of them within an hour (docs/restore.md says what follows). The
    vault outlives its stack, because CloudFormation cannot delete a vault that has copies.
    """

    def __init__(
        self, scope: Construct, id: str, *, names: Names, tables: Tables, vault_arn: str, topic: sns.ITopic
    ) -> None:
        """`topic`: gets a message for each failed job."""
        super().__init__(scope, id)
        copied_tables = [tables.by_name[table].table_arn for table in TABLES]
        vault = backup.CfnBackupVault(self, "Vault", backup_vault_name=names.vault)
        vault.apply_removal_policy(RemovalPolicy.RETAIN_ON_UPDATE_OR_DELETE)  # a rolled-back deploy deletes the vault
        contents = backup.CfnBackupPlan.BackupPlanResourceTypeProperty(
            backup_plan_name=names.vault, backup_plan_rule=[_daily_rule(vault, vault_arn)]
        )
        plan = backup.CfnBackupPlan(self, "Plan", backup_plan=contents)
        role = iam.Role(
            self,
            "Role",
            assumed_by=iam.ServicePrincipal("backup.amazonaws.com"),
            description="Copies Tally's tables to a backup vault",
            managed_policies=[iam.ManagedPolicy.from_aws_managed_policy_name(f"service-role/{POLICY}")],
        )
        backup.CfnBackupSelection(
            self,
            "Selection",
            backup_plan_id=plan.ref,
            backup_selection=backup.CfnBackupSelection.BackupSelectionResourceTypeProperty(
                iam_role_arn=role.role_arn,
                # Restored tables need a new name, because the new selection is made before the old one is deleted.
                selection_name=f"tables{tables.restored}",
                resources=copied_tables,
            ),
        )
        self._notify_of_failures(copied_tables, topic, names.help_line(HELP_PAGE))
        Validations.of(role).acknowledge(
            Acknowledgment(
                id=f"AwsSolutions-IAM4[Policy::arn:<AWS::Partition>:iam::aws:policy/service-role/{POLICY}]",
                reason="AWS keeps this policy up to date: with a policy of our own that lacks an action, copies would"
                " fail in silence. Only AWS Backup can assume the role",
            )
        )

    def _notify_of_failures(self, copied_tables: list[str], topic: sns.ITopic, help: str) -> None:
        """Publish each failed job. Otherwise nobody would notice a missing copy before the tables are lost."""
        paths = "$.detail-type", "$.detail.resourceArn", "$.detail.state"
        job, table, state = map(events.EventField.from_path, paths)
        message = events.RuleTargetInput.from_text(f"{job} of {table}: {state}. {help}")
        # The topic is imported, so that CDK's target does not add its statement, which admits rules of every account.
        target = sns.Topic.from_topic_arn(self, "Topic", topic.topic_arn)
        rule = events.Rule(
            self,
            "Failed",
            description="Reports failed copies of Tally's tables",
            event_pattern=events.EventPattern(
                source=["aws.backup"],
                detail_type=["Backup Job State Change", "Copy Job State Change"],
                detail={"state": ["FAILED", "ABORTED", "EXPIRED"], "resourceArn": copied_tables},
            ),
            targets=[targets.SnsTopic(target, message=message)],
        )
        # https://docs.aws.amazon.com/eventbridge/latest/userguide/eb-use-conditions.html: aws:SourceArn is the rule.
        topic.add_to_resource_policy(
            iam.PolicyStatement(
                sid="FailedCopies",
                actions=["sns:Publish"],
                principals=[iam.ServicePrincipal("events.amazonaws.com")],
                resources=[topic.topic_arn],
                conditions={"ArnEquals": {"aws:SourceArn": rule.rule_arn}},
            )
        )


def _daily_rule(
    vault: backup.CfnBackupVault, remote_vault_arn: str
) -> backup.CfnBackupPlan.BackupRuleResourceTypeProperty:
    copy_action = backup.CfnBackupPlan.CopyActionResourceTypeProperty(
        destination_backup_vault_arn=remote_vault_arn, lifecycle=_delete_after(REMOTE_RETENTION_DAYS)
    )
    return backup.CfnBackupPlan.BackupRuleResourceTypeProperty(
        rule_name="daily",
        schedule_expression=DAILY,
        start_window_minutes=START_WINDOW_MIN,
        target_backup_vault=vault.ref,
        lifecycle=_delete_after(LOCAL_RETENTION_DAYS),
        copy_actions=[copy_action],
    )


def _delete_after(days: int) -> backup.CfnBackupPlan.LifecycleResourceTypeProperty:
    return backup.CfnBackupPlan.LifecycleResourceTypeProperty(delete_after_days=days)
