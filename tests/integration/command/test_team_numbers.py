"""`tally scan`, `check` and `repair` of team numbers: the likes of 300 posts. Up to 20 of these numbers are wrong."""

from __future__ import annotations

import json
import math
import shlex
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from tally.cdk.operator import operator_needs
from tally.counter import Counter, Watched, declared
from tally.items import TEAM_NUMBERS_GROUP, Items, Watch
from tally.team import health, watch
from tests.integration.command.numbers import mark_judged
from tests.integration.command.team import Team
from tests.integration.test_needs import Recorder
from tests.sync_wire import SyncWire

WRITE_OPTIONS = "--by ann --why test --yes"
LIKE_ITEMS = Items("shop", partition_prefix="POST#", sort_key="SK", sort_prefix="LIKE#")
LIKES = Watched("post_likes", table="shop", attribute="likeTally", items=LIKE_ITEMS, at="META")
COUNTERS = declared([LIKES])
POSTS, LIKES_EACH, WRONG_POSTS = 300, 2, 20


@pytest.fixture
def team(make_team: Callable[[Mapping[str, Counter]], Team]) -> Team:
    return make_team(COUNTERS)


def put_items(team: Team, items: list[dict[str, Any]]) -> None:
    for first in range(0, len(items), 25):
        requests = [{"PutRequest": {"Item": item}} for item in items[first : first + 25]]
        team.store.client.batch_write_item(RequestItems={team.table: requests})


def posts(excesses: dict[str, int]) -> list[dict[str, Any]]:
    """Returns the items of all posts, with likes and numbers. `excesses`: by post, the excess of a wrong number."""
    items = []
    for number in range(POSTS):
        post, tally = {"S": f"POST#{number}"}, LIKES_EACH + excesses.get(str(number), 0)
        items.append({"PK": post, "SK": {"S": "META"}, "likeTally": {"N": str(tally)}})
        items += [{"PK": post, "SK": {"S": f"LIKE#{user}"}} for user in range(LIKES_EACH)]
    return items


def test_get_shows_tallys_count_and_the_excess_of_the_teams_number(team: Team) -> None:
    put_items(team, posts({"3": 5}))
    assert team("scan post_likes --yes")[0] == 0
    mark_judged(team.store)
    assert team("check post_likes 3")[0] == 1
    assert team("get post_likes 3")[1] == f"post_likes 3: {LIKES_EACH}, and likeTally has an excess of +5\n"
    assert team("get post_likes 4")[1] == f"post_likes 4: {LIKES_EACH}\n"


def test_a_team_number_that_changed_recently_is_not_ok(team: Team) -> None:
    """The items may be ahead of the number or lag behind, and nobody can tell until `within_s` has passed. A check of
    all numbers is ok if the other numbers are."""
    put_items(team, posts({}))
    assert team("scan post_likes --yes")[0] == 0
    mark_judged(team.store)
    counters_with_slow_watch = declared(
        [replace(LIKES, items=replace(LIKE_ITEMS, watch=Watch("likeTally", "META", within_s=3600)))]
    )
    team.deploy(counters_with_slow_watch)
    reason = f"post_likes: {POSTS} groups have likeTally, {POSTS} of them changed within 3600 s and wait to be compared"
    code, _, err = team("check --only drift")
    assert (code, f"cannot tell: {reason}" in err) == (2, True)
    # As a sweep does. With the default `within_s` of a minute, the sweep can compare every number.
    watch.check_numbers(team.store, COUNTERS, time.time(), math.inf)
    assert team("check post_likes 3")[0] == 0
    team.put("POST#3", "LIKE#new")
    team.drain()
    code, out, err = team("check post_likes 3")
    assert (code, out) == (2, "nothing is known to be wrong\n")
    unknown = "cannot tell: post_likes 3 changed within 3600 s, and the excess of its likeTally may be -1 to 0"
    assert unknown in err
    code, out, err = team(f"repair post_likes 3 {WRITE_OPTIONS}")
    assert (code, out, unknown in err) == (2, "nothing is known to be wrong\n", True)
    code, out, err = team("check --only drift")
    assert (code, out) == (0, "all is well: drift\n")
    assert reason.replace(f"{POSTS} of", "1 of") in err


def test_a_team_number_with_decimals_is_shown_as_the_team_stores_it(
    make_team: Callable[[Mapping[str, Counter]], Team],
) -> None:
    like_items = Items("shop", partition_prefix="POST#", sort_key="SK", sort_prefix="LIKE#", amount="total", scale=2)
    team = make_team(declared([Watched("spent", table="shop", attribute="sum", items=like_items, at="META")]))
    team.put("POST#3", "LIKE#1", total={"N": "12.5"})
    team.put("POST#3", "META", sum={"N": "10.05"})
    assert team("scan spent --yes")[0] == 0
    mark_judged(team.store)
    _, out, err = team("check spent 3")
    (line,) = [line for line in out.splitlines() if line.startswith("differs")]
    assert line.startswith("differs  spent 3: sum is 10.05, and its items come to 12.50: the excess is -2.45;")
    assert '{":n": {"N": "2.45"}}' in line
    assert "spent 3: 12.50, and its items come to 12.50" in err
    (difference,) = map(json.loads, team("check spent 3 --json")[1].splitlines())
    assert [difference[name] for name in ("value", "items", "drift", "scale")] == [1005, 1250, -245, 2]
    assert team("get spent 3")[1] == "spent 3: 1250, and sum has an excess of -2.45\n"


def test_no_repair_command_is_printed_if_the_number_is_missing_or_the_declaration_has_changed(team: Team) -> None:
    """A command would make the missing item, or change a number that may be right by the new declaration."""
    put_items(team, posts({"3": 5}))
    assert team("scan post_likes --yes")[0] == 0
    mark_judged(team.store)
    assert "aws dynamodb update-item" in team("check post_likes 3")[1]
    team.wire.delete_item(TableName=team.table, Key={"PK": {"S": "POST#3"}, "SK": {"S": "META"}})
    team.drain()
    code, out, _ = team("check --only drift")
    assert (code, "aws" in out, "the number is missing: the sweep will check it\n" in out) == (1, False, True)
    team.put("POST#3", "META", likeTally={"N": "7"})
    team.drain()
    assert "aws dynamodb update-item" in team("check --only drift")[1]
    other_items = replace(LIKE_ITEMS, watch=LIKES.watch, where={"spam": False})
    team.counters = declared([replace(LIKES, items=other_items)])
    code, out, _ = team("check --only drift")
    assert (code, "aws" in out, "another declaration: run `tally scan post_likes` first\n" in out) == (1, False, True)


def test_a_team_number_that_is_a_text_in_each_item_is_not_reported_as_missing(team: Team) -> None:
    put_items(team, [item | ({"likeTally": {"S": "3"}} if "likeTally" in item else {}) for item in posts({})])
    code, _, err = team("scan post_likes --yes")
    assert (code, err.splitlines()[-1]) == (
        2, f"tally: cannot tell: post_likes: 0 of {POSTS} groups have likeTally: {POSTS} times an item with the sort"
        " key META has it, and Tally cannot read it, so nothing is compared. Store it as a number.",
    )  # fmt: skip


def test_a_team_number_that_no_item_has_is_not_ok(team: Team) -> None:
    """The declaration names another attribute than the items have, so nothing is compared."""
    put_items(team, posts({}))
    team.deploy(declared([replace(LIKES, items=replace(LIKE_ITEMS, watch=Watch("likeCount", "META")))]))
    reason = f"cannot tell: post_likes: 0 of {POSTS} groups have likeCount"
    code, out, err = team("scan post_likes --yes")
    assert (code, f"{POSTS} groups" in out, reason in err) == (2, True, True)
    mark_judged(team.store)
    for line in ("check --only drift", "check post_likes --yes"):
        code, out, err = team(line)
        assert (code, out, reason in err) == (2, "nothing is known to be wrong\n", True), line
    code, _, err = team("check post_likes 7")
    assert (code, "cannot tell: post_likes 7 has no likeCount" in err) == (2, True)
    check = health.items_check(team.store, team.counters)
    assert (check.state, f"0 of {POSTS} groups have likeCount" in check.summary) == ("unknown", True)
    team.put("POST#7", "META", likeCount={"N": str(LIKES_EACH)})
    team.drain()
    assert health.items_check(team.store, team.counters).state == "ok"
    assert team("check post_likes 7")[0] == 0
    team.put("POST#7", "META")
    team.drain()
    assert health.items_check(team.store, team.counters).state == "unknown"


def test_check_names_exactly_the_posts_with_a_wrong_number_and_repair_prints_a_command(team: Team) -> None:
    excesses = {str(number): 1 if number % 2 else -1 for number in range(0, POSTS, POSTS // WRONG_POSTS)}
    put_items(team, posts(excesses))
    team.drain()
    assert team("scan post_likes --yes")[0] == 0
    counts = {str(number): LIKES_EACH for number in range(POSTS)}
    numbers = counts | {TEAM_NUMBERS_GROUP: POSTS}  # the group that counts the posts with a likeTally
    assert (team.numbers("post_likes"), len(excesses)) == (numbers, WRONG_POSTS)
    mark_judged(team.store)
    code, printed, _ = team("check post_likes --yes --json")
    drifts = {line["id"]: line["drift"] for line in map(json.loads, printed.splitlines())}
    assert (code, drifts) == (1, excesses)
    code, printed, err = team(f"repair post_likes 30 {WRITE_OPTIONS}")
    assert (code, "likeTally in shop is the team's to repair: Tally never writes it" in err) == (1, True)
    (line,) = [line for line in printed.splitlines() if line.startswith("differs")]
    difference, _, command = line.partition("; to repair it: ")
    assert difference == "differs  post_likes 30: likeTally is 1, and its items come to 2: the excess is -1"
    options = shlex.split(command)[3:]  # after `aws dynamodb update-item`
    values = {name.strip("-"): value for name, value in zip(options[::2], options[1::2], strict=True)}
    team.store.client.update_item(
        TableName=values["table-name"], Key=json.loads(values["key"]), UpdateExpression=values["update-expression"],
        ExpressionAttributeNames=json.loads(values["expression-attribute-names"]),
        ExpressionAttributeValues=json.loads(values["expression-attribute-values"]),
    )  # fmt: skip
    team.sleep(0)  # runs the consumer and the sweep
    assert team("check post_likes 30")[0] == 0


class RecordingWire(SyncWire):
    """Records the needs that the command's requests to Tally's tables show."""

    def __init__(self, team: Team) -> None:
        super().__init__(int(team.endpoint.rpartition(":")[2]))
        self.recorder = Recorder(team.store)

    def _call(self, operation: str, parameters: dict[str, Any]) -> dict[str, Any]:
        self.recorder.note(operation, parameters)
        return super()._call(operation, parameters)


def test_the_command_needs_for_team_numbers_only_what_its_policy_allows(team: Team) -> None:
    put_items(team, posts({"3": 5}))
    with closing(RecordingWire(team)) as wire:
        assert team("scan post_likes --yes", wire)[0] == 0
        mark_judged(team.store)
        for line, code in {
            "check post_likes 3": 1, "check post_likes --yes": 1, "check --only drift": 1, "get post_likes 3": 0,
            f"repair post_likes 3 {WRITE_OPTIONS}": 1, "status": 1,
        }.items():  # fmt: skip
            assert team(line, wire)[0] == code, line
    policy = operator_needs(COUNTERS)
    assert wire.recorder.needs - policy == set()
    assert {need for need in wire.recorder.needs if need.prefix == "WATCHED#"} == {
        need for need in policy if need.prefix == "WATCHED#"
    }
