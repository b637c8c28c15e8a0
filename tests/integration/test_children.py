"""What a counter counts: members by their names, callers themselves, and those who like a post."""

from __future__ import annotations

from typing import Any

import pytest

from tally.dynamo.client import Store
from tests import events
from tests.integration.conftest import Invoke

POST = {"id": "a91f", "body": "first", "caller": "auth0|7c20"}


def present(invoke: Invoke, counter: str, id: str, caller: str) -> bool:
    """Whether the caller counts."""
    return bool(invoke.direct("get_mine", counter=counter, id=id, caller=caller)["body"]["present"])


def test_a_heart_needs_no_post_and_counts_each_caller_once(invoke: Invoke) -> None:
    """Put and removed twice, each over HTTP; the child is the caller, whatever a request says."""
    page = {"counter": "hearts", "id": "home"}
    for sub, number in (("ann", 1), ("bob", 2)):
        answers = [events.body_of(invoke.http("put_mine", **page, sub=sub, query="value=true")) for _ in range(2)]
        assert [(one["child"], one["changed"], one["value"]) for one in answers] == [
            (sub, True, number), (sub, False, number),
        ]  # fmt: skip
    assert invoke.http("put_mine", **page, sub="ann", query="name=bob")["statusCode"] == 400
    listed = events.body_of(invoke.http("list_children", counter="hearts", id="home"))["children"]
    assert [one["child"] for one in listed] == ["ann", "bob"]
    assert "hearts: 2" in invoke.http("get_counter_badge", **page)["body"]
    gone = [events.body_of(invoke.http("delete_mine", **page, sub="ann")) for _ in range(2)]
    assert [(one["present"], one["changed"]) for one in gone] == [(False, True), (False, False)]
    assert (present(invoke, "hearts", "home", "ann"), present(invoke, "hearts", "home", "bob")) == (False, True)
    assert events.body_of(invoke.http("get_counter_hearts", id="home"))["value"] == 1


def test_whose_children_callers_are_is_answered_together_with_what_is_wrong(invoke: Invoke) -> None:
    invoke.direct("put_post", **POST)
    for counter in ("likes", "hearts"):
        invoke.direct("put_mine", counter=counter, id="a91f", caller="ann")
    of = [
        "hearts:a91f",
        "likes:a91f",
        "likes:none",
        "members:acme",
        "nothing:x",
        "plays:9f3a",
        "likes:a b",
        "hearts:a91f",
    ]
    mine = invoke.direct("list_mine", of=of, caller="ann")["body"]["mine"]
    assert [one.get("present", one.get("error", {}).get("status")) for one in mine] == [
        True, True, False, 403, 404, 400, 400, True,
    ]  # fmt: skip
    assert mine[0] == {"counter": "hearts", "id": "a91f", "child": "ann", "present": True}
    assert (mine[3]["counter"], mine[3]["id"]) == ("members", "acme")
    assert len(invoke.direct("list_mine", of=["hearts:a91f"] * 100, caller="bob")["body"]["mine"]) == 100


@pytest.mark.parametrize("operation", ["put_mine", "delete_mine", "get_mine"])
def test_nobody_is_a_child_by_himself_where_services_change_the_counter(operation: str, invoke: Invoke) -> None:
    refused = invoke.http(operation, counter="members", id="acme")
    assert refused["statusCode"] == 403
    assert "a service does" in events.body_of(refused)["detail"]
    assert invoke.http(operation, counter="plays", id="acme")["statusCode"] == 400


def test_a_post_is_created_by_201_and_edited_by_200_by_its_author_alone(invoke: Invoke, store: Store) -> None:
    def put(sub: str, body: str) -> dict[str, Any]:
        return invoke(events.http("put_post", id="a91f", sub=sub, document={"body": body}))

    answers = [put("alice", "one"), put("alice", "two"), put("alice", "two"), put("bob", "three")]
    assert [answer["statusCode"] for answer in answers] == [201, 200, 200, 403]
    post = events.body_of(invoke.http("get_post", id="a91f"))
    assert (post["body"], post["revision"], post["author"], post["likes"]) == ("two", 1, "alice", 0)
    items = store.client.scan(TableName=store.settings.counts_table)["Items"]
    assert {item["SK"]["S"]: "body" in item for item in items} == {"META": False, "META.BODY": True}
    assert [invoke.http("delete_post", id="a91f", sub=sub)["statusCode"] for sub in ("bob", "alice")] == [403, 200]
    again = invoke.http("delete_post", id="a91f", sub="alice")
    assert events.body_of(again) == {"id": "a91f", "removed": True, "changed": False}


def test_children_are_listed_by_their_names_and_no_name_forges_a_key(invoke: Invoke, store: Store) -> None:
    """Names are percent-encoded in keys. One that did not go through Tally has no time."""
    names = ["auth0|7c20", "a#b", "a?b", "x/y", "ü", "..."]
    for name in names:
        body = events.body_of(invoke.http("put_child", counter="members", id="7c20", name=name))
        assert (body["child"], body["changed"]) == (name, True)
    key = {"PK": {"S": "WORKSPACE#7c20"}, "SK": {"S": "MEMBER#USER#zoe"}}
    store.client.put_item(TableName=store.settings.counts_table, Item=key)
    items = store.client.scan(TableName=store.settings.counts_table)["Items"]
    assert {item["SK"]["S"].count("#") for item in items if item["SK"]["S"].startswith("MEMBER#")} == {2}
    acme = {"counter": "members", "id": "7c20"}
    page = invoke.direct("list_children", **acme, limit=4)["body"]
    rest = invoke.direct("list_children", **acme, cursor=page["cursor"])["body"]
    listed = {child["child"]: child["since"] for child in page["children"] + rest["children"]}
    assert listed.keys() == {*names, "zoe"}
    assert {name for name, since in listed.items() if since is None} == {"zoe"}


SECRET = "0b1f6c64-7d0e-4a52-9c3b-8e2f5a7d9c10"


def test_a_browser_without_sign_in_is_counted_once_by_its_secret_and_takes_it_back(invoke: Invoke) -> None:
    """Nobody reads its name: it is listed as anonymous, and no answer has a child."""
    page = {"counter": "hearts", "id": "home"}
    invoke.direct("put_mine", **page, caller="ann")
    for secret, number in ((SECRET, 2), (SECRET[::-1], 3)):
        sent = {**page, "secret": secret, "query": "value=true"}
        answers = [events.body_of(invoke.http("put_anonymous", **sent)) for _ in range(2)]
        assert answers[0] == {**page, "present": True, "changed": True, "visible": "now", "value": number}
        assert (answers[1]["changed"], answers[1]["value"]) == (False, number)
    listed = events.body_of(invoke.http("list_children", counter="hearts", id="home"))["children"]
    assert [one | {"since": 0} for one in listed] == [
        {"anonymous": True, "since": 0}, {"anonymous": True, "since": 0}, {"child": "ann", "since": 0},
    ]  # fmt: skip
    pages = [invoke.direct("list_children", **page, limit=1)["body"]]
    while pages[-1]["cursor"]:
        pages.append(invoke.direct("list_children", **page, limit=1, cursor=pages[-1]["cursor"])["body"])
    assert [one for found in pages for one in found["children"]] == listed
    gone = [events.body_of(invoke.http("delete_anonymous", **page, secret=SECRET)) for _ in range(2)]
    assert [(one["present"], one["changed"]) for one in gone] == [(False, True), (False, False)]
    found = [events.body_of(invoke.http("get_anonymous", **page, secret=secret)) for secret in (SECRET, SECRET[::-1])]
    assert found == [{**page, "present": False}, {**page, "present": True}]
    of = ["hearts:home", "hearts:other", "likes:a91f", "members:acme", "plays:9f3a", "nothing:x", "hearts:home"]
    own = invoke.direct("list_anonymous", of=of, secret=SECRET[::-1])["body"]["anonymous"]
    assert [one.get("present", one.get("error", {}).get("status")) for one in own] == [
        True, False, 403, 403, 400, 404, True,
    ]  # fmt: skip
    assert own[0] == {**page, "present": True}


def test_a_late_retry_of_an_anonymous_like_does_not_like_again(invoke: Invoke) -> None:
    page = {"counter": "hearts", "id": "home", "secret": SECRET}
    first = invoke.http("put_anonymous", **page, idempotency_key=events.KEY)
    invoke.http("delete_anonymous", **page)
    again = invoke.http("put_anonymous", **page, idempotency_key=events.KEY)
    assert (again["headers"]["idempotency-replayed"], again["body"]) == ("true", first["body"])
    assert events.body_of(invoke.http("get_counter_hearts", id="home"))["value"] == 0
    stolen = invoke.http("put_anonymous", **page | {"secret": SECRET[::-1]}, idempotency_key=events.KEY)
    assert stolen["statusCode"] == 422, "a key belongs to one secret"


@pytest.mark.parametrize("operation", ["put_anonymous", "delete_anonymous", "get_anonymous"])
def test_who_is_not_signed_in_needs_a_secret_and_a_counter_for_anyone(operation: str, invoke: Invoke) -> None:
    def status(counter: str, secret: str | None) -> int:
        event = events.http(operation, counter=counter, id="home")
        event["headers"] |= {"tally-secret": secret}
        if secret is None:
            del event["headers"]["tally-secret"]
        return int(invoke(event)["statusCode"])

    assert [status("hearts", secret) for secret in (None, "", "s" * 21, "s" * 256, "s" * 22)] == [400] * 4 + [200]
    assert [status(counter, SECRET) for counter in ("likes", "members", "plays")] == [403, 403, 400]
