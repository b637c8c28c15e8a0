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
from tally.counting import increments, tallies
from tally.counting.increments import Increment
from tally.drift import history
from tally.dynamo import items, keys
from tally.dynamo.client import CLIENT_CONFIG, Call, Store
from tally.dynamo.transactions import apply_once, put
from tally.series import hours, progress
from tally.streams import fold, segments
from tests.commands import one_line
from tests.conftest import create_tables, new_engine
from tests.integration.command.numbers import SIGNED, Run, drifts, edit, judged, post
from tests.patience import PATIENCE_S

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def _judged(store: Store) -> None:
    judged(store)


def test_a_time_is_told_without_the_day_only_if_that_is_today() -> None:
    assert clock(1_800_000_000, 1_800_000_090) == "08:00 UTC"
    assert clock(1_800_000_000, 1_800_086_400) == "2027-01-15 08:00 UTC"


def test_port_without_local_does_not_go_to_aws(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["check", "--port", "8080"])
    assert (stopped.value.code, capsys.readouterr().err) == (2, "tally: --port goes with --local; --help says more\n")


def test_make_dev_has_no_backups(run: Run) -> None:
    said = "tally: `make dev` has no backups to restore: name a stack in AWS with --stack\n"
    assert run("restore", "--to", "2026-11-22T10:30:00Z", *SIGNED) == (2, "", said)


def test_get_shows_shards(run: Run, store: Store) -> None:
    for shard in (0, 3):
        store.client.update_item(**tallies.add(Call(store), counters.PLAYS, "v", shard, 2, 0))
    assert run("get", "plays", "v")[1] == "plays v: 4 in 2 parts\n"
    page = "https://example.com/a"
    body = {"counted": True}
    increments.count(Call(store), Increment(counters.USAGE, "u", 1, "increment", "k" * 22, body))
    assert run("get", "visits", "HTTPS://example.com:443/a")[1] == f"visits {page}: 0, nothing is stored\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["check", "likes", "a#b"], "argument ID"),
        (["check", "visits", "a"], "argument ID: ID must be an absolute http or https URL"),
        (["check", "plays"], "check takes COUNTER and one ID or more, or neither"),
        (["check", "nope", "x"], "there is no counter 'nope'"),
        (["check", "plays", "a", "--only", "dead-letters"], "dead letters have no COUNTER and ID"),
        (["check", "--only", "nonsense"], "argument --only: invalid choice"),
        (["repair"], "required: --by, --why"),
        (["repair", "--by", " ", "--why", "x"], "argument --by"),
        (["repair", "--by", "a\nb", "--why", "x"], "argument --by"),
        (["import", "f", "--counter", "plays", "--yes"], "--yes needs --by NAME and --why TEXT"),
        (["import", "f", "--counter", "plays", "--by", "ann", "--why", "x"], "--by and --why go with --yes"),
        (["forget", "--user", "u", "--yes", "--by", "ann"], "--yes needs --by NAME and --why TEXT"),
        (["forget", "--user", "u", "--yes", "--by", "u", "--why", "x"], "must not name the user"),
        (["get", "nope", "x"], "there is no counter 'nope'"),
        (["get", "plays"], "required: ID"),
        (["series"], "required: COUNTER"),
        (["series", "plays", "a", "--by", "month"], "argument --by: invalid choice: 'month'"),
        (["series", "plays", "a", "--from", "yesterday"], "argument --from: 'yesterday' is not a time like"),
        (["series", "plays", "a", "--from", "1600-01-01"], "is not between 1970 and 5000"),
        (["series", "plays", "a", "--from", "2020-01-01", "--to", "2019-01-01"], "from must be before to"),
        (["series", "plays", "a", "--from", "2020-01-01", "--to", "2022-01-01"], "ask for 2400 at most"),
        (["series", "plays", "a", "--tz", "Mars/Phobos"], "'Mars/Phobos' is no time zone that is known here"),
        (["series", "plays", "a", "--by", "day", "--tz", "Asia/Kolkata"], "whose days begin with an hour of UTC"),
        (["series", "plays", "a", "--json", "--csv"], "not allowed with argument --json"),
        (["top", "plays", "--span", "today"], "argument --span"),
        (["top", "plays", "--by", "hour", "--span", "2026-11"], "argument --span"),
        (["top", "plays", "--limit", "0"], "'0' is not a whole number from 1 to"),
        (["watch", "plays", ".."], "argument ID"),
        (["watch", "plays", "a", "--interval", "0"], "'0' is not a whole number from 1 to 3600"),
        (["check", "--local", "--port", "0"], "'0' is not a port"),
        (["check", "--local", "--port", "²"], "is not a port"),
        (["check", "--local", "--stack", "x"], "not allowed with argument"),
        (["--port", "9", "--local", "check"], "nothing answers on port 9"),
        (["--port", "9", "check"], "--port goes with --local"),
        (["--local", "check", "--stack", "x"], "--stack: not allowed with argument --local"),
        (["--local", "--only", "drift", "check"], "--only goes after the command"),
        (["--json", "check"], "--json goes after the command"),
        (["get", "visits", "not/url"], "ID must be an absolute http or https URL"),
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
def folded(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Series since 06:55: plays of a in the hours 6 to 8, the last of them up to 08:20, of b once; a repair."""
    monkeypatch.setattr(fold, "BUCKETS", 1)  # the others would be empty
    table, since = store.settings.ledger_table, HOUR * 60 - 65
    at = progress.Progress(since=since, through=since - 1, hour=HOUR - 2)
    apply_once(store, [items.update(table, progress.PROGRESS, at.values, was=items.NO_ITEM)])
    plays = [(since, "a", -300), (since + 30, "a", 1200), (since + 30, "b", 30), (HOUR * 60, "a", 40)]
    for number, (minute, id_, amount) in enumerate(plays):
        entries = [segments.Booked("plays", id_, "", amount, amount)]
        put(Call(store), segments.write(store.settings, minute, 0, f"s#{number}", entries, int(time.time())))
    hours.sum_up(store, HOUR * 60 + 20, until_s=float("inf"))
    repaired = {"before": 900, "amount": -5}
    apply_once(
        store, [history.entry(store, "plays", "a", HOUR * 3600 - 600, repaired, by="ann", why="x", how="ledger")]
    )


RANGE = ("--from", "2027-01-15T05:00Z", "--to", "2027-01-15T12:00Z", "--tz", "Europe/Berlin")


@pytest.mark.usefixtures("folded")
def test_a_series_is_csv_in_a_pipe_and_drawn_at_a_terminal_with_repairs_and_what_is_known_in_part(
    run: Run, request: pytest.FixtureRequest
) -> None:
    code, out, err = run("series", "plays", "a", *RANGE)
    assert (code, out.splitlines()) == (0, [
        "from,value,kind", "2027-01-15T07:00:00+01:00,-300,part", "2027-01-15T08:00:00+01:00,1200,whole",
        "2027-01-15T09:00:00+01:00,40,part", "2027-01-15T08:50:00+01:00,-5,repair",
    ])  # fmt: skip
    said = [
        "940 in 3 hours; the most in one: 1,200", "series begin at 2027-01-15 07:55",
        "complete up to 2027-01-15 09:20 (UTC+01:00)",
    ]  # fmt: skip
    assert err.splitlines() == [f"tally: {line}" for line in said]
    assert run("series", "plays", "a", *RANGE, "--csv")[1] == out
    body = json.loads(run("series", "plays", "a", *RANGE, "--json")[1])
    assert (body["as_of"], body["series"][-1]) == (HOUR * 3600 + 1200, {"from": HOUR * 3600, "value": 40})
    assert run("series", "plays", "a", "--from", "2027-02-01", "--to", "2027-02-02")[1:] == (
        "from,value,kind\n",
        "tally: nothing is known of that time\ntally: series begin at 2027-01-15 06:55\n"
        "tally: complete up to 2027-01-15 08:20 (UTC)\n",
    )  # fmt: skip
    request.getfixturevalue("drawing")
    code, out, err = run("series", "plays", "a", *RANGE)
    assert (code, [line.rstrip() for line in out.splitlines()], err) == (0, [
        "plays a by hour, Europe/Berlin", "Fri 2027-01-15",
        "07:00  -300 since 07:55 █████▏",
        "08:00 1,200                  █████████████████████",
        "09:00    40 so far           █",
        "repair of -5 at 2027-01-15 08:50, by ledger: no traffic, so in no bar", *said,
    ], "")  # fmt: skip
    assert max(map(len, out.splitlines()[:5])) == 50
    assert run("series", "plays", *RANGE)[1].startswith("all plays by hour, Europe/Berlin\n")
    days = run("series", "plays", "a", *RANGE, "--by", "day")[1].splitlines()
    assert days[1].rstrip() == "Fri 2027-01-15 940 so far " + "█" * 24


@pytest.fixture
def drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands draw as at a terminal of 50 columns, without colours."""
    monkeypatch.setenv("COLUMNS", "50")
    for module in (series, watch):
        monkeypatch.setattr(module, "draws", lambda given: True)


def test_an_hour_that_the_clocks_repeat_has_its_offset(capsys: pytest.CaptureFixture[str]) -> None:
    midnight = int(datetime(2026, 10, 25, tzinfo=UTC).timestamp())
    points = [Point(midnight + 3600 * hour, 1) for hour in range(2)]
    charts.series("x", points, ZoneInfo("Europe/Berlin"), by_hour=True)
    assert [line.split(" 1 ")[0] for line in capsys.readouterr().out.splitlines()[2:]] == ["02:00 +0200", "02:00 +0100"]


@pytest.mark.usefixtures("folded")
def test_a_top_list_says_how_exact_it_is(run: Run, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    span = ("--span", "2027-01-15T07")
    exact = "tally: each value is exact\ntally: complete up to 2027-01-15 08:20 (UTC)\n"
    assert run("top", "plays", *span) == (0, "id,value\na,1200\nb,30\n", exact)
    assert run("top", "plays", *span, "--limit", "1")[1] == "id,value\na,1200\n"
    assert json.loads(run("top", "plays", *span, "--json")[1])["by"] == "hour"
    assert run("top", "stock", "--span", "2027-01")[2].startswith(
        "tally: nothing moved up: stock, 2027-01 UTC so far\n"
    )


def test_series_that_nobody_has_folded_are_unknown_and_2(run: Run) -> None:
    said = "tally: nothing is summed up yet: a new stack needs some minutes\n"
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


def test_without_credentials_it_says_so() -> None:
    with command("check", AWS_DEFAULT_REGION="eu-west-1") as process:
        out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("tally: there are no AWS credentials")


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


TABLES = dict.fromkeys(("CountsTableName", "ReceiptsTableName", "LedgerTableName"), "no-such-table")


@pytest.mark.parametrize(
    ("outputs", "said"),
    [
        ({"ApiUrl": "x"}, "the stack Tally-dev has no output 'CountsTableName': is it Tally's?"),
        (
            TABLES | {"Format": "7"},
            f"the stack Tally-dev is in format 7, and this is format {keys.FORMAT}: use the version it runs",
        ),
        (TABLES | {"Format": str(keys.FORMAT)}, ""),
    ],
    ids=["of another app", "of another format", "whose tables are not there"],
)
def test_another_stack_is_one_line(
    outputs: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch, engine: Engine,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", engine.endpoint)
    deployed(monkeypatch, outputs)
    assert said in one_line(main, ["check"], capsys)


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


TRIED = [("check", kind) for kind in NONSENSE] + [(name, "HTML") for name in EVERY]


@pytest.mark.parametrize(("name", "kind"), TRIED)
def test_an_endpoint_that_answers_nonsense_is_one_line_and_2(
    name: str, kind: str, nonsense: Callable[[str], int], monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """What answers in place of `make dev`, and in place of DynamoDB. One that hangs is given up at once."""
    assert EVERY.keys() == {command.name for command in commands.COMMANDS.values() if command.stack}
    at_once_s = 0.1 if kind == "hangs" else PATIENCE_S
    impatient = CLIENT_CONFIG.merge(Config(read_timeout=at_once_s, retries={"total_max_attempts": 1}))
    monkeypatch.setattr(connection, "CLIENT_CONFIG", impatient)
    port = nonsense(NONSENSE[kind])
    tables = {"dynamodb": f"http://127.0.0.1:{port}", "s3": f"http://127.0.0.1:{port}", "counts": "c" * 9}
    tables |= {"receipts": "r" * 9, "ledger": "l" * 9, "bucket": "b"}
    dev = nonsense(http(json.dumps({**tables, "minute_s": 60, "outputs": {}})))
    for at, wait_s in ((port, at_once_s), (dev, PATIENCE_S)):
        monkeypatch.setattr(connection, "LOCAL_TIMEOUT_S", wait_s)
        code = main([name, *EVERY[name], "--local", "--port", str(at)])
        printed = capsys.readouterr()
        assert (code, printed.err.count("\n")) == (2, 1), printed
        assert printed.err.startswith("tally: ")
        assert (name == "status" and at == dev) or not printed.out  # it looks at everything else


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
