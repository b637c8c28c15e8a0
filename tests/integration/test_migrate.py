"""Each recipe of docs/migrate.md takes every number out of its store, and an import brings the numbers into Tally.

The recipe for DynamoDB reads the engine. The other recipes read a fake, which answers as the store's own client does.
"""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import counters
from tally.counting import tallies
from tally.dev.base.engine import Engine
from tally.dynamo.client import Call, Store
from tests.commands import Command
from tests.environments import ROOT

PAGE = (ROOT / "docs/migrate.md").read_text()
RECIPES = dict(re.findall(r"^`(\w+\.\w+)`\n\n```\w+\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL))
REDIS_NUMBERS = {f"v{number}": number * 7 % 1001 + 1 for number in range(1500)}  # the recipe reads 1000 at a time
REDIS = f"""
KEYS = { ({f"plays:{id_}": str(number) for id_, number in REDIS_NUMBERS.items()} | {"likes:x": "5"})!r}
class Redis:
    @staticmethod
    def from_url(url, decode_responses):
        assert decode_responses
        return Redis()
    def scan_iter(self, match, count):
        matching = [key for key in KEYS if key.startswith(match.removesuffix("*"))]
        return [*matching, *matching[:9]]  # SCAN may return a key twice
    def mget(self, keys):
        return [KEYS[key] for key in keys]
"""
FIRESTORE = """
class Reference:
    def __init__(self, path):
        self.id, self._parent = path[-1], path[:-1]
    parent = property(lambda self: Reference(self._parent))
class Document:
    def __init__(self, path, number):
        self.reference, self.id, self._fields = Reference(path), path[-1], {"plays": number}
    def get(self, field):
        return self._fields[field]
class Collection(list):
    def stream(self):
        return iter(self)
NUMBERS = {"a": 7, "b": 0, "c": 10**12}
class Client:
    def collection(self, name):
        return Collection(Document([name, id], number) for id, number in NUMBERS.items())
    def collection_group(self, name):
        shards = {("videos", id): [0, number, 2] for id, number in NUMBERS.items()} | {("posts", "a"): [5]}
        return Collection(
            Document([*parent, name, str(shard)], number)
            for parent, numbers in shards.items() for shard, number in enumerate(numbers)
        )
"""
POSTGRES = r"""#!/bin/sh
[ "$*" = "--csv -c SELECT slug AS id, plays AS value, now() AS at FROM videos" ] || exit 1
printf 'id,value,at\na,7,2026-11-25 21:06:45.123456+00\nb,0,2026-11-25 21:06:45.123456+00\n'
"""
"""A fake `psql`, which prints as Postgres 15 does."""


@pytest.fixture
def command(store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(store, tmp_path, capsys)


def run_and_import(command: Command, recipe: str, numbers: dict[str, int], **environment: str) -> None:
    """Runs a recipe and imports its output. Fails unless the recipe prints these numbers, and the import sets them."""
    command_line = ["sh", "-ec", RECIPES[recipe]] if recipe.endswith(".sh") else [sys.executable, "-c", RECIPES[recipe]]
    variables = os.environ | {"PYTHONPATH": str(command.folder)} | environment
    printed = subprocess.run(command_line, env=variables, stdout=subprocess.PIPE, text=True, check=True).stdout
    rows = list(csv.DictReader(printed.splitlines()))
    assert (len(rows), {row["id"]: int(row["value"]) for row in rows}) == (len(numbers), numbers)
    assert command.import_(command.file(*printed.splitlines())) == 0
    assert {id_: tallies.read(Call(command.store), counters.PLAYS, id_) for id_ in numbers} == numbers


def test_the_page_has_a_recipe_for_each_store() -> None:
    assert [name.split("_")[0] for name in RECIPES] == ["redis", "firestore", "postgres", "dynamodb"]


def test_the_recipe_for_redis_exports_every_counter_once(command: Command) -> None:
    (command.folder / "redis.py").write_text(REDIS)
    run_and_import(command, "redis_numbers.py", REDIS_NUMBERS, REDIS_URL="redis://")


@pytest.mark.parametrize("is_sharded", [True, False])
def test_the_recipe_for_firestore_exports_every_counter_as_the_sum_of_its_shards(
    command: Command, monkeypatch: pytest.MonkeyPatch, is_sharded: bool
) -> None:
    (command.folder / "google/cloud").mkdir(parents=True)
    (command.folder / "google/cloud/firestore.py").write_text(FIRESTORE)
    name, other_shards = "firestore_numbers.py", 2 if is_sharded else 0  # FIRESTORE has the shards 0, the number, 2
    if not is_sharded:
        assert '"shards"  #' in RECIPES[name]
        monkeypatch.setitem(RECIPES, name, RECIPES[name].replace('"shards"  #', "None  #"))
    run_and_import(command, name, {"a": 7 + other_shards, "b": other_shards, "c": 10**12 + other_shards})


def test_the_recipe_for_postgres_exports_every_row_with_the_time_of_its_snapshot(command: Command) -> None:
    psql = command.folder / "psql"
    psql.write_text(POSTGRES)
    psql.chmod(0o755)
    run_and_import(command, "postgres_numbers.sh", {"a": 7, "b": 0}, PATH=f"{command.folder}:{os.environ['PATH']}")


def test_the_recipe_for_dynamodb_exports_every_item_of_every_page(command: Command, engine: Engine) -> None:
    client = command.store.client
    client.create_table(
        TableName="Videos", BillingMode="PAY_PER_REQUEST", KeySchema=[{"AttributeName": "videoId", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "videoId", "AttributeType": "S"}],
    )  # fmt: skip
    numbers = {f"v{number}": number for number in range(30)}
    for id_, number in numbers.items():
        filler = {"about": {"S": "x" * 100_000}}  # so that the items fill more than one page
        client.put_item(TableName="Videos", Item={"videoId": {"S": id_}, "plays": {"N": str(number)}, **filler})
    run_and_import(command, "dynamodb_numbers.py", numbers, AWS_ENDPOINT_URL_DYNAMODB=engine.endpoint)
