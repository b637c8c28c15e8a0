"""Tests `make demo` with a small server that counts as Tally does, or has a fault that the demo must report."""

from __future__ import annotations

import asyncio
import gzip
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from aiohttp import web

from bench import ROOT
from bench.demo import __main__ as demo
from bench.demo import replay, visitors
from bench.demo.replay import Comparison, ReplayOutcome
from bench.demo.report import complaints, report
from bench.demo.visitors import DriftingTally, RequestsSent
from bench.demo.weblog import SITE, Weblog, read_log
from tally.dev.base.errors import LocalError
from tests.patience import PATIENCE_S, wait_for

pytestmark = pytest.mark.long  # a test of a tool

HEALTHY = {"status": "ok", "version": "test"}
LINE = 'host - - [01/Aug/1995:00:00:01 -0400] "GET {path} HTTP/1.0" 200 1839'


@dataclass
class FakeTally:
    """A server that counts a visit once for each key, unless a field says otherwise."""

    port: int = 0
    health: dict[str, Any] = field(default_factory=lambda: dict(HEALTHY))
    counts_a_key_once: bool = True
    refuses_every: int = 0
    """The server refuses each request whose number is a multiple of this number; 0: it refuses no request."""
    dies_after: int = 0
    """The number of requests after which the server closes each connection; 0: it closes no connection."""
    status: int = 202
    """The status of the answers to visits."""
    visits: Counter[str] = field(default_factory=Counter)
    """The counted visits of each URL."""
    keys: Counter[str] = field(default_factory=Counter)
    """How often the server got each key."""
    requests: int = 0

    async def answer(self, request: web.Request) -> web.Response:
        if request.path == "/health":
            return web.json_response(self.health)
        if request.path == "/dev/token":
            assert (await request.json())["scope"] == "tally/read"
            return web.json_response({"access_token": "its-token"})
        if request.path == "/drift":
            assert request.headers["authorization"] == "Bearer its-token"
            return web.json_response({"drift": [], "cursor": None if "cursor" in request.query else "more"})
        self.requests += 1
        number = self.requests
        if self.dies_after and number > self.dies_after:
            assert request.transport is not None
            request.transport.abort()
        if self.refuses_every and number % self.refuses_every == 0:
            throttled = number % (2 * self.refuses_every) == 0
            return web.json_response({"message": "busy"}, status=429 if throttled else 503)
        if request.path == "/dev/lost/visits":  # here `make dev` counts, and loses the answer
            counted = self.count(await request.json())
            assert request.transport is not None
            request.transport.abort()
            return counted
        if request.method == "GET":
            url = request.query["url"]
            return web.json_response({"counter": "visits", "id": url, "value": self.visits[url]})
        return self.count(await request.json())

    def count(self, visit: dict[str, str]) -> web.Response:
        if self.status != 202:
            return web.json_response({"detail": "no"}, status=self.status)
        self.keys[visit["key"]] += 1
        replay = self.counts_a_key_once and self.keys[visit["key"]] > 1
        self.visits[visit["url"]] += not replay
        headers = {"Idempotency-Replayed": "true"} if replay else {}
        return web.json_response({"counted": True}, status=202, headers=headers)


class DemoRun(NamedTuple):
    """One run of the demo: exit status, stdout, stderr."""

    status: int
    out: str
    err: str


Serve = Callable[..., FakeTally]
Run = Callable[..., DemoRun]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Returns a function that starts a server in a thread, because the demo's main runs an event loop of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    runners: list[web.AppRunner] = []

    async def start(tally: FakeTally) -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", tally.answer)
        runners.append(web.AppRunner(app, access_log=None))
        await runners[-1].setup()
        await web.TCPSite(runners[-1], "127.0.0.1", 0).start()
        tally.port = runners[-1].addresses[0][1]

    async def stop() -> None:
        """Wait until no connection is open. If a server closes earlier, CPython 3.11 may leave a socket open."""
        while len(asyncio.all_tasks()) > 1:  # this task is one
            await asyncio.sleep(0.01)
        for runner in runners:
            await runner.cleanup()

    def wait(work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, loop).result(PATIENCE_S)

    def start_server(**fields: Any) -> FakeTally:
        tally = FakeTally(**fields)
        wait(start(tally))
        return tally

    yield start_server
    wait(stop())
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log of 200 requests for 7 pages."""
    path = tmp_path / "test.log"
    path.write_text("".join(LINE.format(path=f"/page-{number % 7}") + "\n" for number in range(200)))
    return path


@pytest.fixture
def run(log: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Returns a function that runs the demo with short pauses. `--quick`: without the series and the top list."""
    monkeypatch.setattr(visitors, "PAUSE_FIRST_S", 0.001)
    monkeypatch.setattr(replay, "COUNTS_S_MAX", PATIENCE_S)
    monkeypatch.setattr(replay, "COUNTS_POLL_S", 0.001)

    def run(tally: FakeTally) -> DemoRun:
        status = demo.main(["--port", str(tally.port), "--log", str(log), "--quick"])
        return DemoRun(status, *capsys.readouterr())

    return run


def test_every_visit_counts_once_despite_repeats_lost_answers_and_a_busy_server(serve: Serve, run: Run) -> None:
    tally = serve(refuses_every=5)
    ran = run(tally)
    assert ran.status == 0
    assert tally.visits.total() == len(tally.keys) == 200
    assert tally.keys.total() >= 200 + 20, "every tenth visit, and a visit whose answer is lost, is sent twice"
    assert "\nlost            0  visits\ndoubled         0  visits\n" in ran.out


def test_the_demo_notices_visits_that_count_twice(serve: Serve, run: Run) -> None:
    ran = run(serve(counts_a_key_once=False))
    assert ran.status == 1
    assert "differs: /page-" in ran.out
    assert "pages differ from the log" in ran.err


PAGE_URL = f"{SITE}/a"
SAME_SERIES = Comparison(log={PAGE_URL: 3}, series={PAGE_URL: 3}, top={PAGE_URL: 3}, took_s=1.0)


@pytest.mark.parametrize(
    ("fields", "out", "err"),
    [
        ({}, "All 1 pages have the log's count.", ""),
        ({"counted": {PAGE_URL: 2}}, "differs: /a: 3 in the log, 2 by Tally", "1 pages differ from the log"),
        ({"counts_right_after_s": None}, "still differed from the log.", "right more than"),
        ({"drifts": [DriftingTally("visits", "a", -2)]}, "drifts: visits of a by -2", "1 tallies drifted"),
        (
            {"series_and_top": replace(SAME_SERIES, series={PAGE_URL: 2})},
            "3 in the log, 2 in the series, 3 in the top",
            "for 1 pages",
        ),
        (
            {"series_and_top": replace(SAME_SERIES, top={PAGE_URL: 2})},
            "3 in the log, 3 in the series, 2 in the top",
            "for 1 pages",
        ),
        ({"series_and_top": replace(SAME_SERIES, took_s=None)}, "not judged yet", "did not reach the end of the run"),
    ],
)
def test_a_difference_from_the_log_is_reported_and_fails_the_demo(fields: dict[str, Any], out: str, err: str) -> None:
    right_outcome = ReplayOutcome(
        Weblog("log", (), 0), expected=Counter({PAGE_URL: 3}), counted={PAGE_URL: 3}, sent=RequestsSent(), took_s=1.0,
        counts_right_after_s=1.0, drifts=[], series_and_top=SAME_SERIES,
    )  # fmt: skip
    outcome = replace(right_outcome, **fields)
    assert outcome.is_right is not bool(err)
    assert out in "\n".join(report(outcome))
    assert err in "\n".join(complaints(outcome))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"health": {"hello": "world"}}, "not to Tally: set PORT"),
        ({"dies_after": 50}, "stopped answering"),
        ({"refuses_every": 1}, "is too busy: it refused 30 attempts"),
        ({"status": 403}, "start it without TALLY_PAGE_HOSTS"),
        ({"status": 400}, "refused a visit with 400: no"),
    ],
)
def test_an_unusable_server_gives_an_error_of_one_line(
    serve: Serve, run: Run, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], message: str
) -> None:
    monkeypatch.setattr(visitors, "PAUSE_MAX_S", 0.002)
    ran = run(serve(**fields))
    assert (ran.status, ran.out, ran.err.count("\n")) == (1, "", 1), ran.err
    assert message in ran.err


def test_a_log_may_be_gzipped_or_plain_and_its_malformed_lines_are_counted_separately(tmp_path: Path) -> None:
    good = [
        LINE.format(path="/a"),
        LINE.format(path="/a").replace(" HTTP/1.0", ""),  # HTTP/0.9
        LINE.format(path="/b").replace("1839", "-").replace("GET", "HEAD"),
        LINE.format(path="/../a#top"),  # the same page when normalised
        LINE.format(path="/cgi-bin/imagemap/countdown70?285,291"),
    ]
    bad = ["", "nonsense", LINE.format(path="no-slash"), LINE.format(path="/a b"), LINE.format(path="/" + "x" * 2000)]
    plain, packed = tmp_path / "plain.log", tmp_path / "packed.log.gz"
    plain.write_bytes("\n".join(good + bad).encode() + b"\n" + LINE.format(path="/\xff").encode("latin-1"))
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    for path in (plain, packed):
        log = read_log(path)
        assert log.malformed == 6, "the five bad lines, and the line that is not UTF-8"
        assert log.page_visits() == {f"{SITE}/a": 3, f"{SITE}/b": 1, f"{SITE}/cgi-bin/imagemap/countdown70?285,291": 1}


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_sigterm_end_the_demo_with_one_line(serve: Serve, log: Path, sent: signal.Signals) -> None:
    tally = serve(refuses_every=1)  # keeps the demo busy
    command = [sys.executable, "-m", "bench.demo", "--port", str(tally.port), "--log", str(log)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: tally.requests >= 20)
    process.send_signal(sent)
    printed = process.communicate(timeout=PATIENCE_S)
    stopped = "tally: demo stopped; Tally keeps the visits that it has counted\n"
    assert (process.returncode, *printed) == (130, "", stopped)


@pytest.mark.parametrize(
    "content", [None, b"no log at all\n", gzip.compress(b"x" * 99, mtime=0)[:-9]], ids=["no file", "text", "cut gzip"]
)
def test_an_unusable_log_gives_an_error_of_one_line(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "other.log"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(LocalError, match=r"^the log .*other\.log [^\n]+$"):
        read_log(path)


def test_the_log_of_nasa_is_complete() -> None:
    path = demo.LOG
    log = read_log(path)
    assert (len(log.visits), log.malformed, len(log.page_visits())) == (1880, 0, 464)
    assert log.page_visits().most_common(1) == [(f"{SITE}/images/KSC-logosmall.gif", 97)]
    acknowledgement = " ".join((path.parent / "README.md").read_text().split())
    assert "Jim Dumoulin of the Kennedy Space Center" in acknowledgement
    assert "may be freely redistributed" in acknowledgement
