"""The handlers of the Lambda functions: `handlers.increments` is the handler of the function `increments`.

A handler is made when Lambda looks it up. So an import of this file needs no environment variables, and a function
imports only its own module of `operations/`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import counters
from tally import operations, pages

if TYPE_CHECKING:
    from tally.api.entry import RequestHandler
    from tally.dynamo.client import Store

COUNTERS = counters.COUNTERS
PAGES = pages.declared_pages(vars(counters))


def __getattr__(name: str) -> Callable[[Any, Any], Any]:
    """Returns the handler of a function. Raises AttributeError if there is no function of this name."""
    if name in operations.CONSUMERS:
        from tally.streams.consumer import Handler

        return Handler(importlib.import_module(f"tally.streams.{name}").CONSUMER, COUNTERS)
    if name == operations.ITEMS_CONSUMER:
        from tally.team.consumer import ItemsHandler

        return ItemsHandler(COUNTERS)
    if name in operations.SCHEDULES:
        from tally.operations.sweep import Sweep

        return Sweep(COUNTERS)
    if name.partition("_")[0] in operations.SERVING:
        return entry(name)
    raise AttributeError(name)


def entry(name: str, store: Store | None = None) -> RequestHandler:
    """Returns the handler of a function: `increments`, or `increments_open` for strangers. Raises AttributeError."""
    from tally.api.entry import RequestHandler
    from tally.api.operation import counters_of_function, operations_of, operations_of_function, routes_by_function

    in_file = operations_of(importlib.import_module(f"tally.operations.{name.partition('_')[0]}"))
    routes = routes_by_function(in_file, COUNTERS).get(name)
    if routes is None:
        raise AttributeError(name)
    counter_names = {counter.name for counter in counters_of_function(name, routes, COUNTERS)}
    served_operations = operations_of_function(name, routes, in_file, COUNTERS)
    return RequestHandler(served_operations, routes, COUNTERS, PAGES, store, counter_names)
