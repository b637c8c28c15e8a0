"""Tests how `make dev` starts, what it prints if it fails, and what remains after it is killed or stopped."""

from __future__ import annotations

import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import packages_distributions
from pathlib import Path
from types import ModuleType

import pytest

from tally import cli, dev
from tally.dev.base.engine import Engine
from tally.dev.base.errors import LocalError
from tally.dev.base.options import DevOptions
from tally.dev.stack.prepared import prepare_stack
from tests.e2e.dev import KEY, PLAYS_FUNCTION, ROOT, Answer, Dev, client, command_line, copy_app, running
from tests.patience import PATIENCE_S, wait_for

Start = Callable[..., Dev]
PAGE = "https://example.com/life"
WAIT_FOR_DOUBLE_S = 1.5  # the rollup adds a visit that counts twice with its next batch, within a second


def only_line(dev: Dev) -> str:
    """Waits until `make dev` ends with status 1, and returns the only line of its output."""
    assert dev.wait_for_end() == 1
    [line] = dev.text.splitlines()
    assert line.startswith("tally: ")
    return line


def test_answered_changes_survive_a_kill_of_make_dev(start: Start) -> None:
    first = start().wait_until_ready()
    token = first.token()
    assert first.call("PUT", "/posts/p", {"body": "hello"}, token=token).status == 201
    assert first.like("p", token) == 200
    assert [first.play("v", f"{KEY}-{number}").status for number in range(20)] == [200] * 20
    for number in range(10):
        first.visit(PAGE, f"{KEY}-{number}")  # the kill comes before the rollup adds most of the visits
    children = first.descendants()
    assert [pid for pid in children if "zygote" in command_line(pid)], "functions run"
    first.process.kill()
    first.process.wait()
    wait_for(lambda: not running(children))

    second = start("--port", str(first.port)).wait_until_ready()
    assert second.plays("v") == 20
    assert second.likes("p") == 1
    assert second.play("v", f"{KEY}-7").headers["idempotency-replayed"] == "true"
    assert second.like("p", token) == 200  # the token is valid, because the issuer's key survived, too
    second.visit(PAGE, f"{KEY}-10")
    wait_for(lambda: second.visits(PAGE)[0] >= 11)
    time.sleep(WAIT_FOR_DOUBLE_S)
    assert second.visits(PAGE)[0] == 11


def test_make_dev_runs_with_only_the_packages_that_its_requirements_pin(start: Start, tmp_path: Path) -> None:
    """The server, the zygote and the functions import no package of the CDK or of the tests."""
    pins = set(re.findall(r"^([\w.-]+)==", (ROOT / "tally/dev/requirements.txt").read_text(), re.MULTILINE))
    names = {
        module: {re.sub(r"[-_.]+", "-", distribution).lower() for distribution in distributions}
        for module, distributions in packages_distributions().items()
    }
    forbidden = sorted(module for module, distributions in names.items() if not distributions & pins)
    assert {"aws_cdk", "constructs", "jsii", "pytest"} < set(forbidden)
    # An import of a module that is None in `sys.modules` fails.
    (tmp_path / "sitecustomize.py").write_text(f"import sys\nsys.modules.update(dict.fromkeys({forbidden}))\n")
    dev = start(PYTHONPATH=str(tmp_path)).wait_until_ready()
    assert dev.play("v", KEY).status == 200
    dev.visit(PAGE, f"{KEY}-1")
    wait_for(lambda: dev.visits(PAGE)[0] == 1)


def test_ctrl_c_stops_everything_without_a_traceback(start: Start) -> None:
    dev = start(TALLY_PAGE_HOSTS="example.com").wait_until_ready()
    assert dev.visit("https://elsewhere.com/", KEY).status == 403
    for number in range(30):
        assert dev.visit(PAGE, f"{KEY}-{number}").status == 202  # the consumers are at work when Ctrl-C comes
    children = dev.descendants()
    assert children
    assert dev.stop(signal.SIGINT) == 0
    assert not running(children)
    assert dev.text.endswith("tally: stopped\n")
    assert "Traceback" not in dev.text
    assert "Warning" not in dev.text


def test_ctrl_c_stops_make_dev_while_it_starts(start: Start) -> None:
    dev = start(warnings="ignore")  # an interrupted import leaves a file open, and Python warns of that
    wait_for(dev.descendants, every_s=0.01)  # the engine has started
    children = dev.descendants()
    assert dev.stop(signal.SIGINT) == 0, dev.text
    assert dev.text.endswith("tally: stopped\n")
    assert "Traceback" not in dev.text
    assert not running(children)


# Sends Ctrl-C while the module is imported, and turns the handler's exception into another one.
INTERRUPTS = """
import os, signal, sys

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["INTERRUPTED_MODULE"]:
            try:
                signal.raise_signal(signal.SIGINT)
            except BaseException:
                raise TypeError("expected a message argument") from None

sys.meta_path.insert(0, Interrupts())
"""


# For `make dev`, Ctrl-C is the usual end: status 0. A command has not done its work: 130, as a shell says of SIGINT.
@pytest.mark.parametrize(
    ("program", "arguments", "interrupted_module", "status"),
    [
        (dev, "", "asyncio", 0),
        (cli, "", "tally.cli.commands", 130),
        (cli, "completion bash", "shtab", 130),
        (cli, "get plays 1 --local", "botocore", 130),
        (cli, "get plays 1 --local", "tally.cli.get", 130),
        (cli, "get plays 1 --local", "tally.contract.counters_file", 130),
    ],
)
def test_ctrl_c_during_an_import_prints_one_line(
    program: ModuleType, arguments: str, interrupted_module: str, status: int, tmp_path: Path
) -> None:
    """CPython 3.11 sometimes turns the exception of the handler into a TypeError, as INTERRUPTS does."""
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTS)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "INTERRUPTED_MODULE": interrupted_module}
    command = [sys.executable, "-m", program.__name__, *arguments.split()]
    folder = Path(str(program.__file__)).parents[2]  # the checkout, or its copy with a mutation
    run = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (run.returncode, run.stdout + run.stderr) == (status, "tally: stopped\n")


def test_make_dev_ends_with_one_line_when_the_engine_dies(start: Start) -> None:
    dev = start().wait_until_ready()
    children = dev.descendants()
    [engine] = [pid for pid in children if command_line(pid).startswith(("java ", str(ROOT / "node_modules")))]
    os.kill(engine, signal.SIGKILL)
    assert dev.wait_for_end() == 1
    last = dev.text.splitlines()[-1]
    assert last.startswith("tally: the DynamoDB engine died")
    assert "(exit status -9" in last
    assert "Traceback" not in dev.text
    assert not running(children)


@pytest.mark.long
def test_make_dev_runs_on_an_engine_that_the_test_started(start: Start) -> None:
    with Engine() as engine:
        dev = start(AWS_ENDPOINT_URL_DYNAMODB=engine.endpoint).wait_until_ready()
        assert dev.play("v", KEY).status == 200
        dev.visit(PAGE, KEY)
        wait_for(lambda: dev.visits(PAGE)[0] == 1)  # the rollup reads the streams
        assert not [pid for pid in dev.descendants() if "dynoxide" in command_line(pid)]
        assert not (dev.data / "engine.db").exists()
        assert "streams cannot be read" not in dev.text
        engine.kill()
        assert dev.call("GET", "/videos/v/plays").status == 503
        assert "tally: 503 for GET /videos/{id}/plays: " in dev.text
        assert "log reads.log)" in dev.text
        assert dev.stop(signal.SIGINT) == 0  # `make dev` ends although it cannot read the streams
        assert "Traceback" not in dev.text


def test_make_dev_replaces_a_killed_function(dev: Dev) -> None:
    """The caller of a killed function gets the gateway's 500. Later callers are served, and no play is lost."""
    video, answers = secrets.token_hex(8), list[Answer]()
    over = threading.Event()

    def play(number: int) -> Answer:
        return dev.play(video, f"{KEY}-{number}")

    def play_until_over() -> None:
        while not over.is_set():
            answers.append(play(len(answers)))

    thread = threading.Thread(target=play_until_over)
    thread.start()
    try:
        for _ in range(4):
            before = len(answers)
            wait_for(lambda before=before: len(answers) > before + 5)
            for pid in dev.workers(PLAYS_FUNCTION):
                os.kill(pid, signal.SIGKILL)
    finally:
        over.set()
        thread.join()
    assert {answer.status for answer in answers} <= {200, 500}
    assert {answer.raw for answer in answers if answer.status == 500} <= {b'{"message":"Internal Server Error"}'}
    for number in range(len(answers)):  # repeats every play until it is answered with 200, as a client does
        wait_for(lambda number=number: play(number).status == 200)
    assert dev.plays(video) == len(answers)


@pytest.mark.long
def test_a_counter_that_is_declared_while_make_dev_runs_gets_its_routes(start: Start, tmp_path: Path) -> None:
    app = copy_app(tmp_path)
    dev = start(app=app).wait_until_ready()
    assert dev.call("GET", "/counters/roses/g1").status == 401  # the general route needs a token
    declared = app / "lambdas/counters.py"
    roses = 'Counter("roses", prefix="GARDEN", sort_key="ROSES", attribute="roses", changes="anyone", read="anyone")'
    text = declared.read_text().replace("declared([", f"declared([{roses}, ")
    declared.write_text(text)
    wait_for(lambda: dev.call("GET", "/counters/roses/g1").status == 200, every_s=0.5)
    assert dev.call("POST", "/counters/roses/g1/increments", {"amount": 2}, idempotency_key=KEY).status == 200
    assert dev.number("roses", "g1") == 2
    assert "roses" in dev.call("GET", "/dev/stack").body["outputs"]["Counters"], "`tally status` shows this list"

    # Once the counter's fingerprint is stored, `make dev` refuses another prefix.
    store, fingerprint = client(dev.endpoint), {"PK": {"S": "FINGERPRINT"}, "SK": {"S": "roses"}}
    wait_for(lambda: "Item" in store.get_item(TableName="Tally-local-LedgerTable", Key=fingerprint), every_s=0.5)
    declared.write_text(text.replace('prefix="GARDEN"', 'prefix="PARK"'))
    wait_for(lambda: "prefix='GARDEN', which is 'PARK' now" in dev.text, every_s=0.5)
    assert dev.number("roses", "g1") == 2, "`make dev` runs the last valid code"
    line = only_line(start("--data", str(dev.data), app=app)) if dev.stop() == 0 else "did not stop"
    refusal = "tally: counter 'roses' has counted with prefix='GARDEN', which is 'PARK' now: take that back"
    assert line.startswith(refusal)
    declared.write_text(text)
    dev = start("--data", str(dev.data), app=app).wait_until_ready()

    declared.write_text(text.replace('prefix="GARDEN"', 'prefix="garden"'))  # a prefix must be in capitals
    wrong = f"the counters and routes stay as they were: {declared}, line "
    wait_for(lambda: wrong in dev.text, every_s=0.5)
    for pid in [*dev.workers("visits"), *dev.workers("reads")]:  # a new worker uses the last valid code
        os.kill(pid, signal.SIGKILL)
    assert dev.call("GET", "/visits?url=https://example.com/").status == 200
    assert dev.number("roses", "g1") == 2
    declared.write_text(f'{text}\nSEATS = Counter("seats", prefix="FLIGHT", sort_key="SEATS", attribute="free")\n')
    wait_for(lambda: "SEATS is not a counter of this deployment" in dev.text, every_s=0.5)


@pytest.mark.parametrize("port", ["65536", "-1", "٣", "eighty"])
def test_a_wrong_port_is_refused(port: str) -> None:
    with pytest.raises(LocalError, match="it must be a number from 0 to 65535"):
        DevOptions.read([], {"PORT": port}, Path("a"))


def test_options_come_from_the_command_line_then_the_environment() -> None:
    app = Path("app")
    environment = {"PORT": "81", "TALLY_DATA": "d", "AWS_ENDPOINT_URL_DYNAMODB": "http://e", "TALLY_PAGE_HOSTS": "h"}
    of_environment = DevOptions(app, port=81, data=Path("d"), endpoint="http://e", page_hosts="h")
    assert DevOptions.read([], environment, app) == of_environment
    of_both = replace(of_environment, port=82, data=Path("x"), verbose=True)
    assert DevOptions.read(["--port", "82", "--data", "x", "--verbose"], environment, app) == of_both
    assert DevOptions.read([], {"TALLY_LIKERS_VISIBLE": "nobody"}, app).likers_visible == "nobody"
    defaults = DevOptions(app, port=8080, data=Path(".tally"), endpoint=None, page_hosts="*")
    assert DevOptions.read([], {"PORT": "", "AWS_ENDPOINT_URL_DYNAMODB": ""}, app) == defaults


def test_two_make_devs_cannot_share_a_data_folder(dev: Dev, start: Start, tmp_path: Path) -> None:
    (tmp_path / "data").symlink_to(dev.data)
    line = only_line(start())
    assert f"another `make dev` (process {dev.process.pid})" in line
    assert dev.plays("a") == 0, "the first `make dev` still answers"


@pytest.mark.parametrize(
    ("path", "content", "message"),
    [
        ("data", "", "is not writable"),  # a file in place of the folder
        ("data/engine.db", "this is not a database" * 100, "engine"),
    ],
)
def test_make_dev_refuses_a_broken_data_folder_and_leaves_it_unchanged(
    tmp_path: Path, path: str, content: str, message: str
) -> None:
    (tmp_path / path).parent.mkdir(exist_ok=True)
    (tmp_path / path).write_text(content)
    options = DevOptions(ROOT, port=0, data=tmp_path / "data", endpoint=None, page_hosts="*")
    with pytest.raises(LocalError, match=message), prepare_stack(options):
        pass
    assert (tmp_path / path).read_text().startswith(content)


def test_a_taken_port_is_an_error(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        options = DevOptions(ROOT, port=port, data=tmp_path / "data", endpoint=None, page_hosts="*")
        with pytest.raises(LocalError, match=r"cannot be used \(Address already in use\)"), prepare_stack(options):
            pass


def test_an_engine_must_have_a_url() -> None:
    for name in ("AWS_ENDPOINT_URL_DYNAMODB", "AWS_ENDPOINT_URL_DYNAMODB_STREAMS"):
        for wrong in ("localhost:8000", "http://", "http://localhost:many", "http://[::1"):
            with pytest.raises(LocalError, match=rf"{name} is .*: it must be an address"):
                DevOptions.read([], {name: wrong}, ROOT)
        for right in ("http://localhost:8000", "http://[::1]:8000/", "https://dynamodb.eu-west-1.amazonaws.com"):
            DevOptions.read([], {name: right}, ROOT)


def test_a_silent_engine_and_a_wrong_option_print_one_line(start: Start) -> None:
    silent = start(AWS_ENDPOINT_URL_DYNAMODB="http://127.0.0.1:1")
    wrong = start(name="other", TALLY_LIKERS_VISIBLE="all")
    assert only_line(silent).startswith("tally: no usable DynamoDB engine at http://127.0.0.1:1: ")
    assert only_line(wrong) == "tally: TALLY_LIKERS_VISIBLE is 'all': it must be one of anyone, signedIn, nobody"
