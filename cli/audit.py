"""`make audit`: the known vulnerabilities of what the lock files pin. It says none of what nobody has looked at."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LOCKS = ("requirements.txt", "lambdas/requirements.txt", "tests/requirements.txt", "tests/emulator/requirements.txt")
LOCK_OF_NPM = "package-lock.json"
AUDIT_S_MAX = 300.0  # it takes seconds; uv and npm try a service that does not answer a few times


class UnauditedError(Exception):
    """A lock was not judged. The message says why, in one line."""


def of_python(lock: Path, arguments: Sequence[str] = ()) -> tuple[int, list[str]]:
    """How many packages of `lock` were judged, and a line for each known vulnerability. Raises UnauditedError."""
    pins = re.findall(r"^(\S+==.*?) *\\?$", lock.read_text(encoding="utf-8"), re.MULTILINE)
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "pins.py")  # `uv audit` reads no requirements file, but a script that names them
        script.write_text(f'# /// script\n# requires-python = ">=3.11"\n# dependencies = {json.dumps(pins)}\n# ///\n')
        command = [sys.executable, "-m", "uv", "audit", "--quiet", "--preview-features", "audit-command,json-output"]
        found, error = _run([*command, "--output-format", "json", "--script", str(script), *arguments])
    judged = found.get("summary", {}).get("audited_packages")
    names = {pin.partition("==")[0] for pin in pins}
    if judged is None or judged < len(names):
        raise UnauditedError(error if judged is None else f"only {judged} of {len(names)} packages were judged")
    return judged, [
        f"{one['dependency']['name']} {one['dependency']['version']}: {one['display_id']}: {one['summary'] or ''}"
        f" (fixed in {', '.join(one['fix_versions']) or 'no version yet'}) {one['link']}"
        for one in found["vulnerabilities"]
    ]


def of_npm(folder: Path) -> tuple[int, list[str]]:
    """The same of the lock of npm in `folder`. Raises UnauditedError."""
    command = ["npm", "audit", "--json", "--package-lock-only", "--include=dev", "--prefix", str(folder)]
    found, error = _run([*command, "--offline=false"])  # offline it asks nobody, and reports none
    judged = found.get("metadata", {}).get("dependencies", {}).get("total")
    if judged is None or "vulnerabilities" not in found:
        raise UnauditedError(found.get("message") or error)
    return judged, [
        f"{name}: {via['title']} ({via['range']}) {via['url']}"
        for name, one in found["vulnerabilities"].items()
        for via in one["via"]
        if isinstance(via, dict)  # a name is that of another package in the list
    ]


def _run(command: list[str]) -> tuple[dict[str, Any], str]:
    """What it printed as JSON, or nothing; and the last line of its error."""
    try:
        run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=AUDIT_S_MAX)
    except subprocess.TimeoutExpired:
        return {}, f"no answer within {AUDIT_S_MAX:g} s"
    lines = [line.strip() for line in run.stderr.splitlines() if line.strip()]
    try:
        return json.loads(run.stdout), lines[-1] if lines else ""
    except ValueError:
        return {}, lines[-1] if lines else f"it ended with status {run.returncode}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what is known of every lock. 1: something is, or a service did not answer."""
    asked = argparse.ArgumentParser(prog="make audit", description=__doc__)
    asked.add_argument("--service-url", help="another OSV service of vulnerabilities, for the Python packages")
    service = asked.parse_args(arguments).service_url
    own = ["--service-url", service] if service else []
    bad = False
    try:
        for lock in LOCKS:
            bad |= _say(lock, *of_python(ROOT / lock, own))
    except UnauditedError as error:
        bad = True
        print(f"tally: not audited: {lock} and the Python locks after it: {error}", file=sys.stderr)
    try:
        bad |= _say(LOCK_OF_NPM, *of_npm(ROOT))
    except UnauditedError as error:
        bad = True
        print(f"tally: not audited: {LOCK_OF_NPM}: {error}", file=sys.stderr)
    return int(bad)


def _say(lock: str, judged: int, known: list[str]) -> bool:
    print(f"{lock}: {judged} packages, known vulnerabilities: {len(known)}", flush=True)
    for line in known:
        print(f"  {line}")
    return bool(known)


if __name__ == "__main__":
    sys.exit(main())
