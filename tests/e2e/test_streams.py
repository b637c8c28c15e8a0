"""Tests the pump with a real engine. A fake function in this process records its invocations."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest

from tally.api.needs import Table
from tally.contract import deployment
from tally.dev.base import engine_file
from tally.dev.base.engine import Engine
from tally.dev.base.wire import Wire
from tally.dev.functions.worker import Outcome
from tally.dev.functions.workers import Workers
from tally.dev.stack.mappings import StreamMapping
from tally.dev.streams import pump
from tally.dev.streams.positions import Positions
from tally.dev.streams.pump import Pump
from tally.streams.record import is_ttl_removal
from tests.e2e.dev import client
from tests.patience import PATIENCE_S

TABLE = "tally-test-streamed"
Body = Callable[["Running"], Awaitable[None]]


def test_records_of_ttl_removals_have_the_form_of_lambda() -> None:
    record = {"eventName": "REMOVE", "userIdentity": {"Type": "Service", "PrincipalId": "dynamodb.amazonaws.com"}}
    found = pump.to_lambda_record(record, "arn")
    assert found["userIdentity"] == {"type": "Service", "principalId": "dynamodb.amazonaws.com"}
    assert is_ttl_removal(found)
    assert not is_ttl_removal(pump.to_lambda_record({"eventName": "REMOVE"}, "arn"))


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Engine]:
    """An engine with an empty table. The sequence numbers of the table's stream begin at 1."""
    with Engine(tmp_path / "engine.db") as engine:
        with closing(client(engine.endpoint)) as engine_client:
            engine_client.create_table(
                TableName=TABLE, **deployment.create_table_arguments(deployment.TABLES[Table.RECEIPTS])
            )
        yield engine


class FakeFunction:
    """A fake function that writes its events into the file `seen`. It fails on the record `poison` until a file `cured`
    exists. `how`: "plain" never fails, "poisoned" raises, "partly" reports the failed record."""

    def __init__(self, root: Path, how: str) -> None:
        self._root, self._how = root, how

    async def invoke(self, _: str, payload: bytes) -> Outcome:
        """Handles one event."""
        event = json.loads(payload)
        keys = {one["dynamodb"]["Keys"]["id"]["S"]: one["dynamodb"]["SequenceNumber"] for one in event["Records"]}
        line = {name: value for name, value in event.items() if name != "Records"}
        line |= {"names": list(keys), "at": time.time(), "first": next(iter(event["Records"]), None)}
        with (self._root / "seen").open("a") as seen:
            seen.write(json.dumps(line) + "\n")
        if "poison" in keys and self._how != "plain" and not (self._root / "cured").exists():
            if self._how == "poisoned":
                return Outcome.failure("ValueError", "poison")
            return Outcome(json.dumps({"batchItemFailures": [{"itemIdentifier": keys["poison"]}]}).encode())
        return Outcome(b"null")


class Running:
    """The running pump, its engine, and the events that the fake function has received."""

    def __init__(self, root: Path, engine: Engine, pump: Pump) -> None:
        self.root, self.engine, self.pump = root, engine, pump
        self.client = client(engine.endpoint)

    def put(self, *names: str) -> None:
        for name in names:
            self.client.put_item(TableName=TABLE, Item={"id": {"S": name}})

    @property
    def seen(self) -> list[Any]:
        path = self.root / "seen"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def names(self) -> list[list[str]]:
        return [entry["names"] for entry in self.seen]

    @property
    def all_names(self) -> list[str]:
        return [name for names in self.names for name in names]

    async def until(self, condition: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline_s, (self.seen, self.messages)
            await asyncio.sleep(0.02)

    @property
    def messages(self) -> list[str]:
        messages: list[str] = self.pump.messages  # type: ignore[attr-defined]
        return messages


def run(body: Body, root: Path, engine: Engine, how: str, before: Sequence[str] = (), **fields: Any) -> list[str]:
    """Puts items `before`, then runs `body` while the pump works. Returns the messages of the pump.

    The pump reads all earlier records at once, so a test need not wait until a batch is full.
    """
    messages: list[str] = []
    mapping = StreamMapping("Mapping", TABLE, "tried", **fields)

    async def run_body() -> None:
        async with Wire(engine.endpoint, engine.endpoint) as wire:
            workers = cast("Workers", FakeFunction(root, how))
            pump = Pump([mapping], workers, wire, Positions(root / "streams.json"), messages.append)
            pump.messages = messages  # type: ignore[attr-defined]
            running = Running(root, engine, pump)
            running.put(*before)
            task = asyncio.create_task(pump.run())
            try:
                await body(running)
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                running.client.close()

    asyncio.run(run_body())
    return messages


def test_records_have_the_form_of_lambda(tmp_path: Path, fresh: Engine) -> None:
    async def body(running: Running) -> None:
        running.put("a")
        await running.until(lambda: bool(running.seen))
        [event] = running.seen
        record = event["first"]
        assert (record["eventName"], record["eventSource"], record["awsRegion"]) == (
            "INSERT",
            "aws:dynamodb",
            "eu-west-1",
        )
        assert record["eventSourceARN"].startswith(f"arn:aws:dynamodb:eu-west-1:000000000000:table/{TABLE}/stream/")
        assert record["dynamodb"]["NewImage"] == {"id": {"S": "a"}}
        assert isinstance(record["dynamodb"]["ApproximateCreationDateTime"], int | float)
        assert "window" not in event

    assert run(body, tmp_path, fresh, "plain") == []


def test_a_filter_drops_records(tmp_path: Path, fresh: Engine) -> None:
    async def body(running: Running) -> None:
        running.put("a")
        running.client.delete_item(TableName=TABLE, Key={"id": {"S": "a"}})
        running.put("b")
        await running.until(lambda: running.all_names == ["a", "b"])
        await running.until(lambda: running.pump.passed() == {TABLE: 3})

    run(body, tmp_path, fresh, "plain", filters=({"eventName": ["INSERT"]},))


def test_a_restart_continues_and_a_lost_position_replays(tmp_path: Path, fresh: Engine) -> None:
    async def first(running: Running) -> None:
        running.put("a", "b")
        await running.until(lambda: running.pump.passed() == {TABLE: 2})

    async def second(running: Running) -> None:
        running.put("c")
        await running.until(lambda: "c" in running.all_names)
        assert running.all_names == ["a", "b", "c"]

    async def third(running: Running) -> None:
        await running.until(lambda: len(running.all_names) == 6)
        assert running.all_names == ["a", "b", "c"] * 2

    run(first, tmp_path, fresh, "plain")
    run(second, tmp_path, fresh, "plain")
    (tmp_path / "streams.json").write_text("torn {")
    run(third, tmp_path, fresh, "plain")


def test_a_failing_batch_is_halved_down_to_its_poison_record_which_blocks_until_it_succeeds(
    tmp_path: Path, fresh: Engine
) -> None:
    async def body(running: Running) -> None:
        await running.until(lambda: running.names.count(["poison"]) >= 2)
        assert [running.names[place] for place in range(4)] == [
            ["a", "b", "c", "poison", "d"],
            ["a", "b"],
            ["c", "poison", "d"],
            ["c"],
        ]
        assert ["d"] not in running.names
        (running.root / "cured").touch()
        await running.until(lambda: running.names[-1] == ["d"])

    messages = run(body, tmp_path, fresh, "poisoned", ["a", "b", "c", "poison", "d"])
    assert (
        "tried failed on 5 records of tally-test-streamed, retrying: ValueError: poison (log tried.log)" in messages[0]
    )


def test_a_reported_failure_is_retried_from_its_record(tmp_path: Path, fresh: Engine) -> None:
    async def body(running: Running) -> None:
        await running.until(lambda: len(running.names) >= 2)
        (running.root / "cured").touch()
        await running.until(lambda: running.pump.passed() == {TABLE: 3})
        assert running.names[0] == ["a", "poison", "b"]
        assert {tuple(names) for names in running.names[1:]} == {("poison", "b")}

    run(body, tmp_path, fresh, "partly", ["a", "poison", "b"])


def test_a_disabled_mapping_delivers_nothing_and_resumes_at_its_position(tmp_path: Path, fresh: Engine) -> None:
    async def body(running: Running) -> None:
        running.put("a")
        await running.until(lambda: running.pump.passed() == {TABLE: 1})
        running.pump.switch("Mapping", False)
        running.pump.switch("Mapping", False)
        running.put("b", "c")
        await asyncio.sleep(4 * pump.POLL_S)
        assert (running.all_names, running.pump.passed()) == (["a"], {TABLE: 1}), (
            "the engine may not trim records that wait"
        )
        running.pump.switch("Mapping", True)
        await running.until(lambda: running.pump.passed() == {TABLE: 3})
        assert running.all_names == ["a", "b", "c"]

    run(body, tmp_path, fresh, "plain")


def test_trimmed_records_are_not_read_and_sequence_numbers_do_not_repeat(tmp_path: Path, fresh: Engine) -> None:
    assert fresh.db_path
    path = fresh.db_path

    async def body(running: Running) -> None:
        running.put(*"abcde")
        await running.until(lambda: running.pump.passed() == {TABLE: 5})
        assert engine_file.trim(path, running.pump.passed())
        running.put("f")
        await running.until(lambda: running.pump.passed() == {TABLE: 6})
        assert running.all_names == list("abcdef")

    run(body, tmp_path, fresh, "plain")
    (tmp_path / "streams.json").unlink()

    async def again(running: Running) -> None:
        await running.until(lambda: running.all_names == [*"abcdef", "e", "f"])  # earlier records are trimmed

    run(again, tmp_path, fresh, "plain")


def test_an_engine_file_of_another_schema_is_not_trimmed(tmp_path: Path, fresh: Engine) -> None:
    assert fresh.db_path
    engine_client = client(fresh.endpoint)
    engine_client.put_item(TableName=TABLE, Item={"id": {"S": "a"}})
    engine_client.put_item(TableName=TABLE, Item={"id": {"S": "b"}})
    engine_client.close()
    with engine_file._opened(fresh.db_path) as database:
        other = database.execute("UPDATE _config SET value = '10' WHERE key = 'schema_version'").rowcount
        assert other == 1
        assert engine_file.trim(fresh.db_path, {TABLE: 2})
        assert database.execute("SELECT COUNT(*) FROM _stream_records").fetchone() == (2,)
        database.execute("UPDATE _config SET value = ? WHERE key = 'schema_version'", (engine_file.SCHEMA_VERSION,))
        assert engine_file.trim(fresh.db_path, {TABLE: 1})
        assert database.execute("SELECT COUNT(*) FROM _stream_records").fetchone() == (1,)
    assert not engine_file.trim(tmp_path / "none.db", {TABLE: 1})
    assert not (tmp_path / "none.db").exists()
