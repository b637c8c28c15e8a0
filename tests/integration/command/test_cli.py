"""Runs the command `tally` as people and scripts do: on tables of the engine, on a fake stack, and without a stack."""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import signal
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

import counters
from tally.cli import commands, connection, count, files, receipt, series, service, watch
from tally.cli.__main__ import main
from tally.counting import increments, tallies
from tally.counting.increments import Increment
from tally.dev.base.engine import Engine
from tally.drift import history
from tally.dynamo import keys
from tally.dynamo.client import CLIENT_CONFIG, Call, Store
from tally.dynamo.transactions import try_commit
from tally.notify import Notify
from tally.operations.receipts import KEYED_OPERATIONS
from tally.streams import fold
from tally.streams.events import SENT, UNSENT, Event
from tests.commands import error_of, run_command
from tests.conftest import create_tables, new_engine
from tests.environments import ROOT
from tests.integration.command.numbers import SIGNED, Run, edit, mark_judged, post, put_series
from tests.integration.conftest import Invoke
from tests.patience import PATIENCE_S


@pytest.fixture(autouse=True)
def _ledger_is_judged(store: Store) -> None:
    """Without a judged minute, `check` cannot say that all is well, and `repair` waits."""
    mark_judged(store)


def test_make_dev_has_no_backups(run: Run) -> None:
    message = "tally: `make dev` has no backups to restore: name a stack in AWS with --stack\n"
    assert run("restore", "--to", "2026-11-22T10:30:00Z", *SIGNED) == (2, "", message)


def test_an_id_or_a_key_may_begin_with_a_dash(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """One of 64 ids of YouTube begins with a dash, and so may any base64url text. `-h` is always the option."""
    for id_ in ("-X9P8VE94Po", "-hX9", "-5", "-", "-a=b"):
        if id_ != "-a=b":  # an id cannot have "="
            assert run("get", "plays", id_) == (0, f"plays {id_}: 0, nothing is stored\n", "")
        assert run("receipt", "usage", "v", id_)[:2] == (1, f"unknown  {receipt.NO_RECEIPT}\n")
        assert run("receipt", "usage", "v", "k", "--caller", id_)[:2] == (1, f"unknown  {receipt.NO_RECEIPT}\n")
    assert run_command(capsys, "get", "plays", "--local", "-h")[1].startswith("usage: tally get")
    for arguments, message in (
        (["--X9"], "ID; write an id that begins with -- at the end, behind a separate --; --help says more"),
        ([], "are required: ID; --help says more"), (["v", "-json"], "unrecognized arguments: -json; --help says more"),
    ):  # fmt: skip
        assert error_of(main, ["get", "plays", "--local", *arguments], capsys).endswith(message)


def test_get_shows_the_shards_the_canonical_url_and_what_is_left_to_a_limit(run: Run, store: Store) -> None:
    for shard in (0, 3):
        store.client.update_item(**tallies.add_write(Call(store), counters.PLAYS, "v", shard, 2, 0))
    assert run("get", "plays", "v")[1] == "plays v: 4 in 2 shards\n"
    page = "https://example.com/a"
    assert run("get", "visits", "HTTPS://example.com:443/a")[1] == f"visits {page}: 0, nothing is stored\n"
    increments.count(Call(store), Increment(counters.STOCK, "mug", 3, "increment", "s" * 22, {"counted": True}))
    assert run("get", "stock", "mug")[1] == "stock mug: 3, 3 left to its limit of 0\n"


def test_a_make_dev_of_another_checkout_is_reported(
    run: Run, dev_stack: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TALLY_APP", str(ROOT))
    dev_stack["app"] = str(ROOT)
    assert run("get", "plays", "v")[2] == ""
    dev_stack["app"] = "/home/ann/tally"
    assert run("get", "plays", "v")[2].endswith("is the `make dev` of /home/ann/tally\n")


def test_tally_count_calls_the_functions_of_the_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    make_client = Mock()
    monkeypatch.setattr(service, "Tally", make_client)
    outputs = {"IncrementsFunctionArn": "arn:i", "VisitsFunctionArn": "arn:v"}
    stack = connection.Stack(None, None, counters.COUNTERS, outputs)  # type: ignore[arg-type]
    arguments: Any = SimpleNamespace(local=False)
    for has_caller, caller in ((False, None), (True, "tally")):
        service.make_client(arguments, stack, *count.FUNCTIONS, has_caller=has_caller)
        make_client.assert_called_with({"increments": "arn:i", "visits": "arn:v"}, caller=caller)


def test_local_uses_the_port_of_make_dev(
    port: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PORT", str(port))
    assert run_command(capsys, "get", "plays", "v", "--local") == (0, "plays v: 0, nothing is stored\n", "")


def test_thresholds_do_not_change_how_likes_and_visits_are_imported_and_counted() -> None:
    """The command knows these two counters by their names, not by their whole declarations."""
    likes, visits = (replace(counter, notify=Notify(every=100)) for counter in (counters.LIKES, counters.VISITS))
    assert files.CHILDREN.columns(likes) == files.CHILDREN.columns(counters.LIKES)
    tally = Mock(**{"visit.return_value": {}})
    arguments = argparse.Namespace(counter=visits, id="https://example.com/", amount=None)
    count._send(tally, arguments, "k")
    tally.visit.assert_called_once()


def test_requests_to_this_machine_do_not_use_a_proxy(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "")  # the command sets this variable, and monkeypatch restores it
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert run("get", "plays", "9f3a") == (0, "plays 9f3a: 0, nothing is stored\n", "")


def test_a_closed_stdin_or_stdout_is_empty(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("stdin", "stdout"):
        monkeypatch.setattr(sys, name, None)
    assert run("export", "plays") == (0, "", "tally: exported 0 rows\n")
    assert "the first line must name the columns" in run("import", "-", "--counter", "usage")[2]
    for stream in (sys.stdin, sys.stdout):  # the command has replaced None with /dev/null
        stream.close()


@pytest.mark.parametrize(
    ("child", "is_csv_readable"),
    [("a\nb", True), ("a\r\n,b\n", True), ("a\nacme,carol,2024-05-03\nb", False), ("a\nacme,carol,2024-05-03", True)],
)
def test_export_refuses_to_write_csv_that_import_would_refuse(
    run: Run, invoke: Invoke, tmp_path: Path, child: str, is_csv_readable: bool
) -> None:
    """CSV quotes a name that has line breaks. If a line of the name reads as a whole row, `import` cannot tell whether
    the closing quote is missing. The last line of a name never reads so, because the quote and the time follow."""
    put = {"operation": "put_child", "counter": "members", "id": "acme", "caller": "ann"}
    assert invoke({**put, "name": child})["status"] in (200, 201)
    csv_file, jsonl_file = tmp_path / "members.csv", tmp_path / "members.jsonl"
    code, _, err = run("export", "members", str(csv_file), "--children")
    refused = "Export with --format jsonl" in err
    assert (code, csv_file.exists(), refused) == ((0, True, False) if is_csv_readable else (2, False, True))
    assert run("export", "members", str(jsonl_file), "--children")[0] == 0
    for path in [csv_file] * is_csv_readable + [jsonl_file]:
        options = ("--children", "members", "--yes", "--by", "ann", "--why", "test")
        message = run("import", str(path), *options)[1]
        # The second file has the rows of the first file, so it is the same run, which has ended.
        assert "imported 0 rows, 1 existed" in message or "ended before: 1 row, 0 refused" in message


def test_receipt_finds_the_changes_of_any_caller(run: Run, invoke: Invoke) -> None:
    """Without --caller, `unknown` may also mean that somebody else made the change."""
    order = {"caller": "auth0|7c20", "idempotency_key": "order-1"}
    invoke({"operation": "increment", "counter": "usage", "id": "u", "amount": 2, **order})
    code, out, _ = run("receipt", "usage", "u", "order-1", "--caller", "auth0|7c20")
    assert (code, out) == (0, "counted  increment usage/u, once; the answer was "
                           '{"counter": "usage", "id": "u", "counted": true, "visible": "now"}\n')  # fmt: skip
    invoke({"operation": "void", "counter": "usage", "id": "u", "key": "order-1", "caller": "auth0|7c20"})
    assert run("receipt", "usage", "u", "order-1", "--caller", "auth0|7c20")[1].startswith(
        "counted  increment usage/u, once, and voided later; the answer was"
    )
    for arguments in (["order-1"], ["order-1", "--caller", "ann"], ["order-2", "--caller", "auth0|7c20"]):
        assert run("receipt", "usage", "u", *arguments) == (1, f"unknown  {receipt.NO_RECEIPT}\n", "")


def test_receipt_knows_every_operation_that_takes_a_key(run: Run, invoke: Invoke, store: Store) -> None:
    names = {*receipt.CHILD_OPERATIONS, *receipt.PAGE_OPERATIONS, *receipt.NUMBER_OPERATIONS, receipt.BATCH_OPERATION}
    assert names == set(KEYED_OPERATIONS)
    page, calls_of_a_day = "https://example.com/a", "calls 7c20#2026-11-22"  # any day: a receipt has no period
    ann, key = {"caller": "ann"}, "k" * 22
    invoke({"operation": "visit", "url": page, "idempotency_key": key, "user_agent": "Mozilla/5.0"})
    invoke({"operation": "put_child", "counter": "members", "id": "acme", "name": "bob", "idempotency_key": key, **ann})
    invoke({"operation": "increment", "counter": "calls", "id": "7c20", "amount": 1, "idempotency_key": key, **ann})
    changes = [{"counter": "usage", "id": "u", "amount": 1}]
    invoke({"operation": "change", "changes": changes, "idempotency_key": "many", **ann})
    for line, operation in {
        f"visits {page}#top {key}": "visit", f"members acme {key} --caller ann": "put_child",
        f"{calls_of_a_day} {key} --caller ann": "increment", "usage u many --caller ann": "change",
    }.items():  # fmt: skip
        code, out, err = run("receipt", *line.split(), "--json")
        assert (code, json.loads(out)["operation"]) == (0, operation), (out, err)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["check", "likes", "a#b"], "argument ID"),
        (["check", "plays"], "check: give COUNTER and at least one ID, or neither"),
        (["check", "nope", "x"], "there is no counter 'nope'"),
        (["check", "--only", "nonsense"], "argument --only: invalid choice"),
        (["restore", "--to", "10:30", *SIGNED, "--stack", "x"], "'10:30' is not a time with a time zone"),
        (["repair"], "required: --by, --why"),
        (["repair", "--by", "a\nb", "--why", "x"], "argument --by"),
        (["import", "f", "--counter", "plays", "--yes"], "--yes needs --by NAME and --why TEXT"),
        (["import", "f", "--counter", "plays", "--id-column", "x"], "x: a file names its columns id and value"),
        (["export", "plays", "--changes-since", "2026-01-01"], "2026-01-01: an export always has every row"),
        (
            ["export", "plays", "p.parquet"],
            "export does not write Parquet: export to .csv or .jsonl, and convert the file",
        ),
        (["forget", "--user", "u", "--yes", "--by", "ann"], "--yes needs --by NAME and --why TEXT"),
        (["forget", "--user", "u", "--yes", "--by", "u", "--why", "x"], "must not name the user"),
        (["get", "plays"], "required: ID"),
        (["receipt", "readers", "a", "k"], "readers counts visitors, not keys"),
        (["count", "plays", "a", "--visitor", "ann"], "plays does not count visitors"),
        (["count", "readers", "a"], "readers counts visitors: add --visitor NAME"),
        (["count", "readers", "a", "--visitor", "ann", "--amount", "2"], "excludes --amount, --key and --used"),
        (["count", "readers", "a", "--visitor", "ann", "--used"], "excludes --amount, --key and --used"),
        (["count", "stock", "a", "--amount", "-1", "--used"], "stock has no debt, so no change may pass its limit"),
        (["count", "readers", "a", "--visitor", "ann", "--key", "k"], "excludes --amount, --key and --used"),
        (["receipt", "plays", "a", "k,k"], "KEY must be visible ASCII characters without commas"),
        (["receipt", "plays", "a", "k", "--caller", ""], "--caller must not be empty"),
        (["count", "plays", "a", "--key", ""], "argument --key: KEY must not be empty"),
        (["limit", "calls", "a", "5", "--key", ""], "argument --key: KEY must not be empty"),
        (["series", "plays", "a", "--from", "yesterday"], "argument --from: 'yesterday' is not a time like"),
        (["series", "plays", "a", "--from", "2020-01-01", "--to", "2019-01-01"], "from must be before to"),
        (["series", "plays", "a", "--from", "2020-01-01", "--to", "2022-01-01"], "Ask for 2400 at most"),
        (["series", "plays", "a", "--tz", "Mars/Phobos"], "'Mars/Phobos' is not a time zone of this machine"),
        (["series", "plays", "a", "--by", "day", "--tz", "Asia/Kolkata"], "whose days begin with an hour of UTC"),
        (["top", "plays", "--span", "today"], "argument --span"),
        (["top", "plays", "--limit", "0"], "'0' is not a whole number from 1 to"),
        (["check", "--local", "--port", "0"], "'0' is not a whole number from 1 to 65535"),
        (["check", "--local", "--stack", "x"], "not allowed with argument"),
        (["check", "--local", "--port", "9"], "nothing answers on port 9"),
        (["check", "--port", "9"], "--port goes with --local"),
        (["--local", "check"], "unrecognized arguments: --local"),
        (["get", "visits", "not/url"], "ID must be an absolute http or https URL"),
        (["help", "nope"], "there is no command 'nope'"),
    ],
)
def test_bad_input_is_an_error_of_one_line_with_status_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in error_of(main, arguments, capsys)


@pytest.mark.parametrize("buffering", [0, -1], ids=["unbuffered", "buffered"])
@pytest.mark.parametrize(
    "arguments", [["--help"], ["help", "get"], ["get", "--help"], ["version"], ["completion", "zsh"]]
)
def test_output_that_cannot_be_written_is_an_error_of_one_line_with_status_2(
    buffering: int, arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    device = open("/dev/full", "wb", buffering=buffering)  # noqa: SIM115  # `full` closes the device
    with io.TextIOWrapper(device, write_through=not buffering) as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert error_of(main, arguments, capsys) == "the output cannot be written: No space left on device"


HOUR_8 = 500_000  # hours since 1970: 2027-01-15 08:00 UTC


@pytest.fixture
def series_of_plays(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores series from 06:55 to 08:20: plays of `a` in three hours, plays of `b` in one, imports, and a repair."""
    monkeypatch.setattr(fold, "BUCKETS", 1)  # partitions of a minute: put_series fills only one
    since = HOUR_8 * 60 - 65  # the minute 06:55
    plays = [(since, "a", -300), (since + 30, "a", 1200), (since + 30, "b", 30), (HOUR_8 * 60, "a", 40)]
    imports = [  # an import into a day, in days since 1970
        (since, "b", 500, HOUR_8 // 24),
        (HOUR_8 * 60, "a", 70, HOUR_8 // 24),
        (HOUR_8 * 60, "a", 900, 19_846),  # the day 2024-05-03
    ]
    put_series(store, since, HOUR_8 * 60 + 20, [*plays, *imports])
    repair = {"before": 900, "amount": -5, "added": 0}  # `added`: the part that takes back no drift
    at_s = HOUR_8 * 3600 - 600
    write = history.repair_entry_write(store, "plays", "a", at_s, repair, by="ann", why="x", how="ledger")
    try_commit(store, [write])


RANGE = ("--from", "2027-01-15T05:00Z", "--to", "2027-01-15T12:00Z", "--tz", "Europe/Berlin")


@pytest.mark.usefixtures("series_of_plays")
def test_a_series_is_csv_in_a_pipe_and_bars_in_a_terminal_with_repairs_and_incomplete_hours(
    run: Run, request: pytest.FixtureRequest
) -> None:
    code, out, err = run("series", "plays", "a", *RANGE)
    assert (code, out.splitlines()) == (0, [
        "from,value,kind", "2027-01-15T07:00:00+01:00,-300,part", "2027-01-15T08:00:00+01:00,1200,whole",
        "2027-01-15T09:00:00+01:00,40,part", "2027-01-15T00:00:00+00:00,70,import",
        "2027-01-15T08:50:00+01:00,-5,repair",
    ])  # fmt: skip
    notes = [
        "940 in 3 hours; the most in one: 1,200", "series begin at 2027-01-15 07:55",
        "complete up to 2027-01-15 09:20 (UTC+01:00)",
    ]  # fmt: skip
    assert err.splitlines() == [f"tally: {line}" for line in notes]
    assert run("series", "plays", "a", *RANGE, "--csv")[1] == out
    body = json.loads(run("series", "plays", "a", *RANGE, "--json")[1])
    assert (body["as_of"], body["series"][-1]) == (HOUR_8 * 3600 + 1200, {"from": HOUR_8 * 3600, "value": 40})
    request.getfixturevalue("drawing")
    code, out, err = run("series", "plays", "a", *RANGE)
    assert (code, [line.rstrip() for line in out.splitlines()], err) == (0, [
        "plays a by hour, Europe/Berlin",
        "Fri 01-15 07:00  -300 since 07:55 ███▏",
        "Fri 01-15 08:00 1,200                █████████████",
        "Fri 01-15 09:00    40 so far         █",
        "import of +70 into 2027-01-15 (UTC): not traffic, so not in the bars",
        "repair of -5 at 2027-01-15 08:50, by ledger: not traffic, so not in the bars", *notes,
    ], "")  # fmt: skip
    assert run("series", "plays", *RANGE)[1].startswith("all plays by hour, Europe/Berlin\n")


@pytest.fixture
def drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands draw as at a terminal of 50 columns, without colours."""
    monkeypatch.setenv("COLUMNS", "50")
    monkeypatch.setattr(series, "may_draw", lambda _: True)


@pytest.mark.usefixtures("series_of_plays")
def test_a_top_list_reports_how_exact_it_is(run: Run, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    span = ("--span", "2027-01-15T07")
    exact = "tally: each value is exact\ntally: complete up to 2027-01-15 08:20 (UTC)\n"
    assert run("top", "plays", *span) == (0, "id,value\na,1200\nb,30\n", exact)
    assert run("top", "plays", *span, "--limit", "1")[1] == "id,value\na,1200\n"
    assert json.loads(run("top", "plays", *span, "--json")[1])["by"] == "hour"
    assert run("top", "stock", "--span", "2027-01")[2].startswith(
        "tally: nothing moved up: stock, 2027-01 UTC so far\n"
    )


def test_series_that_are_not_summed_up_are_unknown_with_status_2(run: Run) -> None:
    message = "tally: nothing is summed up yet: a new stack needs some minutes\n"
    assert run("series", "plays", "a") == run("top", "plays") == (2, "", message)


def act_between_reads(monkeypatch: pytest.MonkeyPatch, *actions: Callable[[], object]) -> None:
    """Run one of these actions after each read of `tally watch`, and press Ctrl-C after one more read. No failed
    request is retried."""
    remaining = list(actions)

    def wait(_: float) -> None:
        if not remaining:
            raise KeyboardInterrupt
        remaining.pop(0)()

    monkeypatch.setattr(watch, "time", SimpleNamespace(time=time.time, sleep=wait))
    one_attempt = CLIENT_CONFIG.merge(Config(retries={"total_max_attempts": 1}))
    monkeypatch.setattr(connection, "CLIENT_CONFIG", one_attempt)


def test_watch_continues_after_the_connection_is_lost_and_make_dev_restarts_on_another_port(
    run: Run, store: Store, dev_stack: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    edit(store, tallies.key(counters.STOCK, "mug", 0), "qty", 12)
    with new_engine() as second:
        create_tables(second.endpoint, store.settings)
        first_endpoint, dev_stack["dynamodb"] = dev_stack["dynamodb"], second.endpoint
        act_between_reads(
            monkeypatch,
            second.kill,
            lambda: None,  # one more read fails, and prints nothing
            lambda: dev_stack.update(dynamodb=first_endpoint),
            lambda: None,  # the number has not changed since the last read
            lambda: None,
        )
        code, out, err = run("watch", "stock", "mug", "--json")
    lines = [json.loads(line) for line in out.splitlines()]
    assert (code, [(line["value"], line["change"]) for line in lines]) == (0, [(0, 0), (12, 12)])
    lost, restored = err.splitlines()
    assert lost.startswith("tally: the connection is lost: ")
    assert restored == "tally: the connection is restored"


def start_command(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    """Start the command without AWS credentials. `environment`: more environment variables."""
    without_aws = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    no_files = {"AWS_CONFIG_FILE": "/nonexistent", "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent"}
    return subprocess.Popen(
        [sys.executable, "-m", "tally.cli", *arguments], cwd=ROOT, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, env={**without_aws, **no_files, "AWS_EC2_METADATA_DISABLED": "true", **environment},
    )  # fmt: skip


def test_missing_credentials_are_an_error_of_one_line() -> None:
    with start_command("check", AWS_DEFAULT_REGION="eu-west-1") as process:
        out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("tally: there are no AWS credentials")


def test_ctrl_c_prints_one_line_with_status_130_and_a_pipe_has_no_progress_bar(port: int, store: Store) -> None:
    """Ctrl-C comes while the command waits for the judge. Nothing is written."""
    post(store, "off", off_by=5)
    mark_judged(store, minutes_ahead=-4)
    with start_command("repair", *SIGNED, "--yes", "--local", "--port", str(port)) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_S)
    assert line.startswith("tally: waiting until everything up to now is checked: ")
    assert (process.returncode, err) == (130, "tally: stopped\n")
    assert out.startswith("differs  likes off: 7")
    assert tallies.read(Call(store), counters.LIKES, "off") == 7  # 2 likes, and the 5 of the edit


def fake_cloudformation(monkeypatch: pytest.MonkeyPatch, outputs: dict[str, str] | None) -> None:
    """Let CloudFormation describe a stack with these outputs. None: the stack does not exist."""
    real_client = boto3.client
    stack_outputs = [{"OutputKey": name, "OutputValue": value} for name, value in (outputs or {}).items()]
    no_stack: Any = {"Error": {"Code": "ValidationError", "Message": "Stack with id Tally-dev does not exist"}}
    describe_stacks = Mock(return_value={"Stacks": [{"Outputs": stack_outputs}]})
    describe_stacks.side_effect = ClientError(no_stack, "DescribeStacks") if outputs is None else None
    fake = SimpleNamespace(describe_stacks=describe_stacks)
    monkeypatch.setattr(boto3, "client", lambda service, **options: (
        fake if service == "cloudformation" else real_client(service, **options)
    ))  # fmt: skip


TABLE_OUTPUTS = dict.fromkeys(("CountsTableName", "ReceiptsTableName", "LedgerTableName"), "no-such-table")


def outputs_of(construct: str, **settings: str) -> dict[str, str]:
    """Returns the outputs of a construct with this id. `settings`: outputs with other values, or further outputs."""
    outputs = TABLE_OUTPUTS | {"StorageFormat": str(keys.FORMAT)} | settings
    return {f"{construct}{name}": value for name, value in outputs.items()}


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        (None, "the stack Tally-dev cannot be read: Stack with id Tally-dev does not exist"),
        ({"ApiUrl": "x"}, "the stack Tally-dev has no output 'CountsTableName'. Give the name of a stack with Tally"),
        (
            TABLE_OUTPUTS | {"StorageFormat": "7"},
            f"the stack Tally-dev has format 7, and this version reads format {keys.FORMAT}. Use",
        ),
        (TABLE_OUTPUTS | {"StorageFormat": str(keys.FORMAT)}, ""),  # any message
        (
            outputs_of("Tally") | outputs_of("Polls"),
            "the stack Tally-dev has 2 Tallys: give --stack Tally-dev/Polls or Tally-dev/Tally",
        ),
    ],
    ids=["missing", "of another app", "of another format", "without tables", "with two Tallys"],
)
def test_a_stack_that_cannot_be_used_is_an_error_of_one_line(
    outputs: dict[str, str] | None, message: str, monkeypatch: pytest.MonkeyPatch, engine: Engine,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", engine.endpoint)
    fake_cloudformation(monkeypatch, outputs)
    assert message in error_of(main, ["check"], capsys)


@pytest.mark.parametrize(
    ("outputs", "stack"),
    [
        (outputs_of("Tally"), "Shop"),
        (outputs_of("Tally", CountsTableName="another") | outputs_of("Polls"), "Shop/Polls"),
        (outputs_of("VotesPolls") | outputs_of("Tally", CountsTableName="another"), "Shop/Votes/Polls"),
    ],
    ids=["alone", "named", "in another construct"],
)
def test_a_tally_in_a_teams_own_stack_is_read(
    outputs: dict[str, str], stack: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_cloudformation(monkeypatch, outputs | {"CheckoutName": "checkout"})  # an output of the team's own
    deployed = connection.deployed_stack(stack, {})
    assert deployed.store.settings.counts_table == "no-such-table"
    assert deployed.outputs.keys() == TABLE_OUTPUTS.keys() | {"StorageFormat"}


def test_an_empty_region_is_an_error_of_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "")
    assert "there is no AWS region: set AWS_DEFAULT_REGION" in error_of(main, ["status"], capsys)


def http_answer(body: str) -> str:
    return f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n{body}"


NONSENSE = {
    "HTML": http_answer("<html><p>Welcome to\nnginx!</html>"), "an empty object": http_answer("{}"),
    "not HTTP": "220 ready\r\n",
    "cut off": http_answer("{}")[:-1],
    "wrong types": http_answer('{"dynamodb": 5, "s3": [], "counts": 1, "receipts": 2, "ledger": 3, "bucket": 0,'
                         ' "minute_s": 1, "outputs": {}}'),
}  # fmt: skip
ARGUMENTS: dict[str, list[str]] = {  # for one call of each command that needs a stack
    "status": [], "check": [], "repair": ["--by", "a", "--why", "b", "--yes"], "get": ["likes", "a"], "history": ["a"],
    "restore": ["--to", "2026-11-22T10:30:00Z", "--by", "a", "--why", "b"],
    "forget": ["--user", "u"], "import": [os.devnull, "--counter", "plays"], "export": ["plays", "--format", "jsonl"],
    "receipt": ["plays", "a", "k"], "series": ["plays", "a"], "top": ["plays"], "watch": ["plays", "a"],
    "shadow": ["plays", os.devnull], "scan": ["plays"], "count": ["plays", "a"], "limit": ["calls", "a"], "events": [],
}  # fmt: skip


@pytest.fixture
def start_server() -> Iterator[Callable[[str], int]]:
    """Returns a function that starts a server, which answers each request with `answer`, and returns the port."""
    with ExitStack() as stack:

        def start(answer: str) -> int:
            class Handler(socketserver.BaseRequestHandler):
                def handle(self) -> None:
                    self.request.recv(65536)
                    self.request.sendall(answer.encode())

            server = stack.enter_context(socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler))
            server.daemon_threads = True
            threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
            stack.callback(server.shutdown)
            return int(server.server_address[1])

        yield start


@pytest.mark.parametrize(
    ("name", "kind"), [("check", kind) for kind in NONSENSE] + [(name, "HTML") for name in ARGUMENTS]
)
def test_an_endpoint_that_answers_nonsense_is_an_error_of_one_line_with_status_2(
    name: str, kind: str, start_server: Callable[[str], int], monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """The endpoint answers in place of `make dev`, and in place of DynamoDB."""
    assert ARGUMENTS.keys() == {name for name, command in commands.COMMAND_SUMMARIES.items() if command.needs_stack}
    monkeypatch.setattr(connection, "CLIENT_CONFIG", CLIENT_CONFIG.merge(Config(retries={"total_max_attempts": 1})))
    port = start_server(NONSENSE[kind])
    tables = {"dynamodb": f"http://127.0.0.1:{port}", "s3": f"http://127.0.0.1:{port}", "counts": "c" * 9}
    tables |= {"receipts": "r" * 9, "ledger": "l" * 9, "bucket": "b"}
    dev_port = start_server(http_answer(json.dumps({**tables, "minute_s": 60, "outputs": {}})))
    for answering_port in (port, dev_port):
        code = main([name, *ARGUMENTS[name], "--local", "--port", str(answering_port)])
        printed = capsys.readouterr()
        assert (code, printed.err.count("\n")) == (2, 1), printed
        assert printed.err.startswith("tally: ")
        if name != "status" or answering_port == port:  # `status` prints its checks even if it cannot read the tables
            assert not printed.out


def test_help_and_completion_need_no_stack(capsys: pytest.CaptureFixture[str]) -> None:
    def printed(*arguments: str) -> str:
        with suppress(SystemExit):
            assert main(arguments) == 0
        return capsys.readouterr().out

    assert printed("help") == printed("--help") == printed()
    assert re.fullmatch(r"tally \d+\.\d+\.\d+ \(.*\)\n", printed("--version"))
    for command in ("repair", "help", "completion"):
        assert printed("help", command) == printed(command, "--help")
    assert printed("completion", "zsh").startswith("#compdef tally\n")
    assert all("\n\nexit status: 0 ok" in printed(name, "--help") for name in commands.COMMAND_SUMMARIES)
    complete = 'COMP_WORDS=(tally "$@"); COMP_CWORD=$(($# )); _shtab_tally; echo "${COMPREPLY[@]}"'
    script = ["bash", "-c", f"{printed('completion', 'bash')}\n{complete}", "bash", "get", "pl"]
    assert subprocess.run(script, capture_output=True, text=True, check=True).stdout.strip() == "plays"


def test_events_of_all_numbers_or_of_one_are_listed_newest_first(run: Run, store: Store) -> None:
    first = {"event": "ab" * 16, "counter": "calls", "id": "7c20", "period": "2026-11-22", "threshold": 800,
             "percent": 80, "limit": 1000, "direction": "up", "value": 812, "before": 790, "by": "change",
             "at": 1795000000, "sequence": "1"}  # fmt: skip
    second = first | {"event": "cd" * 16, "direction": "down", "value": 12, "before": 812, "by": "repair",
                    "at": 1795000060, "sequence": "2"}  # fmt: skip
    unsent = {"event": "ef" * 16, "counter": "plays", "id": "~2Fv~2F", "threshold": 1000, "every": 1000,
             "direction": "up", "value": 1003, "at": 1795000120, "sequence": "1000"}  # fmt: skip
    assert run("events") == (
        0,
        "there are no events: Tally keeps each for nine days after EventBridge accepts it\n",
        "",
    )
    for detail in (first, second, unsent):
        event = Event(detail["event"], detail["at"] * 1000, detail)
        state = UNSENT if detail is unsent else SENT
        store.client.put_item(**event.as_write(store.settings)["Put"] | {
            "Item": event.key(state) | {"detail": {"S": json.dumps(detail)}}
        })  # fmt: skip
    lines = [
        "2026-11-18 11:08:40 UTC  plays ~2Fv~2F reached 1000: at 1003; not sent yet",
        "2026-11-18 11:07:40 UTC  calls 7c20#2026-11-22 fell below 800 (80 % of 1000): 812 to 12, by repair",
        "2026-11-18 11:06:40 UTC  calls 7c20#2026-11-22 reached 800 (80 % of 1000): 790 to 812",
    ]
    assert run("events")[1].splitlines() == lines
    assert run("events", "--limit", "1")[1].splitlines() == lines[:1]
    for id_ in ("7c20", "7c20#2026-11-22"):
        assert run("events", "calls", id_)[1].splitlines() == lines[1:]
    assert run("events", "calls", "7c20#2026-11-21")[1].startswith("there are no events")
    assert run("events", "plays", "/v/")[1].splitlines() == lines[:1]
    shown = [json.loads(line) for line in run("events", "plays", "--json")[1].splitlines()]
    assert shown == [{**unsent, "sent": False}]
