"""The stack of a folder that has a `counters.py` and no checkout: what the package brings, and the folder's counters.

The template was made with the wheel, so nothing synthesizes here. Of what the local run reads in it, only the routes
follow from the counters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from tally.api.operation import Visible
from tally.contract.declarations import Declarations
from tally.errors import ConfigurationError

from ..base.errors import LocalError
from ..base.options import COUNTERS
from .template import Authorizer, Route, Template, Throttle, read

TEMPLATE = Path(__file__).with_name("shipped")
"""The stack of the shipped counters. A wheel brings it."""


def template(app: Path, options: Mapping[str, str]) -> Template:
    """The stack, with the routes of the app's counters as they are now. Raises LocalError.

    `options`: the context of a deployment, as `-c` gives it.
    """
    try:
        declared = Declarations.load(app / COUNTERS)
    except ConfigurationError as error:
        raise LocalError(str(error)) from None
    found = read(TEMPLATE)
    [authorizer] = {route.authorizer for route in found.routes if route.authorizer}
    try:
        likers = Visible(options.get("likersVisible", Visible.ANYONE.value))
    except ValueError:
        kinds = ", ".join(one.value for one in Visible)
        raise LocalError(f"likersVisible is {options['likersVisible']!r}: it must be one of {kinds}") from None
    routes = tuple(_routes(declared, authorizer, likers))
    outputs = {**found.outputs, "Counters": ", ".join(declared.counters)}
    return replace(found, routes=routes, outputs=outputs, warnings=tuple(declared.warnings))


def _routes(declared: Declarations, authorizer: Authorizer, likers: Visible) -> Iterator[Route]:
    """As tally/cdk/api.py makes them of the same declarations."""
    for function, routes in declared.functions.items():
        for route in filter(None, (one.shown(likers) for one in routes)):
            for method in route.methods:
                yield Route(
                    method=method,
                    path=route.path,
                    function=function,
                    authorizer=authorizer if route.needs_caller else None,
                    scopes=(route.scope,) if route.scope else (),
                    throttle=Throttle(float(route.throttle.rate_per_s), route.throttle.burst),
                )
