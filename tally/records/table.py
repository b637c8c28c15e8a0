"""Records with atomic counters: typed records in a table, whose counters move with every update, in the same call.

This is a feature of the Java 2.x enhanced client, in Python; docs/records.md shows it by example.
https://docs.aws.amazon.com/sdk-for-java/latest/developer-guide/ddb-en-client-extensions-ACE.html
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ..dynamo.contention import Retries
from ..dynamo.keys import Item
from ..dynamo.queries import complete, get
from ..dynamo.transactions import Write, pause, send, send_one
from ..errors import CallerError, InvalidInputError, NotFoundError, RetryableError, StoreBusyError
from .attribute_values import ANY, encode
from .expression_syntax import ExpressionError, Path
from .expressions import NO_ACTIONS, Action, Condition, UpdateExpression
from .expressions import parameters as expression_parameters
from .extensions import AtomicCounterExtension, Extension, Operation, WriteContext
from .record_class import from_item, record_class_of, values_of

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient


R = TypeVar("R")


class RecordExistsError(CallerError):
    """put_item would have reset the counters of an existing record. `item` is the stored item."""

    slug, status, title = "record-exists", 409, "The record exists"

    def __init__(self, detail: str, item: Item) -> None:
        super().__init__(detail)
        self.item = item


class RecordChangedError(CallerError):
    """The condition of a write did not hold. `item` is the stored item; None if there is none."""

    slug, status, title = "record-changed", 409, "The record is not as the condition says"

    def __init__(self, detail: str, item: Item | None) -> None:
        super().__init__(detail)
        self.item = item


class Records(Generic[R]):
    """The records of one class in one table. Make it once; threads may share it.

    `extensions` run in order, after the one that moves the counters, unless the list holds that one itself.

    A write takes effect once, whatever answer is lost: it costs 2 WCU for each KB, and an update 1 RCU for each 4 KB to
    read the record back. Without `exact` it costs 1 WCU for each KB and no read. But after a lost answer botocore sends
    it again by itself: an update can move the counters twice, and a condition can find the write's own effect.
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
        """Raises ConfigurationError if `cls` is no record class."""
        self._client = client
        self._exact = exact
        self._table_name = table_name
        self._cls = cls
        self._known = record_class_of(cls)
        placed = any(isinstance(extension, AtomicCounterExtension) for extension in extensions)
        self._extensions = tuple(extensions) if placed else (AtomicCounterExtension(), *extensions)

    def get_item(self, partition: object, sort: object = None) -> R | None:
        """The record of this key; None if there is none. The read is strongly consistent.

        Raises InvalidInputError for a key of another shape, RecordMismatchError, or what botocore's error maps to.
        """
        keys = self._known.keys
        given = (partition,) if len(keys) == 1 and sort is None else (partition, sort)
        if len(given) != len(keys):
            raise InvalidInputError(f"{self._known.name} has no sort key.", field="sort")
        key = {a.name: a.encode(value) for a, value in zip(keys, given, strict=True)}
        item = _get(self._client, self._table_name, key)
        return self.from_item(item) if item else None

    def put_item(self, record: R, *, condition: Condition | None = None, reset_counters: bool = False) -> R:
        """Write the whole record with its counters at their start, and return the record as it is now.

        This would reset the counters of an existing record. So a condition in the write refuses it
        (RecordExistsError), unless `reset_counters` is set. A record of a class without counters is overwritten.

        Raises RecordChangedError if `condition` does not hold, InvalidInputError for a value that cannot be stored or
        a counter that the caller set, ExpressionError, or what botocore's error maps to.
        """
        write = self.put_write(record, condition=condition, reset_counters=reset_counters)["Put"]
        guarded = bool(self._known.counters) and not reset_counters
        self._send({"Put": write}, lambda item: self._refused(write["Item"], item, guarded))
        return self.from_item(write["Item"])

    def update_item(
        self,
        record: R,
        *,
        condition: Condition | None = None,
        expression: UpdateExpression | None = None,
        ignore_nulls: bool = False,
    ) -> R:
        """Write the record's values and move its counters in one call. Return the record as it is now.

        It is read back, so it may already show later updates of others. Without `exact` it is what this update made of
        it: each caller sees numbers of its own.

        It removes unset (None) attributes, unless `ignore_nulls` is set, or an extension or `expression` changes them.
        Attributes that the class does not declare stay. A new record gets its counters at their start.

        Raises RecordChangedError if `condition` does not hold, InvalidInputError for a value that cannot be stored or
        a counter that the caller set, ExpressionError for overlapping paths, RecordMismatchError (after the write), or
        what botocore's error maps to. After a StoreUnreachableError the caller does not know the result.
        """
        write = self._update(record, condition, expression, ignore_nulls)
        asked = {} if self._exact else {"ReturnValues": "ALL_NEW", "ReturnConsumedCapacity": "TOTAL"}
        answer = self._send({"Update": write | asked}, lambda item: self._refused(write["Key"], item, guarded=False))
        if self._exact:
            stored = self._read_back(write["Key"])
        else:
            stored = complete(dict(answer), "ConsumedCapacity").get("Attributes", {})
        if not stored:  # aws-sdk-java-v2 issue 2761: a REMOVE makes no item, and reports nothing
            raise NotFoundError(
                f"There is no {self._known.name} {_shown(write['Key'])}, and an update that only removes makes none."
            )
        return self.from_item(stored)

    def put_write(
        self, record: R, *, condition: Condition | None = None, reset_counters: bool = False
    ) -> dict[str, Any]:
        """The write of put_item, as an entry of TransactWriteItems: `{"Put": {…}}`.

        Raises what put_item raises locally.
        """
        values, expression, conditions = self._extended("put_item", record, condition)
        if expression.actions:
            raise ExpressionError(f"{expression.actions[0]}: put_item takes no update expression.")
        if self._known.counters and not reset_counters:
            conditions.append(Condition("attribute_not_exists(#key)", names={"#key": self._known.keys[0].name}))
        return {"Put": self._write({"Item": self._encoded(values)}, NO_ACTIONS, conditions)}

    def update_write(
        self,
        record: R,
        *,
        condition: Condition | None = None,
        expression: UpdateExpression | None = None,
        ignore_nulls: bool = False,
    ) -> dict[str, Any]:
        """The write of update_item, as an entry of TransactWriteItems: `{"Update": {…}}`.

        Raises what update_item raises locally, and ExpressionError if there is nothing to write: no entry is empty.
        """
        write = self._update(record, condition, expression, ignore_nulls)
        if "UpdateExpression" not in write:
            raise ExpressionError(f"{self._known.name} {_shown(write['Key'])}: there is nothing to write.")
        return {"Update": write}

    def from_item(self, item: Mapping[str, Any]) -> R:
        """The record of an item, for example of an error or a cancelled transaction. Raises RecordMismatchError."""
        return from_item(self._cls, item)

    def _update(
        self, record: R, condition: Condition | None, expression: UpdateExpression | None, ignore_nulls: bool
    ) -> dict[str, Any]:
        values, extended, conditions = self._extended("update_item", record, condition, ignore_nulls)
        asked = extended.merge((expression or NO_ACTIONS).by("the caller's expression"))
        item = self._encoded(values)
        key = {a.name: item.pop(a.name) for a in self._known.keys}
        changed_keys = asked.attributes & key.keys()
        if changed_keys:
            raise ExpressionError(f"{', '.join(sorted(changed_keys))}: a key cannot be changed by an update.")
        unset = values.keys() - item.keys() - key.keys() - asked.attributes
        own = [Action("SET", Path.of(name), (wire,)) for name, wire in item.items()]
        own += [Action("REMOVE", Path.of(name)) for name in sorted(unset)]
        return self._write({"Key": key}, asked.merge(UpdateExpression(tuple(own)).by("the record")), conditions)

    def _extended(
        self, operation: Operation, record: R, condition: Condition | None, ignore_nulls: bool = False
    ) -> tuple[Mapping[str, object], UpdateExpression, list[Condition]]:
        """A write of this record after all extensions: its values, what they write, and the conditions of all."""
        if type(record) is not self._cls:
            raise InvalidInputError(f"A {type(record).__name__} is no {self._known.name}.")
        values: Mapping[str, object] = values_of(record)
        if ignore_nulls:
            values = {name: value for name, value in values.items() if value is not None}
        expression, conditions = NO_ACTIONS, list[Condition]()
        for extension in self._extensions:
            context = WriteContext(operation, self._table_name, self._known, MappingProxyType(dict(values)))
            wanted = extension.before_write(context)
            if wanted is None:
                continue
            if wanted.item is not None:
                values = wanted.item
            expression = expression.merge(wanted.expression.by(type(extension).__name__))
            if wanted.condition is not None:
                conditions.append(wanted.condition)
        if condition is not None:
            conditions.append(condition)
        return values, expression, conditions

    def _encoded(self, values: Mapping[str, object]) -> Item:
        """The set values on the wire, with the keys. It refuses None if the class requires a value."""
        item = {}
        for name, value in values.items():
            declared = self._known.by_name.get(name)
            if declared is None and value is not None:
                item[name] = encode(value, ANY, name)
            elif declared is not None and (value is not None or not declared.kind.nullable):
                item[name] = declared.encode(value)
        for a in self._known.keys:
            if a.name not in item:
                raise ExpressionError(f"{a.name} is a key of {self._known.name}, and an extension left it out.")
        return item

    def _write(
        self, what: dict[str, Any], expression: UpdateExpression, conditions: Sequence[Condition]
    ) -> dict[str, Any]:
        write = {"TableName": self._table_name, **what, **expression_parameters(expression, conditions)}
        if conditions:
            write["ReturnValuesOnConditionCheckFailure"] = "ALL_OLD"
        return write

    def _send(self, write: Write, refused: Callable[[Item | None], CallerError]) -> Mapping[str, Any]:
        """Send one write, and retry after a conflict or throttling, which wrote nothing. Returns DynamoDB's answer.

        All copies of an exact write have one token. An update without an expression, which no transaction takes, puts
        the key and nothing else: it may arrive twice.

        Raises what `refused` makes of a failed condition, StoreBusyError, or what botocore's error maps to.
        """
        retries, token = Retries(math.inf), secrets.token_urlsafe(24)
        exact = self._exact and ("Put" in write or "UpdateExpression" in write["Update"])
        while not (sent := send(self._client, [write], token) if exact else send_one(self._client, write)).committed:
            if sent.refused:
                raise refused(sent.reasons[0].item) from sent.error
            sent.conflict_or_raise()
            pause(retries)
        return sent.answer

    def _read_back(self, key: Item) -> Item:
        """The item that was just updated. Raises RetryableError with the warning that the update is done."""
        try:
            return _get(self._client, self._table_name, key)
        except RetryableError as error:
            raise type(error)("The record is updated, but could not be read. Do not send the update again.") from error

    def _refused(self, key: Item, item: Item | None, guarded: bool) -> CallerError:
        """The error for a failed condition. The guard of put_item fails only if the item exists."""
        where = f"{self._known.name} {_shown({a.name: key[a.name] for a in self._known.keys})}"
        if guarded and item:
            counters = ", ".join(self._known.counters)
            return RecordExistsError(
                f"There is a {where}: put_item would reset {counters}. Use update_item, or say reset_counters=True.",
                item,
            )
        return RecordChangedError(f"{where} is not as the condition says. Read it and try again.", item or None)


def _get(client: DynamoDBClient, table: str, key: Item) -> Item:
    """Read one item, and retry after throttling. Raises StoreBusyError, or what botocore's error maps to."""
    retries = Retries(math.inf)
    while True:
        try:
            return get(client, table, key)
        except StoreBusyError:
            if not retries.wait():
                raise


def _shown(key: Item) -> str:
    return ", ".join(f"{name}={next(iter(wire.values()))!r}" for name, wire in key.items())
