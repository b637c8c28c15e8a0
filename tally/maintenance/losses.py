"""Acknowledges a loss of stream records, so that `as_of` advances past it."""

from __future__ import annotations

from ..drift import history
from ..dynamo import clock, items
from ..dynamo.client import Store
from ..dynamo.transactions import try_commit
from ..streams import watermark
from ..streams.loss import Loss
from .reconcile import RepairNotReadyError


def acknowledge(store: Store, losses: list[Loss], by: str, why: str) -> None:
    """Deletes these losses, so that `as_of` advances, and records who acknowledged them. If the judge has not come to
    each loss's resume minute, or a loss has grown since the caller read it, raises RepairNotReadyError."""
    watermark_ = watermark.read(store)
    if watermark_.judged < max(lost.resume_minute for lost in losses) - 1:
        raise RepairNotReadyError("The ledger has not restarted. Check consumers and sweep with `tally status`.")
    for lost in losses:
        key = {"TableName": store.settings.ledger_table, "Key": lost.key}
        delete = {"Delete": items.with_expected(key, lost.values)}
        if not try_commit(store, [delete, history.acknowledgement_write(store, lost, clock.now_s(), by=by, why=why)]):
            raise RepairNotReadyError(f"More records of {lost.consumer} may be lost now. Try again.")
