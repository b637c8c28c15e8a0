"""What `make dev` starts with: the folder of the code, the tables, the engine."""

from __future__ import annotations

import asyncio
import os
import platform
from contextlib import closing
from pathlib import Path

import pytest

from tally import home
from tally.api.needs import Table
from tally.contract import described
from tally.dev.base.engine import Engine
from tally.dev.base.errors import LocalError
from tally.dev.base.wire import Wire
from tally.dev.server import changed_at
from tally.dev.stack import code, tables
from tests.e2e.dev import client

COUNTS, RECEIPTS = (f"Tally-local-{name}Table" for name in ("Counts", "Receipts"))
FOUND = {
    COUNTS: described.arguments(described.TABLES[Table.COUNTS]),
    RECEIPTS: described.arguments(described.TABLES[Table.RECEIPTS]),
}


def test_the_code_is_the_packages_with_a_copy_of_the_counters(tmp_path: Path) -> None:
    for _ in range(2):  # a second start finds the first one's
        task = code.laid_out(b"COUNTERS = {}", tmp_path / "task/0")
        assert (task / "handlers.py").resolve() == home.LAMBDAS / "handlers.py"
        assert (task / "tally").resolve() == home.PACKAGE
        assert (task / "counters.py").read_bytes() == b"COUNTERS = {}"
        assert {path.name for path in task.iterdir()} == {"counters.py", "handlers.py", "tally"}


def test_a_file_that_is_put_back_with_its_old_time_has_changed(tmp_path: Path) -> None:
    newest, counters = tmp_path / "newest.py", tmp_path / "counters.py"
    for path, at_s in (newest, 3_000), (counters, 2_000):
        path.write_text("COUNTERS = {}")
        os.utime(path, (at_s, at_s))
    seen = changed_at([tmp_path])
    assert seen == changed_at([newest, counters])
    os.utime(counters, (1_000, 1_000))
    put_back = changed_at([tmp_path])
    assert put_back != seen
    counters.write_text("COUNTERS = {} ")  # after what emptied the file, at one tick of the clock
    os.utime(counters, (1_000, 1_000))
    assert changed_at([tmp_path]) != put_back


def create(endpoint: str, found: dict[str, object] | None = None) -> dict[str, str]:
    async def whole() -> dict[str, str]:
        async with Wire(endpoint, endpoint) as wire:
            return await tables.create(found or FOUND, described.TTL_ATTRIBUTE, wire, endpoint)

    return asyncio.run(whole())


def test_tables_are_created_once_with_stream_and_ttl_and_keep_what_they_hold() -> None:
    with Engine() as engine, closing(client(engine.endpoint)) as dynamo:
        bare = {name: value for name, value in FOUND[COUNTS].items() if name != "StreamSpecification"}
        dynamo.create_table(TableName=COUNTS, **bare)
        arns = create(engine.endpoint)
        dynamo.put_item(TableName=RECEIPTS, Item={"id": {"S": "a"}})
        assert create(engine.endpoint) == arns
        assert dynamo.scan(TableName=RECEIPTS)["Count"] == 1
        found = dynamo.describe_table(TableName=COUNTS)["Table"]
        assert found["StreamSpecification"]["StreamEnabled"]
        assert arns[COUNTS] == found["LatestStreamArn"]
        ttl = dynamo.describe_time_to_live(TableName=RECEIPTS)["TimeToLiveDescription"]
        assert (ttl["TimeToLiveStatus"], ttl["AttributeName"]) == ("ENABLED", "expiration")
        with pytest.raises(LocalError, match=f"{COUNTS} .* has another key"):
            create(engine.endpoint, {COUNTS: FOUND[RECEIPTS]})


def test_a_missing_engine_is_one_line_that_says_where_to_get_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    way = "for linux-arm64: run `npm install --no-save @dynoxide/linux-arm64@"
    with pytest.raises(LocalError, match=f"no DynamoDB engine {way}") as missing:
        Engine().start()
    assert "\n" not in str(missing.value)
