"""Batches, tumbling windows and events of a stream shard, and the meaning of an answer. Nothing here waits.

Source: "Using AWS Lambda with Amazon DynamoDB" in Lambda's developer guide: batching, windows, partial batch responses.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..stack.mappings import StreamMapping

PAYLOAD_BYTES_MAX = 6 * 1024 * 1024  # of an invocation with its records
ENVELOPE_BYTES = 2_000  # of the event beside records and state, at most
WINDOW_GRACE_S = 2.0  # lets the records of a window's last second arrive; Lambda waits up to two minutes
State = dict[str, Any]


@dataclass(frozen=True)
class Record:
    """A stream record, as JSON text for the event."""

    sequence: str
    created_s: float
    text: str


@dataclass
class Window:
    """An open tumbling window and the state that the function carries through it. Times in seconds since 1970."""

    start_s: int
    end_s: int
    state: State = field(default_factory=dict)


@dataclass(frozen=True)
class Step:
    """One invocation to make: a batch, or the end of a window."""

    records: tuple[Record, ...]
    final: bool = False


@dataclass(frozen=True)
class Verdict:
    """The meaning of an answer: how many records are done, from the first, and the error of the next, if any."""

    done: int
    state: State = field(default_factory=dict)
    error: str = ""
    splits: bool = False
    """Whether the whole batch failed, so that one of its halves may succeed."""


class Buffer:
    """The records of one shard that are read and not done, and their window."""

    def __init__(self, mapping: StreamMapping, position: str | None = None, window: Window | None = None) -> None:
        self.mapping = mapping
        self.window = window
        self._position = self.read_to = position
        """`read_to`: the sequence number to continue after."""
        self._records: deque[Record] = deque()
        self._bytes = 0
        self._since_s = 0.0

    @property
    def position(self) -> str | None:
        """Everything up to this sequence number is done. None: nothing is done."""
        return self._position if self._records else self.read_to

    @property
    def full(self) -> bool:
        """Whether it holds a whole batch, so that reading can wait."""
        return len(self._records) >= self.mapping.batch_records or self._bytes >= PAYLOAD_BYTES_MAX

    def add(self, records: Iterable[Mapping[str, Any]], now_s: float) -> None:
        """Add records from the stream. A record that the filters drop is done at once."""
        for record in records:
            sequence = str(record["dynamodb"]["SequenceNumber"])
            if self.mapping.takes(record):
                if not self._records:
                    self._since_s = now_s
                    self._position = self.read_to
                created_s = float(record["dynamodb"].get("ApproximateCreationDateTime", now_s))
                made = Record(sequence, created_s, json.dumps(record, separators=(",", ":")))
                self._records.append(made)
                self._bytes += len(made.text)
            self.read_to = sequence

    def next_step(self, now_s: float, caught_up: bool) -> Step | None:
        """The next invocation, if one is due. `caught_up`: the last read of the stream returned nothing."""
        if self.window:
            over = caught_up and not self._records and now_s >= self.window.end_s + WINDOW_GRACE_S
            if over or (self._records and self._records[0].created_s >= self.window.end_s):
                return Step((), final=True)
        if not self._records:
            return None
        if self.mapping.tumbling_window_s and self.window is None:
            length_s = self.mapping.tumbling_window_s
            start_s = int(self._records[0].created_s) // length_s * length_s
            self.window = Window(start_s, start_s + length_s)
        batch, cut = self._batch()
        waited = now_s - self._since_s >= self.mapping.batch_window_s
        return Step(tuple(batch)) if cut or waited else None

    def _batch(self) -> tuple[list[Record], bool]:
        """The records of the next batch, and whether it is full."""
        left = PAYLOAD_BYTES_MAX - ENVELOPE_BYTES - (len(json.dumps(self.window.state)) if self.window else 0)
        batch: list[Record] = []
        for record in self._records:
            left -= len(record.text) + 1
            beyond = self.window is not None and record.created_s >= self.window.end_s
            if batch and (left < 0 or beyond):
                return batch, True
            batch.append(record)
            if len(batch) == self.mapping.batch_records:
                return batch, True
        return batch, False

    def done(self, count: int, now_s: float) -> None:
        """Mark the first `count` records as done."""
        for _ in range(count):
            record = self._records.popleft()
            self._bytes -= len(record.text)
            self._position = record.sequence
        self._since_s = now_s

    def event(self, step: Step, records: Sequence[Record], shard: str, arn: str) -> bytes:
        """The event of a step, with some or all of its records."""
        made = f'{{"Records":[{",".join(record.text for record in records)}]'
        if self.window is not None:
            more = {
                "window": {"start": _instant(self.window.start_s), "end": _instant(self.window.end_s)},
                "state": self.window.state,
                "shardId": shard,
                "eventSourceARN": arn,
                "isFinalInvokeForWindow": step.final,
                "isWindowTerminatedEarly": False,
            }
            made += f",{json.dumps(more)[1:-1]}"
        return f"{made}}}".encode()


def judge(mapping: StreamMapping, records: Sequence[Record], payload: bytes) -> Verdict:
    """The meaning of the answer of a function that did not fail."""
    try:
        answer = json.loads(payload)
    except ValueError:
        return Verdict(0, error="its answer is not JSON", splits=True)
    state = answer.get("state") if isinstance(answer, dict) else None
    if mapping.tumbling_window_s and not isinstance(state, dict):
        return Verdict(0, error="its answer has no state, which a tumbling window needs", splits=True)
    found = state if isinstance(state, dict) else {}
    failures = answer.get("batchItemFailures") if isinstance(answer, dict) else None
    if not failures:
        return Verdict(len(records), found)
    order = {record.sequence: place for place, record in enumerate(records)}
    places = [_place(entry, order) for entry in failures] if isinstance(failures, list) else [None]
    if None in places:
        return Verdict(0, error="it reported a failure without a sequence number of the batch")
    done = min(place for place in places if place is not None)
    return Verdict(done, found, error=f"it reported record {records[done].sequence} as failed")


def _place(entry: object, order: Mapping[str, int]) -> int | None:
    named = entry.get("itemIdentifier") if isinstance(entry, dict) else None
    return order.get(named) if isinstance(named, str) else None


def halves(records: Sequence[Record]) -> list[Sequence[Record]]:
    """The two halves, in order."""
    middle = len(records) // 2
    return [records[:middle], records[middle:]]


def _instant(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
