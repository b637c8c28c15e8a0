"""Items of an anonymous change have the day of the change, and no finer time. docs/privacy.md lists the exceptions.

The access log has the address and the second of each request. An item with the same second would show the address of
the person who made the change.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from counters import COUNTERS
from tally.api.operation import Access
from tally.counting import anonymous
from tally.dynamo.client import Call, Store
from tally.maintenance import imports
from tally.maintenance.imports import ChildRow
from tests import events
from tests.integration.conftest import Invoke
from tests.integration.test_beacon import FIREFOX, GOOGLEBOT, PAGE
from tests.integration.test_page_visitors import store as store
from tests.integration.test_page_visitors import visit
from tests.integration.test_periods import now as now

pytestmark = pytest.mark.sdk
SECRET = "0b1f6c64-7d0e-4a52-9c3b-8e2f5a7d9c10"
HEART_FIELDS = {"counter": "hearts", "id": "home", "secret": SECRET}
LATER_S = 3 * 3600 + 7 * 60 + 41  # on the same day
MINUTES = {"the tally": {"at"}, "the receipt": {"at"}, "the child": {"at"}}
"""Attributes that have the minute, by kind of item. The judge needs the minute of a change that is visible now."""


def play(invoke: Invoke, route: str = "increment_plays", **fields: Any) -> None:
    event = events.http(route, **({"id": "v"} | fields), idempotency_key="k" * 22)
    assert invoke(event)["statusCode"] == 200


def like(invoke: Invoke, route: str = "put_anonymous", key: str | None = None) -> None:
    assert invoke.http(route, **HEART_FIELDS, idempotency_key=key)["statusCode"] == 200


def like_and_remove(invoke: Invoke) -> None:
    like(invoke)
    like(invoke, "delete_anonymous", "d" * 22)


def spill(invoke: Invoke, partition: str, change: Callable[[Invoke], None]) -> None:
    """Make a change while its tally is hot, so that the change is spilled."""
    invoke.store.breaker.trip(partition)
    change(invoke)
    invoke.store.breaker.close(partition)


def spill_like_and_remove(invoke: Invoke) -> None:
    spill(invoke, "PAGE#home", like)
    like(invoke, "delete_anonymous")


def send_direct_events(invoke: Invoke) -> None:
    assert invoke.direct("increment", counter="plays", id="v", idempotency_key="k" * 22)["status"] == 200
    page = {"url": PAGE, "idempotency_key": "v" * 22, "user_agent": FIREFOX, "address": "203.0.113.10"}
    assert invoke.direct("visit", **page)["status"] == 202


def import_like(invoke: Invoke) -> None:
    """Imports a like, as `tally import --children` does with a file from `tally export`."""
    hearts = COUNTERS["hearts"]
    name = anonymous.child_name(hearts, "home", SECRET)
    child = ChildRow(line=1, id="home", child=name, at_s=int(time.time()))
    [chunk] = imports.child_chunks([child])
    assert imports.import_children(Call(invoke.store), hearts, "run", chunk)["imported"] == 1


CASES: dict[str, tuple[Callable[[Invoke], None], dict[str, set[str]]]] = {
    "POST /visits": (visit, {}),
    "POST /visits of a crawler": (lambda invoke: visit(invoke, agent=GOOGLEBOT), {}),
    "direct events": (send_direct_events, MINUTES),
    "POST /counters/plays/{id}/increments": (play, MINUTES),
    "POST /videos/{id}/plays": (lambda invoke: play(invoke, "increment_plays_short_route"), MINUTES),
    "a play that spills": (lambda invoke: spill(invoke, "VID#v", play), {}),
    "PUT /counters/{counter}/{id}/anonymous": (like, MINUTES),
    "PUT /counters/{counter}/{id}/anonymous with a key": (lambda invoke: like(invoke, key="k" * 22), MINUTES),
    "a like that spills": (lambda invoke: spill(invoke, "PAGE#home", like), {"the child": {"at"}}),
    "DELETE /counters/{counter}/{id}/anonymous": (like_and_remove, MINUTES),
    "a like that is imported": (import_like, MINUTES),
    "the removal of a like that spilled": (spill_like_and_remove, MINUTES),
}
"""The changes, each with the attributes that may differ between two times of a day, by kind of item."""


def test_every_route_that_writes_for_anyone_has_a_case() -> None:
    routes = events.routes().values()
    assert {route.key for route in routes if route.access is Access.ANYONE and route.operation.writes} <= CASES.keys()


def kind_of(table: str, item: dict[str, Any]) -> str:
    """Returns the kind of an item, as in MINUTES."""
    if table == "receipts":
        return "the receipt"
    return "the child" if "#USER#" in item["SK"]["S"] else "the tally"


def take_items(store: Store) -> list[tuple[str, dict[str, Any]]]:
    """Empties the tables. Returns for each item its kind, and its attributes except random attributes."""
    kinds_and_items: list[tuple[str, dict[str, Any]]] = []
    for table, name in (("counts", store.settings.counts_table), ("receipts", store.settings.receipts_table)):
        for item in store.client.scan(TableName=name)["Items"]:
            keys = {key: item[key] for key in item.keys() & {"PK", "SK", "id"}}
            store.client.delete_item(TableName=name, Key=keys)
            kinds_and_items.append((kind_of(table, item), {key: item[key] for key in item.keys() - {"id", "nonce"}}))
    return sorted(kinds_and_items, key=lambda item: (item[0], json.dumps(item[1], sort_keys=True)))


@pytest.mark.parametrize("case", CASES)
def test_a_change_stores_the_same_at_two_times_of_a_day_except_in_allowed_attributes(
    case: str, store: Store, now: SimpleNamespace
) -> None:
    change, may_differ = CASES[case]
    invoke = Invoke(store)
    change(invoke)
    before = take_items(store)
    now.s += LATER_S
    change(invoke)
    after = take_items(store)
    assert len(before) == len(after) >= 1
    differences = [
        (kind, {name for name in old.keys() | new.keys() if old.get(name) != new.get(name)})
        for (kind, old), (_, new) in zip(before, after, strict=True)
    ]
    assert [(kind, names) for kind, names in differences if names - may_differ.get(kind, set())] == []
