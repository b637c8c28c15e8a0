"""An old counter in a real Redis, fed through a network that loses things: `tally shadow` says how far it is off."""

from __future__ import annotations

import csv
import gzip
import io
import random
import re
import socket
import socketserver
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from tests.commands import Command
from tests.environments import ROOT
from tests.invariants.judged import deployed
from tests.old_numbers import stores
from tests.old_numbers.conftest import Read

pytestmark = pytest.mark.long  # it begins a server that only such tests need
LOG = ROOT / "bench/data/nasa-http-aug95-first-lines.log.gz"
HOUR_S, HOURS, EVENTS = 3600, 4, 300
LOST_REQUEST, LOST_ANSWER = 0.05, 0.07

CLIENT = """
import sys, redis
from redis.backoff import NoBackoff
from redis.retry import Retry
port, retries = map(int, sys.argv[1:])
old = redis.Redis(port=port, retry=Retry(NoBackoff(), retries))
for id in map(str.strip, sys.stdin):
    try:
        old.incr(f"plays:{id}")
    except redis.ConnectionError:
        pass  # a page does not fail because of its counter
"""
"""What counts in so many places: it gives up, or it sends again, and INCR has no key that makes it count once."""


class Lossy:
    """Stands between a client and Redis. `requests`, `answers`: how many INCRs lost theirs."""

    def __init__(self, port: int, seed: int) -> None:
        self.requests = self.answers = 0
        self._chance, lossy = random.Random(seed), self

        class Way(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                with socket.create_connection(("127.0.0.1", port)) as redis:
                    while sent := self.request.recv(65536):
                        chance = lossy._chance.random() if b"INCR" in sent else 1.0
                        if chance < LOST_REQUEST:
                            lossy.requests += 1
                            return
                        redis.sendall(sent)
                        answer = redis.recv(65536)
                        if chance < LOST_REQUEST + LOST_ANSWER:
                            lossy.answers += 1
                            return
                        self.request.sendall(answer)

        self.server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Way)
        self.server.daemon_threads = True

    @contextmanager
    def running(self) -> Iterator[int]:
        """Its port."""
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        with suppress(Exception), self.server:
            yield int(self.server.server_address[1])
            self.server.shutdown()


def pages() -> Iterator[str]:
    """The pages that NASA's log of August 1995 has, in its order, as ids."""
    for line in gzip.decompress(LOG.read_bytes()).decode("latin-1").splitlines():
        if found := re.search(r'"GET (/\S*)', line):
            yield re.sub(r"[^A-Za-z0-9]+", "-", found[1]).strip("-") or "home"


def send(port: int, ids: list[str], retries: int) -> None:
    """Count these in Redis with a client that sends again so often."""
    command = [stores.python(), "-c", CLIENT, str(port), str(retries)]
    subprocess.run(command, input="\n".join(ids), text=True, check=True)


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_shadow_says_to_the_unit_how_far_redis_is_off(
    reading: Read, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In even hours the client gives up what fails, so Redis has too few. In odd ones it sends again: too many."""
    events = pages()
    expected: list[dict[str, Any]] = []
    readings: list[Path] = []
    with stores.redis() as redis, deployed() as judged:
        known = sorted(set(islice(pages(), HOURS * EVENTS)))
        send(redis, known * 2, 0)  # what was counted before Tally
        judged.series = True

        def read() -> None:
            """What cron does at the full hour."""
            judged.sleep(HOUR_S - judged.now_s % HOUR_S)
            at = ("int(time.time())", str(int(judged.now_s)))
            readings.append(reading("redis_numbers.py", at, REDIS_URL=f"redis://127.0.0.1:{redis}"))

        read()
        for hour in range(HOURS):
            judged.run(10)
            ids = list(islice(events, EVENTS))
            lossy = Lossy(redis, hour)
            with lossy.running() as port:
                send(port, ids, 3 * (hour % 2))
            for id_ in ids:
                judged.play(id_)
            off = lossy.answers if hour % 2 else -lossy.requests
            assert off, "nothing was lost"
            expected.append({"old": len(ids) + off, "tally": len(ids), "off": off})
            read()
        judged.run(60)  # until Tally has summed up the last hour
        command = Command(judged.store, tmp_path, capsys)
        capsys.readouterr()
        assert command("shadow", "plays", *readings, "--tz", "UTC") == 1
        out, err = command.said()
        found = [{name: int(row[name]) for name in ("old", "tally", "off")} for row in rows(out)]
        print(out, err)
        assert found == expected
        total = sum(one["off"] for one in expected)
        assert f"the old number is off by {total:+,} " in err
        assert f"Tally {HOURS * EVENTS:,}" in err
