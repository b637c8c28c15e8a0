"""The history of a tally: who repaired it, when, why, how, and by how much."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from typing import Any

from ..dynamo import keys, queries
from ..dynamo.client import Store
from ..dynamo.transactions import Write

LEDGER, RECOUNT, REBUILD = "ledger", "recount", "rebuild"
"""How a tally was repaired: by its drift row, by its children, or by its receipts."""
_NUMBERS = ("amount", "before", "after")


def entry(
    store: Store, counter: str, target: str, now_s: float, texts: Mapping[str, str], numbers: Mapping[str, int]
) -> Write:
    """The write that records one repair.

    `texts`: `by`, `why`, and `how` (LEDGER, RECOUNT or REBUILD). `numbers`: `amount`, and the tally `before` and
    `after`.
    """
    sort = f"{int(now_s * 1000):015d}#{secrets.token_urlsafe(6)}"
    item = keys.key(keys.history_key(counter, target), sort) | {"at": {"N": str(int(now_s))}}
    item |= {name: {"S": text} for name, text in texts.items()}
    item |= {name: {"N": str(numbers[name])} for name in _NUMBERS}
    return {"Put": {"TableName": store.settings.ledger_table, "Item": item}}


def newest(store: Store, counter: str, target: str) -> str:
    """The name of the newest repair of a tally; empty if there was none."""
    table, partition = store.settings.ledger_table, keys.history_key(counter, target)
    found = queries.query(store, table, partition, queries.FIRST, queries.LAST, Limit=1, ScanIndexForward=False)
    return str(found[0]["SK"]["S"]) if found else ""


def read(store: Store, counter: str, target: str) -> Iterator[dict[str, Any]]:
    """The repairs of a tally, the oldest first: `{"at","by","why","how","amount","before","after"}`."""
    for page in queries.pages(
        store, store.settings.ledger_table, keys.history_key(counter, target), queries.FIRST, queries.LAST
    ):
        for item in page:
            numbers = {name: int(item[name]["N"]) for name in _NUMBERS}
            how = item.get("how", {"S": LEDGER})["S"]  # older versions of Tally did not note it
            yield {"at": int(item["at"]["N"]), "by": item["by"]["S"], "why": item["why"]["S"], "how": how, **numbers}
