"""How long a test waits for what it cannot hurry: a process, a server, a browser. Every such limit is this one.

It ends only what hangs: what takes a second on a quiet machine takes ten and more on a loaded one. A test of logic
waits for nothing: it moves a clock of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_S = 240.0
PATIENCE_MS = PATIENCE_S * 1000


def wait_for(condition: Callable[[], object], *, every_s: float = 0.1) -> None:
    """Wait until the condition holds. Each look costs time that what is waited for needs: a dear one is rare."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, f"not within {PATIENCE_S} s"
        time.sleep(every_s)
