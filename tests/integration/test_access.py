"""A counter's `changes`, `read` and `path` decide its routes, its functions, and whom it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import counters
from counters import COUNTERS
from tally.api.operation import RATE_100_PER_S, WRITES, Access
from tally.contract.declarations import Declarations
from tally.counter import ANYONE, CALLER, Counter, declared
from tally.dynamo.client import Store
from tally.errors import ConfigurationError
from tests import events
from tests.integration.conftest import Invoke

VIEWS = Counter(
    "views", prefix="ARTICLE", sort_key="VIEWS", attribute="views", delta=1, changes=ANYONE, read=ANYONE, lists=ANYONE
)
FANS = Counter("fans", prefix="BAND", sort_key="FANS", attribute="fans", child="FAN#USER#", read=ANYONE, lists=ANYONE)
VOTES = Counter("votes", prefix="POLL", sort_key="VOTES", attribute="votes", changes=CALLER, path="/polls/{id}/votes")
DECLARED = Declarations(Path(), declared([*COUNTERS.values(), VIEWS, FANS, VOTES]), counters.PAGES)
ROUTES = {route.id: route for route in DECLARED.routes}
ACCESS = {
    "increment": (Access.WRITE, "POST /counters/{counter}/{id}/increments"),
    "increment_plays": (Access.ANYONE, "POST /counters/plays/{id}/increments"),
    "increment_plays_short_route": (Access.ANYONE, "POST /videos/{id}/plays"),
    "increment_views": (Access.ANYONE, "POST /counters/views/{id}/increments"),
    "increment_votes": (Access.SIGNED_IN, "POST /counters/votes/{id}/increments"),
    "increment_votes_short_route": (Access.SIGNED_IN, "POST /polls/{id}/votes"),
    "get_counter": (Access.READ, "GET /counters/{counter}/{id}"),
    "get_counter_plays": (Access.ANYONE, "GET /counters/plays/{id}"),
    "get_counter_plays_short_route": (Access.ANYONE, "GET /videos/{id}/plays"),
    "get_counter_likes": (Access.ANYONE, "GET /counters/likes/{id}"),
    "get_counter_hearts": (Access.ANYONE, "GET /counters/hearts/{id}"),
    "get_counter_fans": (Access.ANYONE, "GET /counters/fans/{id}"),
    "get_counter_views": (Access.ANYONE, "GET /counters/views/{id}"),
    "get_counter_votes_short_route": (Access.READ, "GET /polls/{id}/votes"),
    "put_mine": (Access.SIGNED_IN, "PUT /counters/{counter}/{id}/mine"),
    "put_mine_likes_short_route": (Access.SIGNED_IN, "PUT /posts/{id}/like"),
    "list_children": (Access.READ, "GET /counters/{counter}/{id}/children"),
    "list_children_fans": (Access.ANYONE, "GET /counters/fans/{id}/children"),
    "put_child": (Access.WRITE, "PUT /counters/{counter}/{id}/child"),
    "remove_parent": (Access.WRITE, "DELETE /counters/{counter}/{id}"),
}


@pytest.fixture
def invoke(store: Store, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    for counter in (VIEWS, FANS, VOTES):
        monkeypatch.setitem(COUNTERS, counter.name, counter)
    return Invoke(store)


def test_the_routes_of_a_counter_follow_from_its_declaration() -> None:
    names = {"increment", "get_counter", "put_mine", "list_children", "put_child", "remove_parent"}
    access = {name: (route.access, route.key) for name, route in ROUTES.items() if route.operation.name in names}
    assert access == ACCESS
    assert len({route.key for route in ROUTES.values()}) == len(ROUTES)
    throttles = {
        name: ROUTES[name].throttle for name in ("increment", "increment_plays", "increment_plays_short_route")
    }
    assert throttles == {"increment": WRITES, "increment_plays": RATE_100_PER_S, "increment_plays_short_route": WRITES}


def test_strangers_and_users_reach_only_functions_that_may_not_change_counters_of_services() -> None:
    """The function `increments` serves all counters, and needs the scope tally/write. `increments_open` serves counters
    that strangers or signed-in users change. The same holds for `children`."""
    functions = DECLARED.routes_by_function
    assert {name for name in functions if name.endswith("_open")} == {"increments_open", "children_open"}
    for name, routes in functions.items():
        writes = [route for route in routes if route.operation.writes and route.operation.has_counter_in_path]
        serves_services = name in ("increments", "children", "holds", "changes")
        assert all((route.scope is not None) == serves_services for route in writes), name
    moved_prefixes = {need.prefix for need in DECLARED.needs["increments_open"] if need.action == "UpdateItem"}
    assert moved_prefixes == {"VID#", "ARTICLE#", "POLL#"}, "plays, views and votes"
    written_prefixes = {
        need.prefix for need in DECLARED.needs["children_open"] if need.action in ("PutItem", "UpdateItem")
    }
    assert written_prefixes == {"POST#", "PAGE#", "tally#"}, "likes, hearts and receipts"
    assert {"ITEM#", "VID#"} <= {need.prefix for need in DECLARED.needs["increments"]}


@pytest.mark.parametrize(
    ("function", "event", "status"),
    [
        ("increments_open", {"operation": "increment", "counter": "stock", "id": "mug", "amount": 1}, 403),
        ("increments_open", {"operation": "set_counter", "counter": "stock", "id": "mug", "value": 1}, 400),
        ("children_open", {"operation": "put_mine", "counter": "members", "id": "acme"}, 403),
        ("children_open", {"operation": "remove_parent", "counter": "likes", "id": "a"}, 400),
        ("increments", {"operation": "increment", "counter": "plays", "id": "9f3a"}, 200),
    ],
)
def test_a_function_for_strangers_and_users_refuses_counters_and_operations_of_services(
    function: str, event: dict[str, Any], status: int, invoke: Invoke
) -> None:
    answer = invoke(event | {"idempotency_key": events.KEY, "caller": "ann"}, function=function)
    assert answer["status"] == status, answer


def test_the_route_decides_how_long_a_key_must_be(invoke: Invoke) -> None:
    """Anonymous keys must be hard to guess. A known caller's key counts with the caller's name, so it may be short."""
    short, long = "k" * 21, "k" * 22
    assert [invoke.http("increment_plays", idempotency_key=key)["statusCode"] for key in (short, long)] == [400, 200]
    assert invoke.http("increment", counter="plays", amount=None, idempotency_key="k")["statusCode"] == 200
    assert invoke.http("increment_votes_short_route", amount=1, idempotency_key="k")["statusCode"] == 200
    plays = {"counter": "plays", "id": "9f3a"}
    assert invoke.direct("increment", **plays, idempotency_key=short)["status"] == 400
    assert invoke.direct("increment", **plays, idempotency_key="k", caller="ann")["status"] == 200


@pytest.mark.parametrize("counter", ["stock", "members", "votes"])
def test_a_change_without_a_caller_is_refused_unless_anyone_may_make_it(counter: str, invoke: Invoke) -> None:
    event = {"counter": counter, "id": "x", "idempotency_key": events.KEY}
    operation, fields = ("put_child", {"name": "bob"}) if counter == "members" else ("increment", {"amount": 1})
    refused = invoke.direct(operation, **event, **fields)
    assert (refused["status"], refused["body"]["field"]) == (400, "caller")
    assert invoke.direct(operation, **event, **fields, caller="shop")["status"] == 200


PRIVATE = [
    ("get_series", "get_any_series", {"of": "stock:mug"}),
    ("get_series", "get_any_series", {"of": "stock"}),
    ("get_top", "get_any_top", {"counter": "stock"}),
    ("get_top", "get_any_top", {"counter": "plays"}),  # anyone reads plays by their ids, and only services list plays
    ("get_counter_badge", "get_counter", {"counter": "stock", "id": "mug"}),
]


@pytest.mark.parametrize(
    ("open_route", "scoped_route", "fields"), PRIVATE, ids=[str(fields) for _, _, fields in PRIVATE]
)
def test_what_only_services_read_is_answered_with_403_without_the_scope(
    open_route: str, scoped_route: str, fields: dict[str, Any], invoke: Invoke
) -> None:
    for refused in (invoke.http(open_route, **fields), invoke.direct(open_route, **fields)):
        assert events.status_of(refused) == 403
        assert events.body_of(refused)["type"] == "urn:problem-type:tally:forbidden"
    assert invoke.http(scoped_route, **fields)["statusCode"] == 200
    unknown = {name: value.replace("stock", "nothing").replace("plays", "nothing") for name, value in fields.items()}
    assert invoke.http(open_route, **unknown)["statusCode"] == 404


@pytest.mark.parametrize(
    ("path", "taken_by"),
    [("/posts/{id}", "get_post"), ("/videos/{id}/plays", "plays"), ("/counters/plays/{id}", "get_counter")],
)
def test_a_path_that_another_route_has_is_refused_with_the_name_of_that_route(path: str, taken_by: str) -> None:
    def declare_counter_with_path() -> None:
        clash = Counter("clash", prefix="CLASH", sort_key="N", attribute="n", read=ANYONE, path=path)
        Declarations(Path(), declared([*COUNTERS.values(), clash]), counters.PAGES).check()

    with pytest.raises(ConfigurationError, match=f"^counter 'clash': .*{taken_by}"):
        declare_counter_with_path()
