"""Each recipe of docs/old-numbers.md takes every number out of a real store, and an import brings it into Tally."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

import counters
from tally.counting import tallies
from tally.dev.base.engine import Engine
from tally.dynamo.client import Call
from tally.streams import fold
from tests.commands import Command
from tests.integration.command.numbers import summed_up
from tests.old_numbers import stores
from tests.old_numbers.conftest import RECIPES, Read

pytestmark = pytest.mark.long  # it begins servers that only such tests need
MANY = {f"v{number}": number * 7 % 1001 + 1 for number in range(2500)}


def rows_of(file: Path) -> list[dict[str, str]]:
    with file.open() as lines:
        return list(csv.DictReader(lines))


def imported(command: Command, file: Path, numbers: dict[str, int]) -> None:
    """Fail unless the file has these numbers, read just now, and each is in Tally after an import."""
    rows = rows_of(file)
    assert {row["id"]: int(row["value"]) for row in rows} == numbers
    assert len(rows) == len(numbers)
    assert command.import_(file) == 0
    call = Call(command.store)
    assert {id_: tallies.read(call, counters.PLAYS, id_) for id_ in numbers} == numbers


def test_the_page_has_a_recipe_for_each_store() -> None:
    assert [name.split("_")[0] for name in RECIPES] == ["redis", "firestore", "postgres", "dynamodb"]


def test_redis_gives_every_counter_once_and_what_is_none_is_named(command: Command, reading: Read) -> None:
    with stores.redis() as port:
        url = f"redis://127.0.0.1:{port}"
        fill = """
import json, sys, redis
old, numbers = redis.Redis.from_url(sys.argv[1]), json.loads(sys.stdin.read())
line = old.pipeline(transaction=False)
for id, number in numbers.items():
    line.incrby(f"plays:{id}", number)
line.incrby("likes:x", 5)
line.execute()
"""
        asked = [stores.python(), "-c", fill, url]
        subprocess.run(asked, input=json.dumps(MANY), text=True, check=True)
        before_s = int(time.time())
        file = reading("redis_numbers.py", REDIS_URL=url)
        assert {int(row["at"]) for row in rows_of(file)} <= set(range(before_s, int(time.time()) + 1))
        imported(command, file, MANY)
        stores.run("import sys, redis; redis.Redis.from_url(sys.argv[1]).hset('plays:odd', 'a', 1)", url)
        stores.run("import sys, redis; redis.Redis.from_url(sys.argv[1]).set('plays:a b', 1)", url)
        command.said()
        assert command("import", reading("redis_numbers.py", REDIS_URL=url), "--counter", "plays") == 2
        said = command.said()[1]
        assert said.count(": line ") == 2
        assert "value must be a whole number" in said
        assert "ID must be" in said


@pytest.mark.parametrize("sharded", [True, False])
def test_firestore_gives_every_counter_and_the_sum_of_its_shards(
    command: Command, reading: Read, sharded: bool
) -> None:
    fill = """
import sys
from google.cloud import firestore
old = firestore.Client()
for id, number in (("a", 7), ("b", 0), ("c", 10**12)):
    video = old.collection("videos").document(id)
    video.set({"plays": number, "title": "x"})
    for shard in range(3):
        video.collection("shards").document(str(shard)).set({"plays": number if shard == 1 else shard})
    old.collection("posts").document(id).collection("shards").document("0").set({"plays": 5})
"""
    with stores.firestore() as where:
        stores.run(fill, **where)
        change = () if sharded else (('"shards"  #', "None  #"),)
        file = reading("firestore_numbers.py", *change, **where)
        more = 2 if sharded else 0
        imported(command, file, {"a": 7 + more, "b": more, "c": 10**12 + more})


def test_postgres_gives_every_row_with_the_moment_of_its_snapshot(command: Command, reading: Read) -> None:
    with stores.postgres() as where:
        fill = "CREATE TABLE videos (slug text, plays bigint); INSERT INTO videos SELECT 'v' || n, n * 7 % 1001 + 1"
        fill += " FROM generate_series(0, 2499) AS n"
        stores.psql(fill, where)
        file = reading("postgres_numbers.sh", **where)
        imported(command, file, MANY)
        stores.psql("INSERT INTO videos VALUES ('none', NULL)", where)
        command.said()
        assert command("import", reading("postgres_numbers.sh", **where), "--counter", "plays") == 2
        assert "line 2502: value must be a whole number" in command.said()[1]


def test_shadow_reads_a_query_of_a_table_with_a_row_for_each_hour(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two plays at once the table has one."""
    monkeypatch.setattr(fold, "BUCKETS", 1)  # the others would be empty
    hour, counted = 500_000, (20, 10)  # since 1970: 2027-01-15 08:00 UTC
    plays = [((hour + of) * 60 + 5, "a", number) for of, number in enumerate(counted)]
    summed_up(command.store, hour * 60 - 10, hour * 60 + 200, plays)
    with stores.postgres() as where:
        first = f"to_timestamp({(hour - 1) * 3600})"  # the hour before those that are compared
        stores.psql(f"CREATE TABLE hourly AS SELECT 'a' AS slug, {first} AS hour, 5 AS plays", where)
        for of, number in enumerate(counted):
            at = f"to_timestamp({(hour + of) * 3600})"
            stores.psql(f"INSERT INTO hourly VALUES ('a', {at}, {number // 2})", where)
        query = """SELECT slug AS id, sum(plays) OVER (PARTITION BY slug ORDER BY hour) AS value,
                   hour + interval '1 hour' AS at FROM hourly"""
        asked = stores.psql(query, where)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(asked.encode())))
    command.said()
    assert command("shadow", "plays", "-", "--tz", "UTC") == 1
    out, _ = command.said()
    assert [row.split(",", 2)[2] for row in out.splitlines()[1:]] == ["1,10,20,-10", "1,5,10,-5"]


def test_dynamodb_gives_every_item_of_every_page(command: Command, reading: Read, engine: Engine) -> None:
    client = command.store.client
    client.create_table(
        TableName="Videos", BillingMode="PAY_PER_REQUEST", KeySchema=[{"AttributeName": "videoId", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "videoId", "AttributeType": "S"}],
    )  # fmt: skip
    numbers = {f"v{number}": number for number in range(30)}
    for id_, number in numbers.items():
        about = {"about": {"S": "x" * 100_000}}  # more than a page
        client.put_item(TableName="Videos", Item={"videoId": {"S": id_}, "plays": {"N": str(number)}, **about})
    imported(command, reading("dynamodb_numbers.py", AWS_ENDPOINT_URL_DYNAMODB=engine.endpoint), numbers)
