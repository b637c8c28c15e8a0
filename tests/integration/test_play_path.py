"""A play runs through few modules, and calls few functions."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType

import handlers
import tally
from tally.dynamo.client import Store
from tests import events
from tests.contexts import LambdaContext

PACKAGE = Path(tally.__file__).parent
PLAY_MODULES_MAX, PLAY_FRAMES_MAX = 12, 60


def test_a_play_runs_through_at_most_12_modules_and_60_calls(store: Store) -> None:
    """Counts the calls from HTTP event to answer. An earlier play fills the caches that all plays share."""
    entry, event = handlers.entry("increments_open", store), events.http("increment_plays_short_route")
    assert entry(event, LambdaContext())["statusCode"] == 200
    event["headers"]["idempotency-key"] = "another-key-of-22-characters"
    frames: list[FrameType] = []  # frames are kept, so that a resumed generator is counted once

    def note_call(frame: FrameType, kind: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if kind == "call" and path.is_relative_to(PACKAGE) and not path.is_relative_to(PACKAGE / "dev"):
            frames.append(frame)

    sys.setprofile(note_call)
    try:
        answer = entry(event, LambdaContext())
    finally:
        sys.setprofile(None)
    assert answer["statusCode"] == 200
    assert "idempotency-replayed" not in answer["headers"]
    modules = {Path(frame.f_code.co_filename).relative_to(PACKAGE).as_posix() for frame in frames}
    assert {"operations/increments.py", "dynamo/transactions.py"} <= modules
    assert len(modules) <= PLAY_MODULES_MAX, "\n".join(sorted(modules))
    calls = [frame.f_code.co_qualname for frame in dict.fromkeys(frames)]
    assert len(calls) <= PLAY_FRAMES_MAX, "\n".join(calls)
