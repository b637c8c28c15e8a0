"""The demo against a running `make dev`: lost and doubled visits count once."""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path

from tests.e2e.dev import Dev

ROOT = Path(__file__).resolve().parent.parent.parent
LINES = 200  # ten of them lose their answer, twenty are sent twice
DEMO_S_MAX = 100


def test_the_demo_finds_every_page_as_the_log_says(dev: Dev, tmp_path: Path) -> None:
    log = tmp_path / "first-lines.log.gz"
    whole = gzip.decompress((ROOT / "data/nasa-http-aug95-first-lines.log.gz").read_bytes())
    log.write_bytes(gzip.compress(b"\n".join(whole.split(b"\n")[:LINES]) + b"\n"))
    done = subprocess.run(
        [sys.executable, "-m", "demo", "--port", str(dev.port), "--log", str(log)],
        capture_output=True, text=True, timeout=DEMO_S_MAX, check=False, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "10  visits again because their answer was lost" in done.stdout
    assert " s after the last visit." in done.stdout  # in time
    assert ": 0 tallies drifted" in done.stdout
