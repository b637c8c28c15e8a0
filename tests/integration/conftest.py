"""Handlers as Lambda calls them, on the embedded engine: an entry for each function, with the test's store."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

import operations
from tally.api.entry import Entry
from tally.dynamo.client import Store
from tests import documented

Event = dict[str, Any]


@dataclass(frozen=True)
class Context:
    """As much of a Lambda context as handlers look at."""

    aws_request_id: str = "11111111-2222-3333-4444-555555555555"
    remaining_ms: int = 10_000

    def get_remaining_time_in_millis(self) -> int:
        return self.remaining_ms


@pytest.fixture
def invoke(store: Store) -> Callable[..., Event]:
    """Invoke a function by its name with an event. Whatever it answers must be as the OpenAPI document says."""
    handlers = {name: importlib.import_module(f"functions.{name}").handler for name in operations.functions()}
    entries = {name: Entry(handler.functions, store, handler.counters) for name, handler in handlers.items()}

    def call(function: str, event: object, context: Context | None = None) -> Event:
        answer = entries[function](event, context or Context())  # type: ignore[arg-type]
        documented.check(event, answer)
        return answer

    return call
