"""The handlers serve beacon.js and the badge, and count visits by people and by crawlers."""

from __future__ import annotations

import base64
import gzip
import subprocess
import sys

import crawleruseragents
import pytest

import counters
from tally.api import crawlers, scripts
from tally.cli import commands
from tally.dynamo.client import Store
from tests import events
from tests.environments import ROOT
from tests.integration.conftest import Invoke

GZIP = {"accept-encoding": "gzip"}
SCRIPT = scripts.read_script("beacon.js").text
PAGE = "https://example.com/a"
FIREFOX = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"
GOOGLEBOT = "Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)"


def counted_visits(store: Store, url: str = PAGE) -> tuple[int, int]:
    """Returns the number of visits by people and by crawlers, as the receipts that wait for the rollup say."""
    receipts = [
        receipt["counter"]["S"]
        for receipt in store.client.scan(TableName=store.settings.receipts_table)["Items"]
        if receipt["target"]["S"] == url and receipt["rollup"]["BOOL"] and receipt["amount"]["N"] == "1"
    ]
    return receipts.count("visits"), receipts.count("bot_visits")


# The script


def test_the_script_may_be_cached_and_is_compressed_for_clients_that_accept_gzip(invoke: Invoke) -> None:
    answer = invoke.http("get_client_file", file="beacon.js", headers=GZIP)
    headers = answer["headers"]
    assert (answer["statusCode"], headers["content-type"]) == (200, "text/javascript; charset=utf-8")
    assert headers["cache-control"] == "public, max-age=3600"
    assert (headers["content-encoding"], headers["vary"]) == ("gzip", "accept-encoding, authorization")
    assert headers["cross-origin-resource-policy"] == "cross-origin"
    compressed = base64.b64decode(answer["body"])
    assert len(compressed) <= 1100, "docs/visits.md says 1 KB"
    assert gzip.decompress(compressed).decode() == SCRIPT
    for encodings in ("", "br", "gzip; q=0.000", "x-gzip"):
        plain = invoke.http("get_client_file", file="beacon.js", headers={"accept-encoding": encodings})
        assert (plain["body"], plain["isBase64Encoded"]) == (SCRIPT, False)
        assert "content-encoding" not in plain["headers"]
    tag = headers["etag"]
    for matching_tag in (tag, tag.removeprefix("W/"), f'"other", {tag}', "*"):
        answer = invoke.http("get_client_file", file="beacon.js", headers={"If-None-Match": matching_tag})
        assert (answer["statusCode"], answer["body"], answer["headers"]["etag"]) == (304, "", tag)
    for other_tag in ('"other"', "", "W/"):
        answer = invoke.http("get_client_file", file="beacon.js", headers={"If-None-Match": other_tag})
        assert answer["statusCode"] == 200


# People and crawlers


@pytest.mark.sdk
def test_people_and_crawlers_are_counted_in_two_counters_and_read_in_one_query(invoke: Invoke, store: Store) -> None:
    for number, agent in enumerate([FIREFOX, GOOGLEBOT, GOOGLEBOT, FIREFOX, FIREFOX]):
        body = {"url": PAGE, "key": f"{events.KEY}-{number}"}
        answer = invoke.http("visit", idempotency_key=None, document=body, headers={"user-agent": agent})
        assert (answer["statusCode"], events.body_of(answer)) == (202, {"counted": True, "visible": "soon"})
    assert counted_visits(store) == (3, 2)
    assert store.client.scan(TableName=store.settings.counts_table)["Items"] == [], "the rollup adds the visits later"
    for sort_key, attribute, number in (("VISITS", "visits", "9"), ("BOTS", "bot_visits", "5")):
        key = {"PK": {"S": f"SITE#{PAGE}"}, "SK": {"S": sort_key}}
        store.client.put_item(TableName=store.settings.counts_table, Item={**key, attribute: {"N": number}})
    requests: list[dict[str, str]] = []
    store.client.meta.events.register("provide-client-params.dynamodb", lambda params, **_: requests.append(params))
    body = invoke.direct("get_visits", url=PAGE)["body"]
    assert (body["counter"], body["id"], body["value"], body["bots"]) == ("visits", PAGE, 9, 5)
    assert [request["TableName"] for request in requests].count(store.settings.counts_table) == 1  # one Query
    badge = invoke.http("get_visits_badge")
    assert "<title>visits: 9</title>" in badge["body"]
    assert badge["headers"]["cache-control"] == "public, max-age=60"
    assert "default-src 'none'" in badge["headers"]["content-security-policy"]


def test_a_retried_visit_is_counted_once_whatever_its_user_agent(invoke: Invoke, store: Store) -> None:
    visit = events.direct("visit")
    replayed = [invoke({**visit, "user_agent": agent})["replayed"] for agent in (GOOGLEBOT, FIREFOX, GOOGLEBOT)]
    assert replayed == [False, True, True]
    assert counted_visits(store) == (0, 1)
    without_agent = events.http("visit", idempotency_key=f"{events.KEY}-2")
    del without_agent["headers"]["user-agent"]
    invoke(without_agent)
    assert counted_visits(store) == (0, 2), "a request without a user agent is a crawler's"
    invoke({**visit, "idempotency_key": f"{events.KEY}-3"})
    assert counted_visits(store) == (1, 2), "a direct event without a user agent is a person's"


def test_every_operation_finds_a_page_by_every_spelling_of_its_url(invoke: Invoke, store: Store) -> None:
    spellings = [f"{PAGE}?utm_source=mail#top", f"{PAGE}?fbclid=x&gclid=y", "HTTPS://Example.com:443/b/../a"]
    parser = commands.parser(counters.COUNTERS)
    for number, url in enumerate(spellings):
        visit = {"operation": "visit", "url": url, "idempotency_key": f"{events.KEY}-{number}"}
        assert invoke(visit)["status"] == 202
        for spelling in spellings:
            answer = invoke.direct("get_receipts", of="visit", target=[spelling], key=[visit["idempotency_key"]])
            assert answer["body"]["receipts"][0]["state"] == "counted"
        assert commands.parse_arguments(["get", "visits", url], parser).id == PAGE
    assert counted_visits(store) == (3, 0)
    key = {"PK": {"S": f"SITE#{PAGE}"}, "SK": {"S": "VISITS"}}
    store.client.put_item(TableName=store.settings.counts_table, Item={**key, "visits": {"N": "3"}})
    for url in spellings:
        event = {"operation": "get_visits", "url": url}
        assert {"id": PAGE, "value": 3}.items() <= invoke(event)["body"].items()
        [tally] = invoke.direct("get_tallies", of=[f"visits:{url}"])["body"]["tallies"]
        assert tally["value"] == 3
        assert "<title>visits: 3</title>" in invoke(event | {"operation": "get_visits_badge"})["body"]["text"]


ANDROID = (
    "Mozilla/5.0 (Linux; Android %s; wv) AppleWebKit/537.36 (KHTML, like Gecko) Version/4.0 Chrome/%s Mobile Safari"
)
IPHONE = "Mozilla/5.0 (iPhone; CPU iPhone OS 17_0 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) Mobile/15E148"
DESKTOP = "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/537.36 (KHTML, like Gecko)"
PEOPLE = [
    FIREFOX,
    "Mozilla/5.0 (Linux; Android 9; CUBOT_X19) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/120.0 Safari/537.36",
    ANDROID % ("10; SM-A205F Build/QP1A.190711.020", "81.0.4044.138") + " WhatsApp/2.21.9.15 A",
    ANDROID % ("10; Redmi Note 7 Build/QKQ1.190920.002", "81.0.4044.138") + " Viber/14.7.0.4",
    ANDROID % ("15; CPH2557 Build/AP3A.240617.008", "142.0.7444.142") + " Instagram 406.0.0.58.159 Android",
    *(f"{IPHONE} {app}" for app in ("WhatsApp/2.22.4.74 W", "Viber/21.3.0", "Feedly/98.0", "NewsBlur/13.4")),
    f"{DESKTOP} WhatsApp/2.2424.0 Chrome/91.0.4472.164 Electron/13.6.9 Safari/537.36",
]
FETCHERS = [  # programs that fetch previews and feeds
    "WhatsApp/2.23.20.0 A", "WhatsApp/2.16.16/i", "Viber", "Viber/18.0.1.286 CFNetwork/1335.0.3 Darwin/21.6.0",
    "Feedly/1.0 (+http://www.feedly.com/fetcher.html; like FeedFetcher-Google)", "FeedlyBot/1.0 (http://feedly.com)",
    "Mozilla/5.0 (compatible; Feedly/1.0; +http://feedly.com)", f"{DESKTOP} FeedlyBot/1.0", "",
    f"{IPHONE} (compatible; Googlebot/2.1; +http://www.google.com/bot.html) WhatsApp/2.22.4.74",
]  # fmt: skip


def test_browsers_are_people_and_every_example_of_the_list_of_crawlers_but_two_patterns_is_a_crawler() -> None:
    """A telephone named CUBOT and the browser within an app are people. An app's fetcher of previews is a crawler."""
    assert [agent for agent in PEOPLE if crawlers.is_crawler(agent)] == []
    assert [agent for agent in FETCHERS if not crawlers.is_crawler(agent)] == []
    patterns = {
        agent: entry["pattern"] for entry in crawleruseragents.CRAWLER_USER_AGENTS_DATA for agent in entry["instances"]
    }
    assert len(patterns) > 2000
    patterns_of_people = {pattern for agent, pattern in patterns.items() if not crawlers.is_crawler(agent)}
    assert patterns_of_people == {"MetaIAB Facebook", r"AP3A\.240617\.008"}, (
        "the list has the browser within an app and a build of Android, which people use"
    )
    crawlers.is_crawler.cache_clear()  # of the agents of this test


@pytest.mark.parametrize(("start", "is_read"), [("on-demand", False), ("snap-start", True)])
def test_the_list_of_crawlers_is_read_before_a_snapshot_or_else_at_its_first_use(start: str, is_read: bool) -> None:
    script = "import sys, tally.operations.visits; print('crawleruseragents' in sys.modules)"
    environment = {
        "PYTHONPATH": str(ROOT), "AWS_LAMBDA_INITIALIZATION_TYPE": start, "AWS_DEFAULT_REGION": "eu-west-1",
        "TALLY_COUNTS_TABLE": "a", "TALLY_RECEIPTS_TABLE": "b", "TALLY_LEDGER_TABLE": "c",
    }  # fmt: skip
    run = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == str(is_read)
