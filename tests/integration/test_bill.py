"""The calculator bills what the handlers do for strangers: read units and answers of the anonymous routes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tally.operation import Access, Operation, by_route

import operations
from bench.watch import Meter
from cli.cost import units
from counters import COUNTERS
from tests import events, make_events

Invoke = Callable[..., dict[str, Any]]
HEADERS_BYTES = 330  # API Gateway's own: status line, date, content type and length, request id
ROUTES = by_route(operations.OPERATIONS, COUNTERS).values()
READS = [one for one in ROUTES if one.access is Access.ANYONE and one.method == "GET"]


@pytest.mark.parametrize("operation", READS, ids=lambda operation: operation.id)
def test_an_anonymous_read_takes_at_most_what_the_calculator_bills(
    operation: Operation, invoke: Invoke, meter: Meter
) -> None:
    for name in ("plays/http-play", "posts/http-put-post", "visits/http-visit", "likes/http-like"):
        invoke(name.partition("/")[0], events.sample(name))
    meter.reset()
    sample = f"{operation.function}/http-{operation.name.replace('_', '-')}"
    answer = invoke(operation.function, make_events.http(operation) if operation.fixed else events.sample(sample))
    request = units.of(operation.name, reads=True)
    assert meter.read_units <= request.reads[True]
    assert meter.write_units == 0
    assert (
        len(answer["body"]) * (0.75 if answer["isBase64Encoded"] else 1) + HEADERS_BYTES <= request.answer_bytes[True]
    )


def test_the_longest_answers_are_as_long_as_the_calculator_says(invoke: Invoke) -> None:
    invoke("posts", {"operation": "put_post", "post_id": "long", "body": "x" * 10_240, "caller": "ann"})
    for number in range(100):
        invoke("likes", {"operation": "like", "post_id": "long", "caller": f"{number:0128}"})
    for name, path in (("get_post", "posts/http-get-post"), ("list_likes", "likes/http-list-likes")):
        answer = invoke(
            path.partition("/")[0], events.http(path, id="long", query="limit=100" if "list" in name else "")
        )
        assert len(answer["body"]) + HEADERS_BYTES == pytest.approx(
            units.of(name, reads=True).answer_bytes[True], rel=0.1
        )
