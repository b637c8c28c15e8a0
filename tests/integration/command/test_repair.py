"""`tally check` lists differences. `tally repair` shows the differences, asks, and makes only the repairs shown."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from datetime import UTC
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

import counters
from tally.cli.terminal import format_clock
from tally.counting import tallies
from tally.dynamo.client import Call, Store
from tally.dynamo.transactions import put_alone
from tally.maintenance import reconcile
from tally.streams import watermark
from tally.streams.loss import Loss
from tests.integration.command.numbers import (
    SIGNED,
    SINCE,
    Run,
    edit,
    mark_judged,
    note_fingerprint,
    post,
    put_drift_row,
)


@pytest.fixture(autouse=True)
def _ledger_is_judged(store: Store) -> None:
    mark_judged(store)


@pytest.fixture
def _stopped_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stops the clock, so that neither a minute nor a day ends during the test."""
    now_s = time.time()
    monkeypatch.setattr(time, "time", lambda: now_s)


def test_counters_of_another_schema_are_read_but_not_repaired(run: Run, store: Store) -> None:
    post(store)
    note_fingerprint(store, replace(counters.LIKES, child="STAR#USER#"))
    code, out, err = run("repair", *SIGNED, "--yes")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("tally: counter 'likes' has counted with child='STAR#USER#', which is 'LIKE#USER#' now: ")
    assert run("get", "likes", "a91f")[:2] == (0, "likes a91f: 2\n")


@pytest.mark.usefixtures("_stopped_clock")
def test_check_and_repair_of_right_numbers_exit_with_0(run: Run, store: Store) -> None:
    post(store)
    until = format_clock(60 * (watermark.read(store).judged + 1), UTC, time.time()) + " UTC"
    code, out, err = run("check")
    assert (code, out, err.splitlines()[-1]) == (0, "all is well\n", f"tally: drift: checked up to {until}")
    assert run("check", "--json")[:2] == (0, "")
    assert run("repair", *SIGNED, "--yes")[:2] == (0, "all is well\n")
    assert run("history", "a91f") == (0, "a91f has no repairs and no imports\n", "")


def test_check_of_a_ledger_that_is_not_judged_does_not_say_that_all_is_well(run: Run, store: Store) -> None:
    store.client.delete_item(TableName=store.settings.ledger_table, Key=watermark.WATERMARK_KEY)
    code, out, err = run("check", "--only", "drift")
    assert (code, out) == (2, "nothing is known to be wrong\n")
    assert err == "tally: drift: not checked yet: a new stack needs some minutes\n"
    put_drift_row(store, "plays", "v", -3)
    assert run("check")[0] == 1, "a difference is found"


def test_check_and_repair_read_each_named_number_of_any_counter(run: Run, store: Store) -> None:
    for post_id, off_by in (("a", 1), ("b", 0), ("c", 2)):
        post(store, post_id, off_by=off_by)
    put_drift_row(store, "usage", "u", 4)
    code, out, _ = run("check", "likes", "a", "b", "a", "c")
    assert (code, [line.split()[2] for line in out.splitlines()[:-1]]) == (1, ["a:", "c:"])
    assert out.splitlines()[-1].endswith(" likes a b a c --by NAME --why TEXT")
    assert run("check", "usage", "u")[1].startswith("differs  usage u: 0, drift +4")
    code, out, err = run("check", "likes", "nobody", "b", "nothing")
    assert (code, out) == (2, "nothing is known to be wrong\n")
    assert err.splitlines()[:2] == ["tally: there is no likes nobody", "tally: there is no likes nothing"]
    assert run("repair", "usage", "nobody", "u", *SIGNED, "--yes")[:2] == (
        2, "differs  usage u: 0, drift +4 since 2027-01-15 08:00:00 UTC, confirmed: a repair adds -4\n"
        "repaired usage u: -4 (0 to -4), by ledger\n1 missing\n",
    )  # fmt: skip


def test_check_prints_the_repair_of_each_difference_exits_with_1_and_changes_nothing(run: Run, store: Store) -> None:
    post(store, "even")
    post(store, "off", off_by=5)
    put_drift_row(store, "likes", "off", 5)
    put_drift_row(store, "plays", "v", -3)
    before = stored_items(store)
    code, out, _ = run("check")
    *differences, last = out.splitlines()
    assert (code, differences) == (1, [
        f"differs  likes off: 7, children 2, drift +5 since {SINCE}, confirmed: a repair adds -5",
        f"differs  plays v: 0, drift -3 since {SINCE}, confirmed: a repair adds +3",
    ])  # fmt: skip
    assert last.startswith("2 differ; to repair it: tally repair --local --port ")
    bodies = [json.loads(line) for line in run("check", "--json")[1].splitlines()]
    assert bodies[1] == {
        "found": "differs", "counter": "plays", "id": "v", "value": 0, "drift": -3, "since": 1_800_000_000,
        "confirmed": True, "repair": 3,
    }  # fmt: skip
    assert run("check", "--only", "children")[1].splitlines()[0] == differences[0]
    assert run("check", "likes", "even")[0] == 0
    assert run("get", "likes", "off")[1] == "likes off: 7, drifts by +5\n"
    assert stored_items(store) == before


def stored_items(store: Store) -> list[Any]:
    settings = store.settings
    tables = (settings.counts_table, settings.receipts_table, settings.ledger_table)
    return [store.client.scan(TableName=table)["Items"] for table in tables]


def test_a_repair_that_finds_nothing_on_a_stack_that_has_judged_no_minute_cannot_tell(run: Run, store: Store) -> None:
    post(store)
    store.client.delete_item(TableName=store.settings.ledger_table, Key=watermark.WATERMARK_KEY)
    assert run("check")[:2] == (2, "nothing is known to be wrong\n")
    assert run("repair", *SIGNED, "--yes")[:2] == (2, "nothing is known to be wrong\n")


def test_the_history_has_a_repair_with_its_author_and_reason(run: Run, store: Store) -> None:
    post(store, "off", off_by=5)
    put_drift_row(store, "likes", "off", 5)
    code, out, _ = run("repair", "likes", "off", *SIGNED, "--yes")
    assert (code, out.splitlines()[1:]) == (0, ["repaired likes off: -5 (7 to 2), by ledger", "all is well"])
    assert run("check")[0] == 0
    assert json.loads(run("get", "likes", "off", "--json")[1]) == {
        "counter": "likes", "id": "off", "value": 2, "shards": {"0": 2}, "drift": 0,
    }  # fmt: skip
    entry = json.loads(run("history", "off", "--json")[1])
    assert entry | {"at": 0} == {
        "counter": "likes", "id": "off", "at": 0,
        "by": "ann", "why": "edited by hand", "how": "ledger", "amount": -5, "before": 7, "after": 2, "added": 0,
    }  # fmt: skip
    assert "likes off: -5 (7 to 2) by ann (ledger): edited by hand" in run("history", "off")[1]


def test_a_difference_without_drift_is_repaired_after_a_second_count(
    run: Run, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tally was wrong before the ledger began, so the ledger has no drift of the tally."""
    request_minutes: list[int] = []
    monkeypatch.setattr(
        reconcile.Reconciler, "wait_until_judged", lambda self, minute, tell: request_minutes.append(minute)
    )
    post(store, "off", off_by=5)
    code, out, err = run("repair", "likes", "off", *SIGNED, "--yes")
    assert (code, out.splitlines()[1:]) == (0, ["repaired likes off: -5 (7 to 2), by recount", "all is well"])
    assert (
        "tally: 1 of 1 differs from the count of children for no recorded reason: counting once more to be sure\n"
        in err
    )
    assert len(request_minutes) == 2, "the repair waits for the judge before each of the two counts"


def test_a_repair_asks_and_writes_nothing_without_a_yes(
    run: Run, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_drift_row(store, "plays", "v", -3)
    before = stored_items(store)
    error = "tally: this command asks before it starts, and stdin is not a terminal: add --yes\n"
    assert run("repair", *SIGNED) == (2, "", error)
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
    questions: list[str] = []
    for answer in ("n", "", "nope"):
        monkeypatch.setattr("builtins.input", lambda question, answer=answer: questions.append(question) or answer)
        code, out, _ = run("repair", *SIGNED)
        assert (code, out.splitlines()[-1]) == (1, "1 left")
    assert questions == ["Repair this? [y/N] "] * 3
    assert stored_items(store) == before
    monkeypatch.setattr("builtins.input", lambda question: "Y")
    assert run("repair", *SIGNED)[0] == 0
    assert tallies.read(Call(store), counters.PLAYS, "v") == 3


def test_unconfirmed_drift_is_not_repaired_and_the_repair_says_why(run: Run, store: Store) -> None:
    put_drift_row(store, "plays", "v", -3, minutes_ago=2)
    line = (
        f"differs  plays v: 0, drift -3 since {SINCE}, not confirmed yet: a repair waits until the drift is confirmed"
    )
    assert run("check")[1].splitlines()[0] == line
    assert json.loads(run("check", "--json")[1])["confirmed"] is False
    code, out, err = run("repair", *SIGNED, "--yes")
    assert (code, out) == (1, f"{line}\n1 left\n")
    assert "tally: plays v: the drift is not confirmed yet, and may come to 0 by itself: try again.\n" in err
    assert run("get", "plays", "v")[1] == "plays v: 0, nothing is stored, drifts by -3\n"


def test_a_number_that_may_still_change_is_unclear_and_exits_with_1(
    run: Run, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rollup may add the newest like later, so the children do not show what the tally should be."""
    post(store, "p")
    child = {"PK": {"S": "POST#p"}, "SK": {"S": "LIKE#USER#late"}, "rollup": {"BOOL": True}}
    child["likedAt"] = {"N": str(int(time.time()))}
    store.client.put_item(TableName=store.settings.counts_table, Item=child)
    unclear = "by its children +0 to +1, but as_of is older than the newest child that is rolled up"
    line = f"unclear  likes p: 2, {unclear}: run this again when the number changes less often\n"
    assert run("check")[:2] == (1, f"{line}1 unclear\n")
    assert run("repair", *SIGNED, "--yes")[:2] == (1, f"{line}1 left\n")
    assert run("get", "likes", "p")[1] == "likes p: 2\n"
    likes = tallies.key(counters.LIKES, "p", shard=0)
    edit(store, likes, "likeTally", 5)  # the ledger has not judged this edit
    why = unclear.replace("+0 to +1", "-5 to -4")
    line = f"differs  likes p: 7, {why}: a repair waits until the children are counted exactly\n"
    error = f"tally: likes p: 7, {why}: try again.\n"
    assert run("repair", *SIGNED, "--yes") == (1, f"{line}1 left\n", error)
    undo = partial(edit, store, likes, "likeTally", -5)
    monkeypatch.setattr(reconcile.Reconciler, "wait_until_judged", lambda *_: undo())
    error = f"tally: likes p: 2, {unclear}: try again.\n"
    assert run("repair", *SIGNED, "--yes") == (1, f"{line}1 left\n", error), "the last count proves nothing, either"
    edit(store, likes, "likeTally", 5)
    del child["rollup"]
    roll_up = partial(store.client.put_item, TableName=store.settings.counts_table, Item=child)
    monkeypatch.setattr(reconcile.Reconciler, "wait_until_judged", lambda *_: roll_up())
    error = "tally: likes p: 7, children 3: try again.\n"
    assert run("repair", *SIGNED, "--yes") == (1, f"{line}1 left\n", error), "one count proves no amount"


def lose_receipt(store: Store, target: str, amount: int, counter: str = "visits", days_ago: int = 3) -> str:
    """Store the receipt of a spilled change that the rollup never added. Returns the day of the change."""
    minute = store.settings.minute_of(time.time()) - days_ago * tallies.MINUTES_PER_DAY
    texts = {"id": f"tally#{target}{amount}", "counter": counter, "target": target}
    item: Any = {name: {"S": text} for name, text in texts.items()} | {"rollup": {"BOOL": True}}
    item |= {"at": {"N": str(minute)}, "amount": {"N": str(amount)}}
    store.client.put_item(TableName=store.settings.receipts_table, Item=item)
    return time.strftime("%Y-%m-%d", time.gmtime(minute * 60))


@pytest.mark.usefixtures("midday")
def test_lost_receipts_are_listed_and_added_once_after_drift_is_repaired(run: Run, store: Store) -> None:
    mark_judged(store)  # by the clock of midday
    page = "https://example.com/a"
    day = lose_receipt(store, page, 7)
    lose_receipt(store, page, 5)
    lose_receipt(store, "v", 2, "plays")
    lose_receipt(store, "v", 9, "plays", days_ago=1)  # the rollup may still add this receipt
    lose_receipt(store, "x", 9, "gone")  # no counter has this name
    code, out, _ = run("check")
    page_line = f"lost     visits {page}: 0, its receipts say more: {day} 12: a repair adds +12"
    assert (code, out.splitlines()[:2]) == (
        1, [f"lost     plays v: 0, its receipts say more: {day} 2: a repair adds +2", page_line],
    )  # fmt: skip
    assert out.splitlines()[2].startswith("2 lost something; to repair it: ")
    assert run("check", "--only", "receipts", "visits", page)[1].splitlines()[0] == page_line
    put_drift_row(store, "plays", "v", -1)
    assert "drifts by -1, which is repaired first" in run("check")[1]
    code, out, err = run("repair", "--only", "receipts", *SIGNED, "--yes")
    assert code == 1
    assert "tally: plays v drifts by -1. Repair the drift first." in err
    assert out.splitlines()[2:] == [f"rebuilt  visits {page}: +12 (0 to 12)", "1 left"]
    assert run("get", "visits", page)[1] == f"visits {page}: 12\n"
    assert json.loads(run("history", page, "--json")[1])["how"] == "rebuild"
    code, out, _ = run("repair", *SIGNED, "--yes")
    repairs = [line for line in out.splitlines() if line.startswith(("repaired", "rebuilt"))]
    # The receipts of `v` say 2. The repair of the drift has added 1 of the 2.
    assert (code, repairs) == (0, ["repaired plays v: +1 (0 to 1), by ledger", "rebuilt  plays v: +1 (1 to 2)"])
    assert run("repair", *SIGNED, "--yes")[:2] == (0, "all is well\n")


@pytest.mark.usefixtures("_stopped_clock")
def test_a_repair_fails_if_the_ledger_is_not_judged(run: Run, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconcile, "WAIT_MAX", 0)  # minutes for the judge
    post(store, "off", off_by=5)
    mark_judged(store, minutes_ahead=-30)
    code, _, err = run("repair", *SIGNED, "--yes")
    assert code == 2
    assert err == (
        "tally: The ledger is judged up to 30 minutes ago, and this repair needs the minute of its request. Check"
        " consumers and sweep with `tally status`, and run the repair again.\n"
    )


def test_a_number_that_cannot_be_repaired_does_not_stop_other_repairs(run: Run, store: Store) -> None:
    edit(store, tallies.key(counters.STOCK, "mug", 0), "qty", 2)
    put_drift_row(store, "stock", "mug", 5)
    put_drift_row(store, "usage", "x", 1)
    code, out, err = run("repair", *SIGNED, "--yes")
    assert code == 1
    assert "tally: stock mug at 2 cannot move by -5: it would go below its floor or above its ceiling.\n" in err
    assert "repaired usage x" in out


@pytest.mark.usefixtures("_stopped_clock")
def test_a_number_is_named_by_id_and_period_or_by_the_id_for_the_present_period(run: Run, store: Store) -> None:
    now_s = time.time()
    today, in_10_days = (time.strftime("%Y-%m-%d", time.gmtime(now_s + days * 86400)) for days in (0, 10))

    def line_end(days: int) -> str:
        end = time.strftime("%Y-%m-%dT00:00:00+00:00", time.gmtime(now_s + (days + 1) * 86400))
        return f"8, drifts by +5, 992 left to its limit of 1000, until {end}\n"

    for period in (today, in_10_days):
        edit(store, tallies.key(counters.CALLS, f"7c20#{period}", 0), "calls", 8)
        put_drift_row(store, "calls", f"7c20#{period}", 5)
    assert run("get", "calls", "7c20") == (0, f"calls 7c20#{today}: {line_end(0)}", "")
    assert run("get", "calls", f"7c20#{in_10_days}")[1] == f"calls 7c20#{in_10_days}: {line_end(10)}"
    body = json.loads(run("get", "calls", "7c20", "--json")[1])
    assert (body["id"], body["period"], body["value"]) == ("7c20", today, 8)
    ends_s = (int(now_s) // 86400 + 1) * 86400
    assert (body["limit"], body["left"], body["resets_at"]) == (1000, 992, ends_s)
    rows = [json.loads(line) for line in run("check", "--json")[1].splitlines()]
    assert {(row["id"], row["period"]) for row in rows} == {("7c20", today), ("7c20", in_10_days)}
    repair = run("repair", "calls", "7c20", *SIGNED, "--yes")
    assert f"repaired calls 7c20#{today}: -5 (8 to 3), by ledger" in repair[1]
    assert f"calls 7c20#{today}: -5 (8 to 3) by ann" in run("history", "7c20")[1]
    for arguments in (("calls", "7c20#2026-02-30"), ("usage", f"7c20#{today}")):  # no such day; no periods
        assert run("get", *arguments)[0] == 2


def test_drift_of_a_counter_that_is_not_declared_is_reported(run: Run, store: Store) -> None:
    put_drift_row(store, "gone", "x", 1)
    code, _, err = run("check")
    assert code == 0
    assert "gone x drifts by +1" in err


def test_a_possible_loss_is_reported_until_somebody_acknowledges_the_loss(run: Run, store: Store) -> None:
    post(store)
    for loss in (
        Loss("gap#rollup", "rollup", since_s=60, until_s=120),
        Loss("letter#x", "bookkeeper", since_s=0, until_s=0, resume_minute=watermark.read(store).judged),
    ):
        put_alone(Call(store), loss.as_write(store.settings))
    code, out, _ = run("check")
    assert (code, out.splitlines()[-1].split("; ")[0]) == (1, "records may be lost")
    assert [line.split(", ")[0] for line in out.splitlines()[:-1]] == [
        "gap      rollup may have lost records", "gap      bookkeeper may have lost a dead letter",
    ]  # fmt: skip
    assert run("repair", *SIGNED, "--yes")[1].endswith("2 left\n")
    assert run("check", "--only", "drift")[0] == 0
    code, out, _ = run("repair", *SIGNED, "--yes", "--acknowledge")
    assert (code, out.splitlines()[-2:]) == (0, ["acknowledged 2: as_of advances with the next sweep", "all is well"])
    assert run("check")[:2] == (0, "all is well\n")
    code, out, _ = run("history", "--losses")
    assert (code, len(out.splitlines()), "  bookkeeper's " in out, "  rollup's " in out) == (0, 2, True, True)
