"""The house stays small: how many modules a play crosses, and how long a chain of imports is."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from types import FrameType

import grimp

import serve
import tally
from tally.dynamo.client import Store
from tests import events
from tests.contexts import Context

LAMBDAS = Path(tally.__file__).parents[1]
PLAY_MODULES_MAX = 13
IMPORT_CHAIN_MAX = 12


def test_a_play_crosses_thirteen_modules(store: Store) -> None:
    """From the HTTP event to the transaction and back, after a first one that made what every play shares."""
    entry, event = serve.entry("increments_open", store), events.http("increment_plays_short")
    assert entry(event, Context())["statusCode"] == 200
    event["headers"]["idempotency-key"] = "another-key-of-22-characters"
    crossed: set[str] = set()

    def note(frame: FrameType, what: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if what == "call" and path.is_relative_to(LAMBDAS):
            crossed.add(path.relative_to(LAMBDAS).as_posix())

    sys.setprofile(note)
    try:
        answer = entry(event, Context())
    finally:
        sys.setprofile(None)
    assert answer["statusCode"] == 200
    assert "idempotency-replayed" not in answer["headers"]
    assert {"operations/increments.py", "tally/dynamo/transactions.py"} <= crossed
    assert len(crossed) <= PLAY_MODULES_MAX, "\n".join(sorted(crossed))


def test_no_chain_of_imports_from_a_handler_is_longer_than_twelve() -> None:
    graph = grimp.build_graph("operations", "api", "tally", exclude_type_checking_imports=True, cache_dir=None)

    @cache
    def longest(module: str) -> tuple[str, ...]:
        chains = [longest(imported) for imported in sorted(graph.find_modules_directly_imported_by(module))]
        return (module, *max(chains, key=len, default=()))

    handlers = [module for module in graph.modules if module.startswith("operations.")]
    assert len(handlers) > 10
    chain = max((longest(module) for module in handlers), key=len)
    assert len(chain) <= IMPORT_CHAIN_MAX, " > ".join(chain)
