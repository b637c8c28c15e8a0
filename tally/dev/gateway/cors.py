"""CORS as in an HTTP API: the gateway answers preflights and ignores the CORS headers of functions."""

from __future__ import annotations

from collections.abc import Mapping

from ..stack.template import Cors

PREFIX = "access-control-"


def preflight(cors: Cors, headers: Mapping[str, str]) -> dict[str, str]:
    """Returns the headers of the answer (204) to a preflight. Empty: no preflight, or a denied origin."""
    allowed = _origin(cors, headers.get("origin"))
    if not allowed or "access-control-request-method" not in headers:
        return {}
    lists = {"allow-methods": cors.methods, "allow-headers": cors.headers}
    answer = allowed | {f"{PREFIX}{name}": ",".join(values) for name, values in lists.items() if values}
    if cors.max_age_s is not None:
        answer[f"{PREFIX}max-age"] = str(cors.max_age_s)
    return answer


def response_headers(cors: Cors, headers: Mapping[str, str]) -> dict[str, str]:
    """Returns the CORS headers of a response to a page of another origin. Empty: no origin, or a denied one."""
    allowed = _origin(cors, headers.get("origin"))
    if allowed and cors.exposed:
        allowed[f"{PREFIX}expose-headers"] = ",".join(cors.exposed)
    return allowed


def _origin(cors: Cors, origin: str | None) -> dict[str, str]:
    if not origin:
        return {}
    if "*" in cors.origins:
        return {f"{PREFIX}allow-origin": "*"}
    return {f"{PREFIX}allow-origin": origin, "vary": "origin"} if origin in cors.origins else {}
