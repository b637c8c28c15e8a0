"""A change that an idempotency key names is counted once: Powertools' idempotency around one transaction.

Powertools hashes the key, validates the payload, expires receipts and replays the stored answer. Its "save in
progress" step does everything here: it commits the COMPLETED receipt together with the change. So there is no
in-progress state to be stuck in, nothing to delete after an exception, and nothing to update afterwards.

A single change takes the way of `once`: Powertools calls `ReceiptLayer._put_record`, which calls the change with the
stamp of its receipt. A batch makes the stamps itself. Both read a receipt that they find with `ReceiptLayer.stored`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, NoReturn

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

from ..counter import Counter
from ..dynamo.client import Call, Store
from ..dynamo.keys import Item
from ..dynamo.queries import get, get_many
from ..dynamo.transactions import Write
from ..errors import CounterRetiredError, KeyReusedError, NotCommittedError, ReceiptFoundError, TallyError

KEY_PREFIX = "tally"
"""Constant. By default a function's name is part of the key: one key through two functions would count twice."""

Body = dict[str, Any]
"""The JSON that an operation answers."""
VISIBLE_NOW: Body = {"visible": "now"}
VISIBLE_SOON: Body = {"visible": "soon"}
"""When reads show a change: at once, or as soon as it is rolled up."""
ALONE: Item = {"rollup": {"BOOL": True}}
"""The mark of a receipt or a child that was written alone: the rollup adds it to its tally."""
DAY_S = 24 * 3600
ALONE_KEPT_S = 8 * DAY_S  # longer than checkpoints: what no checkpoint covers can be recounted from the receipts


@dataclass(frozen=True)
class Stamp:
    """What Powertools knows of a receipt before the change is made: its id, the payload's hash, when it expires."""

    id: str
    payload_hash: str
    expires_s: int

    def receipt(self, call: Call, body: Body, **facts: Item) -> Write:
        """The write of the COMPLETED receipt, if the key has no live one. `facts`: attributes for the streams."""
        return {
            "Put": {
                "TableName": call.store.settings.receipts_table,
                "Item": {
                    "id": {"S": self.id},
                    "status": {"S": "COMPLETED"},
                    "data": {"S": json.dumps(body, separators=(",", ":"))},
                    "validation": {"S": self.payload_hash},
                    "expiration": {"N": str(self.expires_s)},
                    "nonce": {"S": call.nonce},
                    **facts,
                },
                "ConditionExpression": "attribute_not_exists(id) OR expiration < :now",
                "ExpressionAttributeValues": {":now": {"N": str(int(time.time()))}},
                "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
            }
        }

    def alone(self, call: Call, body: Body, **facts: Item) -> Write:
        """The receipt of a change that is written alone. It lives ALONE_KEPT_S at least."""
        expires_s = max(self.expires_s, int(time.time()) + ALONE_KEPT_S)
        return replace(self, expires_s=expires_s).receipt(call, body, **ALONE, **facts)


Change = Callable[[Stamp], Body]
"""Commits the change together with the receipt that the stamp makes; returns the body that the receipt stores."""


class Counted(NamedTuple):
    """The body that a change is answered with, and whether an earlier call with the same key counted it."""

    body: Body
    replayed: bool


class Keyed(NamedTuple):
    """The name of a receipt (operation, target, key, and the caller of the call), and what must be the same again."""

    operation: str
    target: str
    key: str
    payload: dict[str, Any]
    days: int | None = None
    """For how many days its receipt lives; None: for as long as the deployment says."""

    def expires_s(self, default_s: int | None) -> int:
        """When its receipt expires; `default_s`: by the deployment. Epoch seconds."""
        return (default_s or 0) if self.days is None else int(time.time()) + self.days * DAY_S

    def data(self, call: Call) -> dict[str, Any]:
        """What Powertools hashes: `key` names the receipt, `payload` is validated."""
        return {"key": [self.operation, self.target, call.caller or "", self.key], "payload": self.payload}


@dataclass
class _Pending:
    """The change of the call under way, on its way through Powertools, and its result."""

    call: Call
    keyed: Keyed
    change: Change
    body: Body | None = None
    replayed: bool = False


_pending: ContextVar[_Pending] = ContextVar("pending")


class ReceiptLayer(DynamoDBPersistenceLayer):
    """Powertools' DynamoDB layer with one write instead of two. The change travels in a ContextVar, not here."""

    def stamp(self, call: Call, keyed: Keyed) -> Stamp:
        """The stamp of a receipt, as Powertools makes it for a single change."""
        data = keyed.data(call)
        id_ = self._get_hashed_idempotency_key(data) or ""
        return Stamp(id_, self._get_hashed_payload(data), keyed.expires_s(self._get_expiry_timestamp()))

    def read(self, item: Item) -> tuple[DataRecord, Body]:
        """A stored receipt and its body. Raises NotCommittedError for one that Tally does not write."""
        try:
            record = self._item_to_data_record(item)
            body = record.response_json_as_dict()
            if record.status in ("COMPLETED", "EXPIRED") and isinstance(body, dict):
                return record, body
        except (BaseError, KeyError, TypeError, ValueError) as error:
            raise NotCommittedError(_INCONSISTENT) from error
        raise NotCommittedError(_INCONSISTENT)

    def stored(self, call: Call, item: Item, stamp: Stamp) -> tuple[DataRecord, Counted]:
        """What the receipt that a change found says of it.

        A receipt with the call's own nonce is a first answer: its own write, whose answer was lost. Raises
        KeyReusedError if the key was used with another payload, NotCommittedError.
        """
        record, body = self.read(item)
        if item.get("nonce") == {"S": call.nonce}:
            return record, Counted(body, replayed=False)
        try:
            self._validate_payload(DataRecord(stamp.id, payload_hash=stamp.payload_hash), record)
        except IdempotencyValidationError:
            raise KeyReusedError("This idempotency key was used for another change.") from None
        return record, Counted(body, replayed=True)

    def _put_record(self, data_record: DataRecord) -> None:
        """Commit receipt and change. Raises IdempotencyItemAlreadyExistsError with the old receipt if there is one."""
        pending = _pending.get()
        pending.replayed = False  # Powertools tries again when the receipt that it found has just expired
        expires_s = pending.keyed.expires_s(data_record.expiry_timestamp)
        stamp = Stamp(data_record.idempotency_key, data_record.payload_hash, expires_s)
        try:
            pending.body = pending.change(stamp)
        except ReceiptFoundError as found:
            old, (body, replayed) = self.stored(pending.call, dict(found.item), stamp)
            if not replayed:
                pending.body = body
                return
            pending.replayed = True
            raise IdempotencyItemAlreadyExistsError(old_data_record=old) from found

    def save_success(self, data: dict[str, Any], result: dict[str, Any]) -> None:
        """Nothing: the receipt was complete when it was put. The inherited one also hashes key and payload again."""

    def delete_record(self, data: dict[str, Any], exception: Exception) -> None:
        """Nothing: the change is committed, so its receipt must stay."""


_INCONSISTENT = "The receipt is in a state that Tally does not write."


def once(call: Call, keyed: Keyed, change: Change) -> Counted:
    """Make `change` once under its key.

    Raises KeyReusedError if the key was used with another payload, NotCommittedError if nothing was committed or
    replayed, or what the change raises.
    """
    if not keyed.key:
        raise NotCommittedError("No idempotency key reached the receipts.")
    pending = _Pending(call, keyed, change)
    token = _pending.set(pending)
    try:
        body = _guarded(call.store, keyed.operation).function(data=keyed.data(call))
    except IdempotencyPersistenceLayerError as error:
        if isinstance(error.__cause__, TallyError):
            raise error.__cause__ from None
        raise NotCommittedError("The receipt could not be written.") from error
    except BaseError as error:  # an inconsistent or in-progress state: only Tally writes receipts
        raise NotCommittedError(_INCONSISTENT) from error
    finally:
        _pending.reset(token)
    return Counted(body, pending.replayed)


def stamp(call: Call, keyed: Keyed) -> Stamp:
    """The stamp of a change's receipt, for a batch. Raises NotCommittedError without a key."""
    if not keyed.key:
        raise NotCommittedError("No idempotency key reached the receipts.")
    return _guarded(call.store, keyed.operation).layer.stamp(call, keyed)


def stored(call: Call, operation: str, item: Item, stamp: Stamp) -> Counted:
    """The answer in a receipt that a batch found. Raises KeyReusedError, NotCommittedError."""
    return _guarded(call.store, operation).layer.stored(call, item, stamp)[1]


def lives_s(store: Store, counter: Counter) -> int:
    """For how many seconds at least a retry of a change of the counter is recognised."""
    own_s = store.settings.receipt_ttl_s if counter.receipt_days is None else counter.receipt_days * DAY_S
    return max(own_s, ALONE_KEPT_S) if counter.soon else own_s


def look(call: Call, stamp: Stamp) -> None:
    """Look for a live receipt without writing one. Raises ReceiptFoundError if there is one."""
    item = _read(call, stamp.id)
    if item and _lives(item):
        raise ReceiptFoundError(item)


def refuse_retired(call: Call, counter: Counter, stamp: Stamp) -> NoReturn:
    """Refuse a change of a retired counter. Raises CounterRetiredError.

    Raises ReceiptFoundError if the change was counted before: a retry whose first answer was lost still gets it.
    """
    look(call, stamp)
    raise retired(counter)


def retired(counter: Counter) -> CounterRetiredError:
    """What a change of a retired counter gets."""
    return CounterRetiredError(f"{counter.name} is retired: it can be read, but takes no more changes.")


def live(call: Call, ids: Collection[str]) -> dict[str, Item]:
    """Those of the receipts, at most 100, that are live, by id, as they were a moment ago: half an RCU for each.

    Raises StoreBusyError, StoreUnreachableError.
    """
    keys = [{"id": {"S": id_}} for id_ in ids]
    found = get_many(call, call.store.settings.receipts_table, keys, ConsistentRead=False)
    return {item["id"]["S"]: item for item in found if _lives(item)}


def _lives(receipt: Item) -> bool:
    return float(receipt.get("expiration", {}).get("N", 0)) >= int(time.time())


def find(call: Call, operation: str, target: str, key: str) -> Body | None:
    """The body in the live receipt of a change; None if it was not counted, or if the receipt has expired."""
    return _body(call, operation, _read(call, stamp(call, Keyed(operation, target, key, {})).id))


def find_many(call: Call, operation: str, named: Sequence[tuple[str, str]]) -> list[Body | None]:
    """As `find`, of each (target, key), at most 100: one read, 1 RCU for each receipt. Raises StoreBusyError."""
    ids = [stamp(call, Keyed(operation, target, key, {})).id for target, key in named]
    keys = [{"id": {"S": id_}} for id_ in dict.fromkeys(ids)]
    found = {item["id"]["S"]: item for item in get_many(call, call.store.settings.receipts_table, keys)}
    return [_body(call, operation, found.get(id_)) for id_ in ids]


def _body(call: Call, operation: str, item: Item | None) -> Body | None:
    """The body in a receipt; None if there is no receipt, or it has expired."""
    if not item:
        return None
    record, body = _guarded(call.store, operation).layer.read(item)
    return body if record.status == "COMPLETED" else None


def _read(call: Call, id_: str) -> Item:
    """The receipt; empty if there is none."""
    return get(call.store.client, call.store.settings.receipts_table, {"id": {"S": id_}})


class NoContext:
    """The Lambda context that Powertools asks for, to expire a state in progress. A receipt has no such state."""

    def get_remaining_time_in_millis(self) -> int:
        """No time: nothing is ever in progress."""
        return 0


@dataclass(frozen=True)
class _Guarded:
    """An operation's persistence layer, and the function that Powertools makes idempotent with it."""

    layer: ReceiptLayer
    function: Callable[..., Body]


def _guarded(store: Store, operation: str) -> _Guarded:
    """Those of this operation and thread, made once: one layer per call would leak botocore's handlers."""
    made: dict[str, _Guarded] = store.layers.__dict__
    if operation not in made:
        made[operation] = _make(store)
    return made[operation]


def _make(store: Store) -> _Guarded:
    layer = ReceiptLayer(table_name=store.settings.receipts_table, boto3_client=store.client)
    config = IdempotencyConfig(
        event_key_jmespath="key",
        payload_validation_jmespath="payload",
        raise_on_no_idempotency_key=True,
        expires_after_seconds=store.settings.receipt_ttl_s,
        use_local_cache=False,
        hash_function="sha256",
        lambda_context=NoContext(),  # type: ignore[arg-type]  # it has the one method that is called
    )
    layer.configure(config, key_prefix=KEY_PREFIX)

    def answer(*, data: dict[str, Any]) -> Body:
        """Powertools calls this when the receipt is new. By then the change is committed, or something is wrong."""
        body = _pending.get().body
        if body is None:
            raise NotCommittedError("The receipt layer was skipped: nothing was counted.")
        return body

    guarded = idempotent_function(
        answer, data_keyword_argument="data", persistence_store=layer, config=config, key_prefix=KEY_PREFIX
    )
    return _Guarded(layer, guarded)
