"""How far the consumer has come in the streams of the team's tables, which the sweep notes.

What it has not provably passed within a day may be lost: a stream keeps a record no longer. Then no number is
right until the items are counted again.

A team that allows heartbeats in its table gets a proof of what is passed: Tally writes an item for each leaf of the
stream, and waits until the consumer has met it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

from .. import observe
from ..counter import Counter
from ..dynamo import items, queries
from ..dynamo.client import Store
from ..dynamo.items import Write
from ..dynamo.shards import StreamShards
from ..dynamo.transactions import try_commit
from ..errors import ConfigurationError
from ..items import HEARTBEAT_START, key_types
from ..streams import lineage, watermark
from ..streams.lineage import COMMIT_GRACE, ITEMS, STREAM_RETENTION_S
from . import scan_state
from .consumer import counters_of_table


def note_progress(
    store: Store, shards: StreamShards, counters: Mapping[str, Counter], table: str, now_s: float
) -> None:
    """Note until when the consumer has passed a table.

    A record that is a dead letter is not passed, and not lost: `seen` has what comes behind it. The times that were
    noted do not go back. What may be lost is said first: the stream may be gone, too.
    """
    of_table, ledger, key = (
        counters_of_table(counters, table),
        store.settings.ledger_table,
        scan_state.passed_key(table),
    )
    before, stream = queries.get(store.client, ledger, key), store.settings.team_tables[table].stream
    before_s, other = items.int_attribute(before, "passed"), before.get("stream", {"S": stream}) != {"S": stream}
    seen_s = max(before_s, items.int_attribute(before, "seen"))
    late = (
        0 < seen_s < now_s - STREAM_RETENTION_S + COMMIT_GRACE * store.settings.minute_s
        and not store.settings.local_port
    )
    if late or other:
        _report_lost(store, of_table, table, "another stream" if other else "of more than a day ago", seen_s)
    beats = any(counter.items is not None and counter.items.heartbeats for counter in of_table.values())
    look = lineage.read_streams(store, shards, now_s, (ITEMS,), (table,), peeking=not beats)
    if beats:
        watermark.send_heartbeats(look, lambda table, name: _heartbeat_write(store, table, name, now_s), ITEMS)
    if shards.is_disabled(table):  # asked after the look: what that has passed was written while the stream was on
        _report_lost(store, of_table, table, "the stream is off", seen_s)
        return
    through_s = max(seen_s, int(look.passed_s(ITEMS, table)))
    passed_s = max(before_s, min(through_s, watermark.oldest_dead_letter_s(store, ITEMS, table)))
    if through_s > seen_s or passed_s > before_s or other:
        values: items.Values = {"passed": passed_s, "seen": through_s, "stream": stream}
        try_commit(store, [items.update_write(ledger, key, values, expected={"passed": before_s or None})])


def _report_lost(store: Store, counters: Iterable[str], table: str, why: str, since_s: int) -> None:
    observe.logger.error("records of a table may be lost", extra={"table": table, "why": why, "since": since_s})
    for counter in counters:
        scan_state.invalidate_until_done(store, counter)


def _heartbeat_write(store: Store, table: str, name: str, now_s: float) -> Write:
    """The write of one heartbeat. Raises ConfigurationError for a table whose keys are no texts."""
    own = store.settings.team_tables[table].name
    partition, *sort = _key_names(store, own)
    key = {partition: {"S": f"{HEARTBEAT_START}{name}"}, **{name: {"S": "HEARTBEAT"} for name in sort}}
    return items.put_write(own, key, {"at": int(now_s)})


@lru_cache
def _key_names(store: Store, table: str) -> list[str]:
    """The names of a table's keys, the partition key first."""
    types = key_types(queries.describe_table(store, table))
    if {*types.values()} != {"S"}:
        raise ConfigurationError(f"The table {table} takes no heartbeats: its keys are no texts.")
    return list(types)
