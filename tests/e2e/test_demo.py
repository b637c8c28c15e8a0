"""Tests the demo against `make dev`: lost and doubled visits count once, and the console shows the log's numbers."""

from __future__ import annotations

import gzip
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import expect, sync_playwright

from bench.demo import replay
from bench.demo.weblog import read_log
from tests.e2e import chromium
from tests.e2e.dev import Dev
from tests.environments import ROOT
from tests.patience import PATIENCE_S

# The demo with longer limits, for a busy machine: seconds for the counts, and minutes of the ledger for the series.
PATIENT_DEMO = f"""
import sys
from bench.demo import __main__, replay
replay.COUNTS_S_MAX = replay.SERIES_WAIT_MINUTES_MAX = {PATIENCE_S}
sys.exit(__main__.main())
"""
LINES = 200  # the demo loses ten of the answers, and sends twenty visits twice


@pytest.mark.long
def test_the_demo_and_the_console_show_the_numbers_of_the_log(start: Callable[..., Dev], tmp_path: Path) -> None:
    log = tmp_path / "first-lines.log.gz"
    whole = gzip.decompress((ROOT / "bench/data/nasa-http-aug95-first-lines.log.gz").read_bytes())
    log.write_bytes(gzip.compress(b"\n".join(whole.split(b"\n")[:LINES]) + b"\n"))
    dev = start(TALLY_MINUTE_S="1").wait_until_ready()  # so Tally judges drift and writes top lists within 25 s
    process = subprocess.run(
        [sys.executable, "-c", PATIENT_DEMO, "--port", str(dev.port), "--log", str(log)],
        capture_output=True, text=True, check=False, cwd=ROOT,
    )  # fmt: skip
    assert process.returncode == 0, process.stdout + process.stderr
    assert "10  visits again because their answer was lost" in process.stdout
    assert " s after the last visit." in process.stdout  # the demo has waited until all visits counted
    assert ": 0 tallies drifted" in process.stdout
    assert ": series and top list of the 10 most visited pages equal the log." in process.stdout
    address = process.stdout.split()[-1]
    assert address.startswith(f"http://localhost:{dev.port}/console#/top/")
    with sync_playwright() as playwright, chromium.launch(playwright) as browser:
        page = chromium.new_context(browser).new_page()
        page.goto(address)
        page.get_by_label("Your name").fill("ann")  # only a signed-in user may list the shipped counters
        page.get_by_label("Your name").press("Enter")
        for visited, number in read_log(log).page_visits().most_common(replay.PAGES):
            expect(page.locator("tr", has=page.get_by_text(visited, exact=True)).locator("td").last).to_have_text(
                str(number)
            )
        for visited, number in read_log(log).page_visits().most_common(replay.PAGES):
            page.goto(f"{dev.url}/console#/tally/visits/{quote(visited, safe='')}")
            expect(page.locator("h1")).to_have_text(visited)
            expect(page.locator(".moves .sum strong")).to_have_text(str(number))
            expect(page.locator(".moves .chart canvas")).to_be_visible()
