"""The calculator bills what the handlers do for strangers: reads, answers and log lines of the anonymous routes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bench.watch import Meter
from cli.cost import units, worst_day
from tally.operation import Operation
from tests import events, make_events

Invoke = Callable[..., dict[str, Any]]
READS = [operation for operation in worst_day.anonymous() if operation.method == "GET"]
HEADERS_BYTES = 330  # API Gateway's own: status line, date, content type and length, request id


def sample(operation: Operation) -> dict[str, Any]:
    if operation.fixed:
        return make_events.http(operation)
    return events.sample(f"{operation.function}/http-{operation.name.replace('_', '-')}")


def test_every_anonymous_read_has_its_units() -> None:
    assert units.READS.keys() == {operation.name for operation in READS}


@pytest.mark.parametrize("operation", READS, ids=lambda operation: operation.name)
def test_an_anonymous_read_takes_what_the_calculator_bills(operation: Operation, invoke: Invoke, meter: Meter) -> None:
    for name in ("plays/http-play", "posts/http-put-post", "visits/http-visit", "likes/http-like"):
        invoke(name.partition("/")[0], events.sample(name))
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
