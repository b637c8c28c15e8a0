"""Makes batches and events of a stream shard, and reads a function's answers. Nothing here waits.

Tally's functions use a tumbling window only because its events name the shard. The functions keep no state in the
window, so the pump never ends a window.

Source: "Using AWS Lambda with Amazon DynamoDB" in Lambda's developer guide: batching, windows, partial batch responses.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..stack.mappings import StreamMapping

PAYLOAD_BYTES_MAX = 6 * 1024 * 1024  # of an invocation with its records
ENVELOPE_BYTES = 2_000  # of the event without its records, at most


@dataclass(frozen=True)
class Record:
    """A stream record, as JSON text for the event."""

    sequence: str
    text: str


@dataclass(frozen=True)
class BatchResult:
    """How a batch ended. `done`: how many records succeeded before the first failure. `error`: its reason, or empty."""

    done: int
    error: str = ""
    splits: bool = False
    """Whether the whole batch failed, so that one of its halves may succeed."""


class Buffer:
    """The records of one shard that were read and are not done."""

    def __init__(self, mapping: StreamMapping, position: str | None = None) -> None:
        self.mapping = mapping
        self._position = self.read_to = position
        """Sequence numbers, or None: `_position` of the last record that is done, `read_to` of the last record read."""
        self._records: deque[Record] = deque()
        self._bytes = 0
        self._batch_window_began_s = 0.0

    @property
    def position(self) -> str | None:
        """The sequence number up to which every record is done. None: no record is done."""
        return self._position if self._records else self.read_to

    @property
    def is_full(self) -> bool:
        """Whether the buffer has a whole batch, so that reading can wait."""
        return len(self._records) >= self.mapping.batch_records or self._bytes >= PAYLOAD_BYTES_MAX

    def add(self, records: Iterable[Mapping[str, Any]], now_s: float) -> None:
        """Add records from the stream. A record that the filters drop is done at once."""
        for record in records:
            sequence = str(record["dynamodb"]["SequenceNumber"])
            if self.mapping.takes(record):
                if not self._records:
                    self._batch_window_began_s = now_s
                    self._position = self.read_to
                buffered = Record(sequence, json.dumps(record, separators=(",", ":")))
                self._records.append(buffered)
                self._bytes += len(buffered.text)
            self.read_to = sequence

    def next_batch(self, now_s: float) -> list[Record]:
        """Returns the records of the next invocation, or no records if no invocation is due."""
        bytes_left, batch = PAYLOAD_BYTES_MAX - ENVELOPE_BYTES, list[Record]()
        for record in self._records:
            bytes_left -= len(record.text) + 1
            if batch and bytes_left < 0:
                return batch
            batch.append(record)
            if len(batch) == self.mapping.batch_records:
                return batch
        return [] if self.wait_s(now_s) else batch

    def wait_s(self, now_s: float) -> float:
        """Returns the time until the batch window of the records ends. 0: it has ended, or there are no records."""
        return max(0.0, self._batch_window_began_s + self.mapping.batch_window_s - now_s) if self._records else 0.0

    def mark_done(self, count: int, now_s: float) -> None:
        """Mark the first `count` records as done."""
        for _ in range(count):
            record = self._records.popleft()
            self._bytes -= len(record.text)
            self._position = record.sequence
        self._batch_window_began_s = now_s

    def event(self, records: Sequence[Record], shard: str, arn: str, now_s: float) -> bytes:
        """Returns the event of a batch, or of a part of it."""
        text = f'{{"Records":[{",".join(record.text for record in records)}]'
        if length_s := self.mapping.tumbling_window_s:
            start_s = int(now_s) // length_s * length_s
            window = {
                "window": {"start": _format_instant(start_s), "end": _format_instant(start_s + length_s)},
                "state": {},
                "shardId": shard,
                "eventSourceARN": arn,
                "isFinalInvokeForWindow": False,
                "isWindowTerminatedEarly": False,
            }
            text += f",{json.dumps(window)[1:-1]}"
        return f"{text}}}".encode()


def read_answer(mapping: StreamMapping, records: Sequence[Record], payload: bytes) -> BatchResult:
    """Returns how a batch ended, by the answer of a function that did not fail."""
    try:
        answer = json.loads(payload)
    except ValueError:
        return BatchResult(0, error="its answer is not JSON", splits=True)
    if mapping.tumbling_window_s and not (isinstance(answer, dict) and isinstance(answer.get("state"), dict)):
        return BatchResult(0, error="its answer has no state, which a tumbling window needs", splits=True)
    failures = answer.get("batchItemFailures") if isinstance(answer, dict) else None
    if not failures:
        return BatchResult(len(records))
    order = {record.sequence: place for place, record in enumerate(records)}
    entries = failures if isinstance(failures, list) else [None]
    failed: list[Any] = [entry.get("itemIdentifier") if isinstance(entry, dict) else None for entry in entries]
    if not all(isinstance(sequence, str) and sequence in order for sequence in failed):
        return BatchResult(0, error="it reported a failure without a sequence number of the batch")
    done = min(map(order.__getitem__, failed))
    return BatchResult(done, error=f"it reported record {records[done].sequence} as failed")


def halves(records: Sequence[Record]) -> list[Sequence[Record]]:
    """Returns the two halves, in order."""
    middle = len(records) // 2
    return [records[:middle], records[middle:]]


def _format_instant(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
