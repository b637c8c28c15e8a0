"""Synthesizes the stack for the local run, and only if something that it is made from has changed."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..base.engine import ROOT, die_with_parent
from ..base.errors import LocalError

BUILD = ROOT / ".build"
OUT = BUILD / "cdk.out"  # not cdk.out: that is a deploy's
SYNTH_S_MAX = 120.0  # it takes 5 s; a loaded machine with a cold disk took 40
_INPUTS = (
    "app.py",
    "cdk.json",
    "requirements.txt",
    "lambdas/requirements.txt",
    "stacks/**/*.py",
    "lambdas/**/*.py",
    "lambdas/**/*.js",
)
_CONTEXT: dict[str, list[str]] = {"aws:cdk:bundling-stacks": []}  # nothing is bundled: handlers run from lambdas/


def assembly() -> Path:
    """The folder with the templates of the stack as it is now, synthesized if need be. Two may ask at once.

    Raises LocalError if Node is missing or the stack does not synthesize.
    """
    BUILD.mkdir(exist_ok=True)
    stamp = BUILD / "cdk.out.sha256"
    with _locked(BUILD / "synth.lock"):
        wanted = fingerprint()
        if not stamp.is_file() or stamp.read_text() != wanted or not OUT.is_dir():
            stamp.unlink(missing_ok=True)
            _synthesize()
            stamp.write_text(wanted)
    return OUT


def fingerprint() -> str:
    """Names everything that the template is made from: a hash of paths and contents, and of our context."""
    found = hashlib.sha256(json.dumps(_CONTEXT).encode())
    for path in sorted({path for pattern in _INPUTS for path in ROOT.glob(pattern)}):
        content = path.read_bytes()
        found.update(f"{path.relative_to(ROOT).as_posix()} {len(content)}\n".encode() + content)
    return found.hexdigest()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _synthesize() -> None:
    """Run app.py itself: the cdk command around it costs a second and adds nothing here."""
    if not os.environ.get("JSII_NODE") and shutil.which("node") is None:
        raise LocalError("Node is missing, and the stack needs it to synthesize: install Node 20 or newer")
    context = json.loads((ROOT / "cdk.json").read_text()).get("context", {}) | _CONTEXT
    fresh = BUILD / "cdk.out.new"
    shutil.rmtree(fresh, ignore_errors=True)
    variables = {
        "CDK_OUTDIR": str(fresh),
        "CDK_CONTEXT_JSON": json.dumps(context),
        "CDK_VALIDATION": "false",  # half of the time; `make synth` and the tests validate
        "JSII_SILENCE_WARNING_END_OF_LIFE_NODE_VERSION": "20",
    }
    try:
        run = subprocess.run(
            [sys.executable, "app.py"],
            cwd=ROOT, env=os.environ | variables, timeout=SYNTH_S_MAX,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            preexec_fn=die_with_parent,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise LocalError(f"the stack did not synthesize within {SYNTH_S_MAX:g} s") from None
    # What cdk-nag objects to is for `make synth` and the tests to say: the template is there, and it runs.
    validated = (fresh / "validation-report.json").is_file()
    if not any(fresh.glob("*.template.json")) or (run.returncode != 0 and not validated):
        log = BUILD / "synth.log"
        log.write_text(run.stdout)
        lines = [line.strip() for line in run.stdout.splitlines() if line.strip()]
        reason = lines[-1] if lines else f"app.py ended with status {run.returncode}"
        raise LocalError(f"the stack does not synthesize: {reason} (all of it: {log.relative_to(ROOT)})")
    shutil.rmtree(OUT, ignore_errors=True)
    fresh.rename(OUT)
