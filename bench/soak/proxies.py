"""A process with the two proxies. It outlives the processes that are killed: what they sent may arrive later."""

from __future__ import annotations

import json
import os
import time
from collections import Counter as Multiset
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event

from dev.faults import FaultProxy, no_faults

from .stage import Stage, become
from .weather import plan

COUNTS_S = 0.5
REQUESTS_KEPT = 0


def fail(stage: Stage, ready: Connection, calm: Event) -> None:
    """Be the proxies, until killed. Sends the stage with their endpoints. `calm` ends the faults."""
    become(stage, "proxies")
    weather = FaultProxy(stage.engine, plan(stage.seed), strip_tokens=True, requests_kept=REQUESTS_KEPT)
    tokens = FaultProxy(stage.engine, plan(stage.seed + 1), requests_kept=REQUESTS_KEPT)
    with weather, tokens:
        ready.send(replace(stage, weather=weather.endpoint, tokens=tokens.endpoint))
        path = stage.folder / "faults.json"
        while True:
            if calm.wait(COUNTS_S):
                weather.plan = tokens.plan = no_faults
                time.sleep(COUNTS_S)
            counts: Multiset[str] = Multiset()
            for proxy in (weather, tokens):
                for (name, _), count in proxy.counts.items():
                    counts[name] += count
                for failure in proxy.failures:
                    print(repr(failure), flush=True)
            fresh = path.with_suffix(".new")
            fresh.write_text(json.dumps(counts))
            os.replace(fresh, path)
