"""A person without a token uses every route of the API document: no id comes back that they did not send."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

import counters
from counters import COUNTERS
from tally.api.operation import Route
from tally.builtin import PAGE_VISITORS
from tally.contract import samples
from tally.contract.declarations import OPERATIONS
from tally.contract.document import document
from tally.counter import ANYONE, Counter
from tally.counting import periods
from tally.dynamo import items, keys
from tally.dynamo.client import Call, Store
from tally.dynamo.transactions import commit_writes
from tally.series import hours, progress, top
from tally.series.hours import HourAmount
from tests import events
from tests.contexts import LambdaContext
from tests.integration.conftest import Invoke
from tests.integration.test_page_visitors import store as store
from tests.integration.test_periods import now as now
from tests.tiers import in_long

pytestmark = pytest.mark.sdk
SECRET, FAN = "s3cret", "f4n"  # each planted id holds one of them, and no sample does
PAGE = f"https://example.com/share/{SECRET}"
MINE = "my-own-id"
KEYS = {"idempotency_key": "k" * 22}


def planted(counter: Counter) -> str:
    return PAGE if counter.pages else f"{SECRET}-{counter.name}"


@pytest.fixture
def stored(store: Store, now: SimpleNamespace) -> Store:
    """Each counter has a number, its children, an hour of its series and a place in the list of that hour."""
    invoke, hour = Invoke(store), int(time.time()) // 3600
    table, board, moves = store.settings.ledger_table, top.TopListBuilder(), []
    new = progress.Progress(
        progress.minutes_of(store.settings, hour - 20)[0], store.settings.minute_of(time.time()), hour
    )
    commit_writes(
        Call(store), [items.update_write(table, progress.PROGRESS, new.values, expected=items.EXPECT_NO_ITEM)]
    )
    for counter in COUNTERS.values():
        id_ = planted(counter)
        tally = keys.key(counter.partition_start + periods.tally_id(counter, id_, time.time()), counter.sort_key)
        numbers = {counter.attribute: {"N": "7"}, "at": {"N": "1"}, "nonce": {"S": "n"}, "version": {"N": "1"}}
        store.client.put_item(TableName=store.settings.counts_table, Item={**tally, **numbers})
        if counter.child:
            child = keys.key(counter.partition_start + id_, f"{counter.child}{FAN}")
            like = {"likedAt": {"N": "1"}, "at": {"N": "1"}, "nonce": {"S": "n"}}
            store.client.put_item(TableName=store.settings.counts_table, Item={**child, **like})
        board.add(counter.name, id_, 7)
        moves += [HourAmount.of(counter.name, id_, 7), HourAmount.of(counter.name, hours.TOTAL_ID, 7)]
    top.write_lists(store, hour - 1, store.settings.minute_of(time.time()), board, list(COUNTERS))
    for move in moves:
        commit_writes(Call(store), [hours._hour_write(store.settings, hour - 1, move)])
    invoke.direct("put_post", id=f"{SECRET}-post", body="x", caller="alice")
    return store


def open_routes() -> list[Route]:
    """The routes that the API document has for people without a token, as API Gateway gets them."""
    described = document(OPERATIONS, COUNTERS)["paths"]
    found = {
        (method.upper(), path) for path, of in described.items() for method, one in of.items() if not one["security"]
    }
    routes = [route for route in events.routes().values() if (route.method, route.path) in found]
    assert {(route.method, route.path) for route in routes} == found
    return routes


def requests(route: Route) -> Iterator[dict[str, Any]]:
    """The sample of a route, and requests with ids of a person's own and with each counter that there is."""
    names = {field.name for field in route.fields}
    own: dict[str, Any] = {"id": MINE} if "id" in names else {"url": f"https://example.com/{MINE}"}
    yield {}
    for counter in COUNTERS.values():
        mine = f"https://example.com/{MINE}" if counter.pages else MINE
        for of in ([counter.name], [f"{counter.name}:{mine}"], [f"{counter.name}:"], [f"{counter.name}:{mine}"] * 3):
            made = own | {"counter": counter.name, "of": of if len(of) > 1 else of[0]}
            made |= {"target": f"{counter.name}/{mine}"} if "target" in names else {}
            yield {name: value for name, value in made.items() if name in names}
    for more in ({"by": "hour"}, {"by": "month"}, {"limit": 100}, {"cursor": "Zg"}, {"id": "%"}, {"of": ":"}):
        if more.keys() <= names:
            yield more


def answers(store: Store) -> dict[str, str]:
    """What a person without a token gets, by route and request. Each answer's status, headers and body, as text."""
    invoke, found = Invoke(store), {}
    for route in open_routes():
        for number, fields in enumerate(requests(route)):
            sent = {**fields, **(KEYS if "idempotency_key" in {one.name for one in route.fields} else {})}
            event = samples.http_event(route, COUNTERS, **sent)
            answer = invoke.entry(invoke._serving(event))(event, LambdaContext())
            found[f"{route.key} {number}"] = json.dumps(answer)
    return found


def told(found: dict[str, str], what: str) -> set[str]:
    """The routes whose answers have it."""
    return {name.rpartition(" ")[0] for name, text in found.items() if what in text}


def test_no_route_tells_a_person_without_a_token_an_id_that_they_did_not_send(stored: Store) -> None:
    found = answers(stored)
    assert len({name.rpartition(" ")[0] for name in found}) == len(open_routes()) >= 20
    assert (told(found, SECRET), told(found, FAN)) == (set(), set())
    assert {name for name, text in found.items() if '"statusCode": 5' in text} == set()
    assert told(found, MINE) >= {"GET /tallies", "GET /series", "GET /counters/plays/{id}"}


def test_who_knows_an_id_reads_its_number(stored: Store) -> None:
    invoke = Invoke(stored)
    of = [f"plays:{SECRET}-plays", f"visits:{PAGE}"]
    read = events.body_of(invoke.http("get_tallies", of=of))["tallies"]
    assert [one["value"] for one in read] == [7, 7]
    series = events.body_of(invoke.http("get_series", of=of[0]))
    assert (series["id"], sum(point["value"] for point in series["series"])) == (f"{SECRET}-plays", 7)


PUBLIC = [name for name, counter in counters.COUNTERS.items() if counter.public]


@pytest.mark.parametrize("listed", ["likes", "visits", *in_long(sorted({*PUBLIC} - {"likes", "visits"}))])
def test_a_counter_that_anyone_may_list_tells_its_own_ids_and_no_others(
    listed: str, stored: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = replace(COUNTERS[listed], lists=ANYONE)
    monkeypatch.setitem(COUNTERS, listed, opened)
    found = answers(stored)
    assert told(found, SECRET) == {"GET /top"}
    of_others = {planted(one) for one in COUNTERS.values() if not one.pages} - {planted(opened)}
    assert [id_ for id_ in of_others if told(found, f'"{id_}') or told(found, f'\\"{id_}')] == []
    invoke = Invoke(stored)
    if opened.child:
        children = events.body_of(invoke.http(f"list_children_{listed}", id=planted(opened)))["children"]
        assert [one["child"] for one in children] == [FAN]
    [place] = events.body_of(invoke.http("get_top", counter=listed))["top"]
    assert place == {"id": planted(opened), "value": 7}
    for other in COUNTERS.values():
        if other.name != listed:
            refused = events.body_of(invoke.http("get_top", counter=other.name))
            assert (refused["status"], SECRET in str(refused)) == (403, False), other.name


def test_a_stack_without_such_a_counter_has_no_route_for_lists() -> None:
    assert PAGE_VISITORS.lists == "service"
    assert {one.lists for one in COUNTERS.values()} == {"service"}
    assert [route.key for route in open_routes() if route.path == "/top" or route.path.endswith("/children")] == []
