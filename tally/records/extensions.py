"""Extensions of record writes: each may change the item, or add actions or a condition.

Extensions run in order. Each extension gets the item that the previous extension returned, but not the actions that
the previous extension returned. `Records` refuses actions that overlap, as the Java client's extension chain does:
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
    """What an extension gets to know of a write."""

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
    """Replaces the item; None keeps the item. An update does not change an attribute that the item lacks."""
    actions: Sequence[Action] = ()
    """Further changes by update_item. With put_item, an action is an error."""
    condition: ConditionBase | None = None
    """This condition must hold together with the caller's condition and the conditions of other extensions."""


class Extension(Protocol):
    """Any object with this method. The object must not keep state, because all threads use one object."""

    def before_write(self, context: WriteContext) -> WriteModification | None:
        """Returns the changes to this write; None for no change."""


class AtomicCounterExtension:
    """Moves the record's atomic counters: a put writes their start, and an update moves them in the same call.

    A record's first update also writes the start: `c = if_not_exists(c, :start - :delta) + :delta`. Follows
    https://sdk.amazonaws.com/java/api/latest/software/amazon/awssdk/enhanced/dynamodb/extensions/AtomicCounterExtension.html
    """

    def before_write(self, context: WriteContext) -> WriteModification | None:
        """Returns the item with the counters at their start, for a put, or the actions that move them."""
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
