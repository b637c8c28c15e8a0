"""The calculator bills what the handlers do for strangers: reads, answers and log lines of the anonymous routes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

import operations
from bench.watch import Meter
from cli.cost import units, worst_day
from tally.dynamo import items
from tally.dynamo.client import Store
from tally.dynamo.transactions import apply_once
from tally.operation import Operation
from tally.series import hours, progress
from tally.streams import segments
from tally.streams.segments import Entry
from tests import events, make_events

Invoke = Callable[..., dict[str, Any]]
GETS = [operation for operation in reversed(worst_day.anonymous()) if operation.method == "GET"]
READS = list({operation.name: operation for operation in GETS}.values())  # one route for each
HEADERS_BYTES = 330  # API Gateway's own: status line, date, content type and length, request id


def sample(operation: Operation) -> dict[str, Any]:
    if operation.fixed:
        return make_events.http(operation)
    return events.sample(f"{operation.function}/http-{operation.name.replace('_', '-')}")


def test_every_anonymous_read_has_its_units() -> None:
    assert units.READS.keys() == {operation.name for operation in READS}


SERIES = {"plays": "9f3a", "likes": "a91f", "visits": "https://example.com/a"}


def a_day_of_series(store: Store) -> None:
    """Each of these moved in every hour up to the one that runs, and 99 more in the hour before."""
    hour = progress.hour_of(store.settings, store.settings.minute(time.time()))
    for before in range(24, -1, -1):
        minute = progress.minutes_of(store.settings, hour - before)[-1 if before else hours.PART]
        at = progress.Progress(minute - 24 * 60, minute - 1, hour - before)
        store.client.put_item(TableName=store.settings.ledger_table, Item=progress.PROGRESS | items.wire(at.values))
        moved = [Entry(counter, id_, "", 90 + before, 0) for counter, id_ in SERIES.items()]
        moved += [Entry("plays", f"{number:04x}", "", 99 + number, 0) for number in range(99 if before == 1 else 0)]
        assert apply_once(store, [segments.write(store.settings, minute, 0, "s#1", moved, 0)])
        hours.fold(store, minute, until_s=float("inf"))


@pytest.mark.parametrize("operation", READS, ids=lambda operation: operation.name)
def test_an_anonymous_read_takes_what_the_calculator_bills(
    operation: Operation, invoke: Invoke, meter: Meter, store: Store
) -> None:
    for name in ("plays/http-play", "posts/http-put-post", "visits/http-visit", "likes/http-like"):
        invoke(name.partition("/")[0], events.sample(name))
    if operation.function == operations.GET_SERIES.function:
        a_day_of_series(store)
    meter.reset()
    answer = invoke(operation.function, sample(operation))
    (reads, answer_bytes), (most_reads, most_bytes) = units.READS[operation.name]
    assert reads - 0.5 <= meter.read_units <= most_reads
    assert meter.write_units == 0
    found = len(answer["body"]) * (0.75 if answer["isBase64Encoded"] else 1) + HEADERS_BYTES
    assert found == pytest.approx(answer_bytes, rel=0.35)
    assert answer_bytes <= most_bytes


def test_the_longest_answers_are_as_long_as_the_calculator_says(invoke: Invoke) -> None:
    invoke("posts", {"operation": "put_post", "post_id": "long", "body": "x" * 10_240, "caller": "ann"})
    for number in range(100):
        invoke("likes", {"operation": "like", "post_id": "long", "caller": f"{number:0128}"})
    for name, path in (("get_post", "posts/http-get-post"), ("list_likes", "likes/http-list-likes")):
        answer = invoke(
            path.partition("/")[0], events.http(path, id="long", query="limit=100" if "list" in name else "")
        )
        assert len(answer["body"]) + HEADERS_BYTES == pytest.approx(units.READS[name][1][1], rel=0.1)
