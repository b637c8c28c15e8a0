"""Reads the engine's streams and invokes functions as the stack's event source mappings say.

Each shard of each mapping has a task, which delivers one batch at a time, in order. The task retries a failed batch
without end, in halves, as Lambda does.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..base.account import REGION
from ..base.wire import Wire, WireError
from ..base.words import Say
from ..functions.workers import ThrottledError, Workers
from ..stack.mappings import StreamMapping
from .batches import BatchResult, Buffer, Record, halves, read_answer
from .positions import Position, Positions

POLL_S = 0.25  # between two reads of a shard without new records, as at Lambda
READ_ANYWAY_S = (
    1.0  # a shard is read after this time, even if `engine_stamp` is unchanged: two fast writes may have one stamp
)
READ_RECORDS_MAX = 1_000  # of one read, DynamoDB's quota
LIST_SHARDS_S = 10.0  # between two listings of the shards, which rarely change: the embedded engine splits no shard
WRITE_S = 0.5  # between two writes of the positions; a restart after a kill replays the records since the last write
RETRY_FIRST_S, RETRY_S_MAX = 0.1, 5.0  # between attempts: a broken consumer must not use a whole CPU
SAY_EVERY = 20  # print the first failure of a batch, then each twentieth failure
_TRIMMED = "TrimmedDataAccessException"  # GetShardIterator or GetRecords: the record at this position is deleted


@dataclass
class Pump:
    """Runs the event source mappings of a stack. Use it from one event loop."""

    mappings: Sequence[StreamMapping]
    workers: Workers
    wire: Wire
    positions: Positions
    say: Say
    engine_file: Path | None = None
    """The engine's data file; None: not known. While its write-ahead log is unchanged, the pump reads less often."""
    tasks: asyncio.TaskGroup = field(init=False)
    following: list[tuple[StreamMapping, asyncio.Task[None]]] = field(default_factory=list)  # each with its task
    progress: dict[str, dict[str, str]] = field(default_factory=dict)
    """By table and mapping: the sequence number that the mapping has passed, in the shard that it read last."""
    disabled: dict[str, asyncio.Event] = field(default_factory=dict)
    """By name: each disabled mapping, and the event that enables it. Every mapping is enabled at the start."""

    def switch(self, mapping: str, enabled: bool) -> None:
        """Enables or disables a mapping. An invocation that runs is not interrupted."""
        if not enabled:
            self.disabled.setdefault(mapping, asyncio.Event())
        elif event := self.disabled.pop(mapping, None):
            event.set()

    def passed(self) -> dict[str, int]:
        """Returns the sequence number that all mappings of a table have passed, by table. engine_file.py deletes the
        records up to this number. So the result lacks a table if a mapping has read none of its records, and all team
        tables (their mappings have `counters`), because other programs may read their streams."""
        mapping_counts = Counter(mapping.table for mapping in self.mappings if mapping.counters is None)
        return {
            table: min(map(int, sequences.values()))
            for table, sequences in self.progress.items()
            if len(sequences) == mapping_counts[table]
        }

    async def run(self) -> None:
        """Runs until cancelled. If a table has no stream, says so once, and does not run the mapping."""
        async with asyncio.TaskGroup() as tasks:
            self.tasks = tasks
            self.follow(self.mappings)
            tasks.create_task(self._write_positions())

    def follow(self, mappings: Sequence[StreamMapping]) -> None:
        """Reads the streams of these mappings from now on, and no others. Call it after `run` has begun."""
        self.mappings = mappings
        for one, task in self.following:
            if one not in mappings:
                task.cancel()
        continuing = [(one, task) for one, task in self.following if one in mappings]
        known = [one for one, _ in continuing]
        new = [(one, self.tasks.create_task(self._follow(one))) for one in mappings if one not in known]
        self.following = continuing + new

    async def _follow(self, mapping: StreamMapping) -> None:
        """Reads each shard of the mapping's stream. A shard waits for the end of a parent that is listed."""
        stream = await self._find_stream_arn(mapping)
        if stream is None:
            return
        started: set[str] = set()
        async with asyncio.TaskGroup() as tasks:
            while True:
                for shard in await self._shards(stream):
                    parent = shard.get("ParentShardId")
                    waits = parent and parent in started and not self.positions.get(mapping.name, stream, parent).ended
                    if shard["ShardId"] not in started and not waits:
                        started.add(shard["ShardId"])
                        tasks.create_task(ShardReader(self, mapping, stream, shard["ShardId"]).run())
                await asyncio.sleep(LIST_SHARDS_S)

    async def _find_stream_arn(self, mapping: StreamMapping) -> str | None:
        try:
            described = await self.wire.call("dynamodb", "DescribeTable", TableName=mapping.table)
            arn = described["Table"].get("LatestStreamArn")
            if arn:
                await self.wire.call("streams", "DescribeStream", StreamArn=arn)
                return str(arn)
            reason = f"{mapping.table} has no stream"
        except WireError as error:
            reason = str(error)
        self.say(f"the engine's streams cannot be read ({reason}): {mapping.function} does not run for {mapping.table}")
        return None

    async def _shards(self, stream: str) -> list[dict[str, Any]]:
        """Returns all shards, parents first, as DynamoDB lists them. If the engine fails, returns the shards so far."""
        shards: list[dict[str, Any]] = []
        page_start: dict[str, str] | None = {}
        with contextlib.suppress(WireError):
            while page_start is not None:
                answer = await self.wire.call("streams", "DescribeStream", StreamArn=stream, **page_start)
                shards += answer["StreamDescription"].get("Shards", [])
                last = answer["StreamDescription"].get("LastEvaluatedShardId")
                page_start = {"ExclusiveStartShardId": last} if last else None
        return shards

    async def _write_positions(self) -> None:
        try:
            while True:
                await asyncio.sleep(WRITE_S)
                self.positions.write()
        finally:
            self.positions.write()

    def engine_stamp(self) -> object:
        """Returns time and size of the engine's write-ahead log, which nearly every write changes; None: not known."""
        with contextlib.suppress(OSError):
            if self.engine_file is not None:
                stat = self.engine_file.with_name(f"{self.engine_file.name}-wal").stat()
                return stat.st_mtime_ns, stat.st_size
        return None


class ShardReader:
    """Reads one shard for one mapping, and delivers the records."""

    def __init__(self, pump: Pump, mapping: StreamMapping, stream: str, shard: str) -> None:
        self._pump, self._mapping, self._stream, self._shard = pump, mapping, stream, shard
        self._arn = _arn(stream)
        position = pump.positions.get(mapping.name, stream, shard)
        self._buffer, self._ended = Buffer(mapping, position.sequence), position.ended
        self._iterator: str | None = None
        self._caught_up = self._should_pause = False  # the last read found no record; it found few
        self._last_stamp: object = None  # the engine's stamp before the last read, if that read found no records
        self._read_at_s = 0.0

    async def run(self) -> None:
        """Reads and delivers until the shard ends. Pauses until the batch window ends (`wait_s`), or for POLL_S."""
        failures = 0
        while not self._ended:
            try:
                await self._read_stream()
                failures = 0
            except WireError as error:
                self._iterator = None
                failures += 1
                if failures == 1 or failures % SAY_EVERY == 0:
                    self._pump.say(f"the stream of {self._mapping.table} cannot be read: {error}")
                await asyncio.sleep(_pause_s(failures))
                continue
            await self._deliver(batch := self._buffer.next_batch(time.time()))
            self._store_position()
            if not batch and self._should_pause and not self._ended:
                await asyncio.sleep(min(READ_ANYWAY_S, self._buffer.wait_s(time.time()) or POLL_S))

    async def _read_stream(self) -> None:
        """Reads once, if there may be new records and the buffer has room."""
        stamp, now_s = self._pump.engine_stamp(), time.monotonic()
        is_unchanged = stamp is not None and stamp == self._last_stamp and now_s - self._read_at_s < READ_ANYWAY_S
        if self._buffer.is_full or (self._caught_up and is_unchanged):
            return
        self._read_at_s = now_s
        if self._iterator is None:
            self._iterator = await self._first_iterator()
        request = {"ShardIterator": self._iterator, "Limit": READ_RECORDS_MAX}
        try:
            answer = await self._pump.wire.call("streams", "GetRecords", **request)
        except WireError as error:
            if error.kind != _TRIMMED:
                raise
            self._iterator, self._should_pause = await self._iterator_at(ShardIteratorType="TRIM_HORIZON"), True
            return
        records = answer.get("Records", [])
        self._buffer.add((to_lambda_record(record, self._arn) for record in records), time.time())
        self._caught_up = not records
        self._should_pause = len(records) < READ_RECORDS_MAX // 2  # a slow stream must not cost a read for each record
        self._last_stamp = stamp if not records else None
        self._iterator = answer.get("NextShardIterator")
        if self._iterator is None:  # the shard is closed and read to its end: deliver the rest at once
            while batch := self._buffer.next_batch(float("inf")):
                await self._deliver(batch)
            self._ended = True

    async def _first_iterator(self) -> str:
        """Returns an iterator after the position, or at the oldest record if the engine has trimmed the position."""
        if position := self._buffer.read_to:
            try:
                return await self._iterator_at(ShardIteratorType="AFTER_SEQUENCE_NUMBER", SequenceNumber=position)
            except WireError as error:
                if error.kind != _TRIMMED:
                    raise
        return await self._iterator_at(ShardIteratorType="TRIM_HORIZON")

    async def _iterator_at(self, **start: str) -> str:
        """Returns an iterator of the shard. TRIM_HORIZON is the oldest record that the engine still has."""
        start |= {"StreamArn": self._stream, "ShardId": self._shard}  # fields of GetShardIterator
        answer = await self._pump.wire.call("streams", "GetShardIterator", **start)
        return str(answer["ShardIterator"])

    def _store_position(self) -> None:
        sequence, mapping = self._buffer.position, self._mapping
        self._pump.positions.set(mapping.name, self._stream, self._shard, Position(sequence, self._ended))
        if sequence is not None:
            self._pump.progress.setdefault(mapping.table, {})[mapping.name] = sequence

    async def _deliver(self, batch: Sequence[Record]) -> None:
        """Delivers a batch until each record is done. If the function raises an error, delivers halves of the batch."""
        pending: deque[Sequence[Record]] = deque([batch] if batch else [])
        failures = 0
        while pending:
            while enabled := self._pump.disabled.get(self._mapping.name):
                await enabled.wait()
            records = pending.popleft()
            result = await self._invoke(records)
            if result.done:
                self._buffer.mark_done(result.done, time.time())
                self._store_position()
            if not result.error:
                failures = 0
                continue
            failures = 1 if result.done else failures + 1
            rest = records[result.done :]
            pending.extendleft(reversed(halves(rest)) if result.splits and len(rest) > 1 else [rest])
            if failures == 1 or failures % SAY_EVERY == 0:
                failure = f"{self._mapping.function} failed on {len(rest)} records of {self._mapping.table}"
                self._pump.say(f"{failure}, retrying: {result.error} (log {self._mapping.function}.log)")
            await asyncio.sleep(_pause_s(failures))

    async def _invoke(self, records: Sequence[Record]) -> BatchResult:
        payload = self._buffer.event(records, self._shard, self._arn, time.time())
        try:
            outcome = await self._pump.workers.invoke(self._mapping.function, payload)
        except ThrottledError as error:
            return BatchResult(0, error=str(error))
        if outcome.failed:
            return BatchResult(0, error=outcome.reason, splits=True)
        return read_answer(self._mapping, records, outcome.payload)


def to_lambda_record(record: Mapping[str, Any], arn: str) -> dict[str, Any]:
    """Returns the record as Lambda passes it on. If TTL removed the item, the stream says `PrincipalId` (GetRecords,
    shape Identity), and Lambda says `principalId`."""
    identity = {name[0].lower() + name[1:]: value for name, value in record.get("userIdentity", {}).items()}
    return {**record, "awsRegion": REGION, "eventSourceARN": arn} | ({"userIdentity": identity} if identity else {})


def _pause_s(failures: int) -> float:
    return min(RETRY_S_MAX, RETRY_FIRST_S * 2.0 ** min(failures - 1, 10))


def _arn(stream: str) -> str:
    """Returns a stream's ARN with the stack's region, because an engine's ARN has the engine's own region."""
    parts = stream.split(":")
    return ":".join([*parts[:3], REGION, *parts[4:]]) if len(parts) > 5 else stream
