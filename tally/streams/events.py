"""Events of threshold crossings. The ledger keeps each event until the bus has the event, and for KEPT_S more.

    EVENT#partition, epoch ms#id -> detail                 not sent yet
    SENT#partition, epoch ms#id -> detail, expiration      the bus has it

The bookkeeper writes an event with its checkpoint, then sends the event. The sweep sends what the bookkeeper did not.
If a process dies between sending and noting an event, the sweep sends the event a second time, with the same id.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from heapq import merge
from itertools import groupby, islice
from typing import Any, NamedTuple

from botocore.exceptions import BotoCoreError, ClientError

from .. import observe
from ..dynamo import clock, items, keys, queries
from ..dynamo.client import Store, aws_client, map_in_threads
from ..dynamo.keys import Item
from ..dynamo.queries import SORT_KEY_MAX
from ..dynamo.transactions import Write, try_commit
from ..settings import Settings

UNSENT, SENT = "EVENT", "SENT"
PARTITIONS = 4  # of each state, because one partition takes 1,000 events a second
PAGE_SIZE = 50  # events of each partition that `newest_events` reads at a time
KEPT_S = 9 * 24 * 3600  # after an event was sent, as long as the journal
ENTRIES_MAX = 10  # EventBridge's limit for one PutEvents, which also takes 256 KB; 10 events have 40 KB at most
SOURCE, DETAIL_TYPE = "tally", "Threshold crossed"


class Event(NamedTuple):
    """An event of a number. `id`: the same in each copy. `at_ms`: epoch ms. `detail`: what the bus gets."""

    id: str
    at_ms: int
    detail: Mapping[str, Any]

    @property
    def _sort_key(self) -> str:
        return f"{self.at_ms:014}#{self.id}"

    def key(self, state: str) -> Item:
        """Returns the key of the event in the ledger."""
        return keys.key(f"{state}#{int(self.id[:8], 16) % PARTITIONS}", self._sort_key)

    def as_write(self, settings: Settings) -> Write:
        """Returns the write of an event that is not sent yet."""
        return items.put_write(settings.ledger_table, self.key(UNSENT), {"detail": _as_json(self.detail)})


def event_id(*parts: str) -> str:
    """Returns the id of an event. The same parts always make the same id."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def _as_json(detail: Mapping[str, Any]) -> str:
    return json.dumps(detail, separators=(",", ":"))


@dataclass
class Bus:
    """The event bus, by name or ARN."""

    name: str
    make_client: Callable[[], Any] = lambda: aws_client("events", read_timeout_s=3, attempts=2)

    @cached_property
    def _client(self) -> Any:
        return self.make_client()

    def put(self, events: Sequence[Event]) -> list[str]:
        """Sends at most ENTRIES_MAX events once. Returns for each event why it was not accepted; empty: accepted."""
        entries = [
            {
                "EventBusName": self.name, "Source": SOURCE, "DetailType": DETAIL_TYPE,
                "Time": event.at_ms / 1000, "Detail": _as_json(event.detail),
            }
            for event in events
        ]  # fmt: skip
        try:
            answers = self._client.put_events(Entries=entries)["Entries"]
        except (ClientError, BotoCoreError, KeyError) as error:
            return [f"{type(error).__name__}: {error}"] * len(events)
        reasons = [one.get("ErrorCode", "" if "EventId" in one else "no answer") for one in answers]
        return reasons if len(reasons) == len(events) else ["no answer"] * len(events)


def send(store: Store, bus: Bus, events: Iterable[Event], until_s: float) -> dict[str, int]:
    """Sends events until `until_s`, on the store's clock. Returns how many were sent, and how many the bus refused.

    The bus may refuse one event and accept the other events. Raises the errors of `try_commit` if the ledger fails.
    """
    remaining, sent, refused = iter(events), 0, list[str]()
    while store.clock() < until_s and (chunk := list(islice(remaining, ENTRIES_MAX))):
        reasons = bus.put(chunk)
        accepted = [event for event, reason in zip(chunk, reasons, strict=True) if not reason]
        map_in_threads(partial(_mark_sent, store), accepted)
        sent += len(accepted)
        refused += filter(None, reasons)
    if refused:
        observe.logger.warning("events were not sent", extra={"events": len(refused), "reason": refused[0][:300]})
    return {"events_sent": sent, "events_refused": len(refused)}


def _mark_sent(store: Store, event: Event) -> None:
    """Notes that the bus has an event, in two writes. After a crash between the two, the sweep sends a second copy."""
    table = store.settings.ledger_table
    values: items.Values = {"detail": _as_json(event.detail), "expiration": int(clock.now_s()) + KEPT_S}
    if try_commit(store, [items.put_write(table, event.key(SENT), values)]):
        try_commit(store, [{"Delete": {"TableName": table, "Key": event.key(UNSENT)}}])


def send_unsent(store: Store, bus: Bus, now_s: float, until_s: float) -> dict[str, int]:
    """Sends the events that the bookkeeper has not sent. Returns what `send` returns, and `oldest_event_s`: the age in
    seconds of the oldest event that is still not sent; 0: there is no such event."""
    before_ms = int((now_s - store.settings.minute_s) * 1000)  # the bookkeeper may be sending younger events
    sent = send(store, bus, _unsent(store, f"{before_ms:014}"), until_s)
    oldest_ms = min((event.at_ms for event in _unsent(store, SORT_KEY_MAX, Limit=1)), default=now_s * 1000)
    return {**sent, "oldest_event_s": max(0, int(now_s - oldest_ms / 1000))}


def _unsent(store: Store, high: str, **more: Any) -> Iterator[Event]:
    """Yields unsent events up to the sort key `high`, the oldest first: all, or at most `Limit` of each partition."""
    read = queries.partition_items if "Limit" not in more else queries.query
    partitions = [read(store, store.settings.ledger_table, one, high=high, **more) for one in _partitions(UNSENT)]
    return map(_event, merge(*partitions, key=_sort_key))


def newest_events(store: Store) -> Iterator[tuple[Event, bool]]:
    """Yields the events of the ledger, the newest first, and whether each was sent."""
    newest_first = [
        queries.partition_items(store, store.settings.ledger_table, one, ScanIndexForward=False, Limit=PAGE_SIZE)
        for one in (*_partitions(UNSENT), *_partitions(SENT))
    ]
    for _, of_event in groupby(merge(*newest_first, key=_sort_key, reverse=True), _sort_key):
        copies = list(of_event)  # two, if a process died between the two writes of `_mark_sent`
        yield _event(copies[0]), any(item["PK"]["S"].startswith(SENT) for item in copies)


def _partitions(state: str) -> list[str]:
    return [f"{state}#{number}" for number in range(PARTITIONS)]


def _sort_key(item: Item) -> str:
    return str(item["SK"]["S"])


def _event(item: Item) -> Event:
    at_ms, _, id_ = _sort_key(item).partition("#")
    return Event(id_, int(at_ms), json.loads(item["detail"]["S"]))
