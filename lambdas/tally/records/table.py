"""Records with atomic counters: typed records in a table, whose counters move with every update, in the same call.

What the Java 2.x enhanced client offers, in Python; docs/records.md shows it by example.
https://docs.aws.amazon.com/sdk-for-java/latest/developer-guide/ddb-en-client-extensions-ACE.html
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ..dynamo.contention import Retries
from ..dynamo.keys import Item
from ..dynamo.queries import complete, get
from ..dynamo.transactions import Write, pause, send_one
from ..errors import CallerError, InvalidInputError, NotFoundError, StoreBusyError
from .attribute_values import ANY, encode
from .expression_syntax import Bound, ExpressionError, Path
from .expressions import NO_ACTIONS, Action, Condition, UpdateExpression
from .expressions import parameters as expression_parameters
from .extensions import (
    AtomicCounterExtension,
    Extension,
    Operation,
    WriteContext,
    Written,
    run_chain,
)
from .record_class import (
    from_item,
    record_class_of,
    values_of,
)

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient


R = TypeVar("R")


class RecordExistsError(CallerError):
    """put_item would have reset the counters of a record that is there. `item`: what is there."""

    slug, status, title = "record-exists", 409, "The record exists"

    def __init__(self, detail: str, item: Item) -> None:
        super().__init__(detail)
        self.item = item


class RecordChangedError(CallerError):
    """The condition of a write did not hold. `item`: what is there; None if nothing is."""

    slug, status, title = "record-changed", 409, "The record is not as the condition says"

    def __init__(self, detail: str, item: Item | None) -> None:
        super().__init__(detail)
        self.item = item


class Records(Generic[R]):
    """The records of one class in one table. Made once; any number of threads may use it.

    `extensions` run in order, behind the one that moves the counters, unless they name its place themselves.
    """

    def __init__(
        self, client: DynamoDBClient, table_name: str, cls: type[R], *, extensions: Sequence[Extension] = ()
    ) -> None:
        """Raises ConfigurationError if `cls` is no record class."""
        self._client = client
        self._table_name = table_name
        self._cls = cls
        self._known = record_class_of(cls)
        placed = any(isinstance(extension, AtomicCounterExtension) for extension in extensions)
        self._extensions = tuple(extensions) if placed else (AtomicCounterExtension(), *extensions)

    def get_item(self, partition: object, sort: object = None) -> R | None:
        """The record of this key; None if there is none. A strongly consistent read.

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
        """Write the whole record, its counters at their start; the record as it is now.

        Where a record is already there, its counters would be lost: that is refused by a condition in the write itself
        (RecordExistsError), unless `reset_counters` asks for it. A class without counters is just overwritten.

        Raises RecordChangedError if `condition` does not hold, InvalidInputError for a value that cannot be stored or
        a counter that the caller set, ExpressionError, or what botocore's error maps to.
        """
        write = self.put_write(record, condition=condition, reset_counters=reset_counters)["Put"]
        guarded = bool(self._known.counters) and not reset_counters
        _send(self._client, {"Put": write}, lambda item: self._refused(write["Item"], item, guarded))
        return self.from_item(write["Item"])

    def update_item(
        self,
        record: R,
        *,
        condition: Condition | None = None,
        expression: UpdateExpression | None = None,
        ignore_nulls: bool = False,
    ) -> R:
        """Write the record's values over the stored ones and move its counters, in one call; the record as it is now.

        Unset (None) attributes are removed, unless `ignore_nulls` leaves them, or an extension or `expression` changes
        them. What the class does not declare stays. Where there is no record one is made, its counters at their start.

        Raises RecordChangedError if `condition` does not hold, InvalidInputError for a value that cannot be stored or
        a counter that the caller set, ExpressionError for overlapping paths, RecordMismatchError (after the write), or
        what botocore's error maps to. After a lost answer the caller does not know: see docs/records.md.
        """
        write = self._update(record, condition, expression, ignore_nulls)
        answer = _send(
            self._client,
            {"Update": {**write, "ReturnValues": "ALL_NEW", "ReturnConsumedCapacity": "TOTAL"}},
            lambda item: self._refused(write["Key"], item, guarded=False),
        )
        stored = complete(dict(answer), "ConsumedCapacity").get("Attributes")
        if not stored:  # aws-sdk-java-v2 issue 2761: a REMOVE makes no item, and says nothing
            raise NotFoundError(
                f"There is no {self._known.name} {_shown(write['Key'])}, and an update that only removes makes none."
            )
        return self.from_item(stored)

    def put_write(
        self, record: R, *, condition: Condition | None = None, reset_counters: bool = False
    ) -> dict[str, Any]:
        """What put_item sends, as an entry of TransactWriteItems: `{"Put": {…}}`.

        Raises what put_item raises locally.
        """
        written = self._extended("put_item", record, condition)
        if written.expression.actions:
            raise ExpressionError(f"{written.expression.actions[0]}: put_item takes no update expression.")
        conditions = written.conditions
        if self._known.counters and not reset_counters:
            guard = Condition("attribute_not_exists(#key)", names={"#key": self._known.keys[0].name})
            conditions = (*conditions, guard)
        return {"Put": self._write({"Item": self._encoded(written.item)}, NO_ACTIONS, conditions)}

    def update_write(
        self,
        record: R,
        *,
        condition: Condition | None = None,
        expression: UpdateExpression | None = None,
        ignore_nulls: bool = False,
    ) -> dict[str, Any]:
        """What update_item sends, as an entry of TransactWriteItems: `{"Update": {…}}`.

        Raises what update_item raises locally, and ExpressionError if there is nothing to write: no entry is empty.
        """
        write = self._update(record, condition, expression, ignore_nulls)
        if "UpdateExpression" not in write:
            raise ExpressionError(f"{self._known.name} {_shown(write['Key'])}: there is nothing to write.")
        return {"Update": write}

    def from_item(self, item: Mapping[str, Any]) -> R:
        """The record that an item is, of an error or a cancelled transaction say. Raises RecordMismatchError."""
        return from_item(self._cls, item)

    def _update(
        self, record: R, condition: Condition | None, expression: UpdateExpression | None, ignore_nulls: bool
    ) -> dict[str, Any]:
        written = self._extended("update_item", record, condition, ignore_nulls)
        asked = written.expression.merge((expression or NO_ACTIONS).by("the caller's expression"))
        item = self._encoded(written.item)
        key = {a.name: item.pop(a.name) for a in self._known.keys}
        changed_keys = asked.attributes & key.keys()
        if changed_keys:
            raise ExpressionError(f"{', '.join(sorted(changed_keys))}: a key cannot be changed by an update.")
        unset = written.item.keys() - item.keys() - key.keys() - asked.attributes
        own = [Action("SET", Path.of(name), (Bound(wire),)) for name, wire in item.items()]
        own += [Action("REMOVE", Path.of(name)) for name in sorted(unset)]
        return self._write({"Key": key}, asked.merge(UpdateExpression(tuple(own)).by("the record")), written.conditions)

    def _extended(
        self, operation: Operation, record: R, condition: Condition | None, ignore_nulls: bool = False
    ) -> Written:
        """What the extensions make of a write of this record; the caller's condition joins theirs."""
        if type(record) is not self._cls:
            raise InvalidInputError(f"A {type(record).__name__} is no {self._known.name}.")
        values = values_of(record)
        if ignore_nulls:
            values = {name: value for name, value in values.items() if value is not None}
        written = run_chain(self._extensions, WriteContext(operation, self._table_name, self._known, values))
        return written if condition is None else replace(written, conditions=(*written.conditions, condition))

    def _encoded(self, values: Mapping[str, object]) -> Item:
        """What is set, on the wire, the keys among it. None where the class wants a value is refused by name."""
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

    def _refused(self, key: Item, item: Item | None, guarded: bool) -> CallerError:
        """The error for a condition that failed. The guard of put_item fails for an item that is there, and only so."""
        where = f"{self._known.name} {_shown({a.name: key[a.name] for a in self._known.keys})}"
        if guarded and item:
            counters = ", ".join(self._known.counters)
            return RecordExistsError(
                f"There is a {where}: put_item would reset {counters}. Use update_item, or say reset_counters=True.",
                item,
            )
        return RecordChangedError(f"{where} is not as the condition says. Read it and try again.", item or None)


def _get(client: DynamoDBClient, table: str, key: Item) -> Item:
    """One item, read again after throttling. Raises StoreBusyError, or what botocore's error maps to."""
    retries = Retries(math.inf)
    while True:
        try:
            return get(client, table, key)
        except StoreBusyError:
            if not retries.wait():
                raise


def _send(client: DynamoDBClient, write: Write, refused: Callable[[Item | None], CallerError]) -> Mapping[str, Any]:
    """Send one write, again after a conflict or throttling: nothing was written then. Returns DynamoDB's answer.

    Raises what `refused` makes of a failed condition, StoreBusyError, or what botocore's error maps to.
    """
    retries = Retries(math.inf)
    while not (sent := send_one(client, write)).committed:
        if sent.refused:
            raise refused(sent.reasons[0].item) from sent.error
        sent.conflict_or_raise()
        pause(retries)
    return sent.answer


def _shown(key: Item) -> str:
    return ", ".join(f"{name}={next(iter(wire.values()))!r}" for name, wire in key.items())
