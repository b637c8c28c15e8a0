"""The sweep counts the items of some groups again, and says which numbers are off."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from tally.counter import Counter
from tally.counting import tallies
from tally.dev.base.engine import Engine
from tally.drift import rows
from tally.dynamo.client import Store
from tally.items import Items
from tally.team import scan_state, spot_checks
from tests.invariants.processes import WatchedClient
from tests.invariants.team_table import LATER_S, Team
from tests.sync_wire import SyncWire

ORDERS = Counter(
    "orders", prefix="ORDERS", sort_key="N", attribute="n", items=Items("shop", partition_prefix="CUSTOMER#")
)


@pytest.fixture
def shop(store: Store, engine: Engine) -> Team:
    wire = store.client
    assert isinstance(wire, SyncWire)
    made = Team(store, wire, {"orders": ORDERS}, "shop", engine.endpoint)
    made.store = replace(made.store, settings=made.store.settings._replace(spot_check_units=100))
    for customer in range(8):
        for order in range(3):
            made.put(f"CUSTOMER#{customer}", f"ORDER#{order}")
    made.drain()
    made.count("orders")
    return made


def checked(shop: Team) -> dict[str, int]:
    """A sweep, and what it said."""
    shop.drain()
    shop.sweep_later()
    return spot_checks.run_spot_checks(shop.store, shop.counters, time.time(), time.monotonic() + 60)


def edited(shop: Team, group: str, amount: int) -> None:
    """Somebody edits a number."""
    shop.wire.update_item(
        TableName=shop.store.settings.counts_table, Key=tallies.key(ORDERS, group, 0),
        UpdateExpression="ADD n :amount", ExpressionAttributeValues={":amount": {"N": str(amount)}},
    )  # fmt: skip


def test_an_edit_is_found(shop: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where chance comes to its group: its places are those of all groups here, one after the other."""
    places = iter(range(8))
    monkeypatch.setattr(spot_checks, "_random_key", lambda _: {"S": f"CUSTOMER#{next(places) // 2}"})
    edited(shop, "5", 4)
    for _ in range(8):
        checked(shop)
    off = list(rows.all_rows(shop.store))
    assert [(row.target, row.drift) for row in off] == [("5", 4)]
    assert shop.numbers("orders") == {**shop.truth("orders"), "5": 7}  # it repairs nothing


def test_nothing_is_said_of_numbers_that_are_right(shop: Team) -> None:
    looked = 0
    for turn in range(12):
        shop.put(f"CUSTOMER#{turn % 8}", f"MORE#{turn}")
        shop.delete(f"CUSTOMER#{turn % 8}", "ORDER#1")
        done = checked(shop)
        looked += done["groups_checked"]
        assert done["groups_off"] == 0
    shop.drain()
    assert (looked > 0, list(rows.all_rows(shop.store)), shop.numbers("orders")) == (True, [], shop.truth("orders"))


def test_it_takes_no_more_units_than_are_allowed(shop: Team) -> None:
    shop.store = replace(shop.store, settings=shop.store.settings._replace(spot_check_units=3))
    for _ in range(4):
        assert checked(shop)["groups_checked"] == 0
    assert scan_state.read_scan(shop.store, "orders").closed
    shop.store = replace(shop.store, settings=shop.store.settings._replace(spot_check_units=0))
    before = scan_state.read_scan(shop.store, "orders")
    checked(shop)
    assert scan_state.read_scan(shop.store, "orders") == before


def test_records_of_groups_that_it_does_not_count_read_no_marker(shop: Team) -> None:
    """It is open nearly always, and most records are of other groups."""
    scan = scan_state.begin(shop.store, shop.counters["orders"], time.time(), ["1"], spot=True)
    assert scan is not None
    reads = WatchedClient(shop.wire, frozenset({"batch_get_item"}))
    shop.handler = shop.process(reads)
    shop.put("CUSTOMER#2", "ORDER#new")
    shop.drain()
    assert reads.writes == 0
    shop.put("CUSTOMER#1", "ORDER#new")
    shop.drain()
    assert reads.writes == 1


def test_it_leaves_alone_what_a_person_counts(shop: Team) -> None:
    recount = shop.begin_scan("orders")
    assert checked(shop)["groups_checked"] == 0
    assert scan_state.read_scan(shop.store, "orders") == recount.scan
    recount.close()
    scan_state.invalidate(shop.store, scan_state.read_scan(shop.store, "orders"))
    spoiled = scan_state.read_scan(shop.store, "orders")
    checked(shop)
    assert scan_state.read_scan(shop.store, "orders") == spoiled


def test_one_that_is_not_settled_in_time_is_given_up(shop: Team) -> None:
    now_s = time.time()
    spot_checks.run_spot_checks(shop.store, shop.counters, now_s + LATER_S, time.monotonic() + 60)
    assert not scan_state.read_scan(shop.store, "orders").closed
    assert spot_checks.run_spot_checks(shop.store, shop.counters, now_s, time.monotonic() + 60)["groups_checked"] == 0
    late_s = now_s + LATER_S + spot_checks.ABANDON_AFTER_MIN * 60 + 1
    spot_checks.run_spot_checks(shop.store, shop.counters, late_s, time.monotonic() + 60)
    assert scan_state.read_scan(shop.store, "orders").closed
