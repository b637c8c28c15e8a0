"""Writes of stream consumers and of redriving: one transaction, retried while others are in its way.

Unlike commit.py's, they have no receipt and no choice of shards, and what DynamoDB does not take is told apart: it is
the record's fault, not the deployment's.
"""

from __future__ import annotations

from collections.abc import Sequence

from botocore.exceptions import BotoCoreError, ClientError

from .. import observe
from ..dynamo.client import Call
from ..dynamo.transactions import BUSY_REASONS, CONDITION_FAILED, Write, busy_or_raise, conflict_or_raise, pause
from ..errors import TallyError

_REJECTED_REASONS = frozenset({"ValidationError", "ItemCollectionSizeLimitExceeded"})
_REJECTED_CODES = frozenset({"ValidationException"})


class MovedError(TallyError):
    """The condition of the transaction failed: somebody else was first."""


class RejectedError(TallyError):
    """DynamoDB does not take one of the writes, or not so much at once; the message is its own."""


def transact(call: Call, entries: Sequence[Write]) -> None:
    """Commit `entries` in one TransactWriteItems; a plain UpdateItem, at half the price, if it is one update.

    Raises MovedError, RejectedError, StoreBusyError when conflicts or throttling outlast the retries, or what
    botocore's error maps to.
    """
    client, retries = call.store.client, call.retries()
    while True:
        try:
            if len(entries) == 1 and "Update" in entries[0]:
                client.update_item(**entries[0]["Update"])
            else:
                client.transact_write_items(TransactItems=entries)  # type: ignore[arg-type]
            return
        except client.exceptions.ConditionalCheckFailedException:
            raise MovedError("the condition failed") from None
        except client.exceptions.TransactionCanceledException as cancelled:
            conflict = _judge(cancelled.response.get("CancellationReasons", []))
        except (ClientError, BotoCoreError) as error:
            if isinstance(error, ClientError) and error.response.get("Error", {}).get("Code") in _REJECTED_CODES:
                raise RejectedError(error.response["Error"].get("Message", "ValidationException")) from None
            conflict = busy_or_raise(error)
        if conflict:
            observe.logger.info("conflict")
        pause(retries)


def _judge(reasons: Sequence[object]) -> bool:
    """Judge a cancelled transaction: raises, or says whether it met a conflict (else it was throttled)."""
    found = {reason.get("Code"): reason.get("Message") for reason in reasons if isinstance(reason, dict)}
    if CONDITION_FAILED in found:
        raise MovedError("the condition failed")
    if not BUSY_REASONS & found.keys():
        for code in _REJECTED_REASONS & found.keys():
            raise RejectedError(found[code] or code)
    return conflict_or_raise(reasons)
