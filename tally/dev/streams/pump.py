"""Reads the engine's streams and invokes functions as the stack's event source mappings say.

A task reads each shard of each mapping, one batch at a time and in order. It retries a failed batch without end, in
halves, as Lambda does.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..base.account import REGION
from ..base.wire import Wire, WireError
from ..functions.workers import LocalFunction, ThrottledError
from ..stack.mappings import StreamMapping
from .batches import BatchResult, Buffer, Record, halves, read_answer
from .positions import Position, Positions
from .switches import Switches

POLL_S = 0.25  # between two reads of a shard that had no more, as at Lambda; longer while records wait for their window
LOOK_ANYWAY_S = 1.0  # read even if the engine's file is unchanged: a file's time has steps of milliseconds
READ_RECORDS_MAX = 1_000  # of one read, DynamoDB's quota
SHARDS_LOOK_S = 10.0  # between two looks for new shards; the embedded engine has one a table
WRITE_S = 0.5  # between two writes of the positions; a kill replays the records since the last
RETRY_FIRST_S, RETRY_S_MAX = 0.1, 5.0  # between attempts: a broken consumer must not spin
SAY_EVERY = 20  # print the first failure of a batch, then each twentieth
_TRIMMED = "TrimmedDataAccessException"  # of a position, or only when its iterator is used
Say = Callable[[str], None]


@dataclass
class Pump:
    """The event source mappings of a stack. Use it from one event loop."""

    mappings: Sequence[StreamMapping]
    functions: Mapping[str, LocalFunction]
    wire: Wire
    positions: Positions
    say: Say
    switches: Switches = field(default_factory=Switches)
    engine_log: Path | None = None
    """A file that changes with every write of the engine. While it does not, the pump reads less often."""
    tasks: asyncio.TaskGroup = field(init=False)
    following: list[tuple[StreamMapping, asyncio.Task[None]]] = field(default_factory=list)
    progress: dict[str, dict[str, str]] = field(default_factory=dict)
    """By table and mapping: everything up to this sequence number is done, in the shard of the last read."""

    def passed(self) -> dict[str, int]:
        """By table: the sequence number that all its mappings have passed. Not for a table that one has not read, nor
        for a person's own: others may read its stream, too."""
        wanted = Counter(mapping.table for mapping in self.mappings if mapping.counters is None)
        return {
            table: min(map(int, places.values()))
            for table, places in self.progress.items()
            if len(places) == wanted[table]
        }

    async def run(self) -> None:
        """Run until cancelled. Report an engine without streams, and wait."""
        async with asyncio.TaskGroup() as tasks:
            self.tasks = tasks
            self.follow(self.mappings)
            tasks.create_task(self._write())

    def follow(self, mappings: Sequence[StreamMapping]) -> None:
        """Follow these mappings from now on, and no others. Not before `run`."""
        self.mappings = mappings
        for one, task in self.following:
            if one not in mappings:
                task.cancel()
        kept = [(one, task) for one, task in self.following if one in mappings]
        known = [one for one, _ in kept]
        new = [(one, self.tasks.create_task(self._follow(one))) for one in mappings if one not in known]
        self.following = kept + new

    async def _follow(self, mapping: StreamMapping) -> None:
        stream = await self._stream(mapping)
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
                await asyncio.sleep(SHARDS_LOOK_S)

    async def _stream(self, mapping: StreamMapping) -> str | None:
        try:
            described = await self.wire.call("dynamodb", "DescribeTable", TableName=mapping.table)
            arn = described["Table"].get("LatestStreamArn")
            if arn:
                await self.wire.call("streams", "DescribeStream", StreamArn=arn)
                return str(arn)
            reason = f"{mapping.table} has none"
        except WireError as error:
            reason = str(error)
        self.say(f"the engine's streams cannot be read ({reason}): {mapping.function} does not run for {mapping.table}")
        return None

    async def _shards(self, stream: str) -> list[dict[str, Any]]:
        """All shards, parents first, as DynamoDB lists them. None if the engine does not answer."""
        shards: list[dict[str, Any]] = []
        more: dict[str, str] | None = {}
        with contextlib.suppress(WireError):
            while more is not None:
                answer = await self.wire.call("streams", "DescribeStream", StreamArn=stream, **more)
                shards += answer["StreamDescription"].get("Shards", [])
                last = answer["StreamDescription"].get("LastEvaluatedShardId")
                more = {"ExclusiveStartShardId": last} if last else None
        return shards

    async def _write(self) -> None:
        try:
            while True:
                await asyncio.sleep(WRITE_S)
                self.positions.write()
        finally:
            self.positions.write()

    def engine_stamp(self) -> object:
        """A value that differs after each write of the engine; None if the file is unknown."""
        with contextlib.suppress(OSError):
            if self.engine_log is not None:
                stat = self.engine_log.stat()
                return stat.st_mtime_ns, stat.st_size
        return None


class ShardReader:
    """One shard of one mapping."""

    def __init__(self, pump: Pump, mapping: StreamMapping, stream: str, shard: str) -> None:
        self._pump, self._mapping, self._stream, self._shard = pump, mapping, stream, shard
        self._arn = _arn(stream)
        place = pump.positions.get(mapping.name, stream, shard)
        self._buffer = Buffer(mapping, place.sequence)
        self._ended = place.ended
        self._iterator: str | None = None
        self._caught_up = self._pauses = False
        self._seen: object = None
        self._looked_s = 0.0

    async def run(self) -> None:
        """Read and deliver until the shard ends."""
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
            batch = self._buffer.next_batch(time.time())
            await self._deliver(batch)
            self._store_position()
            if not batch and self._pauses and not self._ended:
                await asyncio.sleep(min(LOOK_ANYWAY_S, self._buffer.wait_s(time.time()) or POLL_S))

    async def _read_stream(self) -> None:
        """Read once, if there may be new records and the buffer has room."""
        seen, now_s = self._pump.engine_stamp(), time.monotonic()
        idle = seen is not None and seen == self._seen and now_s - self._looked_s < LOOK_ANYWAY_S
        if self._buffer.is_full or (self._caught_up and idle):
            return
        self._looked_s = now_s
        if self._iterator is None:
            self._iterator = await self._first_iterator()
        asked = {"ShardIterator": self._iterator, "Limit": READ_RECORDS_MAX}
        try:
            answer = await self._pump.wire.call("streams", "GetRecords", **asked)
        except WireError as error:
            if error.kind != _TRIMMED:
                raise
            self._iterator, self._pauses = await self._iterator_at(ShardIteratorType="TRIM_HORIZON"), True
            return
        records = answer.get("Records", [])
        self._buffer.add((to_lambda_record(record, self._arn) for record in records), time.time())
        self._caught_up = not records
        self._pauses = len(records) < READ_RECORDS_MAX // 2  # do not read a trickle record by record
        self._seen = seen if not records else None
        self._iterator = answer.get("NextShardIterator")
        if self._iterator is None:  # the shard is closed, and this was its end: deliver the rest
            while batch := self._buffer.next_batch(float("inf")):
                await self._deliver(batch)
            self._ended = True

    async def _first_iterator(self) -> str:
        """An iterator at the position, or at the horizon if the engine has trimmed the position away."""
        if position := self._buffer.read_to:
            try:
                return await self._iterator_at(ShardIteratorType="AFTER_SEQUENCE_NUMBER", SequenceNumber=position)
            except WireError as error:
                if error.kind != _TRIMMED:
                    raise
        return await self._iterator_at(ShardIteratorType="TRIM_HORIZON")

    async def _iterator_at(self, **where: str) -> str:
        """An iterator there; TRIM_HORIZON is the oldest record that the engine still has."""
        named = {"StreamArn": self._stream, "ShardId": self._shard, **where}
        answer = await self._pump.wire.call("streams", "GetShardIterator", **named)
        return str(answer["ShardIterator"])

    def _store_position(self) -> None:
        position = self._buffer.position
        place = Position(position, self._ended)
        self._pump.positions.set(self._mapping.name, self._stream, self._shard, place)
        if position is not None:
            self._pump.progress.setdefault(self._mapping.table, {})[self._mapping.name] = position

    async def _deliver(self, batch: Sequence[Record]) -> None:
        """Deliver a batch, in parts if need be, until each record is done."""
        pending: deque[Sequence[Record]] = deque([batch] if batch else [])
        failures = 0
        while pending:
            await self._pump.switches.wait(self._mapping.name)
            records = pending.popleft()
            verdict = await self._invoke(records)
            if verdict.done:
                self._buffer.mark_done(verdict.done, time.time())
                self._store_position()
            if not verdict.error:
                failures = 0
                continue
            failures = 1 if verdict.done else failures + 1
            rest = records[verdict.done :]
            pending.extendleft(reversed(halves(rest)) if verdict.splits and len(rest) > 1 else [rest])
            self._report(failures, rest, verdict.error)
            await asyncio.sleep(_pause_s(failures))

    def _report(self, failures: int, records: Sequence[Record], error: str) -> None:
        if failures == 1 or failures % SAY_EVERY == 0:
            self._pump.say(
                f"{self._mapping.function} failed on {len(records)} records of {self._mapping.table}, retrying: {error}"
                f" (log {self._mapping.function}.log)"
            )

    async def _invoke(self, records: Sequence[Record]) -> BatchResult:
        payload = self._buffer.event(records, self._shard, self._arn, time.time())
        try:
            outcome = await self._pump.functions[self._mapping.function].invoke(payload)
        except ThrottledError as error:
            return BatchResult(0, error=str(error))
        if outcome.failed:
            return BatchResult(0, error=outcome.reason, splits=True)
        return read_answer(self._mapping, records, outcome.payload)


def to_lambda_record(record: Mapping[str, Any], arn: str) -> dict[str, Any]:
    """The record as Lambda passes it on.

    Of an item that TTL removed, the stream says `PrincipalId` (GetRecords, shape Identity), and Lambda `principalId`.
    """
    who = {name[0].lower() + name[1:]: value for name, value in record.get("userIdentity", {}).items()}
    return {**record, "awsRegion": REGION, "eventSourceARN": arn} | ({"userIdentity": who} if who else {})


def _pause_s(failures: int) -> float:
    return min(RETRY_S_MAX, RETRY_FIRST_S * 2.0 ** min(failures - 1, 10))


def _arn(stream: str) -> str:
    """A stream's ARN with the stack's region: engines use a region of their own."""
    parts = stream.split(":")
    return ":".join([*parts[:3], REGION, *parts[4:]]) if len(parts) > 5 else stream
