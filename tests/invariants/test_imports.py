"""An import counts each row once for the name of its run, wherever it dies; what it counts is no drift."""

from __future__ import annotations

import itertools
import json
import shlex
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import counters
from cli import commands, imports
from cli.connection import Connection, Stack
from cli.terminal import CommandError
from dev import faults
from dev.base.engine import Engine
from tally.counter import Counter
from tally.counting import children, increments, periods, posts, tallies
from tally.counting import imports as chunks
from tally.counting.increments import Increment
from tally.dynamo.client import Call, Store
from tests.conftest import fresh_tables
from tests.invariants.judged import Deployment, deployed
from tests.invariants.threads import at_once
from tests.invariants.world import World, killed

LIKES, PLAYS, STOCK, USAGE = counters.LIKES, counters.PLAYS, counters.STOCK, counters.USAGE
BY = ("--yes", "--by", "ann", "--why", "INC-9")
Tally = Callable[..., int]


@pytest.fixture(scope="session")
def streamed() -> tuple[str, ...]:
    return ("counts", "receipts")


@pytest.fixture
def judged(world: World, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Deployment]:
    """The deployment's writes go through the proxy of `world`. Its time is later than that of Powertools."""
    monkeypatch.setattr(chunks, "KEPT_DAYS", 10**4)
    with deployed(engine=engine, store=world.store) as made:
        yield made


@pytest.fixture
def run(store: Store) -> Tally:
    return on(store)


def on(store: Store) -> Tally:
    """The command, on these tables; its exit status."""
    stack = Stack(Connection(store, None), counters.COUNTERS)

    def run(*arguments: object) -> int:
        given = commands.parsed([str(one) for one in arguments], commands.parser(counters.COUNTERS))
        return commands.COMMANDS[given.command].run(given, stack)

    return run


@pytest.fixture
def file(tmp_path: Path) -> Callable[..., Path]:
    numbers = itertools.count()

    def write(*lines: str, name: str = ".csv") -> Path:
        made = tmp_path / f"{next(numbers)}{name}"
        made.write_text("".join(f"{line}\n" for line in lines))
        return made

    return write


def value(store: Store, counter: Counter, id_: str) -> int:
    return tallies.read(Call(store), counter, id_)


def videos(start: str, rows: int = 120, ids: int = 110) -> list[str]:
    """More than two chunks; some ids twice."""
    return ["id,value", *(f"{start}{row % ids},{row + 1}" for row in range(rows))]


def counted(store: Store, lines: list[str]) -> bool:
    """Whether each row is counted once."""
    sums: dict[str, int] = {}
    for id_, number in (line.split(",") for line in lines[1:]):
        sums[id_] = sums.get(id_, 0) + int(number)
    found = {id_: value(store, PLAYS, id_) for id_ in sums}
    return found == sums


def test_each_row_counts_once_wherever_the_run_is_killed_and_nothing_drifts(
    judged: Deployment, file: Callable[..., Path]
) -> None:
    """Killed before and after each request of the run, and started again to its end."""
    run = on(judged.store)
    for before in (True, False):
        for at in itertools.count():
            lines = videos(f"k{at}-{int(before)}-")
            asked = ("import", file(*lines), "--counter", "plays", *BY)
            with killed(judged.store, at, before=before) as made:
                run(*asked)
            ended = len(made) != at
            assert run(*asked) == 0
            assert counted(judged.store, lines)
            if ended:
                break
        assert at >= 5  # the run in the history twice, and three chunks
    judged.even()


@pytest.mark.parametrize(
    "fault", [faults.LOSE_RESPONSE, faults.FAIL_AFTER, faults.THROTTLE], ids=lambda one: one.kind.name
)
def test_lost_answers_and_a_busy_store_change_nothing(
    judged: Deployment, world: World, file: Callable[..., Path], fault: faults.Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(imports, "BUSY_S_MAX", 0.0)
    judged.post()
    lines = videos("f")
    world.proxy.forget()
    world.proxy.plan = faults.script({"TransactWriteItems": [fault, None, fault, fault, fault, None, fault]})
    run = on(judged.store)
    assert run("import", file(*lines), "--counter", "plays", *BY) == 0
    assert run("import", file("p,a,9", "p,b,8"), "--children", "likes", *BY) == 0
    judged.deliver()
    assert counted(judged.store, lines)
    assert value(judged.store, LIKES, "p") == 2
    judged.even()


def test_two_processes_at_once_and_changes_meanwhile(store: Store, run: Tally, file: Callable[..., Path]) -> None:
    lines = videos("t")
    asked = ("import", file(*lines), "--counter", "plays", *BY)

    def play() -> None:
        for number in range(20):
            body = {"counted": True}
            increments.count(Call(store), Increment(PLAYS, f"t{number}", 1, "play", f"key-{number}", body))

    at_once([lambda: run(*asked), lambda: run(*asked), play])
    took_back = Call(store)
    for number in range(20):
        body = {"counted": True}
        increments.count(took_back, Increment(PLAYS, f"t{number}", -1, "back", f"key-{number}", body))
    assert counted(store, lines)


def test_another_content_under_the_name_of_a_run_counts_nothing(
    store: Store, run: Tally, file: Callable[..., Path]
) -> None:
    lines = videos("o")
    with killed(store, 3, before=True):
        run("import", file(*lines), "--counter", "plays", "--run", "move", *BY)
    before = value(store, PLAYS, "o0"), value(store, PLAYS, "o109")
    for changed in (lines[:-1], [*lines, "o1,7"], [lines[0], *reversed(lines[1:])]):
        with pytest.raises(CommandError, match="the run move began with another file"):
            run("import", file(*changed), "--counter", "plays", "--run", "move", *BY)
    assert (value(store, PLAYS, "o0"), value(store, PLAYS, "o109")) == before
    chunk = chunks.Chunk(0, [chunks.Number(1, "o0", 5)])
    chunks.add(Call(store), PLAYS, "bound", chunk)
    chunk.rows[0] = chunks.Number(1, "o0", 6)
    with pytest.raises(Exception, match="used for another change"):
        chunks.add(Call(store), PLAYS, "bound", chunk)
    assert run("import", file(*lines), "--counter", "plays", "--run", "move", *BY) == 0


def test_a_run_ends_before_its_first_receipts_go(
    store: Store, run: Tally, file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "RESTART_S", -1)
    with pytest.raises(CommandError, match="its first receipts are about to go"):
        run("import", file(*videos("long")), "--counter", "plays", *BY)
    assert value(store, PLAYS, "long0") == 0


def test_run_is_not_repeated_when_its_receipts_are_gone(
    store: Store, run: Tally, file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    whole, half = (("import", file(*videos(name)), "--counter", "plays", *BY) for name in ("w", "h"))
    assert run(*whole) == 0
    with killed(store, 2, before=True):
        run(*half)
    later_s = time.time() + chunks.RESTART_S + 60
    kept = store.client.scan(TableName=store.settings.receipts_table)["Items"]
    assert min(int(item["expiration"]["N"]) for item in kept) > later_s
    for item in kept:
        store.client.delete_item(TableName=store.settings.receipts_table, Key={"id": item["id"]})
    capsys.readouterr()
    assert run(*whole) == 0
    assert "ended before: 120 rows, 0 refused" in capsys.readouterr().out
    monkeypatch.setattr(time, "time", lambda: later_s)
    with pytest.raises(CommandError, match="its receipts are gone, and nobody can tell what counted"):
        run(*half)
    assert counted(store, videos("w"))


def test_children_are_put_once_with_their_time_and_their_tally(
    judged: Deployment, file: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    run, store = on(judged.store), judged.store
    for post in ("p", "q"):
        judged.post(post=post)
    judged.like("early", post="p")
    lines = [f"{post},u{n},{1_700_000_000 + n}" for n in range(70) for post in ("p", "q")]
    path = file("post,user,liked_at", *lines, "p,early,2024-05-03T10:00:00Z", "q,auth0|7,2024-05-03 10:00", "p,u1,5")
    asked = ("import", path, "--children", "likes", *BY)
    with killed(store, 4, before=False):
        run(*asked)
    judged.like("u0", liked=False, post="p")  # between the kill and the second start: it stays so
    assert run(*asked) == 0
    out = capsys.readouterr().out
    assert "2 were there" in out
    assert (value(store, LIKES, "p"), value(store, LIKES, "q")) == (70, 71)
    found, _ = children.listed(Call(store), LIKES, "q", 100, None)
    assert ("u69", 1_700_000_069) in found
    assert ("auth0|7", 1_714_730_400) in found
    assert not children.is_there(Call(store), LIKES, "p", "u0")
    for post in ("p", "q"):
        found = judged.reconciler().count(LIKES, post)
        assert found.children == found.tally
    judged.even()


def test_children_without_a_parent_are_named_by_their_lines(
    store: Store, run: Tally, file: Callable[..., Path], capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    posts.write_post(Call(store, "author"), LIKES, "p", "hello")
    path = file("p,a,1", "nobody,b,2", "p,c,3", "nothing,d,4")
    assert run("import", path, "--children", "likes", *BY) == 2
    said = capsys.readouterr().err
    assert "line 2: there is no post nobody\n" in said
    assert "line 4: there is no post nothing\n" in said
    assert value(store, LIKES, "p") == 0
    assert run("import", path, "--children", "likes", "--skip-bad", *BY) == 1  # rows are left out, and it says which
    assert "imported 2 rows, 2 refused" in capsys.readouterr().out
    assert value(store, LIKES, "p") == 2
    assert store.client.scan(TableName=store.settings.counts_table)["Count"] == 4  # the post, its text, two likes


def test_a_time_in_milliseconds_is_refused(
    store: Store, run: Tally, file: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    posts.write_post(Call(store, "author"), LIKES, "p", "hello")
    assert run("import", file("post,user,liked_at", "p,a,1700000000000"), "--children", "likes", *BY) == 2
    assert "line 2: the time must be ISO 8601, or seconds since 1970" in capsys.readouterr().err


BAD_CSV = ["id,value", "a,1", "b,x", "c#,3", "d", "e,1.5", "..,1", "f,-1", f"g,{10**15 + 1}"]
BAD_JSON = ['{"id": "a", "value": 1}', '{"id": "b", "value": true}', "[]", "x", '{"id": "c"}', '{"id": 7, "value": 1}']


@pytest.mark.parametrize(
    ("lines", "name", "bad"),
    [
        (BAD_CSV, ".csv", [(3, "value must be a whole number"), (4, "ID must be"), (5, "there must be 2 columns"),
                           (6, "value"), (7, "a dot or two"), (8, "multiple of 1"), (9, "value must be")]),
        (["value,id", "1,a", "x,b"], ".csv", [(3, "value must be a whole number")]),
        (["a,1", "b,2,3"], ".csv", [(2, "there must be 2 columns, and there are 3")]),
        (BAD_JSON, ".jsonl", [(2, "value"), (3, "is no JSON object"), (4, "is no JSON object"),
                              (5, "must have id, value"), (6, "a string")]),
    ],
)  # fmt: skip
def test_bad_lines_are_named_and_nothing_is_imported_unless_they_are_skipped(
    store: Store, run: Tally, file: Callable[..., Path], capsys: pytest.CaptureFixture[str],
    lines: list[str], name: str, bad: list[tuple[int, str]],
) -> None:  # fmt: skip
    path = file(*lines, name=name)
    for more in ((), BY):
        assert run("import", path, "--counter", "plays", *more) == 2
        said = dict(line.split(": ", 2)[1:] for line in capsys.readouterr().err.splitlines() if ": line " in line)
        assert list(said) == [f"line {number}" for number, _ in bad]
        for number, why in bad:
            assert why in said[f"line {number}"]
    assert store.client.scan(TableName=store.settings.counts_table)["Count"] == 0
    assert run("import", path, "--counter", "plays", "--skip-bad", *BY) == 0
    assert value(store, PLAYS, "a") == 1
    assert store.client.scan(TableName=store.settings.counts_table)["Count"] == 1


def test_dry_run_writes_nothing_and_names_earlier_runs(
    store: Store, run: Tally, file: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = file("a,1", "b,2")
    assert run("import", path, "--counter", "plays") == 0
    assert capsys.readouterr().out.startswith("would import into plays: 2 rows, 3 in all, as the run ")
    assert all(store.client.scan(TableName=table)["Count"] == 0 for table in (
        store.settings.counts_table, store.settings.receipts_table, store.settings.ledger_table,
    ))  # fmt: skip
    assert run("import", path, "--counter", "plays", "--run", "first", *BY) == 0
    capsys.readouterr()
    assert run("import", file("a,1"), "--counter", "plays") == 0
    assert "the run first imported 2 rows: INC-9" in capsys.readouterr().err


def test_numbers_with_limits_refuse_rows_and_those_with_a_start_are_set(
    store: Store, run: Tally, file: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = file("mug,5", "cup,-1", "mug,-3", "mug,-9")
    assert run("import", path, "--counter", "stock", *BY) == 1
    printed = capsys.readouterr()
    assert "line 2: 0 are left." in printed.err
    assert "line 4: 2 are left." in printed.err
    assert "imported 2 rows, 2 refused" in printed.out
    assert (value(store, STOCK, "mug"), value(store, STOCK, "cup")) == (2, 0)
    path = file("x,97", "y,0", "x,90")
    assert run("import", path, "--counter", "contest", *BY) == 1
    assert "line 3: It is at version 1 now." in capsys.readouterr().err
    assert (value(store, counters.CONTEST, "x"), value(store, counters.CONTEST, "y")) == (97, 0)
    with pytest.raises(CommandError, match="counts items: import these with --children likes"):
        run("import", path, "--counter", "likes")
    with pytest.raises(CommandError, match="plays counts no items"):
        run("import", path, "--children", "plays")
    for counter in (counters.MEMBERS, USAGE):
        retired = replace(counter, retired=True)
        assert "is retired: it takes no more changes" in chunks.refused(retired, children=counter.counts_children)


@pytest.mark.parametrize("counter", [replace(PLAYS, receipt_days=2), counters.CONTEST, counters.MEMBERS])
def test_the_receipts_of_an_import_live_longer_than_it_may_take_whatever_counter_and_deployment_say(
    store: Store, counter: Counter
) -> None:
    if counter.counts_children:
        chunks.put(Call(store), counter, "run", chunks.Chunk(0, [chunks.Child(1, "x", "ann", 5)]))
    else:
        chunks.add(Call(store), counter, "run", chunks.Chunk(0, [chunks.Number(1, "x", 5)]))
    [receipt] = store.client.scan(TableName=store.settings.receipts_table)["Items"]
    assert int(receipt["expiration"]["N"]) > time.time() + chunks.RESTART_S


def test_a_number_that_is_set_in_a_period_goes_with_it(store: Store) -> None:
    budget = Counter(
        "budget", prefix="BUD", sort_key="LEFT", attribute="left", start=9, floor=0, period="day", keep_periods=35
    )
    id_ = periods.tally_id(budget, "acme", time.time())
    chunks.add(Call(store), budget, "run", chunks.Chunk(0, [chunks.Number(1, id_, 4)]))
    [item] = store.client.scan(TableName=store.settings.counts_table)["Items"]
    assert (item["left"], int(item["expiration"]["N"])) == ({"N": "4"}, periods.expires_s(budget, id_))


def test_what_is_exported_and_imported_into_an_empty_stack_is_the_same(
    engine: Engine, store: Store, run: Tally, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call, big = Call(store), 3 * 10**9
    for shard, amount in ((0, big), (3, 7)):
        store.client.update_item(**tallies.add(call, PLAYS, "v", shard, amount, 0))
    page = 'https://example.com/a,b?c="d"'
    for counter, id_, amount in ((PLAYS, "w", 0), (USAGE, "u", -5), (STOCK, "mug", 4), (counters.VISITS, page, 9),
                                 (counters.BOT_VISITS, page, 2), (counters.TICKET, "q", 12)):  # fmt: skip
        store.client.update_item(**tallies.add(call, counter, id_, 0, amount, 0))
    increments.count(call, Increment(counters.CONTEST, "c", -1, "increment", "k", {}))
    for post, users in (("p", ["a", "auth0|7"]), ("empty", [])):
        posts.write_post(Call(store, "author"), LIKES, post, "hello")
        for user in users:
            children.set_child(Call(store), LIKES, post, user.replace("|", "%7C"), True)
    children.set_child(Call(store, "shop"), counters.MEMBERS, "acme", "auth0%7C7", True, {}, None)
    other = Store(store.client, fresh_tables(store.client, ("counts", "receipts")))
    for post in ("p", "empty"):
        posts.write_post(Call(other, "author"), LIKES, post, "hello")
    for name, form in itertools.product(counters.COUNTERS, ("csv", "jsonl")):
        path = tmp_path / f"{name}.{form}"
        of_items = ["--children"] if counters.COUNTERS[name].child else []
        assert run("export", name, path, *of_items) == 0
        into = ["--children", name] if of_items else ["--counter", name]
        if form == "csv":
            assert on(other)("import", path, *into, *BY) == 0
        again = tmp_path / f"{name}-again.{form}"
        if counters.COUNTERS[name] in (counters.VISITS, counters.BOT_VISITS):
            continue  # their receipts wait for the rollup
        assert on(other)("export", name, again, *of_items) == 0
        assert sorted(again.read_text().splitlines()) == sorted(path.read_text().splitlines())
    assert (tmp_path / "plays.csv").read_text() == f"id,value\nv,{big + 7}\nw,0\n"
    assert json.loads((tmp_path / "visits.jsonl").read_text()) == {"id": page, "value": 9}
    capsys.readouterr()
    assert run("export", "stock") == 0
    assert capsys.readouterr().out == "id,value\nmug,4\n"
    assert posts.delete_post(Call(store, "author"), LIKES, "p")
    for of_items in ([], ["--children"]):
        assert run("export", "likes", *of_items) == 0
        assert "\np," not in capsys.readouterr().out, "a post that is deleted has no number, and no likes"


def test_command_lines_of_the_docs_are_taken() -> None:
    text = (Path(__file__).parents[2] / "docs/import.md").read_text()
    lines = [line for line in text.splitlines() if line.startswith("tally ")]
    assert len(lines) > 5
    for line in lines:
        words = list(itertools.takewhile(lambda word: word not in ("#", "|", ">", "<"), shlex.split(line)))
        assert commands.parsed(words[1:], commands.parser(counters.COUNTERS)).command == words[1]


def test_period_is_part_of_the_id(store: Store, run: Tally, file: Callable[..., Path], capsys: Any) -> None:
    today, tomorrow = (str(datetime.now(UTC).date() + timedelta(days=days)) for days in (0, 1))
    path = file(f"a#{today},5", f"a#{tomorrow},7", "b,1", "b#2026-11,1", "b##,1")
    assert run("import", path, "--counter", "calls", "--skip-bad", *BY) == 0
    assert [line.split(": ")[1] for line in capsys.readouterr().err.splitlines()[:3]] == ["line 3", "line 4", "line 5"]
    assert run("export", "calls") == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert (head, sorted(rows)) == ("id,value", [f"a#{today},5", f"a#{tomorrow},7"])
    assert run("get", "calls", f"a#{today}") == 0
    assert capsys.readouterr().out == f"calls a#{today}: 5\n"
