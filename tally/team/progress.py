"""Progress: the sweep notes how far the consumer has come in the streams of the team's tables.

A stream keeps a record for a day. If the consumer has not provably passed a record within a day, the record may be
lost. Then no number of the table can be trusted until a scan has counted the items.

If a team allows heartbeats in its table, heartbeats prove the progress: the sweep writes an item for each leaf of the
stream. Otherwise the sweep reads quiet shards itself.
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
from ..items import HEARTBEAT_PREFIX, key_types
from ..streams import heartbeats, lineage, watermark
from ..streams.lineage import COMMIT_GRACE, ITEMS, STREAM_RETENTION_S
from . import scan_state
from .consumer import counters_of_table


def note_progress(
    store: Store, shards: StreamShards, counters: Mapping[str, Counter], table: str, now_s: float
) -> None:
    """Notes the time up to which the consumer has passed a table.

    The item has `passed`, up to which the consumer applied each record, and `seen`, up to which each record was applied
    or became a dead letter. Neither time decreases. Reports a new stream or a lag first, because the read may fail.
    """
    settings, of_table = store.settings, counters_of_table(counters, table)
    ledger, key, stream = settings.ledger_table, scan_state.passed_key(table), settings.team_tables[table].stream
    stored = queries.get(store.client, ledger, key)
    old_passed_s, old_seen_s = (items.int_attribute(stored, name) for name in ("passed", "seen"))
    old_seen_s, is_new_stream = max(old_passed_s, old_seen_s), stored.get("stream", {"S": stream}) != {"S": stream}
    kept_since_s = now_s - STREAM_RETENTION_S + COMMIT_GRACE * settings.minute_s
    if is_new_stream or (0 < old_seen_s < kept_since_s and not settings.local_port):  # `make dev` keeps every record
        why = "the table has a new stream" if is_new_stream else "the consumer lags by more than a day"
        _report_lost(store, of_table, table, why, old_seen_s)
    sends_heartbeats = any(counter.items is not None and counter.items.heartbeats for counter in of_table.values())
    streams = lineage.read_streams(store, shards, now_s, (ITEMS,), (table,), may_peek=not sends_heartbeats)
    if sends_heartbeats:
        heartbeats.send_heartbeats(streams, lambda table, key: _heartbeat_write(store, table, key, now_s), ITEMS)
    if shards.is_disabled(table):  # asked after the read, because a disabled stream is never enabled again
        _report_lost(store, of_table, table, "the stream is disabled", old_seen_s)
        return
    new_seen_s = max(old_seen_s, int(streams.passed_s(ITEMS, table)))
    new_passed_s = max(old_passed_s, min(new_seen_s, watermark.oldest_dead_letter_s(store, ITEMS, table)))
    if new_seen_s > old_seen_s or new_passed_s > old_passed_s or is_new_stream:
        values: items.Values = {"passed": new_passed_s, "seen": new_seen_s, "stream": stream}
        try_commit(store, [items.update_write(ledger, key, values, expected={"passed": old_passed_s or None})])


def _report_lost(store: Store, counters: Iterable[str], table: str, why: str, since_s: int) -> None:
    """Logs that records may be lost. Invalidates the last scan of each counter, with retries."""
    observe.logger.error("records of a table may be lost", extra={"table": table, "why": why, "since": since_s})
    for counter in counters:
        scan_state.invalidate_until_done(store, counter)


def _heartbeat_write(store: Store, table: str, heartbeat_key: str, now_s: float) -> Write:
    """Returns the write of a heartbeat's item. Raises ConfigurationError for a table whose keys are not strings."""
    team_table = store.settings.team_tables[table].name
    partition, *sort = _key_names(store, team_table)
    key = {partition: {"S": f"{HEARTBEAT_PREFIX}{heartbeat_key}"}, **{name: {"S": "HEARTBEAT"} for name in sort}}
    return items.put_write(team_table, key, {"at": int(now_s)})


@lru_cache
def _key_names(store: Store, table: str) -> list[str]:
    """Returns the names of a table's keys, the partition key first."""
    types = key_types(queries.describe_table(store, table))
    if {*types.values()} != {"S"}:
        raise ConfigurationError(f"The keys of {table} are not strings. Declare its counters without heartbeats.")
    return list(types)
