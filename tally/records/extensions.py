"""Extensions of record writes: each may change the item, or add an update expression or a condition.

They run in order. Each sees the item of the one before it, but not its expression. `Records` merges the expressions and
checks them for overlaps, as the Java client's extension chain does:
https://sdk.amazonaws.com/java/api/latest/software/amazon/awssdk/enhanced/dynamodb/DynamoDbEnhancedClientExtension.html
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
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
    """The Python values by attribute name, with the keys. In an update, None removes the attribute."""


@dataclass(frozen=True)
class WriteModification:
    """The changes of an extension to a write."""

    item: Mapping[str, object] | None = None
    """Replaces the item; None keeps it. An update neither sets nor removes an attribute that is not in it."""
    expression: UpdateExpression = NO_ACTIONS
    """Only for update_item: put_item refuses it, because a put takes none."""
    condition: Condition | None = None
    """Must hold together with the caller's condition and those of other extensions."""


class Extension(Protocol):
    """Any object with this hook. It must keep no state: one instance serves all threads."""

    def before_write(self, context: WriteContext) -> WriteModification | None:
        """The changes to this write; None for no change."""


class AtomicCounterExtension:
    """Moves the record's atomic counters: a put writes their start, and an update moves them in the same call.

    The first update writes the start too: `c = if_not_exists(c, :start - :delta) + :delta`. Follows
    https://sdk.amazonaws.com/java/api/latest/software/amazon/awssdk/enhanced/dynamodb/extensions/AtomicCounterExtension.html
    """

    def before_write(self, context: WriteContext) -> WriteModification | None:
        """The counters' part of a write; None if the record class has no counters."""
        counters = context.record_class.counters
        if not counters:
            return None
        if context.operation == "put_item":
            starts = {name: counter.start for name, counter in counters.items()}
            return WriteModification(item={**context.item, **starts})
        return WriteModification(expression=_moves(tuple(counters.items())))


@lru_cache(maxsize=128)  # record classes are few, and this is half the work of an update
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
