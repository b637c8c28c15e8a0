"""The values of attributes: the Python types, and the form of each on DynamoDB's wire.

    str  int  Decimal  bool  bytes  list  dict  set or frozenset of str, numbers or bytes

This module neither guesses nor rounds. It refuses a float, a bool for an int, an empty set (DynamoDB cannot store it)
and a number of more than 38 digits (DynamoDB would cut it). The error names the attribute.

Source: https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/HowItWorks.NamingRulesDataTypes.html
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Context, Decimal, Inexact, InvalidOperation, Overflow, Subnormal, Underflow
from typing import Any, Union, get_args, get_origin

from ..errors import ConfigurationError, InvalidInputError, TallyError

Wire = dict[str, Any]
"""One value in DynamoDB's form: `{"S": "text"}`, `{"N": "7"}` …"""

NESTING_MAX = 32  # levels; DynamoDB takes no more
_NUMBER = Context(  # 38 digits, 1E-130 to 9.99…E+125; any other number raises instead of being rounded
    prec=38, Emin=-130, Emax=125, traps=[Inexact, InvalidOperation, Overflow, Subnormal, Underflow]
)
_UNFIT = (Inexact, InvalidOperation, Overflow, Subnormal, Underflow)
_MEMBER_TAGS = frozenset({"S", "N", "B"})
_PYTHON_TYPES: dict[str, Any] = {  # a bool is an int as well, so it comes first
    "BOOL": bool,
    "S": str,
    "N": (int, Decimal, float),
    "B": bytes,
    "L": (list, tuple),
    "M": Mapping,
    "SS": (set, frozenset),
    "NS": (set, frozenset),
    "BS": (set, frozenset),
}


class RecordMismatchError(TallyError):
    """A stored item does not fit its record class: another program or an older class wrote it."""

    slug, status, title = "record-mismatch", 500, "A stored item does not fit its record class"


@dataclass(frozen=True)
class ValueKind:
    """The declared type of a value. `tag` is DynamoDB's (`S`, `N`, …), or `ANY` if the value decides."""

    tag: str
    nullable: bool = False
    number: type[int] | type[Decimal] | None = None
    """For `N` and `NS`; None takes both and reads whole numbers as int."""
    of: ValueKind | None = None
    """For `L` and `M`: the type of their elements."""
    frozen: bool = False
    """For sets: whether to read them as frozenset."""

    def __str__(self) -> str:
        named = {"S": "str", "BOOL": "bool", "B": "bytes", "L": "list", "M": "dict"}.get(self.tag)
        if self.tag == "N":
            named = self.number.__name__ if self.number else "int or Decimal"
        return named or ("a value" if self.tag == "ANY" else "set")


ANY = ValueKind("ANY")
ANY_OR_NULL = ValueKind("ANY", nullable=True)
_SCALARS: dict[object, ValueKind] = {
    str: ValueKind("S"),
    int: ValueKind("N", number=int),
    Decimal: ValueKind("N", number=Decimal),
    bool: ValueKind("BOOL"),
    bytes: ValueKind("B"),
    Any: ANY_OR_NULL,
    list: ValueKind("L", of=ANY_OR_NULL),
    dict: ValueKind("M", of=ANY_OR_NULL),
}


def kind_of(annotation: Any, where: str) -> ValueKind:
    """The kind that an annotation declares. Raises ConfigurationError, which names `where`, for any other type."""
    scalar = _SCALARS.get(annotation)
    if scalar is not None:
        return scalar
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        others = [argument for argument in arguments if argument is not type(None)]
        if len(others) == 1:
            return replace(kind_of(others[0], where), nullable=True)
    if origin is list:
        return ValueKind("L", of=kind_of(arguments[0], where))
    if origin is dict and arguments[0] is str:
        return ValueKind("M", of=kind_of(arguments[1], where))
    if origin in (set, frozenset):
        member = kind_of(arguments[0], where)
        if member.tag in _MEMBER_TAGS and not member.nullable:
            return ValueKind(f"{member.tag}S", number=member.number, frozen=origin is frozenset)
    raise ConfigurationError(
        f"{where}: {annotation!r} is no type of an attribute. There are str, int, Decimal, bool, bytes, list, dict with"
        " str keys, set of str, int, Decimal or bytes, and each of them `| None`."
    )


def encode(value: Any, kind: ValueKind, where: str, depth: int = 1) -> Wire:
    """The value on the wire. Raises InvalidInputError for a value of another kind, or one that cannot be stored.

    The error names `where`. `depth` is the depth of the value within the attribute.
    """
    if depth > NESTING_MAX:
        raise _refusal(where, f"lies deeper than {NESTING_MAX} levels")
    if value is None and kind.nullable:
        return {"NULL": True}
    tag = _tag_of(value, where) if kind.tag == "ANY" else kind.tag
    if not isinstance(value, _PYTHON_TYPES[tag]):
        raise _mismatch(value, kind, where)
    of = kind.of or ANY_OR_NULL
    match tag:
        case "S":
            return {"S": _text(value, where)}
        case "N":
            return {"N": _number(value, kind, where)}
        case "L":
            return {"L": [encode(member, of, f"{where}[{n}]", depth + 1) for n, member in enumerate(value)]}
        case "M":
            return {
                "M": {
                    encode(key, _SCALARS[str], f"{where}, a key")["S"]: encode(entry, of, f"{where}.{key}", depth + 1)
                    for key, entry in value.items()
                }
            }
        case "SS" | "NS" | "BS":
            if not value:
                raise _refusal(where, "is an empty set, which DynamoDB cannot store: leave it None")
            member_kind = ValueKind(tag[0], number=kind.number)
            return {tag: sorted(encode(member, member_kind, where)[tag[0]] for member in value)}
    return {tag: value}


def decode(wire: Wire, kind: ValueKind, where: str) -> Any:
    """The Python value of a wire value. Raises RecordMismatchError, which names `where`, for another kind."""
    ((tag, content),) = wire.items()
    if tag == "NULL" and kind.nullable:
        return None
    if kind.tag not in (tag, "ANY"):
        raise RecordMismatchError(f"{where} is stored as {tag}, and the record class declares {kind}.", field=where)
    of = kind.of or ANY_OR_NULL
    match tag:
        case "N":
            return _read_number(content, kind, where)
        case "L":
            return [decode(member, of, f"{where}[{n}]") for n, member in enumerate(content)]
        case "M":
            return {key: decode(entry, of, f"{where}.{key}") for key, entry in content.items()}
        case "SS" | "NS" | "BS":
            members = (_read_number(member, kind, where) if tag == "NS" else member for member in content)
            return frozenset(members) if kind.frozen else set(members)
    return content


def _refusal(where: str, why: str) -> InvalidInputError:
    return InvalidInputError(f"{where} {why}.", field=where)


def _mismatch(value: object, kind: ValueKind, where: str) -> InvalidInputError:
    given = "None" if value is None else f"a {type(value).__name__}"
    return _refusal(where, f"must be {kind}, and is {given}")


def _tag_of(value: object, where: str) -> str:
    """The tag of a value without a declaration."""
    if isinstance(value, set | frozenset):
        tags = {_tag_of(member, where) for member in value}
        if len(tags) == 1 and (tag := tags.pop()) in _MEMBER_TAGS:
            return f"{tag}S"
        raise _refusal(where, "is a set that is empty or not all str, all numbers or all bytes")
    for tag, python_types in _PYTHON_TYPES.items():
        if isinstance(value, python_types):
            return tag
    raise _refusal(where, f"is {'None' if value is None else 'a ' + type(value).__name__}, which is no value")


def _text(text: str, where: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _refusal(where, "holds half a surrogate pair: it is not valid Unicode") from None
    return text


def _number(value: int | Decimal | float, kind: ValueKind, where: str) -> str:
    if isinstance(value, float):
        raise _refusal(where, f"is the float {value!r}, a binary fraction: give an int or a Decimal")
    if isinstance(value, bool) or (kind.number is int and not isinstance(value, int)):
        raise _mismatch(value, kind, where)
    try:
        number = _NUMBER.create_decimal(value)
    except _UNFIT:
        number = Decimal("NaN")
    if not number.is_finite():
        raise _refusal(where, "is no number of at most 38 digits from 1E-130 to 9.99E+125")
    return str(number) if number else "0"


def _read_number(text: str, kind: ValueKind, where: str) -> int | Decimal:
    number = Decimal(text)
    if kind.number is Decimal:
        return number
    if number == number.to_integral_value():
        return int(number)
    if kind.number is int:
        raise RecordMismatchError(f"{where} is {text}, and the record class declares int.", field=where)
    return number
