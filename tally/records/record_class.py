"""Record classes: dataclasses whose attributes declare the keys, the atomic counters and the types of their values.

    @record
    class Customer:
        id: str = partition_key()
        name: str | None = None
        visits: int | None = atomic_counter()
        points: int | None = atomic_counter(delta=5, start=10)

boto3 converts values to DynamoDB's wire form and back. This module also checks that each value has the declared type.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from types import NoneType, UnionType
from typing import Any, NamedTuple, TypeVar, Union, dataclass_transform, get_args, get_origin, get_type_hints

from boto3.dynamodb.types import Binary, TypeDeserializer, TypeSerializer

from ..dynamo.keys import Item
from ..errors import ConfigurationError, InvalidInputError, TallyError

R = TypeVar("R")
KEY_BYTES_MAX = {"partition key": 2048, "sort key": 1024}  # DynamoDB's limits
NESTING_MAX = 32  # levels of lists and maps in one value: DynamoDB's limit
_DECLARATION = "tally"  # a field's metadata has (name in the table, kind of key, atomic counter) under this name
_ATTRIBUTES = "__tally_attributes__"  # the attribute of a record class that holds its Attributes
_SERIALIZER, _DESERIALIZER = TypeSerializer(), TypeDeserializer()
# For each declared type, the types of its values. `Any` takes the first type that fits, so bool is before int.
_ACCEPTED_TYPES: dict[Any, Any] = {
    bool: bool,
    str: str,
    int: (int, Decimal),
    Decimal: (int, Decimal),
    bytes: (bytes, bytearray, Binary),
    list: (list, tuple),
    dict: Mapping,
    set: (set, frozenset),
    frozenset: (set, frozenset),
}


class RecordMismatchError(TallyError):
    """A stored item does not fit its record class: another program or an older class wrote it."""

    slug, status, title = "record-mismatch", 500, "A stored item does not fit its record class"


class AtomicCounter(NamedTuple):
    """A number that every update moves by `delta`. The first write sets it to `start`."""

    delta: int
    start: int


@dataclass(frozen=True)
class Attribute:
    """One attribute of a record class. `field`: its name in Python. `name`: its name in the table."""

    field: str
    name: str
    type: Any
    key: str | None
    """`partition key` or `sort key`; None if the attribute is not part of the key."""
    counter: AtomicCounter | None
    has_default: bool  # of the dataclass field

    @property
    def is_nullable(self) -> bool:
        """True if the attribute may be unset."""
        return self.type is Any or NoneType in get_args(self.type)

    def encode(self, value: object) -> Item:
        """Returns the value in wire form. For a wrong type or a key of a wrong length, raises InvalidInputError."""
        wire = encode(value, self.type, self.name)
        if self.key:
            (content,) = wire.values()
            if not 1 <= len(content.encode() if isinstance(content, str) else content) <= KEY_BYTES_MAX[self.key]:
                why = f"{self.name} is a {self.key}: it must have 1 to {KEY_BYTES_MAX[self.key]} bytes."
                raise InvalidInputError(why, field=self.name)
        return wire

    def decode(self, wire: Any) -> Any:
        """Returns the value of a wire form. Raises RecordMismatchError with the attribute."""
        try:
            return coerce(_DESERIALIZER.deserialize(wire), self.type, self.name)
        except ValueError as error:
            raise RecordMismatchError(f"A stored item does not fit its class: {error}.", field=self.name) from None
        except ArithmeticError:  # boto3's Decimal context raises this where it would have to round
            raise RecordMismatchError(f"{self.name} has a number of more than 38 digits.", field=self.name) from None

    def invalid_reason(self) -> str | None:
        """Returns why this declaration cannot work; None if it can."""
        if not _is_storable(self.type):
            return f"has the type {self.type!r}, which is not a type of docs/records.md"
        if self.key and self.type not in (str, int, Decimal, bytes):
            return f"is the {self.key}: it must be str, int, Decimal or bytes"
        if self.counter and self.type != int | None:
            return "is an atomic counter: declare it as `int | None`"
        if self.counter and ({*map(type, self.counter)} != {int} or not self.counter.delta):
            return "is an atomic counter: start and delta must be int, and delta not 0"
        return None


def partition_key(*, name: str | None = None) -> Any:
    """Declares the partition key. `name` is the attribute's name in the table, if it differs."""
    return dataclasses.field(metadata={_DECLARATION: (name, "partition key", None)})


def sort_key(*, name: str | None = None) -> Any:
    """Declares the sort key."""
    return dataclasses.field(metadata={_DECLARATION: (name, "sort key", None)})


def atomic_counter(*, delta: int = 1, start: int = 0, name: str | None = None) -> Any:
    """Declares an atomic counter, as `int | None`: it is None until a read, because the caller never sets it.

    Follows the Java client's @DynamoDbAtomicCounter:
    https://sdk.amazonaws.com/java/api/latest/software/amazon/awssdk/enhanced/dynamodb/extensions/annotations/DynamoDbAtomicCounter.html
    """
    return dataclasses.field(default=None, metadata={_DECLARATION: (name, None, AtomicCounter(delta, start))})


def attribute(*, name: str, default: Any = dataclasses.MISSING) -> Any:
    """Declares an attribute that has another name in the table than in Python: `e-mail`, `a.b`, `class`."""
    return dataclasses.field(default=default, metadata={_DECLARATION: (name, None, None)})


# atomic_counter is not a field specifier, so a type checker takes its call for a default value, and does not require
# the counter as an argument of the constructor.
@dataclass_transform(kw_only_default=True, field_specifiers=(partition_key, sort_key, attribute, dataclasses.field))
def record(cls: type[R]) -> type[R]:
    """Makes a record class, a dataclass with keyword arguments only. Raises ConfigurationError with the reason."""
    record_class: Any = dataclass(kw_only=True)(cls)
    types = get_type_hints(record_class)
    attributes = {}
    for field in dataclasses.fields(record_class):
        name, key, counter = field.metadata.get(_DECLARATION, (None, None, None))
        has_default = {field.default, field.default_factory} != {dataclasses.MISSING}
        a = Attribute(field.name, name or field.name, types[field.name], key, counter, has_default)
        wrong = a.invalid_reason() if field.init else "has init=False, and could not be read"
        wrong = wrong or (f"is a second {a.name} in the table" if a.name in attributes else None)
        if wrong:
            raise ConfigurationError(f"record {cls.__name__}: {a.field} {wrong}")
        attributes[a.name] = a
    keys = sorted(a.key for a in attributes.values() if a.key)
    if keys not in (["partition key"], ["partition key", "sort key"]):
        raise ConfigurationError(f"record {cls.__name__}: declare one partition_key(), and at most one sort_key()")
    setattr(record_class, _ATTRIBUTES, attributes)
    return cls


def attributes_of(cls: type[object]) -> Mapping[str, Attribute]:
    """Returns the attributes of a record class by their names in the table, in the order of declaration. If `record`
    did not decorate this very class, raises ConfigurationError."""
    if _ATTRIBUTES not in vars(cls):
        raise ConfigurationError(f"{cls.__name__} is not a record class: decorate it with @record")
    attributes: Mapping[str, Attribute] = vars(cls)[_ATTRIBUTES]
    return attributes


def encode(value: object, type_: Any, where: str) -> Item:
    """Returns the value in wire form. If it cannot be stored, raises InvalidInputError. `where`: the attribute."""
    try:
        wire: Any = _SERIALIZER.serialize(coerce(value, type_, where))
    except ValueError as error:
        raise InvalidInputError(f"{error}.", field=where) from None
    except (ArithmeticError, TypeError):  # boto3 raises these for a number that it would round, and for a mixed set
        why = "a number has at most 38 digits, and a set is all str, all numbers or all bytes"
        raise InvalidInputError(f"{where} cannot be stored: {why}.", field=where) from None
    return dict(wire)


def coerce(value: Any, type_: Any, where: str, depth: int = 1) -> Any:
    """Returns a value, which a caller gave or boto3 read, converted to the declared type.

    For `Any`, whole numbers become int, and bytearray and boto3's Binary become bytes. Raises ValueError with a reason
    that names `where`, such as `tags[0]`. `depth`: how many lists and maps are around the value, plus 1.
    """
    kind, inner = get_origin(type_) or type_, get_args(type_)
    if value is None and (kind is Any or NoneType in inner):
        return None
    if kind in (Union, UnionType):
        return coerce(value, _not_none(inner), where, depth)
    if depth > NESTING_MAX:
        raise ValueError(f"{where} lies deeper than {NESTING_MAX} levels")
    if kind is Any:
        kind = next((kind for kind, accepted in _ACCEPTED_TYPES.items() if isinstance(value, accepted)), Any)
    if not isinstance(value, _ACCEPTED_TYPES.get(kind, ())) or (isinstance(value, bool) and kind is not bool):
        type_given = "None" if value is None else f"a {type(value).__name__}"
        raise ValueError(f"{where} must be {getattr(type_, '__name__', type_)}, and is {type_given}")
    if kind in (int, Decimal):
        return _number(value, type_, where)
    if kind in (set, frozenset):
        members = [coerce(member, inner[0] if inner else Any, where) for member in value]
        if not members or any(isinstance(member, bool) for member in members):
            what = "a set of bool" if members else "an empty set"
            raise ValueError(f"{where} is {what}, which DynamoDB cannot store")
        return kind(members)
    if kind is list:
        type_ = inner[0] if inner else Any
        return [coerce(member, type_, f"{where}[{n}]", depth + 1) for n, member in enumerate(value)]
    if kind is dict:
        type_ = inner[1] if inner else Any
        pairs = value.items()
        return {coerce(k, str, f"{where}, a key"): coerce(v, type_, f"{where}.{k}", depth + 1) for k, v in pairs}
    if kind is str:
        value.encode()  # raises UnicodeEncodeError, a ValueError, for half a surrogate pair
    return bytes(value) if kind is bytes else value


def _number(value: int | Decimal, type_: Any, where: str) -> int | Decimal:
    number = Decimal(value)
    if not number.is_finite() or not -130 <= number.adjusted() <= 125:  # else int() of 1E+1000000 takes minutes
        raise ValueError(f"{where} is not a number from 1E-130 to 9.99E+125")
    if type_ is not Decimal and number == number.to_integral_value():
        return int(number)
    if type_ is int:
        raise ValueError(f"{where} must be int, and is {number}")
    return number


def _is_storable(type_: Any) -> bool:
    kind, inner = get_origin(type_) or type_, get_args(type_)
    if kind in (Union, UnionType):
        return len(inner) == 2 and NoneType in inner and _is_storable(_not_none(inner))
    if kind in (set, frozenset):
        return inner in ((str,), (int,), (Decimal,), (bytes,))
    if kind is dict and inner:
        return inner[0] is str and _is_storable(inner[1])
    return kind is Any or (kind in _ACCEPTED_TYPES and all(map(_is_storable, inner)))


def _not_none(inner: tuple[Any, ...]) -> Any:
    """Returns the X of `X | None`."""
    return inner[0] if inner[1] is NoneType else inner[1]
