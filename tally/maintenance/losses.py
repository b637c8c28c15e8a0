"""Somebody says that they know of records that the streams may have lost: `as_of` goes on past them."""

from __future__ import annotations

from ..drift import history
from ..dynamo import clock, items
from ..dynamo.client import Store
from ..dynamo.transactions import apply_once
from ..streams import watermark
from ..streams.loss import Loss
from .reconcile import NotProvenError


def acknowledge(store: Store, losses: list[Loss], by: str, why: str) -> None:
    """Let `as_of` go on past these losses: somebody knows of them. Raises NotProvenError."""
    seen = watermark.read(store)
    if seen.judged < max(lost.again for lost in losses) - 1:
        raise NotProvenError("The ledger has not restarted. Check the consumers and the sweep with `tally status`.")
    for lost in losses:
        gone = {"Delete": items.only_if({"TableName": store.settings.ledger_table, "Key": lost.key}, lost.values)}
        if not apply_once(store, [gone, history.acknowledged(store, lost, clock.now_s(), by=by, why=why)]):
            raise NotProvenError(f"More of {lost.consumer}'s records may be lost since. Try again.")
