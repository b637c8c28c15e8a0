"""Heartbeats in a team's table prove how far the consumer has come. Without heartbeats, Tally estimates how far."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from tally.counter import Counter
from tally.dev.base.engine import Engine
from tally.dynamo.client import Store
from tally.dynamo.shards import StreamShards
from tally.items import HEARTBEAT_PREFIX, Items
from tally.streams import heartbeats
from tally.team import scan_state
from tests.invariants.team_table import LATER_S, Team, make_team
from tests.patience import wait_for

ORDER_ITEMS = Items("shop", sort_key="SK", sort_prefix="ORDER#")
ORDERS = Counter("orders", prefix="ORDERS", sort_key="N", attribute="n", items=ORDER_ITEMS)


def shop_team(store: Store, engine: Engine, items: Items) -> Team:
    return make_team(store, engine, {"orders": replace(ORDERS, items=items)})


def lag_s(shop: Team, later_s: float = LATER_S) -> float:
    """Runs the sweep `later_s` later. Returns how far the stored watermark is behind that time."""
    shop.sweep_later(later_s)
    return time.time() + later_s - scan_state.passed_s(shop.store, "shop")


def count_heartbeats(shop: Team) -> int:
    """Returns how many items of the table are heartbeats."""
    return sum(item["PK"]["S"].startswith(HEARTBEAT_PREFIX) for item in shop.items())


def test_nothing_is_passed_before_the_consumer_has_met_a_heartbeat(store: Store, engine: Engine) -> None:
    shop = shop_team(store, engine, replace(ORDER_ITEMS, heartbeats=True))
    shop.put("a", "ORDER#1")
    shop.drain()
    assert lag_s(shop) > LATER_S - 5  # the watermark does not advance: a stream that shows no record proves nothing
    heartbeat_count = count_heartbeats(shop)
    assert heartbeat_count > 0
    shop.drain()
    passed_before_s = scan_state.passed_s(shop.store, "shop")
    wait_for(lambda: time.time() > passed_before_s + 1)  # the time of a record is in whole seconds
    shop.sweep_later()
    shop.drain()
    shop.sweep_later()
    assert scan_state.passed_s(shop.store, "shop") > passed_before_s
    shop.sweep_later()
    assert count_heartbeats(shop) == heartbeat_count, "each sweep updates the same items"


def test_a_heartbeat_that_fails_proves_nothing(store: Store, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = shop_team(store, engine, replace(ORDER_ITEMS, heartbeats=True))
    shop.put("a", "ORDER#1")
    shop.drain()
    monkeypatch.setattr(heartbeats, "_try_send", lambda *_: False)
    assert lag_s(shop) > LATER_S - 5


def test_a_heartbeat_is_not_counted(store: Store, engine: Engine) -> None:
    shop = shop_team(store, engine, Items("shop", heartbeats=True))
    shop.put("a", "1")
    shop.drain()
    shop.sweep_later()
    recount = shop.begin_scan("orders")
    list(recount.run_steps())
    shop.drain()
    assert [(difference.group, difference.recount) for difference in recount.all_differences()] == [("a", 1)]


def test_without_heartbeats_a_record_that_the_stream_still_shows_is_not_passed(
    store: Store, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = shop_team(store, engine, ORDER_ITEMS)
    shop.put("a", "ORDER#1")
    shop.drain()
    assert lag_s(shop) < LATER_S / 2  # the consumer has read every record
    shop.put("a", "ORDER#2")
    before_s = scan_state.passed_s(shop.store, "shop")
    assert lag_s(shop, 2 * LATER_S) > LATER_S  # the second order is not passed
    # A record may follow empty answers. After PEEK_EMPTY (5) of them, the sweep takes the shard for empty.
    monkeypatch.setattr(StreamShards, "records_after", lambda *_: iter([[]] * 9))
    shop.sweep_later(2 * LATER_S)
    assert scan_state.passed_s(shop.store, "shop") > before_s, "the stream hides the record, so the estimate is wrong"
