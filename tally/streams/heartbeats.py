"""Heartbeats: writes into each stream shard. A consumer that has passed a heartbeat has passed all earlier records.

The partition key decides the shard of a write. A key that has reached a shard is used for each next heartbeat of the
shard. For a shard without such a key, Tally tries the keys of the parent shard, and random keys.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

from .. import observe
from ..dynamo import items, keys
from ..dynamo.client import Store
from ..dynamo.transactions import Write, try_commit
from ..errors import TallyError
from ..items import HEARTBEAT_PREFIX
from ..settings import Settings
from .lineage import BOOKKEEPER, RECEIPTS, STREAM_RETENTION_S, StreamsSnapshot

RANDOM_HEARTBEATS = 8  # for each stream with quiet leaves; if no key reaches a leaf, the sweep reads the leaf


def send_heartbeats(
    streams: StreamsSnapshot, make_write: Callable[[str, str], Write], consumer: str = BOOKKEEPER
) -> None:
    """Writes a heartbeat for each leaf, each by itself, so that one failure does not stop the others.

    `make_write`: returns the write of a heartbeat. Arguments: table, and the key. `consumer`: who gets the heartbeats.
    """
    for table, leaves in streams.leaves.items():
        parents, guesses = set(), 0
        for leaf in leaves:
            own, parent = streams.heartbeat_keys(table, leaf, consumer)
            if own and _try_send(streams.store, make_write, table, own):
                streams.heartbeat_reached.add((table, leaf))
                continue
            if parent and not own:
                parents.add(parent)
            if own or streams.is_quiet(table, leaf, consumer):  # with a key `own` only if its heartbeat failed
                guesses = RANDOM_HEARTBEATS
        for name in sorted(parents.union(secrets.token_hex(8) for _ in range(guesses))):
            _try_send(streams.store, make_write, table, name)


def _try_send(store: Store, make_write: Callable[[str, str], Write], table: str, name: str) -> bool:
    try:
        return try_commit(store, [make_write(table, name)])
    except TallyError as error:
        observe.logger.warning("a heartbeat failed", exc_info=error, extra={"table": table, "key": name})
        return False


def heartbeat_write(settings: Settings, table: str, name: str, now_s: float) -> Write:
    """Returns the write of one heartbeat."""
    values = {"at": int(now_s), "expiration": int(now_s) + STREAM_RETENTION_S}
    if table == RECEIPTS:
        return items.put_write(settings.receipts_table, {"id": {"S": f"{keys.RECEIPT_HEARTBEAT_PREFIX}{name}"}}, values)
    return items.put_write(settings.counts_table, keys.key(f"{HEARTBEAT_PREFIX}{name}", "HEARTBEAT"), values)
