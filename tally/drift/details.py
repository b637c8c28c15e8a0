"""The answer of `GET /details`: the shards of a tally, its drift, and its repairs."""

from __future__ import annotations

from typing import Any

from ..counter import Counter
from ..counting import periods, tallies
from ..dynamo.client import Call
from ..streams import watermark
from . import history, rows

REPAIRS_MAX = 100


def details(call: Call, counter: Counter, tally: str) -> dict[str, Any]:
    """Answers `{"counter","id","value","shards":[{"shard","value"}],"drift","judged_up_to","repairs"}`.

    `tally`: a stored id. `drift`: `{"drift","since","confirmed"}`, null without drift. `judged_up_to`: epoch s; null if
    nothing is judged. `repairs`: `{"at","amount","how","who","why"}`, the newest first.
    """
    store = call.store
    watermark_ = watermark.read(store)
    row = rows.read_row(store, counter.name, tally)
    shards = tallies.read_numbered_shards(call, counter, tally)
    drift = row.body(watermark_) if row.drift else None
    return {
        "counter": counter.name,
        **periods.answer_members(tally),
        "value": tallies.sum_of_shards(counter, shards.values()),
        "shards": [
            {"shard": shard, "value": tallies.stored_number(counter, item, 0 if shard else counter.start)}
            for shard, item in sorted(shards.items())
        ],
        "drift": {name: drift[name] for name in ("drift", "since", "confirmed")} if drift else None,
        "judged_up_to": watermark_.judged_up_to(store.settings),
        "repairs": [
            {name: repair["by" if name == "who" else name] for name in ("at", "amount", "how", "who", "why")}
            for repair in history.latest_repairs(store, counter.name, tally, REPAIRS_MAX)
        ],
    }
