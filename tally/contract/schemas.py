"""Makes the JSON Schema of an answer's type: a TypedDict, with its docstring and annotations.

A schema allows further members, so that clients keep working when an answer gets more. Tests of answers forbid them.
"""

from __future__ import annotations

import inspect
import types
import typing
from typing import Annotated, Any, Literal, NotRequired

Schema = dict[str, Any]
_TYPES_BY_NAME: dict[str, Any] = {}
_PLAIN: dict[Any, Schema] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
    Any: {},
}


def schema(kind: Any, named: dict[str, Schema]) -> Schema:
    """Returns the schema of a type. The schema of a TypedDict goes into `named`, and the result refers to it. Raises
    TypeError for a type without a schema, and for two TypedDicts with the same name."""
    if typing.is_typeddict(kind):
        return _reference(kind, named)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        annotated: Schema = {}
        for fact in kind.__metadata__:
            annotated |= fact
        return annotated if "$ref" in annotated else {**schema(arguments[0], named), **annotated}
    if origin is Literal:
        return {"enum": list(arguments)} if len(arguments) > 1 else {"const": arguments[0]}
    if origin in (typing.Union, types.UnionType):
        schemas = [schema(one, named) for one in arguments]
        if all(one.keys() == {"type"} for one in schemas):  # `["integer", "null"]` is shorter than `oneOf`
            return {"type": [one["type"] for one in schemas]}
        return {"oneOf": schemas}
    if origin is list:
        return {"type": "array", "items": schema(arguments[0], named)}
    if origin is dict:
        return {"type": "object"}
    if kind not in _PLAIN:
        raise TypeError(f"{kind} has no schema")
    return dict(_PLAIN[kind])


def _reference(kind: Any, named: dict[str, Schema]) -> Schema:
    """Puts the schema of a TypedDict into `named`, and returns a reference to it."""
    name = kind.__name__
    if _TYPES_BY_NAME.setdefault(name, kind) is not kind:
        raise TypeError(f"two answers are called {name}")
    if name not in named:
        properties: dict[str, Schema] = {}
        required: list[str] = []
        about = " ".join((inspect.getdoc(kind) or "").split())
        named[name] = {"description": about, "type": "object", "properties": properties, "required": required}
        for member, hint in typing.get_type_hints(kind, include_extras=True).items():
            optional = typing.get_origin(hint) is NotRequired  # `__required_keys__` ignores it in postponed annotations
            properties[member] = schema(typing.get_args(hint)[0] if optional else hint, named)
            required += [] if optional else [member]
    return {"$ref": f"#/components/schemas/{name}"}
