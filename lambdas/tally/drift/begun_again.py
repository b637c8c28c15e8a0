"""The ledger begins again where the streams may have lost records (streams/loss.py).

What is lost has no half in the ledger, so no difference up to then proves anything. The judge passes over these
minutes once they are closed. Drift that was not confirmed goes: it may be half of a change whose other half is lost.
What was confirmed stays, for it has stood since before. But if a dead letter waits, was dropped, or was redriven on
minutes that are passed over, half of that may be one. Segments stay: the series sum up what they have.
"""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import islice

from ..dynamo import items
from ..dynamo.client import Store, side_by_side
from ..dynamo.transactions import apply_once
from ..streams import dead_letters, loss, watermark
from ..streams.loss import Loss
from ..streams.watermark import Watermark
from . import history, rows
from .reconcile import NotProvenError

FORGOTTEN_AT_ONCE = 100  # rows between two looks at the time


def begin(store: Store, seen: Watermark, now_s: float, until_s: float) -> Watermark:
    """Forget the drift that proves nothing, and pass over what is closed of the minutes before `again`.

    The watermark then. If the time runs out (`until_s`, on the store's clock) or a row moves, nothing is closed in it:
    the next sweep goes on. A sweep that slept leaves what was judged since.
    """
    letters = seen.redriven or dead_letters.any_left(store)
    letters = letters or any(one.name.startswith(loss.LETTER) for one in loss.listed(store))
    found = ((row, 0 if letters else row.confirmed(seen)) for row in rows.every(store) if row.upto < seen.again)
    writes = ([rows.forgotten(store, row, kept, now_s)] for row, kept in found if kept != row.drift or row.changes)
    while chunk := list(islice(writes, FORGOTTEN_AT_ONCE)):
        if store.clock() >= until_s or not all(side_by_side(lambda write: apply_once(store, write), chunk)):
            return replace(seen, known_s=0)
    last = min(seen.closed(store.settings), seen.again - 1)
    watermark.note_judged(store, last, seen.judged)
    return replace(seen, judged=last)


def acknowledge(store: Store, found: list[Loss], by: str, why: str) -> None:
    """Let `as_of` go on past these losses: somebody knows of them. Raises NotProvenError."""
    seen = watermark.read(store)
    if seen.judged < max(one.again for one in found) - 1:
        raise NotProvenError("The ledger has not begun again yet: do its consumers and sweep run?")
    for one in found:
        gone = {"Delete": items.only_if({"TableName": store.settings.ledger_table, "Key": one.key}, one.values)}
        if not apply_once(store, [gone, history.acknowledged(store, one, time.time(), by=by, why=why)]):
            raise NotProvenError(f"More of {one.consumer}'s records may be lost by now: try again.")
