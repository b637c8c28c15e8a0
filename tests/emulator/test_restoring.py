"""The runbook of docs/restore.md in the emulator: restored under traffic, adopted, destroyed, and deployed again.

The emulator's restore copies a table as it is, one after the other: traffic goes on in between. It knows no other
moment than now. It makes a table over one that exists, so what AWS refuses is not tried here.

Its AWS Backup takes a vault and a plan, and copies nothing. So the copies of a vault are made here, and
the jobs that make tables of them (tests/vaults.py).
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
from tests.emulator.streams import Streams, run_sweeps
from tests.emulator.traffic import Traffic
from tests.patience import wait_for
from tests.vaults import VAULT, Vault, table_of

pytestmark = pytest.mark.long

DAY_S = 24 * 3600
PROD = {"stage": "prod", "pageHosts": "example.com"}
SWEPT_S = 5.0


def patient(template: Json) -> Json:
    """The template for the emulator, with minutes as long as the command takes them to be."""
    made = without_unsupported(template)
    for found in made["Resources"].values():
        if found["Type"] == "AWS::Lambda::Function":
            found["Properties"]["Environment"]["Variables"].pop("TALLY_MINUTE_S")
    return made


def test_the_runbook_of_a_restore(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with step("synthesize prod"):
        first = synthesize(tmp_path / "first", **PROD)
    with deployed(tmp_path, first) as stack:
        prefix = restored(stack, first, monkeypatch)
        second = synthesize(tmp_path / "second", **PROD, tables=prefix)
        with step("adopted by cdk deploy") as notes:
            deploy(stack, second, adopting=True)
            assert stack.outputs["CountsTableName"] == f"{prefix}-counts"
            assert set(stack.client("dynamodb").list_tables()["TableNames"]) > set(tables("Tally-prod"))
            notes.append(say(numbers(stack, prefix)))
        counted_on(stack, second, prefix)
        with step("destroyed, deployed again"):
            before = numbers(stack, prefix)
            destroy(stack)
            deploy(stack, second, adopting=True)
            assert numbers(stack, prefix) == before
            assert stack.call("GET", "/videos/busy/plays").body["value"] == before["plays"][0]


def test_the_runbook_of_a_lost_region(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with step("synthesize prod"):
        first = synthesize(tmp_path / "first", **PROD, backupTo=VAULT)
    with deployed(tmp_path, first) as stack:
        for name, value in stack.environment.items():
            monkeypatch.setenv(name, value)
        copies: dict[str, list[Item]] = {}
        vault = Vault(lambda copy, target: table_of(stack.client("dynamodb"), target, copies[copy]), REGION)
        with traffic(stack, first) as counting, step("copied under traffic"):
            counting.wait_for("visits", 40)
            older(stack)
            copies |= copied(stack, stack.name, vault)
        with step("the stack is lost"):
            destroy(stack)
        with step("tally restore --from-vault") as notes:
            prefix = restored_from_vault(vault, monkeypatch)
            found = numbers(stack, prefix)
            notes.append(say(found))
        agree(found)
        with step("adopted by a new stack"):
            second = synthesize(tmp_path / "second", **PROD, tables=prefix)
            deploy(stack, second, adopting=True)
            assert stack.call("GET", "/videos/busy/plays").body["value"] == found["plays"][0]
        counted_on(stack, second, prefix)


@contextmanager
def deployed(home: Path, assembly: Path) -> Iterator[Stack]:
    """The prod stack in an emulator of its own."""
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
    done = stack.deploy(assembly, patient, adopting=adopting)
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]


def destroy(stack: Stack) -> None:
    cloudformation = stack.client("cloudformation")
    cloudformation.update_termination_protection(StackName=stack.name, EnableTerminationProtection=False)
    stack.destroy("-c stage=prod")


def restored(stack: Stack, assembly: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Restore under traffic, while the consumers are behind; how the new tables' names begin."""
    for name, value in stack.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(restore, "_check_moment", lambda *_: None)
    monkeypatch.setattr(restore, "POLL_S", 0.1)
    with traffic(stack, assembly) as counting:
        counting.wait_for("visits", 40)
        older(stack)
        with step("tally restore under traffic") as notes:
            when = datetime.now(UTC).replace(microsecond=0)
            who = ("--by", "ann", "--why", "INC-9", "--stack", stack.name)
            assert main(("restore", "--to", when.isoformat(), *who)) == 0
            prefix = f"{stack.name}-{when:%Y%m%dT%H%M%S}"
            found = numbers(stack, prefix)
            notes.append(say(found))
    agree(found)
    return prefix


def copied(stack: Stack, prefix: str, vault: Vault) -> dict[str, list[Item]]:
    """Put a copy of each table into the vault, seconds apart, while traffic goes on; the items by the copy's ARN."""
    copies: dict[str, list[Item]] = {}
    for table in ("counts", "ledger", "receipts"):
        vault.copy(time.time(), table, source=f"arn:aws:dynamodb:{REGION}:{ACCOUNT}:table/{prefix}")
        copies[vault.copies[-1]["RecoveryPointArn"]] = scan(stack, f"{prefix}-{table}")
        time.sleep(SWEPT_S)
    return copies


def restored_from_vault(vault: Vault, monkeypatch: pytest.MonkeyPatch) -> str:
    """Restore the newest copies; how the new tables' names begin."""
    monkeypatch.setattr(vaults, "boto3", SimpleNamespace(client=vault.client))
    to_s = max(copy["CreationDate"] for copy in vault.copies)
    who = ("--by", "ann", "--why", "the region is lost", "--stack", "Tally-prod")
    assert main(("restore", "--from-vault", vault.arn, "--to", "2100-01-01T00:00:00Z", *who)) == 0
    return f"Tally-prod-{to_s:%Y%m%dT%H%M%S}"


def older(stack: Stack) -> None:
    """Make the stack three days old: only then its notes cover a whole day."""
    wait_for(lambda: stack.items("Ledger", watermark.WATERMARK_KEY["PK"]["S"]), every_s=0.2)  # the first sweep
    values = {":days": {"N": str(3 * DAY_S)}}
    stack.client("dynamodb").update_item(
        TableName=f"{stack.name}-ledger", Key=watermark.WATERMARK_KEY, UpdateExpression="SET began_s = began_s - :days",
        ExpressionAttributeValues=values,
    )  # fmt: skip


def counted_on(stack: Stack, assembly: Path, prefix: str) -> None:
    """Count on, until the rollup has caught up: what comes is added to what was restored."""
    before = numbers(stack, prefix)
    with traffic(stack, assembly) as counting:
        counting.wait_for("visits", 40)
        with step("counted on") as notes:
            counting.stop()
            accepted = dict(counting.accepted)
            wait_for(
                lambda: numbers(stack, prefix)["visits"][0] >= before["visits"][0] + accepted["visits"], every_s=0.5
            )
            found = numbers(stack, prefix)
            assert found["plays"][0] == before["plays"][0] + accepted["plays"]
            assert stack.items("Ledger", "DEADLETTER") == []
            notes.append(say(found))
    assert not counting.failures


@contextmanager
def traffic(stack: Stack, assembly: Path) -> Iterator[Traffic]:
    """Callers, likes, consumers and sweeps."""
    counting, streams = Traffic(stack, stack.machine_token(), "usage"), Streams(stack, assembly)
    children, posts, stop = stack.outputs["ChildrenFunctionArn"], stack.outputs["PostsFunctionArn"], threading.Event()
    run = time.time_ns()
    posted = stack.invoke(posts, {"operation": "put_post", "id": "p", "body": "Hello", "caller": "ann"})
    assert posted["body"]["id"] == "p", posted

    def liked() -> None:
        number = 0
        while not stop.wait(0.05):
            number += 1
            stack.invoke(
                children, {"operation": "put_mine", "counter": "likes", "id": "p", "caller": f"u{run}-{number}"}
            )

    liking = threading.Thread(target=liked)
    liking.start()
    try:
        with run_sweeps(stack, streams.said, SWEPT_S), streams.running(), counting.running():
            yield counting
    finally:
        stop.set()
        liking.join()
    assert not streams.said


def tables(prefix: str) -> list[str]:
    return [f"{prefix}-{table}" for table in ("counts", "receipts", "ledger")]


def scan(stack: Stack, table: str) -> list[Item]:
    pages = stack.client("dynamodb").get_paginator("scan").paginate(TableName=table, ConsistentRead=True)
    return [item for page in pages for item in page["Items"]]


def numbers(stack: Stack, prefix: str) -> dict[str, tuple[int, int]]:
    """By counter: what the tallies come to, and what they count: likes, or receipts."""
    counts, receipts, _ = tables(prefix)
    items, kept = scan(stack, counts), [one for one in scan(stack, receipts) if "counter" in one]

    def tally(attribute: str) -> int:
        return sum(int(item[attribute]["N"]) for item in items if attribute in item)

    def accepted(counter: str) -> int:
        return sum(int(one["amount"]["N"]) for one in kept if one["counter"]["S"] == counter)

    return {
        "likes": (tally("likeTally"), sum(item["SK"]["S"].startswith("LIKE#") for item in items)),
        "visits": (tally("visits"), accepted("visits")),
        "plays": (tally("play_count"), accepted("plays")),
    }


def agree(found: dict[str, tuple[int, int]]) -> None:
    for counter in ("likes", "visits"):
        tally, counted = found[counter]
        assert tally == counted > 0, found


def say(found: dict[str, tuple[int, int]]) -> str:
    return ", ".join(f"{counter} {tally} of {counted}" for counter, (tally, counted) in found.items())
