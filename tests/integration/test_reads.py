"""Reads of numbers: who may read, how long caches keep answers, and the value in the answer to a change."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

import pytest
from botocore.exceptions import ClientError

from bench.instruments import Meter
from counters import COUNTERS
from tally.counter import Counter
from tally.counting import tallies
from tally.dynamo import items
from tally.dynamo.client import Call, Store
from tally.ids import encode_id
from tally.items import GROUP_CHARACTERS_MAX, Items
from tally.streams import watermark
from tally.team import scan_state
from tests import events
from tests.contexts import LambdaContext
from tests.integration.conftest import Invoke

pytestmark = pytest.mark.sdk
VIEWS = Counter("views", prefix="ARTICLE", sort_key="VIEWS", attribute="views", read="anyone", max_age_s=5)
ORDERS = Counter("orders", prefix="ORDERS", sort_key="OPEN", attribute="open", read="anyone", items=Items("shop"))
SEATS = Counter("seats", prefix="SHOW", sort_key="SEATS", attribute="seats", floor=0, read="anyone")
FLOOR_AND_CEILING = Counter("both", prefix="ROOM", sort_key="BOTH", attribute="both", start=5, floor=2, ceiling=9)
WITH_START = Counter("with_start", prefix="ROOM", sort_key="BEGUN", attribute="begun", start=5)
ReadOrAdd = Callable[..., dict[str, Any]]
PAGE = "https://example.com/a"
TOKEN = {"authorization": "Bearer anything"}


@pytest.fixture
def invoke(store: Store, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """Invokes functions that read this test's counters, too."""
    for counter in (VIEWS, SEATS, ORDERS, FLOOR_AND_CEILING, WITH_START):
        monkeypatch.setitem(COUNTERS, counter.name, counter)
    return Invoke(store)


@pytest.fixture
def read_or_add(invoke: Invoke) -> ReadOrAdd:
    """Returns a function that reads the number 7c20 of a counter without a token, or, with fields, adds to it."""

    def call(counter: str, headers: dict[str, str] | None = None, **change: Any) -> dict[str, Any]:
        if change:
            return invoke.direct("increment", counter=counter, id="7c20", caller="checkout", **change)
        return invoke.http(f"get_counter_{counter}", id="7c20", headers=headers)

    return call


def test_anyone_reads_a_public_counter_and_a_cache_keeps_the_answer_for_the_declared_time(
    read_or_add: ReadOrAdd, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_or_add("views", amount=3, idempotency_key="a")
    answer = read_or_add("views")
    assert answer["statusCode"] == 200
    assert events.body_of(answer) == {"counter": "views", "id": "7c20", "value": 3}
    headers = answer["headers"]
    assert (headers["content-type"], headers["cache-control"]) == ("application/json", "public, max-age=5")
    assert "authorization" in headers["vary"], "a caller with a token does not get the cached answer for anyone"
    revalidated = read_or_add("views", {"if-none-match": headers["etag"]})
    assert (revalidated["statusCode"], revalidated["body"]) == (304, "")
    assert revalidated["headers"]["etag"] == headers["etag"]
    read_or_add("views", amount=1, idempotency_key="b")
    assert read_or_add("views", {"if-none-match": headers["etag"]})["statusCode"] == 200
    read_or_add("seats", amount=2, idempotency_key="c")
    assert read_or_add("seats")["headers"]["etag"] == '"1"', "the ETag of a counter with versions is the version"
    monkeypatch.setitem(COUNTERS, "seats", replace(SEATS, floor=-3))
    after_deploy = Invoke(store).http("get_counter_seats", id="7c20", headers={"if-none-match": '"1"'})
    assert after_deploy["statusCode"] == 200, "a deploy has changed the limit, but not the version"
    assert events.body_of(after_deploy)["left"] == 5


ANSWERS = [  # counter, the amounts of its shards, and the fields of the answer
    (FLOOR_AND_CEILING, {}, {"value": 5, "version": 0, "limit": 9, "left": 4}),
    (FLOOR_AND_CEILING, {"shard0": 2}, {"value": 7, "version": 1, "limit": 9, "left": 2}),
    (WITH_START, {"shard0": 2}, {"value": 7, "version": 1}),
    (COUNTERS["stock"], {"shard0": 3}, {"value": 3, "version": 1, "limit": 0, "left": 3}),
    (COUNTERS["contest"], {"shard0": -1}, {"value": 99, "version": 1, "limit": 0, "left": 99}),
    (COUNTERS["plays"], {"shard0": 2, "shard3": 5}, {"value": 7}),
]


@pytest.mark.parametrize(
    ("counter", "amounts", "numbers_and_limit"), ANSWERS, ids=lambda part: getattr(part, "name", "")
)
def test_a_read_of_one_unit_answers_the_number_its_limit_and_what_is_left(
    counter: Counter, amounts: dict[str, int], numbers_and_limit: dict[str, int], invoke: Invoke, store: Store,
    meter: Meter,
) -> None:  # fmt: skip
    add(store, counter, "x", **amounts)
    meter.reset()
    tally = {"counter": counter.name, "id": "x"}
    assert events.body_of(invoke.http("get_counter", **tally)) == tally | numbers_and_limit
    assert (meter.requests, meter.read_units) == (1, 1)
    [entry] = events.body_of(invoke(read_with_scope(f"{counter.name}:x")))["tallies"]
    assert entry == tally | {name: value for name, value in numbers_and_limit.items() if name != "version"}
    assert (meter.requests, meter.read_units) == (2, 2)


@pytest.mark.usefixtures("midday")
def test_the_override_of_a_limit_is_read_together_with_the_number(invoke: Invoke, store: Store, meter: Meter) -> None:
    """If the item of this period lacks the id's override, a read of one or many numbers takes one more request."""
    calls: dict[str, Any] = {"counter": "calls"}

    def read(*ids: str) -> tuple[list[list[int]], tuple[int, int], tuple[float, float]]:
        """Returns value, limit and rest of each id, and the requests and the units of reads one by one and together."""
        meter.reset()
        single = [invoke.direct("get_counter", **calls, id=id_)["body"] for id_ in ids]
        requests, units = meter.requests, meter.read_units
        meter.reset()
        [*many] = events.body_of(invoke(read_with_scope(*(f"calls:{id_}" for id_ in ids))))["tallies"]
        assert many == single
        assert {body["resets_at"] for body in single} == {(int(time.time()) // 86400 + 1) * 86400}
        numbers_and_limits = [[body["value"], body["limit"], body["left"]] for body in single]
        return numbers_and_limits, (requests, meter.requests), (units, meter.read_units)

    assert read("a", "b") == ([[0, 1000, 1000]] * 2, (4, 2), (4, 4))
    for id_, limit in (("a", 20), ("b", 0)):
        invoke.direct("put_limit", **calls, id=id_, limit=limit, idempotency_key=id_, caller="sales")
    expected = [[0, 20, 20], [0, 0, 0]], (2, 1), (2, 2)
    assert read("a", "b") == expected, "`put_limit` copies the override into the item of this period"
    invoke.direct("increment", **calls, id="a", amount=7, idempotency_key="c", caller="gate")
    invoke.direct("put_limit", **calls, id="a", limit=5, idempotency_key="d", caller="sales")
    assert read("a") == ([[7, 5, -2]], (1, 1), (1, 1))


def test_no_cache_keeps_an_answer_to_a_caller_with_a_token(read_or_add: ReadOrAdd, invoke: Invoke) -> None:
    assert read_or_add("views", TOKEN)["headers"]["cache-control"] == "no-store"
    plays = invoke.http("get_counter_plays_short_route", headers=TOKEN)
    assert plays["headers"]["cache-control"] == "no-store"
    stock = invoke.http("get_counter", counter="stock")
    assert (stock["headers"]["cache-control"], stock["headers"]["etag"]) == ("no-store", '"0"')


def test_no_cache_keeps_a_refusal(invoke: Invoke) -> None:
    answer = invoke.http("get_post")
    assert (answer["statusCode"], answer["headers"]["cache-control"]) == (404, "no-store")
    assert "etag" not in answer["headers"], json.dumps(answer)


# Many numbers in one request


def read_as_anyone(*tally_names: str) -> dict[str, Any]:
    """Returns the HTTP request of a person without a token for these tallies."""
    return events.http("get_tallies", query=urlencode([("of", name) for name in tally_names]))


def read_with_scope(*tally_names: str) -> dict[str, Any]:
    """Returns the HTTP request of a caller with the scope tally/read for these tallies."""
    return events.http("get_any_tallies", query=urlencode([("of", name) for name in tally_names]))


def numbers(answer: dict[str, Any]) -> list[Any]:
    """Returns for each entry of an answer its value, or the slug of its problem."""
    entries = events.body_of(answer)["tallies"]
    return [entry["value"] if "value" in entry else entry["error"]["type"].rpartition(":")[2] for entry in entries]


def add(store: Store, counter: Counter, id_: str, **amounts: int) -> None:
    """Add amounts to shards of a tally: `shard3=5`."""
    for shard, amount in amounts.items():
        write = tallies.add_write(Call(store), counter, id_, int(shard.removeprefix("shard")), amount, minute=0)
        store.client.update_item(**write)


def test_many_numbers_are_answered_in_order_and_each_is_read_once(invoke: Invoke, store: Store, meter: Meter) -> None:
    add(store, COUNTERS["plays"], "9f3a", shard0=2, shard3=5)
    add(store, SEATS, "7c20", shard0=7)
    add(store, VIEWS, "7c20", shard0=1)
    meter.reset()
    names = ("seats:7c20", "plays:9f3a", "views:7c20", "seats:none", "plays:none", "plays:9f3a", "seats:7c20")
    answer = invoke(read_as_anyone(*names))
    assert numbers(answer) == [7, 7, 1, 0, 0, 7, 7]
    first = events.body_of(answer)["tallies"][0]
    assert first == {"counter": "seats", "id": "7c20", "value": 7, "limit": 0, "left": 7}
    assert meter.requests == 4, "one request for all tallies with one item, and one for each other tally"
    assert meter.read_units <= 5, "a unit for each of the five tallies"
    assert answer["headers"]["cache-control"] == "public, max-age=1", "the shortest time of the counters"
    conditional = read_as_anyone("seats:7c20")
    conditional["headers"]["if-none-match"] = invoke(read_as_anyone("seats:7c20"))["headers"]["etag"]
    assert invoke(conditional)["statusCode"] == 304


def test_a_refused_entry_does_not_fail_the_other_entries(invoke: Invoke, store: Store) -> None:
    add(store, COUNTERS["plays"], "9f3a", shard0=2)
    answer = invoke(read_as_anyone("plays:9f3a", "nothing:x", "stock:mug", "plays:a b", "plays:", "plays", "visits:x"))
    assert numbers(answer) == [2, "not-found", "forbidden", *["invalid-input"] * 4]
    for without_an_id in events.body_of(answer)["tallies"][4:6]:
        assert without_an_id["error"]["detail"] == "of must be COUNTER:ID, such as plays:9f3a."
    refused = events.body_of(answer)["tallies"][2]
    assert (refused["counter"], refused["id"], refused["error"]["status"]) == ("stock", "mug", 403)


def test_a_page_of_a_host_that_is_not_listed_is_refused(store: Store) -> None:
    with_page_hosts = replace(store, settings=store.settings._replace(page_hosts=frozenset({"example.com"})))
    answer = Invoke(with_page_hosts)(read_as_anyone(f"visits:{PAGE}", "visits:https://example.org/a"))
    assert numbers(answer) == [0, "forbidden"]
    badges = [Invoke(with_page_hosts).http("get_visits_badge", url=url) for url in (PAGE, "https://example.org/a")]
    assert [badge["statusCode"] for badge in badges] == [200, 403]


def test_rolled_up_numbers_have_as_of(invoke: Invoke, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a watermark, `as_of` is null. With a watermark, `as_of` is the stored time less the clock skew, 5 s."""

    def as_of_of_reads() -> list[int | None]:
        monkeypatch.setattr(watermark, "_cached", None)
        [entry, plays] = events.body_of(invoke(read_as_anyone(f"visits:{PAGE}", "plays:x")))["tallies"]
        assert "as_of" not in plays
        return [invoke.direct("get_visits", url=PAGE)["body"]["as_of"], entry["as_of"]]

    assert as_of_of_reads() == [None, None]
    rolled_s = int(time.time()) - 90
    stored_watermark = items.to_wire({"reads_complete_s": rolled_s})
    store.client.put_item(TableName=store.settings.ledger_table, Item=watermark.WATERMARK_KEY | stored_watermark)
    assert as_of_of_reads() == [rolled_s - 5] * 2


def test_a_counter_of_items_has_no_number_until_a_scan_has_counted_the_items(invoke: Invoke, store: Store) -> None:
    """The scan must have counted by the present declaration. `about`: `as_of` is approximate."""
    add(store, ORDERS, "ann", shard0=4)
    ann = {"counter": "orders", "id": "ann"}
    for digest in (None, "of another declaration", ORDERS.items_digest):  # None: the scan is abandoned
        open_scan = scan_state.begin(store, ORDERS, time.time())
        assert open_scan is not None
        assert_not_counted(invoke, ann)
        scan_state.close(store, open_scan, digest)
        if digest != ORDERS.items_digest:
            assert_not_counted(invoke, ann)
    answer = events.body_of(invoke.http("get_counter", **ann))
    assert answer == {"counter": "orders", "id": "ann", "value": 4, "as_of": None, "about": True}
    passed_item = scan_state.passed_key("shop") | items.to_wire({"passed": 1_800_000_000})
    store.client.put_item(TableName=store.settings.ledger_table, Item=passed_item)
    [entry] = events.body_of(invoke(read_as_anyone("orders:ann")))["tallies"]
    assert entry == answer | {"as_of": 1_800_000_000}
    assert invoke.http("get_counter_badge", **ann)["statusCode"] == 200


def assert_not_counted(invoke: Invoke, tally: dict[str, str]) -> None:
    """Fails unless each read of this tally of `orders` is refused, and a read with others still has the others."""
    refused = [invoke.http(name, **tally) for name in ("get_counter", "get_counter_badge")]
    assert [answer["statusCode"] for answer in refused] == [409, 409]
    assert "run `tally scan orders`" in events.body_of(refused[0])["detail"]
    assert numbers(invoke(read_as_anyone(f"orders:{tally['id']}", "plays:x"))) == ["not-counted", 0]


def test_the_status_says_which_items_are_not_counted(invoke: Invoke, store: Store) -> None:
    def part() -> tuple[str, str]:
        parts = invoke.direct("get_status")["body"]["parts"]
        return next((part["state"], part["line"]) for part in parts if part["name"] == "items")

    assert part() == ("wrong", "orders not counted: run `tally scan orders`")
    open_scan = scan_state.begin(store, ORDERS, time.time())
    assert open_scan is not None
    scan_state.close(store, open_scan, ORDERS.items_digest)
    assert part() == ("ok", "orders counted")
    add(store, ORDERS, "~-group", shard0=3)  # the group of all items with the fault `group`; ?: no example is stored
    line = "orders counted; orders does not count 3 with a group that no id can be made of, such as ?"
    assert part() == ("ok", line)


@pytest.mark.parametrize("letter", ["返", "😀"])
def test_the_number_of_the_longest_possible_group_can_be_read(invoke: Invoke, store: Store, letter: str) -> None:
    """The group's id has nine or twelve characters for each letter. Reads allow this length, changes do not."""
    group = encode_id(letter * GROUP_CHARACTERS_MAX)
    add(store, ORDERS, group, shard0=4)
    open_scan = scan_state.begin(store, ORDERS, time.time())
    assert open_scan is not None
    scan_state.close(store, open_scan, ORDERS.items_digest)
    read = events.body_of(invoke.http("get_counter", counter="orders", id=group))
    [entry] = events.body_of(invoke(read_as_anyone(f"orders:{group}")))["tallies"]
    details = invoke.direct("get_details", counter="orders", id=group)["body"]
    assert [read["value"], entry["value"], details["value"]] == [4, 4, 4]
    assert invoke.http("get_counter_badge", counter="orders", id=group)["statusCode"] == 200
    change = invoke.http("increment", counter="plays", id=group)
    assert (change["statusCode"], "id must be 1 to 256" in events.body_of(change)["detail"]) == (400, True)
    too_long = invoke.http("get_counter", counter="orders", id=f"{group}x" * 2)
    assert too_long["statusCode"] == 400


@pytest.mark.parametrize("action", ["Query", "BatchGetItem"])
def test_if_one_of_many_numbers_cannot_be_read_all_are_answered_with_503(
    action: str, invoke: Invoke, store: Store
) -> None:
    """The sixth query, or the only BatchGetItem, raises what the SDK raises after its last attempt."""
    reads = itertools.count()

    def throttle(**_: Any) -> None:
        if action == "BatchGetItem" or next(reads) == 5:
            raise ClientError({"Error": {"Code": "ThrottlingException", "Message": "slow"}}, action)

    store.client.meta.events.register(f"before-call.dynamodb.{action}", throttle)
    answer = invoke(read_with_scope("stock:mug", *(f"plays:{number}" for number in range(20))))
    assert (answer["statusCode"], answer["headers"]["retry-after"]) == (503, "1")
    assert "tallies" not in events.body_of(answer)


# The value in the answer to a change


def change(invoke: Invoke, counter: str, key: str, amount: int = 1, **more: Any) -> dict[str, Any]:
    """Makes a change that asks for the value, and returns the answer's body."""
    event = {"operation": "increment", "counter": counter, "id": "x", "caller": "alice", "idempotency_key": key}
    return dict(invoke({**event, "amount": amount, "value": True, **more})["body"])


def test_a_change_answers_the_value_with_one_more_read_unit(invoke: Invoke, store: Store, meter: Meter) -> None:
    add(store, COUNTERS["usage"], "x", shard0=4, shard7=5)
    meter.reset()
    first = change(invoke, "usage", "a", 7)
    assert first == {"counter": "usage", "id": "x", "counted": True, "visible": "now", "value": 4 + 5 + 7}
    assert (meter.write_units, meter.read_units) == (4, 1)
    stock = change(invoke, "stock", "a", 5)
    assert (stock["value"], "version" in stock) == (5, False)
    answer = invoke.http("increment", counter="ticket", amount=None, query="value=true")
    assert events.body_of(answer)["value"] == events.body_of(answer)["number"] == 1


def test_a_replay_reads_the_present_value_and_no_receipt_has_the_value(invoke: Invoke, store: Store) -> None:
    change(invoke, "stock", "a", 5)
    change(invoke, "stock", "b", -2)
    replay = invoke({
        "operation": "increment", "counter": "stock", "id": "x", "caller": "alice", "idempotency_key": "a", "amount": 5,
        "value": True,
    })  # fmt: skip
    assert (replay["replayed"], replay["body"]["value"]) == (True, 3)
    receipts = store.client.scan(TableName=store.settings.receipts_table)["Items"]
    assert ["value" in json.loads(receipt["data"]["S"]) for receipt in receipts] == [False, False]


def test_a_replay_after_midnight_answers_the_number_of_the_first_answers_period(
    invoke: Invoke, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_time, to_midnight_s = time.time, -time.time() % 86400
    monkeypatch.setattr(time, "time", lambda: real_time() + to_midnight_s - 300)
    first = change(invoke, "calls", "late", 700)
    monkeypatch.setattr(time, "time", lambda: real_time() + to_midnight_s + 300)
    assert change(invoke, "calls", "early", 5)["value"] == 5
    assert change(invoke, "calls", "late", 700) == first
    monkeypatch.setattr(time, "time", lambda: real_time() + to_midnight_s + 300 + 36 * 86400)  # 35 days are kept
    body = {name: first[name] for name in ("counter", "id", "period", "visible")}
    in_time = Call(store, deadline_s=store.clock() + 60)
    assert tallies.with_value(in_time, COUNTERS["calls"], "x", body) == body, "the tally of the period has expired"


@pytest.mark.parametrize("remaining_ms", [10_000, 9_000])
def test_a_change_succeeds_without_its_value_if_the_value_cannot_be_read_in_time(
    remaining_ms: int, invoke: Invoke, store: Store
) -> None:
    """With 10 s left, a read begins, and is throttled. With 9 s left, no read begins, because it may take so long."""

    def throttle(**_: Any) -> None:
        raise ClientError({"Error": {"Code": "ThrottlingException", "Message": "slow"}}, "Query")

    if remaining_ms == 10_000:
        store.client.meta.events.register("before-call.dynamodb.Query", throttle)
    event = {"operation": "increment", "counter": "stock", "id": "x", "caller": "alice", "idempotency_key": "a"}
    answer = invoke({**event, "amount": 5, "value": True}, LambdaContext(remaining_ms))
    assert (answer["status"], answer["body"]) == (
        200, {"counter": "stock", "id": "x", "counted": True, "visible": "now"},
    )  # fmt: skip


def test_a_request_for_the_series_of_a_counter_of_items_is_refused(invoke: Invoke) -> None:
    requests = {
        "get_series": {"of": "orders:ann"}, "get_any_series": {"of": "orders"},
        "get_any_top": {"counter": "orders"},
    }  # fmt: skip
    for operation, fields in requests.items():
        answer = invoke.direct(operation, **fields)
        assert (answer["status"], answer["body"]["detail"]) == (400, "orders counts items: it has no series.")


def test_a_change_that_is_visible_soon_answers_no_value(invoke: Invoke, store: Store) -> None:
    store.breaker.trip("USER#x")
    answer = change(invoke, "usage", "a", 7)
    assert answer == {"counter": "usage", "id": "x", "counted": True, "visible": "soon"}


def test_each_entry_of_a_batch_answers_the_value_after_its_own_change(invoke: Invoke) -> None:
    event = {"operation": "increment", "counter": "usage", "id": "x", "amount": 2, "caller": "alice"}
    batch = [{**event, "idempotency_key": f"{number}", "value": number < 2} for number in range(3)]
    bodies = [result["body"] for result in invoke({"batch": batch})["results"]]
    assert [body.get("value") for body in bodies] == [2, 4, None]


def test_the_target_of_a_receipt_must_be_a_valid_id(invoke: Invoke) -> None:
    """`unknown` would tell the caller that the change did not count, although only the id is wrong."""
    query = {"of": "increment", "key": ["k" * 22]}
    refused = invoke.direct("get_receipts", target=["plays//posts/x/"], **query)
    assert (refused["status"], refused["body"]["field"]) == (400, "target")
    assert refused["body"]["detail"].endswith("write ~2Fposts~2Fx~2F")
    [receipt] = invoke.direct("get_receipts", target=["plays/~2Fposts~2Fx~2F"], **query)["body"]["receipts"]
    assert receipt["state"] == "unknown"
