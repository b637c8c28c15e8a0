"""Tally itself: whether it reaches its store, and the document that describes its API.

They share a function: keeping one ready costs about two dollars a month, and both have few calls.
"""

import os
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

from tally.api import needs
from tally.api.operation import RARE, SELDOM, Access, Answer, Call, Visible, operation
from tally.api.texts import Text
from tally.counter import Counter
from tally.counting import receipts
from tally.dynamo import queries

DOCUMENT_MAX_AGE_S = 300  # it changes with a deployment


class Health(TypedDict):
    """Tally reaches its store."""

    status: Literal["ok"]
    version: str
    receipts_live_s: Annotated[
        dict[str, int],
        {
            "additionalProperties": {"type": "integer", "minimum": 1},
            "description": "For how many seconds at least Tally recognises a key, by counter.",
        },
    ]


class OpenApi(TypedDict):
    """This document."""

    openapi: Annotated[str, {"pattern": "^3\\.1\\."}]
    info: dict[str, Any]
    servers: list[dict[str, Any]]
    tags: list[dict[str, Any]]
    paths: dict[str, Any]
    components: dict[str, Any]


def document_of(likers: Visible) -> str:
    """The name of the document of a build."""
    return f"openapi.{likers.value}.json"


@cache
def document(*counters: Counter) -> str:
    """The OpenAPI document from the build. In a checkout it is made now, of these counters."""
    likers = Visible(os.environ.get("TALLY_LIKERS_VISIBLE", Visible.ANYONE.value))
    path = Path(__file__).with_name(document_of(likers))
    if path.exists():
        return path.read_text(encoding="utf-8")
    from tally.contract.declarations import OPERATIONS
    from tally.contract.document import text

    return text(OPERATIONS, {one.name: one for one in counters}, likers=likers)


@operation(
    "GET /health",
    access=Access.ANYONE,
    head=True,
    throttle=SELDOM,  # clients that come back after a day ask how long receipts live
    needs=lambda _: needs.PROBE,
    example={"status": "ok", "version": "dev", "receipts_live_s": {"plays": 86400, "visits": 691200}},
)
def health(call: Call) -> Answer[Health]:
    """Whether Tally reaches its store

    And for how long Tally recognises a key: a client that keeps changes to send them later needs it.
    """
    queries.probe(call.store)
    lives_s = {name: receipts.lives_s(call.store, counter) for name, counter in call.counters.items()}
    return Answer({"status": "ok", "version": call.store.settings.version, "receipts_live_s": lives_s})


@operation("GET /openapi.json", access=Access.ANYONE, throttle=RARE, cached=True)
def get_openapi(call: Call) -> Answer[OpenApi]:
    """This document"""
    return Answer(Text(document(*call.counters.values()), "application/json", DOCUMENT_MAX_AGE_S))
