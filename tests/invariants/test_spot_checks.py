"""Spot checks: the sweep recounts the items of some groups, and reports the numbers that are wrong."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from tally.counter import Counter
from tally.dev.base.engine import Engine
from tally.drift import rows
from tally.dynamo.client import Store
from tally.items import Items
from tally.team import scan_state, spot_checks
from tests.invariants.processes import WatchedClient
from tests.invariants.team_table import LATER_S, Team, make_team

ORDERS = Counter(
    "orders", prefix="ORDERS", sort_key="N", attribute="n", items=Items("shop", partition_prefix="CUSTOMER#")
)


@pytest.fixture
def shop(store: Store, engine: Engine) -> Team:
    """A team table with three orders of each of eight customers, whose numbers a scan has set."""
    team = make_team(store, engine, {"orders": ORDERS})
    team.store = replace(team.store, settings=team.store.settings._replace(spot_check_units=100))
    for customer in range(8):
        for order in range(3):
            team.put(f"CUSTOMER#{customer}", f"ORDER#{order}")
    team.drain()
    team.count("orders")
    return team


def run_spot_checks(shop: Team) -> dict[str, int]:
    """Runs a sweep, and the spot checks of this sweep. Returns the metrics of the spot checks."""
    shop.drain()
    shop.sweep_later()
    return spot_checks.run_spot_checks(shop.store, shop.counters, time.time(), time.monotonic() + 60)


def test_a_spot_check_of_an_edited_group_finds_the_edit(shop: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep begins a check, and the next sweep ends the check. Each of the four checks has up to five groups."""
    keys = iter(range(8))  # a check draws a partition key and a sort key
    monkeypatch.setattr(spot_checks, "_random_key", lambda _: {"S": f"CUSTOMER#{next(keys) // 2}"})
    shop.add_by_hand("orders", "5", 4)
    for _ in range(8):
        run_spot_checks(shop)
    assert [(row.target, row.drift) for row in rows.all_rows(shop.store)] == [("5", 4)]
    assert shop.numbers("orders") == {**shop.truth("orders"), "5": 3 + 4}, "a spot check repairs nothing"


def test_spot_checks_do_not_report_numbers_that_are_right(shop: Team) -> None:
    groups_checked = 0
    for turn in range(12):
        shop.put(f"CUSTOMER#{turn % 8}", f"MORE#{turn}")
        shop.delete(f"CUSTOMER#{turn % 8}", "ORDER#1")
        metrics = run_spot_checks(shop)
        groups_checked += metrics["groups_checked"]
        assert metrics["groups_wrong"] == 0
    shop.drain()
    assert groups_checked > 0
    assert (list(rows.all_rows(shop.store)), shop.numbers("orders")) == ([], shop.truth("orders"))


def test_a_spot_check_beyond_its_units_is_abandoned_and_0_units_begin_no_check(shop: Team) -> None:
    shop.store = replace(shop.store, settings=shop.store.settings._replace(spot_check_units=3))
    for _ in range(4):
        assert run_spot_checks(shop)["groups_checked"] == 0
    assert scan_state.read_scan(shop.store, "orders").closed
    shop.store = replace(shop.store, settings=shop.store.settings._replace(spot_check_units=0))
    scan_before = scan_state.read_scan(shop.store, "orders")
    run_spot_checks(shop)
    assert scan_state.read_scan(shop.store, "orders") == scan_before


def test_a_record_of_a_group_that_is_not_checked_reads_no_marker(shop: Team) -> None:
    """A spot check is open most of the time, and most records are of other groups."""
    scan = scan_state.begin(shop.store, shop.counters["orders"], time.time(), ["1"], is_spot_check=True)
    assert scan is not None
    reads = WatchedClient(shop.wire, frozenset({"batch_get_item"}))
    shop.handler = shop.process(reads)
    shop.put("CUSTOMER#2", "ORDER#new")
    shop.drain()
    assert len(reads.calls) == 0
    shop.put("CUSTOMER#1", "ORDER#new")
    shop.drain()
    assert len(reads.calls) == 1


def test_a_spot_check_does_not_replace_a_scan_that_a_person_began(shop: Team) -> None:
    recount = shop.begin_scan("orders")
    assert run_spot_checks(shop)["groups_checked"] == 0
    assert scan_state.read_scan(shop.store, "orders") == recount.scan
    recount.close()
    scan_state.invalidate(shop.store, scan_state.read_scan(shop.store, "orders"))
    not_counted = scan_state.read_scan(shop.store, "orders")
    run_spot_checks(shop)
    assert scan_state.read_scan(shop.store, "orders") == not_counted, "a person has to scan first"


def test_a_spot_check_that_does_not_complete_in_time_is_abandoned(shop: Team) -> None:
    now_s = time.time()
    spot_checks.run_spot_checks(shop.store, shop.counters, now_s + LATER_S, time.monotonic() + 60)
    assert not scan_state.read_scan(shop.store, "orders").closed
    assert spot_checks.run_spot_checks(shop.store, shop.counters, now_s, time.monotonic() + 60)["groups_checked"] == 0
    late_s = now_s + LATER_S + spot_checks.ABANDON_AFTER * 60 + 1
    spot_checks.run_spot_checks(shop.store, shop.counters, late_s, time.monotonic() + 60)
    assert scan_state.read_scan(shop.store, "orders").closed
