"""Copies of the tables in another vault: a failed copy sends a mail. test_facts.py checks plan, vault and selection."""

from __future__ import annotations

from aws_cdk import Stack, assertions
from aws_cdk import aws_sns as sns

from tally.cdk.backup import Backup
from tally.cdk.names import Names
from tally.cdk.options import Options
from tally.cdk.tables import Tables
from tests.infra.conftest import VAULT
from tests.infra.template import Template

STATES = ["FAILED", "ABORTED", "EXPIRED"]  # of a job that made no backup, or no copy


def test_only_a_failed_backup_or_copy_of_the_stacks_tables_reaches_the_alarm_topic(behind_cdn: Template) -> None:
    [rule] = [
        rule["Properties"]
        for rule in behind_cdn.of_type("AWS::Events::Rule").values()
        if "EventPattern" in rule["Properties"]
    ]
    tables = [{"Fn::GetAtt": [f"{name}Table", "Arn"]} for name in ("Counts", "Receipts", "Ledger")]
    assert rule["EventPattern"] == {
        "source": ["aws.backup"],
        "detail-type": ["Backup Job State Change", "Copy Job State Change"],
        "detail": {"state": STATES, "resourceArn": tables},
    }
    topic = {"Ref": behind_cdn.only_name("AWS::SNS::Topic")}
    assert [target["Arn"] for target in rule["Targets"]] == [topic]
    message = rule["Targets"][0]["InputTransformer"]["InputTemplate"]
    assert message.rstrip('"').endswith("What to do: https://git.example.com/tally/docs/restore.md#one-region")
    [policy] = behind_cdn.of_type("AWS::SNS::TopicPolicy").values()
    allowed_topics = [
        statement["Resource"]
        for statement in policy["Properties"]["PolicyDocument"]["Statement"]
        if statement["Principal"] == {"Service": "events.amazonaws.com"} and statement["Action"] == "sns:Publish"
    ]
    assert allowed_topics == [topic]


def test_the_backup_selection_of_adopted_tables_has_another_name() -> None:
    """CloudFormation makes the new selection before it deletes the old selection, so one plan has both for a time."""
    names = set()
    for moment in ("", "20261122T103000"):  # without and with restored tables
        stack = Stack()
        tables = Tables(stack, "Tables", names=Names.of(stack), options=Options(restored=moment))
        topic = sns.Topic(stack, "Topic")
        Backup(stack, "Backup", names=Names.of(stack), tables=tables, vault_arn=VAULT, topic=topic)
        [selection] = assertions.Template.from_stack(stack).find_resources("AWS::Backup::BackupSelection").values()
        names.add(selection["Properties"]["BackupSelection"]["SelectionName"])
    assert names == {"tables", "tables20261122T103000"}
