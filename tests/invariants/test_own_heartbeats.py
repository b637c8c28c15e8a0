"""Heartbeats in a team's table prove what the consumer has passed; without them it is about."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from tally.counter import Counter
from tally.dev.base.engine import Engine
from tally.dynamo.client import Store
from tally.dynamo.shards import StreamShards
from tally.items import HEARTBEAT_START, Items
from tally.streams import watermark
from tally.team import scan_state
from tests.invariants.team_table import LATER_S, Team
from tests.patience import wait_for
from tests.sync_wire import SyncWire

OF = Items("shop", sort_key="SK", sort_prefix="ORDER#")
ORDERS = Counter("orders", prefix="ORDERS", sort_key="N", attribute="n", items=OF)


def team(store: Store, engine: Engine, of: Items) -> Team:
    wire = store.client
    assert isinstance(wire, SyncWire)
    return Team(store, wire, {"orders": replace(ORDERS, items=of)}, "shop", engine.endpoint)


def noted(shop: Team, later_s: float = LATER_S) -> float:
    """For how many seconds before a sweep the consumer has passed everything."""
    shop.sweep_later(later_s)
    return time.time() + later_s - scan_state.passed_s(shop.store, "shop")


def test_nothing_is_passed_before_the_consumer_has_met_a_heartbeat(store: Store, engine: Engine) -> None:
    shop = team(store, engine, replace(OF, heartbeats=True))
    shop.put("a", "ORDER#1")
    shop.drain()
    assert noted(shop) > LATER_S - 5  # a stream that shows no record proves nothing
    beats = [item for item in shop.items() if item["PK"]["S"].startswith(HEARTBEAT_START)]
    assert beats
    shop.drain()
    order_s = scan_state.passed_s(shop.store, "shop")
    wait_for(lambda: time.time() > order_s + 1)  # stamps of records have whole seconds
    shop.sweep_later()
    shop.drain()
    shop.sweep_later()
    assert scan_state.passed_s(shop.store, "shop") > order_s
    shop.sweep_later()
    assert len([item for item in shop.items() if item["PK"]["S"].startswith(HEARTBEAT_START)]) == len(beats)


def test_a_heartbeat_that_fails_proves_nothing(store: Store, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = team(store, engine, replace(OF, heartbeats=True))
    shop.put("a", "ORDER#1")
    shop.drain()
    monkeypatch.setattr(watermark, "_try_send", lambda *_: False)
    assert noted(shop) > LATER_S - 5


def test_a_heartbeat_counts_for_nothing(store: Store, engine: Engine) -> None:
    shop = team(store, engine, Items("shop", heartbeats=True))
    shop.put("a", "1")
    shop.drain()
    shop.sweep_later()
    recount = shop.begin_scan("orders")
    for _ in recount.run_steps():
        pass
    shop.drain()
    assert [(off.group, off.recount) for off in recount.all_differences()] == [("a", 1)]


def test_without_heartbeats_a_record_that_is_left_is_not_passed(
    store: Store, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = team(store, engine, OF)
    shop.put("a", "ORDER#1")
    shop.drain()
    assert noted(shop) < LATER_S / 2  # about: nothing is left
    shop.put("a", "ORDER#2")
    before_s = scan_state.passed_s(shop.store, "shop")
    assert noted(shop, 2 * LATER_S) > LATER_S
    monkeypatch.setattr(StreamShards, "records_after", lambda *_: iter([[]] * 9))
    shop.sweep_later(2 * LATER_S)
    assert scan_state.passed_s(shop.store, "shop") > before_s  # a stream that does not show it: that is why it is about
