"""Extensions of record writes: each may change the item, or add actions or a condition.

Extensions run in order. Each extension gets the item that the previous extension returned, but not its actions.
`Records` checks all actions for overlaps, as the Java client's extension chain does:
https://sdk.amazonaws.com/java/api/latest/software/amazon/awssdk/enhanced/dynamodb/DynamoDbEnhancedClientExtension.html
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from boto3.dynamodb.conditions import ConditionBase

from .expressions import Action, Path, if_not_exists
from .record_class import Attribute

Operation = Literal["put_item", "update_item"]


@dataclass(frozen=True)
class WriteContext:
    """The facts of a write that an extension gets."""

    operation: Operation
    table_name: str
    attributes: Mapping[str, Attribute]
    """The attributes that the record class declares, by their names in the table."""
    item: Mapping[str, object]
    """The Python values by attribute name, keys included. In an update, None removes the attribute."""


@dataclass(frozen=True)
class WriteModification:
    """The changes of an extension to a write."""

    item: Mapping[str, object] | None = None
    """Replaces the item; None keeps it. An update leaves an attribute as it is if the item does not have it."""
    actions: Sequence[Action] = ()
    """Only for update_item: put_item refuses actions."""
    condition: ConditionBase | None = None
    """This condition must hold together with the caller's condition and the conditions of other extensions."""


class Extension(Protocol):
    """Any object with this hook. The object must not keep state, because one instance serves all threads."""

    def before_write(self, context: WriteContext) -> WriteModification | None:
        """Returns the changes to this write; None for no change."""


class AtomicCounterExtension:
    """Moves the record's atomic counters: a put writes their start, and an update moves them in the same call.

    The first update writes the start too: `c = if_not_exists(c, :start - :delta) + :delta`. Follows
    https://sdk.amazonaws.com/java/api/latest/software/amazon/awssdk/enhanced/dynamodb/extensions/AtomicCounterExtension.html
    """

    def before_write(self, context: WriteContext) -> WriteModification | None:
        """Returns the counters' part of a write."""
        counters = {name: attribute.counter for name, attribute in context.attributes.items() if attribute.counter}
        if context.operation == "put_item":
            starts = {name: counter.start for name, counter in counters.items()}
            return WriteModification(item={**context.item, **starts})
        return WriteModification(
            actions=[
                Action.set(Path(name), if_not_exists(Path(name), counter.start - counter.delta) + counter.delta)
                for name, counter in counters.items()
            ]
        )
