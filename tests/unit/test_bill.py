"""The calculator: the price list, the bills, the command, and the page that shows what it prints."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

import counters
from tally.cli.cost import page, units
from tally.cli.cost.prices import bill, price_list
from tally.cli.cost.strangers import worst_day
from tally.cli.cost.units import STAGES
from tally.cli.cost.usage import Month, usage
from tally.contract.declarations import Declarations
from tests.commands import ran

PRICES = price_list().prices
NOBODY = Month()
DECLARED = Declarations.load(Path(counters.__file__))
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_DEFAULT_REGION", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)

    return partial(ran, capsys, "cost")


def total(month: Month = NOBODY, stage: str = "prod", *, free_tier: bool = False) -> float:
    """US dollars of a month."""
    return sum(bill(usage(month, STAGES[stage]), free_tier=free_tier).values())


def test_each_price_has_aws_as_its_source() -> None:
    for price in PRICES.values():
        assert price.source.startswith("https://aws.amazon.com/")
        assert price.usd > 0


def test_prices_fall_above_a_quantity_and_the_free_tier_is_taken_off_on_request() -> None:
    assert PRICES["http"].of(400e6) == pytest.approx(300 + 90)
    assert PRICES["metric"].of(12) == pytest.approx(3.6)
    assert PRICES["metric"].of(12, free_tier=True) == pytest.approx(0.6)
    assert PRICES["metric"].of(9, free_tier=True) == 0


def test_a_unit_without_a_price_is_an_error_and_not_free() -> None:
    with pytest.raises(KeyError, match="horses"):
        bill({"horses": 1.0})


def test_the_changes_themselves_are_billed_as_they_are_measured() -> None:
    """The rest of the write units are those of the streams; with a single item they are few."""

    def writes(month: Month) -> float:
        return usage(month, STAGES["prod"])["write"]

    assert 4e9 < writes(Month(now=1e9, items=1)) < 4.2e9
    assert writes(Month(now=1e9, items=1, batch=True)) == writes(Month(now=1e9, items=1))
    assert 1e9 < writes(Month(soon=1e9, items=1)) < 1.2e9


@pytest.mark.parametrize("amount", [1.0, 1e6, 1e12])
def test_more_of_anything_costs_more_and_a_cheaper_way_is_cheaper(amount: float) -> None:
    for name in ("now", "soon", "children", "holds", "reads", "users"):
        some, more = (total(NOBODY._replace(**{name: times * amount})) for times in (1, 2))
        assert total() < some < more, name
    changes = Month(now=amount, items=10)
    assert total(changes._replace(batch=True)) < total(changes)
    assert total(changes._replace(items=1)) <= total(changes) <= total(changes._replace(items=1e6))


def test_a_million_plays_cost_less_than_4_dollars_25() -> None:
    """docs/cost.md says so. The same in dev, where each is logged."""
    assert (total(Month(now=300e6)) - total()) / 300 < 4.25
    assert (total(Month(now=300e6), "dev") - total(stage="dev")) / 300 == pytest.approx(4.24 + 0.14, abs=0.02)


def test_the_worst_day_follows_the_throttles() -> None:
    whole = worst_day(DECLARED, 1)
    assert worst_day(DECLARED, 0.1) == pytest.approx(whole / 10, rel=0.15)
    opened = replace(DECLARED, counters={**DECLARED.counters, "stock": replace(counters.STOCK, read="anyone")})
    assert worst_day(opened, 1) > whole


def test_the_page_shows_what_the_command_prints() -> None:
    text = page.PAGE.read_text()
    assert text.count("$ tally cost") > 3
    assert page.written(text) == text, "stale: run `make cost`"


def test_the_command_prints_the_bills_of_both_stages(run: Run) -> None:
    code, out, err = run("--now", "50M", "--children", "5M", "--soon", "200M", "--reads", "1.5k")
    month = Month(now=50e6, children=5e6, soon=200e6, reads=1500)
    assert (code, err) == (0, "")
    assert re.search(rf"^total +{total(month, 'dev'):,.2f} +{total(month):,.2f}$", out, re.MULTILINE)
    month = Month(now=1500, batch=True, items=10)
    dev, prod = (f"{total(month, stage, free_tier=True):.2f}" for stage in STAGES)
    out = run("--now", "1.5k", "--batch", "--items", "10", "--free-tier")[1]
    assert re.search(rf"^total +{dev} +{prod}$", out, re.MULTILINE)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--now", "5x"], "argument --now: '5x' is no amount"),
        (["--now", "-5"], "argument --now: '-5' is no amount"),
        (["--now", "٥"], "is no amount"),
        (["--now", "9" * 400], "is no amount"),
        (["--reads", "999999999B"], "'999999999B' is no amount up to 1e15"),
        (["--items", "0"], "--items must be 1 or more"),
    ],
)
def test_a_bad_amount_is_one_line_and_2(run: Run, arguments: list[str], message: str) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_few_and_many_draws() -> None:
    assert units.distinct(0.001, 10_000) == pytest.approx(0.001)
    assert units.distinct(1000, 1) == 1
    assert units.distinct(1e9, 50) == pytest.approx(50)
    assert units.batches_per_s(1e-6) == pytest.approx(1e-6, rel=1e-3)
    assert units.batches_per_s(5000) == 5
