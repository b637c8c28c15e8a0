"""What AWS Lambda asks for: `handlers.increments` is the handler of the function `increments`.

A handler is made when it is asked for. So a stack can read the declarations without an environment, and a function
imports its own file of `operations/` only.
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
    """The handler of a function. Raises AttributeError if there is none of this name."""
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
    """The handler of a function that serves callers. Raises AttributeError if there is none of this name."""
    from tally.api.entry import RequestHandler
    from tally.api.operation import counters_of_function, operations_of, operations_of_function, routes_by_function

    found = operations_of(importlib.import_module(f"tally.operations.{name.partition('_')[0]}"))
    routes = routes_by_function(found, COUNTERS).get(name)
    if routes is None:
        raise AttributeError(name)
    served = {one.name for one in counters_of_function(name, routes, COUNTERS)}
    return RequestHandler(operations_of_function(name, routes, found, COUNTERS), routes, COUNTERS, PAGES, store, served)
