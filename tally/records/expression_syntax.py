"""The syntax of expressions: parses and checks document paths, placeholders, operands of SET and conditions.

Source: https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/Expressions.html
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from ..errors import TallyError
from .attribute_values import ANY, Wire, encode

Names = Mapping[str, str] | None
"""Attribute names by placeholder: `{"#d": "date.of.birth"}`."""
Values = Mapping[str, object] | None
"""Python values by placeholder: `{":start": 0}`."""

_PLACEHOLDER = r"#[A-Za-z0-9_]+"
_ELEMENT = rf"{_PLACEHOLDER}|[A-Za-z_][A-Za-z0-9_]*"
_INDEX = r"[0-9]{1,9}"
_PATH = rf"(?:{_ELEMENT})(?:\.(?:{_ELEMENT})|\[{_INDEX}\])*"
_STEP = re.compile(rf"\[({_INDEX})\]|({_ELEMENT})")
_TOKEN = re.compile(
    rf"""\s*(?:(?P<value>:[A-Za-z0-9_]+)
         |(?P<keyword>(?i:AND|OR|NOT|IN|BETWEEN)(?![\w.\[]))
         |(?P<function>[a-z_]+)\s*\(
         |(?P<path>{_PATH.replace("#", "[#]")})
         |(?P<sign><=|>=|<>|[=<>+\-(),]))\s*""",
    re.VERBOSE | re.ASCII,
)


class ExpressionError(TallyError):
    """An expression that DynamoDB would refuse, or that is ambiguous: a bug in the program."""

    slug, status, title = "bad-expression", 500, "An expression is wrong"


@dataclass(frozen=True)
class Path:
    """The place of a value in an item: attribute names and list indexes, from the outside in."""

    elements: tuple[str | int, ...]

    def __post_init__(self) -> None:
        named = bool(self.elements) and isinstance(self.elements[0], str)
        if not named or any(step == "" or (isinstance(step, int) and step < 0) for step in self.elements):
            raise ExpressionError(f"{self.elements!r} is no document path: names and indexes, a name first")

    @classmethod
    def of(cls, *elements: str | int) -> Path:
        """The path of these names and indexes. Names may hold any character. Raises ExpressionError."""
        return cls(elements)

    @classmethod
    def parse(cls, text: str, names: Names = None) -> Path:
        """The path `a.b[0].#n`, with `#n` from `names`. Raises ExpressionError."""
        if not re.fullmatch(_PATH, text):
            raise ExpressionError(f"{text!r} is no document path: give odd names as placeholders, or with Path.of()")
        steps = _STEP.finditer(text)
        return cls(tuple(int(step[1]) if step[1] else _name(step[2], names) for step in steps))

    @property
    def attribute(self) -> str:
        """The attribute that contains the value."""
        return str(self.elements[0])

    def overlaps(self, other: Path) -> bool:
        """Whether one path contains or equals the other, or one treats a value as a list and the other as a map."""
        for mine, theirs in zip_longest(self.elements, other.elements):
            if type(mine) is not type(theirs):  # or one of the paths has ended
                return True
            if mine != theirs:
                return False
        return True

    def __str__(self) -> str:
        return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in self.elements)[1:]


Part = str | Path | Wire
"""Parts of a parsed expression: text that stays as it is, and paths and values, which get an alias."""


@dataclass(frozen=True)
class Grammar:
    """The words of an expression that are neither paths nor values."""

    functions: frozenset[str]
    words: frozenset[str]
    """Signs and keywords."""


OPERAND = Grammar(frozenset({"if_not_exists", "list_append"}), frozenset("+-(),"))
CONDITION = Grammar(
    frozenset({"attribute_exists", "attribute_not_exists", "attribute_type", "begins_with", "contains", "size"}),
    frozenset({"=", "<>", "<", "<=", ">", ">=", "(", ")", ",", "AND", "OR", "NOT", "IN", "BETWEEN"}),
)


def take_apart(text: str, grammar: Grammar, names: Names, values: Values) -> tuple[Part, ...]:
    """The parts of an expression. Raises ExpressionError for a word outside the grammar or a missing name or value.

    It also refuses a comma or a closing parenthesis on the outermost level. With one, an operand could add a second
    action that the check for overlaps does not see, and a condition could leave the AND with the others.
    """
    parts: list[Part] = []
    depth = 0
    for token in _tokens(text):
        if token["path"]:
            parts.append(Path.parse(token["path"], names))
        elif token["value"]:
            parts.append(encode(_looked_up(token["value"], values), ANY, token["value"]))
        else:
            word = (token["keyword"] or "").upper() or token["function"] or token["sign"]
            if word not in (grammar.functions if token["function"] else grammar.words):
                raise ExpressionError(f"{text!r}: {word} has no place here")
            depth += 1 if token["function"] or word == "(" else -1 if word == ")" else 0
            if depth < 0 or (word == "," and depth == 0):
                raise ExpressionError(f"{text!r}: {word} is outside of any parenthesis")
            parts.append(f"{word}(" if token["function"] else word)
    if depth or not parts:
        raise ExpressionError(f"{text!r} is empty, or a parenthesis stays open")
    return tuple(parts)


def check_used(text: str, names: Names, values: Values = None) -> None:
    """Raises ExpressionError, with their names, for unused placeholders: DynamoDB refuses them."""
    unused = {*(names or {}), *(values or {})} - set(re.findall(rf"{_PLACEHOLDER}|:[A-Za-z0-9_]+", text))
    if unused:
        raise ExpressionError(f"{text!r} does not use {', '.join(sorted(unused))}")


def _tokens(text: str) -> Iterator[re.Match[str]]:
    at = 0
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:
            raise ExpressionError(f"{text!r} cannot be read from {text[at:]!r} on")
        yield token
        at = token.end()


def _looked_up(placeholder: str, given: Mapping[str, Any] | None) -> Any:
    if not given or placeholder not in given:
        raise ExpressionError(f"there is no name or value for {placeholder}")
    return given[placeholder]


def _name(element: str, names: Names) -> str:
    return str(_looked_up(element, names)) if element.startswith("#") else element
