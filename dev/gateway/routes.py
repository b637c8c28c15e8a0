"""Finds the route of a request, and throttles routes."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import unquote

from ..stack.template import Route, Throttle


@dataclass(frozen=True)
class Match:
    """A route and the decoded parameters of the path."""

    route: Route
    parameters: Mapping[str, str]


class Routes:
    """The routes of an API. The most specific wins, as at API Gateway: a literal part before a parameter."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._routes = sorted(routes, key=lambda route: [part.startswith("{") for part in route.path.split("/")])

    def match(self, method: str, raw_path: str) -> Match | None:
        """The route of a request; None is API Gateway's 404."""
        for route in self._routes:
            if route.method == method and (parameters := _parameters(route.path, raw_path)) is not None:
                return Match(route, parameters)
        return None


def _parameters(path: str, raw_path: str) -> dict[str, str] | None:
    wanted, given = path.split("/"), raw_path.split("/")
    found: dict[str, str] = {}
    for part, raw in zip(wanted, given, strict=False):
        if part.startswith("{") and raw:
            found[part[1:-1]] = unquote(raw)
        elif part != unquote(raw):
            return None
    return found if len(wanted) == len(given) else None


class Bucket:
    """A token bucket: `burst` requests at once, refilled at `rate_per_s`."""

    def __init__(self, throttle: Throttle) -> None:
        self._throttle = throttle
        self._tokens = float(throttle.burst)
        self._at_s = time.monotonic()

    def take(self) -> bool:
        """Take a token. Returns whether the request may pass."""
        now_s = time.monotonic()
        refilled = self._tokens + (now_s - self._at_s) * self._throttle.rate_per_s
        self._tokens, self._at_s = min(float(self._throttle.burst), refilled), now_s
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True
