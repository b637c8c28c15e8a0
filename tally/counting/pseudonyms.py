"""Names under which Tally stores what it must recognise and may not know: hashes under a secret.

A reader of the table cannot find a name by trying all the names that there may be: a user's id, an address.
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

SECRET = "SECRET"  # partition and sort key of the stack's own, in the ledger
SALT, LAST_CLEANED_DAY = "SALT#", "FORGOTTEN"
SALT_GRACE_S = 600  # after midnight a salt goes: until then a clock may be behind
SALT_LOOKBACK_DAYS = 3  # that a sweep looks back
_DIGEST_BYTES = 18  # 24 characters: 144 bits, more than a secret of 22 characters has


def pseudonym(secret: str, text: str) -> str:
    """24 characters of `A-Z a-z 0-9 _ -` that identify the text without telling it."""
    digest = hmac.new(secret.encode(), text.encode(), hashlib.sha256).digest()
    return base64.urlsafe_b64encode(digest[:_DIGEST_BYTES]).decode()


def stack_secret(call: Call) -> str:
    """The secret of the stack: the first who needs it makes it, for good. Raises StoreBusyError.

    It is in the ledger, so a stack that is restored from its backups knows its visitors again. A stack that loses it
    counts the visitors of the running periods once more.
    """
    return _read_or_create(call, SECRET, call.store.settings.ledger_table, key(SECRET, SECRET), {})


def salt_of_day(call: Call, now_s: float) -> str:
    """The salt of a day of UTC: the first who needs it makes it. Raises StoreBusyError.

    It is in a table without backups, from which `delete_old_salts` takes it after the day. A process forgets it at its
    first call of another day.
    """
    name, known = _salt_name(now_s), call.store.secret_cache
    for old in [one for one in known if one.startswith(SALT) and one != name]:
        known.pop(old, None)
    expires_s = int(now_s // DAY_S + 1) * DAY_S + SALT_GRACE_S
    return _read_or_create(call, name, call.store.settings.salts_table, {"PK": {"S": name}}, {"expiration": expires_s})


def delete_old_salts(store: Store, now_s: float) -> None:
    """Remove the salts of days that are over, once in a process and day. TTL removes what is older."""
    day = _salt_name(now_s - SALT_GRACE_S)
    if store.secret_cache.get(LAST_CLEANED_DAY) == day:
        return
    for ago in range(1, 1 + SALT_LOOKBACK_DAYS):
        gone = {"PK": {"S": _salt_name(now_s - SALT_GRACE_S - ago * DAY_S)}}
        try_commit(store, [{"Delete": {"TableName": store.settings.salts_table, "Key": gone}}])
    store.secret_cache[LAST_CLEANED_DAY] = day


def _salt_name(at_s: float) -> str:
    return SALT + datetime.fromtimestamp(at_s, UTC).date().isoformat()


def _read_or_create(call: Call, name: str, table: str, item_key: Item, beside: items.Values) -> str:
    """A secret that is read once in a process, and made by the first who needs it."""
    known = call.store.secret_cache
    if name not in known:
        item = get(call.store.client, table, item_key)
        if not item:
            write = items.put_write(table, item_key, {"secret": secrets.token_urlsafe(32), **beside})
            write["Put"]["ConditionExpression"] = "attribute_not_exists(PK)"
            try_commit(call.store, [write])
            item = get(call.store.client, table, item_key)  # another process may have been first
        if not item:
            raise StoreBusyError("A secret is being made.")
        known[name] = item["secret"]["S"]
    return known[name]
