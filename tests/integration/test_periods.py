"""A counter with a period has a tally for each period: callers change it, read it, and are refused beyond a quota."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlencode

import pytest

from tally import client
from tally.dynamo.client import Store
from tally.errors import LimitReachedError
from tests import events
from tests.integration.conftest import Invoke

Send = Callable[..., dict[str, Any]]
NOON_S = datetime(2026, 11, 22, 12, tzinfo=UTC).timestamp()
TODAY, TOMORROW = "2026-11-22", "2026-11-23"
CALLS = {"counter": "calls", "id": "7c20"}
DAY_S, HALF_A_DAY_S = 24 * 3600, 12 * 3600


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Replaces the wall clock. Returns a clock whose time `s`, in seconds, the test sets."""
    clock = SimpleNamespace(s=NOON_S)
    monkeypatch.setattr(time, "time", lambda: clock.s)
    return clock


@pytest.fixture
def call(invoke: Invoke, now: SimpleNamespace) -> Send:
    """Returns a function that counts a call with a direct event, and returns the answer."""

    def count(key: str, amount: int = 1, **more: Any) -> dict[str, Any]:
        event = {"operation": "increment", **CALLS, "amount": amount, "idempotency_key": key, "caller": "gate"}
        return invoke(event | more)

    return count


@pytest.fixture
def read(invoke: Invoke, now: SimpleNamespace) -> Send:
    """Returns a function that reads the calls of the present period, or of `period`."""
    return lambda **more: invoke({"operation": "get_counter", **CALLS, "caller": "gate"} | more)


def stored_items(store: Store) -> dict[str, dict[str, Any]]:
    """Returns the items of the table of counts, by partition key."""
    items = store.client.scan(TableName=store.settings.counts_table)["Items"]
    return {item["PK"]["S"]: dict(item) for item in items}


def test_each_day_has_a_tally_that_expires_35_days_later(
    call: Send, read: Send, now: SimpleNamespace, store: Store
) -> None:
    assert call("a", 3)["body"] == {**CALLS, "period": TODAY, "counted": True, "visible": "now"}
    now.s += DAY_S
    assert call("b", 4)["body"]["period"] == TOMORROW
    day_ends_s = int(NOON_S + HALF_A_DAY_S)
    calls = {**CALLS, "limit": 1000}
    assert read()["body"] == {**calls, "period": TOMORROW, "value": 4, "left": 996, "resets_at": day_ends_s + DAY_S}
    assert read(period=TODAY)["body"] == {**calls, "period": TODAY, "value": 3, "left": 997, "resets_at": day_ends_s}
    items = stored_items(store)
    assert {key: item["calls"]["N"] for key, item in items.items()} == {
        f"CLIENT#7c20#{TODAY}": "3", f"CLIENT#7c20#{TOMORROW}": "4",
    }  # fmt: skip
    assert int(items[f"CLIENT#7c20#{TODAY}"]["expiration"]["N"]) == NOON_S + HALF_A_DAY_S + 35 * DAY_S


def test_a_change_beyond_a_quota_is_refused_with_409_and_the_time_until_the_next_day(
    call: Send, invoke: Invoke, now: SimpleNamespace, store: Store
) -> None:
    call("a", 999)
    refused = invoke.http("increment", **CALLS, amount=2)
    document = events.body_of(refused)
    assert (refused["statusCode"], document["type"]) == (409, "urn:problem-type:tally:limit-reached")
    assert (document["left"], document["retry_after_s"]) == (1, HALF_A_DAY_S)
    assert refused["headers"]["retry-after"] == str(HALF_A_DAY_S)
    with pytest.raises(LimitReachedError) as caught:
        raise client.error_of(call("b", 2)["body"])
    assert (caught.value.left, caught.value.retry_after_s) == (1, HALF_A_DAY_S)
    too_large = invoke.http("increment", **CALLS, amount=1001)  # no day has room for this amount
    assert (too_large["statusCode"], events.body_of(too_large)["left"]) == (409, 1)
    assert "retry-after" not in too_large["headers"]
    now.s += HALF_A_DAY_S - 0.5
    assert call("b", 2)["body"]["retry_after_s"] == 1, "half a second, rounded up"
    now.s += 0.5
    assert call("b", 2)["body"]["period"] == TOMORROW
    assert {item["calls"]["N"] for item in stored_items(store).values()} == {"999", "2"}


def test_a_period_is_read_over_http_and_an_expired_period_is_answered_with_404(
    call: Send, invoke: Invoke, now: SimpleNamespace, store: Store
) -> None:
    call("a", 5)

    def get(query: dict[str, str]) -> dict[str, Any]:
        return invoke.http("get_counter", **CALLS, query=urlencode(query))

    today = {**CALLS, "period": TODAY, "value": 5, "limit": 1000, "left": 995, "resets_at": NOON_S + HALF_A_DAY_S}
    assert events.body_of(get({"period": TODAY})) == today
    assert events.body_of(get({"period": "2027-01-01"}))["value"] == 0
    assert events.body_of(get({"period": "2026-10-18"}))["value"] == 0  # 35 days ago, the oldest that is kept
    for query in ({"period": "2026-10-17"}, {"period": "2000-01-01"}):
        assert (get(query)["statusCode"], events.body_of(get(query))["field"]) == (404, "period")
    for invalid in ("2026-11", "2026-W47", "2026-02-30", "2026-11-22T14", "x", "", "22.11.2026", "7c20#2026-11-22"):
        refused = get({"period": invalid})
        assert (refused["statusCode"], events.body_of(refused)["field"]) == (400, "period")
    assert "etag" not in get({})["headers"], "the tally of tomorrow may have the same version and another number"
    now.s += 36 * DAY_S
    assert get({"period": TODAY})["statusCode"] == 404
