"""Images: the attributes of an item in DynamoDB's wire form, as a stream or a read shows them."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

Image = Mapping[str, Any]
"""An item: its attributes by name, each as `{"S": …}`, `{"N": …}` …"""
SHOWN_MAX = 40  # characters of a value


def text(image: Image, name: str) -> str:
    """Returns a string, a number as DynamoDB spells it, `true` or `false`; "" for another type, and without the
    attribute."""
    value = image.get(name)
    if not isinstance(value, Mapping):
        return ""
    if isinstance(value.get("BOOL"), bool):
        return "true" if value["BOOL"] else "false"
    spelled = value.get("S", value.get("N"))
    return spelled if isinstance(spelled, str) else ""


def is_there(image: Image, name: str) -> bool:
    """Returns whether an item has an attribute that is not NULL."""
    value = image.get(name)
    return value is not None and not (isinstance(value, Mapping) and (not value or "NULL" in value))


def shown(image: Image, name: str) -> str:
    """Returns an attribute with its type, cut for people to read."""
    value = str(image.get(name))
    return value if len(value) <= SHOWN_MAX else f"{value[:SHOWN_MAX]}…"


def has(image: Image, name: str, wanted: str | int | bool) -> bool:
    """Returns whether an attribute has this value and its type."""
    value = image.get(name)
    if not isinstance(value, Mapping):
        return False
    if isinstance(wanted, bool):
        return value.get("BOOL") is wanted
    if isinstance(wanted, str):
        return value.get("S") == wanted
    try:
        return Decimal(value["N"]) == wanted
    except (InvalidOperation, KeyError, TypeError, ValueError):
        return False


def has_as_another_type(image: Image, name: str, wanted: str | int | bool) -> bool:
    """Returns whether an attribute has this value as another type: `"12"` for 12, `"true"` for True."""
    value = image.get(name)
    if not isinstance(value, Mapping) or (isinstance(wanted, str) and "S" in value):
        return False
    spelled = text(image, name)  # empty: a type that spells nothing
    return spelled != "" and spelled.casefold() == str(wanted).casefold() and not has(image, name, wanted)
