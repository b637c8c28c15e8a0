"""Tests the pump, which delivers the engine's stream records to functions, with an engine and a fake function."""

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


def test_records_of_ttl_removals_are_as_lambda_delivers_them() -> None:
    record = {"eventName": "REMOVE", "userIdentity": {"Type": "Service", "PrincipalId": "dynamodb.amazonaws.com"}}
    delivered = pump.to_lambda_record(record, "arn")
    assert delivered["userIdentity"] == {"type": "Service", "principalId": "dynamodb.amazonaws.com"}
    assert is_ttl_removal(delivered)
    assert not is_ttl_removal(pump.to_lambda_record({"eventName": "REMOVE"}, "arn"))


@pytest.fixture
def fresh_engine(tmp_path: Path) -> Iterator[Engine]:
    """An engine with an empty table. The sequence numbers of the table's stream begin at 1."""
    with Engine(tmp_path / "engine.db") as engine:
        with closing(client(engine.endpoint)) as engine_client:
            engine_client.create_table(
                TableName=TABLE, **deployment.create_table_arguments(deployment.TABLES[Table.RECEIPTS])
            )
        yield engine


class FakeFunction:
    """A function that writes its events into the file `seen`. `on_poison`: what it does with a batch that has the
    record `poison`: "succeed", "raise" or "report" the record. After the file `cured` exists, the function succeeds."""

    def __init__(self, root: Path, on_poison: str) -> None:
        self._root, self._on_poison = root, on_poison

    async def invoke(self, _: str, payload: bytes) -> Outcome:
        """Handles one event."""
        event = json.loads(payload)
        records = {record["dynamodb"]["Keys"]["id"]["S"]: record["dynamodb"] for record in event["Records"]}
        line = {name: value for name, value in event.items() if name != "Records"}
        line |= {"ids": list(records), "first": next(iter(event["Records"]), None)}
        with (self._root / "seen").open("a") as seen:
            seen.write(json.dumps(line) + "\n")
        if "poison" in records and self._on_poison != "succeed" and not (self._root / "cured").exists():
            if self._on_poison == "raise":
                return Outcome.failure("ValueError", "poison")
            failure = {"itemIdentifier": records["poison"]["SequenceNumber"]}
            return Outcome(json.dumps({"batchItemFailures": [failure]}).encode())
        return Outcome(b"null")


class Running:
    """The running pump, its engine, and the events that the fake function has received.

    `pump.passed()`: by table, the newest sequence number that every mapping has passed. `trim` deletes the records up
    to this number.
    """

    def __init__(self, root: Path, engine: Engine, pump: Pump, messages: list[str]) -> None:
        self.root, self.pump, self.messages = root, pump, messages
        self.client = client(engine.endpoint)

    def put(self, *ids: str) -> None:
        for id_ in ids:
            self.client.put_item(TableName=TABLE, Item={"id": {"S": id_}})

    @property
    def seen(self) -> list[Any]:
        """The events. In place of the records, an event has their ids as `ids`, and the first record as `first`."""
        path = self.root / "seen"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def batches(self) -> list[list[str]]:
        return [event["ids"] for event in self.seen]

    @property
    def delivered(self) -> list[str]:
        return [id_ for batch in self.batches for id_ in batch]

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline_s, (self.seen, self.messages)
            await asyncio.sleep(0.02)


def run(body: Body, root: Path, engine: Engine, on_poison: str, before: Sequence[str] = (), **fields: Any) -> list[str]:
    """Puts items `before`, then runs `body` while the pump works. Returns the messages of the pump.

    The records of `before` arrive in one batch. `fields`: further fields of the StreamMapping.
    """
    messages: list[str] = []
    mapping = StreamMapping("Mapping", TABLE, "fake", **fields)

    async def run_body() -> None:
        async with Wire(engine.endpoint, engine.endpoint) as wire:
            workers = cast("Workers", FakeFunction(root, on_poison))
            pump = Pump([mapping], workers, wire, Positions(root / "streams.json"), messages.append)
            running = Running(root, engine, pump, messages)
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


def test_records_are_as_lambda_delivers_them(tmp_path: Path, fresh_engine: Engine) -> None:
    async def body(running: Running) -> None:
        running.put("a")
        await running.wait_until(lambda: bool(running.seen))
        [event] = running.seen
        record = event["first"]
        origin = record["eventName"], record["eventSource"], record["awsRegion"]
        assert origin == ("INSERT", "aws:dynamodb", "eu-west-1")
        assert record["eventSourceARN"].startswith(f"arn:aws:dynamodb:eu-west-1:000000000000:table/{TABLE}/stream/")
        assert record["dynamodb"]["NewImage"] == {"id": {"S": "a"}}
        assert isinstance(record["dynamodb"]["ApproximateCreationDateTime"], int | float)
        assert "window" not in event

    assert run(body, tmp_path, fresh_engine, "succeed") == []


def test_a_filter_drops_records(tmp_path: Path, fresh_engine: Engine) -> None:
    async def body(running: Running) -> None:
        running.put("a")
        running.client.delete_item(TableName=TABLE, Key={"id": {"S": "a"}})
        running.put("b")
        await running.wait_until(lambda: running.delivered == ["a", "b"])
        await running.wait_until(lambda: running.pump.passed() == {TABLE: 3})  # and the filtered removal

    run(body, tmp_path, fresh_engine, "succeed", filters=({"eventName": ["INSERT"]},))


def test_a_restart_continues_and_a_lost_position_replays(tmp_path: Path, fresh_engine: Engine) -> None:
    async def first(running: Running) -> None:
        running.put("a", "b")
        await running.wait_until(lambda: running.pump.passed() == {TABLE: 2})

    async def second(running: Running) -> None:
        running.put("c")
        await running.wait_until(lambda: "c" in running.delivered)
        assert running.delivered == ["a", "b", "c"]

    async def third(running: Running) -> None:
        await running.wait_until(lambda: len(running.delivered) == 6)
        assert running.delivered == ["a", "b", "c"] * 2  # once by the first two runs, and again by the third

    run(first, tmp_path, fresh_engine, "succeed")
    run(second, tmp_path, fresh_engine, "succeed")
    (tmp_path / "streams.json").write_text("torn {")
    run(third, tmp_path, fresh_engine, "succeed")


def test_a_failing_batch_is_halved_down_to_its_poison_record_which_blocks_later_records(
    tmp_path: Path, fresh_engine: Engine
) -> None:
    async def body(running: Running) -> None:
        await running.wait_until(lambda: running.batches.count(["poison"]) >= 2)
        assert running.batches[:4] == [
            ["a", "b", "c", "poison", "d"],
            ["a", "b"],
            ["c", "poison", "d"],
            ["c"],
        ]
        assert ["d"] not in running.batches
        (running.root / "cured").touch()
        await running.wait_until(lambda: running.batches[-1] == ["d"])

    messages = run(body, tmp_path, fresh_engine, "raise", ["a", "b", "c", "poison", "d"])
    assert "fake failed on 5 records of tally-test-streamed, retrying: ValueError: poison (log fake.log)" in messages[0]


def test_a_reported_failure_is_retried_from_its_record(tmp_path: Path, fresh_engine: Engine) -> None:
    async def body(running: Running) -> None:
        await running.wait_until(lambda: len(running.batches) >= 2)
        (running.root / "cured").touch()
        await running.wait_until(lambda: running.pump.passed() == {TABLE: 3})
        assert running.batches[0] == ["a", "poison", "b"]
        assert {tuple(batch) for batch in running.batches[1:]} == {("poison", "b")}

    run(body, tmp_path, fresh_engine, "report", ["a", "poison", "b"])


def test_a_disabled_mapping_delivers_nothing_and_resumes_at_its_position(tmp_path: Path, fresh_engine: Engine) -> None:
    async def body(running: Running) -> None:
        running.put("a")
        await running.wait_until(lambda: running.pump.passed() == {TABLE: 1})
        for _ in range(2):  # a second call changes nothing
            running.pump.switch("Mapping", False)
        running.put("b", "c")
        await asyncio.sleep(4 * pump.POLL_S)
        assert (running.delivered, running.pump.passed()) == (["a"], {TABLE: 1})  # so trim keeps b and c
        running.pump.switch("Mapping", True)
        await running.wait_until(lambda: running.pump.passed() == {TABLE: 3})
        assert running.delivered == ["a", "b", "c"]

    run(body, tmp_path, fresh_engine, "succeed")


def test_trimmed_records_are_not_read_and_sequence_numbers_do_not_repeat(tmp_path: Path, fresh_engine: Engine) -> None:
    assert fresh_engine.db_path
    path = fresh_engine.db_path

    async def body(running: Running) -> None:
        running.put(*"abcde")
        await running.wait_until(lambda: running.pump.passed() == {TABLE: 5})
        assert engine_file.trim(path, running.pump.passed())
        running.put("f")
        await running.wait_until(lambda: running.pump.passed() == {TABLE: 6})
        assert running.delivered == list("abcdef")

    run(body, tmp_path, fresh_engine, "succeed")
    (tmp_path / "streams.json").unlink()

    async def after_a_lost_position(running: Running) -> None:
        await running.wait_until(lambda: running.delivered == [*"abcdef", "e", "f"])  # `trim` kept e, the newest record

    run(after_a_lost_position, tmp_path, fresh_engine, "succeed")


def test_an_engine_file_of_another_schema_is_not_trimmed(tmp_path: Path, fresh_engine: Engine) -> None:
    assert fresh_engine.db_path
    engine_client = client(fresh_engine.endpoint)
    engine_client.put_item(TableName=TABLE, Item={"id": {"S": "a"}})
    engine_client.put_item(TableName=TABLE, Item={"id": {"S": "b"}})
    engine_client.close()
    with engine_file._opened(fresh_engine.db_path) as database:
        changed = database.execute("UPDATE _config SET value = '10' WHERE key = 'schema_version'").rowcount
        assert changed == 1
        assert engine_file.trim(fresh_engine.db_path, {TABLE: 2}), "with an unknown schema, nothing is left to do"
        assert database.execute("SELECT COUNT(*) FROM _stream_records").fetchone() == (2,)
        database.execute("UPDATE _config SET value = ? WHERE key = 'schema_version'", (engine_file.SCHEMA_VERSION,))
        assert engine_file.trim(fresh_engine.db_path, {TABLE: 1})
        assert database.execute("SELECT COUNT(*) FROM _stream_records").fetchone() == (1,)
    assert not engine_file.trim(tmp_path / "none.db", {TABLE: 1})
    assert not (tmp_path / "none.db").exists()
