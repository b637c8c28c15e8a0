"""Tally itself: whether it reaches its store, and the document that describes its API.

Both operations have few calls, so they share one Lambda function.
"""

from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

from tally.api import needs
from tally.api.operation import RATE_10_PER_S, RATE_100_PER_S, Access, Answer, Call, operation
from tally.api.texts import Text
from tally.counting import receipts
from tally.dynamo import queries

DOCUMENT_MAX_AGE_S = 300  # only a deployment changes the document
OPENAPI_FILE = Path(__file__).parents[2] / "openapi.json"
"""The API document of a stack, in the folder of the handlers. `cdk` writes the file when it bundles the handlers."""


class Health(TypedDict):
    """Tally reaches its store. `version`: the version of the deployed code."""

    status: Literal["ok"]
    version: str
    receipts_live_s: Annotated[
        dict[str, int],
        {
            "additionalProperties": {"type": "integer", "minimum": 1},
            "description": "The least number of seconds for which Tally recognises a key, by counter.",
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


@cache
def read_openapi() -> str:
    """Returns the OpenAPI document that was bundled with the functions' code."""
    return OPENAPI_FILE.read_text(encoding="utf-8")


@operation(
    "GET /health",
    access=Access.ANYONE,
    head=True,
    throttle=RATE_100_PER_S,  # clients that were offline for a day ask how long receipts live
    needs=lambda _: needs.PING_STORE,
    example={"status": "ok", "version": "dev", "receipts_live_s": {"plays": 86400, "visits": 691200}},
)
def health(call: Call) -> Answer[Health]:
    """Whether Tally reaches its store

    The answer also says for how long Tally recognises a key. A client that stores changes for later needs this time.
    """
    queries.ping(call.store)
    lives_s = {name: receipts.lifetime_s(call.store, counter) for name, counter in call.counters.items()}
    return Answer({"status": "ok", "version": call.store.settings.version, "receipts_live_s": lives_s})


@operation("GET /openapi.json", access=Access.ANYONE, throttle=RATE_10_PER_S, is_cacheable=True)
def get_openapi(call: Call) -> Answer[OpenApi]:
    """This document"""
    return Answer(Text(read_openapi(), "application/json", DOCUMENT_MAX_AGE_S))
