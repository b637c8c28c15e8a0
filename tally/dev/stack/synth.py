"""Synthesizes the app for the local run, if one of its sources has changed."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ..base.engine import die_with_parent
from ..base.errors import LocalError

SYNTH_S_MAX = 120.0  # it takes 5 s; it took 40 on a busy machine with a cold disk
_INPUTS = (
    "app.py",
    "cdk.json",
    "requirements.txt",
    "lambdas/requirements.txt",
    "stacks/**/*.py",
    "lambdas/*.py",
    "tally/**/*.py",
    "tally/**/*.js",
)
# Bundle nothing: handlers run from lambdas/. Strangers do not come here: nobody's throttle is lowered.
_CONTEXT: dict[str, Any] = {"aws:cdk:bundling-stacks": [], "throttle": "1"}


def assembly(app: Path, options: Mapping[str, str] = MappingProxyType({})) -> Path:
    """The folder with the templates of the app in the folder `app`. Synthesizes them if a source has changed.

    `options`: the context of a deployment, as `-c` gives it. Two processes may call it at once. Raises LocalError if
    Node is missing or the app does not synthesize.
    """
    if not (app / "app.py").is_file():
        raise LocalError(f"{app} has no app.py: run this in the folder of the CDK app")
    build = app / ".build"
    out = build / "cdk.out"  # `cdk deploy` has cdk.out for itself
    build.mkdir(exist_ok=True)
    stamp = build / "cdk.out.sha256"
    with _locked(build / "synth.lock"):
        wanted = fingerprint(app, options)
        if not stamp.is_file() or stamp.read_text() != wanted or not out.is_dir():
            stamp.unlink(missing_ok=True)
            fresh = _synthesize(app, build, options)
            shutil.rmtree(out, ignore_errors=True)
            fresh.rename(out)
            stamp.write_text(wanted)
    return out


def fingerprint(app: Path, options: Mapping[str, str] = MappingProxyType({})) -> str:
    """A hash of everything that makes the template: paths and contents, and the context that this module adds."""
    found = hashlib.sha256(json.dumps({**_CONTEXT, **options}).encode())
    for path in sorted({path for pattern in _INPUTS for path in app.glob(pattern)}):
        content = path.read_bytes()
        found.update(f"{path.relative_to(app).as_posix()} {len(content)}\n".encode() + content)
    return found.hexdigest()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _synthesize(app: Path, build: Path, options: Mapping[str, str]) -> Path:
    """Run app.py into a new folder below `build`, and return it. The cdk command would take a second more."""
    if not os.environ.get("JSII_NODE") and shutil.which("node") is None:
        raise LocalError("Node is missing, and the stack needs it to synthesize: install Node 20 or newer")
    context = json.loads((app / "cdk.json").read_text()).get("context", {}) | _CONTEXT | dict(options)
    fresh = build / "cdk.out.new"
    shutil.rmtree(fresh, ignore_errors=True)
    variables = {
        "CDK_OUTDIR": str(fresh),
        "CDK_CONTEXT_JSON": json.dumps(context),
        "CDK_VALIDATION": "false",  # it would double the time; `make synth` and the tests validate
        "JSII_SILENCE_WARNING_END_OF_LIFE_NODE_VERSION": "20",
    }
    try:
        run = subprocess.run(
            [sys.executable, "app.py"],
            cwd=app, env=os.environ | variables, timeout=SYNTH_S_MAX,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            preexec_fn=die_with_parent,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise LocalError(f"the stack did not synthesize within {SYNTH_S_MAX:g} s") from None
    # A template that breaks a rule of cdk-nag runs here: `make synth` and the tests report the rule.
    validated = (fresh / "validation-report.json").is_file()
    if not any(fresh.glob("*.template.json")) or (run.returncode != 0 and not validated):
        log = build / "synth.log"
        log.write_text(run.stdout)
        lines = [line.strip() for line in run.stdout.splitlines() if line.strip()]
        reason = lines[-1] if lines else f"app.py ended with status {run.returncode}"
        if reason.startswith("tally: "):  # app.py has said it in one line
            raise LocalError(reason.removeprefix("tally: "))
        raise LocalError(f"the stack does not synthesize: {reason} (all output: {log.relative_to(app)})")
    return fresh
