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
from ..dynamo.transactions import apply_once
from ..errors import StoreBusyError
from .receipts import DAY_S

SECRET = "SECRET"  # partition and sort key of the stack's own, in the ledger
SALT, FORGOTTEN = "SALT#", "FORGOTTEN"
FORGOTTEN_S = 600  # after midnight a salt goes: until then a clock may be behind
FORGOTTEN_DAYS = 3  # that a sweep looks back
_DIGEST_BYTES = 18  # 24 characters: 144 bits, more than a secret of 22 characters has


def hashed(secret: str, text: str) -> str:
    """24 characters of `A-Z a-z 0-9 _ -` that identify the text without telling it."""
    digest = hmac.new(secret.encode(), text.encode(), hashlib.sha256).digest()
    return base64.urlsafe_b64encode(digest[:_DIGEST_BYTES]).decode()


def of_stack(call: Call) -> str:
    """The secret of the stack: the first who needs it makes it, for good. Raises StoreBusyError.

    It is in the ledger, so a stack that is restored from its backups knows its visitors again. A stack that loses it
    counts the visitors of the running periods once more.
    """
    return _made(call, SECRET, call.store.settings.ledger_table, key(SECRET, SECRET), {})


def of_day(call: Call, now_s: float) -> str:
    """The salt of a day of UTC: the first who needs it makes it. Raises StoreBusyError.

    It is in a table without backups, from which `forget` takes it after the day. A process forgets it at its first call
    of another day.
    """
    name, known = _salt(now_s), call.store.secrets
    for old in [one for one in known if one.startswith(SALT) and one != name]:
        known.pop(old, None)
    expires_s = int(now_s // DAY_S + 1) * DAY_S + FORGOTTEN_S
    return _made(call, name, call.store.settings.salts_table, {"PK": {"S": name}}, {"expiration": expires_s})


def forget(store: Store, now_s: float) -> None:
    """Remove the salts of days that are over, once in a process and day. TTL removes what is older."""
    day = _salt(now_s - FORGOTTEN_S)
    if store.secrets.get(FORGOTTEN) == day:
        return
    for ago in range(1, 1 + FORGOTTEN_DAYS):
        gone = {"PK": {"S": _salt(now_s - FORGOTTEN_S - ago * DAY_S)}}
        apply_once(store, [{"Delete": {"TableName": store.settings.salts_table, "Key": gone}}])
    store.secrets[FORGOTTEN] = day


def _salt(at_s: float) -> str:
    return SALT + datetime.fromtimestamp(at_s, UTC).date().isoformat()


def _made(call: Call, name: str, table: str, item_key: Item, beside: items.Values) -> str:
    """A secret that is read once in a process, and made by the first who needs it."""
    known = call.store.secrets
    if name not in known:
        item = get(call.store.client, table, item_key)
        if not item:
            write = items.put(table, item_key, {"secret": secrets.token_urlsafe(32), **beside})
            write["Put"]["ConditionExpression"] = "attribute_not_exists(PK)"
            apply_once(call.store, [write])
            item = get(call.store.client, table, item_key)  # another process may have been first
        if not item:
            raise StoreBusyError("A secret is being made. Send the request again.")
        known[name] = item["secret"]["S"]
    return known[name]
