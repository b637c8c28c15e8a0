"""The ledger restarts after the streams may have lost records (streams/loss.py).

If a record is lost, one half of its change is missing from the journal. So differences in the minutes of the loss prove
nothing. When these minutes are complete, the judge skips them. Drift that was unconfirmed before the loss is deleted,
because it may be one half of a lost change. Confirmed drift is older than the loss, and stays. But if a dead letter
waits, was discarded, or was redriven on a skipped minute, confirmed drift is deleted, too. It may be the other half of
that letter's change. The segments stay, so the series sum up their amounts.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

from ..dynamo.client import Store, map_in_threads
from ..dynamo.transactions import try_commit
from ..streams import dead_letters, watermark
from ..streams.watermark import Watermark
from . import rows

ROWS_AT_ONCE = 100  # rows that are written between two checks of the time


def restart(store: Store, watermark_: Watermark, now_s: float, until_s: float) -> Watermark:
    """Deletes the drift that proves nothing, and skips the complete minutes before `resume_minute`.

    Returns the watermark, with the last skipped minute as judged. If the time runs out (`until_s`, on the store's
    clock) or another writer changes a row, returns `journal_complete_s` 0 (not finished), and the next sweep continues.
    """
    # The watermark knows the letters up to the last sweep, also discarded letters. A letter may be newer.
    may_lack_letter = watermark_.has_unjudged_redrive or dead_letters.any_waiting(store)
    drifts = (
        (row, 0 if may_lack_letter else row.confirmed_amount(watermark_))
        for row in rows.all_rows(store)
        if row.last_minute < watermark_.resume_minute  # a later minute is from after the loss
    )
    writes = (
        [rows.forget_write(store, row, remaining, now_s)]
        for row, remaining in drifts
        if remaining != row.drift or row.changes  # otherwise an earlier run has written the row
    )
    while chunk := list(islice(writes, ROWS_AT_ONCE)):
        if store.clock() >= until_s or not all(map_in_threads(lambda write: try_commit(store, write), chunk)):
            return replace(watermark_, journal_complete_s=0)
    last = min(watermark_.last_complete_minute(store.settings), watermark_.resume_minute - 1)
    watermark.note_judged(store, last, watermark_.judged)
    return replace(watermark_, judged=last)
