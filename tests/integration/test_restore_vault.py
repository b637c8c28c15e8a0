"""`tally restore --from-vault`: the region of the stack is lost, and a vault in another region has copies.

tests/invariants/test_restored.py tests the restored numbers.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
from moto import mock_aws

import counters
from tally.cli import restore, vault
from tally.cli.restore import TEMPLATE_SETTINGS
from tally.drift import rows
from tally.dynamo.client import Store
from tally.streams import heartbeats, lineage, watermark
from tests.conftest import create_tables
from tests.integration.command.numbers import Run, note_fingerprint
from tests.integration.test_restore import SESSION, settings_of, stop_first_wait, store_of, store_visits, visits
from tests.vaults import ACCOUNT, REGION, SOURCE, VAULT, Vault, make_restored_table

COPIED_S = int(time.time()) // 86400 * 86400  # the start of today
TO = "2100-01-01T00:00:00Z"
AFTER_TO_S = COPIED_S + 200 * 365 * 86400  # two hundred years from now, after TO
PREFIX = f"Tally-prod-{time.strftime('%Y%m%dT%H%M%S', time.gmtime(COPIED_S))}"


def command(*stack: str, to: str = TO, vault_arn: str = VAULT) -> tuple[str, ...]:
    """Returns the command. `stack`: the options that name the stack; empty: the stack is Tally-prod."""
    signed = ("--by", "ann", "--why", "the region is lost")
    return ("restore", "--from-vault", vault_arn, "--to", to, *signed, *(stack or ("--stack", "Tally-prod")))


COMMAND = command()


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[Vault]:
    """Returns a vault in another region, for copies of a stack whose tally of a page lacks two visits."""
    with mock_aws():
        monkeypatch.setattr(boto3, "DEFAULT_SESSION", SESSION)
        old = boto3.client("dynamodb", region_name="eu-west-1")
        create_tables(None, store_of("Tally-prod").settings)
        fill(store_of("Tally-prod"))

        def restore_table(copy: str, target: str) -> None:
            new = boto3.client("dynamodb", region_name=REGION)
            make_restored_table(new, target, old.scan(TableName=f"Tally-prod-{target.rpartition('-')[2]}")["Items"])

        vault_of_copies = Vault(restore_table)
        monkeypatch.setattr(vault, "boto3", SimpleNamespace(client=vault_of_copies.client))
        monkeypatch.setattr(restore, "POLL_S", 0)
        monkeypatch.setattr(restore, "POLLS_MAX", 20)
        yield vault_of_copies


def fill(tables: Store) -> None:
    """Stores visits that the rollup has not added, and a drift row. Heartbeats and the watermark tell the times of the
    copies: the ledger is 130 s newer than `counts`, and `receipts` is 60 s newer."""
    store_visits(tables, watermark_written_s=COPIED_S + 130)
    drift = {"drift": {"N": "5"}, "upto": {"N": "1"}, "counter": {"S": "plays"}, "target": {"S": "9f3a"}}
    tables.client.put_item(TableName=tables.settings.ledger_table, Item=rows.row_key("plays", "9f3a") | drift)
    for table, at_s in ((lineage.COUNTS, COPIED_S), (lineage.RECEIPTS, COPIED_S + 60)):
        write = heartbeats.heartbeat_write(tables.settings, table, "a", at_s)["Put"]
        tables.client.put_item(TableName=write["TableName"], Item=write["Item"])


def test_a_restore_makes_the_tables_of_the_newest_copies_in_the_region_of_the_vault(aws: Vault, run: Run) -> None:
    aws.copy(COPIED_S - 86400)
    aws.copy(COPIED_S)
    aws.copy(AFTER_TO_S)
    code, out, _ = run(*COMMAND)
    day = time.strftime("%Y-%m-%d", time.gmtime(COPIED_S))
    assert out.splitlines() == [
        *[f"copy     {table}: {day} 00:00:00 UTC" for table in TEMPLATE_SETTINGS],
        f"as of    counts {day} 00:00:00 UTC, receipts {day} 00:01:00 UTC, ledger {day} 00:02:10 UTC",
        # 130 s, rounded up to minutes, and a minute more, because a table may have writes after its newest heartbeat
        "apart    at most 4 minutes: docs/restore.md#what-may-be-wrong says what may be wrong",
        "forgets  the drift of plays 9f3a: +5",
        "repaired visits https://example.com/a: +2 (0 to 2), by rebuild",
        *[f"ready    {PREFIX}-{table}" for table in TEMPLATE_SETTINGS],
        f'adopt    make deploy ARGS="-c stage=prod -c tables={PREFIX} --import-existing-resources"',
        f'then     write "tables": "{PREFIX}" into the context of cdk.json: every later deploy needs it',
    ]
    assert code == 0
    assert visits(store_of(PREFIX, REGION)) == 2
    copies_in_time = aws.copies[3:6]  # of COPIED_S
    copies = [copy["RecoveryPointArn"] for copy in copies_in_time]
    assert [(job["RecoveryPointArn"], job["Metadata"]["targetTableName"]) for job in aws.start_requests] == [
        (copy, f"{PREFIX}-{table}") for copy, table in zip(copies, TEMPLATE_SETTINGS, strict=True)
    ]
    for job in aws.start_requests:
        assert job["Metadata"]["encryptionType"] == "Default"
        assert job["IamRoleArn"] == f"arn:aws:iam::{ACCOUNT}:role/service-role/AWSBackupDefaultServiceRole"
    client = boto3.client("dynamodb", region_name=REGION)
    for table, template in TEMPLATE_SETTINGS.items():
        restored = settings_of(client, f"{PREFIX}-{table}")
        assert restored["stream"] == (None if table == "ledger" else "NEW_AND_OLD_IMAGES")
        assert restored["ttl"] == {"TimeToLiveStatus": "ENABLED", "AttributeName": template.ttl_attribute}
        assert (restored["backups"], restored["protected"]) == ("ENABLED", True)


def test_a_repeated_restore_from_a_vault_continues_and_starts_no_second_job(
    aws: Vault, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    aws.copy(COPIED_S)
    stop_first_wait(monkeypatch)
    assert run(*COMMAND)[0] == 130  # Ctrl-C
    for job in aws.jobs.values():
        job |= {"Status": "RUNNING"}  # as if AWS Backup were still at work
    assert "repaired" in run(*COMMAND)[1]
    for job in aws.jobs.values():
        job |= {"Status": "COMPLETED"}
    code, out, _ = run(*COMMAND)
    assert (code, "repaired" in out, len(aws.start_requests)) == (0, False, 3)
    assert visits(store_of(PREFIX, REGION)) == 2


def test_a_job_that_fails_is_reported_in_one_line_and_the_next_run_starts_another_job(aws: Vault, run: Run) -> None:
    aws.copy(COPIED_S)
    aws.failure_message = "the role cannot be assumed"
    code, _, err = run(*COMMAND)
    assert (code, err) == (2, "tally: AWS Backup did not restore a table: the role cannot be assumed\n")
    aws.failure_message = ""
    assert run(*COMMAND)[0] == 0


def test_a_restore_from_a_vault_refuses_a_table_that_it_did_not_make(aws: Vault, run: Run) -> None:
    aws.copy(COPIED_S)
    make_restored_table(boto3.client("dynamodb", region_name=REGION), f"{PREFIX}-ledger", [watermark.WATERMARK_KEY])
    error = f"tally: the table {PREFIX}-ledger exists, and this command did not make it: choose another time\n"
    assert run(*COMMAND)[::2] == (2, error)


def test_copies_of_different_days_are_refused(aws: Vault, run: Run) -> None:
    aws.copy(COPIED_S - 86400)
    aws.copy(COPIED_S, "counts", "receipts")
    code, out, err = run(*COMMAND)
    assert (code, out, len(aws.start_requests)) == (2, "", 0)
    assert err.startswith("tally: the newest copies are not of one day (ledger ")
    earlier = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(COPIED_S - 3600))
    assert run(*command(to=earlier))[0] == 0


def test_counters_whose_schema_differs_from_the_copies_repair_nothing(aws: Vault, run: Run) -> None:
    note_fingerprint(store_of("Tally-prod"), replace(counters.VISITS, attribute="seen"))
    aws.copy(COPIED_S)
    code, out, err = run(*COMMAND)
    assert (code, "repaired" in out) == (2, False)
    assert "tally: counter 'visits' has counted with attribute='seen', which is 'visits' now: " in err


@pytest.mark.parametrize(
    "copy_tables",
    [
        lambda aws: None,
        lambda aws: aws.copy(COPIED_S, "counts", "receipts"),
        lambda aws: aws.copy(COPIED_S, status="CREATING"),
        lambda aws: aws.copy(COPIED_S, source=SOURCE.replace("prod", "prod-eu")),
        lambda aws: aws.copy(AFTER_TO_S),
    ],
    ids=["none", "two tables", "not ready", "another stack", "later"],
)
def test_a_restore_without_copies_of_all_three_tables_makes_no_table(aws: Vault, run: Run, copy_tables: Any) -> None:
    copy_tables(aws)
    error = "tally: the vault tally-copies has no copies of Tally-prod's three tables by 2100-01-01 00:00:00 UTC\n"
    assert run(*COMMAND) == (2, "", error)
    assert not aws.start_requests


def test_a_vault_with_copies_of_two_stacks_of_one_name_needs_the_arn_of_one_stack(aws: Vault, run: Run) -> None:
    other_source = SOURCE.replace("eu-west-1", "us-east-1")
    aws.copy(COPIED_S, source=f"{SOURCE}-20260101T000000")  # of tables that an earlier restore made
    aws.copy(COPIED_S + 60, source=other_source)
    error = f"tally: the vault tally-copies has copies of {SOURCE} and {other_source}: give one as --stack\n"
    assert run(*COMMAND) == (2, "", error)
    code, out, _ = run(*command("--stack", SOURCE))
    assert (code, f"ready    {PREFIX}-counts" in out) == (0, True)


def test_a_vault_is_named_by_its_arn_and_make_dev_has_no_vault(aws: Vault, run: Run) -> None:
    code, _, err = run(*command(vault_arn="tally-copies"))
    assert code == 2
    assert "'tally-copies' is not arn:aws:backup:<region>:<account>:backup-vault:<name>" in err
    code, _, err = run(*command("--local"))
    assert (code, "--from-vault does not go with --local" in err) == (2, True)
    assert len(err.splitlines()) == 1


def test_an_error_of_aws_is_reported_in_one_line(aws: Vault, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def deny(**_: Any) -> Any:
        return SimpleNamespace(status_code=403), {"Error": {"Code": "AccessDeniedException", "Message": "no"}}

    real_client = aws.client

    def client(*arguments: Any, **options: Any) -> Any:
        denied_client = real_client(*arguments, **options)
        denied_client.meta.events.register_first("before-call.backup", deny)
        return denied_client

    monkeypatch.setattr(vault, "boto3", SimpleNamespace(client=client))
    assert run(*COMMAND) == (2, "", "tally: AWS refused a call: no\n")
