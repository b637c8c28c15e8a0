"""A retired counter refuses changes, but can be read, and its open holds can be settled.

tests/invariants/streaming.py redeclares a counter as retired, to test that its records are rolled up and booked.
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

# Each change of ROLLED is spilled, and rolled up later.
ROLLED = Counter("rolled", prefix="RLD", sort_key="N", attribute="n", visible="soon")
ACTIVE = Counter("active", prefix="OTH", sort_key="N", attribute="n")
COUNTERS = {
    counter.name: counter for counter in (counters.USAGE, counters.STOCK, counters.TICKET, counters.MEMBERS, ROLLED)
}
RETIRED = {name: replace(counter, retired=True) for name, counter in COUNTERS.items()}
KEY = "order-4711-change-00000001"
InvokeOperation = Callable[..., dict[str, Any]]


@pytest.fixture
def invoke_active(store: Store, monkeypatch: pytest.MonkeyPatch) -> InvokeOperation:
    """Returns a function that invokes an operation while the counters are not retired."""
    return invoke_with(store, COUNTERS, monkeypatch)


@pytest.fixture
def invoke_retired(store: Store, monkeypatch: pytest.MonkeyPatch) -> InvokeOperation:
    """Returns a function that invokes an operation while the counters are retired."""
    return invoke_with(store, RETIRED, monkeypatch)


def invoke_with(store: Store, declared: dict[str, Counter], monkeypatch: pytest.MonkeyPatch) -> InvokeOperation:
    """Returns a function that declares these counters and then invokes an operation."""

    def invoke(operation: str, counter: str = "usage", **fields: Any) -> dict[str, Any]:
        for declared_counter in declared.values():
            monkeypatch.setitem(counters.COUNTERS, declared_counter.name, declared_counter)
        event = {"operation": operation, "counter": counter, "id": "i1", "caller": "shop", **fields}
        return Invoke(store)(event)

    return invoke


def increment_event(counter: str, key: str = KEY) -> dict[str, Any]:
    amount = {} if counter == "ticket" else {"amount": 5}
    return {"operation": "increment", "counter": counter, "idempotency_key": key, **amount}


def value(invoke: InvokeOperation, counter: str) -> int:
    return int(invoke("get_counter", counter)["body"]["value"])


CHANGES = [
    {"operation": "put_child", "counter": "members", "name": "bob"},
    {"operation": "remove_parent", "counter": "members"},
    *(increment_event(counter) for counter in COUNTERS if counter != "members"),
    {"operation": "set_counter", "counter": "stock", "value": 7, "version": 1},
    {"operation": "set_counter", "counter": "stock", "value": -7, "version": 0},  # the floor refuses this value, too
    {"operation": "hold", "counter": "stock", "amount": 1, "ttl_s": 60, "idempotency_key": KEY},
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: f"{change['operation']}-{change['counter']}")
def test_a_change_is_refused_with_one_problem_and_writes_nothing(
    change: dict[str, Any], invoke_active: InvokeOperation, invoke_retired: InvokeOperation, store: Store
) -> None:
    if change["counter"] == "members":
        invoke_active("put_child", "members", name="ann", idempotency_key="another-key-of-the-caller")
    elif change["counter"] != "rolled":
        invoke_active(**increment_event(change["counter"], "another-key-of-the-caller"))
    number = value(invoke_active, change["counter"])
    answer = invoke_retired(**change)
    assert (answer["status"], answer["body"]["type"]) == (409, "urn:problem-type:tally:counter-retired")
    detail = f"{change['counter']} is retired: it can be read, and takes no changes. Nothing was counted."
    assert answer["body"]["detail"] == detail
    assert value(invoke_retired, change["counter"]) == number
    receipts = store.client.scan(TableName=store.settings.receipts_table)["Items"]
    assert len(receipts) == (0 if change["counter"] == "rolled" else 1), "the receipt of the accepted change above"


@pytest.mark.parametrize("counter", ["usage", "stock", "ticket", "rolled"])
def test_a_retry_of_a_change_that_was_counted_before_the_retirement_gets_the_first_answer(
    counter: str, invoke_active: InvokeOperation, invoke_retired: InvokeOperation
) -> None:
    """If the retry were refused, a caller who lost the first answer would believe that nothing was counted."""
    first = invoke_active(**increment_event(counter))
    retried = invoke_retired(**increment_event(counter))
    assert (first["status"], retried) == (200, {**first, "replayed": True})


def test_a_refused_request_does_not_fail_the_other_requests_of_the_event(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for counter in (RETIRED["usage"], ACTIVE):
        monkeypatch.setitem(counters.COUNTERS, counter.name, counter)
    changes = [increment_event("usage"), *(increment_event("active", f"{KEY}-{number}") for number in range(3))]
    entries = [{"id": "i1", "caller": "shop", **change} for change in changes]
    results = Invoke(store)({"batch": [*entries, entries[0]]})["results"]
    assert [result["status"] for result in results] == [409, 200, 200, 200, 409]
    assert tallies.read(Call(store), ACTIVE, "i1") == 15


def test_a_hold_of_a_retired_counter_is_settled_or_expires_and_is_committed_late(
    invoke_active: InvokeOperation, invoke_retired: InvokeOperation, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    invoke_active(**increment_event("stock"))
    hold = {"counter": "stock", "amount": 1, "ttl_s": 60}
    to_commit, to_release, to_expire = (
        invoke_active("hold", **hold, idempotency_key=f"{KEY}-{number}")["body"]["hold"] for number in range(3)
    )
    assert invoke_retired("commit_hold", "stock", hold=to_commit)["body"]["state"] == "committed"
    assert invoke_retired("release_hold", "stock", hold=to_release)["body"]["state"] == "released"
    now_s = time.time()
    monkeypatch.setattr(time, "time", lambda: now_s + 120)
    assert expired_holds.sweep(store, RETIRED, until_s=store.clock() + 5).released == 1
    assert invoke_retired("commit_hold", "stock", hold=to_expire)["body"]["detail"].startswith("The hold is expired")
    assert value(invoke_retired, "stock") == 5 - 1
    late_commit = invoke_retired("commit_hold", "stock", hold=to_expire, amount=1)  # the amount is still there
    assert late_commit["body"]["changed"] is True
    assert invoke_retired("void_hold", "stock", hold=to_expire)["status"] == 409
    assert value(invoke_retired, "stock") == 5 - 2


def test_functions_of_a_retired_counter_may_read_receipts_and_the_api_document_marks_the_counter_as_retired() -> None:
    for operation in (increments.increment, holds.hold, increments.set_counter, children.put_child):
        assert operation.needs([RETIRED["stock"]]) >= FIND_RECEIPT
    assert not holds.hold.needs([counters.STOCK]) & FIND_RECEIPT
    assert "retired: it can be read, but not changed" in str(document(OPERATIONS, RETIRED))
    assert "retired: it can be read" not in str(document(OPERATIONS, COUNTERS))
