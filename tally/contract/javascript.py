"""Makes the parts of the JavaScript clients that follow from the operations.

`make generate` writes tally/javascript/requests.*, and the line of tally/javascript/tally.js that says which
ids, keys and amounts Tally takes.
"""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired

from tally import fields
from tally.api.scripts import CLIENT_FOLDER
from tally.counter import AMOUNT_MAX, NAME_PATTERN
from tally.ids import ID_PATTERN

from ..api.operation import Operation
from .client import argument_type, client_operations, description_of, typed_dicts_in

_HEAD = "// `make generate` writes this file from the operations: do not edit it.\n\n"
_JAVASCRIPT_TYPES = {"str": "string", "int": "number", "bool": "boolean", "NoneType": "null"}
_LINE_CHARACTERS_MAX = 120
_FIELDS_ADDED_LAST = ("idempotency_key", "caller")
_PATTERNS_LINE = re.compile(r"^const PATTERNS = .*$", re.MULTILINE)


def sources(operations: Iterable[Operation]) -> dict[Path, str]:
    """Returns the texts by path: which Lambda function serves each operation, the types, and the client."""
    client_methods = client_operations(operations)
    served_by_lines = "".join(f'  {operation.name}: "{operation.module}",\n' for operation in client_methods)
    keyed_lines = "".join(f'  "{operation.name}",\n' for operation in client_methods if operation.leaves_receipt)
    answers = {answer.__name__: answer for operation in client_methods for answer in typed_dicts_in(operation.answer)}
    methods = "".join(map(_method, client_methods))
    interfaces = "\n".join(map(_interface, answers.values()))
    errors = dict.fromkeys(error for operation in client_methods for error in operation.raises)
    error_lines = "".join(f" * - {error.slug}: {str(error.__doc__).partition('.')[0]}.\n" for error in errors)
    patterns = {
        "counter": _pattern(NAME_PATTERN, 1, 255),
        "id": _pattern(ID_PATTERN, 1, fields.ID_CHARACTERS_MAX),
        "key": _pattern(fields.KEY_PATTERN, 1, fields.KEY_CHARACTERS_MAX),
        "anonymousKey": _pattern(fields.KEY_PATTERN, fields.ANONYMOUS_KEY_CHARACTERS_MIN, fields.KEY_CHARACTERS_MAX),
        "amountMax": AMOUNT_MAX,
    }
    line = f"const PATTERNS = {{ {', '.join(f'{name}: {pattern}' for name, pattern in patterns.items())} }};"
    client = CLIENT_FOLDER / "tally.js"
    return {
        client: _PATTERNS_LINE.sub(lambda _: line, client.read_text(encoding="utf-8")),
        CLIENT_FOLDER / "requests.js": f"{_HEAD}export const SERVED_BY = {{\n{served_by_lines}}};\n\n"
        f"export const KEYED = new Set([\n{keyed_lines}]);\n",
        CLIENT_FOLDER / "requests.d.ts": f"{_HEAD}{interfaces}\n"
        "/** Whether an earlier request with the same key had counted the change. */\n"
        "export interface Replayed {\n  replayed: boolean;\n}\n\n"
        f"/**\n * A method for each operation. `caller`: who asks, a service's name or a user's `sub`. The errors:\n"
        f"{error_lines} */\n"
        f"export interface Requests {{\n{methods}}}\n",
    }


def _pattern(pattern: re.Pattern[str], shortest: int, longest: int) -> str:
    """Returns the pattern in JavaScript, with the number of characters that it allows."""
    return f"/^(?=.{{{shortest},{longest}}}$){pattern.pattern}$/"


def _interface(answer: Any) -> str:
    """Returns the TypeScript interface of an answer."""
    members = "".join(
        f"  {_member(name, hint)};\n" for name, hint in typing.get_type_hints(answer, include_extras=True).items()
    )
    return f"{_jsdoc(inspect.getdoc(answer) or '', '')}export interface {answer.__name__} {{\n{members}}}\n"


def _member(name: str, hint: Any) -> str:
    about = description_of(hint)
    optional = "?" if typing.get_origin(hint) is NotRequired else ""
    return (f"/** {about} */ " if about else "") + f"{name}{optional}: {_type(hint)}"


def _method(operation: Operation) -> str:
    members = []
    for field in operation.fields:
        if field.name not in _FIELDS_ADDED_LAST:
            about = "" if field.name in ("counter", "id") else f"/** {field.kind.description} */ "
            kind = argument_type(operation, field, texts="string[]", objects="Record<string, unknown>[]")
            members.append(f"{about}{field.name}{'' if field.required else '?'}: {_JAVASCRIPT_TYPES.get(kind, kind)}")
    members += ["idempotency_key?: string"] if operation.leaves_receipt else []
    members.append("caller?: string")
    answer = _type(operation.answer) + (" & Replayed" if operation.leaves_receipt else "")
    raised = ", ".join(error.slug for error in operation.raises)
    about = _jsdoc(f"{operation.summary}." + (f" Errors: {raised}." if raised else ""), "  ")
    line = f"  {operation.name}(fields: {{ {'; '.join(members)} }}): Promise<{answer}>;\n"
    if len(line) > _LINE_CHARACTERS_MAX:
        lines = "".join(f"    {member};\n" for member in members)
        line = f"  {operation.name}(fields: {{\n{lines}  }}): Promise<{answer}>;\n"
    return about + line


def _type(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Annotated, NotRequired):
        return _type(arguments[0])
    if origin is Literal:
        return " | ".join(f'"{value}"' if isinstance(value, str) else str(value).lower() for value in arguments)
    if origin in (typing.Union, types.UnionType):
        return " | ".join(map(_type, arguments))
    if origin is list:
        return f"({_type(arguments[0])})[]"
    if origin is dict:
        return f"Record<{_type(arguments[0])}, {_type(arguments[1])}>"
    return "unknown" if hint is Any else _JAVASCRIPT_TYPES.get(hint.__name__, hint.__name__)


def _jsdoc(text: str, indent: str) -> str:
    return f"{indent}/** {' '.join(text.split())} */\n" if text else ""
