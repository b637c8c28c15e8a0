"""Invokes handlers as Lambda does, on the embedded engine, with the test's store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

import handlers
from bench.instruments import Meter
from counters import COUNTERS
from tally.api.entry import RequestHandler
from tally.api.operation import routes_by_function
from tally.contract.declarations import OPERATIONS
from tally.contract.document import document_json
from tally.dynamo.client import Store
from tally.operations import health
from tests import api_answers, events
from tests.commands import run_command
from tests.contexts import LambdaContext

Event = dict[str, Any]


@pytest.fixture(scope="session", autouse=True)
def api_document(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Writes the API document to a file, as the bundle of a deploy has it."""
    health.OPENAPI_FILE = tmp_path_factory.mktemp("document") / health.OPENAPI_FILE.name
    health.OPENAPI_FILE.write_text(document_json(OPERATIONS, COUNTERS), encoding="utf-8")


@pytest.fixture
def meter(store: Store) -> Iterator[Meter]:
    """Returns a meter of the handlers' requests."""
    meter = Meter(store.client)
    yield meter
    meter.close()


class Invoke:
    """Invokes Lambda functions with events. Fails for an answer that does not match the API document."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._entries: dict[str, RequestHandler] = {}
        self._by_route = {
            route.key: name for name, routes in routes_by_function(OPERATIONS, COUNTERS).items() for route in routes
        }

    def entry(self, function: str) -> RequestHandler:
        """Returns the handler of a function."""
        if function not in self._entries:
            self._entries[function] = handlers.entry(function, self.store)
        return self._entries[function]

    def __call__(self, event: Any, context: LambdaContext | None = None, function: str = "") -> Event:
        """Invokes a function. `function`: its name; empty: the function that serves the event's route or operation."""
        answer = self.entry(function or self.function_of(event))(event, context or LambdaContext())
        api_answers.check(event, answer)
        return answer

    def function_of(self, event: Any) -> str:
        """Returns the name of the function that serves an event, or the first entry of a batch."""
        if "routeKey" in event:
            return self._by_route[event["routeKey"]]
        first_entry = (event.get("batch") or [event])[0]
        return events.BY_NAME[first_entry["operation"]].module  # a function has the name of the operation's module

    def direct(self, operation: str, **fields: Any) -> Event:
        """Returns the answer to a direct event of an operation with these fields. The event has no other fields."""
        return self({"operation": operation, **fields})

    def http(self, route: str, **change: Any) -> Event:
        """Returns the answer to the sample request of a route with these changes: fields of the operation, and `sub`,
        `headers`, `query`, `document` or `raw`, as in `events.http`."""
        return self(events.http(route, **change))

    def read(self, counter: str, id: str, **fields: Any) -> dict[str, Any]:
        """Returns the body of the answer to the direct event `get_counter`."""
        answer = self.direct("get_counter", counter=counter, id=id, **fields)
        assert answer["status"] == 200, answer
        return dict(answer["body"])


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Returns a function that runs the command `tally`. The function returns exit status, output and errors."""
    return partial(run_command, capsys)


@pytest.fixture
def invoke(store: Store) -> Invoke:
    return Invoke(store)
