"""A change that an idempotency key names is counted once, with Powertools' idempotency around one transaction.

Powertools hashes the key, validates the payload, expires receipts and replays the stored answer. Its "save in
progress" step is where everything happens here: the COMPLETED receipt and the change commit together. So there is no
in-progress state to be stuck in, nothing to delete after an exception, and nothing to update afterwards.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from aws_lambda_powertools.utilities.idempotency import (
    DynamoDBPersistenceLayer,
    IdempotencyConfig,
    idempotent_function,
)
from aws_lambda_powertools.utilities.idempotency.exceptions import (
    BaseError,
    IdempotencyItemAlreadyExistsError,
    IdempotencyPersistenceLayerError,
    IdempotencyValidationError,
)
from aws_lambda_powertools.utilities.idempotency.persistence.datarecord import DataRecord

from ..dynamo.client import Call, Item, Store, get
from ..dynamo.transactions import Body, Stamp
from ..errors import KeyReusedError, NotCommittedError, ReceiptFoundError, TallyError

KEY_PREFIX = (
    "tally"  # constant: by default function names are part of the key, and one key through two would count twice
)

Change = Callable[[Stamp], Body]
"""Commits the change together with the receipt that the stamp makes; gives the body that the receipt stores."""


@dataclass
class _Pending:
    """The change of the call under way, on its way through Powertools, and what became of it."""

    call: Call
    change: Change
    body: Body | None = None
    replayed: bool = False


_pending: ContextVar[_Pending] = ContextVar("pending")


class ReceiptLayer(DynamoDBPersistenceLayer):
    """Powertools' DynamoDB layer with one write where it has two. The change travels in a ContextVar, not here."""

    def _put_record(self, data_record: DataRecord) -> None:
        """Commit receipt and change. Raises IdempotencyItemAlreadyExistsError with the old receipt if there is one."""
        pending = _pending.get()
        pending.replayed = False  # Powertools comes again when the receipt that it was given has just expired
        stamp = Stamp(data_record.idempotency_key, data_record.payload_hash, data_record.expiry_timestamp or 0)
        try:
            pending.body = pending.change(stamp)
        except ReceiptFoundError as found:
            old = self._item_to_data_record(dict(found.item))
            _, body = old.status, old.response_json_as_dict()  # what a broken receipt raises Powertools wraps only here
            if not isinstance(body, dict):
                raise NotCommittedError("The receipt is in a state that Tally does not write.") from None
            if found.item.get("nonce") == {"S": pending.call.nonce}:
                pending.body = body  # our own write, whose answer was lost: a first answer
                return
            self._validate_payload(data_payload=data_record, stored_data_record=old)
            pending.replayed = True
            raise IdempotencyItemAlreadyExistsError(old_data_record=old) from found

    def save_success(self, data: dict[str, Any], result: dict[str, Any]) -> None:
        """Nothing: the receipt was complete when it was put. The inherited one also hashes key and payload again."""

    def delete_record(self, data: dict[str, Any], exception: Exception) -> None:
        """Nothing: the change stands, so its receipt must."""


def once(
    call: Call, operation: str, target: str, key: str, payload: dict[str, Any], change: Change
) -> tuple[Body, bool]:
    """Make `change` once under `key`; the body and whether it is a replay.

    A receipt is named by operation, target, caller and key. Raises KeyReusedError if the key was used with another
    payload, NotCommittedError if nothing was committed or replayed, or what the change raises.
    """
    if not key:
        raise NotCommittedError("No idempotency key reached the receipts.")
    pending = _Pending(call, change)
    token = _pending.set(pending)
    try:
        made = _made(call.store, operation)
        made.config.register_lambda_context(call)  # type: ignore[arg-type]  # it has the one method that is asked for
        body = made.function(data=_data(call, operation, target, key, payload))
    except IdempotencyValidationError:
        raise KeyReusedError("This idempotency key was used for another change.") from None
    except IdempotencyPersistenceLayerError as error:
        if isinstance(error.__cause__, TallyError):
            raise error.__cause__ from None
        raise NotCommittedError("The receipt could not be written.") from error
    except BaseError as error:  # an inconsistent or in-progress state: nobody but us writes receipts
        raise NotCommittedError("The receipt is in a state that Tally does not write.") from error
    finally:
        _pending.reset(token)
    return body, pending.replayed


def stamp_of(call: Call, operation: str, target: str, key: str, payload: dict[str, Any]) -> Stamp:
    """The stamp of a change's receipt, as Powertools makes it, for changes that are packed (packs.py)."""
    if not key:
        raise NotCommittedError("No idempotency key reached the receipts.")
    layer = _made(call.store, operation).layer
    data = _data(call, operation, target, key, payload)
    id_ = layer._get_hashed_idempotency_key(data) or ""
    return Stamp(id_, layer._get_hashed_payload(data), layer._get_expiry_timestamp())


def stored_answer(call: Call, operation: str, stamp: Stamp, found: ReceiptFoundError) -> tuple[Body, bool]:
    """The body that a receipt holds, and whether it is a replay. Raises KeyReusedError, NotCommittedError."""
    record, body = _record(call, operation, dict(found.item))
    if found.item.get("nonce") == {"S": call.nonce}:
        return body, False
    try:
        expected = DataRecord(stamp.id, payload_hash=stamp.payload_hash)
        _made(call.store, operation).layer._validate_payload(expected, record)
    except IdempotencyValidationError:
        raise KeyReusedError("This idempotency key was used for another change.") from None
    return body, True


def _record(call: Call, operation: str, item: Item) -> tuple[DataRecord, Body]:
    """What a stored receipt says, and its body. Raises NotCommittedError if it is none that Tally writes."""
    try:
        record = _made(call.store, operation).layer._item_to_data_record(item)
        body = record.response_json_as_dict()
        if record.status in ("COMPLETED", "EXPIRED") and isinstance(body, dict):
            return record, body
    except (BaseError, KeyError, TypeError, ValueError) as error:
        raise NotCommittedError("The receipt is in a state that Tally does not write.") from error
    raise NotCommittedError("The receipt is in a state that Tally does not write.")


def look(call: Call, stamp: Stamp) -> None:
    """Look for a live receipt without writing one. Raises ReceiptFoundError if one stands there."""
    item = _read(call, stamp.id)
    if item and int(item["expiration"]["N"]) >= int(time.time()):
        raise ReceiptFoundError(item)


def find(call: Call, operation: str, target: str, key: str) -> Body | None:
    """The body that the receipt of a change holds, if it was counted and the receipt lives."""
    stamp = stamp_of(call, operation, target, key, {})
    item = _read(call, stamp.id)
    if not item:
        return None
    record, body = _record(call, operation, item)
    return body if record.status == "COMPLETED" else None


def _read(call: Call, id_: str) -> Item:
    """The receipt; empty if there is none."""
    return get(call.store, call.store.settings.receipts_table, {"id": {"S": id_}})


def _data(call: Call, operation: str, target: str, key: str, payload: dict[str, Any]) -> dict[str, Any]:
    """What names a receipt, and what must be the same when it is named again."""
    return {"key": [operation, target, call.caller or "", key], "payload": payload}


@dataclass(frozen=True)
class _Made:
    layer: ReceiptLayer
    config: IdempotencyConfig
    function: Callable[..., Body]


def _made(store: Store, operation: str) -> _Made:
    """The layer and idempotent function of this operation and thread, made once: one per call would leak handlers."""
    made: dict[str, _Made] = store.layers.__dict__
    if operation not in made:
        made[operation] = _make(store)
    return made[operation]


def _make(store: Store) -> _Made:
    layer = ReceiptLayer(table_name=store.settings.receipts_table, boto3_client=store.client)
    config = IdempotencyConfig(
        event_key_jmespath="key",
        payload_validation_jmespath="payload",
        raise_on_no_idempotency_key=True,
        expires_after_seconds=store.settings.receipt_ttl_s,
        use_local_cache=False,
        hash_function="sha256",
    )
    layer.configure(config, key_prefix=KEY_PREFIX)

    def answer(*, data: dict[str, Any]) -> Body:
        """What Powertools calls when the receipt is new: the change is committed by now, or something is wrong."""
        body = _pending.get().body
        if body is None:
            raise NotCommittedError("The receipt layer was skipped: nothing was counted.")
        return body

    guarded = idempotent_function(
        answer, data_keyword_argument="data", persistence_store=layer, config=config, key_prefix=KEY_PREFIX
    )
    return _Made(layer, config, guarded)
