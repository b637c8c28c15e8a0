"""Counts a change once for its idempotency key: its receipt and its effect are one write.

A receipt is a record of Powertools' idempotency, always COMPLETED. So no record stays in progress, and Tally deletes
and updates no record after an exception. Powertools' layer hashes the key, validates the payload and reads the records.
The transaction of the change writes the receipt that its `ReceiptDraft` makes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

from aws_lambda_powertools.utilities.idempotency import DynamoDBPersistenceLayer, IdempotencyConfig
from aws_lambda_powertools.utilities.idempotency.exceptions import BaseError, IdempotencyValidationError
from aws_lambda_powertools.utilities.idempotency.persistence.datarecord import DataRecord

from ..counter import Counter
from ..dynamo import clock
from ..dynamo.client import Call, Store
from ..dynamo.keys import Item
from ..dynamo.queries import get, get_many
from ..dynamo.transactions import Write
from ..errors import AlreadyCountedError, CounterRetiredError, KeyReusedError, NotCommittedError, NotFoundError

KEY_PREFIX = "tally"
"""The same in each function. Powertools' default is the function's name: one key in two functions would count twice."""

Body = dict[str, Any]
"""The JSON that an operation answers."""
VISIBLE_NOW: Body = {"visible": "now"}
VISIBLE_SOON: Body = {"visible": "soon"}
"""The member of an answer that says when reads show the change: now, or after the rollup has added it."""
PENDING_ROLLUP: Item = {"rollup": {"BOOL": True}}
"""The attribute of a spilled receipt or child, whose amount the rollup adds to the tally."""
VOIDED_AT = "voided"
"""The attribute of a receipt that says when its change was voided, in epoch seconds."""
DAY_S = 24 * 3600
IMPORT = "import"
"""The operation of imports, in the names of their receipts."""
IMPORTED: Item = {"imported": {"BOOL": True}}
"""The attribute of a receipt or a child that an import wrote: it is not traffic. The value may be the day of the
imported numbers, since 1970: `{"N": "19846"}`."""
PENDING_KEPT_S = 8 * DAY_S
"""A spilled receipt lives so long at least, a day longer than a checkpoint (7 days). If the rollup lost its record, a
rebuild counts the change from the receipt (maintenance/rebuild.py)."""


class ReceiptDraft(NamedTuple):
    """What is known of a receipt before the change is made. `mark`: IMPORTED for an import, otherwise empty."""

    id: str
    payload_hash: str
    expires_s: int
    mark: Item

    def receipt(self, call: Call, body: Body, **facts: Item) -> Write:
        """Returns the receipt's write, which fails if the key has a live receipt. `facts`: attributes for consumers."""
        item = {
            "id": {"S": self.id},
            "status": {"S": _COMPLETED},
            "data": {"S": json.dumps(body, separators=(",", ":"))},
            "validation": {"S": self.payload_hash},
            "expiration": {"N": str(self.expires_s)},
            "nonce": {"S": call.nonce},
            **self.mark,
            **facts,
        }
        return {"Put": {
            "TableName": call.store.settings.receipts_table,
            "Item": item,
            "ConditionExpression": "attribute_not_exists(id) OR expiration < :now",
            "ExpressionAttributeValues": {":now": {"N": str(int(clock.now_s()))}},
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
        }}  # fmt: skip

    def pending_receipt(self, call: Call, body: Body, **facts: Item) -> Write:
        """Returns the write of a receipt whose change the rollup adds. It lives for PENDING_KEPT_S or longer."""
        expires_s = max(self.expires_s, expiration_s(PENDING_KEPT_S, has_user=bool(call.caller)))
        return self._replace(expires_s=expires_s).receipt(call, body, **PENDING_ROLLUP, **facts)


Change = Callable[[ReceiptDraft], Body]
"""A function that commits the change with the receipt of the draft, and returns the body that the receipt stores."""


class ChangeAnswer(NamedTuple):
    """The body of the answer to a change, and whether an earlier call with the same key counted the change."""

    body: Body
    replayed: bool


class ReceiptKey(NamedTuple):
    """`operation`, `target`, `key` and the caller name a receipt. A retry must have the same `payload`."""

    operation: str
    target: str
    key: str
    payload: dict[str, Any]
    days: int | None = None
    """For how many days the receipt lives; None: for as long as the deployment says."""
    imported_day: int | None = None
    """The day since 1970 that an import belongs to; None: the day on which the import is made."""

    def idempotency_data(self, call: Call) -> dict[str, Any]:
        """Returns what Powertools hashes: `key` names the receipt, `payload` is validated."""
        return {"key": [self.operation, self.target, call.caller or "", self.key], "payload": self.payload}


def count_once(call: Call, receipt_key: ReceiptKey, change: Change) -> ChangeAnswer:
    """Makes `change` once under the key. Raises the errors of `draft_receipt`, `answer_of_receipt` and `change`."""
    draft = draft_receipt(call, receipt_key)
    try:
        return ChangeAnswer(change(draft), replayed=False)
    except AlreadyCountedError as earlier:
        return answer_of_receipt(call, dict(earlier.item), draft)


def draft_receipt(call: Call, receipt_key: ReceiptKey) -> ReceiptDraft:
    """Returns the draft of a change's receipt. Raises NotCommittedError without a key."""
    if not receipt_key.key:
        raise NotCommittedError("No idempotency key reached the receipts.")
    layer, data = _layer(call.store), receipt_key.idempotency_data(call)
    life_s = call.store.settings.receipt_ttl_s if receipt_key.days is None else receipt_key.days * DAY_S
    id_, payload_hash = layer._get_hashed_idempotency_key(data), layer._get_hashed_payload(data)
    assert id_, "all keys would have one receipt"
    assert payload_hash, "every payload would be the same"
    mark = IMPORTED if receipt_key.operation == IMPORT else {}
    if receipt_key.imported_day is not None:
        mark = {name: {"N": str(receipt_key.imported_day)} for name in mark}  # the attribute of IMPORTED, with the day
    expires_s = expiration_s(life_s + clock.CLOCK_DIFFERENCE_S_MAX, has_user=bool(call.caller))  # clocks differ
    return ReceiptDraft(id_, payload_hash, expires_s, mark)


def expiration_s(life_s: int, *, has_user: bool) -> int:
    """Returns the expiration, in epoch seconds, of an item that lives for `life_s` at least.

    `has_user`: whether the change has a user. Without a user, the item lives to the end of a day of UTC, so that the
    access log, which has the address and the second of each request, does not tell whose item it is.
    """
    at_s = int(clock.now_s()) + life_s
    return at_s if has_user else end_of_day_s(at_s)


def end_of_day_s(at_s: int) -> int:
    """Returns the end of the day of UTC that `at_s` is in."""
    return -(-at_s // DAY_S) * DAY_S


def answer_of_receipt(call: Call, item: Item, draft: ReceiptDraft) -> ChangeAnswer:
    """Returns the answer in `item`, the live receipt of the key. If this call wrote the receipt, it is not a replay.

    Raises KeyReusedError if the key was used with another payload, and the error of `_parse_receipt`.
    """
    record, body = _parse_receipt(call, item)
    if item.get("nonce") == {"S": call.nonce}:
        return ChangeAnswer(body, replayed=False)
    try:
        _layer(call.store)._validate_payload(DataRecord(draft.id, payload_hash=draft.payload_hash), record)
    except IdempotencyValidationError:
        raise KeyReusedError("This idempotency key was used for another change.") from None
    return ChangeAnswer(body, replayed=True)


def _parse_receipt(call: Call, item: Item) -> tuple[DataRecord, Body]:
    """Returns a stored receipt and its body. Raises NotCommittedError if Tally did not write the receipt."""
    try:
        record = _layer(call.store)._item_to_data_record(item)  # its status is EXPIRED after the expiration
        body = record.response_json_as_dict()
        if record.status in (_COMPLETED, "EXPIRED") and isinstance(body, dict):
            return record, body
    except (BaseError, KeyError, TypeError, ValueError) as error:
        raise NotCommittedError(_INCONSISTENT) from error
    raise NotCommittedError(_INCONSISTENT)


_COMPLETED = "COMPLETED"
_INCONSISTENT = "The receipt is in a state that Tally does not write."


def _layer(store: Store) -> DynamoDBPersistenceLayer:
    """Returns Powertools' layer. A store has one layer, because each layer adds handlers to the client of the store."""
    layers: dict[str, DynamoDBPersistenceLayer] = store.idempotency_layers
    if KEY_PREFIX not in layers:
        layer = DynamoDBPersistenceLayer(store.settings.receipts_table, boto3_client=store.client)
        config = IdempotencyConfig(
            event_key_jmespath="key", payload_validation_jmespath="payload", hash_function="sha256"
        )
        layer.configure(config, key_prefix=KEY_PREFIX)
        layers[KEY_PREFIX] = layer
    return layers[KEY_PREFIX]


def lifetime_s(store: Store, counter: Counter) -> int:
    """Returns for how many seconds at least a retry of a change of the counter is recognised."""
    life_s = store.settings.receipt_ttl_s if counter.receipt_days is None else counter.receipt_days * DAY_S
    return max(life_s, PENDING_KEPT_S) if counter.is_rolled_up else life_s


def raise_if_counted(call: Call, draft: ReceiptDraft) -> None:
    """Raises AlreadyCountedError if the change has a live receipt. Writes nothing."""
    item = get(call.store.client, call.store.settings.receipts_table, {"id": {"S": draft.id}})
    if item and _is_live(item):
        raise AlreadyCountedError(item)


def refuse_retired(call: Call, counter: Counter, draft: ReceiptDraft) -> NoReturn:
    """Raises CounterRetiredError, or AlreadyCountedError if the change was counted before: a retry whose first answer
    was lost still gets that answer."""
    raise_if_counted(call, draft)
    raise retired_error(counter)


def retired_error(counter: Counter) -> CounterRetiredError:
    """Makes the error for a change of a retired counter."""
    return CounterRetiredError(f"{counter.name} is retired: it can be read, and takes no changes. Nothing was counted.")


def _is_live(receipt: Item) -> bool:
    return float(receipt.get("expiration", {}).get("N", 0)) >= int(clock.now_s())


def find_receipt(call: Call, receipt_key: ReceiptKey) -> Item:
    """Returns the live receipt of a change, as it is stored; 1 RCU. Raises NotFoundError, NotCommittedError."""
    id_ = draft_receipt(call, receipt_key).id
    item = get(call.store.client, call.store.settings.receipts_table, {"id": {"S": id_}})
    if not item or not _is_live(item):
        raise NotFoundError("No change of this caller has the key, or its receipt has expired.", field="key")
    _parse_receipt(call, item)
    return item


class FoundReceipt(NamedTuple):
    """The body that a live receipt stores, and whether its change was voided."""

    body: Body
    is_voided: bool


def find_many(call: Call, operation: str, targets_and_keys: Sequence[tuple[str, str]]) -> list[FoundReceipt | None]:
    """Returns for each (target, key) the live receipt, or None; for at most 100. Sends one request, and costs 1 RCU for
    each receipt. Raises StoreBusyError, and the error of `_parse_receipt`."""
    ids = [draft_receipt(call, ReceiptKey(operation, target, key, {})).id for target, key in targets_and_keys]
    keys = [{"id": {"S": id_}} for id_ in dict.fromkeys(ids)]
    receipts = {item["id"]["S"]: item for item in get_many(call, call.store.settings.receipts_table, keys)}
    bodies = {id_: _parse_receipt(call, item)[1] for id_, item in receipts.items()}
    live = {id_: FoundReceipt(bodies[id_], VOIDED_AT in item) for id_, item in receipts.items() if _is_live(item)}
    return [live.get(id_) for id_ in ids]
