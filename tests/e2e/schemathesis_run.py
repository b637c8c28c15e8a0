"""Runs schemathesis over the whole OpenAPI document of a running Tally, and reports the result.

`python -m tests.e2e.schemathesis_run --url http://localhost:8080` runs schemathesis against a running `make dev`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.environments import ROOT
from tests.patience import PATIENCE_S

CONFIGURATION = ROOT / "tests/e2e/schemathesis.toml"
EXAMPLES_DEFAULT = 200  # for each operation; about 5,000 requests in all
SCOPES = "tally/read tally/write"
COUNTED_KEY = "counted-to-be-voided"
"""The key of a change and of a batch that `prepare` counts, so that voids in the run can name the key."""


@dataclass(frozen=True)
class RunResult:
    """The result of a run. `accepted`: how many valid requests succeeded, by operation."""

    cases: int
    failures: int
    seconds: float
    seed: int
    is_complete: bool
    """Whether every phase tested every operation."""
    accepted: dict[str, int]
    output: str

    @property
    def line(self) -> str:
        """The result in one line."""
        size = f"{self.cases} cases of {len(self.accepted)} operations in {self.seconds:.0f} s"
        return f"{size}: {self.failures} failures (seed {self.seed})"


def run(url: str, token: str, *, examples: int, seed: int | None = None) -> RunResult:
    """Runs every phase with every check. Call `prepare` before, because the examples name what `prepare` makes."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(CONFIGURATION), "run"]
        command += [f"{url}/openapi.json", "--url", url, "--max-examples", str(examples), "--no-color"]
        command += ["--include-path-regex", "^/"]  # the default skips the path of the document
        command += ["--generation-database", "none", "--report-json-path", str(report), "--report-dir", folder]
        command += ["--seed", str(seed)] if seed is not None else []
        paths = os.pathsep.join((str(ROOT), str(ROOT / "lambdas")))
        ran = subprocess.run(
            command,
            cwd=folder,
            env=os.environ | {"TALLY_URL": url, "TALLY_TOKEN": token, "PYTHONPATH": paths},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if not report.exists():
            raise RuntimeError(ran.stdout)
        return read_report(json.loads(report.read_text()), ran.stdout)


def read_report(report: dict[str, Any], output: str) -> RunResult:
    """Reads the report of schemathesis."""
    operations, cases = report["operations"], report["test_cases"]
    accepted = {
        operation: sum(phase["accepted"] for phase in phases.values())
        for operation, phases in report["valid_rates"].items()
    }
    return RunResult(
        cases=cases["generated"],
        failures=cases["unique_failures"] + cases["errored"] + len(report["errors"]),
        seconds=report["running_time"],
        seed=report["seed"],
        is_complete=report["complete"] and operations["tested"] == operations["total"],
        accepted=accepted,
        output=output,
    )


def prepare(url: str, token: str) -> None:
    """Makes the posts, the stock and the changes that the examples of the document name."""
    for post in ("a91f", "7c20"):
        send(url, "PUT", f"/posts/{post}", {"body": "Hello"}, token)
    send(url, "POST", "/counters/stock/7c20/increments", {"amount": 10**9}, token, key=os.urandom(16).hex())
    change = {"counter": "usage", "id": "7c20", "amount": 1}
    send(url, "POST", "/counters/usage/7c20/increments", {"amount": 1}, token, key=COUNTED_KEY)
    send(url, "POST", "/changes", {"changes": [change]}, token, key=COUNTED_KEY)


def send(url: str, method: str, path: str, body: object, token: str | None = None, key: str | None = None) -> Any:
    """Sends a request, and returns the JSON of the answer."""
    headers = {"content-type": "application/json"}
    headers |= {"authorization": f"Bearer {token}"} if token else {}
    headers |= {"idempotency-key": key} if key else {}
    request = urllib.request.Request(url + path, json.dumps(body).encode(), headers, method=method)
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
        return json.load(response)


def main() -> int:
    """Runs schemathesis. Returns the exit status: 1 if a check failed."""
    parser = argparse.ArgumentParser(description="Run schemathesis against a running `make dev`.")
    parser.add_argument("--url", default="http://localhost:8080")
    parser.add_argument("--examples", type=int, default=EXAMPLES_DEFAULT, help="requests made up for each operation")
    parser.add_argument("--seed", type=int)
    options = parser.parse_args()
    try:
        token = send(options.url, "POST", "/dev/token", {"sub": "schemathesis", "scope": SCOPES})["access_token"]
        prepare(options.url, token)
    except urllib.error.HTTPError as error:
        advice = "an earlier run has removed what the examples name. Start `make dev` with fresh data (TALLY_DATA)"
        sys.exit(f"tally: {error.url} answers {error.code}: {advice}")
    except OSError as error:
        sys.exit(f"tally: {options.url} does not answer: {error}")
    result = run(options.url, token, examples=options.examples, seed=options.seed)
    print(result.output if result.failures else "", f"tally: {result.line}", sep="")
    return 1 if result.failures else 0


if __name__ == "__main__":
    sys.exit(main())
