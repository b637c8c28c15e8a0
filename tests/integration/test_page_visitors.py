"""Visitors of pages are counted without cookies: what a visit stores, and how a day's salt is deleted."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import counters
from tally.api.needs import Table
from tally.builtin import PAGE_VISITORS
from tally.cli import values
from tally.contract.declarations import Declarations
from tally.contract.deployment import table_schemas
from tally.counting import pseudonyms
from tally.dynamo.client import Call, Store
from tally.errors import ConfigurationError, InvalidInputError
from tally.notify import Notify
from tally.operations import sweep
from tests import events
from tests.contexts import LambdaContext
from tests.integration.conftest import Invoke
from tests.integration.test_beacon import FIREFOX, GOOGLEBOT, PAGE
from tests.integration.test_needs import Recorder
from tests.integration.test_periods import DAY_S
from tests.integration.test_periods import now as now
from tests.integration.test_sweep import Streams

pytestmark = pytest.mark.sdk
ANN, BOB = "203.0.113.10", "2001:db8::7"  # addresses of visitors
CLOUDFRONT = "130.176.0.1"


@pytest.fixture
def store(store: Store, monkeypatch: pytest.MonkeyPatch, now: SimpleNamespace) -> Store:
    """Returns the store of a stack that counts visitors of pages. It is noon."""
    monkeypatch.setitem(counters.COUNTERS, PAGE_VISITORS.name, PAGE_VISITORS)
    table = store.settings.counts_table.replace("counts", "salts")
    key = {"AttributeName": "PK"}
    store.client.create_table(
        TableName=table,
        KeySchema=[{**key, "KeyType": "HASH"}],
        AttributeDefinitions=[{**key, "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    monkeypatch.setattr(sweep, "advance_watermark", lambda *_: {})  # there are no streams
    return replace(store, settings=store.settings._replace(salts_table=table))


def visit(invoke: Invoke, address: str | None = ANN, agent: str = FIREFOX, key: str = "", **more: Any) -> None:
    """Sends a visit that API Gateway got from this address. `key`: empty: a new key. `more`: `url` and headers."""
    key = key or f"{len(receipts(invoke.store)):022d}"
    event = events.http("visit", url=more.pop("url", PAGE), idempotency_key=key, headers={"user-agent": agent, **more})
    event["requestContext"]["http"]["sourceIp"] = address
    assert invoke(event)["statusCode"] == 202


def receipts(store: Store, counter: str | None = None) -> list[dict[str, Any]]:
    items = store.client.scan(TableName=store.settings.receipts_table)["Items"]
    return [dict(receipt) for receipt in items if counter in (None, receipt["counter"]["S"])]


def visitors(store: Store) -> list[str]:
    """Returns the page and day of each counted visitor, as the receipts that wait for the rollup say."""
    return sorted(receipt["target"]["S"] for receipt in receipts(store, PAGE_VISITORS.name))


def salts(store: Store) -> list[str]:
    return sorted(item["PK"]["S"] for item in store.client.scan(TableName=store.settings.salts_table)["Items"])


def run_sweep(store: Store) -> None:
    sweep.Sweep(counters.COUNTERS, store, Streams())(None, LambdaContext())  # type: ignore[arg-type]


def test_each_address_and_browser_is_one_visitor_a_day_and_crawlers_are_not_visitors(
    store: Store, now: SimpleNamespace
) -> None:
    invoke, today = Invoke(store), f"{PAGE}#2026-11-22"
    for address, agent in ((ANN, FIREFOX), (ANN, FIREFOX), (BOB, FIREFOX), (ANN, "Mozilla/5.0 (another)")):
        visit(invoke, address, agent)
    assert visitors(store) == [today] * 3
    visit(invoke, ANN, GOOGLEBOT)
    visit(invoke, None)  # without an address, nobody is counted as a visitor
    assert visitors(store) == [today] * 3
    visit(invoke, ANN, url="https://example.com/b")
    now.s += DAY_S
    visit(invoke, ANN)
    visit(invoke, ANN)
    assert visitors(store) == [*[today] * 3, f"{PAGE}#2026-11-23", "https://example.com/b#2026-11-22"]
    assert len(receipts(store, "visits")) == 4 + 1 + 3, "each visit of a browser, also without an address"
    assert len(receipts(store, "bot_visits")) == 1


def test_a_retried_visit_counts_the_visitor_that_the_first_attempt_did_not_count(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first attempt counts the visit, and dies before it counts the visitor."""
    invoke = Invoke(store)
    with monkeypatch.context() as patch:
        patch.delitem(counters.COUNTERS, PAGE_VISITORS.name)  # the first attempt ends where the process would die
        visit(invoke, key="k" * 22)
    assert visitors(store) == []
    visit(Invoke(store), key="k" * 22)
    assert (len(visitors(store)), len(receipts(store, "visits"))) == (1, 1)


def test_a_page_is_read_with_todays_visitors_if_the_stack_counts_visitors(
    store: Store, now: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    for day, number in (("2026-11-22", "7"), ("2026-11-23", "9")):
        key = {"PK": {"S": f"SITE#{PAGE}#{day}"}, "SK": {"S": "VISITORS"}}
        tally = {**key, "visitors": {"N": number}, "at": {"N": "1"}, "nonce": {"S": "x"}}
        store.client.put_item(TableName=store.settings.counts_table, Item=tally)
    invoke = Invoke(store)
    assert events.body_of(invoke.http("get_visits", url=PAGE))["visitors"] == 7
    now.s += DAY_S
    assert events.body_of(invoke.http("get_visits", url=PAGE))["visitors"] == 9
    monkeypatch.delitem(counters.COUNTERS, PAGE_VISITORS.name)
    assert "visitors" not in events.body_of(Invoke(store).http("get_visits", url=PAGE))


def test_a_service_cannot_add_a_visitor_of_a_page(store: Store) -> None:
    refused = Invoke(store).direct("add_visitor", counter=PAGE_VISITORS.name, id="a", visitor="ann", caller="web")
    assert refused["status"] == 400
    assert "counts page visitors: POST /visits moves it" in refused["body"]["detail"]


def test_behind_cloudfront_a_visitor_is_the_address_that_cloudfront_saw_and_not_a_claimed_address(store: Store) -> None:
    """CloudFront appends the visitor's address to x-forwarded-for, and API Gateway appends CloudFront's address."""
    invoke = Invoke(replace(store, settings=store.settings._replace(has_cdn=True)))
    for claimed in ("", "198.51.100.1, ", "198.51.100.2, 198.51.100.3, "):
        visit(invoke, CLOUDFRONT, **{"x-forwarded-for": f"{claimed}{ANN}, {CLOUDFRONT}"})
    visit(invoke, "130.176.0.2", **{"x-forwarded-for": f"{ANN},130.176.0.2"})  # another address of CloudFront
    assert len(visitors(store)) == 1
    visit(invoke, CLOUDFRONT, **{"x-forwarded-for": f"{BOB}, {CLOUDFRONT}"})
    for without_visitor in ({}, {"x-forwarded-for": CLOUDFRONT}):
        visit(invoke, CLOUDFRONT, **without_visitor)
    assert len(visitors(store)) == 2


def test_no_item_has_a_visitors_address_and_the_salt_of_a_day_is_deleted_after_the_day(
    store: Store, now: SimpleNamespace
) -> None:
    invoke = Invoke(store)
    visit(invoke)
    for secret in (ANN, FIREFOX, "Firefox"):
        assert secret not in str(receipts(store))
    first_salt = pseudonyms.salt_of_day(Call(store), now.s)
    assert salts(store) == ["SALT#2026-11-22"]
    (stored,) = store.client.scan(TableName=store.settings.salts_table)["Items"]
    midnight_s = datetime(2026, 11, 23, tzinfo=UTC).timestamp()
    assert int(stored["expiration"]["N"]) == midnight_s + 600, "if no sweep runs, TTL removes the salt"
    now.s += 12 * 3600  # midnight
    run_sweep(store)
    assert salts(store) == ["SALT#2026-11-22"], "the clock of a visit may be behind, so the salt stays for ten minutes"
    visit(invoke)
    assert salts(store) == ["SALT#2026-11-22", "SALT#2026-11-23"]
    assert first_salt not in store.secret_cache.values(), "the process keeps no salt of the day before"
    now.s = midnight_s + 600
    run_sweep(store)
    assert salts(store) == ["SALT#2026-11-23"]
    now.s += 2 * DAY_S
    run_sweep(store)
    assert salts(store) == [], "salts are deleted also after a day without a sweep"


def test_processes_share_a_salt_which_differs_each_day(store: Store, now: SimpleNamespace) -> None:
    other_process = replace(store, secret_cache={})
    daily_salts = [pseudonyms.salt_of_day(Call(process), now.s) for process in (store, other_process, store)]
    assert len(set(daily_salts)) == 1
    assert pseudonyms.salt_of_day(Call(other_process), now.s + DAY_S) != daily_salts[0]


def test_a_visit_and_the_sweep_need_only_what_their_roles_grant(store: Store, now: SimpleNamespace) -> None:
    invoke = Invoke(store)
    needs = Declarations(Path(), counters.COUNTERS, counters.PAGES).needs
    recorder = Recorder(store)
    visit(invoke)
    invoke.http("get_visits", url=PAGE)
    run_sweep(store)
    salt_needs = {need for need in recorder.needs if need.table is Table.SALTS}
    assert {need for need in needs["visits"] | needs["sweep"] if need.table is Table.SALTS} == salt_needs
    assert recorder.needs <= needs["visits"] | needs["sweep"]
    without_visitors = {name: counter for name, counter in counters.COUNTERS.items() if name != PAGE_VISITORS.name}
    assert not any(
        need.table is Table.SALTS
        for granted in Declarations(Path(), without_visitors, counters.PAGES).needs.values()
        for need in granted
    )


def test_thresholds_of_page_visitors_remove_no_need_of_a_function(store: Store) -> None:
    notifying = {**counters.COUNTERS, PAGE_VISITORS.name: replace(PAGE_VISITORS, notify=Notify(every=100))}
    assert Table.SALTS in table_schemas(notifying.values())
    plain, with_thresholds = (
        Declarations(Path(), declared, counters.PAGES).needs for declared in (counters.COUNTERS, notifying)
    )
    for function in ("visits", "sweep"):
        assert plain[function] <= with_thresholds[function]


def test_a_declaration_of_page_visitors_without_visits_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="must list 'visits', too"):
        Declarations(Path("counters.py"), {PAGE_VISITORS.name: PAGE_VISITORS}, counters.PAGES).check()


def test_the_command_finds_the_visitors_of_a_page_today_or_on_a_given_day(now: SimpleNamespace) -> None:
    assert values.resolve_id(PAGE_VISITORS, "HTTPS://Example.com:443/a") == f"{PAGE}#2026-11-22"
    assert values.resolve_id(PAGE_VISITORS, f"{PAGE}#2026-11-21") == f"{PAGE}#2026-11-21"
    with pytest.raises(InvalidInputError, match="must name a day"):
        values.resolve_id(PAGE_VISITORS, f"{PAGE}#top")
