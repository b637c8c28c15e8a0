"""A person without a token uses every route of the API document. No answer has an id that the person did not send."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

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
from tests.tiers import marked_long

pytestmark = pytest.mark.sdk
SECRET, FAN = "s3cret", "f4n"  # every stored id contains SECRET or FAN, and no sample does
PAGE = f"https://example.com/share/{SECRET}"
MINE = "my-own-id"
KEY_FIELD = {"idempotency_key": "k" * 22}


def stored_id(counter: Counter) -> str:
    return PAGE if counter.pages else f"{SECRET}-{counter.name}"


@pytest.fixture
def filled_store(store: Store, now: SimpleNamespace) -> Store:
    """A store in which each counter has a number, children, an hour of its series and a place in a top list."""
    invoke, hour = Invoke(store), int(time.time()) // 3600
    table, top_list, amounts = store.settings.ledger_table, top.TopListBuilder(), []
    first_minute = progress.minutes_of(store.settings, hour - 20)[0]
    now_minute = store.settings.minute_of(time.time())
    series_progress = progress.Progress(since=first_minute, through=now_minute, hour=hour)
    write = items.update_write(table, progress.PROGRESS, series_progress.values, expected=items.EXPECT_NO_ITEM)
    commit_writes(Call(store), [write])
    for counter in COUNTERS.values():
        id_ = stored_id(counter)
        tally = keys.key(counter.partition_start + periods.tally_id(counter, id_, time.time()), counter.sort_key)
        numbers = {counter.attribute: {"N": "7"}, "at": {"N": "1"}, "nonce": {"S": "n"}, "version": {"N": "1"}}
        store.client.put_item(TableName=store.settings.counts_table, Item={**tally, **numbers})
        if counter.child:
            child = keys.key(counter.partition_start + id_, f"{counter.child}{FAN}")
            like = {"likedAt": {"N": "1"}, "at": {"N": "1"}, "nonce": {"S": "n"}}
            store.client.put_item(TableName=store.settings.counts_table, Item={**child, **like})
        top_list.add(counter.name, id_, 7)
        amounts += [HourAmount.of(counter.name, id_, 7), HourAmount.of(counter.name, hours.TOTAL_ID, 7)]
    top.write_lists(store, hour - 1, now_minute, top_list, list(COUNTERS))
    for amount in amounts:
        commit_writes(Call(store), [hours._hour_write(store.settings, hour - 1, amount)])
    invoke.direct("put_post", id=f"{SECRET}-post", body="x", caller="alice")
    return store


def open_routes() -> list[Route]:
    """Returns the routes that the API document has for people without a token."""
    paths = document(OPERATIONS, COUNTERS)["paths"]
    open_paths = {
        (method.upper(), path)
        for path, methods in paths.items()
        for method, operation in methods.items()
        if not operation["security"]
    }
    routes = [route for route in events.routes().values() if (route.method, route.path) in open_paths]
    assert {(route.method, route.path) for route in routes} == open_paths
    return routes


def requests(route: Route) -> Iterator[dict[str, Any]]:
    """Yields the fields of a route's requests: none, a person's own id with each counter, and odd values."""
    names = {field.name for field in route.fields}
    target: dict[str, Any] = {"id": MINE} if "id" in names else {"url": f"https://example.com/{MINE}"}
    yield {}
    for counter in COUNTERS.values():
        own_id = f"https://example.com/{MINE}" if counter.pages else MINE
        of_own_id = f"{counter.name}:{own_id}"
        for of in ([counter.name], [of_own_id], [f"{counter.name}:"], [of_own_id] * 3):
            fields = target | {"counter": counter.name, "of": of if len(of) > 1 else of[0]}
            fields |= {"target": f"{counter.name}/{own_id}"} if "target" in names else {}
            yield {name: value for name, value in fields.items() if name in names}
    for odd in ({"by": "hour"}, {"by": "month"}, {"limit": 100}, {"cursor": "Zg"}, {"id": "%"}, {"of": ":"}):
        if odd.keys() <= names:
            yield odd


def answers_to_stranger(store: Store) -> dict[str, str]:
    """Returns the answers to a person without a token, by route and request, each as text with status and headers."""
    invoke, texts = Invoke(store), {}
    for route in open_routes():
        for number, fields in enumerate(requests(route)):
            needs_key = any(field.name == "idempotency_key" for field in route.fields)
            event = samples.http_event(route, COUNTERS, **fields, **(KEY_FIELD if needs_key else {}))
            answer = invoke.entry(invoke.function_of(event))(event, LambdaContext())
            texts[f"{route.key} {number}"] = json.dumps(answer)
    return texts


def routes_with(text: str, answers: dict[str, str]) -> set[str]:
    """Returns the routes with an answer that has this text."""
    return {name.rpartition(" ")[0] for name, answer in answers.items() if text in answer}


def test_no_route_answers_a_person_without_a_token_with_an_id_that_they_did_not_send(filled_store: Store) -> None:
    answers = answers_to_stranger(filled_store)
    assert len({name.rpartition(" ")[0] for name in answers}) == len(open_routes()) >= 20
    assert (routes_with(SECRET, answers), routes_with(FAN, answers)) == (set(), set())
    assert {name for name, text in answers.items() if '"statusCode": 5' in text} == set(), "no request fails"
    assert routes_with(MINE, answers) >= {"GET /tallies", "GET /series", "GET /counters/plays/{id}"}


def test_a_person_who_knows_an_id_reads_its_number(filled_store: Store) -> None:
    invoke = Invoke(filled_store)
    of = [f"plays:{SECRET}-plays", f"visits:{PAGE}"]
    entries = events.body_of(invoke.http("get_tallies", of=of))["tallies"]
    assert [entry["value"] for entry in entries] == [7, 7]
    series = events.body_of(invoke.http("get_series", of=of[0]))
    assert (series["id"], sum(point["value"] for point in series["series"])) == (f"{SECRET}-plays", 7)


PUBLIC = [name for name, counter in COUNTERS.items() if counter.public]


@pytest.mark.parametrize("name", ["likes", "visits", *marked_long(sorted({*PUBLIC} - {"likes", "visits"}))])
def test_the_lists_of_a_counter_that_anyone_may_list_have_only_ids_of_this_counter(
    name: str, filled_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed_counter = replace(COUNTERS[name], lists=ANYONE)
    monkeypatch.setitem(COUNTERS, name, listed_counter)
    answers = answers_to_stranger(filled_store)
    assert routes_with(SECRET, answers) == {"GET /top"}
    other_ids = {stored_id(counter) for counter in COUNTERS.values() if not counter.pages} - {stored_id(listed_counter)}
    # An answer may have an id in its JSON body, whose quotes are escaped in the text.
    assert [id_ for id_ in other_ids if routes_with(f'"{id_}', answers) or routes_with(f'\\"{id_}', answers)] == []
    invoke = Invoke(filled_store)
    if listed_counter.child:
        children = events.body_of(invoke.http(f"list_children_{name}", id=stored_id(listed_counter)))["children"]
        assert [child["child"] for child in children] == [FAN]
    [place] = events.body_of(invoke.http("get_top", counter=name))["top"]
    assert place == {"id": stored_id(listed_counter), "value": 7}
    for other in COUNTERS.values():
        if other.name != name:
            refused = events.body_of(invoke.http("get_top", counter=other.name))
            assert (refused["status"], SECRET in str(refused)) == (403, False), other.name


def test_a_stack_without_a_counter_that_anyone_may_list_has_no_open_route_for_lists() -> None:
    assert PAGE_VISITORS.lists == "service"
    assert {counter.lists for counter in COUNTERS.values()} == {"service"}
    assert [route.key for route in open_routes() if route.path == "/top" or route.path.endswith("/children")] == []
