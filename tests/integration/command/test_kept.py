"""`tally scan`, `check` and `repair` of a number that the team keeps itself: 300 posts, of which 20 are off."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tally.counter import Counter, Watched, declared
from tally.items import Items
from tests.integration.command.numbers import judged
from tests.integration.command.team import Team

SIGNED = "--by ann --why test --yes"
LIKES = Watched(
    "post_likes", table="shop", number="likeTally", of=Items("shop", starts="POST#", sort="SK", sort_starts="LIKE#")
)
COUNTERS = declared([LIKES])
POSTS, EACH, OFF = 300, 2, 20


@pytest.fixture
def team(make_team: Callable[[Mapping[str, Counter]], Team]) -> Team:
    return make_team(COUNTERS)


def put(team: Team, items: list[dict[str, Any]]) -> None:
    for first in range(0, len(items), 25):
        requests = [{"PutRequest": {"Item": item}} for item in items[first : first + 25]]
        team.store.client.batch_write_item(RequestItems={team.table: requests})


def posts(wrong: dict[str, int]) -> list[dict[str, Any]]:
    """The posts with their likes, and the numbers that the team keeps."""
    made = []
    for number in range(POSTS):
        post, tally = {"S": f"POST#{number}"}, EACH + wrong.get(str(number), 0)
        made.append({"PK": post, "SK": {"S": "META"}, "likeTally": {"N": str(tally)}})
        made += [{"PK": post, "SK": {"S": f"LIKE#{user}"}} for user in range(EACH)]
    return made


def test_exactly_the_posts_that_are_off_are_named_and_the_repair_is_printed(team: Team) -> None:
    wrong = {str(number): 1 + number % 3 if number % 2 else -1 for number in range(0, POSTS, POSTS // OFF)}
    put(team, posts(wrong))
    team.drain()
    assert team("scan post_likes --yes")[0] == 0
    assert (team.numbers("post_likes"), len(wrong)) == ({str(number): EACH for number in range(POSTS)}, OFF)
    judged(team.store)
    code, printed, _ = team("check post_likes --yes --json")
    named = {line["id"]: line["drift"] for line in map(json.loads, printed.splitlines())}
    assert (code, named) == (1, wrong)

    code, printed, noted = team(f"repair post_likes 30 {SIGNED}")
    assert (code, "likeTally in shop is the team's to repair: Tally never writes it" in noted) == (1, True)
    (line,) = [line for line in printed.splitlines() if line.startswith("differs")]
    said, _, command = line.partition("; to repair it: ")
    assert said == "differs  post_likes 30: likeTally is 1, and its items come to 2: it is -1 off"
    given = shlex.split(command)[3:]
    values = {name.strip("-"): value for name, value in zip(given[::2], given[1::2], strict=True)}
    team.store.client.update_item(
        TableName=values["table-name"], Key=json.loads(values["key"]), UpdateExpression=values["update-expression"],
        ExpressionAttributeNames=json.loads(values["expression-attribute-names"]),
        ExpressionAttributeValues=json.loads(values["expression-attribute-values"]),
    )  # fmt: skip
    team.sleep(0)
    assert team("check post_likes 30")[0] == 0
