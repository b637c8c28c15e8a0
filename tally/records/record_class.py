"""Record classes: dataclasses whose attributes declare the keys and the atomic counters.

    @record
    class Customer:
        id: str = partition_key()
        name: str | None = None
        visits: int | None = atomic_counter()
        points: int | None = atomic_counter(delta=5, start=10)

The decorator checks the declarations: ConfigurationError names the class, the attribute and the reason.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeVar, dataclass_transform, get_type_hints

from ..errors import ConfigurationError, InvalidInputError
from .attribute_values import RecordMismatchError, ValueKind, Wire, decode, encode, kind_of

R = TypeVar("R")
Role = Literal["partition key", "sort key"]
PARTITION_KEY: Role = "partition key"
SORT_KEY: Role = "sort key"
KEY_BYTES_MAX: dict[Role, int] = {PARTITION_KEY: 2048, SORT_KEY: 1024}
_KEY_TAGS = frozenset({"S", "N", "B"})
_DECLARATION = "tally"  # the key of a declaration in a dataclass field's metadata
_RECORD_CLASS = "__tally_record_class__"
_SEEN = "_tally_seen"


@dataclass(frozen=True)
class AtomicCounter:
    """A number that every update moves by `delta`. The first write sets it to `start`."""

    delta: int
    start: int


@dataclass(frozen=True)
class Attribute:
    """One attribute of a record class: `field` in Python, `name` in the table."""

    field: str
    name: str
    kind: ValueKind
    role: Role | None
    counter: AtomicCounter | None
    has_default: bool

    def encode(self, value: object) -> Wire:
        """The value on the wire. Raises InvalidInputError with the attribute, also for a key of a bad length."""
        wire = encode(value, self.kind, self.name)
        if self.role is not None:
            ((tag, content),) = wire.items()
            size = len(content if tag == "B" else content.encode())
            if not 1 <= size <= KEY_BYTES_MAX[self.role]:
                raise InvalidInputError(
                    f"{self.name} is a {self.role}: it must have 1 to {KEY_BYTES_MAX[self.role]} bytes.",
                    field=self.name,
                )
        return wire


@dataclass(frozen=True)
class RecordClass:
    """A record class: its name, and its attributes in the order of their declaration."""

    name: str
    attributes: tuple[Attribute, ...]

    @cached_property
    def keys(self) -> tuple[Attribute, ...]:
        """The partition key and, if there is one, the sort key."""
        return tuple(a for role in KEY_BYTES_MAX for a in self.attributes if a.role == role)

    @cached_property
    def by_name(self) -> dict[str, Attribute]:
        """The attributes, by their names in the table."""
        return {a.name: a for a in self.attributes}

    @cached_property
    def counters(self) -> dict[str, AtomicCounter]:
        """The atomic counters, by the attribute's name in the table."""
        return {a.name: a.counter for a in self.attributes if a.counter}


def _declared(name: str | None, role: Role | None = None, counter: AtomicCounter | None = None, **field: Any) -> Any:
    return dataclasses.field(metadata={_DECLARATION: (name, role, counter)}, **field)


def partition_key(*, name: str | None = None) -> Any:
    """Declare the partition key. `name` is the attribute's name in the table, if it differs."""
    return _declared(name, PARTITION_KEY)


def sort_key(*, name: str | None = None) -> Any:
    """Declare the sort key."""
    return _declared(name, SORT_KEY)


def atomic_counter(*, delta: int = 1, start: int = 0, name: str | None = None) -> Any:
    """Declare an atomic counter, as `int | None`: the caller never sets it, so it is None until a read.

    Follows the Java client's @DynamoDbAtomicCounter:
    https://sdk.amazonaws.com/java/api/latest/software/amazon/awssdk/enhanced/dynamodb/extensions/annotations/DynamoDbAtomicCounter.html
    """
    return _declared(name, counter=AtomicCounter(delta=delta, start=start), default=None)


def attribute(*, name: str, default: Any = dataclasses.MISSING) -> Any:
    """Declare an attribute that has another name in the table: `e-mail`, `a.b`, `class`."""
    return _declared(name, default=default)


# atomic_counter is no specifier here: a type checker then takes its call as a default, and the argument is optional.
@dataclass_transform(kw_only_default=True, field_specifiers=(partition_key, sort_key, attribute, dataclasses.field))
def record(cls: type[R]) -> type[R]:
    """Make a record class: a dataclass with keyword arguments only. Raises ConfigurationError."""
    made: type[Any] = dataclass(kw_only=True)(cls)
    try:
        hints = get_type_hints(made)
    except NameError as error:
        raise ConfigurationError(f"record {cls.__name__}: {error}") from error
    attributes = tuple(_attribute(cls.__name__, field, hints[field.name]) for field in dataclasses.fields(made))
    _check_names(cls.__name__, attributes)
    setattr(made, _RECORD_CLASS, RecordClass(cls.__name__, attributes))
    return cls


def record_class_of(cls: type[object]) -> RecordClass:
    """The declarations of a record class. Raises ConfigurationError if the class itself is not decorated."""
    found = cls.__dict__.get(_RECORD_CLASS)
    if not isinstance(found, RecordClass):
        raise ConfigurationError(f"{cls.__name__} is no record class: decorate it with @record")
    return found


def from_item(cls: type[R], item: Mapping[str, Wire]) -> R:
    """The record of a stored item. It ignores attributes that the class does not declare.

    The record remembers the counters that were read, to distinguish them from values that the caller sets.
    Raises RecordMismatchError.
    """
    known = record_class_of(cls)
    values = {}
    for a in known.attributes:
        wire = item.get(a.name)
        if wire is not None:
            values[a.field] = decode(wire, a.kind, a.name)
        elif a.kind.nullable:
            values[a.field] = None  # the stored value counts, not the default
        elif not a.has_default:
            raise RecordMismatchError(f"{a.name} is missing, and {known.name} declares {a.kind}.", field=a.name)
    made = cls(**values)
    object.__setattr__(made, _SEEN, {a.field: values[a.field] for a in known.attributes if a.counter})
    return made


def values_of(record: object) -> dict[str, object]:
    """The values of a record, without its counters, by the attributes' names in the table; None if unset.

    Raises InvalidInputError for a counter that the caller set: one that is neither None nor as it was read.
    """
    known = record_class_of(type(record))
    seen = getattr(record, _SEEN, {})
    values = {}
    for a in known.attributes:
        value = getattr(record, a.field)
        if a.counter is None:
            values[a.name] = value
        elif value is not None and value != seen.get(a.field):
            raise InvalidInputError(
                f"{a.name} is an atomic counter of {known.name} and moves by itself: leave it None, or as it was read.",
                field=a.name,
            )
    return values


def _attribute(class_name: str, field: dataclasses.Field[Any], annotation: Any) -> Attribute:
    where = f"record {class_name}: {field.name}"
    given, role, counter = field.metadata.get(_DECLARATION, (None, None, None))
    kind = kind_of(annotation, where)
    if not field.init:
        raise ConfigurationError(f"{where} has init=False, and could not be read")
    if role and (kind.tag not in _KEY_TAGS or kind.nullable):
        raise ConfigurationError(f"{where} is the {role}: it must be str, int, Decimal or bytes")
    if counter:
        _check_counter(where, counter, kind)
    name = field.name if given is None else given
    if not name:
        raise ConfigurationError(f"{where}: name is empty")
    has_default = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
    return Attribute(field.name, name, kind, role, counter, has_default)


def _check_counter(where: str, counter: AtomicCounter, kind: ValueKind) -> None:
    if kind.tag != "N" or kind.number is not int or not kind.nullable:
        raise ConfigurationError(f"{where} is an atomic counter: declare it as `int | None`")
    numbers = {"delta": counter.delta, "start": counter.start, "start - delta": counter.start - counter.delta}
    for name, value in numbers.items():
        try:
            encode(value, ValueKind("N", number=int), name)
        except InvalidInputError as error:
            raise ConfigurationError(f"{where}: {error.detail}") from error
    if counter.delta == 0:
        raise ConfigurationError(f"{where}: delta is 0, so the counter would never move")


def _check_names(class_name: str, attributes: tuple[Attribute, ...]) -> None:
    names = [a.name for a in attributes]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ConfigurationError(f"record {class_name}: several attributes are called {', '.join(sorted(twice))}")
    roles = [a.role for a in attributes]
    if roles.count(PARTITION_KEY) != 1 or roles.count(SORT_KEY) > 1:
        raise ConfigurationError(f"record {class_name}: declare one partition_key(), and at most one sort_key()")
