"""Update expressions as data: actions on document paths, which merge, pass a check and become one request.

The constructors parse expressions and conditions, so a clash shows before a request goes out. In the request every
attribute name and value gets an alias of its own. So reserved words, dots in names and the placeholders of other
extensions cannot clash.

The model follows the Java client's UpdateExpression (SetAction, RemoveAction, AddAction, DeleteAction):
https://github.com/aws/aws-sdk-java-v2/blob/master/docs/design/services/dynamodb/high-level-library/UpdateExpression.md
and DynamoDB's grammar:
https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/Expressions.UpdateExpressions.html
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any, Literal

from .attribute_values import ANY, Wire, encode
from .expression_syntax import (
    CONDITION,
    OPERAND,
    ExpressionError,
    Names,
    Part,
    Path,
    Values,
    check_used,
    take_apart,
)

Verb = Literal["SET", "REMOVE", "ADD", "DELETE"]
VERBS: tuple[Verb, ...] = ("SET", "REMOVE", "ADD", "DELETE")
_SET_TAGS = frozenset({"SS", "NS", "BS"})


@dataclass(frozen=True)
class Action:
    """One change of one path. `source` names its author, for the message if two clash."""

    verb: Verb
    path: Path
    operand: tuple[Part, ...] = ()
    source: str = "the expression"

    def __str__(self) -> str:
        return f"{self.path} ({self.verb} by {self.source})"


@dataclass(frozen=True)
class UpdateExpression:
    """Actions, in any order. Each of `set` … `delete` returns a new expression with one more.

    They raise ExpressionError for a bad path or operand, InvalidInputError for a value that cannot be stored.
    """

    actions: tuple[Action, ...] = ()

    def set(self, path: str | Path, value: object, *, names: Names = None) -> UpdateExpression:
        """Set the path to a value."""
        at = _path(path, names)
        return self._with(Action("SET", at, (encode(value, ANY, str(at)),)))

    def set_to(self, path: str | Path, operand: str, *, names: Names = None, values: Values = None) -> UpdateExpression:
        """Set the path to an operand: `if_not_exists(c, :zero) + :one`, `list_append(l, :more)`, `a - b`."""
        at = Path.parse(path, names) if isinstance(path, str) else path
        check_used(f"{path} = {operand}", names, values)
        return self._with(Action("SET", at, take_apart(operand, OPERAND, names, values)))

    def remove(self, path: str | Path, *, names: Names = None) -> UpdateExpression:
        """Remove the attribute, entry or list element."""
        return self._with(Action("REMOVE", _path(path, names)))

    def add(self, path: str | Path, value: object, *, names: Names = None) -> UpdateExpression:
        """Add a number to a number, or members to a set; a missing attribute counts as 0 or empty."""
        return self._with(_operation("ADD", path, value, names))

    def delete(self, path: str | Path, members: object, *, names: Names = None) -> UpdateExpression:
        """Remove members from a set."""
        return self._with(_operation("DELETE", path, members, names))

    def merge(self, *others: UpdateExpression) -> UpdateExpression:
        """All actions together, unchecked: call `check` after the last merge."""
        return UpdateExpression(sum((other.actions for other in others), self.actions))

    def by(self, source: str) -> UpdateExpression:
        """The same actions, with `source` as their author."""
        return UpdateExpression(tuple(replace(action, source=source) for action in self.actions))

    @property
    def attributes(self) -> frozenset[str]:
        """The attributes that it changes, in whole or in part."""
        return frozenset(action.path.attribute for action in self.actions)

    def check(self) -> None:
        """Raises ExpressionError, with both authors, for two actions on one path or on a path within the other."""
        for one, other in combinations(self.actions, 2):
            if one.path.overlaps(other.path):
                raise ExpressionError(
                    f"{one} and {other} overlap: a write takes one action for each path.", field=str(one.path)
                )

    def _with(self, action: Action) -> UpdateExpression:
        return UpdateExpression((*self.actions, action))


NO_ACTIONS = UpdateExpression()


@dataclass(frozen=True)
class Condition:
    """A condition of a write: `Condition("revision = :seen", values={":seen": 3})`. Raises ExpressionError."""

    text: str
    names: Names = None
    values: Values = None
    parts: tuple[Part, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_used(self.text, self.names, self.values)
        object.__setattr__(self, "parts", take_apart(self.text, CONDITION, self.names, self.values))

    @property
    def is_choice(self) -> bool:
        """Whether it has an OR on its outermost level."""
        depth = 0
        for part in self.parts:
            if isinstance(part, str):
                depth += part.endswith("(") - (part == ")")
                if part == "OR" and depth == 0:
                    return True
        return False


def parameters(expression: UpdateExpression, conditions: Sequence[Condition]) -> dict[str, Any]:
    """The request parameters of a write: UpdateExpression, ConditionExpression, and the names and values of both.

    It omits an empty expression, because DynamoDB refuses it. Raises ExpressionError for overlapping paths.
    """
    expression.check()
    aliases = _Aliases()
    clauses = []
    for verb in VERBS:
        actions = [aliases.action(action) for action in expression.actions if action.verb == verb]
        if actions:
            clauses.append(f"{verb} {', '.join(actions)}")
    made = {
        "UpdateExpression": " ".join(clauses),
        "ConditionExpression": " AND ".join(aliases.condition(condition, len(conditions)) for condition in conditions),
        "ExpressionAttributeNames": {alias: name for name, alias in aliases.names.items()},
        "ExpressionAttributeValues": aliases.values,
    }
    return {name: value for name, value in made.items() if value}


class _Aliases:
    """The aliases of one request: one for each name, and one for each use of a value."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        self.values: dict[str, Wire] = {}

    def action(self, action: Action) -> str:
        between = " = " if action.verb == "SET" else " "
        return f"{self.path(action.path)}{between}{self.text(action.operand)}".rstrip()

    def condition(self, condition: Condition, beside: int) -> str:
        """Parentheses only for an OR beside other conditions: DynamoDB refuses redundant ones."""
        text = self.text(condition.parts)
        return f"({text})" if beside > 1 and condition.is_choice else text

    def text(self, parts: Sequence[Part]) -> str:
        return " ".join(self._part(part) for part in parts)

    def path(self, path: Path) -> str:
        return str(Path(tuple(step if isinstance(step, int) else self._name(step) for step in path.elements)))

    def _part(self, part: Part) -> str:
        if isinstance(part, Path):
            return self.path(part)
        if isinstance(part, str):
            return part
        alias = f":v{len(self.values)}"
        self.values[alias] = part
        return alias

    def _name(self, name: str) -> str:
        return self.names.setdefault(name, f"#n{len(self.names)}")


def _path(path: str | Path, names: Names) -> Path:
    check_used(str(path), names)
    return Path.parse(path, names) if isinstance(path, str) else path


def _operation(verb: Literal["ADD", "DELETE"], path: str | Path, value: object, names: Names) -> Action:
    at = _path(path, names)
    wire = encode(value, ANY, str(at))
    taken, wanted = (_SET_TAGS | {"N"}, "a number or a set") if verb == "ADD" else (_SET_TAGS, "a set")
    if taken.isdisjoint(wire):
        raise ExpressionError(f"{at}: {verb} takes {wanted}, not {value!r}.", field=str(at))
    return Action(verb, at, (wire,))
