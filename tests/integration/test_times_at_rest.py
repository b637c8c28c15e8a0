"""What is stored of people without a name says of the time no more than the day, or what docs/privacy.md names.

The access log has the address and the second of each request. A stored time that is as fine would join the two.
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
HEART = {"counter": "hearts", "id": "home", "secret": SECRET}
LATER_S = 3 * 3600 + 7 * 60 + 41  # on the same day
MINUTES = {"the tally": {"at"}, "its receipt": {"at"}, "the child": {"at"}}
"""What has the minute, because the judge compares it: changes that are visible now, and their tallies."""


def play(invoke: Invoke, route: str = "increment_plays", **fields: Any) -> None:
    event = events.http(route, **({"id": "v"} | fields), idempotency_key="k" * 22)
    assert invoke(event)["statusCode"] == 200


def heart(invoke: Invoke, route: str = "put_anonymous", key: str | None = None) -> None:
    assert invoke.http(route, **HEART, idempotency_key=key)["statusCode"] == 200


def taken_back(invoke: Invoke) -> None:
    heart(invoke)
    heart(invoke, "delete_anonymous", "d" * 22)


def hot(invoke: Invoke, partition: str, *then: Callable[[], None]) -> None:
    """While a tally is hot, changes of it are written alone."""
    invoke.store.breaker.trip(partition)
    for step in then:
        step()
        invoke.store.breaker.close(partition)


def direct(invoke: Invoke) -> None:
    assert invoke.direct("increment", counter="plays", id="v", idempotency_key="k" * 22)["status"] == 200
    page = {"url": PAGE, "idempotency_key": "v" * 22, "user_agent": FIREFOX, "address": "203.0.113.10"}
    assert invoke.direct("visit", **page)["status"] == 202


def imported(invoke: Invoke) -> None:
    """`tally import --children` of what `tally export` wrote elsewhere."""
    hearts = COUNTERS["hearts"]
    child = ChildRow(1, "home", anonymous.child_name(hearts, "home", SECRET), int(time.time()))
    [chunk] = imports.child_chunks([child])
    assert imports.import_children(Call(invoke.store), hearts, "run", chunk)["imported"] == 1


CASES: dict[str, tuple[Callable[[Invoke], None], dict[str, set[str]]]] = {
    "POST /visits": (lambda invoke: visit(invoke), {}),
    "POST /visits of a crawler": (lambda invoke: visit(invoke, agent=GOOGLEBOT), {}),
    "direct events": (direct, MINUTES),
    "POST /counters/plays/{id}/increments": (play, MINUTES),
    "POST /videos/{id}/plays": (lambda invoke: play(invoke, "increment_plays_short"), MINUTES),
    "a play that spills": (lambda invoke: hot(invoke, "VID#v", lambda: play(invoke)), {}),
    "PUT /counters/{counter}/{id}/anonymous": (heart, MINUTES),
    "the same with a key": (lambda invoke: heart(invoke, key="k" * 22), MINUTES),
    "a like that spills": (lambda invoke: hot(invoke, "PAGE#home", lambda: heart(invoke)), {"the child": {"at"}}),
    "DELETE /counters/{counter}/{id}/anonymous": (
        taken_back, MINUTES,
    ),
    "a like that is imported": (imported, MINUTES),
    "a like that spilled is taken back": (
        lambda invoke: hot(invoke, "PAGE#home", lambda: heart(invoke), lambda: heart(invoke, "delete_anonymous")),
        MINUTES,
    ),
}  # fmt: skip


def test_every_change_that_strangers_may_make_is_tried() -> None:
    routes = events.routes().values()
    assert {one.key for one in routes if one.access is Access.ANYONE and one.operation.writes} <= CASES.keys()


def kind(table: str, item: dict[str, Any]) -> str:
    if table == "receipts":
        return "its receipt"
    return "the child" if "#USER#" in item["SK"]["S"] else "the tally"


def taken(store: Store) -> list[tuple[str, dict[str, Any]]]:
    """Empties the tables, and returns the kind of each item, and its attributes but for those that are random."""
    found: list[tuple[str, dict[str, Any]]] = []
    for table, name in (("counts", store.settings.counts_table), ("receipts", store.settings.receipts_table)):
        for item in store.client.scan(TableName=name)["Items"]:
            keys = {key: item[key] for key in item.keys() & {"PK", "SK", "id"}}
            store.client.delete_item(TableName=name, Key=keys)
            found.append((kind(table, item), {key: item[key] for key in item.keys() - {"id", "nonce"}}))
    return sorted(found, key=lambda one: (one[0], json.dumps(one[1], sort_keys=True)))


@pytest.mark.parametrize("case", CASES)
def test_what_is_stored_is_the_same_at_two_times_of_a_day_but_for_what_is_named(
    case: str, store: Store, now: SimpleNamespace
) -> None:
    change, allowed = CASES[case]
    invoke = Invoke(store)
    change(invoke)
    before = taken(store)
    now.s += LATER_S
    change(invoke)
    after = taken(store)
    assert len(before) == len(after) >= 1
    differ = [
        (was, {name for name in old.keys() | new.keys() if old.get(name) != new.get(name)})
        for (was, old), (_, new) in zip(before, after, strict=True)
    ]
    assert [(of, names) for of, names in differ if names - allowed.get(of, set())] == []
