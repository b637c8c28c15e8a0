"""An export of what changed leaves nothing out: a warehouse that takes one after the other has every number."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from pathlib import Path

import pytest

import counters
from tally.cli.terminal import CommandError
from tally.counting import children, tallies
from tally.dynamo.client import Call, Store
from tests.commands import Command
from tests.integration.command.numbers import judged as judge
from tests.invariants.judged import Deployment
from tests.tiers import in_long

NEXT = re.compile(r"the next one: --changes-since (\S+)")


def exported(command: Command, *more: str, counter: str = "plays") -> tuple[dict[str, int], str]:
    """The numbers by id, and since when the next export has to be."""
    command.said()
    assert command("export", counter, *more) == 0
    out, err = command.said()
    return {row["id"]: int(row["value"]) for row in csv.DictReader(io.StringIO(out))}, NEXT.findall(err)[0]


@pytest.mark.parametrize("stalled", [[2, 3], *in_long([[], [1, 2, 3, 4, 5]])], ids=str)
def test_a_warehouse_that_takes_the_changes_has_every_number(
    judged: Deployment, tmp_path: Path, capsys: pytest.CaptureFixture[str], stalled: list[int]
) -> None:
    """Some changes are rolled up: hours later, if the rollup stands still."""
    command = Command(judged.store, tmp_path, capsys)
    judged.run(2)
    judged.play("old", 5)
    judged.run(30)
    warehouse, since = exported(command)
    assert warehouse == {"old": 5}
    for turn in range(8):
        judged.stall("rollup") if turn in stalled else judged.resume()
        judged.play(f"v{turn % 3}", turn + 1)
        judged.spill(f"s{turn}", 2)
        judged.run(9)
        judged.spill(f"t{turn}", 1)
        changed, since = exported(command, "--changes-since", since)
        assert "old" not in changed
        warehouse |= changed
    judged.resume()
    judged.run(30)
    changed, since = exported(command, "--changes-since", since)
    warehouse |= changed
    assert warehouse == exported(command)[0]
    judged.run(30)
    assert exported(command, "--changes-since", since)[0].keys() < warehouse.keys()
    since = exported(command)[1]
    judged.run(20)
    assert exported(command, "--changes-since", since)[0] == {}, "nothing changed"


@pytest.fixture
def command(store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(store, tmp_path, capsys)


def test_what_does_not_say_when_it_changed_may_have(command: Command, store: Store) -> None:
    minute = 29_453_760  # 2026-01-01
    for id_, at in (("early", minute - 6), ("slow", minute - 5), ("late", minute + 9)):
        store.client.update_item(**tallies.add(Call(store), counters.PLAYS, id_, 0, 5, at))
    key = tallies.key(counters.PLAYS, "manual", 0)
    store.client.put_item(TableName=store.settings.counts_table, Item=key | {counters.PLAYS.attribute: {"N": "7"}})
    judge(store)
    since = ("--changes-since", "2026-01-01T00:00:00Z")
    assert exported(command, *since)[0] == {"slow": 5, "late": 5, "manual": 7}
    for shard, at in ((0, minute - 99), (3, minute)):
        store.client.update_item(**tallies.add(Call(store), counters.PLAYS, "two", shard, 5, at))
    assert exported(command, *since)[0]["two"] == 10
    children.set_child(Call(store, "shop"), counters.MEMBERS, "acme", "ann", True, {}, None)
    command.said()
    for more, rows in (("2026-01-01T00:00:00Z", 1), ("2100-01-01T00:00:00Z", 0)):
        assert command("export", "members", "--children", "--format", "jsonl", "--changes-since", more) == 0
        assert len([json.loads(line) for line in command.said()[0].splitlines()]) == rows


def test_parquet_without_its_package_is_one_line_and_no_file(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(CommandError, match="Parquet needs the package pyarrow, and it is not installed"):
        command("export", "plays", tmp_path / "plays.parquet")
    assert list(tmp_path.iterdir()) == []
