"""The demo against a small server that counts as Tally does, or fails in ways that the demo must notice."""

from __future__ import annotations

import asyncio
import gzip
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from aiohttp import web

from dev.demo import __main__ as demo
from dev.demo import replay, visitors
from dev.demo.weblog import SITE, read_log
from tests.patience import PATIENCE_S, wait_for

pytestmark = pytest.mark.long  # it tests a tool

HEALTHY = {"status": "ok", "version": "test"}
LINE = 'host - - [01/Aug/1995:00:00:01 -0400] "GET {path} HTTP/1.0" 200 1839'


@dataclass
class FakeTally:
    """Counts visits, once for each key unless a field says otherwise."""

    port: int = 0
    health: dict[str, Any] = field(default_factory=lambda: dict(HEALTHY))
    knows_keys: bool = True
    forgets_every: int = 0
    refuses_every: int = 0
    dies_after: int = 0
    status: int = 202
    shown_after: int = 0
    """How many reads come before a visit shows in the count."""
    drifts: Callable[[FakeTally], list[dict[str, Any]]] = lambda _: []
    drift_asked: int = 0
    folds: bool = True
    """Whether series and top list ever come to the end of the run."""
    loses: Callable[[str, str], int] = lambda what, page: 0
    """How many visits of a page are missing in the `series` or the `top` list."""
    late: list[tuple[int, str]] = field(default_factory=list)
    """Visits that do not show yet: at which read they do, and their page."""
    reads: int = 0
    visits: Counter[str] = field(default_factory=Counter)
    keys: Counter[str] = field(default_factory=Counter)
    requests: int = 0

    async def answer(self, request: web.Request) -> web.Response:
        if request.path == "/health":
            return web.json_response(self.health)
        if request.path == "/dev/token":
            assert (await request.json())["scope"] == "tally/read"
            return web.json_response({"access_token": "its-token"})
        if request.path == "/dev/stack":
            return web.json_response({"minute_s": 1})
        if request.path == "/drift":
            return self.drift(request)
        self.reads += request.method == "GET"
        self.visits.update(shown for due, shown in self.late if due < self.reads)
        self.late = [(due, shown) for due, shown in self.late if due >= self.reads]
        if request.path in ("/series", "/top"):
            return self.hours(request)
        self.requests += 1
        number = self.requests
        if self.dies_after and number > self.dies_after:
            assert request.transport is not None
            request.transport.abort()
        if self.refuses_every and number % self.refuses_every == 0:
            throttled = number % (2 * self.refuses_every) == 0
            return web.json_response({"message": "busy"}, status=429 if throttled else 503)
        if request.path == "/dev/lost/visits":
            counted = self.count(await request.json())
            assert request.transport is not None
            request.transport.abort()
            return counted
        if request.method == "GET":
            url = request.query["url"]
            return web.json_response({"counter": "visits", "id": url, "value": self.visits[url]})
        return self.count(await request.json())

    def hours(self, request: web.Request) -> web.Response:
        """A series of two days, or the top list of a month. They have a visit only when the count shows it."""
        as_of = time.time() + 1 if self.folds and not self.late else None
        if request.path == "/top":
            assert request.query["span"] == time.strftime("%Y-%m", time.gmtime())
            rows = [{"id": page, "value": number - self.loses("top", page)} for page, number in self.visits.items()]
            return web.json_response({"top": rows, "as_of": as_of})
        page = request.query["of"].removeprefix("visits:")
        number = max(0, self.visits[page] - self.loses("series", page))
        points = [{"from": 0, "value": number // 2}, {"from": 1, "value": number - number // 2}]
        return web.json_response({"series": points, "as_of": as_of})

    def count(self, visit: dict[str, str]) -> web.Response:
        if self.status != 202:
            return web.json_response({"detail": "no"}, status=self.status)
        self.keys[visit["key"]] += 1
        replay = self.knows_keys and self.keys[visit["key"]] > 1
        if not replay and not (self.forgets_every and len(self.keys) % self.forgets_every == 0):
            self.late.append((self.reads + self.shown_after, visit["url"]))
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


class Ran(NamedTuple):
    """One run of the demo: exit status, stdout, stderr."""

    status: int
    out: str
    err: str

    def fact(self, name: str) -> int:
        found = re.search(rf"^{name} +([0-9,]+) ", self.out, re.MULTILINE)
        assert found, self.out
        return int(found[1].replace(",", ""))


Serve = Callable[..., FakeTally]
Run = Callable[..., Ran]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts servers on a loop in a thread, since the demo's main has a loop of its own."""
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
        """Wait until the demo's connections are gone, also one that it gave up and that is accepted only now."""
        while len(asyncio.all_tasks()) > 1:  # CPython 3.11 leaves a socket open that a closed server accepts
            await asyncio.sleep(0.01)
        for runner in runners:
            await runner.cleanup()

    def wait(work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, loop).result(PATIENCE_S)

    def served(**how: Any) -> FakeTally:
        tally = FakeTally(**how)
        wait(start(tally))
        return tally

    yield served
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
    """Run the demo, with short pauses."""
    monkeypatch.setattr(visitors, "PAUSE_FIRST_S", 0.001)
    monkeypatch.setattr(replay, "SETTLE_S_MAX", PATIENCE_S)
    monkeypatch.setattr(replay, "SETTLE_LOOK_S", 0.001)
    monkeypatch.setattr(replay, "FOLDED_MINUTES_MAX", PATIENCE_S)
    monkeypatch.setattr(replay, "LOOK_S", 0.01)

    def run(tally: FakeTally, *more: str, log: Path = log) -> Ran:
        status = demo.main(["--port", str(tally.port), "--log", str(log), *more])
        return Ran(status, *capsys.readouterr())

    return run


def drifting(target: str, drift: int) -> dict[str, Any]:
    return {"counter": "visits", "id": target, "drift": drift, "since": 1, "confirmed": False}


def test_every_visit_counts_once_despite_doubles_lost_answers_and_a_busy_server(serve: Serve, run: Run) -> None:
    tally = serve(refuses_every=5)
    ran = run(tally)
    assert ran.status == 0
    assert tally.visits.total() == len(tally.keys) == ran.fact("counted") == 200
    assert ran.fact("lost") == ran.fact("doubled") == 0
    assert ran.fact("sent") > 200 + 20 + 10  # ten lost answers, twenty doubles, and retries
    assert ran.fact("replayed") >= 10  # of the doubles; a refusal takes some of them
    assert tally.drift_asked == 2  # before and after the run


def test_double_counting_is_noticed(serve: Serve, run: Run) -> None:
    tally = serve(knows_keys=False)
    ran = run(tally)
    assert (ran.status, ran.fact("lost")) == (1, 0)
    assert ran.fact("doubled") == tally.visits.total() - 200 >= 20
    assert "differs: /page-" in ran.out
    assert "pages differ from the log" in ran.err


def test_acknowledged_visits_that_do_not_count_are_noticed(
    serve: Serve, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "SETTLE_S_MAX", 0)
    tally = serve(forgets_every=50)
    ran = run(tally)
    assert ran.status == 1
    assert ran.fact("lost") == 200 - tally.visits.total() > 0


def test_drift_is_noticed_though_every_count_is_right(serve: Serve, run: Run) -> None:
    """The demo reads the second page of the answer too."""
    ran = run(serve(drifts=lambda tally: [drifting("a", 3), drifting("b", -2)] if tally.keys else []))
    assert ran.status == 1
    assert "All 7 pages have the log's count." in ran.out
    assert "drifts: visits of a: by +3\ndrifts: visits of b: by -2\n" in ran.out
    assert "2 tallies drifted during the run" in ran.err


def test_series_and_top_list_of_the_most_visited_pages_are_compared_with_the_log(serve: Serve, run: Run) -> None:
    tally = serve(shown_after=30)
    for _ in range(2):  # what an earlier run left is not this one's
        ran = run(tally)
        assert ran.status == 0
        assert re.search(
            r"GET /top, \d+ s after .*: the 7 most visited pages: series and top list equal the log", ran.out
        )
        assert ": 0 tallies drifted (the run's minutes are judged)" in ran.out
        assert ran.out.endswith(f"hours: http://localhost:{tally.port}/console#/top/visits\n")


@pytest.mark.parametrize("where", ["series", "top"])
def test_a_series_or_a_top_list_that_differs_from_the_log_is_noticed(serve: Serve, run: Run, where: str) -> None:
    ran = run(serve(loses=lambda what, page: what == where and page == f"{SITE}/page-3"))
    assert ran.status == 1
    found = {"series": (28, 29), "top": (29, 28)}[where]
    assert "differs: /page-3: 29 in the log, {} in the series, {} in the top list".format(*found) in ran.out
    assert "series or top list differ from the log for 1 pages" in ran.err


def test_a_server_that_folds_nothing_is_noticed_unless_the_demo_is_quick(
    serve: Serve, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "FOLDED_MINUTES_MAX", 0)
    ran = run(serve(folds=False))
    assert (ran.status, "did not come to the end of the run" in ran.err) == (1, True)
    ran = run(serve(folds=False), "--quick")
    assert (ran.status, ": 0 tallies drifted (without minutes not yet judged" in ran.out) == (0, True)


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"health": {"hello": "world"}}, "not to Tally: set PORT"),
        ({"dies_after": 50}, "stopped answering"),
        ({"refuses_every": 1}, "is too busy: it refused 30 attempts"),
        ({"status": 403}, "start it without TALLY_PAGE_HOSTS"),
        ({"status": 400}, "refused a visit with 400: no"),
    ],
)
def test_an_unusable_server_is_one_line(
    serve: Serve, run: Run, monkeypatch: pytest.MonkeyPatch, how: dict[str, Any], says: str
) -> None:
    monkeypatch.setattr(visitors, "PAUSE_MAX_S", 0.002)
    ran = run(serve(**how))
    assert (ran.status, ran.out, ran.err.count("\n")) == (1, "", 1), ran.err
    assert says in ran.err


@pytest.mark.parametrize("content", [None, b"no log at all\n", gzip.compress(b"x" * 99, mtime=0)[:-9]])
def test_an_unusable_log_is_one_line(run: Run, tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "other.log"
    if content is not None:
        path.write_bytes(content)
    ran = run(FakeTally(port=1), log=path)
    assert (ran.status, ran.err.count("\n")) == (1, 1)
    assert ran.err.startswith(f"tally: the log {path} ")


def test_the_log_is_gzipped_or_plain_and_malformed_lines_count_apart(tmp_path: Path) -> None:
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


def test_nasas_log_is_complete() -> None:
    path = demo.APP / demo.LOG
    log = read_log(path)
    assert (len(log.visits), log.malformed, len(log.recount())) == (1880, 0, 464)
    assert log.recount().most_common(1) == [(f"{SITE}/images/KSC-logosmall.gif", 97)]
    acknowledgement = " ".join((path.parent / "README.md").read_text().split())
    assert "Jim Dumoulin of the Kennedy Space Center" in acknowledgement
    assert "may be freely redistributed" in acknowledgement


def test_ctrl_c_is_one_line(serve: Serve, log: Path) -> None:
    """SIGTERM, which acts like Ctrl-C."""
    tally = serve(refuses_every=1)  # keeps the demo busy
    process = subprocess.Popen(
        [sys.executable, "-m", "dev.demo", "--port", str(tally.port), "--log", str(log)],
        cwd=demo.APP, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    wait_for(lambda: tally.requests >= 20)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (130, "")
    assert err == "tally: demo stopped; Tally keeps the visits it has counted\n"
