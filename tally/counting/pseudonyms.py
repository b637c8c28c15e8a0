"""Pseudonyms: in place of a visitor's name or address, Tally stores a keyed hash, by which it recognises the visitor.

The key of the hash is the stack's secret, or a day's salt. So a reader of the table cannot hash all possible names or
addresses, and compare the hashes.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from datetime import UTC, datetime

from ..dynamo import items
from ..dynamo.client import Call, Store
from ..dynamo.keys import Item, key
from ..dynamo.queries import get
from ..dynamo.transactions import try_commit
from ..errors import StoreBusyError
from .receipts import DAY_S

SECRET = "SECRET"  # partition and sort key of the stack's secret, in the ledger
SALT, LAST_CLEANED_DAY = "SALT#", "CLEANED"  # the start of a salt's name; the cache's name for the day of cleaning
SALT_GRACE_S = 600  # a salt is deleted so long after midnight, because the clock of a process may be behind
SALT_LOOKBACK_DAYS = 3  # a sweep deletes the salts of so many past days, also after days without a sweep
_DIGEST_BYTES = 18  # 24 characters of base64, 144 bits: more than a browser's secret of 22 characters has


def pseudonym(secret: str, text: str) -> str:
    """Returns 24 characters of `A-Z a-z 0-9 _ -` that identify the text and do not reveal it."""
    digest = hmac.new(secret.encode(), text.encode(), hashlib.sha256).digest()
    return base64.urlsafe_b64encode(digest[:_DIGEST_BYTES]).decode()


def stack_secret(call: Call) -> str:
    """Returns the secret of the stack. The first call that needs the secret makes it. Raises StoreBusyError.

    The secret is in the ledger, which has backups, so a restored stack still recognises its visitors. If the secret was
    lost, the stack would count the visitors of the current periods a second time.
    """
    return _read_or_create(call, SECRET, call.store.settings.ledger_table, key(SECRET, SECRET), {})


def salt_of_day(call: Call, now_s: float) -> str:
    """Returns the salt of the day (UTC) of `now_s`. The first call that needs the salt makes it. Raises StoreBusyError.

    After the day nobody can compute its pseudonyms: the salt is in a table without backups, and `delete_old_salts`
    deletes the salt. A process forgets the salt when it first needs the salt of another day."""
    name, cache = _salt_name(now_s), call.store.secret_cache
    for old in [cached for cached in cache if cached.startswith(SALT) and cached != name]:
        cache.pop(old, None)
    expires_s = int(now_s // DAY_S + 1) * DAY_S + SALT_GRACE_S
    return _read_or_create(call, name, call.store.settings.salts_table, {"PK": {"S": name}}, {"expiration": expires_s})


def delete_old_salts(store: Store, now_s: float) -> None:
    """Deletes the salts of the last SALT_LOOKBACK_DAYS days, once a day in each process. TTL removes older salts."""
    day = _salt_name(now_s - SALT_GRACE_S)
    if store.secret_cache.get(LAST_CLEANED_DAY) == day:
        return
    for days_ago in range(1, 1 + SALT_LOOKBACK_DAYS):
        old = {"PK": {"S": _salt_name(now_s - SALT_GRACE_S - days_ago * DAY_S)}}
        try_commit(store, [{"Delete": {"TableName": store.settings.salts_table, "Key": old}}])
    store.secret_cache[LAST_CLEANED_DAY] = day


def _salt_name(at_s: float) -> str:
    return SALT + datetime.fromtimestamp(at_s, UTC).date().isoformat()


def _read_or_create(call: Call, name: str, table: str, item_key: Item, extra: items.Values) -> str:
    """Returns a secret, which the first process makes, and each process reads once. `extra`: attributes of its item."""
    cache = call.store.secret_cache
    if name not in cache:
        item = get(call.store.client, table, item_key)
        if not item:
            write = items.put_write(table, item_key, {"secret": secrets.token_urlsafe(32), **extra})
            write["Put"]["ConditionExpression"] = "attribute_not_exists(PK)"
            try_commit(call.store, [write])
            item = get(call.store.client, table, item_key)  # another process may have been first
        if not item:
            raise StoreBusyError("Another process is making a secret.")
        cache[name] = item["secret"]["S"]
    return cache[name]
