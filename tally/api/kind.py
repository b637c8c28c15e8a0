"""A kind of field is one object: its check, its schema, its description and its example."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from typing import Any, NamedTuple

from tally import fields
from tally.counter import Counter
from tally.errors import CallerError, InvalidInputError, PreconditionRequiredError
from tally.pages import Pages

Schema = dict[str, Any]
_NUMBER_PATTERN = re.compile(r"[0-9]{1,4}(\.[0-9]{1,4})?([eE][+-]?[0-9])?")  # a number as JSON writes it


class Source(Enum):
    """Where an HTTP request has a field."""

    PATH = "path"
    QUERY = "query"
    BODY = "body"
    HEADER = "header"
    ADDRESS = "address"
    """The address of the caller, as the gateway knows it."""


class FieldContext(NamedTuple):
    """The facts that the check of a field depends on, besides the value."""

    anonymous: bool  # whether the caller has not signed in
    page_hosts: frozenset[str]
    counters: Mapping[str, Counter]
    pages: Pages  # makes a URL canonical


class SchemaContext(NamedTuple):
    """The facts that schemas and examples depend on: the counters of a route, and whether its callers are anonymous."""

    counters: Sequence[Counter]
    anonymous: bool


@dataclass(frozen=True, eq=False)
class Kind:
    """A kind of field."""

    check: Callable[[Any, str, FieldContext], Any]
    """Takes a value and the field's name, and returns the value to use. Raises CallerError."""
    schema: Schema | Callable[[SchemaContext], Schema]
    description: str
    example: Any
    """A value, or a function of SchemaContext that makes one."""
    source: Source | None = None
    """Where an HTTP request has the field. None: in the query of a GET, and in the body of any other method."""
    http_name: str = ""
    """The field's name in an HTTP request. Empty: the argument's name."""
    body_name: str = ""
    """The field's name in the JSON body, in place of `source`. If a request has both values, they must be equal."""
    list_max: int = 0
    """The most values of a list; 0: the field has one value. A query repeats the name for each value."""
    http_default: str | None = None
    """The value if an HTTP request does not have the field. None: the field is missing."""
    is_counter: bool = False
    """Whether the value is the name of a counter."""
    uses_page_hosts: bool = False
    """Whether the check compares a host with the page hosts that the deployment lists."""
    is_precondition: bool = False
    """Whether a request without the field gets 428 (Precondition Required)."""
    is_documented: bool = True  # in the API document

    def missing_error(self, http_name: str) -> CallerError:
        """Makes the error for a required field that is missing."""
        if self.is_precondition:
            return PreconditionRequiredError(f"{http_name} is missing: send the ETag that you read.", field=http_name)
        return InvalidInputError(f"{http_name} is missing.", field=http_name)

    @cached_property
    def parse(self) -> Callable[[Any, str, FieldContext], Any]:
        """The function that checks a value and returns the value to use. If the kind has a `list_max`, the function
        checks each value of a list. A method in place of this property would add a call for each field of a request."""
        return self._parse_each if self.list_max else self.check

    def _parse_each(self, values: object, http_name: str, context: FieldContext) -> list[Any]:
        if not isinstance(values, list) or not 1 <= len(values) <= self.list_max:
            detail = f"{http_name} must be a list of 1 to {self.list_max} values. A query repeats the name for each."
            raise InvalidInputError(detail, field=http_name)
        return [self.check(value, http_name, context) for value in values]

    def schema_for(self, context: SchemaContext) -> Schema:
        """Returns the JSON Schema of its values."""
        schema = dict(self.schema) if isinstance(self.schema, dict) else self.schema(context)
        return {"type": "array", "minItems": 1, "maxItems": self.list_max, "items": schema} if self.list_max else schema

    def example_for(self, context: SchemaContext) -> Any:
        """Returns a value that the check accepts."""
        example = self.example(context) if callable(self.example) else self.example
        return [example] if self.list_max else example


def without_context(check: Callable[[object, str], Any]) -> Callable[[Any, str, FieldContext], Any]:
    """Makes the check of a kind from a check that needs no context."""
    return lambda value, field, _: check(value, field)


def string_schema(shortest: int, longest: int, pattern: re.Pattern[str] | None = None) -> Schema:
    """Returns the schema of a text of this length, which matches the pattern entirely."""
    schema: Schema = {"type": "string", "minLength": shortest, "maxLength": longest}
    return schema | ({"pattern": f"^{pattern.pattern}$"} if pattern else {})


def pattern_schema(pattern: re.Pattern[str]) -> Schema:
    """Returns the schema of a text that matches the pattern entirely."""
    return {"type": "string", "pattern": f"^({pattern.pattern})$"}


def integer(least: int, most: int, description: str, example: Any) -> Kind:
    """Returns a kind for whole numbers."""

    def check(value: object, field: str, _: FieldContext) -> int:
        return fields.integer_between(value, field, least, most)

    return Kind(check, {"type": "integer", "minimum": least, "maximum": most}, description, example)


def size(most: int, default: int, description: str, example: int) -> Kind:
    """Returns a kind for the length of a list: a number, or its text in a query."""

    def check(value: object, field: str, _: FieldContext) -> int:
        match = isinstance(value, str) and _NUMBER_PATTERN.fullmatch(value)
        return fields.integer_between(float(match[0]) if match else value, field, 1, most)

    return Kind(check, {"type": "integer", "minimum": 1, "maximum": most, "default": default}, description, example)


def text(longest: int, description: str, example: str, unit: str = "bytes") -> Kind:
    """Returns a kind for any text up to a length."""

    def check(value: object, field: str, _: FieldContext) -> str:
        return fields.string(value, field, longest, unit)

    return Kind(check, string_schema(1, longest), description, example)


def matching(pattern: re.Pattern[str], schema: Schema, must: str, description: str, example: str) -> Kind:
    """Returns a kind for text that matches a pattern. `must`: the pattern in words, for the message "must be …"."""

    def check(value: object, field: str, _: FieldContext) -> str:
        text = fields.string(value, field)
        if not pattern.fullmatch(text):
            raise InvalidInputError(f"{field} must be {must}.", field=field)
        return text

    return Kind(check, schema, description, example)


def list_of(kind: Kind, most: int) -> Kind:
    """Returns the kind of a list of 1 to `most` values of this kind."""
    return replace(kind, list_max=most)


def choice(*choices: str, description: str = "One of these.") -> Kind:
    """Returns a kind for one of a few names. Its example is the first name."""

    def check(value: object, field: str, _: FieldContext) -> str:
        name = fields.string(value, field)
        if name not in choices:
            raise InvalidInputError(f"{field} must be one of: {', '.join(choices)}.", field=field)
        return name

    return Kind(check, {"type": "string", "enum": list(choices)}, description, choices[0])
