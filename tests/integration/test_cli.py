"""The command `tally` for people and scripts, with tables and without."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

import boto3
import pytest
from botocore.config import Config
from botocore.stub import Stubber

import counters
from cli import charts, commands, connection, series, watch
from cli.__main__ import main
from cli.terminal import Point, clock
from dev.base.engine import Engine
from tally.counting import children, increments, posts, tallies
from tally.counting.increments import Increment
from tally.drift import history, reconcile, rows
from tally.dynamo import items, keys
from tally.dynamo.client import CLIENT_CONFIG, Call, Store
from tally.dynamo.transactions import apply_once, put
from tally.series import hours, progress
from tally.streams import segments, watermark
from tests.commands import one_line
from tests.conftest import create_tables, new_engine
from tests.patience import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
SINCE = "2027-01-15 08:00:00 UTC"
SIGNED = ("--by", "ann", "--why", "edited by hand")
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def where(engine: Engine, store: Store) -> dict[str, Any]:
    """What `make dev` says of its tables."""
    settings = store.settings
    return {
        "dynamodb": engine.endpoint, "s3": engine.endpoint, "counts": settings.counts_table,
        "receipts": settings.receipts_table, "ledger": settings.ledger_table, "bucket": "aside", "minute_s": 60,
        "outputs": {},
    }  # fmt: skip


@pytest.fixture
def port(where: dict[str, Any]) -> Iterator[int]:
    """The port of a server that answers /dev/stack, as `make dev` does."""

    class Dev(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(where).encode()
            self.send_response(200 if self.path == "/dev/stack" else 404)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Dev) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


@pytest.fixture
def run(port: int, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        try:
            code = main([*arguments, "--local", "--port", str(port)])
        except SystemExit as stopped:
            code = int(stopped.code or 0)
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


@pytest.fixture(autouse=True)
def _judged(store: Store) -> None:
    judged(store)


def judged(store: Store, ahead: int = 5) -> None:
    """The ledger is judged up to some minutes from now; everything is rolled up."""
    now_s = int(time.time())
    numbers = {
        "judged": store.settings.minute(now_s) + ahead,
        "known": now_s,
        "rolled": now_s,
        "noted": now_s - 99,
        "began": 1,
    }
    item = {name: {"N": str(number)} for name, number in numbers.items()}
    store.client.put_item(TableName=store.settings.ledger_table, Item=watermark.JUDGE | item)


def post(store: Store, post_id: str = "a91f", likers: int = 2, off_by: int = 0) -> None:
    posts.write_post(Call(store, "author"), counters.LIKES, post_id, "hello")
    for number in range(likers):
        children.set_child(Call(store), counters.LIKES, post_id, f"u{number}", True)
    if off_by:
        edit(store, tallies.key(counters.LIKES, post_id, 0), "likeTally", off_by)


def edit(store: Store, key: Any, attribute: str, amount: int) -> None:
    store.client.update_item(
        TableName=store.settings.counts_table, Key=key, UpdateExpression="ADD #number :amount",
        ExpressionAttributeNames={"#number": attribute}, ExpressionAttributeValues={":amount": {"N": str(amount)}},
    )  # fmt: skip


def drifts(store: Store, counter: str, target: str, amount: int, ago: int = 9) -> None:
    """A drift row that was changed so many judged minutes ago."""
    numbers = {"drift": amount, "upto": watermark.judged(store) - ago, "since": 1_800_000_000}
    item = {name: {"N": str(number)} for name, number in numbers.items()}
    item |= {"counter": {"S": counter}, "target": {"S": target}}
    store.client.put_item(TableName=store.settings.ledger_table, Item=rows.key(counter, target) | item)


def test_all_is_well_is_0(run: Run, store: Store) -> None:
    post(store)
    until = clock(60 * (watermark.judged(store) + 1), time.time())
    code, out, err = run("check")
    assert (code, out, err.splitlines()[-1]) == (0, "all is well\n", f"tally: drift: known up to {until}")
    assert run("check", "--json")[:2] == (0, "")
    assert run("repair", *SIGNED, "--yes")[:2] == (0, "all is well\n")
    assert run("history", "a91f") == (0, "a91f was never repaired\n", "")
    assert run("history", "a91f", "--counter", "likes") == (0, "likes a91f was never repaired\n", "")


def test_ledger_that_is_not_judged_does_not_say_that_all_is_well(run: Run, store: Store) -> None:
    store.client.delete_item(TableName=store.settings.ledger_table, Key=watermark.JUDGE)
    code, out, err = run("check", "--only", "drift")
    assert (code, out) == (2, "nothing is known to be wrong\n")
    assert err == "tally: drift: not known yet: a new stack needs some minutes\n"
    drifts(store, "plays", "v", -3)
    assert run("check")[0] == 1


def test_a_time_is_told_without_the_day_only_if_that_is_today() -> None:
    assert clock(1_800_000_000, 1_800_000_090) == "08:00 UTC"
    assert clock(1_800_000_000, 1_800_086_400) == "2027-01-15 08:00 UTC"


def test_check_and_repair_look_at_each_number_that_is_named_of_any_counter(run: Run, store: Store) -> None:
    for post_id, off_by in (("a", 1), ("b", 0), ("c", 2)):
        post(store, post_id, off_by=off_by)
    drifts(store, "usage", "u", 4)
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


def test_port_without_local_does_not_go_to_aws(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["check", "--port", "8080"])
    assert (stopped.value.code, capsys.readouterr().err) == (2, "tally: --port goes with --local; --help says more\n")


def test_check_says_what_would_mend_it_with_status_1_and_changes_nothing(run: Run, store: Store) -> None:
    post(store, "even")
    post(store, "off", off_by=5)
    drifts(store, "likes", "off", 5)
    drifts(store, "plays", "v", -3)
    before = everything(store)
    code, out, _ = run("check")
    *found, last = out.splitlines()
    assert (code, found) == (1, [
        f"differs  likes off: 7, children 2, drift +5 since {SINCE}, confirmed: a repair adds -5",
        f"differs  plays v: 0, drift -3 since {SINCE}, confirmed: a repair adds +3",
    ])  # fmt: skip
    assert last.startswith("2 differ; to repair it: tally repair --local --port ")
    bodies = [json.loads(line) for line in run("check", "--json")[1].splitlines()]
    assert bodies[1] == {
        "found": "differs", "counter": "plays", "id": "v", "value": 0, "drift": -3, "since": 1_800_000_000,
        "confirmed": True, "repair": 3,
    }  # fmt: skip
    assert run("check", "--only", "children")[1].splitlines()[0] == found[0]
    assert run("check", "likes", "even")[0] == 0
    assert run("get", "likes", "off")[1] == "likes off: 7, drifts by +5\n"
    assert everything(store) == before


def everything(store: Store) -> list[Any]:
    settings = store.settings
    tables = (settings.counts_table, settings.receipts_table, settings.ledger_table)
    return [store.client.scan(TableName=table)["Items"] for table in tables]


def test_a_repair_is_in_the_history_with_who_and_why(run: Run, store: Store) -> None:
    post(store, "off", off_by=5)
    drifts(store, "likes", "off", 5)
    code, out, _ = run("repair", "likes", "off", *SIGNED, "--yes")
    assert (code, out.splitlines()[1:]) == (0, ["repaired likes off: -5 (7 to 2), by recount", "all is well"])
    assert run("check")[0] == 0
    assert json.loads(run("get", "likes", "off", "--json")[1]) == {
        "counter": "likes", "id": "off", "value": 2, "shards": {"0": 2}, "drift": 0,
    }  # fmt: skip
    entry = json.loads(run("history", "off", "--json")[1])
    assert entry | {"at": 0} == {
        "counter": "likes", "id": "off", "at": 0,
        "by": "ann", "why": "edited by hand", "how": "recount", "amount": -5, "before": 7, "after": 2,
    }  # fmt: skip
    assert "likes off: -5 (7 to 2) by ann (recount): edited by hand" in run("history", "off")[1]
    assert run("history", "off", "--counter", "likes") == run("history", "off")
    assert run("history", "off", "--counter", "plays")[1] == "plays off was never repaired\n"


def test_a_repair_shows_and_asks_and_writes_nothing_without_a_yes(
    run: Run, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    drifts(store, "plays", "v", -3)
    before = everything(store)
    said = "tally: it asks before it begins, and this is no terminal: add --yes\n"
    assert run("repair", *SIGNED) == (2, "", said)
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
    asked: list[str] = []
    for answer in ("n", "", "nope"):
        monkeypatch.setattr("builtins.input", lambda question, answer=answer: asked.append(question) or answer)
        code, out, _ = run("repair", *SIGNED)
        assert (code, out.splitlines()[-1]) == (1, "1 left")
    assert asked == ["Repair this? [y/N] "] * 3
    assert everything(store) == before
    monkeypatch.setattr("builtins.input", lambda question: "Y")
    assert run("repair", *SIGNED)[0] == 0
    assert tallies.read(Call(store), counters.PLAYS, "v") == 3


def test_drift_that_is_not_confirmed_is_not_repaired_and_says_when(run: Run, store: Store) -> None:
    drifts(store, "plays", "v", -3, ago=2)
    line = f"differs  plays v: 0, drift -3 since {SINCE}, confirmed in 3 minutes: a repair adds +3"
    assert run("check")[1].splitlines()[0] == line
    assert json.loads(run("check", "--json")[1])["confirmed"] is False
    code, out, err = run("repair", *SIGNED, "--yes")
    assert (code, out) == (1, f"{line}\n1 left\n")
    assert "tally: plays v: the drift is not confirmed yet. Try again in 3 minutes.\n" in err
    assert run("get", "plays", "v")[1] == "plays v: 0, nothing is stored, drifts by -3\n"


def test_row_at_0_is_no_drift(run: Run, store: Store) -> None:
    drifts(store, "plays", "v", 0)
    assert run("check")[:2] == (0, "all is well\n")
    assert run("get", "plays", "v")[1] == "plays v: 0, nothing is stored\n"


def test_a_number_that_cannot_be_told_is_unclear_and_1(run: Run, store: Store) -> None:
    """A like that the rollup may still have to add."""
    post(store, "p")
    child = {"PK": {"S": "POST#p"}, "SK": {"S": "LIKE#USER#late"}, "rollup": {"BOOL": True}}
    child["likedAt"] = {"N": str(int(time.time()))}
    store.client.put_item(TableName=store.settings.counts_table, Item=child)
    why = "by its children +0 to +1, but as_of is older than the newest child that is rolled up"
    line = f"unclear  likes p: 2, {why}: try again when it is calmer\n"
    assert run("check")[:2] == (1, f"{line}1 unclear\n")
    assert run("repair", *SIGNED, "--yes")[:2] == (1, f"{line}1 left\n")
    assert run("get", "likes", "p")[1] == "likes p: 2\n"


def test_edit_that_made_a_number_right_is_accepted(run: Run, store: Store) -> None:
    post(store, "p")
    drifts(store, "likes", "p", 3)
    line = f"differs  likes p: 2, children 2, drift +3 since {SINCE}, confirmed: a repair accepts the number"
    assert run("check")[1].splitlines()[0] == line
    code, out, _ = run("repair", *SIGNED, "--yes")
    assert (code, out.splitlines()[1:]) == (0, ["repaired likes p: +0 (2 to 2), by recount", "all is well"])
    assert run("check")[0] == 0


def lose(store: Store, target: str, amount: int, counter: str = "visits", ago_days: int = 3) -> str:
    """A receipt of some days ago that was written alone, and never rolled up; the day."""
    at = store.settings.minute(time.time()) - ago_days * tallies.DAY
    texts = {"id": f"tally#{target}{amount}", "counter": counter, "target": target}
    item: Any = {name: {"S": text} for name, text in texts.items()} | {"rollup": {"BOOL": True}}
    item |= {"at": {"N": str(at)}, "amount": {"N": str(amount)}}
    store.client.put_item(TableName=store.settings.receipts_table, Item=item)
    return time.strftime("%Y-%m-%d", time.gmtime(at * 60))


def test_what_was_lost_is_listed_and_added_once_after_what_drifts(run: Run, store: Store) -> None:
    page = "https://example.com/a"
    day = lose(store, page, 7)
    lose(store, page, 5)
    lose(store, "v", 2, "plays")
    lose(store, "v", 9, "plays", ago_days=1)  # it may still be delivered
    lose(store, "x", 9, "gone")
    code, out, _ = run("check")
    of_page = f"lost     visits {page}: 0, its receipts say more: {day} 12: a repair adds +12"
    assert (code, out.splitlines()[:2]) == (
        1, [f"lost     plays v: 0, its receipts say more: {day} 2: a repair adds +2", of_page],
    )  # fmt: skip
    assert out.splitlines()[2].startswith("2 lost something; to repair it: ")
    assert run("check", "--only", "receipts", "visits", page)[1].splitlines()[0] == of_page
    drifts(store, "plays", "v", -1)
    assert "drifts by -1, which is repaired first" in run("check")[1]
    code, out, err = run("repair", "--only", "receipts", *SIGNED, "--yes")
    assert code == 1
    assert "tally: plays v drifts by -1: that is repaired first." in err
    assert out.splitlines()[2:] == [f"rebuilt  visits {page}: +12 (0 to 12)", "1 left"]
    assert run("get", "visits", page)[1] == f"visits {page}: 12\n"
    assert json.loads(run("history", page, "--json")[1])["how"] == "rebuild"
    code, out, _ = run("repair", *SIGNED, "--yes")
    done = [line for line in out.splitlines() if line.startswith(("repaired", "rebuilt"))]
    assert (code, done) == (0, ["repaired plays v: +1 (0 to 1), by ledger", "rebuilt  plays v: +1 (1 to 2)"])
    assert run("repair", *SIGNED, "--yes")[:2] == (0, "all is well\n")


def test_stack_without_a_whole_day_cannot_tell_what_was_lost(run: Run, store: Store) -> None:
    store.client.delete_item(TableName=store.settings.ledger_table, Key=watermark.JUDGE)
    code, out, err = run("check", "--only", "receipts")
    assert (code, out) == (2, "")
    assert err.startswith("tally: Cannot tell yet: no whole day since the ledger began is judged")
    assert "tally: receipts: Cannot tell yet: " in run("check")[2]


@pytest.mark.parametrize(
    ("counter", "hint"), [("likes", "its children are counted instead"), ("stock", "it is never added up")]
)
def test_counter_without_receipts_of_its_own_is_not_rebuilt(run: Run, counter: str, hint: str) -> None:
    said = f"tally: {counter} has no receipts to rebuild it from: {hint}\n"
    assert run("check", counter, "x", "--only", "receipts")[2].endswith(said)


def test_ledger_that_nobody_judges_is_said(run: Run, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconcile, "WAIT_MAX", 0)
    post(store, "off", off_by=5)
    judged(store, ahead=-30)
    code, _, err = run("repair", *SIGNED, "--yes")
    assert code == 2
    assert err == "tally: The ledger is judged up to 30 minutes ago only: do its consumers and sweep run?\n"


def test_a_number_that_cannot_be_repaired_does_not_stop_the_others(run: Run, store: Store) -> None:
    edit(store, tallies.key(counters.STOCK, "mug", 0), "qty", 2)
    drifts(store, "stock", "mug", 5)
    drifts(store, "usage", "x", 1)
    code, out, err = run("repair", *SIGNED, "--yes")
    assert code == 1
    assert "tally: stock mug at 2 does not take -5.\n" in err
    assert "repaired usage x" in out


def test_the_number_of_a_period_is_named_by_id_and_period_and_is_the_current_one_without(
    run: Run, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = time.time()
    monkeypatch.setattr(time, "time", lambda: now_s)  # no midnight comes between
    today, later = (time.strftime("%Y-%m-%d", time.gmtime(now_s + days * 86400)) for days in (0, 10))
    today = f"7c20#{today}"
    for target in (today, f"7c20#{later}"):
        edit(store, tallies.key(counters.CALLS, target, 0), "calls", 8)
        drifts(store, "calls", target, 5)
    assert run("get", "calls", "7c20") == (0, f"calls {today}: 8, drifts by +5\n", "")
    assert run("get", "calls", f"7c20#{later}")[1] == f"calls 7c20#{later}: 8, drifts by +5\n"
    body = json.loads(run("get", "calls", "7c20", "--json")[1])
    assert (body["id"], body["period"], body["value"]) == ("7c20", today.partition("#")[2], 8)
    listed = [json.loads(line) for line in run("check", "--json")[1].splitlines()]
    assert {(row["id"], row["period"]) for row in listed} == {("7c20", today.partition("#")[2]), ("7c20", later)}
    assert f"repaired calls {today}: -5 (8 to 3), by ledger" in run("repair", "calls", "7c20", *SIGNED, "--yes")[1]
    assert f"calls {today}: -5 (8 to 3) by ann" in run("history", "7c20")[1]
    for wrong in ("7c20#2026-11", "7c20#", f"#{later}", "7c20#2026-02-30"):
        code, out, said = run("get", "calls", wrong)
        assert (code, out, len(said.splitlines())) == (2, "", 1)
    assert run("get", "usage", f"7c20#{later}")[0] == 2


def test_drift_of_a_counter_that_is_no_longer_declared_is_named(run: Run, store: Store) -> None:
    drifts(store, "gone", "x", 1)
    code, _, err = run("check")
    assert code == 0
    assert "gone x drifts by +1" in err


def test_get_shows_shards(run: Run, store: Store) -> None:
    for shard in (0, 3):
        store.client.update_item(**tallies.add(Call(store), counters.PLAYS, "v", shard, 2, 0))
    assert run("get", "plays", "v")[1] == "plays v: 4 in 2 shards\n"
    page = "https://example.com/a"
    body = {"counted": True}
    increments.count(Call(store), Increment(counters.USAGE, "u", 1, "increment", "k" * 22, body))
    assert run("get", "visits", "HTTPS://example.com:443/a")[1] == f"visits {page}: 0, nothing is stored\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["check", "likes", "a#b"], "argument ID"),
        (["check", "visits", "a"], "argument ID: ID must be an absolute http or https URL"),
        (["check", "plays", ".."], "argument ID"),
        (["check", "plays"], "check takes COUNTER and one ID or more, or neither"),
        (["check", "nope", "x"], "there is no counter 'nope'"),
        (["check", "plays", "a", "--only", "dead-letters"], "dead letters have no COUNTER and ID"),
        (["check", "--only", "nonsense"], "argument --only: invalid choice"),
        (["repair"], "required: --by, --why"),
        (["repair", "--by", "ann"], "required: --why"),
        (["repair", "--by", " ", "--why", "x"], "argument --by"),
        (["repair", "--by", "a\nb", "--why", "x"], "argument --by"),
        (["import", "f", "--counter", "plays", "--yes"], "--yes needs --by NAME and --why TEXT"),
        (["import", "f", "--counter", "plays", "--by", "ann", "--why", "x"], "--by and --why go with --yes"),
        (["forget", "--user", "u", "--yes", "--by", "ann"], "--yes needs --by NAME and --why TEXT"),
        (["forget", "--user", "u", "--yes", "--by", "u", "--why", "x"], "must not name the user"),
        (["get", "nope", "x"], "there is no counter 'nope'"),
        (["get", "plays"], "required: ID"),
        (["history", "x", "--counter", "nope"], "there is no counter 'nope'"),
        (["series"], "required: COUNTER"),
        (["series", "plays", "a#b"], "argument ID"),
        (["series", "plays", "a", "--by", "month"], "argument --by: invalid choice: 'month'"),
        (["series", "plays", "a", "--from", "yesterday"], "argument --from: 'yesterday' is not a time like"),
        (["series", "plays", "a", "--from", "1600-01-01"], "is not between 1970 and 5000"),
        (["series", "plays", "a", "--from", "2020-01-01", "--to", "2019-01-01"], "from must be before to"),
        (["series", "plays", "a", "--from", "2020-01-01", "--to", "2022-01-01"], "ask for 2400 at most"),
        (["series", "plays", "a", "--tz", "Mars/Phobos"], "'Mars/Phobos' is no time zone that is known here"),
        (["series", "plays", "a", "--tz", "../passwd"], "'../passwd' is no time zone that is known here"),
        (["series", "plays", "a", "--by", "day", "--tz", "Asia/Kolkata"], "whose days begin with an hour of UTC"),
        (["series", "plays", "a", "--json", "--csv"], "not allowed with argument --json"),
        (["top"], "required: COUNTER"),
        (["top", "nope"], "there is no counter 'nope'"),
        (["top", "plays", "--span", "today"], "argument --span"),
        (["top", "plays", "--span", "2026-13"], "argument --span"),
        (["top", "plays", "--by", "hour", "--span", "2026-11"], "argument --span"),
        (["top", "plays", "--limit", "0"], "'0' is not a whole number from 1 to"),
        (["watch", "plays", ".."], "argument ID"),
        (["watch", "plays", "a", "--interval", "0"], "'0' is not a whole number from 1 to 3600"),
        (["check", "--local", "--port", "0"], "'0' is not a port"),
        (["check", "--local", "--port", "²"], "is not a port"),
        (["check", "--local", "--port", "9"], "nothing answers on port 9"),
        (["check", "--local", "--stack", "x"], "not allowed with argument"),
        (["--port", "9", "--local", "check"], "nothing answers on port 9"),
        (["--local", "check", "--port", "9"], "nothing answers on port 9"),
        (["--port=9", "--local", "check"], "nothing answers on port 9"),
        (["--port", "9", "check"], "--port goes with --local"),
        (["--local", "check", "--stack", "x"], "--stack: not allowed with argument --local"),
        (["--stack", "x", "--local", "check"], "not allowed with argument"),
        (["--local", "--only", "drift", "check"], "--only goes after the command"),
        (["--json", "check"], "--json goes after the command"),
        (["get", "visits", "not/url"], "ID must be an absolute http or https URL"),
        (["get", "visits", "a91f"], "ID must be an absolute http or https URL"),
        (["history", "--counter", "bot_visits", "a91f"], "ID must be an absolute http or https URL"),
        (["get", "plays", "https://example.com/a"], "argument ID"),
        (["history", "a#b", "--counter", "likes"], "argument ID"),
        (["help", "nope"], "invalid choice: 'nope'"),
        (["completion", "fish"], "invalid choice: 'fish'"),
        (["completion", "bash", "--local"], "unrecognized arguments: --local"),
        (["nonsense"], "invalid choice"),
        ([], "required: COMMAND"),
    ],
)
def test_bad_input_is_one_line_and_2(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert said in one_line(main, arguments, capsys)


HOUR = 500_000  # since 1970: 2027-01-15 08:00 UTC


@pytest.fixture
def folded(store: Store) -> None:
    """Series since 05:10: plays of a in the hours from 5 to 8, the last of them up to 08:20, of b once; a repair."""
    table, since = store.settings.ledger_table, HOUR * 60 - 170
    at = progress.Progress(since=since, through=since - 1, hour=HOUR - 3)
    apply_once(store, [items.update(table, progress.PROGRESS, at.values, was=items.NO_ITEM)])
    plays = [
        (since, "a", 7),
        (since + 60, "a", 1200),
        (since + 60, "b", 30),
        (since + 120, "a", -300),
        (HOUR * 60, "a", 40),
    ]
    for number, (minute, id_, amount) in enumerate(plays):
        entries = [segments.Booked("plays", id_, "", amount, amount)]
        put(Call(store), segments.write(store.settings, minute, 0, f"s#{number}", entries, int(time.time())))
    hours.sum_up(store, HOUR * 60 + 20, until_s=store.clock() + 60)
    repaired = {"before": 900, "amount": -5}
    apply_once(
        store, [history.entry(store, "plays", "a", HOUR * 3600 - 600, repaired, by="ann", why="x", how="ledger")]
    )


RANGE = ("--from", "2027-01-15T05:00Z", "--to", "2027-01-15T12:00Z", "--tz", "Europe/Berlin")


@pytest.mark.usefixtures("folded")
def test_a_series_into_a_pipe_is_csv_with_repairs_and_only_what_is_known(run: Run) -> None:
    code, out, err = run("series", "plays", "a", *RANGE)
    assert (code, out.splitlines()) == (0, [
        "from,value,kind", "2027-01-15T06:00:00+01:00,7,part", "2027-01-15T07:00:00+01:00,1200,whole",
        "2027-01-15T08:00:00+01:00,-300,whole", "2027-01-15T09:00:00+01:00,40,part",
        "2027-01-15T08:50:00+01:00,-5,repair",
    ])  # fmt: skip
    assert err.splitlines() == [
        "tally: 947 in 4 hours; the most in one: 1,200", "tally: series begin at 2027-01-15 06:10",
        "tally: complete up to 2027-01-15 09:20 (UTC+01:00)",
    ]  # fmt: skip
    assert run("series", "plays", "a", *RANGE, "--csv")[1] == out
    body = json.loads(run("series", "plays", "a", *RANGE, "--json")[1])
    assert (body["as_of"], body["series"][3]) == (HOUR * 3600 + 1200, {"from": HOUR * 3600, "value": 40})
    code, out, err = run("series", "plays", "nobody", *RANGE)
    assert (code, len(out.splitlines()), err.splitlines()[0]) == (0, 5, "tally: nothing in 4 hours")
    assert run("series", "plays", "a", "--from", "2027-02-01", "--to", "2027-02-02")[1:] == (
        "from,value,kind\n",
        "tally: nothing is known of that time\ntally: series begin at 2027-01-15 05:10\n"
        "tally: complete up to 2027-01-15 08:20 (UTC)\n",
    )  # fmt: skip


@pytest.fixture
def drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands draw as at a terminal of 50 columns, without colours."""
    monkeypatch.setenv("COLUMNS", "50")
    for module in (series, watch):
        monkeypatch.setattr(module, "draws", lambda given: True)


@pytest.mark.usefixtures("folded", "drawing")
def test_bars_are_as_wide_as_the_terminal_and_say_what_is_known_in_part(run: Run) -> None:
    code, out, err = run("series", "plays", "a", *RANGE)
    assert (code, [line.rstrip() for line in out.splitlines()], err) == (0, [
        "plays a by hour, Europe/Berlin", "Fri 2027-01-15",
        "06:00     7 since 06:10      █",
        "07:00 1,200                  █████████████████████",
        "08:00  -300             █████▏",
        "09:00    40 so far           █",
        "repair of -5 at 2027-01-15 08:50, by ledger: no traffic, so in no bar",
        "947 in 4 hours; the most in one: 1,200", "series begin at 2027-01-15 06:10",
        "complete up to 2027-01-15 09:20 (UTC+01:00)",
    ], "")  # fmt: skip
    assert max(map(len, out.splitlines()[:6])) == 50
    assert run("series", "plays", *RANGE)[1].startswith("all plays by hour, Europe/Berlin\n")
    days = run("series", "plays", "a", *RANGE, "--by", "day")[1].splitlines()
    assert days[1].rstrip() == "Fri 2027-01-15 947 so far " + "█" * 24


def test_an_hour_that_the_clocks_repeat_has_its_offset(capsys: pytest.CaptureFixture[str]) -> None:
    midnight = int(datetime(2026, 10, 25, tzinfo=UTC).timestamp())
    points = [Point(midnight + 3600 * hour, 1) for hour in range(2)]
    charts.series("x", points, ZoneInfo("Europe/Berlin"), by_hour=True)
    assert [line.split(" 1 ")[0] for line in capsys.readouterr().out.splitlines()[2:]] == ["02:00 +0200", "02:00 +0100"]


@pytest.mark.usefixtures("folded")
def test_a_top_list_says_how_exact_it_is(run: Run, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    span = ("--span", "2027-01-15T06")
    exact = "tally: each value is exact\ntally: complete up to 2027-01-15 08:20 (UTC)\n"
    assert run("top", "plays", *span) == (0, "id,value\na,1200\nb,30\n", exact)
    assert run("top", "plays", *span, "--limit", "1")[1] == "id,value\na,1200\n"
    assert json.loads(run("top", "plays", *span, "--json")[1])["by"] == "hour"
    assert run("top", "stock", "--span", "2027-01")[2].startswith(
        "tally: nothing moved up: stock, 2027-01 UTC so far\n"
    )


def test_series_that_nobody_has_folded_are_unknown_and_2(run: Run) -> None:
    said = "tally: nothing is summed up yet: a new stack needs some minutes, and its sweep\n"
    assert run("series", "plays", "a") == (2, "", said)
    assert run("top", "plays") == (2, "", said)
    code, out, err = run("top", "plays", "--json")
    assert (code, json.loads(out)["as_of"], err) == (2, None, said)


def watched(monkeypatch: pytest.MonkeyPatch, *between: Callable[[], object]) -> None:
    """Do these things between the looks of `tally watch`, one at a time; then it is Ctrl-C."""
    left = list(between)

    def wait(_: float) -> None:
        if not left:
            raise KeyboardInterrupt
        left.pop(0)()

    monkeypatch.setattr(watch, "time", SimpleNamespace(time=time.time, sleep=wait))
    impatient = CLIENT_CONFIG.merge(Config(retries={"total_max_attempts": 1}))
    monkeypatch.setattr(connection, "CLIENT_CONFIG", impatient)


def test_watch_goes_on_when_the_connection_is_lost_and_make_dev_is_back_elsewhere(
    run: Run, store: Store, where: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    edit(store, tallies.key(counters.STOCK, "mug", 0), "qty", 12)
    with new_engine() as other:
        create_tables(other.endpoint, store.settings)
        back, where["dynamodb"] = where["dynamodb"], other.endpoint
        watched(monkeypatch, other.kill, lambda: None, lambda: where.update(dynamodb=back), lambda: None, lambda: None)
        code, out, err = run("watch", "stock", "mug", "--json")
    lines = [json.loads(line) for line in out.splitlines()]
    assert (code, [(line["value"], line["change"]) for line in lines]) == (0, [(0, 0), (12, 12)])
    lost, again = err.splitlines()
    assert lost.startswith("tally: the connection is lost: ")
    assert again == "tally: the connection is back"


@pytest.mark.usefixtures("drawing")
def test_watch_draws_the_number_with_its_last_changes(run: Run, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    key = tallies.key(counters.STOCK, "mug", 0)
    watched(monkeypatch, lambda: edit(store, key, "qty", 1200), lambda: edit(store, key, "qty", -7))
    code, out, err = run("watch", "stock", "mug")
    title, number, *changes, state = out.splitlines()
    assert (code, title, number, [line.split()[1] for line in changes], err) == (
        0, "stock mug", "1,193", ["-7", "+1,200"], "",
    )  # fmt: skip
    assert state.startswith("as of ")


def command(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    nowhere = {"AWS_CONFIG_FILE": "/nonexistent", "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent"}
    return subprocess.Popen(
        [sys.executable, "-m", "cli", *arguments], cwd=ROOT, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, env={**kept, **nowhere, "AWS_EC2_METADATA_DISABLED": "true", **environment},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({}, "there is no AWS region"),
        ({"AWS_DEFAULT_REGION": "eu-west-1"}, "there are no AWS credentials"),
    ],
)
def test_without_region_or_credentials_it_says_so(environment: dict[str, str], said: str) -> None:
    with command("check", **environment) as process:
        out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"tally: {said}")


def test_ctrl_c_ends_watch_with_0(port: int, store: Store) -> None:
    with command("watch", "plays", "v", "--local", "--port", str(port)) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline(), process.stdout.readline()]
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, lines[0], lines[1][-5:], out, err) == (0, "at,value,change\n", ",0,0\n", "", "")


def test_ctrl_c_is_one_line_and_130_and_a_pipe_has_no_progress_bar(port: int, store: Store) -> None:
    """Ctrl-C while it waits for the judge. Nothing is written."""
    post(store, "off", off_by=5)
    judged(store, ahead=-4)
    with command("repair", *SIGNED, "--yes", "--local", "--port", str(port)) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_S)
    assert line.startswith("tally: nothing is written until drift is known of all that happened so far: ")
    assert (process.returncode, err) == (130, "tally: stopped\n")
    assert out.startswith("differs  likes off: 7")
    assert tallies.read(Call(store), counters.LIKES, "off") == 7


def test_no_such_stack_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """As CloudFormation says it, through the real client."""
    client = boto3.client(
        "cloudformation", region_name="eu-west-1", aws_access_key_id="x", aws_secret_access_key="x"
    )  # fmt: skip
    with Stubber(client) as stubber:
        stubber.add_client_error(
            "describe_stacks", "ValidationError", "Stack with id Tally-prdo does not exist", 400,
            expected_params={"StackName": "Tally-prdo"},
        )  # fmt: skip
        monkeypatch.setattr(boto3, "client", lambda service, **_: client)
        assert main(["check", "--stack", "Tally-prdo"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == "tally: the stack Tally-prdo cannot be read: Stack with id Tally-prdo does not exist\n"


class CloudFormation:
    """One stack."""

    def __init__(self, outputs: dict[str, str]) -> None:
        self.outputs = outputs

    def describe_stacks(self, StackName: str) -> dict[str, Any]:
        outputs = [{"OutputKey": name, "OutputValue": value} for name, value in self.outputs.items()]
        return {"Stacks": [{"Outputs": outputs}]}


def deployed(monkeypatch: pytest.MonkeyPatch, outputs: dict[str, str]) -> None:
    real = boto3.client

    def client(service: str, **how: Any) -> Any:
        return CloudFormation(outputs) if service == "cloudformation" else real(service, **how)

    monkeypatch.setattr(boto3, "client", client)


def test_stack_is_found_by_its_outputs(
    monkeypatch: pytest.MonkeyPatch, engine: Engine, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = store.settings
    monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", engine.endpoint)
    deployed(monkeypatch, {
        "CountsTableName": settings.counts_table, "ReceiptsTableName": settings.receipts_table,
        "LedgerTableName": settings.ledger_table, "Format": str(keys.FORMAT),
    })  # fmt: skip
    drifts(store, "plays", "v", 2)
    assert main(["check", "--stack", "Tally-prod"]) == 1
    assert capsys.readouterr().out.startswith("differs  plays v: 0, drift +2")


def test_stack_of_another_app_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    deployed(monkeypatch, {"ApiUrl": "x"})
    assert main(["check"]) == 2
    line = "tally: the stack Tally-dev has no output 'CountsTableName': is it Tally's?\n"
    assert capsys.readouterr().err == line


TABLES = dict.fromkeys(("CountsTableName", "ReceiptsTableName", "LedgerTableName"), "no-such-table")


def test_stack_of_another_format_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    deployed(monkeypatch, TABLES | {"Format": "7"})
    assert main(["check"]) == 2
    line = f"tally: the stack Tally-dev is in format 7, and this is format {keys.FORMAT}: use the version it runs\n"
    assert capsys.readouterr().err == line


def test_store_that_refuses_is_one_line(
    monkeypatch: pytest.MonkeyPatch, engine: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", engine.endpoint)
    deployed(monkeypatch, TABLES | {"Format": str(keys.FORMAT)})
    assert main(["check"]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("tally: ")
    assert printed.count("\n") == 1


@pytest.fixture
def nonsense() -> Iterator[Callable[[str], int]]:
    """Starts a server that answers each request with these bytes, and closes; with none, it says nothing. Its port."""
    with ExitStack() as stack:

        def start(answer: str) -> int:
            server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            held: list[socket.socket] = stack.enter_context(closing_all())

            def serve() -> None:
                with suppress(OSError):
                    while True:
                        connection, _ = server.accept()
                        held.append(connection)
                        connection.recv(65536)
                        if answer != "hangs":
                            connection.sendall(answer.encode())
                            connection.shutdown(socket.SHUT_RDWR)

            threading.Thread(target=serve, daemon=True).start()
            return int(server.getsockname()[1])

        yield start


@contextmanager
def closing_all() -> Iterator[list[socket.socket]]:
    held: list[socket.socket] = []
    yield held
    for one in held:
        one.close()


def http(body: str) -> str:
    return f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n{body}"


NONSENSE = {
    "HTML": http("<html><p>Welcome to\nnginx!</html>"), "other JSON": http('[{"Items": 7}]'), "an object": http("{}"),
    "no HTTP": "220 ready\r\n", "nothing": "", "half": http("{}")[:-1], "hangs": "hangs",
    "other tables": http('{"dynamodb": 5, "s3": [], "counts": 1, "receipts": 2, "ledger": 3, "bucket": 0,'
                         ' "minute_s": 1, "outputs": {}}'),
}  # fmt: skip
EVERY: dict[str, list[str]] = {
    "status": [], "check": [], "repair": ["--by", "a", "--why", "b", "--yes"], "get": ["likes", "a"], "history": ["a"],
    "restore": ["--to", "2026-11-22T10:30:00Z", "--by", "a", "--why", "b"],
    "forget": ["--user", "u"], "import": [os.devnull, "--counter", "plays"], "export": ["plays", "--format", "jsonl"],
    "series": ["plays", "a"], "top": ["plays"], "watch": ["plays", "a"],
}  # fmt: skip


@pytest.mark.parametrize("kind", NONSENSE)
def test_an_endpoint_that_answers_nonsense_is_one_line_and_2(
    kind: str, nonsense: Callable[[str], int], store: Store, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """What answers in place of `make dev`, and what answers in place of DynamoDB."""
    assert EVERY.keys() == {command.name for command in commands.COMMANDS.values() if command.stack}
    monkeypatch.setattr(connection, "LOCAL_TIMEOUT_S", 0.1)
    impatient = CLIENT_CONFIG.merge(Config(read_timeout=0.1, retries={"total_max_attempts": 1}))
    monkeypatch.setattr(connection, "CLIENT_CONFIG", impatient)
    port = nonsense(NONSENSE[kind])
    tables = {"dynamodb": f"http://127.0.0.1:{port}", "s3": f"http://127.0.0.1:{port}", "counts": "c" * 9}
    tables |= {"receipts": "r" * 9, "ledger": "l" * 9, "bucket": "b"}
    dev = nonsense(http(json.dumps({**tables, "minute_s": 60, "outputs": {}})))
    for name, more in EVERY.items():
        for at in (port, dev):
            code = main([name, *more, "--local", "--port", str(at)])
            printed = capsys.readouterr()
            if name == "status" and at == dev:  # it looks at everything else, and says which part it cannot tell
                assert (code, printed.err.count("\n")) == (2, 1)
                continue
            assert (code, printed.out, printed.err.count("\n")) == (2, "", 1), (name, printed)
            assert printed.err.startswith("tally: ")


def test_a_traceback_is_there_for_those_who_ask(
    nonsense: Callable[[str], int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = dict.fromkeys(("dynamodb", "s3", "counts", "receipts", "ledger", "bucket"), "")
    answer = http(json.dumps({"ConsumedCapacity": {}, "Item": {"judged": {"N": "many"}}}))
    tables["dynamodb"] = f"http://127.0.0.1:{nonsense(answer)}"
    port = nonsense(http(json.dumps({**tables, "minute_s": 60, "outputs": {}})))
    assert main(["check", "--only", "receipts", "--local", "--port", str(port)]) == 2
    assert "TALLY_TRACEBACK=1 shows where" in capsys.readouterr().err
    monkeypatch.setenv("TALLY_TRACEBACK", "1")
    with pytest.raises(ValueError, match="many"):
        main(["check", "--only", "receipts", "--local", "--port", str(port)])


def test_version_help_and_completion_need_no_stack(capsys: pytest.CaptureFixture[str]) -> None:
    def printed(*arguments: str) -> str:
        with suppress(SystemExit):
            assert main(arguments) == 0
        return capsys.readouterr().out

    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert printed("--version") == f"tally {declared}\n"
    assert printed("help") == printed("--help")
    assert printed("help", "repair") == printed("repair", "--help")
    zsh = printed("completion", "zsh")
    assert zsh.startswith("#compdef tally\n")
    assert "_values counter plays likes" in zsh
    asked = 'COMP_WORDS=(tally "$@"); COMP_CWORD=$(($# )); _shtab_tally; echo "${COMPREPLY[@]}"'
    for words, offered in ((["rep"], "repair"), (["get", "pl"], "plays"), (["check", "--j"], "--json")):
        script = f"{printed('completion', 'bash')}\n{asked}"
        done = subprocess.run(["bash", "-c", script, "bash", *words], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == offered


def test_each_command_has_a_help_with_the_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    for name in commands.COMMANDS:
        with pytest.raises(SystemExit) as stopped:
            main([name, "--help"])
        assert stopped.value.code == 0
        text = capsys.readouterr().out
        assert text.startswith(f"usage: tally {name}")
        assert "exit status: 0 all is well" in text
