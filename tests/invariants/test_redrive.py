"""Dead letters are redriven: each takes effect once, on the current minute."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

import counters
from tally.cli import commands
from tally.cli.connection import Stack
from tally.dynamo import clock
from tally.dynamo.client import Call
from tally.errors import StoreBusyError, StoreUnreachableError
from tally.streams import dead_letters
from tally.streams.record import CounterIndex
from tally.streams.segments import JournalEntry
from tests import faults
from tests.faults import FaultProxy
from tests.invariants.deployment import Deployment, deployed
from tests.invariants.processes import interrupted_client
from tests.invariants.stream_records import MINUTE, POISON_PLAY, SHARD, play
from tests.invariants.streaming import LONG_TEXT, NOW_S, StreamWorld
from tests.invariants.threads import run_together
from tests.tiers import marked_long


def make_dead_letters(stream: StreamWorld) -> None:
    """Makes two dead letters: plays of a counter that is not declared."""
    retired = {"counter": {"S": "retired"}}
    stream.deliver("rollup", "receipts", SHARD, [play(1, **retired), play(2, amount=5, **retired), play(3)])
    assert stream.dead_letter_sequences()["rollup"] == {"1", "2"}


def test_a_record_that_still_cannot_be_applied_stays_and_says_why(stream: StreamWorld) -> None:
    stream.deliver("rollup", "receipts", SHARD, [POISON_PLAY, play(51, LONG_TEXT), play(52, counter={"S": "retired"})])
    results = stream.redrive_with_reasons(counters.COUNTERS)
    assert [outcome for outcome, _ in results] == ["kept"] * 3
    for (_, reason), words in zip(results, ("malformed: ValueError", "", "retired"), strict=True):  # "": any reason
        assert words in reason
    assert stream.dead_letter_sequences()["rollup"] == {"50", "51", "52"}
    assert stream.tallies() == {}


def test_concurrent_redrives_apply_a_dead_letter_once(stream: StreamWorld) -> None:
    make_dead_letters(stream)
    markers = list(dead_letters.list_markers(Call(stream.store)))
    redrives = run_together([lambda: stream.redrive(markers=markers)] * 4)  # each redrives both dead letters
    assert sorted(outcome for outcomes in redrives for outcome in outcomes) == ["applied"] * 2 + ["gone"] * 6
    assert stream.redrive() == []
    assert stream.tallies() == {("plays", "v"): 1, ("retired", "v"): 6}
    assert stream.bucket.objects == {}
    assert stream.rows("DEADLETTER") == []


@pytest.mark.parametrize("lost_responses", [1, 3])  # the SDK sends a request up to 3 times
def test_a_redrive_whose_response_is_lost_applies_once(
    proxied_stream: StreamWorld, proxy: FaultProxy, lost_responses: int
) -> None:
    make_dead_letters(proxied_stream)
    proxy.plan = faults.script({"TransactWriteItems": [faults.LOSE_RESPONSE] * lost_responses})
    try:
        proxied_stream.redrive()
    except StoreUnreachableError:
        proxied_stream.redrive()
    assert proxied_stream.tallies() == {("plays", "v"): 1, ("retired", "v"): 6}
    assert proxied_stream.dead_letter_sequences()["rollup"] == set()


def test_a_redrive_books_a_dead_letter_of_the_bookkeeper_on_the_current_minute(stream: StreamWorld) -> None:
    stream.deliver("bookkeeper", "receipts", SHARD, [play(1, writer_minute=10**11), play(2)])  # no minute is so late
    (key,) = stream.bucket.objects
    dead_letter = json.loads(stream.bucket.objects[key])
    dead_letter["record"]["dynamodb"]["NewImage"]["at"] = {"N": str(MINUTE)}  # as an operator corrects it
    stream.bucket.objects[key] = json.dumps(dead_letter).encode()
    began_minute = int(time.time() // 60)
    assert stream.redrive() == ["applied"]
    (first_minute, _, entries), (second_minute, name, redriven) = sorted(stream.segments())
    assert entries == redriven == [JournalEntry("plays", "v", pair="", expected=1, observed=0)]
    dead_letter_name = f"bookkeeper#{NOW_S:.0f}#receipts#{SHARD}#1"
    assert (first_minute, name) == (MINUTE, f"receipts#redrive#{dead_letter_name}#1")
    assert began_minute <= second_minute <= int(time.time() // 60)


@pytest.mark.parametrize("minutes_ago", [1, 0, -9])  # when the last judged minute was; -9: this clock is behind
def test_nothing_is_redriven_onto_a_minute_that_is_judged_or_may_be_judged_next(
    stream: StreamWorld, minutes_ago: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_dead_letters(stream)
    minute = int(time.time() // 60)
    monkeypatch.setattr(clock, "now_s", lambda: 60.0 * minute)  # the minute does not end during the test
    stream.mark_judged(minute - minutes_ago)
    with pytest.raises(StoreBusyError):
        stream.redrive()
    assert len(stream.dead_letter_sequences()["rollup"]) == 2
    stream.mark_judged(minute - 2)
    assert stream.redrive() == ["applied"] * 2


def make_dead_letters_of(world: Deployment, consumers: str) -> None:
    """Makes five plays dead letters of the consumers that `consumers` names, whose declarations then lack `plays`."""
    without_plays = {name: counter for name, counter in counters.COUNTERS.items() if name != "plays"}
    for name, handler in world.handlers.items():
        handler.declared = CounterIndex(without_plays if name in consumers else counters.COUNTERS)
    world.spill("v", 5)
    world.deliver()
    for handler in world.handlers.values():
        handler.declared = CounterIndex(counters.COUNTERS)
    world.run_until_judged()


@pytest.mark.parametrize("skew_s", [3600, *marked_long([0, 240, -3600])])
@pytest.mark.parametrize("consumers", ["rollup and bookkeeper", *marked_long(["rollup"])])
def test_a_redrive_from_a_laptop_whose_clock_is_wrong_makes_no_drift(consumers: str, skew_s: int) -> None:
    """An entry on the laptop's minute would be confirmed drift, whose repair would make a right number wrong."""
    with deployed() as world:
        make_dead_letters_of(world, consumers)
        drifts_before = world.drifts()
        with world.clock.with_skew(skew_s):
            assert redrive(world) == ["applied"] * 5 * len(consumers.split(" and "))
        assert world.tally(counters.PLAYS, "v") == 5
        for _ in range(20):
            world.run(1)
            assert world.drifts() in ({}, drifts_before)
        assert world.drifts() == {}


@pytest.mark.parametrize("consumers", ["rollup and bookkeeper", *marked_long(["rollup"])])
def test_a_redrive_that_hangs_until_its_minute_is_judged_is_booked_on_a_later_minute(consumers: str) -> None:
    with deployed() as world:
        make_dead_letters_of(world, consumers)
        hanging = interrupted_client(world.wire, write_number=0, act=world.run_until_judged)
        assert redrive(world, hanging)[0] == "applied"
        world.run_until_judged()
        assert (world.tally(counters.PLAYS, "v"), world.drifts()) == (5, {})


def redrive(world: Deployment, client: Any = None) -> list[str]:
    """Redrives all dead letters. Returns the outcomes. `client`: None: the client of the world."""
    store, world.store = world.store, world.with_client(client)
    outcomes = world.redrive(counters.COUNTERS)
    world.store = store
    world.schedule_new_records()
    return outcomes


def test_a_dead_letter_that_expired_is_lost_until_somebody_drops_its_marker(
    stream: StreamWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second dead letter has not expired, so it stays, and blocks other repairs until it is applied."""
    make_dead_letters(stream)
    for key in [key for key in stream.bucket.objects if key.endswith("/1.json")]:
        del stream.bucket.objects[key]
    assert stream.redrive(counters.COUNTERS) == ["lost", "kept"]
    stack = Stack(stream.store, stream.objects, counters.COUNTERS)

    def repair(*options: str) -> tuple[int, list[str]]:
        line = ["repair", "--by", "a", "--why", "b", "--yes", *options]
        arguments = commands.parse_arguments(line, commands.parser(counters.COUNTERS))
        return commands.command_named("repair").run(arguments, stack), capsys.readouterr().out.splitlines()

    for options, marker_count, outcome in (([], 2, "lost     rollup/"), (["--drop"], 1, "dropped  rollup/")):
        code, lines = repair(*options)
        message = f"{marker_count} dead letters are not applied. Resolve them first; nothing else was repaired"
        assert (code, lines[-1]) == (1, message)
        assert len(stream.rows("DEADLETTER")) == marker_count
        assert any(line.startswith(outcome) for line in lines)
    stream.bucket.objects.clear()
    code, lines = repair("--drop", "--only", "dead-letters")
    assert (code, lines[-2:]) == (0, ["0 applied, 0 already gone, 0 blocked, 1 dropped", "all is well: dead-letters"])
    assert stream.rows("DEADLETTER") == []
