"""A process that is one stream consumer: it reads both streams from the engine, and delivers as Lambda does.

At least once, in order, in batches of any size; again after an error, and after each restart from a place before the
end. The proxy stands between the consumer and the engine, not between the streams and this process.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import counters
from api.needs import Table
from api.unattended import StreamReader
from declarations import READERS
from dev.base.wire import WireError
from tally.streams import bookkeeper, rollup
from tally.streams.consumer import Handler
from tally.streams.dead_letters import Objects

from .stage import STREAMED, Raw, Stage, become

CONSUMERS = {"rollup": rollup.CONSUMER, "bookkeeper": bookkeeper.CONSUMER}
READ_RECORDS_MAX = 1000
POLL_S = 0.2
INVOCATION_S = 30.0
HORIZON_SHARE = 0.3  # of the starts that read the stream from its beginning; else from where the last process was
ODD_SHARE = 0.3  # of the batches end early
TWICE_SHARE = 0.05  # of the batches that are delivered again
PAUSE_S = 0.1  # after a failure


class Context:
    """A Lambda context."""

    aws_request_id = "soak"

    def __init__(self, seconds: float = INVOCATION_S) -> None:
        self._until_s = time.monotonic() + seconds

    def get_remaining_time_in_millis(self) -> int:
        """What is left of the invocation."""
        return int(1000 * (self._until_s - time.monotonic()))


class Folder:
    """Takes dead letters, as S3 does. There should be none."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def put_object(self, Key: str, Body: bytes, **_: Any) -> None:
        """Keep it."""
        (self._path / f"dead-letter-{Key.replace('/', '-')}").write_bytes(Body)


def consume(stage: Stage, name: str) -> None:
    """Be the consumer, until killed."""
    become(stage, name)
    objects = Objects("soak", make=lambda: Folder(stage.folder))
    handler = Handler(CONSUMERS[name], counters.COUNTERS, stage.store(stage.weather), objects)
    (declared,) = [one for one in READERS if one.function == name]
    threads = [threading.Thread(target=Delivery(stage, declared, handler, table).run) for table in STREAMED]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class Delivery:
    """One event source mapping."""

    def __init__(self, stage: Stage, declared: StreamReader, handler: Handler, table: str) -> None:
        self._raw = Raw(stage.engine)
        self._chance = random.Random()
        self._declared, self._handler, self._table = declared, handler, Table(table)
        self._stream = stage.stream(table)
        self._shard = self._raw.shard(self._stream)
        self._place = stage.folder / f"{declared.function}-{table}.place"

    def run(self) -> None:
        """Read and deliver without end."""
        iterator = self._start()
        while True:
            try:
                answer = self._raw.call("streams", "GetRecords", ShardIterator=iterator, Limit=READ_RECORDS_MAX)
            except WireError:
                time.sleep(PAUSE_S)
                iterator = self._start()
                continue
            iterator = answer["NextShardIterator"]
            records = answer["Records"]
            self._deliver([record for record in records if self._is_for(record)])
            if records:
                self._place.write_text(json.dumps(records[-1]["dynamodb"]["SequenceNumber"]))
            if len(records) < READ_RECORDS_MAX:
                time.sleep(POLL_S)

    def _start(self) -> str:
        """An iterator where the last process was, or at the beginning of what the stream still has."""
        named = {"StreamArn": self._stream, "ShardId": self._shard}
        if self._chance.random() > HORIZON_SHARE:
            try:
                after = {
                    "ShardIteratorType": "AFTER_SEQUENCE_NUMBER",
                    "SequenceNumber": json.loads(self._place.read_text()),
                }
                return str(self._raw.call("streams", "GetShardIterator", **named, **after)["ShardIterator"])
            except (OSError, ValueError, WireError):
                pass  # the first process; half a file; or the records are trimmed
        start = {"ShardIteratorType": "TRIM_HORIZON"}
        return str(self._raw.call("streams", "GetShardIterator", **named, **start)["ShardIterator"])

    def _is_for(self, record: Mapping[str, Any]) -> bool:
        """The mapping's filter."""
        kinds, start = self._declared.streams[self._table], self._declared.prefixes.get(self._table)
        if not kinds or record["eventName"] in kinds:
            return True
        return start is not None and bool(record["dynamodb"]["Keys"]["PK"]["S"].startswith(start))

    def _deliver(self, records: list[dict[str, Any]]) -> None:
        size = READ_RECORDS_MAX
        while records:
            odd = self._chance.random() < ODD_SHARE
            batch = records[: self._chance.randint(1, size) if odd else size]
            done = self._invoke(batch)
            size = READ_RECORDS_MAX
            if done < len(batch):
                size = len(batch) // 2 + 1
                time.sleep(PAUSE_S)
            elif self._chance.random() < TWICE_SHARE:
                self._invoke(batch)
            records = records[done:]

    def _invoke(self, batch: list[dict[str, Any]]) -> int:
        """How many of the records are done."""
        event = {"Records": batch, "shardId": self._shard, "eventSourceARN": self._stream}
        try:
            failures = self._handler(event, Context())["batchItemFailures"]
        except Exception as error:
            print(f"{self._table}: {error!r}", flush=True)
            return 0
        if not failures:
            return len(batch)
        left = failures[0]["itemIdentifier"]
        return next((at for at, one in enumerate(batch) if one["dynamodb"]["SequenceNumber"] == left), 0)


def sweep(stage: Stage) -> None:
    """Be the schedule of the sweep, until killed: one each minute of the ledger."""
    become(stage, "sweep")
    from operations import sweep as function

    swept = function.Sweep()  # it makes its client

    while True:
        began_s = time.monotonic()
        try:
            swept({}, Context())
        except Exception as error:
            print(f"sweep: {error!r}", flush=True)
        time.sleep(max(0.0, began_s + stage.minute_s - time.monotonic()))
