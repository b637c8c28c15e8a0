"""`tally export` writes Parquet that its own library reads back."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import counters
from tally.cli import exports
from tally.cli.terminal import CommandError
from tally.counting import posts, tallies
from tally.dynamo.client import Call, Store
from tally.maintenance.imports import Child, Chunk, put
from tests.commands import Command
from tests.old_numbers import stores

pytestmark = pytest.mark.long  # its library is large, and only this needs it


@pytest.fixture
def parquet(monkeypatch: pytest.MonkeyPatch) -> Any:
    """pyarrow.parquet, from the environment of the stores' clients."""
    found = [stores.python(), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    where = subprocess.run(found, capture_output=True, text=True, check=True).stdout.strip()
    monkeypatch.setattr(sys, "path", [*sys.path, where])
    return pytest.importorskip("pyarrow.parquet")


def test_parquet_has_every_row_with_its_type(
    command: Command, store: Store, tmp_path: Path, parquet: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exports, "BATCH", 2)
    numbers = {"a": 1, "b": 0, "c": 2**63 - 1, "d": -5, "e": 9}
    for id_, number in numbers.items():
        store.client.update_item(**tallies.add(Call(store), counters.USAGE, id_, 0, number, 0))
    file = tmp_path / "usage.parquet"
    assert command("export", "usage", file) == 0
    table = parquet.read_table(file)
    assert dict(zip(*table.to_pydict().values(), strict=True)) == numbers
    assert [str(kind) for kind in table.schema.types] == ["string", "int64"]
    posts.write_post(Call(store, "author"), counters.LIKES, "p", "hello")
    put(Call(store), counters.LIKES, "run", Chunk(0, [Child(1, "p", "ann", 1_700_000_000)]))
    assert command("export", "likes", file, "--children") == 0
    [row] = parquet.read_table(file).to_pylist()
    assert row == {"post": "p", "user": "ann", "liked_at": datetime.fromtimestamp(1_700_000_000, UTC)}
    assert command("export", "stock", file) == 0
    assert parquet.read_table(file).num_rows == 0


def test_a_number_that_parquet_cannot_hold_is_one_line_and_the_file_stays_as_it_was(
    command: Command, store: Store, tmp_path: Path, parquet: Any
) -> None:
    store.client.update_item(**tallies.add(Call(store), counters.USAGE, "a", 0, 2**63, 0))
    file = tmp_path / "usage.parquet"
    file.write_text("as it was")
    with pytest.raises(CommandError, match=f"a: {2**63} is too large for Parquet: use csv or jsonl"):
        command("export", "usage", file)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["as it was"]
