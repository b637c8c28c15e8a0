"""The demo against a small server that counts as Tally does, or fails to, in ways that the demo must see."""

from __future__ import annotations

import asyncio
import gzip
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from demo import __main__ as demo
from demo import drift_watch, visitors
from demo.weblog import LOG, SITE, read_log
from local.base.engine import ROOT, free_port
from local.server import SCHEDULE_S_MAX

HEALTHY = {"status": "ok", "version": "test"}
LINE = 'host - - [01/Aug/1995:00:00:01 -0400] "GET {path} HTTP/1.0" 200 1839'


@dataclass
class FakeTally:
    """Counts visits, once for each key unless told otherwise."""

    port: int = 0
    health: dict[str, Any] = field(default_factory=lambda: dict(HEALTHY))
    knows_keys: bool = True
    forgets_every: int = 0
    refuses_every: int = 0
    dies_after: int = 0
    status: int = 202
    shown_after_s: float = 0.0
    """How long a visit takes until it is in what is read."""
    drifts: Callable[[FakeTally], list[dict[str, Any]]] = lambda _: []
    drift_asked: int = 0
    late: list[tuple[float, str]] = field(default_factory=list)
    visits: Counter[str] = field(default_factory=Counter)
    keys: Counter[str] = field(default_factory=Counter)
    requests: int = 0

    async def answer(self, request: web.Request) -> web.Response:
        if request.path == "/health":
            return web.json_response(self.health)
        if request.path == "/dev/token":
            assert (await request.json())["scope"] == "tally/read"
            return web.json_response({"access_token": "its-token"})
        if request.path == "/drift":
            return self.drift(request)
        self.requests += 1
        number = self.requests
        if self.dies_after and number > self.dies_after:
            assert request.transport is not None
            request.transport.abort()
        if self.refuses_every and number % self.refuses_every == 0:
            throttled = number % (2 * self.refuses_every) == 0
            return web.json_response({"message": "come again"}, status=429 if throttled else 503)
        if request.method == "GET":
            url = request.query["url"]
            now_s = time.monotonic()
            self.visits.update(shown for due_s, shown in self.late if due_s <= now_s)
            self.late = [(due_s, shown) for due_s, shown in self.late if due_s > now_s]
            return web.json_response({"url": url, "visits": self.visits[url]})
        return self.count(await request.json())

    def count(self, visit: dict[str, str]) -> web.Response:
        if self.status != 202:
            return web.json_response({"detail": "no"}, status=self.status)
        self.keys[visit["key"]] += 1
        replay = self.knows_keys and self.keys[visit["key"]] > 1
        if not replay and not (self.forgets_every and len(self.keys) % self.forgets_every == 0):
            self.late.append((time.monotonic() + self.shown_after_s, visit["url"]))
        return web.json_response(
            {"counted": True}, status=202, headers={"Idempotency-Replayed": "true"} if replay else {}
        )

    def drift(self, request: web.Request) -> web.Response:
        """A row a page."""
        assert request.headers["authorization"] == "Bearer its-token"
        self.drift_asked += 1
        rows, place = self.drifts(self), int(request.query.get("cursor", 0))
        more = str(place + 1) if place + 1 < len(rows) else None
        return web.json_response({"drift": rows[place : place + 1], "cursor": more})


@pytest.fixture
def serve() -> Iterator[Callable[..., FakeTally]]:
    """Starts servers on a loop in a thread, since the demo's main has a loop of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    runners: list[web.AppRunner] = []

    async def start(tally: FakeTally) -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", tally.answer)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        runners.append(runner)
        tally.port = free_port()
        await web.TCPSite(runner, "127.0.0.1", tally.port).start()

    def run(work: Any) -> None:
        waiting: Future[None] = asyncio.run_coroutine_threadsafe(work, loop)
        waiting.result(10)

    def served(**how: Any) -> FakeTally:
        tally = FakeTally(**how)
        run(start(tally))
        return tally

    yield served
    for runner in runners:
        run(runner.cleanup())
    run(asyncio.sleep(0.05))  # the connections that were closed are let go of by the loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visitors, "PAUSE_FIRST_S", 0.001)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log of 200 requests for 7 pages."""
    path = tmp_path / "test.log"
    path.write_text("".join(LINE.format(path=f"/page-{number % 7}") + "\n" for number in range(200)))
    return path


def run(tally: FakeTally, log: Path, *more: str) -> int:
    return demo.main(["--port", str(tally.port), "--log", str(log), *more])


def drifting(target: str, drift: int) -> dict[str, Any]:
    return {"counter": "visits", "id": target, "drift": drift, "since": 1, "confirmed": False}


def fact(output: str, name: str) -> int:
    found = re.search(rf"^{name} +([0-9,]+) ", output, re.MULTILINE)
    assert found, output
    return int(found[1].replace(",", ""))


def test_every_visit_is_counted_once_though_some_are_sent_twice_or_lose_their_answer(
    serve: Callable[..., FakeTally], log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tally = serve()
    assert run(tally, log) == 0
    output = capsys.readouterr().out
    assert tally.visits.total() == 200
    assert len(tally.keys) == 200
    assert fact(output, "sent") == 200 + 20 + 10
    assert fact(output, "counted") == 200
    assert fact(output, "lost") == fact(output, "doubled") == 0
    assert fact(output, "replayed") >= 20 + 5  # half of the lost answers are lost when they begin to come


def test_keys_have_at_least_22_characters_and_are_new_in_each_run(
    serve: Callable[..., FakeTally], log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tally = serve()
    short = log.rename(log.with_name("a"))
    assert run(tally, short) == run(tally, short) == 0
    assert len(tally.keys) == 400
    assert min(map(len, tally.keys)) >= 22
    assert tally.visits.total() == 400


def test_visits_counted_twice_are_seen(
    serve: Callable[..., FakeTally], log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tally = serve(knows_keys=False)
    assert run(tally, log) == 1
    printed = capsys.readouterr()
    assert fact(printed.out, "doubled") == tally.visits.total() - 200 >= 20
    assert fact(printed.out, "lost") == 0
    assert "differs: /page-" in printed.out
    assert "pages differ from the log" in printed.err


def test_visits_that_were_acknowledged_and_not_counted_are_seen(
    serve: Callable[..., FakeTally], log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tally = serve(forgets_every=50)
    assert run(tally, log) == 1
    assert fact(capsys.readouterr().out, "lost") == 200 - tally.visits.total() > 0


def test_visitors_come_again_when_the_server_is_busy(
    serve: Callable[..., FakeTally], log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tally = serve(refuses_every=5)
    assert run(tally, log) == 0
    assert tally.visits.total() == 200
    assert "times again because the server was busy" in capsys.readouterr().out


def test_counts_that_lag_are_waited_for_and_the_wait_is_told(
    serve: Callable[..., FakeTally], log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(serve(shown_after_s=0.7), log) == 0
    found = re.search(r"those of the log (\d\.\d) s after the last visit", capsys.readouterr().out)
    assert found
    assert 0.3 <= float(found[1]) <= 5


def test_counts_that_come_later_than_they_may_are_seen(
    serve: Callable[..., FakeTally], log: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are right when they are read for the last time: the run fails all the same."""
    monkeypatch.setattr(demo, "SETTLE_S_MAX", 0.3)
    monkeypatch.setattr(demo, "SETTLE_LOOK_S", 0.8)
    assert run(serve(shown_after_s=0.6), log) == 1
    printed = capsys.readouterr()
    assert "counts were not yet those of the log" in printed.out
    assert "All 7 pages have the count that the log says." in printed.out
    assert "the counts were right only later than" in printed.err


def test_counts_that_never_come_are_seen(
    serve: Callable[..., FakeTally], log: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "SETTLE_S_MAX", 0.3)
    assert run(serve(shown_after_s=60), log) == 1
    printed = capsys.readouterr()
    assert fact(printed.out, "lost") == 200
    assert "counts were not yet those of the log" in printed.out
    assert "7 pages differ from the log" in printed.err


def test_drift_is_asked_for_during_the_run_and_after_it_and_none_is_told(
    serve: Callable[..., FakeTally], log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tally = serve()
    assert run(tally, log) == 0
    assert tally.drift_asked >= 3  # before, meanwhile, at the end
    assert "0 tallies drifted (minutes not yet judged are not in it" in capsys.readouterr().out


@pytest.mark.parametrize("when", ["meanwhile", "at the end"])
def test_drift_is_seen_though_every_count_is_right(
    serve: Callable[..., FakeTally], log: Path, capsys: pytest.CaptureFixture[str], when: str
) -> None:
    """`meanwhile`: it is gone again when the run ends. The second page of the answer is read too."""

    def drifts(tally: FakeTally) -> list[dict[str, Any]]:
        counted = len(tally.keys)
        there = 0 < counted < 200 if when == "meanwhile" else counted == 200
        return [drifting("a", 3), drifting("b", -2)] if there else []

    tally = serve(drifts=drifts, shown_after_s=1.2 if when == "at the end" else 0, refuses_every=3)
    demo_every_s, drift_watch.ASK_EVERY_S = drift_watch.ASK_EVERY_S, 0.01
    try:
        assert run(tally, log) == 1
    finally:
        drift_watch.ASK_EVERY_S = demo_every_s
    printed = capsys.readouterr()
    assert "All 7 pages have the count" in printed.out
    assert "drifts: visits of a: by +3\ndrifts: visits of b: by -2\n" in printed.out
    assert "2 tallies drifted during the run" in printed.err


def test_what_drifted_before_the_run_is_not_its_doing_unless_it_drifts_otherwise_since(
    serve: Callable[..., FakeTally], log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(serve(drifts=lambda _: [drifting("a", 3)]), log) == 0
    assert run(serve(drifts=lambda tally: [drifting("a", 4 if tally.keys else 3)]), log) == 1
    assert "drifts: visits of a: by +4" in capsys.readouterr().out


def test_with_settle_drift_is_asked_for_when_the_minutes_of_the_run_are_judged(
    serve: Callable[..., FakeTally], log: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A drift that shows only then is what it is for."""
    judged_s = time.monotonic() + 2
    monkeypatch.setattr(drift_watch, "judged_at_s", lambda now_s, settle_s: now_s + 2 + (settle_s - 7))
    monkeypatch.setenv("TALLY_SETTLE_S", "7")
    tally = serve(drifts=lambda _: [drifting("a", 3)] if time.monotonic() > judged_s else [])
    assert run(tally, log, "--settle") == 1
    assert "1 tallies drifted (the run's minutes were judged)" in capsys.readouterr().out


def test_a_minute_is_judged_after_its_end_the_settle_time_and_a_sweep() -> None:
    assert drift_watch.judged_at_s(600.0, 20) == 660 + 20 + SCHEDULE_S_MAX + drift_watch.SWEEP_S_MAX
    assert drift_watch.judged_at_s(659.9, 20) == drift_watch.judged_at_s(600.0, 20)


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"health": {"hello": "world"}}, "is no Tally server: set PORT"),
        ({"dies_after": 50}, "answers no longer"),
        ({"refuses_every": 1}, "is too busy: 30 attempts were refused"),
        ({"status": 403}, "start it without TALLY_PAGE_HOSTS"),
        ({"status": 400}, "refused a visit with 400: no"),
    ],
)
def test_a_server_that_cannot_be_used_is_one_line(
    serve: Callable[..., FakeTally],
    log: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    how: dict[str, Any],
    says: str,
) -> None:
    monkeypatch.setattr(visitors, "PAUSE_MAX_S", 0.002)
    assert run(serve(**how), log) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert says in printed.err


def test_a_server_that_does_not_speak_http_is_one_line(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    listening, done = threading.Event(), threading.Event()
    port = free_port()

    async def chat() -> None:
        async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"220 smtp.example ready\r\n")
            await writer.drain()
            writer.close()
            await writer.wait_closed()

        async with await asyncio.start_server(greet, "127.0.0.1", port):
            listening.set()
            await asyncio.to_thread(done.wait)

    thread = threading.Thread(target=asyncio.run, args=(chat(),))
    thread.start()
    assert listening.wait(5)
    try:
        assert demo.main(["--port", str(port), "--log", str(log)]) == 1
    finally:
        done.set()
        thread.join()
    assert "is no Tally server" in capsys.readouterr().err


@pytest.mark.parametrize(
    "content", [None, b"", b"no log at all\n", b"\x1f\x8bbroken", gzip.compress(b"x" * 99, mtime=0)[:-9]]
)
def test_a_log_that_cannot_be_used_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | None
) -> None:
    path = tmp_path / "other.log"
    if content is not None:
        path.write_bytes(content)
    assert demo.main(["--log", str(path)]) == 1
    printed = capsys.readouterr()
    assert printed.err.startswith(f"tally: the log {path} ")
    assert printed.err.count("\n") == 1


def test_the_log_is_read_gzipped_or_plain_and_malformed_lines_are_counted_apart(tmp_path: Path) -> None:
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
        assert log.malformed == 6
        assert log.recount() == {
            f"{SITE}/a": 3,
            f"{SITE}/b": 1,
            f"{SITE}/cgi-bin/imagemap/countdown70?285,291": 1,
        }


def test_nasas_log_is_whole() -> None:
    log = read_log(LOG)
    assert (len(log.visits), log.malformed, len(log.recount())) == (1880, 0, 464)
    assert log.recount().most_common(1) == [(f"{SITE}/images/KSC-logosmall.gif", 97)]
    acknowledgement = (LOG.parent / "README.md").read_text()
    assert "Jim Dumoulin of the Kennedy Space Center" in acknowledgement
    assert "may be freely redistributed" in acknowledgement


@pytest.mark.parametrize(
    "arguments", [["--port", "0"], ["--port", "70000"], ["--port", "http"], ["--concurrency", "0"], ["--nonsense"]]
)
def test_wrong_arguments_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        demo.main(arguments)
    assert stopped.value.code == 2


def test_a_dev_server_that_does_not_start_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], log: Path, tmp_path: Path
) -> None:
    """With a stand-in for `python -m local`, which says why and ends."""
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho 'tally: Node is missing' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(broken))
    assert demo.main(["--port", str(free_port()), "--log", str(log)]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == "tally: `make dev` did not start: Node is missing"


def test_what_was_started_is_stopped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """With a stand-in for `python -m local`, which says that it is ready and leaves its process id."""
    started, port = tmp_path / "pid", free_port()
    stand_in = tmp_path / "python"
    stand_in.write_text(f"#!/bin/sh\necho $$ > {started}\necho 'tally: ready on it'\nexec sleep 60\n")
    stand_in.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(stand_in))
    with demo.running(port):
        os.kill(int(started.read_text()), 0)
    with pytest.raises(ProcessLookupError):
        os.kill(int(started.read_text()), 0)


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_is_one_line(serve: Callable[..., FakeTally], log: Path, stop: signal.Signals) -> None:
    tally = serve(refuses_every=1)  # keeps the demo busy
    process = subprocess.Popen(
        [sys.executable, "-m", "demo", "--port", str(tally.port), "--log", str(log)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline_s = time.monotonic() + 20
    while tally.requests < 20 and time.monotonic() < deadline_s:
        time.sleep(0.05)
    process.send_signal(stop)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (130, "")
    assert err == "tally: demo stopped; visits that were sent stay counted\n"
