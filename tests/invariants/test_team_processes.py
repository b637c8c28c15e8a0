"""Nothing is lost while four processes write, move and delete items, and while scans start, overlap and are killed."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import time
from contextlib import closing, suppress
from dataclasses import replace
from multiprocessing.process import BaseProcess

import pytest

from tally.dev.base.engine import Engine
from tally.dynamo.client import Call, Store
from tally.streams import dead_letters
from tally.team import scan_reader, scan_state
from tally.team.recounts import Recount
from tally.team.scan_reader import ScanClosedError
from tests.contexts import LambdaContext
from tests.delivery import Record
from tests.invariants.team_table import Team, make_team
from tests.invariants.team_turns import COUNTERS, random_write
from tests.sync_wire import SyncWire
from tests.tiers import marked_long

WRITERS, WRITES, SCANNERS = 4, 400, 3
FORK = multiprocessing.get_context("fork")


@pytest.fixture
def team(store: Store, engine: Engine) -> Team:
    return make_team(store, engine, COUNTERS)


def write(port: int, team: Team, seed: int) -> None:
    """Makes WRITES random writes of the team, in a process of its own."""
    team.wire, chance = SyncWire(port), random.Random(seed)
    for _ in range(WRITES):
        pk, sk, attributes = random_write(chance)
        if attributes is None:
            team.delete(pk, sk)
        else:
            team.put(pk, sk, **attributes)


def scan(port: int, team: Team, name: str, page_items: int) -> None:
    """Continues the open scan of the counter `name` to its end. `page_items`: items of a page; 0: no limit."""
    with closing(SyncWire(port)) as wire, suppress(ScanClosedError):
        store = replace(team.store, client=wire)  # type: ignore[arg-type]
        for _ in Recount(store, COUNTERS[name], scan_state.read_scan(store, name), page_items=page_items).run_steps():
            pass


class Schedule:
    """The test's own process: starts the other processes, delivers the stream, and begins and kills scans."""

    def __init__(self, engine: Engine, team: Team, seed: int) -> None:
        self.port, self.team, self.chance = engine.port, team, random.Random(seed)
        self.scanners: list[BaseProcess] = []
        self.removed_images: dict[str, Record] = {}
        """The image that each poison record lost, by sequence number."""

    def start(self, work: object, *arguments: object) -> BaseProcess:
        process = FORK.Process(target=work, args=(self.port, self.team, *arguments), daemon=True)  # type: ignore[arg-type]
        process.start()
        return process

    def run(self, *, poison: bool) -> None:
        """Runs the writers. Delivers and scans until the writers are done. `poison`: makes some records unreadable."""
        writers = [self.start(write, self.chance.random()) for _ in range(WRITERS)]
        while any(writer.is_alive() for writer in writers):
            self.deliver(poison=poison)
            self.scan()
        assert [writer.exitcode for writer in writers] == [0] * WRITERS

    def deliver(self, *, poison: bool) -> None:
        """Delivers a batch of each shard, perhaps with records that were delivered before."""
        team, chance = self.team, self.chance
        old_count = sum(len(shard.records) for shard in team.shards.values())
        team.read_stream()
        for shard in team.shards.values():
            for record in shard.records[old_count:]:
                self.change_record(record, poison=poison)
            size, repeats = chance.randint(1, 60), chance.choice((0, 0, 5, 200))
            shard.advance(shard.invoke(shard.batch(size, repeats), LambdaContext(), team.process()), size)

    def change_record(self, record: Record, *, poison: bool) -> None:
        """Marks a removal as a removal by TTL, or makes the record unreadable, by chance."""
        if record["eventName"] == "REMOVE" and self.chance.random() < 0.5:
            record["userIdentity"] = {"type": "Service", "principalId": "dynamodb.amazonaws.com"}
        if poison and "NewImage" in record["dynamodb"] and self.chance.random() < 0.02:
            self.removed_images[record["dynamodb"]["SequenceNumber"]] = record["dynamodb"].pop("NewImage")

    def scan(self) -> None:
        """Begins a scan, starts another process for an open scan, or kills such a process."""
        chance, name = self.chance, self.chance.choice(list(COUNTERS))
        self.scanners = [scanner for scanner in self.scanners if scanner.is_alive()]
        if chance.random() < 0.1:
            scan_state.begin(self.team.store, COUNTERS[name], time.time())
        if len(self.scanners) < SCANNERS and not scan_state.read_scan(self.team.store, name).closed:
            self.scanners.append(self.start(scan, name, chance.choice((1, 4, 0))))
        elif self.scanners and chance.random() < 0.5:
            os.kill(self.scanners.pop().pid or 0, signal.SIGKILL)

    def finish(self) -> None:
        self.team.drain()
        for scanner in self.scanners:
            scanner.join()

    def redrive(self) -> int:
        """Gives each record of a dead letter its image back, and redrives the dead letters as `tally repair` does.
        First closes the open scans, because a redrive does not move their recounts."""
        team = self.team
        for name in COUNTERS:
            scan_state.close(team.store, scan_state.read_scan(team.store, name))
        for name, body in team.bucket.objects.items():
            dead_letter = json.loads(body)
            record = dead_letter["record"]["dynamodb"]
            record["NewImage"] = self.removed_images[record["SequenceNumber"]]
            team.bucket.objects[name] = json.dumps(dead_letter).encode()
        markers = list(dead_letters.list_markers(Call(team.store)))
        for marker in markers:
            team.redrive(marker)
        return len(markers)


@pytest.mark.parametrize("seed", marked_long(range(5)))
def test_after_concurrent_writes_and_killed_scans_numbers_and_recounts_equal_the_stored_items(
    engine: Engine, team: Team, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan_reader, "WRITES_MAX", 8)  # so a page needs several transactions
    for name in COUNTERS:
        team.count(name)
    schedule = Schedule(engine, team, seed)
    schedule.run(poison=True)
    schedule.finish()
    assert schedule.redrive() > 0
    schedule.run(poison=False)
    schedule.finish()
    for name in COUNTERS:
        assert team.numbers(name) == team.truth(name)
        if scan_state.read_scan(team.store, name).closed:
            scan_state.begin(team.store, COUNTERS[name], time.time())
        recount = team.recount(name)
        if not recount.scan.ended_s:
            scan(engine.port, team, name, page_items=0)
        assert recount.is_complete()
        assert not any(difference.excess for difference in recount.all_differences())
