"""The calculator: the price list, the bills, the command, and the page that it writes."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import operations
from cli.__main__ import main
from cli.cost import page, traffic, units, worst_day
from cli.cost.prices import Bill, Usage, price_list
from cli.cost.template import BEFORE, DEV, PROD, stages
from cli.cost.traffic import BATCH, DIRECT, Month
from cli.cost.worst_day import Attack
from counters import COUNTERS
from tally.operation import by_route

ROOT = Path(__file__).resolve().parents[2]
PRICES = {price.id: price for price in price_list().prices}
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_DEFAULT_REGION", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: str) -> tuple[int, str, str]:
        try:
            code = main(["cost", *arguments])
        except SystemExit as stopped:
            code = int(stopped.code or 0)
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


NOBODY = Month()


def total(month: Month = NOBODY, stage: str = PROD) -> float:
    """US dollars of a month."""
    return Bill(traffic.usage(month, stages()[stage])).total


def test_the_list_names_its_region_its_date_and_the_source_of_each_price() -> None:
    assert price_list().region == "us-east-1"
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", price_list().date)
    assert len(PRICES) == len(price_list().prices)
    for price in PRICES.values():
        assert price.source.startswith("https://aws.amazon.com/")
        assert not price.checked or price.checked.startswith("https://")
        assert price.usd > 0


def test_prices_fall_above_a_quantity_and_the_free_tier_is_taken_off_on_request() -> None:
    http = PRICES["http"]
    assert http.of(300e6) == pytest.approx(300)
    assert http.of(400e6) == pytest.approx(300 + 90)
    assert PRICES["metric"].of(12) == pytest.approx(3.6)
    assert PRICES["metric"].of(12, free_tier=True) == pytest.approx(0.6)
    assert PRICES["metric"].of(9, free_tier=True) == 0


def test_a_unit_without_a_price_is_an_error_and_not_free() -> None:
    with pytest.raises(KeyError, match="no price for horses"):
        Bill(Usage({"horses": 1.0}))


def test_a_bill_adds_up() -> None:
    bill = Bill(
        traffic.usage(Month(plays=50e6, likes=5e6, visits=200e6, increments=1e6, holds=1e5, reads=1e9, users=9))
    )
    assert bill.total == pytest.approx(sum(bill.of(service) for service in price_list().services))
    assert all(math.isfinite(line.quantity) and line.quantity > 0 for line in bill.lines)


def test_the_changes_themselves_are_billed_as_they_are_measured() -> None:
    """The rest of the write units are those of the streams; with a single item they are few."""
    used = traffic.usage(Month(plays=1e9, items=1))["write"]
    assert 4e9 < used < 4.2e9
    batched = traffic.usage(Month(plays=1e9, items=1, via=BATCH))["write"]
    assert 2.02e9 < batched < 2.2e9
    assert 1e9 < traffic.usage(Month(visits=1e9, items=1))["write"] < 1.2e9


@pytest.mark.parametrize("amount", [1.0, 1e3, 1e6, 1e9, 1e12])
def test_more_of_anything_costs_more_and_a_cheaper_way_is_cheaper(amount: float) -> None:
    for name in ("plays", "likes", "visits", "increments", "holds", "reads", "users", "tokens"):
        some, more = (total(Month(**{name: times * amount})) for times in (1, 2))
        assert total() < some < more, name
    plays = Month(plays=amount, items=10)
    assert total(replace(plays, via=BATCH)) < total(replace(plays, via=DIRECT)) < total(plays)
    assert total(replace(plays, log_sampling=0)) < total(plays)
    assert total(replace(plays, items=1)) <= total(plays) <= total(replace(plays, items=1e6))


def test_the_readme_says_what_a_million_plays_cost() -> None:
    assert "a million plays over HTTP cost about $5" in " ".join((ROOT / "README.md").read_text().split())
    assert (total(Month(plays=300e6)) - total()) / 300 == pytest.approx(5, rel=0.1)


def test_reads_that_the_edge_answers_reach_neither_api_nor_table() -> None:
    month = Month(reads=1e9)
    without, with_edge = (traffic.usage(replace(month, edge=edge)) for edge in (None, 0.9))
    assert with_edge["http"] == pytest.approx(without["http"] * 0.1)
    assert with_edge["edge"] == with_edge["inspected"] == 1e9
    saved = without["read"] - with_edge["read"]
    assert saved == pytest.approx(0.9e9)


def test_one_program_that_keeps_its_tokens_pays_for_few() -> None:
    assert traffic.usage(Month(increments=1e6))["token"] == 730
    assert traffic.usage(Month(increments=1e6, tokens=1e6))["token"] == 1e6
    assert traffic.usage(Month(increments=1e6, via=BATCH))["token"] == 0
    assert traffic.usage(Month(plays=1e6))["token"] == 0


def test_what_a_stage_alone_cost_before() -> None:
    """13 snapshots, 36 metrics with data, and a trace of nearly every run. tests/infra/test_bill.py looks at now."""
    assert 45 < total(stage=BEFORE) < 60


def test_the_worst_day_is_every_anonymous_route_at_its_declared_throttle() -> None:
    per_s = sum(operation.throttle.rate_per_s for operation in worst_day.anonymous())
    used = worst_day.usage(Attack())
    assert used["http"] == per_s * 86_400
    routes = by_route(operations.OPERATIONS, COUNTERS).values()
    assert {route.id for route in worst_day.anonymous()} == {route.id for route in routes if not route.needs_caller}
    opened = {route.name for route in worst_day.anonymous() if route.fixed}
    assert opened == {"get_counter", "get_series", "get_total_series", "get_counter_top"}
    text = " ".join((ROOT / "docs/cost.md").read_text().split())
    assert f"let {per_s:,} requests a second pass" in text
    assert f"{len(worst_day.anonymous())} routes take" in text


def test_the_worst_day_is_told_honestly() -> None:
    one, different = (Bill(worst_day.usage(Attack(dear=dear))).total for dear in (False, True))
    assert 1200 < one < different < 2100
    assert Bill(worst_day.usage(Attack(tracing=False, log_sampling=0))).total < 0.85 * one
    assert Bill(worst_day.usage(Attack(throttles=0.1))).total < 0.12 * one


def test_a_rate_rule_lets_each_address_pass_a_little_and_bills_all_that_it_looks_at() -> None:
    few, many = (worst_day.usage(Attack(addresses=number)) for number in (10, 1e6))
    assert few["http"] == pytest.approx(10 * 2000 * 12 * 24)
    assert many["http"] == worst_day.usage(Attack())["http"]
    assert few["inspected"] == many["inspected"] == many["http"]
    assert (few["transfer"], few["edge"]) == (0, few["http"])
    assert Bill(few).total < 400 < Bill(worst_day.usage(Attack())).total < Bill(many).total


def test_the_page_is_written_by_the_calculator() -> None:
    text = page.PAGE.read_text()
    assert page.written(text) == text, "stale: run `make cost`"
    assert set(re.findall(r"<!-- tally cost: (\w+) -->", text)) == page.TABLES.keys()


def test_the_command_alone_prints_what_stages_cost_that_nobody_calls(run: Run) -> None:
    code, out, err = run()
    assert (code, err) == (0, "")
    assert out.splitlines()[0].split() == ["dev,", "USD", "prod,", "USD"]
    assert re.search(rf"^total +{total(stage=DEV):.2f} +{total():.2f}$", out, re.MULTILINE)
    assert "assumes: prices of us-east-1" in out


def test_the_command_prints_a_bill_by_service(run: Run) -> None:
    code, out, err = run("--plays", "50M", "--likes", "5M", "--visits", "200M", "--reads", "1B")
    assert (code, err) == (0, "")
    month = Month(plays=50e6, likes=5e6, visits=200e6, reads=1e9)
    assert re.search(rf"^total +{total(month):,.2f}$", out, re.MULTILINE)
    for service in ("DynamoDB writes", "HTTP API", "Lambda requests", "SnapStart", "Logs", "X-Ray", "Data out"):
        assert re.search(rf"^{service} +\S.* +[\d,]+\.\d\d$", out, re.MULTILINE), service


def test_the_command_prints_json(run: Run) -> None:
    def printed(*arguments: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(run(*arguments, "--json")[1])
        return found

    found = printed("--plays", "1.5k", "--stage", "dev", "--free-tier")
    assert (found["region"], found["date"]) == ("us-east-1", price_list().date)
    bill = Bill(traffic.usage(Month(plays=1500), stages()[DEV]), free_tier=True)
    assert found["bills"] == {"dev": found["bills"]["dev"]}
    assert found["bills"]["dev"]["total_usd"] == pytest.approx(bill.total, abs=0.01)
    assert printed("--worst-day")["bills"].keys() == {"one target", "all different"}
    assert printed("--worst-day")["bills"]["one target"]["total_usd"] == pytest.approx(
        Bill(worst_day.usage(Attack())).total, abs=0.01
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--plays", "5x"], "argument --plays: '5x' is no amount"),
        (["--plays", "-5"], "argument --plays: '-5' is no amount"),
        (["--plays", "5 M"], "'5 M' is no amount"),
        (["--plays", "nan"], "'nan' is no amount"),
        (["--plays", ""], "'' is no amount"),
        (["--plays", "٥"], "is no amount"),
        (["--plays", "9" * 400], "is no amount"),
        (["--reads", "999999999B"], "'999999999B' is more than 1e+15 a month"),
        (["--items", "0"], "--items must be 1 or more"),
        (["--cdn", "90"], "'90' is no share"),
        (["--cdn", "1.5"], "'1.5' is no share"),
        (["--via", "pigeon"], "argument --via: invalid choice"),
        (["--worst-day", "--plays", "5"], "leave --plays out"),
        (["--worst-day", "--stage", "dev"], "leave --stage out"),
        (["--worst-day", "--cdn", "0"], "leave --cdn out"),
        (["--horses", "5"], "unrecognized arguments: --horses 5"),
    ],
)
def test_a_bad_amount_is_one_line_and_2(run: Run, arguments: list[str], message: str) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_the_command_looks_at_no_stack(capsys: pytest.CaptureFixture[str]) -> None:
    for where in (["--local"], ["--stack", "Tally-prod"]):
        with pytest.raises(SystemExit) as stopped:
            main([*where, "cost"])
        assert stopped.value.code == 2
        assert capsys.readouterr().err.startswith("tally: cost looks at no stack")


def test_the_help_explains_amounts(run: Run) -> None:
    code, out, _ = run("--help")
    assert code == 0
    assert "as 1200, 50k, 5M or 1.5B" in out
    assert "exit status" in out


def test_few_and_many_draws() -> None:
    assert units.distinct(0.001, 10_000) == pytest.approx(0.001)
    assert units.distinct(1000, 1) == 1
    assert units.distinct(1e9, 50) == pytest.approx(50)
    assert units.batches_per_s(1e-6) == pytest.approx(1e-6, rel=1e-3)
    assert units.batches_per_s(10) == pytest.approx(1, rel=1e-3)
    assert units.batches_per_s(5000) == 5
