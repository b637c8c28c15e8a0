"""Names under which Tally stores what it must recognise and may not know: hashes under a secret.

Whoever reads the table cannot find a name by trying all the names that there may be: a user's id, an address.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets

from ..dynamo import items
from ..dynamo.client import Call
from ..dynamo.keys import key
from ..dynamo.queries import get
from ..dynamo.transactions import apply_once
from ..errors import StoreBusyError

SECRET = "SECRET"  # partition and sort key of the stack's own, in the ledger
_DIGEST_BYTES = 18  # 24 characters: 144 bits, more than a secret of 22 characters has


def hashed(secret: str, text: str) -> str:
    """24 characters of `A-Z a-z 0-9 _ -` that stand for the text."""
    digest = hmac.new(secret.encode(), text.encode(), hashlib.sha256).digest()
    return base64.urlsafe_b64encode(digest[:_DIGEST_BYTES]).decode()


def of_stack(call: Call) -> str:
    """The secret of the stack: the first who needs it makes it, for good. Raises StoreBusyError.

    It is in the ledger, so a stack that is restored from its backups knows its visitors again.
    """
    known = call.store.secrets
    if SECRET not in known:
        client, table, item_key = call.store.client, call.store.settings.ledger_table, key(SECRET, SECRET)
        found = get(client, table, item_key)
        if not found:
            write = items.put(table, item_key, {"secret": secrets.token_urlsafe(32)})
            write["Put"]["ConditionExpression"] = "attribute_not_exists(PK)"
            apply_once(call.store, [write])
            found = get(client, table, item_key)  # another process may have been first
        if not found:
            raise StoreBusyError("The secret of the stack is being made. Send the request again.")
        known[SECRET] = found["secret"]["S"]
    return known[SECRET]
