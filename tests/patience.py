"""The one limit of every wait for a process, a server or a browser.

The limit ends only a wait that hangs, because an action of one second takes ten and more on a busy machine. A test of
logic does not wait. Such a test moves a clock of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_S = 240.0
PATIENCE_MS = PATIENCE_S * 1000


def wait_for(condition: Callable[[], object], *, every_s: float = 0.1) -> None:
    """Waits until the condition holds. A check takes time from the awaited process, so make an expensive check rare."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, f"not within {PATIENCE_S} s"
        time.sleep(every_s)
