"""An import counts each row of a file once, though its process dies at any request, and causes no drift."""

from __future__ import annotations

import bz2
import gzip
import io
import itertools
import json
import lzma
import re
import time
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import quote

import pytest

import counters
from tally import fields
from tally.cli import files
from tally.cli import imports as import_command
from tally.cli.terminal import CommandError
from tally.counter import Counter
from tally.counting import anonymous, batch, children, increments, periods, posts, tallies
from tally.counting.batch import Batch
from tally.counting.increments import Increment
from tally.counting.tallies import Tally
from tally.dev.base.engine import Engine
from tally.dynamo.client import Call, Store
from tally.errors import InvalidInputError, LimitReachedError
from tally.maintenance import imports as importer
from tally.series import hours, top
from tally.series import read as series
from tally.series.read import HOUR, SeriesRange
from tests import faults
from tests.commands import WRITE_OPTIONS, Command
from tests.conftest import fresh_tables
from tests.invariants.deployment import Deployment
from tests.invariants.streaming import ConsumerWorld
from tests.invariants.threads import run_together
from tests.invariants.world import World, killing_at

NUMBERS_HEADER, LIKES_HEADER = "id,value", "post,user,liked_at"
LIKES, PLAYS, STOCK, USAGE = counters.LIKES, counters.PLAYS, counters.STOCK, counters.USAGE


@pytest.fixture
def deployment(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> Deployment:
    """A deployment that keeps receipts of imports for years. Powertools' idempotency layer, through which Tally reads
    receipts, compares their expiration with the real clock. By this clock, receipts of 30 days may look expired."""
    monkeypatch.setattr(importer, "KEPT_DAYS", 10**4)
    return deployment


@pytest.fixture
def run(store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(store, tmp_path, capsys)


@pytest.fixture
def run_on_deployment(run: Command, deployment: Deployment) -> Command:
    return replace(run, store=deployment.store)


def read_number(store: Store, counter: Counter, id_: str) -> int:
    return tallies.read(Call(store), counter, id_)


def video_lines(id_prefix: str) -> list[str]:
    """Returns the lines of a file of 120 rows, which make two chunks (TALLIES_MAX). Ten of the 110 ids occur twice."""
    return [NUMBERS_HEADER, *(f"{id_prefix}{row % 110},{row + 1}" for row in range(120))]


def is_counted_once(store: Store, lines: list[str]) -> bool:
    """Returns whether the plays of each id are the sum of its rows in the file."""
    sums: dict[tuple[str, str], int] = {}
    for id_, number in (line.split(",") for line in lines[1:]):
        sums["plays", id_] = sums.get(("plays", id_), 0) + int(number)
    return sums.items() <= ConsumerWorld(store, store.client).tallies().items()


def test_each_row_counts_once_wherever_the_run_is_killed_and_nothing_drifts(
    deployment: Deployment, run_on_deployment: Command
) -> None:
    """Each run is killed before or after one of its requests, and a second run ends the import."""
    for before in (True, False):
        for request_number in itertools.count():
            lines = video_lines(f"k{request_number}-{int(before)}-")
            path = run_on_deployment.file(*lines)
            with killing_at(deployment.store, request_number, before=before) as requests:
                run_on_deployment.import_(path)
            is_killed = len(requests) == request_number
            assert run_on_deployment.import_(path) == 0
            assert is_counted_once(deployment.store, lines)
            if not is_killed:
                break
        assert request_number > 4  # a whole run writes its history entry, two chunks, and the entry once more
    deployment.run_without_drift()


@pytest.mark.parametrize(
    "fault", [faults.LOSE_RESPONSE, faults.FAIL_AFTER, faults.THROTTLE], ids=lambda fault: fault.kind.name
)
def test_each_row_counts_once_though_answers_are_lost_and_the_store_is_busy(
    deployment: Deployment,
    world: World,
    run_on_deployment: Command,
    fault: faults.Fault,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(import_command, "BUSY_S_MAX", 0.0)  # the command retries without a pause
    deployment.post()
    lines = video_lines("f")
    world.proxy.plan = faults.script({"TransactWriteItems": [fault, None, fault, fault, fault, None, fault]})
    assert run_on_deployment.import_(run_on_deployment.file(*lines)) == 0
    assert run_on_deployment.import_(run_on_deployment.file(LIKES_HEADER, "p,a,20240503", "p,b,20240504"), "likes") == 0
    deployment.deliver()
    assert is_counted_once(deployment.store, lines)
    assert read_number(deployment.store, LIKES, "p") == 2
    deployment.run_without_drift()


def test_each_row_counts_once_while_two_processes_import_and_callers_change_the_same_tallies(
    store: Store, run: Command
) -> None:
    lines = video_lines("t")
    path = run.file(*lines)

    def play(amount: int) -> None:
        for number in range(20):
            increments.count(Call(store), Increment(PLAYS, f"t{number}", amount, "play", f"{amount} {number}", {}))

    # The plays of the callers add up to 0.
    run_together([lambda: run.import_(path), lambda: run.import_(path), lambda: play(1), lambda: play(-1)])
    assert is_counted_once(store, lines)


@pytest.mark.sdk
def test_a_file_with_other_rows_under_the_name_of_a_run_is_refused(store: Store, run: Command) -> None:
    lines = video_lines("o")
    move = ("plays", "--run", "move")
    with killing_at(store, 3, before=True):  # after both chunks
        run.import_(run.file(*lines), *move)
    numbers_before = read_number(store, PLAYS, "o0"), read_number(store, PLAYS, "o109")
    for other_lines in (lines[:-1], [*lines, "o1,7"], [lines[0], *reversed(lines[1:])], [*lines[:-1], f"{lines[-1]}0"]):
        with pytest.raises(CommandError, match="the run move began with other rows"):
            run.import_(run.file(*other_lines), *move)
    assert (read_number(store, PLAYS, "o0"), read_number(store, PLAYS, "o109")) == numbers_before
    # The command compares a digest of all rows. Each receipt also has a digest of the rows of its chunk.
    chunk = importer.Chunk(0, [importer.NumberRow(1, "o0", 5)])
    importer.import_numbers(Call(store), PLAYS, "bound", chunk)
    chunk.rows[0] = importer.NumberRow(1, "o0", 6)
    with pytest.raises(Exception, match="used for another change"):
        importer.import_numbers(Call(store), PLAYS, "bound", chunk)
    assert run.import_(run.file(*lines), *move) == 0


def test_a_run_stops_before_its_first_receipts_expire(
    store: Store, run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importer, "RESTART_S_MAX", -1)  # a run may import only for RESTART_S_MAX seconds after it began
    with pytest.raises(CommandError, match="its first receipts expire soon"):
        run.import_(run.file(*video_lines("long")))
    assert read_number(store, PLAYS, "long0") == 0


@pytest.mark.sdk
def test_a_run_counts_no_row_twice_after_its_receipts_are_deleted(
    store: Store, run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished_file, interrupted_file = (run.file(*video_lines(name)) for name in ("done", "cut"))
    assert run.import_(finished_file) == 0
    with killing_at(store, 2, before=True):  # after the first chunk
        run.import_(interrupted_file)
    later_s = time.time() + importer.RESTART_S_MAX + 60  # when a run that began now may not be started once more
    stored = store.client.scan(TableName=store.settings.receipts_table)["Items"]
    assert min(int(item["expiration"]["N"]) for item in stored) > later_s
    for item in stored:
        store.client.delete_item(TableName=store.settings.receipts_table, Key={"id": item["id"]})
    run.read_output()
    assert run.import_(finished_file) == 0
    assert "ended before: 120 rows, 0 refused" in run.read_output()[0]
    monkeypatch.setattr(time, "time", lambda: later_s)
    with pytest.raises(CommandError, match="its receipts have expired, so it cannot go on"):
        run.import_(interrupted_file)
    assert is_counted_once(store, video_lines("done"))


def test_an_import_puts_and_counts_each_child_once_and_keeps_the_time_of_its_row(
    deployment: Deployment, run_on_deployment: Command
) -> None:
    run, store = run_on_deployment, deployment.store
    for post in ("p", "q"):
        deployment.post(post=post)
    deployment.like("early", post="p")
    lines = [f"{post},u{n},{1_700_000_000 + n}" for n in range(70) for post in ("p", "q")]
    path = run.file(LIKES_HEADER, *lines, "p,early,2024-05-03T10:00:00Z", "q,auth0|7,2024-05-03 10:00", "p,u1,20240503")
    with killing_at(store, 4, before=False):
        run.import_(path, "likes")
    deployment.like("u0", liked=False, post="p")  # the second run does not put this like a second time
    assert run.import_(path, "likes") == 0
    assert "2 existed" in run.read_output()[0], "`early`, and the second row of `u1`"
    # `p`: `early` and 70 users without `u0`; `q`: 70 users and `auth0|7`.
    assert (read_number(store, LIKES, "p"), read_number(store, LIKES, "q")) == (1 + 70 - 1, 70 + 1)
    page_of_children, _ = children.list_children(Call(store), LIKES, "q", 100, None)
    assert ("u69", 1_700_000_069) in page_of_children
    assert ("auth0|7", 1_714_730_400) in page_of_children  # 2024-05-03 10:00 UTC
    assert not children.has_child(Call(store), LIKES, "p", "u0")
    for post in ("p", "q"):
        recount = deployment.reconciler().count(LIKES, post)
        assert recount.children == recount.tally
    deployment.run_without_drift()


def traffic_and_imports(deployment: Deployment, counter: Counter, id_: str) -> tuple[int, dict[str, int]]:
    """Returns the traffic of the last day, and the imported sum of each day."""
    now_h = int(deployment.now_s) // 3600 + 1
    traffic = series.read_series(Call(deployment.store), counter, id_, SeriesRange(HOUR, now_h - 24, now_h))
    all_time = series.read_series(Call(deployment.store), counter, id_, SeriesRange(HOUR, 0, now_h))
    by_day = {str(datetime.fromtimestamp(part["from"], UTC).date()): part["value"] for part in all_time["imports"]}
    return sum(point["value"] for point in traffic["series"]), by_day


def top_list(deployment: Deployment, counter: Counter) -> dict[str, int]:
    """Returns the top list of today, as a value for each id."""
    entries = top.top_list(Call(deployment.store), counter, top.DAY, None, 100)["top"]
    return {entry["id"]: entry["value"] for entry in entries}


def test_imported_numbers_are_imports_of_their_days_and_not_traffic_wherever_the_run_is_killed(
    deployment: Deployment, run_on_deployment: Command
) -> None:
    """A number or child of a day in the future is an import of today. The removal of an imported child is traffic."""
    deployment.sweeps_series = True
    deployment.run(2)
    deployment.play(times=3)
    deployment.spill("hot", 2)
    deployment.store.breaker.trip("VID#hot")  # so the import of this video spills
    deployment.post()
    hour_s = deployment.now_s // 3600 * 3600
    page = "https://example.com/a"
    rows_of_days = ["d,2024-05-03,7", "e,2024-05-03 23:59:59,1", "d,1714780800,9", "d,5138-11-16,2", "d,20240503,3"]
    likes = ["p,a,2024-05-03T10:00:00Z", "p,b,2024-05-03T23:59:59Z", "p,c,2024-05-04", "p,d,5138-11-16"]
    for counter, *lines in (
        ("plays", NUMBERS_HEADER, "v,1200", "w,5", "hot,70"), ("contest", NUMBERS_HEADER, "x,97"),
        ("visits", NUMBERS_HEADER, f"{page},8"),
        ("plays", "id,day,value", *rows_of_days), ("contest", "id,day,value", "y,2024-05-04T00:30:00+02:00,97"),
        ("likes", LIKES_HEADER, *likes),
    ):  # fmt: skip
        path = run_on_deployment.file(*lines)
        for request_number in itertools.count(2):  # kills each run one request later than the run before
            with killing_at(deployment.store, request_number, before=False) as requests:
                run_on_deployment.import_(path, counter)
            if len(requests) != request_number:
                break
        assert run_on_deployment.import_(path, counter) == 0
    today = str(datetime.fromtimestamp(deployment.now_s, UTC).date())
    for user in ("new", "other"):
        deployment.like(user)
    deployment.run(3)
    deployment.like("c", liked=False)
    deployment.run(120)  # minutes: the hours above end and are judged, so their series and top lists are complete
    assert traffic_and_imports(deployment, PLAYS, "v") == (3, {today: 1200})
    assert traffic_and_imports(deployment, PLAYS, "w") == (0, {today: 5})
    assert traffic_and_imports(deployment, PLAYS, "hot") == (2, {today: 70})
    assert traffic_and_imports(deployment, counters.CONTEST, "x") == (0, {today: 97 - counters.CONTEST.start})
    assert traffic_and_imports(deployment, counters.VISITS, page) == (0, {today: 8})
    assert traffic_and_imports(deployment, PLAYS, "d") == (0, {"2024-05-03": 10, "2024-05-04": 9, today: 2})
    assert traffic_and_imports(deployment, PLAYS, "e") == (0, {"2024-05-03": 1})
    assert traffic_and_imports(deployment, counters.CONTEST, "y") == (0, {"2024-05-03": 97 - counters.CONTEST.start})
    imports_of_plays = {"2024-05-03": 10 + 1, "2024-05-04": 9, today: 1200 + 5 + 70 + 2}
    assert traffic_and_imports(deployment, PLAYS, hours.TOTAL_ID) == (5, imports_of_plays)
    assert traffic_and_imports(deployment, LIKES, "p") == (2 - 1, {"2024-05-03": 2, "2024-05-04": 1, today: 1})
    assert (top_list(deployment, PLAYS), top_list(deployment, LIKES)) == ({"v": 3, "hot": 2}, {"p": 1})
    assert [read_number(deployment.store, PLAYS, id_) for id_ in ("hot", "d")] == [2 + 70, 10 + 9 + 2]
    numbers = read_number(deployment.store, LIKES, "p"), read_number(deployment.store, counters.CONTEST, "y")
    assert numbers == (4 + 2 - 1, 97)
    deployment.run_without_drift()
    run_on_deployment.read_output()
    assert run_on_deployment("history", "p") == 0
    printed, _ = run_on_deployment.read_output()
    assert f"likes p: +4 imported in this hour, into 2024-05-03 to {today}" in printed
    assert "--imports" in printed, "how to list the runs"
    assert run_on_deployment("history", "w", "--json") == 0
    [line] = map(json.loads, run_on_deployment.read_output()[0].splitlines())
    assert (line["counter"], line["id"], line["amount"], line["how"]) == ("plays", "w", 5, "import")
    assert (line["first"], line["last"], line["at"]) == (today, today, hour_s)
    assert run_on_deployment("history", "nothing") == 0
    assert "has no repairs" in run_on_deployment.read_output()[0]


def test_the_command_names_the_lines_of_children_without_a_parent(store: Store, run: Command) -> None:
    posts.write_post(Call(store, "author"), LIKES, "p", "hello")
    path = run.file(LIKES_HEADER, "p,a,20240501", "nobody,b,2024-05-02", "p,c,20240503", "nothing,d,2024-05-04")
    assert run.import_(path, "likes") == 2
    _, errors = run.read_output()
    assert "line 3: there is no post nobody\n" in errors
    assert "line 5: there is no post nothing\n" in errors
    assert read_number(store, LIKES, "p") == 0
    assert run.import_(path, "likes", "--skip-bad") == 1, "the exit status after refused rows"
    assert "imported 2 rows, 2 refused" in run.read_output()[0]
    assert read_number(store, LIKES, "p") == 2
    assert store.client.scan(TableName=store.settings.counts_table)["Count"] == 4  # the post, its text, two likes


# Names that a CSV reader, a text reader or a spreadsheet could change.
ODD_USERS = ["a\nb", "\n", "a\r\nb\r", "a\rb", 'say "x"\n,"y"\n', ",\n,", "x\0y", "\u2028z", "'=1+1", " a ", "\ufeffq"]
MAY_3_S = 1_714_694_400  # 2024-05-03
ACCEPTED_TIMES = {
    "20240503": MAY_3_S, 20240503: MAY_3_S, "2024-05-03": MAY_3_S, "20240503T000000Z": MAY_3_S, str(MAY_3_S): MAY_3_S,
    float(MAY_3_S): MAY_3_S,
    "1999-12-31": 946_598_400, "946684800": 946_684_800, "1999999999": 1_999_999_999,
}  # fmt: skip
REFUSED_TIMES = {
    "before 2000 or after May 2033": (
        "45415", 45415, "2024", 2024, "202405",  # a date of Excel, a year, a month
        "2024050312", 2024050312, "202405031200", "1700000000000",  # dates with their hour, milliseconds
        "946684799", "2000000000", "0", "-1",
    ),
    "must be ISO 8601 from 1970 on": (
        "20241345", "99999999", "1969-12-31", "9999-12-31", "5/3/2024", "45415.5", "", None, True,
    ),
}  # fmt: skip


def test_a_number_as_time_is_a_date_or_seconds_or_is_refused_with_the_reason(run: Command) -> None:
    assert {text: files.parse_seconds(text) for text in ACCEPTED_TIMES} == ACCEPTED_TIMES
    for reason, times in REFUSED_TIMES.items():
        for text in times:
            with pytest.raises(InvalidInputError, match=reason):
                files.parse_seconds(text)
    for header, row, option, counter in (
        ("id,child,at", "a,ann,45415", "--children", "hearts"), ("id,day,value", "a,45415,45415", "--counter", "plays"),
    ):  # fmt: skip
        assert run("import", run.file(header, row), option, counter, *WRITE_OPTIONS) == 2
        assert "line 2: the time 45415, in seconds since 1970, is before 2000 or after May 2033" in run.read_output()[1]


BAD_CSV = [NUMBERS_HEADER, "a,1", "b,x", "c#,3", "d", "e,1.5", "..,1", "f,-1", f"g,{10**37 + 1}"]
WHOLE_NUMBERS = ["a,1.0", "a,0e2", "a,-0.0"]
NOT_WHOLE_NUMBERS = [
    f"b,{text}" for text in ("7.5", "nan", "inf", "1e400", "0x10", "1_000", "", "1e38", "7e-1", "9007199254740992.5")
]
BAD_JSON = [
    '{"id":"a", "value": 1.0}', '{"id": "b", "value": true}', "[]", "x", '{"id": "c"}', '{"id": 7, "value": 1}',
    '{"id": "b", "value": 1, "value": 2}', '{"id": "b", "value": 12345678901234567.0}',
]  # fmt: skip


@pytest.mark.parametrize(
    ("lines", "name", "bad"),
    [
        (BAD_CSV, ".csv", [(3, "value must be a whole number"), (4, "ID must be"), (5, "the row has 1 columns"),
                           (6, "value"), (7, "a dot or two"), (8, "value must not be below 0: plays only counts up"),
                           (9, "value must be")]),
        ([NUMBERS_HEADER, *WHOLE_NUMBERS, *NOT_WHOLE_NUMBERS], ".csv",
         [(line, "value must be a whole") for line in range(5, 15)]),
        ([NUMBERS_HEADER, "a,1", "i" * 200_000 + ",1"], ".csv", [(3, "a field is longer than 131072 characters")]),
        (["value,id", "1,a", "x,b"], ".csv", [(3, "value must be a whole number")]),
        (["id,value,by", "a,1,x", "b,7,8,x"], ".csv", [(3, "the row has 4 columns, and the first line has 3")]),
        (BAD_JSON, ".jsonl", [(2, "value"), (3, "is not a JSON object"), (4, "is not a JSON object"),
                              (5, "must have id, value"), (6, "a string"), (7, "has a name twice"), (8, "value")]),
    ],
)  # fmt: skip
def test_the_command_names_bad_lines_and_imports_nothing_without_skip_bad(
    store: Store, run: Command, lines: list[str], name: str, bad: list[tuple[int, str]]
) -> None:
    """`bad`: the numbers of the bad lines, and their reasons. The good lines are of the id `a`, and add up to 1."""
    path = run.file(*lines, name=name)
    for options in ((), WRITE_OPTIONS):
        assert run("import", path, "--counter", "plays", *options) == 2
        reasons = dict(line.split(": ", 2)[1:] for line in run.read_output()[1].splitlines() if ": line " in line)
        assert list(reasons) == [f"line {number}" for number, _ in bad]
        for number, reason in bad:
            assert reason in reasons[f"line {number}"]
    assert store.client.scan(TableName=store.settings.counts_table)["Count"] == 0
    assert run.import_(path, "plays", "--skip-bad") == 0
    assert read_number(store, PLAYS, "a") == 1
    assert store.client.scan(TableName=store.settings.counts_table)["Count"] == 1


MANY_ROWS = b"".join(b"m%d,1\n" % number for number in range(20_000))


def named_lines(errors: str) -> list[int]:
    """Returns the line numbers that the command names, in the order of its output."""
    return [int(line.split(": ")[1].removeprefix("line ")) for line in errors.splitlines() if ": line " in line]


@pytest.mark.parametrize(
    ("content", "rows", "bad"),
    [
        (b'id,value\n"ab0,5\n' + MANY_ROWS, 20_000, [2]),
        (b"id,value\n" + MANY_ROWS + b'"z,5\n', 20_000, [20_002]),
        # Two stray quotes make one field of the lines 3 to 5. In the second file the row of this field even has two
        # columns, as a right row has. The command leaves out the lines with a quote, and imports the line between them.
        (b'id,value\na,1\n"b,2\nc,3\nd,4"\ne,5\n', 3, [3, 5]),
        (b'id,value\na,1\n"b,2\nc,3\nd",4\ne,5\n', 3, [3, 5]),
        (b'id,value\n"b,2\nc",4\ne,5\n', 1, [2, 3]),
        (b'id,value\n"a"b,1\n"c",2\nd"e,3\nf,"4"\n', 2, [2, 4]),
        (b'id,text,value\na,"two\nlines, and ""quotes""",1\nb,x,2\n', 2, []),
        # A quoted text may have line breaks. But if a line inside it reads as a row, a quote is probably missing.
        (b'id,value,text\na,1,"x\nb,2,y\nc,3,z\n', 2, [2]),
        (b'id,value,text\na,1,"x\nb,2,y\nc,3,z"\nd,4,w\n', 3, [2]),
        (b'id,value,text\na,1,"one, two\nb, not 2, y\nx"\nd,4,w\n', 2, []),
        (b"\xef\xbb\xbfid,value\r\na,1\r\nb,2\r\n", 2, []),
        (b"\n\nvalue,id\n1,a\n", 1, []),
        (b"id,value\na\0,1\nb,2\nc\xe9,3\n", 1, [2, 4]),
        (b"id,text,value\na,caf\xe9,1\n", 1, []),  # the column `text` is not imported, so its bytes do not matter
        (b"id,value\n", 0, []),
    ],
)
def test_a_wrong_row_does_not_make_the_command_leave_out_another_row(
    run: Command, tmp_path: Path, content: bytes, rows: int, bad: list[int]
) -> None:
    """`rows`: how many rows the command would import. `bad`: the numbers of the lines that it names and leaves out."""
    path = tmp_path / "numbers.csv"
    path.write_bytes(content)
    assert run("import", path, "--counter", "plays", "--skip-bad") == 0
    printed, errors = run.read_output()
    left_out = f", {files.format_rows(len(bad))} left out" if bad else ""
    assert re.match(rf"would import into plays: {files.format_rows(rows)}, \d+ in all{left_out}, as the run ", printed)
    assert named_lines(errors) == bad


def zip_archive(content: bytes) -> bytes:
    with zipfile.ZipFile(file := io.BytesIO(), "w") as archive:
        archive.writestr("numbers.csv", content)
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "message_end"),
    [
        ("id,value\na,1\n".encode("utf-16"), "UTF-16: save it as UTF-8"),
        ("id,value\na,1\n".encode("utf-16-le"), "UTF-16: save it as UTF-8"),
        ("id,value\na,1\n".encode("utf-16-be"), "UTF-16: save it as UTF-8"),
        (gzip.compress(b"id,value\na,1\n"), "compressed by gzip: `gunzip -c FILE | tally …`"),
        (bz2.compress(b"id,value\na,1\n"), "compressed by bzip2"),
        (lzma.compress(b"id,value\na,1\n"), "compressed by xz"),
        (zip_archive(b"id,value\na,1\n"), "a ZIP archive or an Excel workbook: unpack it, or save the sheet as CSV"),
    ],
    ids=["utf-16", "utf-16-le", "utf-16-be", "gzip", "bzip2", "xz", "zip"],
)
def test_the_error_of_a_file_that_is_not_text_names_its_format(
    run: Command, tmp_path: Path, content: bytes, message_end: str
) -> None:
    path = tmp_path / "numbers.csv"
    path.write_bytes(content)
    with pytest.raises(CommandError, match=re.escape(f"numbers.csv is not text, but {message_end}")):
        run("import", path, "--counter", "plays")


@pytest.mark.parametrize("name", ["numbers.csv", "numbers.jsonl"])
def test_the_error_of_a_row_that_is_not_utf8_says_how_to_save_the_file(run: Command, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    json_rows = '\n{"id": "a", "value": 1}\n{"id": "f\xe9e", "value": 1}\n'
    rows = "id,value\na,1\nf\xe9e,1\n" if name.endswith("csv") else json_rows
    path.write_bytes(rows.encode("latin-1"))
    assert run("import", path, "--counter", "plays") == 2
    message = "line 3: the line is not UTF-8, but perhaps Latin-1 or Windows-1252: save the file as UTF-8"
    assert message in run.read_output()[1]


@pytest.mark.parametrize(
    ("content", "rows", "bad"),
    [
        ('id,child,at\np,"ann\nb",2024-05-03\nq,bob,2024-05-03\n', 2, []),
        # With two stray quotes, the name `ann … bob` would hide the row q.
        ('id,child,at\np,"ann,2024-05-03\nq,bob",2024-05-03\nr,c,2024-05-03\n', 2, [2]),
        ('id,child,at\np,"ann,2024-05-03\nq,x,2024-05-03\nr,"c",2024-05-03\n', 2, [2]),
        ('id,child,at\n"p\n",ann,2024-05-03\nq,bob,2024-05-03\n', 1, [2, 3]),
        ('id,child,at\np,"a\nb\nc","2024-05-03\n"\nq,bob,2024-05-03\n', 1, [2, 3, 4, 5]),
    ],
)
def test_only_the_name_of_a_child_may_hold_line_breaks(
    run: Command, tmp_path: Path, content: str, rows: int, bad: Sequence[int]
) -> None:
    path = tmp_path / "members.csv"
    path.write_text(content)
    assert run("import", path, "--children", "hearts", "--skip-bad") == 0
    printed, errors = run.read_output()
    assert printed.startswith(f"would import into hearts: {files.format_rows(rows)}")
    assert named_lines(errors) == bad


@pytest.mark.parametrize(
    ("counter", "content", "message"),
    [
        ("plays", "video,count\na,1\n", "the columns id, value, once each, with commas between. It is 'video,count'"),
        ("plays", "a,1\n", "the columns id, value, once each, with commas between. It is 'a,1'"),
        ("plays", "id;value\na;1\n", "with commas between. It is 'id;value'"),
        ("plays", "id,value,id\na,1,b\n", "once each, with commas between. It is 'id,value,id'"),
        ("plays", "id,day,value,day\na,1,1,1\n", "once each, with commas between. It is 'id,day,value,day'"),
        ("plays", 'id,value,"x\na,1,2\n', "It is 'id,value,\"x'"),
        ("plays", "", "the columns id, value, once each, with commas between. It is ''"),
        ("plays", "i" * 200_000 + ",1\n", "It is 'iiiiiiii"),
        ("likes", "id,child,at\np,a,1\n", "the columns post, user, liked_at, once each"),
        ("members", "post,user,liked_at\np,a,1\n", "the columns id, child, at, once each"),
    ],
)
def test_a_file_without_the_names_of_the_columns_gets_one_error_and_nothing_is_imported(
    store: Store, run: Command, tmp_path: Path, counter: str, content: str, message: str
) -> None:
    path = tmp_path / "numbers.csv"
    path.write_text(content)
    for options in ((), WRITE_OPTIONS, (*WRITE_OPTIONS, "--skip-bad")):
        with pytest.raises(CommandError, match=re.escape(message)) as error:
            run("import", path, "--counter" if counter == "plays" else "--children", counter, *options)
        assert len(str(error.value)) < 200
    assert store.client.scan(TableName=store.settings.counts_table)["Count"] == 0


def test_a_dry_run_writes_nothing_and_names_earlier_runs(store: Store, run: Command) -> None:
    path = run.file(NUMBERS_HEADER, "a,1", "b,2")
    assert run("import", path, "--counter", "plays") == 0
    assert run.read_output()[0].startswith("would import into plays: 2 rows, 3 in all, as the run ")
    assert all(store.client.scan(TableName=table)["Count"] == 0 for table in (
        store.settings.counts_table, store.settings.receipts_table, store.settings.ledger_table,
    ))  # fmt: skip
    assert run.import_(path, "plays", "--run", "first") == 0
    run.read_output()
    assert run("import", run.file(NUMBERS_HEADER, "a,1"), "--counter", "plays") == 0
    assert "the run first imported 2 rows, by " in run.read_output()[1]


def test_an_import_keeps_limits_and_sets_a_number_with_a_start_once(store: Store, run: Command) -> None:
    """A row of `contest`, which has a start, sets the number. A second row of the same id is refused."""
    assert run.import_(run.file(NUMBERS_HEADER, "mug,5", "cup,-1", "mug,-3", "mug,-9"), "stock") == 1
    out, err = run.read_output()
    assert "line 3: 0 left.\n" in err
    assert "line 5: 2 left." in err
    assert "imported 2 rows, 2 refused" in out
    assert run("history", "--imports") == 0
    assert "imported 2 rows, 2 refused, by " in run.read_output()[0]
    assert (read_number(store, STOCK, "mug"), read_number(store, STOCK, "cup")) == (2, 0)
    path = run.file(NUMBERS_HEADER, "x,97", "y,0", "x,90")
    assert run.import_(path, "contest") == 1
    assert "line 4: The counter is at version 1 now." in run.read_output()[1]
    assert (read_number(store, counters.CONTEST, "x"), read_number(store, counters.CONTEST, "y")) == (97, 0)


def test_an_import_with_the_wrong_option_or_into_a_retired_counter_is_refused(run: Command) -> None:
    path = run.file(NUMBERS_HEADER, "x,97")
    with pytest.raises(CommandError, match="counts children: import the children with --children likes"):
        run("import", path, "--counter", "likes")
    with pytest.raises(CommandError, match="plays counts no children"):
        run("import", path, "--children", "plays")
    for counter in (counters.MEMBERS, USAGE):
        retired = replace(counter, retired=True)
        refusal = importer.refusal_of_import(retired, children=counter.counts_children)
        assert "is retired: it takes no more changes" in refusal


def test_the_command_warns_of_rows_of_periods_that_are_not_kept(run: Command) -> None:
    """Such rows are not an error, because an export has the rows of a period until DynamoDB removes its items."""
    today = periods.tally_id(counters.CALLS, "b", time.time())
    assert run.import_(run.file(NUMBERS_HEADER, "a#2020-01-01,5", f"{today},6"), "calls") == 0
    out, err = run.read_output()
    assert "1 row of periods that calls does not keep: nobody can read them\n" in err
    assert "imported 2 rows" in out


@pytest.mark.parametrize(("start", "may_override"), [(0, False), (0, True), (60, False), (60, True)])
def test_an_import_may_go_beyond_the_limit_by_the_debt_of_the_counter_and_not_by_more(
    store: Store, start: int, may_override: bool
) -> None:
    """If a counter has a start, a row sets the number to its value. Without a start, a row adds its value to 0."""
    stock = replace(STOCK, start=start, debt=50, limit_overrides=may_override)
    rows = [importer.NumberRow(line, id_, number) for line, id_, number in ((2, "a", -50), (3, "b", -51))]
    refused_rows = [
        importer.import_numbers(Call(store), stock, "run", chunk) for chunk in importer.number_chunks(stock, rows)
    ]
    assert [[row.line for row in rows_of_chunk] for rows_of_chunk in refused_rows] == [[], [3]]
    assert [read_number(store, stock, id_) for id_ in "ab"] == [-50, start]
    tally = Tally(stock, "b")
    change = Batch(1, {tally: -start - 1}, first_entry={tally: 0})  # the tally would fall from `start` to -1
    with pytest.raises(LimitReachedError):  # the batch of a caller may not use the debt
        batch.count(Call(store), change, operation="change", key="key-1", soon=False)


BUDGET = Counter(
    "budget", prefix="BUD", sort_key="LEFT", attribute="left", start=9, floor=0, period="day", keep_periods=35
)


@pytest.mark.parametrize("counter", [replace(PLAYS, receipt_days=2), counters.CONTEST, BUDGET, counters.MEMBERS])
def test_the_receipts_of_an_import_are_kept_for_longer_than_the_import_may_take(store: Store, counter: Counter) -> None:
    """`receipt_days` of the counter does not matter. A number that is set in a period expires with the period."""
    id_ = periods.tally_id(counter, "x", time.time())
    if counter.counts_children:
        importer.import_children(Call(store), counter, "run", importer.Chunk(0, [importer.ChildRow(1, "x", "ann", 5)]))
    else:
        importer.import_numbers(Call(store), counter, "run", importer.Chunk(0, [importer.NumberRow(1, id_, 5)]))
    [receipt] = store.client.scan(TableName=store.settings.receipts_table)["Items"]
    assert int(receipt["expiration"]["N"]) > time.time() + importer.RESTART_S_MAX
    if counter is BUDGET:
        [item] = store.client.scan(TableName=store.settings.counts_table)["Items"]
        assert (item["left"], int(item["expiration"]["N"])) == ({"N": "5"}, periods.expires_s(counter, id_))


def test_an_export_that_is_imported_into_empty_tables_gives_the_same_numbers(
    store: Store, run: Command, tmp_path: Path, engine: Engine
) -> None:
    call, big = Call(store), 3 * 10**16  # a float would not hold `big + 7` exactly
    for shard, amount in ((0, big), (3, 7)):
        store.client.update_item(**tallies.add_write(call, PLAYS, "v", shard, amount, 0))
    page = 'https://example.com/a,b?c="d"'
    for counter, id_, amount in ((PLAYS, "w", 0), (USAGE, "u", -5), (STOCK, "mug", 4), (counters.VISITS, page, 9),
                                 (counters.BOT_VISITS, page, 2), (counters.TICKET, "q", 12)):  # fmt: skip
        store.client.update_item(**tallies.add_write(call, counter, id_, 0, amount, 0))
    increments.count(call, Increment(counters.CONTEST, "c", -1, "increment", "k", {}))
    for post, users in (("p", ["a", "auth0|7"]), ("empty", [])):
        posts.write_post(Call(store, "author"), LIKES, post, "hello")
        for user in users:
            children.set_child(Call(store), LIKES, post, user.replace("|", "%7C"), True)  # takes the encoded name
    browser = anonymous.child_name(counters.HEARTS, "home", "s" * 22)
    stored_children = [(counters.MEMBERS, "auth0%7C7"), (counters.MEMBERS, fields.user(browser, "child")),
             (counters.HEARTS, "ann"), (counters.HEARTS, browser),
             *((counters.HEARTS, fields.user(name, "child")) for name in ODD_USERS)]  # fmt: skip
    for counter, name in stored_children:
        children.set_child(Call(store, "shop"), counter, "home", name, True, {}, None)
    run_on_copy = replace(run, store=Store(store.client, fresh_tables(engine.endpoint, ("counts", "receipts"))))
    for post in ("p", "empty"):
        posts.write_post(Call(run_on_copy.store, "author"), LIKES, post, "hello")
    for name, format_ in itertools.product(counters.COUNTERS, ("csv", "jsonl")):
        path = tmp_path / f"{name}.{format_}"
        options = ["--children"] if counters.COUNTERS[name].child else []
        assert run("export", name, path, *options) == 0
        import_options = ["--children", name] if options else ["--counter", name]
        if format_ == "csv":
            assert run_on_copy("import", path, *import_options, *WRITE_OPTIONS) == 0
        second_export = tmp_path / f"{name}-again.{format_}"
        if counters.COUNTERS[name] in (counters.VISITS, counters.BOT_VISITS):
            continue  # imported visits spill, and here no rollup adds them
        assert run_on_copy("export", name, second_export, *options) == 0
        assert sorted(second_export.read_text().splitlines()) == sorted(path.read_text().splitlines())
    assert all(children.has_child(Call(run_on_copy.store), counter, "home", name) for counter, name in stored_children)
    assert (tmp_path / "plays.csv").read_text() == f"id,value\nv,{big + 7}\nw,0\n"
    assert json.loads((tmp_path / "visits.jsonl").read_text()) == {"id": page, "value": 9}
    run.read_output()
    assert run("export", "stock") == 0
    assert run.read_output()[0] == "id,value\nmug,4\n"
    assert posts.delete_post(Call(store, "author"), LIKES, "p")
    for options in ([], ["--children"]):
        assert run("export", "likes", *options) == 0
        assert "\np," not in run.read_output()[0], "a deleted post has no number and no likes"


def test_the_id_of_a_row_may_have_a_period(run: Command) -> None:
    today, tomorrow = (str(datetime.now(UTC).date() + timedelta(days=days)) for days in (0, 1))
    path = run.file(NUMBERS_HEADER, f"a#{today},5", f"a#{tomorrow},7", "b,1", "b#2026-11,1", "b##,1")
    assert run.import_(path, "calls", "--skip-bad") == 0
    assert [line.split(": ")[1] for line in run.read_output()[1].splitlines()[:3]] == ["line 4", "line 5", "line 6"]
    assert run("export", "calls") == 0
    head, *rows = run.read_output()[0].splitlines()
    assert (head, sorted(rows)) == ("id,value", [f"a#{today},5", f"a#{tomorrow},7"])
    assert run("get", "calls", f"a#{today}") == 0
    line = f"calls a#{today}: 5, 995 left to its limit of 1000, until {tomorrow}T00:00:00+00:00\n"
    assert run.read_output()[0] == line


def test_ids_of_any_text_are_imported_and_their_export_can_be_imported(
    store: Store, run: Command, tmp_path: Path, engine: Engine
) -> None:
    rows = ["/posts/x/,5", "привет,7", "%D0%BF,1", "п,2", '"a, b",3', "a#b,4", "~2Fc~2F,6"]
    assert run.import_(run.file(NUMBERS_HEADER, *rows), "usage", "--skip-bad") == 0
    assert "write # as ~23" in run.read_output()[1]
    path, second_export = tmp_path / "usage.csv", tmp_path / "again.csv"
    assert run("export", "usage", path) == 0
    numbers = dict(line.split(",") for line in path.read_text().splitlines()[1:])  # `%D0%BF` is `п`: 1 + 2
    word = quote("привет").replace("%", "~")
    assert numbers == {"~2Fposts~2Fx~2F": "5", word: "7", "~D0~BF": "3", "a~2C~20b": "3", "~2Fc~2F": "6"}
    run_on_copy = replace(run, store=Store(store.client, fresh_tables(engine.endpoint, ("counts", "receipts"))))
    assert run_on_copy("import", path, "--counter", "usage", *WRITE_OPTIONS) == 0
    assert run_on_copy("export", "usage", second_export) == 0
    assert sorted(second_export.read_text().splitlines()) == sorted(path.read_text().splitlines())
