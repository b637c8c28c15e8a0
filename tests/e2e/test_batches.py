"""Batches, events and answers: pure functions of records and time."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dev.base.errors import LocalError
from dev.stack.mappings import StreamMapping, matches, read_mapping
from dev.streams.batches import Buffer, Record, halves, judge

NOW_S = 1_000_020.0
RECORDS = [Record(str(number), "{}") for number in range(1, 5)]
REPORTS = StreamMapping("m", "t", "f")
WINDOWED = StreamMapping("m", "t", "f", tumbling_window_s=60)


def record(number: int, event_name: str = "INSERT", more: str = "") -> dict[str, Any]:
    return {"eventName": event_name, "dynamodb": {"SequenceNumber": str(number), "NewImage": {"x": {"S": more}}}}


def buffer(**fields: Any) -> Buffer:
    return Buffer(StreamMapping("m", "t", "f", **fields))


def sequences(found: list[Record]) -> list[int]:
    return [int(entry.sequence) for entry in found]


def test_a_batch_waits_for_its_window_unless_it_is_full() -> None:
    made = buffer(batch_records=3, batch_window_s=1)
    made.add([record(1), record(2)], NOW_S)
    assert made.next_batch(NOW_S + 0.9) == []
    assert sequences(made.next_batch(NOW_S + 1)) == [1, 2]
    made.add([record(3), record(4)], NOW_S)
    assert sequences(made.next_batch(NOW_S)) == [1, 2, 3]


def test_a_batch_holds_no_more_than_six_megabytes() -> None:
    made = buffer(batch_records=100, batch_window_s=60)
    made.add([record(number, more="x" * 1_000_000) for number in range(1, 9)], NOW_S)
    batch = made.next_batch(NOW_S)
    assert sequences(batch) == [1, 2, 3, 4, 5, 6]
    assert len(made.event(batch, "s", "a", NOW_S)) <= 6 * 1024 * 1024


def test_dropped_records_are_passed_in_order() -> None:
    made = buffer(filters=({"eventName": ["INSERT"]},))
    made.add([record(1, "REMOVE")], NOW_S)
    assert (made.next_batch(NOW_S), made.position) == ([], "1")
    made.add([record(2), record(3, "REMOVE")], NOW_S)
    assert made.position == "1"
    assert sequences(made.next_batch(NOW_S)) == [2]
    made.done(1, NOW_S)
    assert made.position == "3"


def test_the_event_of_a_window_names_its_shard() -> None:
    event = json.loads(Buffer(WINDOWED).event(RECORDS, "shard", "arn:x", NOW_S))
    assert event == {
        "Records": [{}] * 4,
        "window": {"start": "1970-01-12T13:47:00Z", "end": "1970-01-12T13:48:00Z"},
        "state": {},
        "shardId": "shard",
        "eventSourceARN": "arn:x",
        "isFinalInvokeForWindow": False,
        "isWindowTerminatedEarly": False,
    }


@pytest.mark.parametrize(
    ("answer", "done", "fails"),
    [
        ({"batchItemFailures": []}, 4, False),
        ({"batchItemFailures": None}, 4, False),
        (None, 4, False),
        ({}, 4, False),
        ({"batchItemFailures": [{"itemIdentifier": "3"}, {"itemIdentifier": "2"}]}, 1, True),
        ({"batchItemFailures": [{"itemIdentifier": ""}]}, 0, True),
        ({"batchItemFailures": [{"itemIdentifier": None}]}, 0, True),
        ({"batchItemFailures": [{"itemIdentifier": "9"}]}, 0, True),
        ({"batchItemFailures": [{"itemIdentifier": 2}]}, 0, True),
        ({"batchItemFailures": [{"badName": "2"}]}, 0, True),
        ({"batchItemFailures": "all"}, 0, True),
    ],
)
def test_partial_failures_are_from_the_lowest_sequence_number(answer: object, done: int, fails: bool) -> None:
    verdict = judge(REPORTS, RECORDS, json.dumps(answer).encode())
    assert (verdict.done, bool(verdict.error)) == (done, fails)


@pytest.mark.parametrize("answer", [b"null", b"{}", b'{"state": 7}', b"no json"])
def test_a_window_without_a_state_in_the_answer_has_failed(answer: bytes) -> None:
    verdict = judge(WINDOWED, RECORDS, answer)
    assert (verdict.done, verdict.splits, bool(verdict.error)) == (0, True, True)
    assert judge(WINDOWED, RECORDS, b'{"state": {}}').done == 4


def test_halves_are_in_order() -> None:
    assert [[entry.sequence for entry in half] for half in halves(RECORDS[:3])] == [["1"], ["2", "3"]]


@pytest.mark.parametrize(
    ("pattern", "does"),
    [
        ({"eventName": ["INSERT", "MODIFY"]}, True),
        ({"eventName": ["REMOVE"]}, False),
        ({"eventName": ["INSERT"], "dynamodb": {"NewImage": {"x": {"S": ["a"]}}}}, True),
        ({"dynamodb": {"NewImage": {"x": {"S": ["b"]}}}}, False),
        ({"dynamodb": {"OldImage": {"x": {"S": ["a"]}}}}, False),
        ({"eventName": {"x": ["a"]}}, False),
        ({"eventName": [{"prefix": "INS"}]}, True),
        ({"eventName": [{"prefix": "ins"}]}, False),
        ({"eventName": [{"prefix": "NSERT"}]}, False),
        ({"eventName": ["REMOVE", {"prefix": "I"}]}, True),
        ({"dynamodb": {"NewImage": {"x": {"S": [{"prefix": "a"}]}}}}, True),
        ({"dynamodb": {"NewImage": {"x": {"N": [{"prefix": "a"}]}}}}, False),
        ({"dynamodb": {"NewImage": [{"prefix": "a"}]}}, False),
    ],
)
def test_a_filter_wants_one_of_its_values_in_every_field(pattern: dict[str, Any], does: bool) -> None:
    assert matches(pattern, record(1, more="a")) is does
    assert not matches({"eventName": [True]}, {"eventName": 1})


PROPERTIES: dict[str, Any] = {
    "StartingPosition": "TRIM_HORIZON",
    "BisectBatchOnFunctionError": True,
    "FunctionResponseTypes": ["ReportBatchItemFailures"],
}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"DestinationConfig": {}}, "M has DestinationConfig"),
        ({"ParallelizationFactor": 2}, "M has ParallelizationFactor 2"),
        ({"Enabled": False}, "M has Enabled false"),
        ({"StartingPosition": "LATEST"}, 'M has StartingPosition "LATEST"'),
        ({"MaximumRetryAttempts": 3}, "M has MaximumRetryAttempts 3"),
        ({"BisectBatchOnFunctionError": False}, "M has BisectBatchOnFunctionError false"),
        ({"FunctionResponseTypes": []}, "FunctionResponseTypes"),
        ({"FilterCriteria": {"Filters": [{"Pattern": "no json"}]}}, "the filter"),
        ({"FilterCriteria": {"Filters": [{"Pattern": '{"a": [{"suffix": "x"}]}'}]}}, "the filter"),
        ({"FilterCriteria": {"Filters": [{"Pattern": '{"a": [{"prefix": 7}]}'}]}}, "the filter"),
        ({"FilterCriteria": {"Filters": [{"Pattern": '{"a": [{"prefix": "x", "suffix": "y"}]}'}]}}, "the filter"),
        ({"FilterCriteria": {"Filters": [{"Pattern": '{"a": "x"}'}]}}, "the filter"),
        ({"FilterCriteria": {"Filters": [{}]}}, "the filter"),
    ],
)
def test_a_property_without_emulation_is_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(LocalError, match=says):
        read_mapping("M", PROPERTIES | change, "t", "f")


def test_a_mapping_has_lambdas_defaults() -> None:
    assert read_mapping("M", PROPERTIES, "t", "f") == StreamMapping("M", "t", "f", batch_records=100)
