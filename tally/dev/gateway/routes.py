"""Finds the route of a request, and throttles routes."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import unquote

from ..stack.template import Route, Throttle

_BROKEN_ESCAPE = re.compile("%(?![0-9A-Fa-f]{2})")


def decoded(path: str) -> str:
    """Returns a path as an HTTP API matches it with the routes: decoded, cut at a `?`, and decoded again.

    So `a%2Fb` is two segments, and `50%25` is rejected (ValueError). The rule was captured from AWS in July 2026:
    hotsock/voker, vokerhttp/testdata/ingress-paths.json.
    """
    decoded_once = unquote(path).partition("?")[0]
    if _BROKEN_ESCAPE.search(decoded_once):
        raise ValueError(f"{path!r} is not percent-encoded twice over")
    return unquote(decoded_once)


@dataclass(frozen=True)
class Match:
    """The route of a request, and the parameters in its path."""

    route: Route
    parameters: Mapping[str, str]


class Routes:
    """The routes of an API. As at API Gateway, the most specific route wins: a literal part before a parameter."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._routes = sorted(routes, key=lambda route: [part.startswith("{") for part in route.path.split("/")])

    def match(self, method: str, path: str) -> Match | None:
        """Returns the route of a request by its decoded path, or None for API Gateway's 404."""
        for route in self._routes:
            if route.method == method and (parameters := _parameters(route.path, path)) is not None:
                return Match(route, parameters)
        return None


def _parameters(route_path: str, path: str) -> dict[str, str] | None:
    route_parts, path_parts = route_path.split("/"), path.split("/")
    parameters: dict[str, str] = {}
    for part, value in zip(route_parts, path_parts, strict=False):
        if part.startswith("{") and value:
            parameters[part[1:-1]] = value
        elif part != value:
            return None
    return parameters if len(route_parts) == len(path_parts) else None


class Bucket:
    """A token bucket: `burst` requests at once, refilled at `rate_per_s`."""

    def __init__(self, throttle: Throttle) -> None:
        self._throttle = throttle
        self._tokens = float(throttle.burst)
        self._refilled_s = time.monotonic()

    def take(self) -> bool:
        """Take a token. Returns whether the request may pass."""
        now_s = time.monotonic()
        refilled = self._tokens + (now_s - self._refilled_s) * self._throttle.rate_per_s
        self._tokens, self._refilled_s = min(float(self._throttle.burst), refilled), now_s
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True
