"""A stranger's read writes nothing and takes few read units, on every route."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bench.instruments import Meter
from tally.api.operation import Access, Route
from tests import events

pytestmark = pytest.mark.sdk
Invoke = Callable[..., dict[str, Any]]
OPEN_READS = [route for route in events.routes().values() if route.access is Access.ANYONE and route.method == "GET"]


@pytest.mark.parametrize("route", OPEN_READS, ids=lambda route: route.id)
def test_an_anonymous_read_writes_nothing_and_takes_few_read_units(route: Route, invoke: Invoke, meter: Meter) -> None:
    for change in ("increment_plays_short_route", "put_post", "visit"):  # the names of routes; each has a sample event
        invoke(events.http(change))
    meter.reset()
    invoke(events.http(route.id))
    assert meter.write_units == 0
    assert meter.read_units <= 10
