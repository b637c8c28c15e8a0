"""Handlers as Lambda calls them, on the embedded engine: an entry for each function, with the test's store."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tally.api.entry import Entry

import operations
from bench.watch import Meter
from tally.dynamo.client import Store
from tests import documented
from tests.contexts import Context

Event = dict[str, Any]


@pytest.fixture
def meter(store: Store) -> Iterator[Meter]:
    """What the handlers take of DynamoDB."""
    made = Meter(store.client)
    yield made
    made.close()


@pytest.fixture
def invoke(store: Store) -> Callable[..., Event]:
    return invoker(store)


def invoker(store: Store) -> Callable[..., Event]:
    """Invoke a function by its name with an event. Whatever it answers must be as the OpenAPI document says."""
    handlers = {name: importlib.import_module(f"functions.{name}").handler for name in operations.functions()}
    entries = {
        name: Entry(handler.functions, store, handler.counters, handler.pages) for name, handler in handlers.items()
    }

    def call(function: str, event: object, context: Context | None = None) -> Event:
        answer = entries[function](event, context or Context())  # type: ignore[arg-type]
        documented.check(event, answer)
        return answer

    return call
