"""`make pictures` takes the pictures of README.md and docs/, in Chromium.

The console shows a day of a real log (pictured_day.py). `make pictures` fails if the charts of the ten most visited
pages do not have the log's counts. The dashboard is drawn from the template. A second, new stack counts the demo's log,
and the dashboard shows the numbers that this stack's functions report. A widget without a number says why.
`made-of.json` beside the pictures has digests of what they show. If a digest changes, tests/infra/test_pictures.py asks
for new pictures.

The overview lists the present day in UTC. The log's day has 14.7 hours, and ends less than an hour before the pictures
are taken. So from 15:00 UTC to midnight the overview shows the whole day of the log.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

sys.path.insert(0, str(Path.cwd() / "lambdas"))

from playwright.sync_api import Browser, Page, ViewportSize, expect, sync_playwright

import app
from bench import ROOT
from bench.demo.__main__ import LOG as DEMO_LOG
from bench.demo.replay import replay
from bench.demo.report import complaints, report
from bench.demo.weblog import read_log
from bench.running import Dev, bare_environment
from tests.e2e import chromium
from tests.engines import MEMORY_FOLDER
from tests.infra.template import Json, Template
from tests.pictured_day import CALLS_BY_CLIENT, EDIT_AMOUNT, EDITED_VIDEO, MINUTE_S, PLAYS_BY_VIDEO, FilledDay, fill
from tests.pictured_day import LOG as DAY_LOG

FOLDER = ROOT / "docs/pictures"
DIGESTS = FOLDER / "made-of.json"
OVERVIEW, TALLY, DRIFT = "console-overview.webp", "console-tally.webp", "console-drift.webp"
DASHBOARD = "dashboard.webp"
PICTURES = (OVERVIEW, TALLY, DRIFT, DASHBOARD)
CONSOLE = ROOT / "tally/console"
VIEW = ViewportSize(width=1120, height=860)
WAIT_MS = 120_000.0  # on a busy machine, the first answers of functions take long
COMPARED_PAGES = 10  # the most visited pages, whose charts are compared with the log
QUALITY = 0.6  # of a WebP file, from 0 to 1
FOOTER = (
    "The numbers are from a run of make demo on one machine, where a minute of the ledger takes 3 s. AWS's own metrics"
    " and the alarms exist in AWS only."
)
# Playwright makes PNG and JPEG. Chromium converts the pictures to WebP, at a third of the size.
_TO_WEBP = """async ([png, quality]) => {
  const bitmap = await createImageBitmap(await (await fetch(`data:image/png;base64,${png}`)).blob());
  const canvas = Object.assign(document.createElement("canvas"), { width: bitmap.width, height: bitmap.height });
  canvas.getContext("2d").drawImage(bitmap, 0, 0);
  return canvas.toDataURL("image/webp", quality).split(",")[1];
}"""
_COMMENT = re.compile(rb"\s*(?:/\*.*?\*/|<!--.*?-->|//[^\n]*)", re.DOTALL)  # also what follows the // of a URL
_DASHBOARD_HEAD = """<!doctype html><meta charset="utf-8"><style>
body { font: 14px/1.4 system-ui, sans-serif; color: #17191c; background: #f6f6f4; margin: 20px 24px; width: 1072px }
h2 { font-size: 16px; margin: 18px 0 8px } h2:first-child { margin-top: 0 }
.row { display: grid; grid-auto-flow: column; grid-auto-columns: 1fr; gap: 10px }
.card { background: #fff; border: 1px solid #e3e3df; border-radius: 8px; padding: 8px 12px }
h3 { font-size: 13px; margin: 0 0 4px } p { margin: 0; color: #5b6068 }
.card p { display: flex; justify-content: space-between; font-variant-numeric: tabular-nums }
.card b { color: #0f766e } footer { margin-top: 14px; color: #5b6068 }
</style>"""


def digests(dashboard: Json) -> dict[str, str]:
    """Returns the digests of the console's files without comments, of the dashboard's headings and widgets, and of the
    log's day."""
    files = {path.name.encode(): path.read_bytes() for path in sorted(CONSOLE.iterdir()) if path.is_file()}
    console = b"".join(name + _COMMENT.sub(b"", content) for name, content in files.items())
    titles = [widget["properties"].get("title") or widget["properties"]["markdown"] for widget in dashboard["widgets"]]
    parts = {"console": console, "dashboard": json.dumps(titles).encode(), "day": DAY_LOG.read_bytes()}
    return {name: hashlib.sha256(part).hexdigest() for name, part in parts.items()}


def synthesize_dashboard() -> Json:
    """Returns the dashboard of the stage dev."""
    context = json.loads((ROOT / "cdk.json").read_text())["context"] | {"aws:cdk:bundling-stacks": []}
    with tempfile.TemporaryDirectory() as folder:
        app.build({**context, "stage": "dev"}, folder).synth()
        return Template(Path(folder)).dashboard()


def dashboard_page(dashboard: Json, reported: list[Json]) -> str:
    """Returns the dashboard as an HTML page. `reported`: the metrics that `GET /dev/metrics` answers."""
    by_series = {(metric["metric"], *sorted(metric["dimensions"].items())): metric for metric in reported}
    sections: list[str] = []
    for widget in dashboard["widgets"]:
        properties = widget["properties"]
        if widget["type"] == "text":
            sections.append(f"</div><h2>{escape(properties['markdown'].lstrip('# '))}</h2><div class=row>")
        elif widget["type"] == "alarm":
            sections.append(f"<div class=card><p>The state of {len(properties['alarms'])} alarms</div>")
        else:
            sections.append(
                f"<div class=card><h3>{escape(properties['title'])}</h3>{''.join(_lines(properties, by_series))}</div>"
            )
    return f"{_DASHBOARD_HEAD}{''.join(sections).removeprefix('</div>')}</div><footer>{FOOTER}</footer>"


def _lines(properties: Json, by_series: dict[Any, Json]) -> Iterator[str]:
    """Yields a line for each metric with a number; without numbers, one line that says why."""
    has_number = has_aws_metric = False
    for *names, options in properties["metrics"]:  # names: namespace, metric, then each dimension's name and value
        has_aws_metric |= bool(names) and names[0].startswith("AWS/")
        dimensions = sorted(zip(names[2::2], names[3::2], strict=True))
        metric = by_series.get((names[1], *dimensions)) if names else None
        if metric:
            has_number = True
            number = metric["sum"] if options["stat"] == "Sum" else metric["last"]
            yield f"<p>{escape(options['label'].removesuffix(' ${SUM}'))} <b>{number:,}</b>"
    if not has_number:
        yield "<p>in AWS only" if has_aws_metric else "<p>no data"


def save(page: Page, name: str) -> None:
    """Save the visible part of the page. For the overview and the dashboard: save the whole page."""
    png = base64.b64encode(page.screenshot(full_page=name in (OVERVIEW, DASHBOARD), animations="disabled")).decode()
    assert page.context.browser
    blank = page.context.browser.new_page()  # the console's security policy refuses scripts that are not its own
    webp = base64.b64decode(blank.evaluate(_TO_WEBP, [png, QUALITY]))
    (FOLDER / name).write_bytes(webp)
    print(f"tally: docs/pictures/{name}, {len(webp):,} bytes", file=sys.stderr)


def take_console_pictures(browser: Browser, server: Dev, filled: FilledDay) -> None:
    """Take the pictures of the console: a drift, then, after its repair, the overview and a page's tally.

    Raises AssertionError if a number differs from the day's: a page's visits, a client's calls, a video's plays.
    """
    page = _sign_in(browser, server.url, filled.zone)
    expect(page.locator(".verdict")).to_contain_text("Action needed: drift (", timeout=WAIT_MS)  # the only problem
    page.goto(f"{server.url}/console#/drift")
    expect(page.locator("#page")).to_contain_text("1 number, 1 confirmed", timeout=WAIT_MS)
    _wait_until_loaded(page)
    save(page, DRIFT)
    _repair(server)
    page.goto(f"{server.url}/console#/tally/plays/{EDITED_VIDEO}")
    expect(page.locator(".now")).to_contain_text("Right, checked up to", timeout=WAIT_MS)
    expect(page.locator(".live")).to_have_text(f"{PLAYS_BY_VIDEO[EDITED_VIDEO]:,}")
    expect(page.locator(".legend")).to_contain_text("Repair of", timeout=WAIT_MS)
    page.goto(f"{server.url}/console#/")
    expect(page.locator(".verdict")).to_contain_text("All is well", timeout=WAIT_MS)
    for client, number in CALLS_BY_CLIENT.items():
        expect(page.locator(".leaders li").filter(has_text=client)).to_contain_text(f"{number:,}")
    _wait_until_loaded(page)
    save(page, OVERVIEW)
    for visited, number in reversed(filled.visits.most_common(COMPARED_PAGES)):
        page.goto(f"{server.url}/console#/tally/visits/{quote(visited, safe='')}")
        expect(page.locator("h1")).to_have_text(visited)
        expect(page.locator(".moves .sum strong")).to_have_text(f"{number:,}", timeout=WAIT_MS)
    _wait_until_loaded(page)
    save(page, TALLY)


def _repair(server: Dev) -> None:
    """Repair the edit with the command that the console shows. Raises CalledProcessError if drift remains."""
    options = ["--local", "--port", str(server.port), "--by", "ana", "--why", f"a script added {EDIT_AMOUNT}", "--yes"]
    subprocess.run([sys.executable, "-m", "tally.cli", "repair", *options, "plays", EDITED_VIDEO], cwd=ROOT, check=True)


def _sign_in(browser: Browser, url: str, zone: str = "UTC") -> Page:
    """Sign in to the console as `ana`. Returns the overview, in this time zone."""
    page = browser.new_page(
        viewport=VIEW, device_scale_factor=2, color_scheme="light", locale="en-GB", timezone_id=zone
    )
    page.set_default_timeout(WAIT_MS)
    page.goto(f"{url}/console")
    page.get_by_role("button", name="Sign in").first.click()
    page.get_by_label("Your name").fill("ana")
    page.locator("#sign-in").get_by_role("button").click()
    expect(page.locator("#sign-in")).to_have_count(0, timeout=WAIT_MS)
    return page


def _wait_until_loaded(page: Page) -> None:
    """Wait until every part of the page is loaded. Raises AssertionError if a part failed."""
    expect(page.locator("#page .card .body > *").first).to_be_visible(timeout=WAIT_MS)
    expect(page.locator("#page .loading")).to_have_count(0, timeout=WAIT_MS)
    expect(page.locator("#page .error")).to_have_count(0)


@contextlib.contextmanager
def _serve(data: Path, **environment: str) -> Iterator[Dev]:
    """Run `make dev` on this data folder during the block. Raises LocalError if it does not start."""
    server = Dev(ROOT, data, "--port", "0", environment=bare_environment(**environment))
    try:
        yield server.wait_until_ready()
    finally:
        server.stop()


@contextlib.contextmanager
def _browser() -> Iterator[Browser]:
    with sync_playwright() as playwright, chromium.launch(playwright) as browser:
        yield browser


def main() -> int:
    """Take all pictures. Returns 1 if the demo fails."""
    dashboard = synthesize_dashboard()
    FOLDER.mkdir(exist_ok=True)
    memory = MEMORY_FOLDER if MEMORY_FOLDER.is_dir() else None  # on a disk, each write of the engine waits
    with tempfile.TemporaryDirectory(prefix="tally-pictures-", dir=memory) as folder:
        filled = fill(ROOT, Path(folder, "day"), time.time())
        minute = {"TALLY_MINUTE_S": str(MINUTE_S)}
        with _serve(Path(folder, "day"), **minute) as server, _browser() as browser:
            take_console_pictures(browser, server, filled)
        with _serve(Path(folder, "new")) as server:
            outcome = asyncio.run(replay(read_log(DEMO_LOG), server.port, concurrency=8, quick=True))
            if outcome.differing_pages:  # counts that became right late are accepted
                print(*report(outcome), *complaints(outcome), sep="\n", file=sys.stderr)
                return 1
            with _browser() as browser:
                with urlopen(f"{server.url}/dev/metrics") as answer:
                    reported = json.load(answer)["metrics"]
                page = browser.new_page(viewport=VIEW, device_scale_factor=2)
                page.set_content(dashboard_page(dashboard, reported))
                save(page, DASHBOARD)
    DIGESTS.write_text(json.dumps(digests(dashboard), indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
