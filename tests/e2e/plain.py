"""Runs Firefox and WebKitGTK. Without a driver the browsers cache the pages that a test leaves, as they do for people.

The browsers are Debian's `firefox-esr` and the MiniBrowser of `webkit2gtk-driver`, on a screen of `Xvfb`. Every page
asks its site for the next script to run.
"""

from __future__ import annotations

import itertools
import json
import os
import queue
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from tests.e2e.servers import Reply, Server
from tests.patience import PATIENCE_S

NO_SCRIPT = "1"  # an expression that does nothing
POLL_S = 5.0
"""How long the site waits for a task before it answers a page that there is no task."""
PAGE = """<!doctype html><html lang=en><meta charset=utf-8><title>page</title><link rel=icon href=data:,>
<script>
window.errors = []; window.kept = []; // `kept`: whether the page came from the cache, each time it was shown
addEventListener("error", ({ message }) => errors.push(message));
addEventListener("unhandledrejection", ({ reason }) => errors.push(`rejected: ${reason}`));
const query = new URLSearchParams(location.search);
const ask = (path, body) => fetch(path, { method: "POST", body: JSON.stringify(body) }).then((answer) => answer.json());
const wait = setTimeout;
const until = async (test) => {
  while (!test()) await new Promise((done) => wait(done, 50));
  return true;
};
const run = (script, arg) => (0, eval)(`async (arg) => (${script})`)(arg);
const runTasks = async () => {
  for (;;) {
    const task = await ask(`/next?${query.get("tab")}`).catch(() => null);
    if (!task) continue;
    const result = await run(task.script, task.arg).then((value) => ({ value }), (error) => ({ error: String(error) }));
    await ask(`/result?${task.number}`, result);
    // The last script of a page leaves the page, so the page must not ask for another task.
    if (task.last) return run(task.last, task.arg);
  }
};
addEventListener("pageshow", ({ persisted }) => (kept.push(persisted), runTasks()));
// `endless`: no request of this page times out, because its timers of 30 s or more never end. `haste`: timers run ten
// times as fast. `asking`: a dialog asks for the password, so the token never comes.
if (query.has("endless")) window.setTimeout = (run, ms, ...more) => ms < 30e3 && wait(run, ms, ...more);
if (query.has("haste")) window.setTimeout = (run, ms, ...more) => wait(run, ms / 10, ...more);
</script>
<script type=module>
const api = query.get("api");
if (api) {
  const { Tally } = await import(`${api}/client/tally.js`);
  window.heard = [];
  const token = () => (query.has("asking") ? new Promise(() => {}) : query.get("token"));
  window.tally = new Tally({ user: () => query.get("user"), token });
  tally.addEventListener("change", ({ detail: { entry, outcome } }) => heard.push([entry.id, outcome?.state]));
}
</script>
<p>a page"""
# Without these preferences, a dialog would cover the first page, and a test could not open and close windows.
PREFERENCES = {
    "browser.aboutwelcome.enabled": False,
    "browser.shell.checkDefaultBrowser": False,
    "datareporting.policy.dataSubmissionEnabled": False,
    "dom.allow_scripts_to_close_windows": True,
    "dom.disable_open_during_load": False,
    "toolkit.telemetry.enabled": False,
}


class Site:
    """A web site whose pages run scripts (tasks). `tasks`: by the tab's name. `results`: by the task's number."""

    def __init__(self) -> None:
        self.tasks: dict[str, queue.Queue[dict[str, Any]]] = {}
        self.results: dict[str, queue.Queue[dict[str, Any]]] = {}
        self.server = Server(self._answer)

    def _answer(self, method: str, target: str, headers: dict[str, str], body: bytes) -> Reply:
        path, _, query = target.partition("?")  # /page-N?…, /next?TAB, /result?NUMBER
        if method == "GET":
            return Reply(200, PAGE.encode(), {"content-type": "text/html", "cache-control": "no-cache"})
        if path == "/result":
            self.results[query].put(json.loads(body))
        task = None
        if path == "/next":
            with suppress(queue.Empty):
                task = self.tasks[query].get(timeout=POLL_S)
        return Reply(200, json.dumps(task).encode(), {"content-type": "application/json"})


_numbers = itertools.count(1)


@dataclass(frozen=True)
class Tab:
    """A tab of a plain browser. `query`, of several methods: the query of the page, which PAGE reads."""

    site: Site
    name: str

    def run(self, script: str, arg: object = None, *, last: str = "") -> Any:
        """Returns the value of an expression or of its promise. `last`: an expression that then leaves the page."""
        number = str(next(_numbers))
        results = self.site.results[number] = queue.Queue()
        self.site.tasks[self.name].put({"number": number, "script": script, "arg": arg, "last": last})
        result = results.get(timeout=PATIENCE_S)
        assert "error" not in result, result["error"]
        return result.get("value")

    def go(self, **query: str) -> None:
        """Follows a link to another page of the site, and waits until the page is loaded."""
        self.run(NO_SCRIPT, self.url(**query), last="location.assign(arg)")
        self.wait_until_loaded()

    def back(self) -> None:
        """Goes back to the page that the tab showed before."""
        self.run(NO_SCRIPT, last="history.back()")
        self.wait_until_loaded()

    def reload(self) -> None:
        """Reloads the page."""
        self.run(NO_SCRIPT, last="location.reload()")
        self.wait_until_loaded()

    def close(self) -> None:
        """Closes the tab."""
        self.run(NO_SCRIPT, last="close()")

    def wait_until_loaded(self) -> None:
        """Waits until the page is loaded, and its client if the query names an API."""
        self.run("until(() => window.tally || !query.has('api'))")

    def count_waiting(self) -> int:
        """Returns how many changes wait for an answer."""
        return int(self.run("tally.waiting().length"))

    def url(self, **query: str) -> str:
        """Returns the address of a new page of the site."""
        return f"{self.site.server.origin}/page-{next(_numbers)}?{urlencode({'tab': self.name, **query})}"


class Browser:
    """A plain browser with an empty profile. Its first tab opens the other tabs."""

    def __init__(self, site: Site, command: list[str], environment: dict[str, str]) -> None:
        self._site, self._tabs = site, itertools.count()
        self._first_tab = self._new_tab()
        self._process = subprocess.Popen(
            [*command, self._first_tab.url()], env=os.environ | environment, start_new_session=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def open_tab(self, **query: str) -> Tab:
        """Opens a page of the site in a window of its own."""
        tab = self._new_tab()
        self._first_tab.run("open(arg, '_blank', 'noopener,width=600,height=400') && 1", tab.url(**query))
        tab.wait_until_loaded()
        return tab

    def end(self) -> None:
        """Ends the browser with all processes of the browser."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(PATIENCE_S)

    def _new_tab(self) -> Tab:
        name = str(next(self._tabs))
        self._site.tasks[name] = queue.Queue()
        return Tab(self._site, name)


def firefox(home: Path) -> list[str]:
    """Returns the command that starts Firefox with its profile in `home`."""
    lines = [f"user_pref({json.dumps(name)}, {json.dumps(value)});" for name, value in PREFERENCES.items()]
    (home / "user.js").write_text("\n".join(lines))
    return ["firefox-esr", "--profile", str(home), "--no-remote", "--new-instance"]


def webkit(_: Path) -> list[str]:
    """Returns the command that starts WebKitGTK, whose profile is where XDG's variables say."""
    newest = sorted(Path("/usr/lib").glob("*/webkit*gtk-*/MiniBrowser"))[-1]
    return [str(newest), "--javascript-can-open-windows-automatically=true"]


COMMANDS = {"firefox": firefox, "webkit": webkit}


@contextmanager
def screen() -> Iterator[str]:
    """Runs a virtual screen, and yields the value for the variable DISPLAY."""
    reads, writes = os.pipe()
    server = subprocess.Popen(
        ["Xvfb", "-displayfd", str(writes), "-screen", "0", "1280x900x24", "-nolisten", "tcp"],
        pass_fds=[writes], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(writes)
    try:
        with open(reads) as display:
            yield f":{display.readline().strip()}"
    finally:
        server.terminate()
        server.wait(PATIENCE_S)


@contextmanager
def running(name: str, home: Path) -> Iterator[Browser]:
    """Runs the browser of this name, with its files in `home`."""
    site = Site()
    with site.server.running(), screen() as display:
        folders = dict.fromkeys(("HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"), str(home))
        browser = Browser(site, COMMANDS[name](home), {**folders, "DISPLAY": display})
        try:
            yield browser
        finally:
            browser.end()
