"""Services count visitors, and requests that would count a visitor twice are refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

import pytest

import counters
from tally.counter import Counter
from tally.dynamo.client import Store
from tests import events
from tests.integration.conftest import Invoke
from tests.integration.test_periods import DAY_S, NOON_S, TODAY, TOMORROW
from tests.integration.test_periods import now as now

BOOK = {"counter": "readers", "id": "moby-dick"}


@pytest.fixture
def invoke(store: Store, monkeypatch: pytest.MonkeyPatch, now: Any) -> Invoke:
    """Invokes functions that have two more counters: an app's seats, and readers by the days of Paris."""
    seats = Counter(
        "seats", prefix="APP", sort_key="SEATS", attribute="seats", unique=True, period="month", ceiling=2,
        limit_overrides=True,
    )  # fmt: skip
    for counter in (seats, replace(counters.READERS, name="paris", prefix="PARIS", timezone="Europe/Paris")):
        monkeypatch.setitem(counters.COUNTERS, counter.name, counter)
    return Invoke(store)


def visit(invoke: Invoke, visitor: str, **more: Any) -> dict[str, Any]:
    """Send a visit to BOOK, or to the id in `more`. Returns the body of the answer."""
    answer = invoke.direct("add_visitor", **{**BOOK, "visitor": visitor, "caller": "web", **more})
    return dict(answer["body"])


def test_a_visitor_is_new_once_in_a_period_and_the_answer_names_the_period(invoke: Invoke, now: Any) -> None:
    first = {**BOOK, "period": TODAY, "new": True, "visible": "soon"}
    assert visit(invoke, "ann") == first
    assert visit(invoke, "ann", caller="app") == {**first, "new": False}
    now.s += DAY_S
    assert visit(invoke, "ann") == {**first, "period": TOMORROW}
    assert visit(invoke, "ann", at=int(NOON_S)) == {**first, "new": False}
    answer = invoke.http("add_visitor", visitor="bob")
    assert (answer["statusCode"], events.body_of(answer)["new"]) == (200, True)
    assert "idempotency-replayed" not in answer["headers"]
    late = invoke.http("add_visitor", visitor="bob", at=int(NOON_S) - 1)  # more than a day ago
    assert (late["statusCode"], events.body_of(late)["field"]) == (400, "at")


def test_a_counter_at_its_ceiling_still_takes_visits_of_visitors_that_it_has_counted(invoke: Invoke, now: Any) -> None:
    seat = {"counter": "seats", "id": "acme"}
    assert [visit(invoke, visitor, **seat)["new"] for visitor in ("ann", "bob")] == [True, True]
    refused = visit(invoke, "cid", **seat)
    assert (refused["status"], refused["left"], refused["retry_after_s"] > DAY_S) == (409, 0, True)
    assert not visit(invoke, "ann", **seat)["new"]
    assert invoke.read("seats", "acme", caller="web")["value"] == 2
    put = invoke.direct("put_limit", **seat, limit=3, idempotency_key="limit-3", caller="sales")
    assert (put["status"], visit(invoke, "cid", **seat)["new"]) == (200, True)
    assert visit(invoke, "dan", **seat)["status"] == 409


@pytest.mark.parametrize(
    ("operation", "fields"),
    [
        ("increment", {"amount": 1, "idempotency_key": "k"}),
        ("increment", {"idempotency_key": "k"}),
        ("set_counter", {"value": 5, "version": 0}),
        ("hold", {"amount": 1, "ttl_s": 60, "idempotency_key": "k"}),
        ("change", {"changes": [{**BOOK, "amount": 1}], "idempotency_key": "k"}),
    ],
)
def test_only_a_visit_changes_a_counter_of_visitors(invoke: Invoke, operation: str, fields: dict[str, Any]) -> None:
    tally = {} if operation == "change" else BOOK
    answer = invoke.direct(operation, caller="web", **tally, **fields)
    # A hold is refused because the counter has no limit.
    assert (answer["status"], "visitors" in answer["body"]["detail"] or operation == "hold") == (400, True)
    usage = invoke.direct("add_visitor", counter="usage", id="x", visitor="ann", caller="web")
    assert (usage["status"], usage["body"]["field"]) == (400, "counter")


@pytest.mark.parametrize(
    ("route", "query", "field"),
    [
        ("get_any_series", {"of": "readers:moby-dick", "by": "hour"}, None),
        ("get_any_series", {"of": "readers", "by": "day"}, None),
        ("get_any_series", {"of": "readers:moby-dick", "by": "day", "tz": "Europe/Paris"}, "tz"),
        ("get_any_series", {"of": "paris:moby-dick", "by": "day"}, None),
        ("get_any_series", {"of": "paris:moby-dick", "by": "day", "tz": "UTC"}, "tz"),
        ("get_any_top", {"counter": "readers", "by": "hour"}, None),
        ("get_any_top", {"counter": "readers", "by": "day"}, None),
        ("get_any_top", {"counter": "readers", "by": "month"}, "by"),
        ("get_any_top", {"counter": "seats", "by": "month"}, None),
        ("get_any_top", {"counter": "paris", "by": "day"}, "tz"),
    ],
)
def test_a_series_or_top_list_that_would_add_up_two_periods_of_visitors_is_refused(
    invoke: Invoke, route: str, query: dict[str, str], field: str | None
) -> None:
    answer = invoke.http(route, query=urlencode(query))
    if field is None:
        assert answer["statusCode"] == 200
    else:
        assert (answer["statusCode"], events.body_of(answer)["field"]) == (400, field)
