"""The items of a team's own table, on the engine and its streams: counted exactly, whatever happens at once."""

from __future__ import annotations

import random

import pytest

from tally.dev.base.engine import Engine
from tally.dynamo.client import Store
from tally.streams import own_items, scans
from tests.invariants.own import Team
from tests.invariants.own_turns import COUNTERS, Turns
from tests.invariants.simulation import Clock
from tests.sync_wire import SyncWire
from tests.tiers import in_long

SEEDS, SEEDS_LONG = 20, 300
TURNS = 200


@pytest.fixture
def team(store: Store, engine: Engine) -> Team:
    wire = store.client
    assert isinstance(wire, SyncWire)
    return Team(store, wire, COUNTERS, "shop", engine.endpoint)


def forget_markers(team: Team) -> None:
    """DynamoDB has removed the markers."""
    ledger = team.store.settings.ledger_table
    for item in team.wire.scan(TableName=ledger)["Items"]:
        if item["PK"]["S"].startswith("SEEN#"):
            team.wire.delete_item(TableName=ledger, Key={"PK": item["PK"], "SK": item["SK"]})


@pytest.mark.parametrize("seed", [*range(SEEDS), *in_long(range(SEEDS, SEEDS_LONG))])
def test_whatever_happens_at_once_a_number_that_is_shown_is_right(
    team: Team, seed: int, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_items, "ITEMS_MAX", 9)
    turns = Turns(team, random.Random(seed), clock)
    for _ in range(40):
        turns.write()
    for shard in turns.shards:
        del shard.records[: len(shard.records) // 2]  # the stream was not on then
    for name in COUNTERS if seed % 2 else ():
        turns.count(name)
    for _ in range(TURNS):
        turns.turn()
    turns.rest()
    shown = [name for name, counter in COUNTERS.items() if scans.read(team.store, name).counted == counter.digest]
    assert not seed % 2 or len(shown) == len(COUNTERS)
    for name in shown:
        assert team.numbers(name) == team.truth(name), name
    for name in COUNTERS:
        turns.count(name)
    for _ in range(30):
        turns.write()
    forget_markers(team)
    turns.rest()
    for name in COUNTERS:
        assert team.numbers(name) == team.truth(name), name
