"""The runbook of docs/restore.md in the emulator: restore under traffic, adopt the tables, destroy, and deploy again.

The emulator restores only the present moment, and copies one table after another while traffic goes on. The
emulator overwrites existing tables, so these tests cannot try a restore that AWS refuses.

The AWS Backup of the emulator accepts a vault and a plan, and copies nothing. So the second test makes the copies of
the vault, and tests/vaults.py runs the jobs that restore the copies.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

from tally.cli import restore
from tally.cli import vault as vaults
from tally.cli.__main__ import main
from tally.dynamo.keys import Item
from tally.streams import watermark
from tests.emulator.server import ACCOUNT, REGION, Emulator
from tests.emulator.stack import Json, Stack, synthesize, without_unsupported
from tests.emulator.steps import step
from tests.emulator.streams import StreamDelivery, run_sweeps
from tests.emulator.traffic import Traffic
from tests.patience import wait_for
from tests.vaults import VAULT, Vault, make_restored_table

pytestmark = pytest.mark.long

DAY_S = 24 * 3600
PROD = {"stage": "prod", "pageHosts": "example.com"}
SWEEP_EVERY_S = 5.0  # instead of a minute, so that the tests are short


def with_minutes_of_60_s(template: Json) -> Json:
    """Returns the template for the emulator, with minutes of 60 s, which the command `tally` expects."""
    supported = without_unsupported(template)
    for resource in supported["Resources"].values():
        if resource["Type"] == "AWS::Lambda::Function":
            resource["Properties"]["Environment"]["Variables"].pop("TALLY_MINUTE_S")
    return supported


def test_the_runbook_restores_a_stack_under_traffic_without_a_lost_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with step("synthesize prod"):
        first = synthesize(tmp_path / "first", **PROD)
    with deployed_stack(tmp_path, first) as stack:
        prefix = restore_under_traffic(stack, first, monkeypatch)
        second = synthesize(tmp_path / "second", **PROD, tables=prefix)
        with step("cdk deploy adopts the tables") as notes:
            deploy(stack, second, adopting=True)
            assert stack.outputs["CountsTableName"] == f"{prefix}-counts"
            names = stack.client("dynamodb").list_tables()["TableNames"]
            assert set(names) > set(table_names("Tally-prod")), "the old tables remain"
            notes.append(as_text(read_numbers(stack, prefix)))
        count_and_check(stack, second, prefix)
        with step("destroy, and deploy again"):
            before = read_numbers(stack, prefix)
            destroy(stack)
            deploy(stack, second, adopting=True)
            assert read_numbers(stack, prefix) == before
            assert stack.call("GET", "/videos/busy/plays").body["value"] == before["plays"][0]


def test_the_runbook_restores_a_lost_region_from_the_copies_of_a_vault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with step("synthesize prod"):
        first = synthesize(tmp_path / "first", **PROD, backupTo=VAULT)
    with deployed_stack(tmp_path, first) as stack:
        for name, value in stack.environment.items():  # the command `tally` runs in this process
            monkeypatch.setenv(name, value)
        copies: dict[str, list[Item]] = {}
        vault = Vault(lambda copy, target: make_restored_table(stack.client("dynamodb"), target, copies[copy]), REGION)
        with traffic(stack, first) as counting, step("copy under traffic"):
            counting.wait_for("visits", 40)
            age_by_three_days(stack)
            copies |= copy_tables(stack, stack.name, vault)
        with step("lose the stack"):
            destroy(stack)
        with step("tally restore --from-vault") as notes:
            prefix = restore_from_vault(vault, monkeypatch)
            numbers = read_numbers(stack, prefix)
            notes.append(as_text(numbers))
        check_equal(numbers)
        with step("a new stack adopts the tables"):
            second = synthesize(tmp_path / "second", **PROD, tables=prefix)
            deploy(stack, second, adopting=True)
            assert stack.call("GET", "/videos/busy/plays").body["value"] == numbers["plays"][0]
        count_and_check(stack, second, prefix)


@contextmanager
def deployed_stack(home: Path, assembly: Path) -> Iterator[Stack]:
    """Deploys the prod stack into a new emulator."""
    emulator = Emulator(home)
    try:
        stack = Stack(emulator, home, "prod")
        with step("deploy prod"):
            stack.bootstrap()
            deploy(stack, assembly)
        yield stack
    finally:
        emulator.stop()


def deploy(stack: Stack, assembly: Path, *, adopting: bool = False) -> None:
    result = stack.deploy(assembly, with_minutes_of_60_s, adopting=adopting)
    assert result.returncode == 0, result.stdout[-1000:] + result.stderr[-3000:]


def destroy(stack: Stack) -> None:
    cloudformation = stack.client("cloudformation")
    cloudformation.update_termination_protection(StackName=stack.name, EnableTerminationProtection=False)
    stack.destroy("-c stage=prod")


def restore_under_traffic(stack: Stack, assembly: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Restores the tables while traffic goes on. Returns the prefix of the new tables' names."""
    for name, value in stack.environment.items():  # the command `tally` runs in this process
        monkeypatch.setenv(name, value)
    # The emulator restores the present moment only, which AWS would refuse.
    monkeypatch.setattr(restore, "_check_moment", lambda *_: None)
    monkeypatch.setattr(restore, "POLL_S", 0.1)
    with traffic(stack, assembly) as counting:
        counting.wait_for("visits", 40)
        age_by_three_days(stack)
        with step("tally restore under traffic") as notes:
            moment = datetime.now(UTC).replace(microsecond=0)
            arguments = ("--by", "ann", "--why", "INC-9", "--stack", stack.name)
            assert main(("restore", "--to", moment.isoformat(), *arguments)) == 0
            prefix = f"{stack.name}-{moment:%Y%m%dT%H%M%S}"
            numbers = read_numbers(stack, prefix)
            notes.append(as_text(numbers))
    check_equal(numbers)
    return prefix


def copy_tables(stack: Stack, prefix: str, vault: Vault) -> dict[str, list[Item]]:
    """Puts a copy of each table into the vault. Returns the items of each copy, by its ARN.

    As in a backup, the copies are of three moments, with a sweep between two of these.
    """
    copies: dict[str, list[Item]] = {}
    for table in ("counts", "ledger", "receipts"):
        vault.copy(time.time(), table, source=f"arn:aws:dynamodb:{REGION}:{ACCOUNT}:table/{prefix}")
        copies[vault.copies[-1]["RecoveryPointArn"]] = scan(stack, f"{prefix}-{table}")
        time.sleep(SWEEP_EVERY_S)
    return copies


def restore_from_vault(vault: Vault, monkeypatch: pytest.MonkeyPatch) -> str:
    """Restores the newest copies before 2100. Returns the prefix of the new tables' names."""
    monkeypatch.setattr(vaults, "boto3", SimpleNamespace(client=vault.client))
    newest = max(copy["CreationDate"] for copy in vault.copies)
    arguments = ("--by", "ann", "--why", "the region is lost", "--stack", "Tally-prod")
    assert main(("restore", "--from-vault", vault.arn, "--to", "2100-01-01T00:00:00Z", *arguments)) == 0
    return f"Tally-prod-{newest:%Y%m%dT%H%M%S}"


def age_by_three_days(stack: Stack) -> None:
    """Makes the stack three days old, because a restore adds no receipts of the first day of a stack."""
    wait_for(lambda: stack.items("Ledger", watermark.WATERMARK_KEY["PK"]["S"]), every_s=0.2)  # the first sweep
    values = {":days": {"N": str(3 * DAY_S)}}
    stack.client("dynamodb").update_item(
        TableName=f"{stack.name}-ledger", Key=watermark.WATERMARK_KEY, UpdateExpression="SET began_s = began_s - :days",
        ExpressionAttributeValues=values,
    )  # fmt: skip


def count_and_check(stack: Stack, assembly: Path, prefix: str) -> None:
    """Counts more changes, and checks that Tally adds them to the restored numbers."""
    before = read_numbers(stack, prefix)
    with traffic(stack, assembly) as counting:
        counting.wait_for("visits", 40)
        with step("count more changes") as notes:
            counting.stop()
            accepted = dict(counting.accepted)
            wait_for(
                lambda: read_numbers(stack, prefix)["visits"][0] >= before["visits"][0] + accepted["visits"],
                every_s=0.5,
            )
            numbers = read_numbers(stack, prefix)
            assert numbers["plays"][0] == before["plays"][0] + accepted["plays"]
            assert stack.items("Ledger", "DEADLETTER") == []
            notes.append(as_text(numbers))
    assert not counting.failures


@contextmanager
def traffic(stack: Stack, assembly: Path) -> Iterator[Traffic]:
    """Runs callers of plays and visits, a caller who likes, consumers and sweeps, until the block ends."""
    counting, streams = Traffic(stack, stack.machine_token(), "usage"), StreamDelivery(stack, assembly)
    children, posts, stop = stack.outputs["ChildrenFunctionArn"], stack.outputs["PostsFunctionArn"], threading.Event()
    run = time.time_ns()
    posted = stack.invoke(posts, {"operation": "put_post", "id": "p", "body": "Hello", "caller": "ann"})
    assert posted["body"]["id"] == "p", posted

    def put_likes() -> None:
        number = 0
        while not stop.wait(0.05):
            number += 1
            stack.invoke(
                children, {"operation": "put_mine", "counter": "likes", "id": "p", "caller": f"u{run}-{number}"}
            )

    likes = threading.Thread(target=put_likes)
    likes.start()
    try:
        with run_sweeps(stack, streams.failures, SWEEP_EVERY_S), streams.running(), counting.running():
            yield counting
    finally:
        stop.set()
        likes.join()
    assert not streams.failures


def table_names(prefix: str) -> list[str]:
    return [f"{prefix}-{table}" for table in ("counts", "receipts", "ledger")]


def scan(stack: Stack, table: str) -> list[Item]:
    """Returns all items of a table."""
    pages = stack.client("dynamodb").get_paginator("scan").paginate(TableName=table, ConsistentRead=True)
    return [item for page in pages for item in page["Items"]]


def read_numbers(stack: Stack, prefix: str) -> dict[str, tuple[int, int]]:
    """Returns for each counter the sum of its tallies, and the number of its likes or the sum of its receipts."""
    counts, receipts, _ = table_names(prefix)
    items, changes = scan(stack, counts), [receipt for receipt in scan(stack, receipts) if "counter" in receipt]

    def tally(attribute: str) -> int:
        return sum(int(item[attribute]["N"]) for item in items if attribute in item)

    def accepted(counter: str) -> int:
        return sum(int(change["amount"]["N"]) for change in changes if change["counter"]["S"] == counter)

    return {
        "likes": (tally("likeTally"), sum(item["SK"]["S"].startswith("LIKE#") for item in items)),
        "visits": (tally("visits"), accepted("visits")),
        "plays": (tally("play_count"), accepted("plays")),
    }


def check_equal(numbers: dict[str, tuple[int, int]]) -> None:
    """Checks likes and visits, which a restore makes exact. A play's number and receipt are of two moments."""
    for counter in ("likes", "visits"):
        tally, counted = numbers[counter]
        assert tally == counted > 0, numbers


def as_text(numbers: dict[str, tuple[int, int]]) -> str:
    return ", ".join(f"{counter} {tally} of {counted}" for counter, (tally, counted) in numbers.items())
