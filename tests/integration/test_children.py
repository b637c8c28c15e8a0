"""Services put children by name, callers put themselves, and browsers put likes without a sign-in."""

from __future__ import annotations

from typing import Any

import pytest

from tally.dynamo.client import Store
from tests import events
from tests.integration.conftest import Invoke

POST = {"id": "a91f", "body": "first", "caller": "auth0|7c20"}


def is_present(invoke: Invoke, counter: str, id: str, caller: str) -> bool:
    """Returns whether the caller is a child of this id."""
    return bool(invoke.direct("get_mine", counter=counter, id=id, caller=caller)["body"]["present"])


def test_a_heart_needs_no_post_and_counts_each_caller_once(invoke: Invoke) -> None:
    """Each heart is put twice, and ann's is removed twice, over HTTP. The child is the caller. A request that names
    another child is rejected."""
    page = {"counter": "hearts", "id": "home"}
    for sub, number in (("ann", 1), ("bob", 2)):
        answers = [events.body_of(invoke.http("put_mine", **page, sub=sub, query="value=true")) for _ in range(2)]
        assert [(answer["child"], answer["changed"], answer["value"]) for answer in answers] == [
            (sub, True, number), (sub, False, number),
        ]  # fmt: skip
    assert invoke.http("put_mine", **page, sub="ann", query="name=bob")["statusCode"] == 400
    children = events.body_of(invoke.http("list_children", counter="hearts", id="home"))["children"]
    assert [child["child"] for child in children] == ["ann", "bob"]
    assert "hearts: 2" in invoke.http("get_counter_badge", **page)["body"]
    removals = [events.body_of(invoke.http("delete_mine", **page, sub="ann")) for _ in range(2)]
    assert [(answer["present"], answer["changed"]) for answer in removals] == [(False, True), (False, False)]
    assert (is_present(invoke, "hearts", "home", "ann"), is_present(invoke, "hearts", "home", "bob")) == (False, True)
    assert events.body_of(invoke.http("get_counter_hearts", id="home"))["value"] == 1


def test_list_mine_answers_each_id_with_its_state_or_its_error(invoke: Invoke) -> None:
    invoke.direct("put_post", **POST)
    for counter in ("likes", "hearts"):
        invoke.direct("put_mine", counter=counter, id="a91f", caller="ann")
    of = [
        "hearts:a91f", "likes:a91f", "likes:none", "members:acme", "nothing:x", "plays:9f3a", "likes:a b",
        "hearts:a91f",
    ]  # fmt: skip
    mine = invoke.direct("list_mine", of=of, caller="ann")["body"]["mine"]
    assert [entry.get("present", entry.get("error", {}).get("status")) for entry in mine] == [
        True, True, False, 403, 404, 400, 400, True,
    ]  # fmt: skip
    assert mine[0] == {"counter": "hearts", "id": "a91f", "child": "ann", "present": True}
    assert (mine[3]["counter"], mine[3]["id"]) == ("members", "acme")
    assert len(invoke.direct("list_mine", of=["hearts:a91f"] * 100, caller="bob")["body"]["mine"]) == 100


@pytest.mark.parametrize("operation", ["put_mine", "delete_mine", "get_mine"])
def test_callers_cannot_put_themselves_where_services_change_the_counter(operation: str, invoke: Invoke) -> None:
    refused = invoke.http(operation, counter="members", id="acme")
    assert refused["statusCode"] == 403
    assert "a service does" in events.body_of(refused)["detail"]
    assert invoke.http(operation, counter="plays", id="acme")["statusCode"] == 400


def test_a_post_is_created_with_201_and_edited_with_200_and_only_its_author_edits_it(
    invoke: Invoke, store: Store
) -> None:
    def put(sub: str, body: str) -> dict[str, Any]:
        return invoke(events.http("put_post", id="a91f", sub=sub, document={"body": body}))

    answers = [put("alice", "one"), put("alice", "two"), put("alice", "two"), put("bob", "three")]
    assert [answer["statusCode"] for answer in answers] == [201, 200, 200, 403]
    post = events.body_of(invoke.http("get_post", id="a91f"))
    assert (post["body"], post["revision"], post["author"], post["likes"]) == ("two", 1, "alice", 0)
    items = store.client.scan(TableName=store.settings.counts_table)["Items"]
    assert {item["SK"]["S"]: "body" in item for item in items} == {"META": False, "META.BODY": True}
    assert [invoke.http("delete_post", id="a91f", sub=sub)["statusCode"] for sub in ("bob", "alice")] == [403, 200]
    second_answer = invoke.http("delete_post", id="a91f", sub="alice")
    assert events.body_of(second_answer) == {"id": "a91f", "removed": True, "changed": False}


def test_children_are_listed_by_their_names_and_no_name_adds_a_separator_to_a_key(invoke: Invoke, store: Store) -> None:
    """Names are percent-encoded in keys. A child that was not put through Tally has no time."""
    names = ["auth0|7c20", "a#b", "a?b", "x/y", "ü", "..."]
    for name in names:
        body = events.body_of(invoke.http("put_child", counter="members", id="7c20", name=name))
        assert (body["child"], body["changed"]) == (name, True)
    key = {"PK": {"S": "WORKSPACE#7c20"}, "SK": {"S": "MEMBER#USER#zoe"}}
    store.client.put_item(TableName=store.settings.counts_table, Item=key)
    items = store.client.scan(TableName=store.settings.counts_table)["Items"]
    # MEMBER#USER#name: no name adds a separator.
    assert {item["SK"]["S"].count("#") for item in items if item["SK"]["S"].startswith("MEMBER#")} == {2}
    workspace = {"counter": "members", "id": "7c20"}
    first_page = invoke.direct("list_children", **workspace, limit=4)["body"]
    last_page = invoke.direct("list_children", **workspace, cursor=first_page["cursor"])["body"]
    since_by_name = {child["child"]: child["since"] for child in first_page["children"] + last_page["children"]}
    assert since_by_name.keys() == {*names, "zoe"}
    assert {name for name, since in since_by_name.items() if since is None} == {"zoe"}


SECRET = "0b1f6c64-7d0e-4a52-9c3b-8e2f5a7d9c10"
OTHER_SECRET = SECRET[::-1]  # of another browser


def test_a_browser_without_sign_in_is_counted_once_and_removes_its_like_by_its_secret(invoke: Invoke) -> None:
    """The browser's child is listed as anonymous, and no answer has the child's name."""
    page = {"counter": "hearts", "id": "home"}
    invoke.direct("put_mine", **page, caller="ann")
    for secret, number in ((SECRET, 2), (OTHER_SECRET, 3)):
        fields = {**page, "secret": secret, "query": "value=true"}
        answers = [events.body_of(invoke.http("put_anonymous", **fields)) for _ in range(2)]
        assert answers[0] == {**page, "present": True, "changed": True, "visible": "now", "value": number}
        assert (answers[1]["changed"], answers[1]["value"]) == (False, number)
    children = events.body_of(invoke.http("list_children", counter="hearts", id="home"))["children"]
    assert [child | {"since": 0} for child in children] == [
        {"anonymous": True, "since": 0}, {"anonymous": True, "since": 0}, {"child": "ann", "since": 0},
    ]  # fmt: skip
    pages = [invoke.direct("list_children", **page, limit=1)["body"]]
    while pages[-1]["cursor"]:
        pages.append(invoke.direct("list_children", **page, limit=1, cursor=pages[-1]["cursor"])["body"])
    assert [child for page_of_one in pages for child in page_of_one["children"]] == children
    removals = [events.body_of(invoke.http("delete_anonymous", **page, secret=SECRET)) for _ in range(2)]
    assert [(answer["present"], answer["changed"]) for answer in removals] == [(False, True), (False, False)]
    states = [events.body_of(invoke.http("get_anonymous", **page, secret=secret)) for secret in (SECRET, OTHER_SECRET)]
    assert states == [{**page, "present": False}, {**page, "present": True}]
    of = ["hearts:home", "hearts:other", "likes:a91f", "members:acme", "plays:9f3a", "nothing:x", "hearts:home"]
    entries = invoke.direct("list_anonymous", of=of, secret=OTHER_SECRET)["body"]["anonymous"]
    assert [entry.get("present", entry.get("error", {}).get("status")) for entry in entries] == [
        True, False, 403, 403, 400, 404, True,
    ]  # fmt: skip
    assert entries[0] == {**page, "present": True}


def test_a_late_retry_of_an_anonymous_like_does_not_put_the_like_back(invoke: Invoke) -> None:
    page = {"counter": "hearts", "id": "home", "secret": SECRET}
    first = invoke.http("put_anonymous", **page, idempotency_key=events.KEY)
    invoke.http("delete_anonymous", **page)
    retried = invoke.http("put_anonymous", **page, idempotency_key=events.KEY)
    assert (retried["headers"]["idempotency-replayed"], retried["body"]) == ("true", first["body"])
    assert events.body_of(invoke.http("get_counter_hearts", id="home"))["value"] == 0
    stolen = invoke.http("put_anonymous", **page | {"secret": OTHER_SECRET}, idempotency_key=events.KEY)
    assert stolen["statusCode"] == 422, "a key belongs to one secret"


@pytest.mark.parametrize("operation", ["put_anonymous", "delete_anonymous", "get_anonymous"])
def test_likes_without_sign_in_need_a_secret_and_a_counter_that_anyone_changes(operation: str, invoke: Invoke) -> None:
    def status(counter: str, secret: str | None) -> int:
        event = events.http(operation, counter=counter, id="home")
        event["headers"] |= {"tally-secret": secret}
        if secret is None:
            del event["headers"]["tally-secret"]
        return int(invoke(event)["statusCode"])

    assert [status("hearts", secret) for secret in (None, "", "s" * 21, "s" * 256, "s" * 22)] == [400] * 4 + [200], (
        "a secret has 22 to 255 characters"
    )
    assert [status(counter, SECRET) for counter in ("likes", "members", "plays")] == [403, 403, 400]
