"""Makes the typed client: `make generate` writes tally/client/requests.py from the operations."""

from __future__ import annotations

import inspect
import keyword
import textwrap
import types
import typing
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired

from tally.counter import Counter

from ..api.operation import Field, Operation
from ..api.texts import Text

FILE = Path(__file__).parents[1] / "client" / "requests.py"
_HEAD = '''\
"""The requests that other Lambdas can send to Tally, and the answers. `make generate` writes this: do not edit it.

`client.Tally` has a method for each request, and sends requests alone or in a batch. `caller` is who asks: a service's
name, or a user's `sub`. Without `idempotency_key`, the client makes a key. `used`: the amount is used already, and may
exceed the limit. `of`: numbers as `counter:id`, or of receipts, the operation that their keys were sent with.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, NotRequired, TypedDict

from .request import Request, sends
'''


def source(operations: Iterable[Operation]) -> str:
    """Returns the text of FILE."""
    listed = client_operations(operations)
    with_receipt = [operation for operation in listed if operation.leaves_receipt]
    replayable = {answer.__name__ for operation in with_receipt for answer in typed_dicts_in(operation.answer)}
    answers = {answer.__name__: answer for operation in listed for answer in typed_dicts_in(operation.answer)}
    classes = [_answer_class(answer, has_replayed=name in replayable) for name, answer in answers.items()]
    methods = "".join(f"    {operation.name} = sends({operation.name})\n" for operation in listed)
    about = "A method for each request above: it makes the request and sends it."
    return "\n\n".join([_HEAD, *classes, *map(_function, listed), f'class Methods:\n    """{about}"""\n\n{methods}'])


def client_operations(operations: Iterable[Operation]) -> list[Operation]:
    """Returns the operations that clients call: they answer JSON, and are not the console's or the API document."""
    in_json = [one for one in operations if one.answer is not Text and one.media_type == "application/json"]
    return [one for one in in_json if one.module != "console" and one.name != "get_openapi"]


def typed_dicts_in(type_: Any) -> list[Any]:
    """Returns the TypedDicts in a type. Each TypedDict comes after the TypedDicts that it refers to."""
    dicts: dict[Any, None] = {}
    if typing.is_typeddict(type_):
        for hint in typing.get_type_hints(type_).values():
            dicts |= dict.fromkeys(typed_dicts_in(hint))
        dicts[type_] = None
    for argument in typing.get_args(type_):
        dicts |= dict.fromkeys(typed_dicts_in(argument))
    return list(dicts)


def _answer_class(answer: Any, *, has_replayed: bool) -> str:
    hints = typing.get_type_hints(answer, include_extras=True)
    members = {name: _type_text(hint) for name, hint in hints.items()} | ({"replayed": "bool"} if has_replayed else {})
    about = inspect.getdoc(answer) or ""
    if any(keyword.iskeyword(name) for name in members):  # a class cannot declare a member `from`
        listed = ", ".join(f'"{name}": {hint}' for name, hint in members.items())
        return f'{answer.__name__} = TypedDict("{answer.__name__}", {{{listed}}})\n"""{about}"""\n'
    comments = {name: f"  # {description}" for name, hint in hints.items() if (description := description_of(hint))}
    body = "\n".join(f"{name}: {hint}{comments.get(name, '')}" for name, hint in members.items())
    return f"class {answer.__name__}(TypedDict):\n{_docstring(about)}\n\n{textwrap.indent(body, '    ')}\n"


def description_of(hint: Any) -> str:
    """Returns the description in the annotation of an answer's member; "": no description."""
    if typing.get_origin(hint) is NotRequired:
        [hint] = typing.get_args(hint)
    facts = typing.get_args(hint)[1:] if typing.get_origin(hint) is Annotated else ()
    return next((fact["description"] for fact in facts if isinstance(fact, dict) and "description" in fact), "")


def _type_text(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return _type_text(arguments[0])
    if origin is NotRequired:
        return f"NotRequired[{_type_text(arguments[0])}]"
    if origin is Literal:
        values = (f'"{value}"' if isinstance(value, str) else repr(value) for value in arguments)
        return f"Literal[{', '.join(values)}]"
    if origin in (typing.Union, types.UnionType):
        return " | ".join(map(_type_text, arguments))
    if origin in (list, dict):
        return f"{origin.__name__}[{', '.join(map(_type_text, arguments))}]"
    return "None" if hint is type(None) else str(hint.__name__)


def _function(operation: Operation) -> str:
    required = [one for one in operation.fields if one.required and one.name != "idempotency_key"]
    optional = [one for one in operation.fields if not one.required and one.name not in ("idempotency_key", "caller")]
    arguments = [f"{field.argument}: {_python_argument_type(operation, field)}" for field in required]
    arguments += ["*"]
    arguments += [f"{field.argument}: {_python_argument_type(operation, field)} | None = None" for field in optional]
    arguments += ["idempotency_key: str | None = None"] if operation.leaves_receipt else []
    arguments += ["caller: str | None = None"]
    raised = ", ".join(error.__name__ for error in operation.raises)
    description = f"{operation.summary}." + (f" Raises {raised}." if raised else "")
    return (
        f"def {operation.name}({', '.join(arguments)}) -> Request[{_type_text(operation.answer)}]:\n"
        f'{_docstring(description)}\n    return Request.of("{operation.module}", "{operation.name}", locals())\n'
    )


def argument_type(operation: Operation, field: Field, *, texts: str, objects: str) -> str:
    """Returns the type of an argument in a client. A counter is its name, and `counter:id` is one string. `texts`: the
    type of a list of texts in the client's language. `objects`: that of a list of JSON objects."""
    hint = typing.get_type_hints(operation.function, include_extras=True)[field.argument]
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        hint = typing.get_args(hint)[0]  # without None
    plain = typing.get_args(hint)[0]  # the type in `Annotated[type, Kind]`
    if typing.get_origin(plain) is list:
        [item] = typing.get_args(plain)
        return objects if typing.get_origin(item) is dict else texts
    return "str" if plain is Counter or typing.get_origin(plain) is tuple else str(plain.__name__)


_python_argument_type = partial(argument_type, texts="Iterable[str]", objects="Iterable[Mapping[str, Any]]")


def _docstring(text: str) -> str:
    lines = textwrap.wrap(" ".join(text.split()), 110)
    return textwrap.indent('"""' + "\n".join(lines) + '"""', "    ")
