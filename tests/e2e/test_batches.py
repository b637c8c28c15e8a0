"""Tests how the stream pump of `make dev` makes batches, reads answers and reads mappings, without an engine."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tally.contract.deployment import DELIVERY
from tally.dev.base.errors import LocalError
from tally.dev.stack.mappings import StreamMapping, read_mapping
from tally.dev.streams.batches import Buffer, Record, read_answer

NOW_S = 1_000_020.0
RECORDS = [Record(str(number), "{}") for number in range(1, 5)]  # the sequence numbers 1 to 4
PLAIN_MAPPING = StreamMapping(name="m", table="t", function="f")
WINDOWED_MAPPING = replace(PLAIN_MAPPING, tumbling_window_s=60)


def record(number: int, text: str = "") -> dict[str, Any]:
    return {"eventName": "INSERT", "dynamodb": {"SequenceNumber": str(number), "NewImage": {"x": {"S": text}}}}


def buffer(**fields: Any) -> Buffer:
    return Buffer(replace(PLAIN_MAPPING, **fields))


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
    pending.add([record(number, "x" * 1_000_000) for number in range(1, 9)], NOW_S)
    batch = pending.next_batch(NOW_S)
    assert sequences(batch) == [1, 2, 3, 4, 5, 6]
    assert len(pending.event(batch, shard="s", arn="a", now_s=NOW_S)) <= 6 * 1024 * 1024


@pytest.mark.parametrize(
    ("answer", "done", "has_failed"),
    [
        ({"batchItemFailures": []}, 4, False),
        (None, 4, False),
        ({"batchItemFailures": [{"itemIdentifier": "3"}, {"itemIdentifier": "2"}]}, 1, True),
        ({"batchItemFailures": [{"itemIdentifier": ""}]}, 0, True),
        ({"batchItemFailures": [{"itemIdentifier": "9"}]}, 0, True),  # the batch has no such record
    ],
)
def test_a_batch_is_done_up_to_the_first_reported_failure(answer: object, done: int, has_failed: bool) -> None:
    result = read_answer(PLAIN_MAPPING, RECORDS, json.dumps(answer).encode())
    assert (result.done, bool(result.error)) == (done, has_failed)


@pytest.mark.parametrize("answer", [b"null", b"{}", b'{"state": 7}', b"no json"])
def test_a_batch_of_a_window_has_failed_and_is_split_if_the_answer_has_no_state(answer: bytes) -> None:
    result = read_answer(WINDOWED_MAPPING, RECORDS, answer)
    assert (result.done, result.splits, bool(result.error)) == (0, True, True)
    assert read_answer(WINDOWED_MAPPING, RECORDS, b'{"state": {}}').done == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"destination": "queue"}, 'rollupCounts has destination "queue"'),
        ({"parallel": 2}, "rollupCounts has parallel 2"),
        ({"bisects": False}, "rollupCounts has bisects false"),
        ({"retries": 3}, "rollupCounts has retries 3"),
        ({"filters": [{"a": [{"suffix": "x"}]}]}, "the filter"),
        ({"filters": [{"a": "x"}]}, "the filter"),
    ],
)
def test_a_mapping_is_refused_if_the_pump_does_not_support_a_setting(change: dict[str, Any], message: str) -> None:
    mapping = {"name": "rollupCounts", "table": "t", "function": "rollup", "filters": [], **DELIVERY._asdict()}
    assert read_mapping(mapping).batch_records == DELIVERY.batch_records
    with pytest.raises(LocalError, match=message):
        read_mapping(mapping | change)


@pytest.mark.parametrize(
    ("window_s", "minute_s", "scaled_s"), [(30, 3, 1.5), (30, 60, 30), (30, 1, 1), (1, 3, 1), (0, 3, 0)]
)
def test_a_batch_window_scales_with_the_minute_down_to_one_second(
    window_s: float, minute_s: int, scaled_s: float
) -> None:
    mapping = {"name": "rollupCounts", "table": "t", "function": "rollup", "filters": [], **DELIVERY._asdict()}
    assert read_mapping({**mapping, "batch_window_s": window_s}).scaled_to(minute_s).batch_window_s == scaled_s
