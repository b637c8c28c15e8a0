"""Visitors of pages without cookies: what a visit stores, what it does not, and how the day is forgotten."""

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
from tests.integration.test_periods import DAY_S, NOON_S
from tests.integration.test_periods import now as now
from tests.integration.test_sweep import Streams

pytestmark = pytest.mark.sdk
ANN, BOB = "203.0.113.10", "2001:db8::7"


@pytest.fixture
def store(store: Store, monkeypatch: pytest.MonkeyPatch, now: SimpleNamespace) -> Store:
    """A stack that counts visitors of pages, at noon."""
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
    """A visit that API Gateway got from an address."""
    key = key or f"{len(receipts(invoke.store)):022d}"
    event = events.http("visit", url=more.pop("url", PAGE), idempotency_key=key, headers={"user-agent": agent, **more})
    event["requestContext"]["http"]["sourceIp"] = address
    assert invoke(event)["statusCode"] == 202


def receipts(store: Store, counter: str | None = None) -> list[dict[str, Any]]:
    found = store.client.scan(TableName=store.settings.receipts_table)["Items"]
    return [dict(one) for one in found if counter in (None, one["counter"]["S"])]


def visitors(store: Store) -> list[str]:
    """The pages and days of the visitors that are counted: their receipts, which the rollup adds up."""
    return sorted(one["target"]["S"] for one in receipts(store, PAGE_VISITORS.name))


def salts(store: Store) -> list[str]:
    return sorted(item["PK"]["S"] for item in store.client.scan(TableName=store.settings.salts_table)["Items"])


def swept(store: Store) -> None:
    sweep.Sweep(counters.COUNTERS, store, Streams())(None, LambdaContext())  # type: ignore[arg-type]


def test_a_visitor_of_a_page_is_one_each_day_by_address_and_browser_and_no_crawler(
    store: Store, now: SimpleNamespace
) -> None:
    invoke, today = Invoke(store), f"{PAGE}#2026-11-22"
    for address, agent in ((ANN, FIREFOX), (ANN, FIREFOX), (BOB, FIREFOX), (ANN, "Mozilla/5.0 (another)")):
        visit(invoke, address, agent)
    assert visitors(store) == [today] * 3
    visit(invoke, ANN, GOOGLEBOT)
    visit(invoke, None)
    assert visitors(store) == [today] * 3
    visit(invoke, ANN, url="https://example.com/b")
    now.s += DAY_S
    visit(invoke, ANN)
    visit(invoke, ANN)
    assert visitors(store) == [*[today] * 3, f"{PAGE}#2026-11-23", "https://example.com/b#2026-11-22"]
    assert (len(receipts(store, "visits")), len(receipts(store, "bot_visits"))) == (8, 1)


def test_a_visit_that_is_sent_again_counts_a_visitor_whom_the_first_one_could_not(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process dies between the two."""
    invoke = Invoke(store)
    with monkeypatch.context() as patch:
        patch.delitem(counters.COUNTERS, PAGE_VISITORS.name)
        visit(invoke, key="k" * 22)
    assert visitors(store) == []
    visit(Invoke(store), key="k" * 22)
    assert (len(visitors(store)), len(receipts(store, "visits"))) == (1, 1)


def test_the_numbers_of_a_page_have_todays_visitors_and_only_where_they_are_counted(
    store: Store, now: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = {"visitors": {"N": "7"}, "at": {"N": "1"}, "nonce": {"S": "x"}}
    for day in ("2026-11-22", "2026-11-23"):
        item = {"PK": {"S": f"SITE#{PAGE}#{day}"}, "SK": {"S": "VISITORS"}, **number}
        store.client.put_item(TableName=store.settings.counts_table, Item=item)
        number["visitors"] = {"N": "9"}
    invoke = Invoke(store)
    assert events.body_of(invoke.http("get_visits", url=PAGE))["visitors"] == 7
    now.s += DAY_S
    assert events.body_of(invoke.http("get_visits", url=PAGE))["visitors"] == 9
    refused = invoke.direct("add_visitor", counter=PAGE_VISITORS.name, id="a", visitor="ann", caller="web")
    assert refused["status"] == 400
    assert "counts page visitors: POST /visits moves it" in refused["body"]["detail"]
    monkeypatch.delitem(counters.COUNTERS, PAGE_VISITORS.name)
    assert "visitors" not in events.body_of(Invoke(store).http("get_visits", url=PAGE))


def test_behind_cloudfront_a_visitor_is_the_address_that_it_saw_and_not_what_the_caller_claims(store: Store) -> None:
    invoke = Invoke(replace(store, settings=store.settings._replace(has_cdn=True)))
    for claimed in ("", "198.51.100.1, ", "198.51.100.2, 198.51.100.3, "):
        visit(invoke, "130.176.0.1", **{"x-forwarded-for": f"{claimed}{ANN}, 130.176.0.1"})
    visit(invoke, "130.176.0.2", **{"x-forwarded-for": f"{ANN},130.176.0.2"})
    assert len(visitors(store)) == 1
    visit(invoke, "130.176.0.1", **{"x-forwarded-for": f"{BOB}, 130.176.0.1"})
    for alone in ({}, {"x-forwarded-for": "130.176.0.1"}):
        visit(invoke, "130.176.0.1", **alone)
    assert len(visitors(store)) == 2


def test_nothing_stores_who_it_was_and_after_the_day_nobody_can_find_out(store: Store, now: SimpleNamespace) -> None:
    invoke, day = Invoke(store), 12 * 3600 + 600
    visit(invoke)
    for secret in (ANN, FIREFOX, "Firefox"):
        assert secret not in str(receipts(store))
    first = pseudonyms.salt_of_day(Call(store), now.s)
    assert salts(store) == ["SALT#2026-11-22"]
    (stored,) = store.client.scan(TableName=store.settings.salts_table)["Items"]
    midnight_s = datetime(2026, 11, 23, tzinfo=UTC).timestamp()
    assert int(stored["expiration"]["N"]) == midnight_s + 600, "where no sweep runs, TTL removes it"
    now.s += 12 * 3600
    swept(store)
    assert salts(store) == ["SALT#2026-11-22"], "a clock may be behind"
    visit(invoke)
    assert salts(store) == ["SALT#2026-11-22", "SALT#2026-11-23"]
    assert first not in store.secret_cache.values(), "the process has forgotten the day before"
    now.s = NOON_S + day
    swept(store)
    assert salts(store) == ["SALT#2026-11-23"]
    swept(store)
    now.s += 2 * DAY_S
    swept(store)
    assert salts(store) == [], "also after a day without a sweep"


def test_two_processes_have_one_salt_and_each_day_another(store: Store, now: SimpleNamespace) -> None:
    other = replace(store, secret_cache={})
    found = [pseudonyms.salt_of_day(Call(one), now.s) for one in (store, other, store)]
    assert len(set(found)) == 1
    assert pseudonyms.salt_of_day(Call(other), now.s + DAY_S) != found[0]


def test_a_visit_and_the_sweep_do_what_their_roles_grant(store: Store, now: SimpleNamespace) -> None:
    invoke = Invoke(store)
    needs = Declarations(Path(), counters.COUNTERS, counters.PAGES).needs
    recorder = Recorder(store)
    visit(invoke)
    invoke.http("get_visits", url=PAGE)
    swept(store)
    of_salts = {need for need in recorder.needs if need.table is Table.SALTS}
    assert {need for need in needs["visits"] | needs["sweep"] if need.table is Table.SALTS} == of_salts
    assert recorder.needs <= needs["visits"] | needs["sweep"]
    without = {name: one for name, one in counters.COUNTERS.items() if name != PAGE_VISITORS.name}
    assert not any(
        need.table is Table.SALTS
        for granted in Declarations(Path(), without, counters.PAGES).needs.values()
        for need in granted
    )


def test_thresholds_change_nothing_of_what_visitors_of_pages_need(store: Store) -> None:
    notified = {**counters.COUNTERS, PAGE_VISITORS.name: replace(PAGE_VISITORS, notify=Notify(every=100))}
    assert Table.SALTS in table_schemas(notified.values())
    plain, others = (Declarations(Path(), one, counters.PAGES).needs for one in (counters.COUNTERS, notified))
    for function in ("visits", "sweep"):
        assert plain[function] <= others[function]


def test_visitors_of_pages_need_visits() -> None:
    with pytest.raises(ConfigurationError, match="must list 'visits', too"):
        Declarations(Path("counters.py"), {PAGE_VISITORS.name: PAGE_VISITORS}, counters.PAGES).check()


def test_the_command_names_the_visitors_of_a_page_and_day(now: SimpleNamespace) -> None:
    assert values.resolve_id(PAGE_VISITORS, "HTTPS://Example.com:443/a") == f"{PAGE}#2026-11-22"
    assert values.resolve_id(PAGE_VISITORS, f"{PAGE}#2026-11-21") == f"{PAGE}#2026-11-21"
    with pytest.raises(InvalidInputError, match="must name a day"):
        values.resolve_id(PAGE_VISITORS, f"{PAGE}#top")
