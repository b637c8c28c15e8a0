"""Tally itself: whether it reaches its store, and the document that describes its API.

They share a function: keeping one ready costs about two dollars a month, and both have few calls.
"""

import os
from pathlib import Path

import operations
from counters import COUNTERS
from tally.api.entry import Answer, Entry
from tally.api.texts import Text
from tally.counting import receipts
from tally.dynamo import queries
from tally.dynamo.client import Call
from tally.operation import Visible

DOCUMENT = Path(__file__).with_name("openapi.json")
DOCUMENT_MAX_AGE_S = 300  # it changes with a deployment


def document() -> str:
    """The OpenAPI document from the build. In a checkout, and where not anyone sees likers, it is made now."""
    likers = Visible(os.environ.get("TALLY_LIKERS_VISIBLE", Visible.ANYONE.value))
    if DOCUMENT.exists() and likers is Visible.ANYONE:
        return DOCUMENT.read_text(encoding="utf-8")
    from openapi.document import text

    return text(COUNTERS, likers=likers)


_DOCUMENT = Text(document(), operations.GET_OPENAPI.media_type, DOCUMENT_MAX_AGE_S)  # once, at cold start


def health(call: Call) -> Answer:
    """`ok` if the counts table answers a read; 503 otherwise. And how long the receipts of each counter live."""
    queries.probe(call.store)
    lives_s = {name: receipts.lives_s(call.store, counter) for name, counter in COUNTERS.items()}
    known = {"status": "ok", "version": call.store.settings.version}
    return Answer({**known, "receipts_live_s": {name: found for name, found in lives_s.items() if found}})


def get_openapi(call: Call) -> Answer:
    """The OpenAPI document."""
    return Answer(_DOCUMENT)


handler = Entry({operations.HEALTH: health, operations.GET_OPENAPI: get_openapi})
