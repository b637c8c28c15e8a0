"""Copies of the three tables in a vault elsewhere, which outlive the region or the account.

Global tables do not fit. If two regions write one item, the last writer wins: one of two changes would be lost without
a trace. A transaction holds in its own region alone, so another region may see a receipt without its count. Where all
regions agree on each write, DynamoDB takes no transactions.

DynamoDB's export to S3 is of one second for all tables, and would keep holds and drift right. But something has to
start it each day, and it costs three times as much in a month.
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
# AWS's lowest: a copy that has not begun by then is given up. So this is how far apart the copies of a day can be.
START_WINDOW_MIN = 60
LOCAL_RETENTION_DAYS = 3  # the way to the other vault: a large table takes hours
REMOTE_RETENTION_DAYS = 7
HELP_PAGE = "restore.md#one-region"
POLICY = "AWSBackupServiceRolePolicyForBackup"


class Backup(Construct):
    """AWS Backup copies the tables once a day: first into a vault of the stack, and from there to the other vault.

    Each table is copied as it was at a moment of its own, within an hour of the others' (docs/restore.md says what
    follows). The vault of the stack stays when the stack goes: CloudFormation deletes no vault with copies in it.
    """

    def __init__(
        self, scope: Construct, id: str, *, names: Names, tables: Tables, vault_arn: str, topic: sns.ITopic
    ) -> None:
        """`topic`: it gets a message for each job that failed."""
        super().__init__(scope, id)
        copied_tables = [tables.by_name[table].table_arn for table in TABLES]
        vault = backup.CfnBackupVault(self, "Vault", backup_vault_name=names.vault)
        vault.apply_removal_policy(RemovalPolicy.RETAIN_ON_UPDATE_OR_DELETE)  # what a deploy undoes goes
        copied = backup.CfnBackupPlan.CopyActionResourceTypeProperty(
            destination_backup_vault_arn=vault_arn, lifecycle=_delete_after(REMOTE_RETENTION_DAYS)
        )
        rule = backup.CfnBackupPlan.BackupRuleResourceTypeProperty(
            rule_name="daily",
            schedule_expression=DAILY,
            start_window_minutes=START_WINDOW_MIN,
            target_backup_vault=vault.ref,
            lifecycle=_delete_after(LOCAL_RETENTION_DAYS),
            copy_actions=[copied],
        )
        plan = backup.CfnBackupPlan(
            self,
            "Plan",
            backup_plan=backup.CfnBackupPlan.BackupPlanResourceTypeProperty(
                backup_plan_name=names.vault, backup_plan_rule=[rule]
            ),
        )
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
                # A selection of other tables is a new one, and is made before the old one goes.
                selection_name=f"tables{tables.restored}",
                resources=copied_tables,
            ),
        )
        self._notify_of_failures(copied_tables, topic, names.help_line(HELP_PAGE))
        Validations.of(role).acknowledge(
            Acknowledgment(
                id=f"AwsSolutions-IAM4[Policy::arn:<AWS::Partition>:iam::aws:policy/service-role/{POLICY}]",
                reason="It is what AWS has for this, and keeps up to date: with a policy of our own that lacks an"
                " action, copies would fail in silence. Only AWS Backup can take the role",
            )
        )

    def _notify_of_failures(self, copied_tables: list[str], topic: sns.ITopic, help: str) -> None:
        """Tell of each job that failed. A copy that nobody misses would be missed on the day of the loss."""
        job, table, state = map(
            events.EventField.from_path, ("$.detail-type", "$.detail.resourceArn", "$.detail.state")
        )
        # An imported topic takes no statement from the target, whose own would let in the rules of every account.
        target = sns.Topic.from_topic_arn(self, "Topic", topic.topic_arn)
        rule = events.Rule(
            self,
            "Failed",
            description="Tells of copies of Tally's tables that failed",
            event_pattern=events.EventPattern(
                source=["aws.backup"],
                detail_type=["Backup Job State Change", "Copy Job State Change"],
                detail={"state": ["FAILED", "ABORTED", "EXPIRED"], "resourceArn": copied_tables},
            ),
            targets=[
                targets.SnsTopic(target, message=events.RuleTargetInput.from_text(f"{job} of {table}: {state}. {help}"))
            ],
        )
        # https://docs.aws.amazon.com/eventbridge/latest/userguide/eb-use-conditions.html: aws:SourceArn is the rule's.
        topic.add_to_resource_policy(
            iam.PolicyStatement(
                sid="FailedCopies",
                actions=["sns:Publish"],
                principals=[iam.ServicePrincipal("events.amazonaws.com")],
                resources=[topic.topic_arn],
                conditions={"ArnEquals": {"aws:SourceArn": rule.rule_arn}},
            )
        )


def _delete_after(days: int) -> backup.CfnBackupPlan.LifecycleResourceTypeProperty:
    return backup.CfnBackupPlan.LifecycleResourceTypeProperty(delete_after_days=days)
