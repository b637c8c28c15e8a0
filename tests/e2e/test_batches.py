"""Tests batches, answers and mappings of `make dev`'s stream pump: functions of records and time alone."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tally.contract.deployment import DELIVERY
from tally.dev.base.errors import LocalError
from tally.dev.stack.mappings import StreamMapping, read_mapping
from tally.dev.streams.batches import Buffer, Record, read_answer

NOW_S = 1_000_020.0
RECORDS = [Record(str(number), "{}") for number in range(1, 5)]
PLAIN_MAPPING = StreamMapping("m", "t", "f")
WINDOWED_MAPPING = StreamMapping("m", "t", "f", tumbling_window_s=60)


def record(number: int, event_name: str = "INSERT", more: str = "") -> dict[str, Any]:
    return {"eventName": event_name, "dynamodb": {"SequenceNumber": str(number), "NewImage": {"x": {"S": more}}}}


def buffer(**fields: Any) -> Buffer:
    return Buffer(StreamMapping("m", "t", "f", **fields))


def sequences(records: list[Record]) -> list[int]:
    return [int(record.sequence) for record in records]


def test_a_batch_waits_for_its_window_unless_it_is_full() -> None:
    pending = buffer(batch_records=3, batch_window_s=1)
    assert pending.wait_s(NOW_S) == 0
    pending.add([record(1), record(2)], NOW_S)
    assert (pending.next_batch(NOW_S + 0.75), pending.wait_s(NOW_S + 0.75)) == ([], 0.25)
    assert (sequences(pending.next_batch(NOW_S + 1)), pending.wait_s(NOW_S + 1)) == ([1, 2], 0)
    pending.add([record(3), record(4)], NOW_S)
    assert sequences(pending.next_batch(NOW_S)) == [1, 2, 3]


def test_a_batch_has_at_most_six_megabytes() -> None:
    pending = buffer(batch_records=100, batch_window_s=60)
    pending.add([record(number, more="x" * 1_000_000) for number in range(1, 9)], NOW_S)
    batch = pending.next_batch(NOW_S)
    assert sequences(batch) == [1, 2, 3, 4, 5, 6]
    assert len(pending.event(batch, "s", "a", NOW_S)) <= 6 * 1024 * 1024


@pytest.mark.parametrize(
    ("answer", "done", "fails"),
    [
        ({"batchItemFailures": []}, 4, False),
        (None, 4, False),
        ({"batchItemFailures": [{"itemIdentifier": "3"}, {"itemIdentifier": "2"}]}, 1, True),
        ({"batchItemFailures": [{"itemIdentifier": ""}]}, 0, True),
        ({"batchItemFailures": [{"itemIdentifier": "9"}]}, 0, True),
    ],
)
def test_partial_failures_are_from_the_lowest_sequence_number(answer: object, done: int, fails: bool) -> None:
    verdict = read_answer(PLAIN_MAPPING, RECORDS, json.dumps(answer).encode())
    assert (verdict.done, bool(verdict.error)) == (done, fails)


@pytest.mark.parametrize("answer", [b"null", b"{}", b'{"state": 7}', b"no json"])
def test_a_window_without_a_state_in_the_answer_has_failed(answer: bytes) -> None:
    verdict = read_answer(WINDOWED_MAPPING, RECORDS, answer)
    assert (verdict.done, verdict.splits, bool(verdict.error)) == (0, True, True)
    assert read_answer(WINDOWED_MAPPING, RECORDS, b'{"state": {}}').done == 4


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"destination": "queue"}, 'rollupCounts has destination "queue"'),
        ({"parallel": 2}, "rollupCounts has parallel 2"),
        ({"bisects": False}, "rollupCounts has bisects false"),
        ({"retries": 3}, "rollupCounts has retries 3"),
        ({"filters": [{"a": [{"suffix": "x"}]}]}, "the filter"),
        ({"filters": [{"a": "x"}]}, "the filter"),
    ],
)
def test_a_mapping_with_a_setting_that_the_pump_lacks_is_refused(change: dict[str, Any], says: str) -> None:
    mapping = {"name": "rollupCounts", "table": "t", "function": "rollup", "filters": [], **DELIVERY._asdict()}
    assert read_mapping(mapping).batch_records == DELIVERY.batch_records
    with pytest.raises(LocalError, match=says):
        read_mapping(mapping | change)


@pytest.mark.parametrize(
    ("window_s", "minute_s", "scaled_s"), [(30, 3, 1.5), (30, 60, 30), (30, 1, 1), (1, 3, 1), (0, 3, 0)]
)
def test_a_batch_window_scales_with_the_minute_but_a_window_of_a_second_stays(
    window_s: float, minute_s: int, scaled_s: float
) -> None:
    mapping = {"name": "rollupCounts", "table": "t", "function": "rollup", "filters": [], **DELIVERY._asdict()}
    assert read_mapping({**mapping, "batch_window_s": window_s}).scaled_to(minute_s).batch_window_s == scaled_s
