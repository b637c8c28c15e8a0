"""What checkpoints and pulses say of how far the numbers go, and of which minutes can be judged."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tally.dynamo import keys
from tally.dynamo.client import Call, Store
from tally.streams import progress
from tally.streams.progress import Checkpoint, Progress, Pulse

NOW_S, SETTLE_S = 1_800_000_000, 300
SHARD = "shardId-1"
NO_PULSE = Pulse()


def mark(consumer: str, table: str, sequence: int, age_s: int = 2, **more: int | str) -> Checkpoint:
    through = NOW_S - age_s
    made = Checkpoint(consumer, table, str(more.pop("shard", SHARD)), sequence, through, through)
    return replace(made, **more)  # type: ignore[arg-type]


def abreast(**drift: int) -> list[Checkpoint]:
    return [
        mark("rollup", "receipts", 9),
        mark("rollup", "counts", 8),
        mark("drift", "receipts", 9, **drift),
        mark("drift", "counts", 9),
    ]


def counted_until(checkpoints: list[Checkpoint], pulse: Pulse = NO_PULSE) -> int:
    return progress.counted_until(Progress(checkpoints, pulse), NOW_S, SETTLE_S)


def horizon(checkpoints: list[Checkpoint], pulse: Pulse = NO_PULSE) -> int:
    return progress.horizon(Progress(checkpoints, pulse), NOW_S, SETTLE_S)


def test_consumers_abreast_have_counted_all_but_what_is_on_its_way() -> None:
    assert counted_until(abreast()) == NOW_S - progress.DELIVERY_S
    assert horizon(abreast()) == NOW_S - SETTLE_S


def test_nothing_written_yet_is_nothing_behind() -> None:
    assert counted_until([]) == NOW_S - progress.DELIVERY_S
    assert horizon([]) == NOW_S - SETTLE_S


def test_rollup_is_behind_what_the_drift_consumer_saw_for_it() -> None:
    marks = [mark("rollup", "receipts", 9, 700), mark("drift", "receipts", 12, pending=10)]
    assert counted_until(marks) == NOW_S - 700
    assert horizon(marks) == NOW_S - 700 - SETTLE_S


def test_rollup_is_not_behind_what_others_wrote() -> None:
    marks = [mark("rollup", "counts", 3, 700), mark("drift", "counts", 12, pending=3)]
    assert counted_until(marks) == NOW_S - progress.DELIVERY_S


def test_sequences_are_compared_as_numbers() -> None:
    marks = [mark("rollup", "receipts", 10), mark("drift", "receipts", 10, pending=9)]
    assert counted_until(marks) == NOW_S - progress.DELIVERY_S


def test_drift_behind_the_rollup_stops_the_judge_but_not_the_numbers() -> None:
    marks = [mark("rollup", "receipts", 9), mark("drift", "receipts", 8, 900)]
    assert counted_until(marks) == NOW_S - progress.DELIVERY_S
    assert horizon(marks) == NOW_S - 900 - SETTLE_S


def test_each_stream_shard_is_compared_by_itself() -> None:
    marks = [
        *abreast(),
        mark("rollup", "receipts", 5, 50, shard="b"),
        mark("drift", "receipts", 7, pending=7, shard="b"),
    ]
    assert counted_until(marks) == NOW_S - 50


def test_shard_that_the_rollup_has_not_begun_is_counted_until_its_parent_and_not_judged() -> None:
    marks = [*abreast(), mark("drift", "receipts", 30, pending=30, shard="child")]
    marks[0] = mark("rollup", "receipts", 9, 40)
    assert counted_until(marks) == NOW_S - 40
    assert horizon(marks) == progress.NOTHING


def test_shard_that_the_drift_consumer_has_not_begun_is_not_judged() -> None:
    assert horizon([*abreast(), mark("rollup", "receipts", 30, shard="child")]) == progress.NOTHING


def test_checkpoint_that_expired_before_its_partner_holds_nothing_back() -> None:
    age_s = progress.STREAM_KEPT_S + 60
    assert horizon([*abreast(), mark("drift", "counts", 30, age_s, pending=30, shard="old")]) == NOW_S - SETTLE_S
    assert horizon([*abreast(), mark("rollup", "counts", 30, age_s, shard="old")]) == NOW_S - SETTLE_S


def test_quiet_stream_is_no_consumer_that_stands_still() -> None:
    marks = [replace(checkpoint, through=NOW_S - 3000) for checkpoint in abreast()]
    pulse = Pulse(at=NOW_S - 3000, previous=NOW_S - 3060)
    assert counted_until(marks, pulse) == NOW_S - progress.DELIVERY_S
    assert horizon(marks, pulse) == NOW_S - SETTLE_S


def test_pulse_that_was_just_written_may_be_on_its_way() -> None:
    marks = [replace(checkpoint, through=NOW_S - 62) for checkpoint in abreast()]
    assert counted_until(marks, Pulse(at=NOW_S - 2, previous=NOW_S - 62)) == NOW_S - progress.DELIVERY_S


@pytest.mark.parametrize("place", [0, 2, 3])
def test_consumer_that_did_not_pass_the_pulse_stands_still(place: int) -> None:
    marks = abreast()
    marks[place] = replace(marks[place], through=NOW_S - 1000)
    pulse = Pulse(at=NOW_S - 2, previous=NOW_S - 62)
    assert horizon(marks, pulse) == NOW_S - 1000 - SETTLE_S
    assert counted_until(marks, pulse) == (NOW_S - 1000 if place == 0 else NOW_S - progress.DELIVERY_S)


def test_consumer_without_any_checkpoint_stands_still_once_there_was_a_pulse() -> None:
    assert horizon([], Pulse(at=NOW_S - 62, first=NOW_S - 62)) == progress.NOTHING


def stalled(checkpoints: list[Checkpoint], pulse: Pulse = NO_PULSE) -> list[tuple[str, str]]:
    return progress.stalled(Progress(checkpoints, pulse), NOW_S, SETTLE_S)


@pytest.mark.parametrize(
    ("place", "stream"), [(0, ("rollup", "receipts")), (2, ("drift", "receipts")), (3, ("drift", "counts"))]
)
def test_stream_whose_pulse_a_consumer_does_not_pass_is_named(place: int, stream: tuple[str, str]) -> None:
    marks, pulse = abreast(), Pulse(at=NOW_S - 2, previous=NOW_S - 62)
    assert stalled(marks, pulse) == []
    marks[place] = replace(marks[place], through=NOW_S - 1000)
    assert stalled(marks, pulse) == [stream]


def test_shard_where_a_consumer_is_behind_and_does_not_move_is_named_though_it_passes_pulses_elsewhere() -> None:
    marks = abreast()
    marks[1] = replace(marks[1], moved=NOW_S - 600)
    assert stalled(marks) == []
    marks[3] = replace(marks[3], pending=9)
    assert stalled(marks) == [("rollup", "counts")]
    marks[1] = replace(marks[1], moved=NOW_S - 3)
    assert stalled(marks) == [], "it works off a burst"


def test_new_stack_stands_nowhere() -> None:
    assert stalled([]) == stalled([], Pulse(at=NOW_S - 2, first=NOW_S - 2)) == []


def lag_s(checkpoints: list[Checkpoint], pulse: Pulse = NO_PULSE) -> int:
    return progress.rollup_lag_s(Progress(checkpoints, pulse), NOW_S, SETTLE_S)


def test_rollup_that_has_not_begun_has_counted_until_the_stack_began() -> None:
    pulse = Pulse(at=NOW_S - 2, previous=NOW_S - 62, first=NOW_S - 122)
    assert counted_until([], pulse) == NOW_S - 122
    assert lag_s([], pulse) == 122 - progress.DELIVERY_S
    assert counted_until([], replace(pulse, first=0)) == NOW_S - 62  # a pulse of before there was a first one


def test_new_stack_whose_first_record_only_the_drift_consumer_has_seen_is_as_old_as_that() -> None:
    marks = [mark("drift", "receipts", 3, pending=3, began=NOW_S - 30)]
    assert counted_until(marks) == NOW_S - 30
    assert lag_s(marks) == 30 - progress.DELIVERY_S
    assert counted_until([replace(marks[0], began=None)]) == NOW_S - progress.DELIVERY_S


def test_first_spilled_like_is_not_counted_before_the_rollup_has_begun_there() -> None:
    marks = [*abreast(), mark("drift", "counts", 30, pending=30, shard="new", began=NOW_S - 20)]
    assert counted_until(marks) == NOW_S - 20


def test_record_that_claims_to_be_of_1970_is_not_believed() -> None:
    marks = [mark("rollup", "receipts", 1, through=0), mark("drift", "receipts", 3, pending=3, began=NOW_S - 30)]
    assert counted_until(marks) == NOW_S - 30


def test_nothing_is_judged_until_what_came_late_has_come_through() -> None:
    assert horizon(abreast(late=NOW_S - SETTLE_S + 1)) == progress.NOTHING
    assert horizon(abreast(late=NOW_S - SETTLE_S)) == NOW_S - SETTLE_S


def test_late_changes_that_the_drift_consumer_has_yet_to_see_are_waited_for() -> None:
    """The rollup caught up ten minutes ago; the drift consumer, an hour behind, has not seen what it wrote."""
    marks = [
        mark("rollup", "counts", 9, late=NOW_S - 600),
        mark("rollup", "receipts", 9),
        mark("drift", "counts", 5, 3600),
        mark("drift", "receipts", 9),
    ]
    assert horizon(marks) == progress.NOTHING


def test_lag_is_what_is_missing_beyond_delivery() -> None:
    lagging = Progress([mark("rollup", "receipts", 9, 700), mark("drift", "receipts", 12, pending=10)])
    assert progress.rollup_lag_s(lagging, NOW_S, SETTLE_S) == 700 - progress.DELIVERY_S
    assert progress.rollup_lag_s(Progress(abreast()), NOW_S, SETTLE_S) == 0


def test_minute_is_settled_when_it_ended_before_the_horizon() -> None:
    assert progress.settled_minute(600) == 10  # minute 9 ended at 600
    assert progress.settled_minute(659) == 10


def put_checkpoint(store: Store, consumer: str, table: str, sequence: str, **more: dict[str, str]) -> None:
    item = keys.key(*keys.checkpoint_key(consumer, table, SHARD)) | {"sequence": {"S": sequence}}
    times = {"through": {"N": str(NOW_S - 700)}, "moved": {"N": str(NOW_S - 690)}}
    store.client.put_item(TableName=store.settings.ledger_table, Item={**item, **times, **more})


def test_checkpoints_are_read_as_the_consumers_write_them(store: Store) -> None:
    long = "1" * 40
    put_checkpoint(store, "rollup", "receipts", "9", late={"N": str(NOW_S)}, began={"N": str(NOW_S - 900)})
    put_checkpoint(store, "drift", "receipts", long, pending={"S": "10"})
    assert progress.read(store) == [
        Checkpoint("rollup", "receipts", SHARD, 9, NOW_S - 700, NOW_S - 690, late=NOW_S, began=NOW_S - 900),
        Checkpoint("drift", "receipts", SHARD, int(long), NOW_S - 700, NOW_S - 690, pending=10),
    ]


def test_pulse_stands_in_both_streams_and_remembers_the_one_before(store: Store) -> None:
    for ago_s in (120, 60, 0):
        progress.pulse(store, NOW_S - ago_s)
    assert progress.read_all(store).pulse == Pulse(at=NOW_S, previous=NOW_S - 60, first=NOW_S - 120)
    receipt = store.client.get_item(TableName=store.settings.receipts_table, Key={"id": {"S": "pulse"}})["Item"]
    assert receipt["at"] == {"N": str(NOW_S)}


def test_as_of_asks_for_the_receipts_checkpoints_and_the_pulse_alone(
    store: Store, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_cached", None)
    asked: list[str] = []
    store.client.meta.events.register("before-call.dynamodb", lambda model, **_: asked.append(model.name))
    progress.as_of(call)
    assert sorted(asked) == ["GetItem", "Query", "Query"]
    progress.read_all(store)
    assert sorted(asked[3:]) == ["GetItem", *["Query"] * 4]


def test_as_of_is_asked_once_a_second_at_most(store: Store, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(progress.time, "time", lambda: float(NOW_S))
    assert progress.as_of(call) == NOW_S - progress.DELIVERY_S
    put_checkpoint(store, "rollup", "receipts", "9")
    item = keys.key(*keys.checkpoint_key("drift", "receipts", SHARD)) | {
        "sequence": {"S": "10"}, "through": {"N": str(NOW_S)}, "moved": {"N": str(NOW_S)}, "pending": {"S": "10"},
    }  # fmt: skip
    store.client.put_item(TableName=store.settings.ledger_table, Item=item)
    clock[0] += progress.CACHED_S / 2
    assert progress.as_of(call) == NOW_S - progress.DELIVERY_S
    clock[0] += progress.CACHED_S / 2
    assert progress.as_of(call) == NOW_S - 700
