"""The items of holds: their keys, their states and times, and how they are found (holds.py changes their states).

Holds are in the ledger table. A hold id is `<first time of expiry>-<random part>`. PK, SK -> state:

    HOLDS#bucket              <hold id>#counter/id          held. After a change of the time, the key begins with
                                                            the present time of expiry (`expires`)
    HOLDS#bucket              OVERDUE#counter/id#<hold id>  held past its time, because its release was refused
    HOLDS#SETTLED#counter/id  <hold id>                     moved: the hold has another time of expiry (`expires`)
    HOLDS#SETTLED#counter/id  <hold id>                     committed (`used`: what the commit took), released,
                                                            expired or voided, until `kept_s` seconds after `latest`

The id in the keys has no period, so a hold is found without its period. `target` is the stored id of the tally, with
any period. `latest`: the latest time at which the hold may expire. `receipt`: the id of the receipt of the call that
placed the hold. `kept_s`: for how long after `latest` the receipts and the record of the hold live. A new declaration
of the counter does not change `kept_s`, so the receipts and the record live equally long.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from ..counter import Counter
from ..dynamo import clock, items, keys, queries
from ..dynamo.client import Call, Store
from ..dynamo.keys import Item
from ..dynamo.queries import Page
from ..errors import NotFoundError, StoreBusyError
from . import periods
from .receipts import lifetime_s

BUCKETS = 16  # partitions: they take 4,000 holds a second, if each is put and deleted, for 2 write units each
UNRELEASED_MAX = 20  # in each bucket, `count_unreleased` reads so many expired and so many overdue holds at most
OVERDUE = "OVERDUE#"  # sorts after all times of expiry
SETTLED_KEPT_S = 24 * 3600  # the record of a hold is kept at least this long after `latest`, for late commits
HELD, COMMITTED, RELEASED, EXPIRED, VOIDED = "held", "committed", "released", "expired", "voided"
MOVED = "moved"
FIND_ATTEMPTS_MAX = 5  # the first may find MOVED; a later attempt fails only if another call changes the hold's time


def bucket(counter: Counter, id_: str) -> int:
    """Returns the bucket, 0 to 15, that the holds of one tally are in."""
    return hashlib.sha256(key_part(counter.name, id_).encode()).digest()[0] % BUCKETS


def key_part(name: str, id_: str) -> str:
    """Returns the part of a hold's keys that names the counter and the id, without the period: `stock/mug`."""
    return f"{name}/{periods.answer_members(id_)['id']}"


def live_key(counter: Counter, id_: str, hold_id: str, expires_s: int) -> Item:
    """Returns the key of a live hold, which is held and not overdue. Live holds sort by their time of expiry."""
    unique = hold_id.partition("-")[2]
    return keys.key(f"HOLDS#{bucket(counter, id_)}", f"{expires_s}-{unique}#{key_part(counter.name, id_)}")


def settled_key(counter_and_id: str, hold_id: str) -> Item:
    """Returns the key of the record of a settled or moved hold."""
    return keys.key(f"HOLDS#SETTLED#{counter_and_id}", hold_id)


def find(call: Call, counter: Counter, id_: str, hold_id: str) -> Item:
    """Returns the hold. A hold is live, then perhaps overdue, then settled, so reads in this order do not miss it. If
    the settled record is MOVED, reads again by the time in the record. Raises NotFoundError, StoreBusyError."""
    counter_and_id, time_s = key_part(counter.name, id_), int(hold_id.split("-")[0])
    overdue = keys.key(f"HOLDS#{bucket(counter, id_)}", f"{OVERDUE}{counter_and_id}#{hold_id}")
    for _ in range(FIND_ATTEMPTS_MAX):
        live = live_key(counter, id_, hold_id, time_s)
        item_keys = (live, overdue, settled_key(counter_and_id, hold_id))
        read = (queries.get(call.store.client, call.store.settings.ledger_table, item_key) for item_key in item_keys)
        hold = next(filter(None, read), None)
        if hold is None or hold["hold_id"]["S"] != hold_id:  # a wrong id may match the key of a hold whose time changed
            raise NotFoundError(f"There is no hold {hold_id}.")
        if hold["state"] != {"S": MOVED}:
            return hold
        time_s = expires_s(hold)
    raise StoreBusyError("Other calls are changing the hold.")


def due_pages(store: Store, bucket_number: int, page_size: int) -> Iterator[Page]:
    """Yields pages of the due holds of a bucket, which are held past their time. The first to expire is first."""
    partition, end = f"HOLDS#{bucket_number}", str(int(clock.now_s()) + 1)
    return queries.partition_pages(store, store.settings.ledger_table, partition, high=end, Limit=page_size)


def overdue_pages(store: Store, bucket_number: int, page_size: int) -> Iterator[Page]:
    """Yields pages of the overdue holds of a bucket."""
    partition, end = f"HOLDS#{bucket_number}", f"{OVERDUE}{queries.SORT_KEY_MAX}"
    return queries.partition_pages(store, store.settings.ledger_table, partition, OVERDUE, end, Limit=page_size)


def count_unreleased(store: Store, expired_before_s: float) -> tuple[int, bool]:
    """Counts the overdue holds, and the holds that expired before `expired_before_s` and are not released. Returns
    their number, and whether there may be more. Reads at most UNRELEASED_MAX holds of each kind in a bucket."""
    end = str(int(expired_before_s))
    ranges = ((queries.SORT_KEY_MIN, end), (OVERDUE, f"{OVERDUE}{queries.SORT_KEY_MAX}"))
    pages = [
        queries.query(store, store.settings.ledger_table, f"HOLDS#{bucket_number}", low, high, Limit=UNRELEASED_MAX)
        for bucket_number in range(BUCKETS)
        for low, high in ranges
    ]
    number = sum(hold.get("state") == {"S": HELD} for page in pages for hold in page)
    return number, any(page.has_more for page in pages)


def expect_as_read(hold: Item) -> items.Expected:
    """Returns the condition that a hold is as it was read. The time needs no condition, because it is in the key."""
    return {"state": HELD, "amount": hold["amount"]}


def current_state(hold: Item) -> str:
    """Returns the state of the hold now: EXPIRED if its item says HELD and its time is over."""
    state = str(hold["state"]["S"])
    return EXPIRED if state == HELD and expires_s(hold) <= clock.now_s() else state


def expires_s(hold: Item) -> int:
    """Returns when the hold expires, in epoch seconds."""
    return int(hold["expires"]["N"])


def record_kept_s(store: Store, counter: Counter) -> int:
    """Returns the `kept_s` of a new hold: for how long after `latest` its receipts and its record are kept."""
    return max(SETTLED_KEPT_S, lifetime_s(store, counter))


def known_until_s(hold: Item) -> int:
    """Returns until when a hold's receipts and record are kept: for `kept_s` after `latest`. If `latest` is over,
    because the hold was overdue, for `kept_s` from now."""
    began_s = max(int(clock.now_s()), int(hold["latest"]["N"]))
    return began_s + int(hold["kept_s"]["N"]) + clock.CLOCK_DIFFERENCE_S_MAX
