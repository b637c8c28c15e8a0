"""A counter that is retired takes no more changes. It is still read, and its open holds are settled.

That its records are still rolled up and booked: tests/invariants/streaming.py redeclares a counter as retired.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import permissions
import pytest
from functions import holds, increments
from openapi.document import document
from tally.api.entry import Entry
from tally.operation import Need, Table

import counters
import operations
from tally.counter import Counter
from tally.counting import expired, tallies
from tally.dynamo.client import Call, Store
from tests import documented
from tests.contexts import Context

COUNTERS = {
    "usage": counters.USAGE,
    "stock": counters.STOCK,
    "ticket": counters.TICKET,
    "rolled": Counter("rolled", prefix="RLD", sort_key="N", attribute="n", visible="soon"),
}
RETIRED = {name: replace(counter, retired=True) for name, counter in COUNTERS.items()}
KEY = "order-4711-change-00000001"
Invoke = Callable[..., dict[str, Any]]


@pytest.fixture
def before(store: Store) -> Invoke:
    return invoking(store, COUNTERS)


@pytest.fixture
def after(store: Store) -> Invoke:
    """The same functions, once the counters are retired."""
    return invoking(store, RETIRED)


def invoking(store: Store, declared: dict[str, Counter]) -> Invoke:
    functions = {**increments.handler.functions, **holds.handler.functions}
    entry = Entry(functions, store, declared)

    def invoke(operation: str, counter: str = "usage", **fields: Any) -> dict[str, Any]:
        event = {"operation": operation, "counter": counter, "id": "i1", "caller": "shop", **fields}
        answer = entry(event, Context())
        documented.check(event, answer)
        return answer

    return invoke


def increment(counter: str, key: str = KEY) -> dict[str, Any]:
    amount = {} if counter == "ticket" else {"amount": 5}
    return {"operation": "increment", "counter": counter, "idempotency_key": key, **amount}


def value(invoke: Invoke, counter: str) -> int:
    return int(invoke("get_counter", counter)["body"]["value"])


CHANGES = [
    *(increment(counter) for counter in COUNTERS),
    {"operation": "set_counter", "counter": "stock", "value": 7, "version": 1},
    {"operation": "set_counter", "counter": "stock", "value": -7, "version": 0},  # beyond its floor, too
    {"operation": "hold", "counter": "stock", "amount": 1, "ttl_s": 60, "idempotency_key": KEY},
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: f"{change['operation']}-{change['counter']}")
def test_a_change_is_refused_with_one_problem_and_writes_nothing(
    change: dict[str, Any], before: Invoke, after: Invoke, store: Store
) -> None:
    if change["counter"] != "rolled":
        before(**increment(change["counter"], "another-key-of-the-caller"))
    seen = value(before, change["counter"])
    answer = after(**change)
    assert (answer["status"], answer["body"]["type"]) == (409, "urn:problem-type:tally:counter-retired")
    detail = f"{change['counter']} is retired: it can be read, but takes no more changes."
    assert answer["body"]["detail"] == detail
    assert value(after, change["counter"]) == seen
    receipts = store.client.scan(TableName=store.settings.receipts_table)["Items"]
    assert len(receipts) == (change["counter"] != "rolled")


@pytest.mark.parametrize("counter", ["usage", "stock", "ticket", "rolled"])
def test_a_retry_of_a_change_from_before_gets_its_answer(counter: str, before: Invoke, after: Invoke) -> None:
    """Its first answer was lost: the caller must not take the change for refused."""
    first = before(**increment(counter))
    again = after(**increment(counter))
    assert (first["status"], again) == (200, {**first, "replayed": True})


def test_an_entry_of_a_batch_is_refused_and_fails_no_other(store: Store) -> None:
    entry = Entry(increments.handler.functions, store, {**COUNTERS, "usage": RETIRED["usage"], "other": OTHER})
    changes = [increment("usage"), *(increment("other", f"{KEY}-{number}") for number in range(3))]
    events = [{"id": "i1", "caller": "shop", **change} for change in changes]
    results = entry({"batch": [*events, events[0]]}, Context())["results"]
    assert [result["status"] for result in results] == [409, 200, 200, 200, 409]
    assert tallies.read(Call(store), OTHER, "i1") == 15


OTHER = Counter("other", prefix="OTH", sort_key="N", attribute="n")


def test_a_hold_that_is_open_is_settled_or_expires(
    before: Invoke, after: Invoke, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    before(**increment("stock"))
    hold = {"counter": "stock", "amount": 1, "ttl_s": 60}
    kept, back, late = (
        before("hold", **hold, idempotency_key=f"{KEY}-{number}")["body"]["hold_id"] for number in range(3)
    )
    assert after("commit_hold", "stock", hold_id=kept)["body"]["state"] == "committed"
    assert after("release_hold", "stock", hold_id=back)["body"]["state"] == "released"
    now_s = time.time()
    monkeypatch.setattr(time, "time", lambda: now_s + 120)
    assert expired.sweep(store, RETIRED, store.clock() + 5).returned == 1
    assert after("commit_hold", "stock", hold_id=late)["body"]["detail"] == "The hold is expired."
    assert value(after, "stock") == 4


def test_its_functions_may_look_for_the_answer_and_the_api_document_says_that_it_is_retired() -> None:
    find = Need("GetItem", Table.RECEIPTS, permissions.RECEIPT_PREFIX)
    for operation in (operations.INCREMENT, operations.HOLD, operations.SET_COUNTER):
        assert find in permissions.of_operations({"stock": RETIRED["stock"]})[operation]
    assert find not in permissions.of_operations({"stock": counters.STOCK})[operations.HOLD]
    assert "retired: it can be read, and takes no more changes" in str(document(RETIRED))
    assert "retired: it can be read" not in str(document(COUNTERS))
