"""The requests that the JavaScript client takes to send changes that an earlier page could not send."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tally.dev.base.errors import LocalError

from .instruments import Rows

CHANGES = 4000
RUN_S_MAX = 600


def measure(quick: bool) -> Rows:
    """Lets the client send a backlog. Returns reads of the storage and requests for each change, and the error."""
    changes = CHANGES // 10 if quick else CHANGES
    command = ["node", str(Path(__file__).with_suffix(".mjs")), str(changes)]
    try:
        run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=RUN_S_MAX)
    except subprocess.TimeoutExpired:
        raise LocalError(f"the backlog did not drain in {RUN_S_MAX} s") from None
    if run.returncode or not run.stdout:
        raise LocalError(f"the backlog did not drain: {run.stderr[-500:]}")
    drained = json.loads(run.stdout)
    per_change = {name: drained[name] / changes for name in ("reads", "requests")}
    return {"a change that waited": {**per_change, "off by": drained["counted"] - changes}}
