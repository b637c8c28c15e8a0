"""The page of costs, and what `make deploy` says that strangers can cost."""

from __future__ import annotations

import csv
import re
from dataclasses import replace

import pytest

import counters
from bench import ROOT, cost, cost_pages
from bench.cost import Month, bill, million, prices
from tally.builtin import PAGE_VISITORS
from tally.cli.strangers import USD_PER_MILLION, worst_day
from tally.contract.declarations import Declarations

PAGE = cost.PAGE.read_text()


def test_the_page_shows_what_units_and_prices_make() -> None:
    assert (PAGE.count("<!-- make cost: "), PAGE.count("cost up to $"), PAGE.count(" in `dev`, and $")) == (5, 1, 1)
    assert cost_pages.fill_page(PAGE) == PAGE, "stale: run `make cost`"


def test_the_readme_says_of_a_million_what_the_page_says_now_and_soon() -> None:
    rows = re.findall(r"^\| (\d+) million \| \$([\d.]+) \| \$([\d.]+) \|", PAGE, re.MULTILINE)
    assert [int(millions) for millions, *_ in rows] == list(cost_pages.VOLUMES)
    readme = (ROOT / "README.md").read_text()
    for cells in ([f"{row[0]} million" for row in rows], *([f"${row[way]}" for row in rows] for way in (1, 2))):
        assert f" | {' | '.join(cells)} |\n" in readme


def test_fewer_changes_cost_more_each_and_a_window_saves_what_heartbeats_leave() -> None:
    """Without changes a consumer gets a heartbeat a minute, whatever its window."""
    for notifies in (False, True):
        usd = [million("now", amount=volume * 1e6, notifies=notifies) for volume in cost_pages.VOLUMES]
        assert usd == sorted(usd, reverse=True)
        assert usd[-1] > 2.50 + 1, "writes of the change, and its request"
    assert bill(Month())["total"] == bill(Month(notifies=True))["total"]


def test_a_batch_over_the_edge_of_a_minute_has_two_segments() -> None:
    """Half of the batches whose records lie half a minute apart. They have one checkpoint."""
    assert cost.minute_edge_units(1000, 0) == 0
    assert cost.minute_edge_units(0.01, 30) == pytest.approx(0, abs=0.01), "a batch of one record has no edge"
    assert cost.minute_edge_units(10, 30) == pytest.approx(0.5 * cost.segment_units(10))


def test_each_price_has_aws_as_its_source() -> None:
    with cost.PRICES.open(encoding="utf-8", newline="") as file:
        sources = {row["name"]: row["source"] for row in csv.DictReader(file)}
    assert sources.keys() == prices().keys()
    assert all(source.startswith("https://aws.amazon.com/") for source in sources.values())
    assert all(price.usd > 0 for price in prices().values())


def test_prices_fall_above_a_quantity_and_the_free_tier_is_no_refund() -> None:
    assert bill(Month({"read": 400e6}))["HTTP API"] == pytest.approx(300 + 90)
    of = [bill(Month(more={"user": users}), free_tier=True)["Cognito"] for users in (9_000, 12_000)]
    assert of == pytest.approx([0, 2_000 * 0.0055])


def test_a_unit_without_a_price_is_an_error_and_not_free() -> None:
    with pytest.raises(KeyError, match="horses"):
        bill(Month(more={"horses": 1.0}))


def test_few_and_many_draws() -> None:
    assert cost.distinct(0.001, 10_000) == pytest.approx(0.001)
    assert cost.distinct(1000, 1) == 1
    assert cost.distinct(1e9, 50) == pytest.approx(50)


def test_a_deploy_knows_what_a_stranger_costs_at_1000_requests_a_second() -> None:
    """Each about another id. A number more is a read unit more."""
    amount = 1000.0 * cost.MONTH_S
    assert {kind: round(million(kind, amount, amount), 2) for kind in USD_PER_MILLION if kind != "number"} | {
        "number": prices()["read"].usd
    } == USD_PER_MILLION


def test_a_worst_day_has_a_visitor_for_each_visit() -> None:
    declared = Declarations.load(ROOT / "lambdas/counters.py")
    more = replace(declared, counters={**declared.counters, PAGE_VISITORS.name: PAGE_VISITORS})
    (visits,) = [route for route in declared.routes if route.operation.name == "visit"]
    visitors = visits.throttle.scaled_by(1).rate_per_s * 86_400 / 1e6 * USD_PER_MILLION["soon"]
    assert worst_day(more, 1) - worst_day(declared, 1) >= visitors - 0.01


def test_the_worst_day_follows_the_throttles_and_the_routes_for_anyone() -> None:
    declared = Declarations.load(ROOT / "lambdas/counters.py")
    whole = worst_day(declared, 1)
    assert worst_day(declared, 0.1) == pytest.approx(whole / 10)
    opened = replace(declared, counters={**declared.counters, "stock": replace(counters.STOCK, read="anyone")})
    assert worst_day(opened, 1) > whole
    signed_in = {**declared.counters, "hearts": replace(counters.HEARTS, changes="caller")}
    likes = 2 * 100 * 86_400 / 1e6 * USD_PER_MILLION["like with a key"]  # PUT and DELETE; and two routes that read
    assert whole - worst_day(replace(declared, counters=signed_in), 1) > likes
