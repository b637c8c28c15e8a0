"""`tally restore` on moto: its requests to AWS, the settings of the restored tables, and its refusals.

moto's restore copies a table as it is now. tests/invariants/test_restored.py tests the restored numbers.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import boto3
import pytest
from moto import mock_aws
from moto.backends import get_backend
from moto.core import DEFAULT_ACCOUNT_ID
from moto.dynamodb.models.table import RestoredPITTable

import counters
from tally.cli import restore
from tally.counting import receipts, tallies
from tally.dynamo.client import Call, Store
from tally.dynamo.keys import FORMAT
from tally.dynamo.transactions import put_receipt
from tally.settings import Settings
from tally.streams import fingerprints, watermark
from tests.conftest import create_tables
from tests.events import KEY
from tests.integration.command.numbers import Run, note_fingerprint
from tests.vaults import TABLES

PAGE = "https://example.com/a"
OPTIONS = ("--by", "ann", "--why", "INC-9", "--stack", "Tally-prod")
SESSION = boto3.session.Session()  # all tests share the session, because it reads each service's model once
RESTORED_TO = datetime.now(UTC).replace(microsecond=0)
PREFIX = f"Tally-prod-{RESTORED_TO:%Y%m%dT%H%M%S}"


def template() -> str:
    """Returns the template of a stack whose outputs name its tables. The fixture `aws` makes the tables."""
    values = {f"{table.capitalize()}TableName": f"Tally-prod-{table}" for table in TABLES}
    outputs = {name: {"Value": value} for name, value in [*values.items(), ("StorageFormat", str(FORMAT))]}
    return json.dumps({"Resources": {"Topic": {"Type": "AWS::SNS::Topic"}}, "Outputs": outputs})


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Makes the stack Tally-prod, whose tally of a page lacks two visits. Yields a client of DynamoDB."""
    with mock_aws():
        monkeypatch.setattr(boto3, "DEFAULT_SESSION", SESSION)
        boto3.client("cloudformation").create_stack(StackName="Tally-prod", TemplateBody=template())
        create_tables(None, store_of("Tally-prod").settings, ("counts", "receipts"))
        client: Any = boto3.client("dynamodb")
        for name in TABLES:
            table = f"Tally-prod-{name}"
            client.update_table(TableName=table, DeletionProtectionEnabled=True)
            ttl = {"Enabled": True, "AttributeName": "expiration"}
            client.update_time_to_live(TableName=table, TimeToLiveSpecification=ttl)
            enabled = {"PointInTimeRecoveryEnabled": True}
            client.update_continuous_backups(TableName=table, PointInTimeRecoverySpecification=enabled)
            arn = client.describe_table(TableName=table)["Table"]["TableArn"]
            client.tag_resource(ResourceArn=arn, Tags=[{"Key": "team", "Value": "video"}])
        store_visits(store_of("Tally-prod"))
        # moto can restore only the second in which backups were switched on, so this sets a longer range.
        for table in moto_tables().values():
            restorable = table.continuous_backups["PointInTimeRecoveryDescription"]
            restorable["EarliestRestorableDateTime"] = RESTORED_TO.timestamp() - 999
            restorable["LatestRestorableDateTime"] = RESTORED_TO.timestamp()
        # DynamoDB reports the time that the request names. moto reports the time of the copy.
        requested_time = property(lambda _: RESTORED_TO.timestamp(), lambda *_: None)
        monkeypatch.setattr(RestoredPITTable, "restore_date_time", requested_time, raising=False)
        monkeypatch.setattr(restore, "POLL_S", 0)
        yield client


def store_of(prefix: str, region: str = "eu-west-1") -> Store:
    """Returns the store of the tables whose names begin with `prefix`."""
    names = {f"TALLY_{name.upper()}_TABLE": f"{prefix}-{name}" for name in TABLES}
    return Store(boto3.client("dynamodb", region_name=region), Settings.from_environment(names))


def store_visits(tables: Store, watermark_written_s: int = 1) -> None:
    """Stores two visits that the rollup has not added, and a ledger that began three days ago.

    `watermark_written_s`: when a sweep last wrote the watermark; 1: long ago.
    """
    call = Call(tables)
    for number in range(2):
        draft = receipts.draft_receipt(call, receipts.ReceiptKey("visit", PAGE, f"{KEY}{number}", {}))
        facts = tallies.receipt_facts(counters.VISITS, PAGE, 1, tallies.minute_now(call))
        put_receipt(call, draft.pending_receipt(call, {}, **facts))
    watermark_item = watermark.WATERMARK_KEY | {
        "began_s": {"N": str(int(time.time()) - 3 * 24 * 3600)},
        "written_s": {"N": str(watermark_written_s)},
    }
    tables.client.put_item(TableName=tables.settings.ledger_table, Item=watermark_item)


def moto_tables() -> dict[str, Any]:
    """Returns moto's models of the tables, by the names of the tables."""
    tables: dict[str, Any] = get_backend("dynamodb")[DEFAULT_ACCOUNT_ID]["eu-west-1"].tables
    return tables


def visits(tables: Store) -> int:
    """Returns the visits of PAGE."""
    return tallies.read(Call(tables), counters.VISITS, PAGE)


def test_a_restore_makes_new_tables_repairs_them_and_says_how_to_adopt_them(aws: Any, run: Run) -> None:
    code, out, _ = run("restore", "--to", RESTORED_TO.isoformat(), *OPTIONS)
    assert out.splitlines() == [
        "repaired visits https://example.com/a: +2 (0 to 2), by rebuild",
        *[f"ready    {PREFIX}-{name}" for name in TABLES],
        f'adopt    make deploy ARGS="-c stage=prod -c tables={PREFIX} --import-existing-resources"',
        f'then     write "tables": "{PREFIX}" into the context of cdk.json: every later deploy needs it',
    ]
    assert code == 0
    assert (visits(store_of(PREFIX)), visits(store_of("Tally-prod"))) == (2, 0), "the live tables do not change"
    for name in TABLES:
        old, new = (settings_of(aws, f"{prefix}-{name}") for prefix in ("Tally-prod", PREFIX))
        assert new == old
        assert old["stream"] == (None if name == "ledger" else "NEW_AND_OLD_IMAGES")


def settings_of(client: Any, name: str) -> dict[str, Any]:
    """Returns the table's keys, and the settings that DynamoDB's restore leaves out."""
    table = client.describe_table(TableName=name)["Table"]
    backups = client.describe_continuous_backups(TableName=name)["ContinuousBackupsDescription"]
    return {
        "stream": table.get("StreamSpecification", {}).get("StreamViewType"),
        "ttl": client.describe_time_to_live(TableName=name)["TimeToLiveDescription"],
        "backups": backups["PointInTimeRecoveryDescription"]["PointInTimeRecoveryStatus"],
        "protected": table["DeletionProtectionEnabled"],
        "tags": client.list_tags_of_resource(ResourceArn=table["TableArn"])["Tags"],
        "keys": table["KeySchema"],
    }


def stop_first_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the first wait for a table end with Ctrl-C. Later waits end as usual."""
    real_wait, stops = restore._wait_until_active, []

    def wait(*arguments: Any) -> None:
        if not stops:
            stops.append(True)
            raise KeyboardInterrupt
        real_wait(*arguments)

    monkeypatch.setattr(restore, "_wait_until_active", wait)


def test_a_repeated_restore_continues_and_adds_no_visit_twice(
    aws: Any, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_first_wait(monkeypatch)
    assert run("restore", "--to", RESTORED_TO.isoformat(), *OPTIONS)[0] == 130  # Ctrl-C
    assert "repaired" in run("restore", "--to", RESTORED_TO.isoformat(), *OPTIONS)[1]
    code, out, _ = run("restore", "--to", RESTORED_TO.isoformat(), *OPTIONS)
    assert (code, "repaired" in out) == (0, False)
    assert visits(store_of(PREFIX)) == 2


def test_restored_tables_have_the_schemas_of_the_counters(aws: Any, run: Run) -> None:
    note_fingerprint(store_of("Tally-prod"), counters.VISITS)
    assert run("restore", "--to", RESTORED_TO.isoformat(), *OPTIONS)[0] == 0
    assert fingerprints.read_all(store_of(PREFIX)) == {"visits": fingerprints.fingerprint_of(counters.VISITS)}


def test_counters_with_another_schema_restore_no_table(aws: Any, run: Run) -> None:
    note_fingerprint(store_of("Tally-prod"), replace(counters.VISITS, attribute="seen"))
    message = "tally: counter 'visits' has counted with attribute='seen', which is 'visits' now: "
    assert run("restore", "--to", RESTORED_TO.isoformat(), *OPTIONS) == (2, "", f"{message}{fingerprints.WHAT_TO_DO}\n")
    assert not [name for name in moto_tables() if name.startswith(PREFIX)]


def test_restored_tables_with_a_stream_are_not_repaired(aws: Any, run: Run) -> None:
    """A stack has adopted these tables, so its consumers add the visits that are not rolled up."""
    for name in TABLES:
        names = {"SourceTableName": f"Tally-prod-{name}", "TargetTableName": f"{PREFIX}-{name}"}
        aws.restore_table_to_point_in_time(**names, RestoreDateTime=RESTORED_TO)
    stream = {"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"}
    aws.update_table(TableName=f"{PREFIX}-receipts", StreamSpecification=stream)
    assert "repaired" not in run("restore", "--to", RESTORED_TO.isoformat(), *OPTIONS)[1]
    assert visits(store_of(PREFIX)) == 0


def test_a_time_without_a_backup_is_refused_before_any_table_is_made(aws: Any, run: Run) -> None:
    code, out, err = run("restore", "--to", "2020-01-01T00:00:00+02:00", *OPTIONS)
    assert (code, out) == (2, "")
    assert err.startswith("tally: Tally-prod-counts can be restored to any second from ")
    assert len(err.splitlines()) == 1
    assert len(aws.list_tables()["TableNames"]) == 3


def test_a_restore_refuses_a_table_that_is_not_a_copy_of_this_time(
    aws: Any, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"{PREFIX}-ledger"
    keys: Any = {"KeySchema": [{"AttributeName": "PK", "KeyType": "HASH"}]}
    aws.create_table(TableName=name, AttributeDefinitions=[{"AttributeName": "PK", "AttributeType": "S"}],
                     BillingMode="PAY_PER_REQUEST", **keys)  # fmt: skip
    error = f"tally: the table {name} exists, and this command did not make it: choose another second\n"
    assert run("restore", "--to", RESTORED_TO.isoformat(), *OPTIONS) == (2, "", error)
    assert len(aws.list_tables()["TableNames"]) == 4
    aws.delete_table(TableName=name)
    names = {"SourceTableName": "Tally-prod-ledger", "TargetTableName": name}
    aws.restore_table_to_point_in_time(**names, RestoreDateTime=RESTORED_TO)
    earlier = property(lambda _: RESTORED_TO.timestamp() - 1, lambda *_: None)
    monkeypatch.setattr(RestoredPITTable, "restore_date_time", earlier, raising=False)
    assert run("restore", "--to", RESTORED_TO.isoformat(), *OPTIONS) == (2, "", error)


def test_a_restore_that_would_lose_dead_letters_needs_an_option(aws: Any, run: Run) -> None:
    marker = {"PK": {"S": "DEADLETTER"}, "SK": {"S": "rollup#shard#1"}, "at": {"N": "1"}}
    marker |= {name: {"S": "x"} for name in ("object", "reason", "table")}
    aws.put_item(TableName="Tally-prod-ledger", Item=marker)
    code, out, err = run("restore", "--to", RESTORED_TO.isoformat(), *OPTIONS)
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].endswith("Choose another second, or delete the dead letters: --without-dead-letters")
    assert run("restore", "--to", RESTORED_TO.isoformat(), "--without-dead-letters", *OPTIONS)[0] == 0
