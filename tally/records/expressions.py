"""Makes one request from a write's actions on document paths and from boto3's conditions.

In the request each name and each value has an alias. So a name may be a reserved word or have dots. The caller and each
extension (extensions.py) may add a condition, and no two conditions use one alias. The model follows the Java client's
UpdateExpression:
https://github.com/aws/aws-sdk-java-v2/blob/master/docs/design/services/dynamodb/high-level-library/UpdateExpression.md
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, Literal

from boto3.dynamodb.conditions import Attr, AttributeBase, ConditionBase

from ..dynamo.keys import Item
from ..errors import TallyError
from .record_class import encode

Verb = Literal["SET", "REMOVE", "ADD", "DELETE"]
VERBS: tuple[Verb, ...] = ("SET", "REMOVE", "ADD", "DELETE")
_STEP = re.compile(r"\.?([^.\[\]]+)|\[([0-9]{1,9})\]")


class ExpressionError(TallyError):
    """A bug in the program: DynamoDB would reject the write, or the write is ambiguous."""

    slug, status, title = "bad-expression", 500, "An expression is wrong"


class Operand:
    """What SET stores if DynamoDB is to compute the value: a formula or another path."""

    def __add__(self, other: object) -> Formula:
        return Formula("{} + {}", (self, other))

    def __sub__(self, other: object) -> Formula:
        return Formula("{} - {}", (self, other))

    def __rsub__(self, other: object) -> Formula:
        return Formula("{} - {}", (other, self))


@dataclass(frozen=True)
class Formula(Operand):
    """An operand that is made of other operands and of values. `template`: such as `{} + {}`, for the `parts`."""

    template: str
    parts: tuple[object, ...]


class Path(Attr, Operand):
    """A document path: the name of an attribute, and then the keys of maps and the indexes of lists inside.

    `Path("a.b")` is the attribute `a.b`. `Attr("a.b")` and `"a.b"` are `Path("a", "b")`, the entry `b` in `a`.
    """

    def __init__(self, *steps: str | int) -> None:
        super().__init__("".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)[1:])
        self.steps = steps


@dataclass(frozen=True)
class Encoded:
    """A value in DynamoDB's wire form."""

    value: Item


def if_not_exists(path: str | Attr, value: object) -> Formula:
    """Returns the operand that is the value at the path, or `value` if the path is empty."""
    return Formula("if_not_exists({}, {})", (_path(path), value))


def list_append(first: object, second: object) -> Formula:
    """Returns the operand that joins two lists. A list is a path, another operand or a value; a str is a path."""
    parts = tuple(_path(part) if isinstance(part, str) else part for part in (first, second))
    return Formula("list_append({}, {})", parts)


@dataclass(frozen=True)
class Action:
    """One change of one path. `source` names its author, for the message if two actions overlap."""

    verb: Verb
    path: Path
    operand: object = None
    source: str = field(default="the caller", compare=False)

    @classmethod
    def set(cls, path: str | Attr, to: object) -> Action:
        """Sets the path to a value, or to an operand: `if_not_exists("seen", 7)`, `Path("stock") - 3`."""
        return cls("SET", _path(path), to)

    @classmethod
    def remove(cls, path: str | Attr) -> Action:
        """Removes the attribute, entry or list element."""
        return cls("REMOVE", _path(path))

    @classmethod
    def add(cls, path: str | Attr, value: object) -> Action:
        """Adds a number to a number, or members to a set; a missing attribute counts as 0 or empty."""
        return cls("ADD", _path(path), value)

    @classmethod
    def delete(cls, path: str | Attr, members: object) -> Action:
        """Removes members from a set."""
        return cls("DELETE", _path(path), members)

    def overlaps(self, other: Action) -> bool:
        """Returns whether the paths are equal, one contains the other, or one has an index at the place of a name."""
        for mine, theirs in zip(self.path.steps, other.path.steps, strict=False):
            if mine != theirs:
                return type(mine) is not type(theirs)
        return True

    def __str__(self) -> str:
        return f"{self.path.name} ({self.verb} by {self.source})"


def parameters(actions: Sequence[Action], conditions: Sequence[ConditionBase]) -> dict[str, Any]:
    """Returns the request parameters of a write. If the paths of two actions overlap, raises ExpressionError with both.

    Leaves out an empty expression, because DynamoDB rejects it. A write with a condition asks for the old item.
    """
    for action, other in combinations(actions, 2):
        if action.overlaps(other):
            raise ExpressionError(f"{action} and {other} overlap: a write takes one action for each path.")
    aliases, clauses = _Aliases(), []
    for verb in VERBS:
        if texts := [aliases.action(action) for action in actions if action.verb == verb]:
            clauses.append(f"{verb} {', '.join(texts)}")
    request = {
        "UpdateExpression": " ".join(clauses),
        "ConditionExpression": " AND ".join(map(aliases.text, conditions)),
        "ExpressionAttributeNames": {alias: name for name, alias in aliases.names.items()},
        "ExpressionAttributeValues": aliases.values,
        "ReturnValuesOnConditionCheckFailure": "ALL_OLD" if conditions else None,
    }
    return {name: value for name, value in request.items() if value}


class _Aliases:
    """The aliases of one request: one for each name, and one for each use of a value."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        self.values: dict[str, Item] = {}
        self._last_path = ""  # the path that precedes a value, so that the error of the value can name it

    def action(self, action: Action) -> str:
        path = self.text(action.path)
        if action.verb == "REMOVE":
            return path
        return f"{path}{' = ' if action.verb == 'SET' else ' '}{self.text(action.operand)}"

    def text(self, part: Any) -> str:
        """Returns the text of a condition, operand, path or value. Raises InvalidInputError for an unstorable value."""
        if isinstance(part, ConditionBase):
            built = part.get_expression()
            texts = (self._compared(part, value) for value in built["values"])
            return built["format"].format(*texts, operator=built["operator"])
        if isinstance(part, Formula):
            return part.template.format(*map(self.text, part.parts))
        if isinstance(part, AttributeBase):
            self._last_path = part.name
            steps = _path(part).steps
            return "".join(f"[{step}]" if isinstance(step, int) else f".{self._name(step)}" for step in steps)[1:]
        alias = f":v{len(self.values)}"
        self.values[alias] = part.value if isinstance(part, Encoded) else encode(part, Any, self._last_path)
        return alias

    def _compared(self, condition: ConditionBase, value: Any) -> str:
        grouped = condition.has_grouped_values and not isinstance(value, AttributeBase)  # the list of values of IN
        return f"({', '.join(map(self.text, value))})" if grouped else self.text(value)

    def _name(self, name: str) -> str:
        return self.names.setdefault(name, f"#n{len(self.names)}")


def _path(path: str | AttributeBase) -> Path:
    """Returns the path `a.b[0]`, as boto3's Attr reads it. Raises ExpressionError."""
    if isinstance(path, Path):
        return path
    text = path if isinstance(path, str) else path.name
    steps = [int(step[2]) if step[2] else step[1] for step in _STEP.finditer(text)]
    parsed = Path(*steps)
    if not steps or parsed.name != text:
        raise ExpressionError(f"{text!r} is not a document path. Use Path() for names with special characters")
    return parsed
