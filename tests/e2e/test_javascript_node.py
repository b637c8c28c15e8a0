"""Tests that the JavaScript client in Node, with a folder as storage, loses no change if its process is killed."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest

from tests.e2e.dev import Dev
from tests.e2e.faulty_api import FaultyApi
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.long

WORKER = Path(__file__).with_name("javascript_worker.mjs")
JOBS, KILLS = 300, 12


def test_a_service_that_is_killed_many_times_counts_each_job_once(dev: Dev, tmp_path: Path) -> None:
    api, chance = FaultyApi(dev, seed=1), random.Random(1)
    with api.server.running():
        command = ["node", str(WORKER), api.server.origin, str(tmp_path / "store"), str(JOBS)]
        for _ in range(KILLS):
            lines_left = chance.randrange(1, 60)  # the worker is killed after this many lines of output
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
                assert worker.stdout is not None
                for _ in worker.stdout:
                    lines_left -= 1
                    if not lines_left:
                        worker.kill()
        ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    print(f"{KILLS} kills, requests: {dict(api.fault_counts)}")
    assert dev.plays("killed") == JOBS
    assert "doubt" not in ended.stdout
    # A process that is killed while it writes leaves a file `.part`.
    files = [path.name for path in (tmp_path / "store").iterdir() if path.suffix != ".part"]
    assert len(files) <= 1, "only the file with the server's time: no change waits"
