"""Extensions of record writes: each may change the item, add an update expression or a condition, before it is sent.

They run in order: each sees the item as the ones before it left it, and not their expressions. The expressions are
merged and then checked for overlaps only, as in the Java client's extension chain:
https://sdk.amazonaws.com/java/api/latest/software/amazon/awssdk/enhanced/dynamodb/DynamoDbEnhancedClientExtension.html
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Literal, Protocol

from .expressions import NO_ACTIONS, Condition, UpdateExpression
from .record_class import AtomicCounter, RecordClass

Operation = Literal["put_item", "update_item"]


@dataclass(frozen=True)
class WriteContext:
    """The facts of a write that an extension gets."""

    operation: Operation
    table_name: str
    record_class: RecordClass
    item: Mapping[str, object]
    """The values by attribute name, keys included, as Python has them. None in an update: it will be removed."""


@dataclass(frozen=True)
class WriteModification:
    """What an extension wants of a write."""

    item: Mapping[str, object] | None = None
    """Written instead of the item; None leaves it. An attribute left out of an update is neither set nor removed."""
    expression: UpdateExpression = NO_ACTIONS
    """For update_item alone: put_item refuses it, for a put takes none."""
    condition: Condition | None = None
    """Must hold too, beside the caller's condition and those of other extensions."""


class Extension(Protocol):
    """Anything with this hook. It must not keep state of a write: one instance serves all threads."""

    def before_write(self, context: WriteContext) -> WriteModification | None:
        """What to change of this write; None for nothing."""


@dataclass(frozen=True)
class Written:
    """What the extensions made of a write, together."""

    item: dict[str, object]
    expression: UpdateExpression
    conditions: tuple[Condition, ...]


class AtomicCounterExtension:
    """Moves the record's atomic counters: a put writes their start, an update moves them in the same call.

    The first update writes the start too: `c = if_not_exists(c, :start - :delta) + :delta`. Follows
    https://sdk.amazonaws.com/java/api/latest/software/amazon/awssdk/enhanced/dynamodb/extensions/AtomicCounterExtension.html
    """

    def before_write(self, context: WriteContext) -> WriteModification | None:
        """The counters' part of a write; None for a record class without counters."""
        counters = context.record_class.counters
        if not counters:
            return None
        if context.operation == "put_item":
            starts = {name: counter.start for name, counter in counters.items()}
            return WriteModification(item={**context.item, **starts})
        return WriteModification(expression=_moves(tuple(counters.items())))


@lru_cache(maxsize=128)  # record classes are few, and theirs is half the work of an update
def _moves(counters: tuple[tuple[str, AtomicCounter], ...]) -> UpdateExpression:
    expression = NO_ACTIONS
    for name, counter in counters:
        expression = expression.set_to(
            "#counter",
            "if_not_exists(#counter, :before) + :delta",
            names={"#counter": name},
            values={":before": counter.start - counter.delta, ":delta": counter.delta},
        )
    return expression


def run_chain(extensions: Sequence[Extension], context: WriteContext) -> Written:
    """What the extensions, in order, make of a write."""
    item, expression, conditions = dict(context.item), NO_ACTIONS, list[Condition]()
    for extension in extensions:
        seen = WriteContext(context.operation, context.table_name, context.record_class, MappingProxyType(item))
        wanted = extension.before_write(seen)
        if wanted is None:
            continue
        if wanted.item is not None:
            item = dict(wanted.item)
        expression = expression.merge(wanted.expression.by(type(extension).__name__))
        if wanted.condition is not None:
            conditions.append(wanted.condition)
    return Written(item, expression, tuple(conditions))
