"""Tests what `make dev` starts with: the code folder, the tables and the engine."""

from __future__ import annotations

import asyncio
import os
import platform
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tally import paths
from tally.api.needs import Table
from tally.contract import deployment
from tally.dev.base import engine
from tally.dev.base.dynamodb_local import DynamoDBLocal, choose_engine, jars
from tally.dev.base.engine import Engine
from tally.dev.base.errors import LocalError
from tally.dev.base.wire import Wire
from tally.dev.server import file_stamps
from tally.dev.stack import code, tables
from tests.e2e.dev import client

COUNTS, RECEIPTS = (f"Tally-local-{name}Table" for name in ("Counts", "Receipts"))
TABLES = {
    COUNTS: deployment.create_table_arguments(deployment.TABLES[Table.COUNTS]),
    RECEIPTS: deployment.create_table_arguments(deployment.TABLES[Table.RECEIPTS]),
}


def test_the_code_folder_links_the_packages_and_copies_the_counters(tmp_path: Path) -> None:
    for _ in range(2):  # a second start finds the folder of the first start
        task = code.write_folder(b"COUNTERS = {}", tmp_path / "task/0")
        assert (task / "handlers.py").resolve() == paths.LAMBDAS / "handlers.py"
        assert (task / "tally").resolve() == paths.PACKAGE
        assert (task / "counters.py").read_bytes() == b"COUNTERS = {}"
        assert {path.name for path in task.iterdir()} == {"counters.py", "handlers.py", "tally"}


def test_a_file_that_is_restored_with_its_old_time_has_changed(tmp_path: Path) -> None:
    # The newest time of all files does not change, because it is the time of `newest.py`.
    newest, counters = tmp_path / "newest.py", tmp_path / "counters.py"
    for path, at_s in (newest, 3_000), (counters, 2_000):
        path.write_text("COUNTERS = {}")
        os.utime(path, (at_s, at_s))
    before = file_stamps([tmp_path])
    assert before == file_stamps([newest, counters])
    os.utime(counters, (1_000, 1_000))
    restored = file_stamps([tmp_path])
    assert restored != before
    counters.write_text("COUNTERS = {} ")  # other content with the same time
    os.utime(counters, (1_000, 1_000))
    assert file_stamps([tmp_path]) != restored


def create(endpoint: str, arguments: dict[str, object] | None = None) -> dict[str, str]:
    """Creates tables as `make dev` does, by default TABLES. Returns the ARN of the stream of each table."""

    async def create_all() -> dict[str, str]:
        async with Wire(endpoint, endpoint) as wire:
            return await tables.create(arguments or TABLES, deployment.TTL_ATTRIBUTE, wire, endpoint)

    return asyncio.run(create_all())


def test_tables_are_created_once_with_stream_and_ttl_and_keep_what_they_hold() -> None:
    with Engine() as running, closing(client(running.endpoint)) as dynamo:
        without_stream = {name: value for name, value in TABLES[COUNTS].items() if name != "StreamSpecification"}
        dynamo.create_table(TableName=COUNTS, **without_stream)
        arns = create(running.endpoint)
        dynamo.put_item(TableName=RECEIPTS, Item={"id": {"S": "a"}})
        assert create(running.endpoint) == arns
        assert dynamo.scan(TableName=RECEIPTS)["Count"] == 1
        table = dynamo.describe_table(TableName=COUNTS)["Table"]
        assert table["StreamSpecification"]["StreamEnabled"]
        assert arns[COUNTS] == table["LatestStreamArn"]
        ttl = dynamo.describe_time_to_live(TableName=RECEIPTS)["TimeToLiveDescription"]
        assert (ttl["TimeToLiveStatus"], ttl["AttributeName"]) == ("ENABLED", "expiration")
        with pytest.raises(LocalError, match=f"{COUNTS} .* has another key"):
            create(running.endpoint, {COUNTS: TABLES[RECEIPTS]})


# (system, processor, whether npm has the embedded engine for it)
PLATFORMS = [
    ("Linux", "x86_64", True),
    ("Linux", "aarch64", False),
    ("Darwin", "arm64", False),
    ("Darwin", "x86_64", False),
    ("FreeBSD", "amd64", False),
]

# A script in place of Maven. It makes the folder that the arguments name for the downloads.
FAKE_MAVEN = 'for one; do case $one in -DoutputDirectory=*) folder=${one#*=};; esac; done; /bin/mkdir "$folder"'


@pytest.fixture
def new_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Path]:
    """Simulates a machine without programs and with an empty cache. Returns the only folder on its PATH."""

    def machine(system: str, processor: str) -> Path:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        monkeypatch.delenv("JAVA_HOME", raising=False)
        monkeypatch.setattr(platform, "system", lambda: system)
        monkeypatch.setattr(platform, "machine", lambda: processor)
        return tmp_path

    return machine


@pytest.mark.parametrize(("system", "processor", "embedded"), PLATFORMS)
def test_dynamodb_local_runs_where_the_embedded_engine_has_no_package(
    new_machine: Callable[[str, str], Path], system: str, processor: str, embedded: bool
) -> None:
    """npm has the embedded engine for some machines only. A `dynoxide` on the PATH is an embedded engine, too."""
    programs = new_machine(system, processor)
    assert engine.has_package() == embedded
    assert type(choose_engine(programs, "")) is (Engine if embedded else DynamoDBLocal)
    assert type(choose_engine(programs, "dynamodb-local")) is DynamoDBLocal
    if not embedded:
        with pytest.raises(LocalError, match=f"no embedded engine for {system.lower()}-.* with ENGINE=dynamodb-local$"):
            Engine().start()
    write_program(programs / "dynoxide", "exit 1")
    assert type(choose_engine(programs, "")) is Engine


def write_program(path: Path, script: str) -> None:
    """Writes a program that runs a shell script."""
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("version", "message"),
    [
        (None, "DynamoDB Local needs Java 17 or newer, and there is no java: "),
        ('echo "Unable to locate a Java Runtime." >&2; exit 1', "and there is no java: "),
        ("echo 'openjdk version \"11.0.2\" 2019-01-15' >&2", "and java is Java 11: "),
        ("echo 'openjdk version \"21\" 2023-09-19' >&2", "there is no mvn: install Maven"),
    ],
    ids=["no Java", "a Mac without Java", "an old Java", "no Maven"],
)
def test_the_error_names_a_missing_or_old_tool_of_dynamodb_local_in_one_line(
    new_machine: Callable[[str, str], Path], version: str | None, message: str
) -> None:
    programs = new_machine("Darwin", "arm64")
    if version:
        write_program(programs / "java", version)
    with pytest.raises(LocalError, match=message) as missing:
        choose_engine(programs / "data", "").start()
    assert "\n" not in str(missing.value)
    assert not list(programs.glob("cache/tally/*")), "nothing is stored"


@pytest.mark.parametrize(
    ("version", "message"),
    [(None, "there is no java: "), ("echo 'openjdk version \"11.0.2\" 2019-01-15' >&2; exit 1", "java is Java 11: ")],
    ids=["no Java", "an old Java"],
)
def test_the_error_names_a_missing_or_old_java_after_dynamodb_local_was_fetched(
    new_machine: Callable[[str, str], Path], version: str | None, message: str
) -> None:
    programs = new_machine("Darwin", "arm64")
    write_program(programs / "java", "echo 'openjdk version \"17.0.15\"' >&2")
    write_program(programs / "mvn", FAKE_MAVEN)
    jars()
    (programs / "java").unlink()
    if version:
        write_program(programs / "java", version)
    with pytest.raises(LocalError, match=f"^DynamoDB Local needs Java 17 or newer, and {message}"):
        choose_engine(programs / "data", "").start()


def test_dynamodb_local_is_fetched_once_and_completely(
    new_machine: Callable[[str, str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    programs = new_machine("Darwin", "arm64")
    write_program(programs / "java", "echo 'openjdk version \"17.0.15\"' >&2")
    write_program(programs / "mvn", "echo '[ERROR] no such host'; exit 1")
    with pytest.raises(LocalError, match=r"Maven cannot fetch DynamoDB Local: no such host$"):
        jars()
    assert not list(programs.glob("cache/tally/*"))
    write_program(programs / "mvn", f'{FAKE_MAVEN}; echo "$@" > "$folder/arguments"')
    assert capsys.readouterr().out.startswith("tally: fetching DynamoDB Local by Maven into ")
    kept = jars()
    assert "--strict-checksums" in (kept / "arguments").read_text()
    assert capsys.readouterr().out.endswith("(50 MB, once)\n")
    (programs / "mvn").unlink()
    assert jars() == kept
    assert capsys.readouterr().out == ""
    assert list(kept.parent.iterdir()) == [kept]


def test_the_file_of_dynamodb_local_has_a_write_ahead_log_and_any_other_file_is_unchanged(
    new_machine: Callable[[str, str], Path],
) -> None:
    """Without the log, a write waits for a busy disk four times, 340 ms in all, and with the log 13 ms."""
    programs = new_machine("Darwin", "arm64")
    write_program(programs / "java", "echo 'openjdk version \"17.0.15\"' >&2")
    write_program(programs / "mvn", FAKE_MAVEN)
    # The fake Java prints its version and ends.
    with pytest.raises(LocalError, match="the DynamoDB engine did not start: exit status 0 openjdk version"):
        choose_engine(programs / "data", "").start()
    file = programs / "data/shared-local-instance.db"
    with closing(sqlite3.connect(file)) as database:
        assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    file.write_text("this is not a database" * 100)
    with pytest.raises(LocalError, match="is not a file of the engine"):
        choose_engine(programs / "data", "").start()
    assert file.read_text() == "this is not a database" * 100
