"""The judge of the ledger: it removes settled minutes once, whatever happens in between."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

import pytest

import counters
from tally.counting import tallies
from tally.drift import judge
from tally.drift import rows as drifting
from tally.dynamo import keys
from tally.dynamo.client import Store
from tally.dynamo.keys import Item
from tally.dynamo.transactions import apply_once
from tally.streams import progress

NOW_S = 1_800_000_030
HORIZON_S = NOW_S - 300
MINUTE = progress.settled_minute(HORIZON_S) - 1  # the youngest that is settled
FOREVER_S = float("inf")


def put_row(store: Store, expected: int, observed: int, *, bucket: int = 0, target: str = "v", **more: int) -> None:
    minute, counter = more.get("minute", MINUTE), "plays"
    item = keys.key(*keys.row_key(counter, target, minute, bucket))
    item |= {"counter": {"S": counter}, "target": {"S": target}}
    numbers = {"minute": minute, "expected": expected, "observed": observed, "booked": more.get("booked", HORIZON_S)}
    item |= {name: {"N": str(number)} for name, number in numbers.items()}
    store.client.put_item(TableName=store.settings.ledger_table, Item=item)


def rows(store: Store) -> list[Item]:
    items = store.client.scan(TableName=store.settings.ledger_table, ConsistentRead=True)["Items"]
    return [dict(item) for item in items if item["PK"]["S"].startswith("LEDGER#")]


def drifts(store: Store) -> dict[str, int]:
    return {drift.target: drift.drift for drift in drifting.every(store)}


def sweep(store: Store, now_s: float = NOW_S, until_s: float = FOREVER_S) -> judge.Judged:
    judged = judge.sweep(store, int(now_s) - 300, now_s, until_s=until_s)
    assert judged.failures == []
    return judged


def test_equal_sums_over_the_buckets_go_without_a_trace(store: Store) -> None:
    put_row(store, 3, 1, bucket=0)
    put_row(store, 0, 2, bucket=5)
    assert sweep(store).equal == 1
    assert (rows(store), drifts(store)) == ([], {})


def test_unequal_sums_move_to_the_drift_row(store: Store) -> None:
    put_row(store, 3, 1, bucket=0)
    put_row(store, 1, 8, bucket=5)
    assert sweep(store).moved == 1
    (drift,) = drifting.every(store)
    assert (drift.drift, drift.since, drift.judged, drift.confirmed) == (5, HORIZON_S, NOW_S, False)
    assert rows(store) == []


def test_drift_row_keeps_since_and_goes_when_it_comes_to_0(store: Store) -> None:
    put_row(store, 0, 5)
    sweep(store)
    put_row(store, 2, 0)
    sweep(store, NOW_S + 60)
    (drift,) = drifting.every(store)
    assert (drift.drift, drift.since, drift.judged) == (3, HORIZON_S, NOW_S + 60)
    put_row(store, 3, 0)
    sweep(store, NOW_S + 120)
    assert drifts(store) == {}


def test_minute_that_is_not_settled_is_not_judged(store: Store) -> None:
    put_row(store, 0, 5, minute=MINUTE + 1)
    sweep(store)
    assert len(rows(store)) == 1


def test_tally_booked_on_a_moment_ago_is_not_judged_in_any_bucket(store: Store) -> None:
    put_row(store, 5, 0, bucket=0)
    put_row(store, 0, 5, bucket=1, booked=HORIZON_S + 1)
    assert sweep(store).left == 1
    assert (len(rows(store)), drifts(store)) == (2, {})


def test_each_tally_and_each_minute_is_judged_by_itself(store: Store) -> None:
    for number in range(40):
        put_row(store, 1, 1 + number % 2, target=f"v{number}")
        put_row(store, 0, 1, target=f"v{number}", minute=MINUTE - 1)
    judged = sweep(store)
    assert (judged.equal, judged.moved) == (20, 60)
    assert drifts(store) == {f"v{number}": 1 + number % 2 for number in range(40)}


def before_writes(store: Store, monkeypatch: pytest.MonkeyPatch, action: Callable[[], object]) -> None:
    """Do something just before the next write of the sweep."""
    done = itertools.count()
    for name in ("transact_write_items", "delete_item"):
        real = getattr(store.client, name)

        def write(*, real: Callable[..., Any] = real, **how: Any) -> Any:
            if next(done) == 0:
                action()
            return real(**how)

        monkeypatch.setattr(store.client, name, write)


@pytest.mark.parametrize("observed", [3, 4])
@pytest.mark.parametrize("buckets", [1, 2])
def test_row_that_is_booked_on_between_read_and_delete_stays(
    store: Store, monkeypatch: pytest.MonkeyPatch, observed: int, buckets: int
) -> None:
    put_row(store, 3, observed, bucket=0)
    if buckets == 2:
        put_row(store, 1, 1, bucket=1)
    late = tallies.book(store.settings, "plays", "v", MINUTE, 0, expected=1)["Update"]
    before_writes(store, monkeypatch, lambda: store.client.update_item(**late))
    assert sweep(store).left == 1
    assert (len(rows(store)), drifts(store)) == (buckets, {})


def test_drift_row_that_another_sweep_moved_meanwhile_is_added_to_once(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_row(store, 0, 5)
    sweep(store)
    put_row(store, 5, 0, minute=MINUTE - 1)

    def other() -> None:
        put_row(store, 0, 2, minute=MINUTE - 2)
        monkeypatch.undo()
        assert sweep(store, NOW_S + 1).moved == 2

    before_writes(store, monkeypatch, other)
    assert sweep(store).left == 1
    assert (rows(store), drifts(store)) == ([], {"v": 2})


def test_drift_row_that_grew_meanwhile_is_not_removed_at_what_was_0(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_row(store, 0, 5)
    sweep(store)
    put_row(store, 5, 0)

    def other() -> None:
        (seen,) = drifting.every(store)
        key = drifting.key("plays", "v")
        monkeypatch.undo()
        assert apply_once(store, [judge.drift_write(store, key, seen.item, "plays", "v", 2, NOW_S + 1)])

    before_writes(store, monkeypatch, other)
    assert sweep(store).left == 1
    assert (len(rows(store)), drifts(store)) == (1, {"v": 7})
    sweep(store)
    assert (rows(store), drifts(store)) == ([], {"v": 2})


def test_sweeps_at_once_move_each_difference_once(store: Store) -> None:
    for number in range(60):
        put_row(store, 0, 1, target=f"v{number % 6}", minute=MINUTE - number)
        put_row(store, 2, 2, target=f"v{number % 6}", minute=MINUTE - number, bucket=3)
    sweeps = [threading.Thread(target=sweep, args=(store,)) for _ in range(6)]
    for each in sweeps:
        each.start()
    for each in sweeps:
        each.join()
    sweep(store)
    assert (rows(store), drifts(store)) == ([], {f"v{number}": 10 for number in range(6)})


@pytest.mark.parametrize("killed_at", range(6))
def test_sweep_killed_halfway_is_finished_by_the_next(
    store: Store, monkeypatch: pytest.MonkeyPatch, killed_at: int
) -> None:
    for number in range(3):
        put_row(store, 0, 2 + number, target="v", minute=MINUTE - number)
        put_row(store, 2, 0, target="v", minute=MINUTE - number, bucket=1)
    real, sent = store.client.transact_write_items, itertools.count()

    def dying(**how: Any) -> Any:
        number = next(sent)
        if number == killed_at // 2 and killed_at % 2 == 0:
            raise KeyboardInterrupt  # before it was sent
        answer = real(**how)
        if number == killed_at // 2:
            raise KeyboardInterrupt  # after it was committed
        return answer

    monkeypatch.setattr(store.client, "transact_write_items", dying)
    with pytest.raises(KeyboardInterrupt):
        sweep(store)
    monkeypatch.undo()
    sweep(store)
    assert (rows(store), drifts(store)) == ([], {"v": 0 + 1 + 2})


def test_run_out_of_time_leaves_the_rest_to_the_next(store: Store) -> None:
    for number in range(5):
        put_row(store, 1, 1, target=f"v{number}")
    assert not sweep(store, until_s=0).finished
    assert len(rows(store)) == 5
    assert sweep(store).finished
    assert rows(store) == []


def test_row_that_tally_did_not_write_fails_its_slot_and_keeps_no_other_one_waiting(store: Store) -> None:
    put_row(store, 0, 1, target="v0")
    (row,) = rows(store)
    other = next(slot for slot in range(16) if f"LEDGER#{slot}" != row["PK"]["S"])
    key = keys.key(f"LEDGER#{other}", f"{1:010d}#x#0")
    store.client.put_item(TableName=store.settings.ledger_table, Item={**key, "counter": {"S": "plays"}})
    judged = judge.sweep(store, HORIZON_S, NOW_S, until_s=FOREVER_S)
    assert len(judged.failures) == 1
    assert drifts(store) == {"v0": 1}


def test_drift_stands_since_the_streams_first_said_so(store: Store) -> None:
    put_row(store, 0, 5, bucket=0, booked=HORIZON_S - 40)
    put_row(store, 1, 0, bucket=1, booked=HORIZON_S - 90)
    sweep(store)
    put_row(store, 0, 1, booked=HORIZON_S)
    sweep(store, NOW_S + 60)
    assert [(drift.drift, drift.since) for drift in drifting.every(store)] == [(5, HORIZON_S - 90)]


def in_slot(slot: int, number: int = 1) -> list[str]:
    """Targets whose rows are in this slot."""
    found = (f"s{each}" for each in itertools.count())
    wanted = (each for each in found if keys.row_key("plays", each, 0, 0)[0] == f"LEDGER#{slot}")
    return list(itertools.islice(wanted, number))


def test_slots_are_judged_at_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each waits for all the others in the middle of its own: one after the other, none would come through."""
    for slot in range(keys.SLOTS):
        put_row(store, 1, 1, target=in_slot(slot)[0])
    all_there, real = threading.Barrier(keys.SLOTS, timeout=10), store.client.delete_item

    def together(**how: Any) -> Any:
        all_there.wait()
        return real(**how)

    monkeypatch.setattr(store.client, "delete_item", together)
    assert sweep(store).equal == keys.SLOTS
    assert rows(store) == []


def test_slot_with_a_backlog_keeps_no_other_one_waiting(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge, "GROUPS_MAX", 3)
    backlog = in_slot(0, 5)
    for target in [*backlog, *in_slot(1), *in_slot(15)]:
        put_row(store, 1, 1, target=target)
    judged = sweep(store)
    assert (judged.equal, judged.finished) == (5, False)
    assert {row["target"]["S"] for row in rows(store)} < set(backlog)
    assert sweep(store).finished
    assert rows(store) == []


def test_more_rows_than_a_transaction_holds_are_refused_by_name(store: Store) -> None:
    for bucket in range(100):
        put_row(store, 0, 1, bucket=bucket)
    (failure,) = judge.sweep(store, HORIZON_S, NOW_S, until_s=FOREVER_S).failures
    assert "plays v has 100 rows" in str(failure)


def test_every_tracked_counter_is_summed_up_also_at_0(store: Store) -> None:
    put_row(store, 0, -5)
    put_row(store, 0, 2, target="w")
    sweep(store)
    found = drifting.look_again(store, counters.COUNTERS, NOW_S + 60, until_s=FOREVER_S)
    assert found.pop("plays").metrics == {
        "DriftAbsolute": 7, "DriftingTallies": 2, "DriftConfirmed": 0, "OldestDriftSeconds": 360,
    }  # fmt: skip
    assert set(found) == set(counters.COUNTERS) - {"plays"}
    assert {summary.absolute for summary in found.values()} == {0}


def test_drift_without_children_is_confirmed_once_it_stood_for_another_settle_time(store: Store) -> None:
    put_row(store, 0, 5)
    sweep(store)
    settle_s = store.settings.settle_s
    for after_s, confirmed in ((settle_s - 1, False), (settle_s, True)):
        found = drifting.look_again(store, counters.COUNTERS, NOW_S + after_s, until_s=FOREVER_S)
        assert found["plays"].confirmed == confirmed
        assert [drift.confirmed for drift in drifting.every(store)] == [confirmed]


def test_drift_that_changes_is_to_be_confirmed_again(store: Store) -> None:
    put_row(store, 0, 5)
    sweep(store)
    drifting.look_again(store, counters.COUNTERS, NOW_S + 400, until_s=FOREVER_S)
    put_row(store, 0, 1)
    sweep(store, NOW_S + 460)
    assert [(drift.drift, drift.confirmed) for drift in drifting.every(store)] == [(6, False)]


def put_post(store: Store, tally: int, likers: int, post: str = "p") -> None:
    key = counters.LIKES.partition_start + post
    items: list[Item] = [{**keys.key(key, "META"), "likeTally": {"N": str(tally)}}]
    items += [
        {**keys.key(key, f"LIKE#USER#u{number}"), "likedAt": {"N": "1"}, "at": {"N": "0"}} for number in range(likers)
    ]
    for item in items:
        store.client.put_item(TableName=store.settings.counts_table, Item=item)


@pytest.mark.parametrize(("tally", "confirmed"), [(8, True), (7, False), (3, False)])
def test_drift_of_a_tally_with_children_is_confirmed_if_the_recount_differs_by_it(
    store: Store, tally: int, confirmed: bool
) -> None:
    put_post(store, tally, likers=3)
    write = judge.drift_write(store, drifting.key("likes", "p"), {}, "likes", "p", 5, NOW_S)
    assert apply_once(store, [write])
    found = drifting.look_again(store, counters.COUNTERS, NOW_S + 10_000, until_s=FOREVER_S)
    assert found["likes"].confirmed == confirmed
