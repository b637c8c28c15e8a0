"""Somebody says that they know of records that the streams may have lost: `as_of` goes on past them."""

from __future__ import annotations

from ..drift import history
from ..dynamo import clock, items
from ..dynamo.client import Store
from ..dynamo.transactions import try_commit
from ..streams import watermark
from ..streams.loss import Loss
from .reconcile import RepairNotReadyError


def acknowledge(store: Store, losses: list[Loss], by: str, why: str) -> None:
    """Let `as_of` go on past these losses: somebody knows of them. Raises RepairNotReadyError."""
    seen = watermark.read(store)
    if seen.judged < max(lost.resume_minute for lost in losses) - 1:
        raise RepairNotReadyError(
            "The ledger has not restarted. Check the consumers and the sweep with `tally status`."
        )
    for lost in losses:
        gone = {"Delete": items.with_expected({"TableName": store.settings.ledger_table, "Key": lost.key}, lost.values)}
        if not try_commit(store, [gone, history.acknowledgement_write(store, lost, clock.now_s(), by=by, why=why)]):
            raise RepairNotReadyError(f"More of {lost.consumer}'s records may be lost since. Try again.")
