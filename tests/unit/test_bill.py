"""The figures of docs/cost.md and README.md, and the worst day that `make deploy` prints."""

from __future__ import annotations

import csv
import re
from dataclasses import replace

import pytest

import counters
from bench import ROOT, cost, cost_pages
from bench.cost import Month, bill, million, prices
from tally.builtin import PAGE_VISITORS
from tally.cli.strangers import USD_PER_MILLION, worst_day_usd
from tally.contract.declarations import Declarations

PAGE = cost.PAGE.read_text()


def test_the_page_shows_the_figures_that_the_calculator_computes() -> None:
    assert (PAGE.count("<!-- make cost: "), PAGE.count("cost up to $"), PAGE.count(" in `dev`, and $")) == (5, 1, 1)
    assert cost_pages.fill_page(PAGE) == PAGE, "stale: run `make cost`"


def test_the_readme_shows_prices_of_the_page() -> None:
    millions = re.findall(r"^\| (\d+) million \| (\$[\d.]+) \|", PAGE, re.MULTILINE)
    [(dev, prod)] = re.findall(r"^\| total \| ([\d.]+) \| ([\d.]+) \|", PAGE, re.MULTILINE)
    readme = " ".join((ROOT / "README.md").read_text().split())
    (least, least_usd), (most, most_usd) = millions[0], millions[-1]
    assert f" cost {least_usd} at {least} million a month, and {most_usd} at {most} million," in readme
    assert f" An idle stack costs ${dev} a month, for production ${prod} " in readme


def test_few_changes_cost_more_each_and_a_batch_window_saves_nothing_in_an_idle_month() -> None:
    """With thresholds (`notifies`) the bookkeeper's window is 1 s. An idle bookkeeper gets one heartbeat a minute."""
    for notifies in (False, True):
        usd = [million("now", amount=volume * 1e6, notifies=notifies) for volume in cost_pages.VOLUMES]
        assert usd == sorted(usd, reverse=True)
        assert usd[-1] > 2.50 + 1, "each change pays for 4 write units and a request"
    assert bill(Month())["total"] == bill(Month(notifies=True))["total"]


def test_a_batch_that_spans_two_minutes_pays_for_two_segments() -> None:
    """If the first and the last record of a batch lie 30 s apart, every second batch pays for a second segment."""
    assert cost.minute_edge_units(tallies=1000, spread_s=0) == 0
    assert cost.minute_edge_units(tallies=0.01, spread_s=30) == pytest.approx(0, abs=0.01), (
        "a batch of one record is in one minute"
    )
    assert cost.minute_edge_units(tallies=10, spread_s=30) == pytest.approx(0.5 * cost.segment_units(10))


def test_each_price_names_a_page_of_aws_as_its_source() -> None:
    with cost.PRICES.open(encoding="utf-8", newline="") as file:
        sources = {row["name"]: row["source"] for row in csv.DictReader(file)}
    assert sources.keys() == prices().keys()
    assert all(source.startswith("https://aws.amazon.com/") for source in sources.values())
    assert all(price.usd > 0 for price in prices().values())


def test_prices_fall_above_a_quantity_and_the_free_tier_never_makes_a_price_negative() -> None:
    assert bill(Month({"read": 400e6}))["HTTP API"] == pytest.approx(300 + 90)  # $1 a million, and $0.90 above 300
    months = [Month(other_quantities={"user": users}) for users in (9_000, 12_000)]
    cognito_usd = [bill(month, free_tier=True)["Cognito"] for month in months]
    assert cognito_usd == pytest.approx([0, 2_000 * 0.0055])  # 10,000 users are free


def test_a_unit_without_a_price_is_an_error_and_not_free() -> None:
    with pytest.raises(KeyError, match="horses"):
        bill(Month(other_quantities={"horses": 1.0}))


def test_few_draws_are_all_different_and_many_draws_have_every_value() -> None:
    assert cost.distinct(draws=0.001, values=10_000) == pytest.approx(0.001)
    assert cost.distinct(draws=1000, values=1) == 1
    assert cost.distinct(draws=1e9, values=50) == pytest.approx(50)


def test_the_prices_of_strangers_are_the_prices_at_1000_requests_a_second() -> None:
    """Each request names an id of its own. A read pays one more read unit for each further number."""
    amount = 1000.0 * cost.MONTH_S
    usd = {kind: round(million(kind, amount, amount), 2) for kind in USD_PER_MILLION if kind != "number"}
    assert usd | {"number": prices()["read"].usd} == USD_PER_MILLION


def test_the_worst_day_pays_for_a_visitor_with_each_visit() -> None:
    declared = Declarations.load(ROOT / "lambdas/counters.py")
    with_visitors = replace(declared, counters={**declared.counters, PAGE_VISITORS.name: PAGE_VISITORS})
    (visit_route,) = [route for route in declared.routes if route.operation.name == "visit"]
    usd_of_visitors = visit_route.throttle.rate_per_s * 86_400 / 1e6 * USD_PER_MILLION["soon"]  # a receipt for each
    usd = worst_day_usd(declared, throttle_factor=1)
    assert worst_day_usd(with_visitors, throttle_factor=1) - usd >= usd_of_visitors - 0.01


def test_the_worst_day_depends_on_the_throttles_and_on_the_public_routes() -> None:
    declared = Declarations.load(ROOT / "lambdas/counters.py")
    usd = worst_day_usd(declared, throttle_factor=1)
    assert worst_day_usd(declared, throttle_factor=0.1) == pytest.approx(usd / 10)
    more_public = replace(declared, counters={**declared.counters, "stock": replace(counters.STOCK, read="anyone")})
    assert worst_day_usd(more_public, throttle_factor=1) > usd
    less_public = {**declared.counters, "hearts": replace(counters.HEARTS, changes="caller")}
    usd_of_writes = 2 * 100 * 86_400 / 1e6 * USD_PER_MILLION["like with a key"]  # PUT and DELETE, each 100 a second
    assert usd - worst_day_usd(replace(declared, counters=less_public), throttle_factor=1) > usd_of_writes
