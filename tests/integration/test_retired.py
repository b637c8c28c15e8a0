"""A counter that is retired takes no more changes. It is still read, and its open holds are settled.

That its records are still rolled up and booked: tests/invariants/streaming.py redeclares a counter as retired.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import counters
from tally.api.needs import FIND_RECEIPT
from tally.contract.declarations import OPERATIONS
from tally.contract.document import document
from tally.counter import Counter
from tally.counting import expired_holds, tallies
from tally.dynamo.client import Call, Store
from tally.operations import children, holds, increments
from tests.integration.conftest import Invoke

ROLLED = Counter("rolled", prefix="RLD", sort_key="N", attribute="n", visible="soon")
OTHER = Counter("other", prefix="OTH", sort_key="N", attribute="n")
COUNTERS = {one.name: one for one in (counters.USAGE, counters.STOCK, counters.TICKET, counters.MEMBERS, ROLLED)}
RETIRED = {name: replace(counter, retired=True) for name, counter in COUNTERS.items()}
KEY = "order-4711-change-00000001"
Send = Callable[..., dict[str, Any]]


@pytest.fixture
def before(store: Store, monkeypatch: pytest.MonkeyPatch) -> Send:
    return invoking(store, COUNTERS, monkeypatch)


@pytest.fixture
def after(store: Store, monkeypatch: pytest.MonkeyPatch) -> Send:
    """The same functions, once the counters are retired."""
    return invoking(store, RETIRED, monkeypatch)


def invoking(store: Store, declared: dict[str, Counter], monkeypatch: pytest.MonkeyPatch) -> Send:
    def invoke(operation: str, counter: str = "usage", **fields: Any) -> dict[str, Any]:
        for one in declared.values():
            monkeypatch.setitem(counters.COUNTERS, one.name, one)
        event = {"operation": operation, "counter": counter, "id": "i1", "caller": "shop", **fields}
        return Invoke(store)(event)

    return invoke


def increment(counter: str, key: str = KEY) -> dict[str, Any]:
    amount = {} if counter == "ticket" else {"amount": 5}
    return {"operation": "increment", "counter": counter, "idempotency_key": key, **amount}


def value(invoke: Send, counter: str) -> int:
    return int(invoke("get_counter", counter)["body"]["value"])


CHANGES = [
    {"operation": "put_child", "counter": "members", "name": "bob"},
    {"operation": "remove_parent", "counter": "members"},
    *(increment(counter) for counter in COUNTERS if counter != "members"),
    {"operation": "set_counter", "counter": "stock", "value": 7, "version": 1},
    {"operation": "set_counter", "counter": "stock", "value": -7, "version": 0},  # beyond its floor, too
    {"operation": "hold", "counter": "stock", "amount": 1, "ttl_s": 60, "idempotency_key": KEY},
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: f"{change['operation']}-{change['counter']}")
def test_a_change_is_refused_with_one_problem_and_writes_nothing(
    change: dict[str, Any], before: Send, after: Send, store: Store
) -> None:
    if change["counter"] == "members":
        before("put_child", "members", name="ann", idempotency_key="another-key-of-the-caller")
    elif change["counter"] != "rolled":
        before(**increment(change["counter"], "another-key-of-the-caller"))
    seen = value(before, change["counter"])
    answer = after(**change)
    assert (answer["status"], answer["body"]["type"]) == (409, "urn:problem-type:tally:counter-retired")
    detail = f"{change['counter']} is retired: it can be read, and takes no changes. Nothing was counted."
    assert answer["body"]["detail"] == detail
    assert value(after, change["counter"]) == seen
    receipts = store.client.scan(TableName=store.settings.receipts_table)["Items"]
    assert len(receipts) == (change["counter"] != "rolled")


@pytest.mark.parametrize("counter", ["usage", "stock", "ticket", "rolled"])
def test_a_retry_of_a_change_from_before_gets_its_answer(counter: str, before: Send, after: Send) -> None:
    """Its first answer was lost: the caller must not take the change for refused."""
    first = before(**increment(counter))
    again = after(**increment(counter))
    assert (first["status"], again) == (200, {**first, "replayed": True})


def test_an_entry_of_a_batch_is_refused_and_fails_no_other(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for one in (RETIRED["usage"], OTHER):
        monkeypatch.setitem(counters.COUNTERS, one.name, one)
    changes = [increment("usage"), *(increment("other", f"{KEY}-{number}") for number in range(3))]
    sent = [{"id": "i1", "caller": "shop", **change} for change in changes]
    results = Invoke(store)({"batch": [*sent, sent[0]]})["results"]
    assert [result["status"] for result in results] == [409, 200, 200, 200, 409]
    assert tallies.read(Call(store), OTHER, "i1") == 15


def test_a_hold_that_is_open_is_settled_or_expires(
    before: Send, after: Send, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    before(**increment("stock"))
    hold = {"counter": "stock", "amount": 1, "ttl_s": 60}
    kept, back, late = (
        before("hold", **hold, idempotency_key=f"{KEY}-{number}")["body"]["hold"] for number in range(3)
    )
    assert after("commit_hold", "stock", hold=kept)["body"]["state"] == "committed"
    assert after("release_hold", "stock", hold=back)["body"]["state"] == "released"
    now_s = time.time()
    monkeypatch.setattr(time, "time", lambda: now_s + 120)
    assert expired_holds.sweep(store, RETIRED, store.clock() + 5).returned == 1
    assert after("commit_hold", "stock", hold=late)["body"]["detail"].startswith("The hold is expired")
    assert value(after, "stock") == 4
    assert after("commit_hold", "stock", hold=late, amount=1)["body"]["changed"] is True
    assert after("void_hold", "stock", hold=late)["status"] == 409
    assert value(after, "stock") == 3


def test_its_functions_may_look_for_the_answer_and_the_api_document_says_that_it_is_retired() -> None:
    for operation in (increments.increment, holds.hold, increments.set_counter, children.put_child):
        assert operation.needs([RETIRED["stock"]]) >= FIND_RECEIPT
    assert not holds.hold.needs([counters.STOCK]) & FIND_RECEIPT
    assert "retired: it can be read, but not changed" in str(document(OPERATIONS, RETIRED))
    assert "retired: it can be read" not in str(document(OPERATIONS, COUNTERS))
