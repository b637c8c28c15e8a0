"""The ledger restarts after the streams may have lost records (streams/loss.py).

If a record is lost, one half of its change is missing from the journal. So differences in the minutes of the loss prove
nothing, and the judge skips these minutes once they are closed. Drift that was unconfirmed before the loss is deleted,
because it may be one half of a lost change. Confirmed drift is older than the loss, and stays. But if a dead letter
waits, was dropped, or was redriven on skipped minutes, confirmed drift is deleted, too: it may be half of that letter.
Segments stay, so the series sum up what they have.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

from ..dynamo.client import Store, side_by_side
from ..dynamo.transactions import apply_once
from ..streams import dead_letters, watermark
from ..streams.watermark import Watermark
from . import rows

FORGOTTEN_AT_ONCE = 100  # rows between two looks at the time


def begin(store: Store, seen: Watermark, now_s: float, until_s: float) -> Watermark:
    """Forget the drift that proves nothing, and pass over what is closed of the minutes before `again`.

    The watermark then. If the time runs out (`until_s`, on the store's clock) or a row moves, nothing is closed in it:
    the next sweep goes on. A sweep that slept leaves what was judged since.
    """
    # A letter that was dropped counts as redriven: sweeps saw it wait while they judged what its half left uneven.
    letters = seen.redriven or dead_letters.any_left(store)
    drifts = ((row, 0 if letters else row.confirmed(seen)) for row in rows.every(store) if row.upto < seen.again)
    writes = ([rows.forgotten(store, row, kept, now_s)] for row, kept in drifts if kept != row.drift or row.changes)
    while chunk := list(islice(writes, FORGOTTEN_AT_ONCE)):
        if store.clock() >= until_s or not all(side_by_side(lambda write: apply_once(store, write), chunk)):
            return replace(seen, known_s=0)
    last = min(seen.closed(store.settings), seen.again - 1)
    watermark.note_judged(store, last, seen.judged)
    return replace(seen, judged=last)
