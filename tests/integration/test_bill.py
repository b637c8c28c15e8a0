"""The calculator bills what the handlers do for strangers: read units and answers of the anonymous routes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from api.operation import Access, Route
from bench.watch import Meter
from cli.cost import units
from tests import events

Invoke = Callable[..., dict[str, Any]]
HEADERS_BYTES = 330  # API Gateway's own: status line, date, content type and length, request id
READS = [one for one in events.routes().values() if one.access is Access.ANYONE and one.method == "GET"]


def sizes(answer: dict[str, Any]) -> float:
    """The bytes of an answer, headers included."""
    return len(answer["body"]) * (0.75 if answer["isBase64Encoded"] else 1) + HEADERS_BYTES


@pytest.mark.parametrize("route", READS, ids=lambda route: route.id)
def test_an_anonymous_read_takes_at_most_what_the_calculator_bills(route: Route, invoke: Invoke, meter: Meter) -> None:
    for name in ("increment_plays_short", "put_post", "visit"):
        invoke(events.http(name))
    meter.reset()
    answer = invoke(events.http(route.id))
    request = units.of(route.operation.name, reads=True)
    assert meter.read_units <= request.reads[True]
    assert meter.write_units == 0
    assert sizes(answer) <= request.answer_bytes[True]


def test_the_longest_answers_are_as_long_as_the_calculator_says(invoke: Invoke) -> None:
    invoke(events.http("put_post", id="long", body="x" * 10_240, sub="ann"))
    for number in range(100):
        invoke(events.http("put_mine_likes_short", id="long", sub=f"{number:0128}"))
    for name, route in (("get_post", "get_post"), ("list_children", "list_children_likes")):
        answer = invoke(events.http(route, id="long", **({"limit": 100} if "list" in route else {})))
        assert sizes(answer) == pytest.approx(units.of(name, reads=True).answer_bytes[True], rel=0.1)
