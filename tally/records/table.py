"""Records with atomic counters: typed records in a table, whose counters move with every update, in the same call.

This is a feature of the Java 2.x enhanced client, in Python; docs/records.md shows it by example.
https://docs.aws.amazon.com/sdk-for-java/latest/developer-guide/ddb-en-client-extensions-ACE.html
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from boto3.dynamodb.conditions import ConditionBase

from ..dynamo.contention import Retries
from ..dynamo.keys import Item
from ..dynamo.queries import get, require_member
from ..dynamo.transactions import Write, send, send_one, sleep_or_raise_busy
from ..errors import CallerError, InvalidInputError, NotFoundError, RetryableError, StoreBusyError
from .expressions import Action, Encoded, ExpressionError, Path, parameters
from .extensions import AtomicCounterExtension, Extension, Operation, WriteContext, WriteModification
from .record_class import KEY_BYTES_MAX, attributes_of, encode

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient


R = TypeVar("R")
_COUNTERS_READ = "_tally_counters_read"  # the attribute of a record object that holds its counters as they were read


class RecordExistsError(CallerError):
    """put_item found a record, whose counters it would have set back to their start. `item` is the stored item."""

    slug, status, title = "record-exists", 409, "The record exists"

    def __init__(self, detail: str, item: Item) -> None:
        super().__init__(detail)
        self.item = item


class RecordChangedError(CallerError):
    """The condition of a write did not hold. `item` is the stored item; None if it does not exist."""

    slug, status, title = "record-changed", 409, "The record is not as the condition says"

    def __init__(self, detail: str, item: Item | None) -> None:
        super().__init__(detail)
        self.item = item


class Records(Generic[R]):
    """The records of one class in one table. Make the object once; threads may share it.

    `extensions` run in order. If the list lacks AtomicCounterExtension, that extension runs first.

    With `exact`, a write takes effect once, also if its answer is lost. It costs 2 WCU for each KB; an update costs
    1 RCU more for each 4 KB, to read the record back. Without `exact`, a write costs 1 WCU for each KB and no read. But
    if an answer is lost, botocore sends the write again. Then an update can move the counters twice, and a condition
    can fail because of the first copy.
    """

    def __init__(
        self,
        client: DynamoDBClient,
        table_name: str,
        cls: type[R],
        *,
        extensions: Sequence[Extension] = (),
        exact: bool = True,
    ) -> None:
        """Raises ConfigurationError if `cls` is not a record class."""
        self._client = client
        self._exact = exact
        self._table_name = table_name
        self._cls = cls
        self._attributes = attributes_of(cls)
        self._keys = [a for key in KEY_BYTES_MAX for a in self._attributes.values() if a.key == key]  # sort key last
        self._counters = [name for name, a in self._attributes.items() if a.counter]
        is_listed = any(isinstance(extension, AtomicCounterExtension) for extension in extensions)
        self._extensions = tuple(extensions) if is_listed else (AtomicCounterExtension(), *extensions)

    def get_item(self, partition: object, sort: object = None) -> R | None:
        """Returns the record of this key; None if it does not exist. The read is strongly consistent.

        Raises InvalidInputError for a key that does not fit, RecordMismatchError, or what botocore's error maps to.
        """
        key_values = (partition,) if len(self._keys) == 1 and sort is None else (partition, sort)
        if len(key_values) != len(self._keys):
            raise InvalidInputError(f"{self._cls.__name__} has no sort key.", field="sort")
        key = {a.name: a.encode(value) for a, value in zip(self._keys, key_values, strict=True)}
        item = _get(self._client, self._table_name, key)
        return self.from_item(item) if item else None

    def put_item(self, record: R, *, condition: ConditionBase | None = None, reset_counters: bool = False) -> R:
        """Writes the whole record with its counters at their start, and returns the record as it is now.

        If the record exists, raises RecordExistsError, because the write would reset its counters. `reset_counters`
        allows the reset. A record of a class without counters is overwritten.

        If `condition` does not hold, raises RecordChangedError. Raises InvalidInputError for a value that cannot be
        stored or a counter that the caller set, ExpressionError, or what botocore's error maps to.
        """
        write = self.put_write(record, condition=condition, reset_counters=reset_counters)["Put"]
        is_guarded = bool(self._counters) and not reset_counters
        self._send({"Put": write}, lambda item: self._condition_error(write["Item"], item, is_guarded))
        return self.from_item(write["Item"])

    def update_item(
        self,
        record: R,
        *,
        condition: ConditionBase | None = None,
        actions: Sequence[Action] = (),
        ignore_nulls: bool = False,
    ) -> R:
        """Writes the record's values and moves its counters in one call. Returns the record as it is now.

        With `exact`, the record is read after the update, so it may also show later updates of other callers. Without
        `exact`, DynamoDB returns the record as this update left it.

        Removes unset (None) attributes, unless `ignore_nulls` is set or an action changes them. Attributes that the
        class does not declare stay. A new record gets its counters at their start.

        If `condition` does not hold, raises RecordChangedError. Raises InvalidInputError for a value that cannot be
        stored or a counter that the caller set, ExpressionError for overlapping paths, RecordMismatchError (after the
        write), or what botocore's error maps to. After a StoreUnreachableError the caller does not know the result,
        unless the message says that the record is updated, because only the read failed.
        """
        write = self.update_write(record, condition=condition, actions=actions, ignore_nulls=ignore_nulls)["Update"]
        # A whole answer has ConsumedCapacity. It may lack `Attributes`: see `if not stored`.
        extra = {} if self._exact else {"ReturnValues": "ALL_NEW", "ReturnConsumedCapacity": "TOTAL"}
        key = write["Key"]
        answer = self._send({"Update": write | extra}, lambda item: self._condition_error(key, item, is_guarded=False))
        if self._exact:
            try:
                stored = _get(self._client, self._table_name, key)
            except RetryableError as error:
                why = "The record is updated, but could not be read. Do not send the update again."
                raise type(error)(why) from error
        else:
            stored = require_member(dict(answer), "ConsumedCapacity").get("Attributes", {})
        if not stored:  # aws-sdk-java-v2 issue 2761: a REMOVE of a missing item makes no item, and reports no error
            name = f"{self._cls.__name__} {_key_text(key)}"
            raise NotFoundError(f"There is no {name}, and an update that only removes attributes does not create it.")
        return self.from_item(stored)

    def put_write(self, record: R, *, condition: ConditionBase | None = None, reset_counters: bool = False) -> Write:
        """Returns the write of put_item, as an entry of TransactWriteItems: `{"Put": {…}}`. Raises the errors that
        put_item raises before it sends the write."""
        values, actions, conditions = self._apply_extensions("put_item", record, condition)
        if actions:
            raise ExpressionError(f"{actions[0]}: put_item takes no actions.")
        if self._counters and not reset_counters:
            conditions.append(Path(self._keys[0].name).not_exists())
        write = {"TableName": self._table_name, "Item": self._encode_values(values)}
        return {"Put": write | parameters([], conditions)}

    def update_write(
        self,
        record: R,
        *,
        condition: ConditionBase | None = None,
        actions: Sequence[Action] = (),
        ignore_nulls: bool = False,
    ) -> Write:
        """Returns the write of update_item, as an entry of TransactWriteItems: `{"Update": {…}}`. DynamoDB rejects an
        entry without changes. Raises the errors that update_item raises before it sends the write."""
        values, all_actions, conditions = self._apply_extensions("update_item", record, condition, ignore_nulls)
        all_actions += actions
        changed = {action.path.steps[0] for action in all_actions}
        item = self._encode_values(values)
        key = {a.name: item.pop(a.name) for a in self._keys}
        if not changed.isdisjoint(key):
            raise ExpressionError(f"{', '.join(key)}: a key cannot be changed by an update.")
        of_record = [Action.set(Path(name), Encoded(wire)) for name, wire in item.items()]
        of_record += [Action.remove(Path(name)) for name in sorted(values.keys() - item.keys() - key.keys() - changed)]
        all_actions += [replace(action, source="the record") for action in of_record]
        return {"Update": {"TableName": self._table_name, "Key": key, **parameters(all_actions, conditions)}}

    def from_item(self, item: Mapping[str, Any]) -> R:
        """Returns the record of an item, such as the `item` of an error. Ignores attributes that the class does not
        declare. The record keeps its counters as they were read. Raises RecordMismatchError."""
        values = {}
        # If the item lacks an attribute, the value is None, or the default if None does not fit the type.
        for name, a in self._attributes.items():
            if name in item or a.is_nullable or not a.has_default:
                values[a.field] = a.decode(item.get(name, {"NULL": True}))
        record = self._cls(**values)
        counters = {name: values[self._attributes[name].field] for name in self._counters}
        object.__setattr__(record, _COUNTERS_READ, counters)
        return record

    def _apply_extensions(
        self, operation: Operation, record: R, condition: ConditionBase | None, ignore_nulls: bool = False
    ) -> tuple[Mapping[str, object], list[Action], list[ConditionBase]]:
        """Returns the values, actions and conditions of a write, with the changes of all extensions. Raises
        InvalidInputError for a record of another class, and for a counter that the caller set."""
        if type(record) is not self._cls:
            raise InvalidInputError(f"A {type(record).__name__} is not a {self._cls.__name__}.")
        as_read = getattr(record, _COUNTERS_READ, {})
        for name in self._counters:
            value = getattr(record, self._attributes[name].field)
            if value is not None and value != as_read.get(name):
                why = f"{name} is an atomic counter and moves by itself: leave it None, or as it was read."
                raise InvalidInputError(why, field=name)
        values: Mapping[str, object] = {
            name: value
            for name, a in self._attributes.items()
            if not a.counter and ((value := getattr(record, a.field)) is not None or not ignore_nulls)
        }
        actions, conditions = list[Action](), list[ConditionBase]()
        for extension in self._extensions:
            context = WriteContext(operation, self._table_name, self._attributes, MappingProxyType(dict(values)))
            change = extension.before_write(context) or WriteModification()
            values = values if change.item is None else change.item
            actions += [replace(action, source=type(extension).__name__) for action in change.actions]
            conditions += [change.condition] if change.condition is not None else []
        return values, actions, conditions + ([condition] if condition is not None else [])

    def _encode_values(self, values: Mapping[str, object]) -> Item:
        """Returns the values in wire form, keys included. Leaves out None, or raises if the class requires a value."""
        item = {}
        for name, value in values.items():
            declared = self._attributes.get(name)
            if declared is None and value is not None:
                item[name] = encode(value, Any, name)
            elif declared is not None and (value is not None or not declared.is_nullable):
                item[name] = declared.encode(value)
        for a in self._keys:
            if a.name not in item:
                raise ExpressionError(f"{a.name} is a key of {self._cls.__name__}, and an extension left it out.")
        return item

    def _send(self, write: Write, make_error: Callable[[Item | None], CallerError]) -> Mapping[str, Any]:
        """Sends one write, and retries after a conflict or throttling. Returns DynamoDB's answer.

        An exact write is a transaction, and all its copies have one token. An update without changes, which only makes
        a missing item, is a request of its own: DynamoDB rejects it in a transaction, and a second copy has no effect.

        If the condition failed, raises what `make_error` returns for the old item. Raises StoreBusyError, or what
        botocore's error maps to.
        """
        retries, token = Retries(math.inf), secrets.token_urlsafe(24)
        exact = self._exact and ("Put" in write or "UpdateExpression" in write["Update"])
        while not (sent := send(self._client, [write], token) if exact else send_one(self._client, write)).committed:
            if sent.condition_failed:
                raise make_error(sent.reasons[0].item) from sent.error
            sent.raise_unless_busy()
            sleep_or_raise_busy(retries)
        return sent.answer

    def _condition_error(self, key: Item, item: Item | None, is_guarded: bool) -> CallerError:
        """Makes the error for a failed condition. `is_guarded`: put_item also required that no record exists."""
        where = f"{self._cls.__name__} {_key_text({a.name: key[a.name] for a in self._keys})}"
        if is_guarded and item:
            why = f"There is a {where}: put_item would reset {', '.join(self._counters)}."
            return RecordExistsError(f"{why} Use update_item, or say reset_counters=True.", item)
        return RecordChangedError(f"{where} is not as the condition says. Read it and try again.", item or None)


def _get(client: DynamoDBClient, table: str, key: Item) -> Item:
    """Reads one item, and retries after throttling. Raises StoreBusyError, or what botocore's error maps to."""
    retries = Retries(math.inf)
    while True:
        try:
            return get(client, table, key)
        except StoreBusyError:
            if not retries.sleep_before_retry():
                raise


def _key_text(key: Item) -> str:
    return ", ".join(f"{name}={next(iter(wire.values()))!r}" for name, wire in key.items())
