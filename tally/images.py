"""Images: items in DynamoDB's wire form, such as `{"PK": {"S": "a"}}`, from a stream record or a read."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

Image = Mapping[str, Any]
"""An item: its attributes by name, each as `{"S": …}`, `{"N": …}` …"""
EXCERPT_CHARACTERS_MAX = 40  # of a value in a message


def text_of(image: Image, name: str) -> str:
    """Returns an attribute as text: a string, a number as DynamoDB writes it, `true` or `false`.

    Returns "" if the attribute is missing or has another type.
    """
    value = image.get(name)
    if not isinstance(value, Mapping):
        return ""
    if isinstance(value.get("BOOL"), bool):
        return "true" if value["BOOL"] else "false"
    written = value.get("S", value.get("N"))
    return written if isinstance(written, str) else ""


def is_present(image: Image, name: str) -> bool:
    """Returns whether an item has an attribute that is not NULL."""
    value = image.get(name)
    return value is not None and not (isinstance(value, Mapping) and (not value or "NULL" in value))


def excerpt_of(image: Image, name: str) -> str:
    """Returns an attribute with its type, for a message. Cuts a long value."""
    value = str(image.get(name))
    return value if len(value) <= EXCERPT_CHARACTERS_MAX else f"{value[:EXCERPT_CHARACTERS_MAX]}…"


def has_value(image: Image, name: str, wanted: str | int | bool) -> bool:
    """Returns whether an attribute equals this value and has its DynamoDB type."""
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


def has_value_as_other_type(image: Image, name: str, wanted: str | int | bool) -> bool:
    """Returns whether an attribute has this value, but with another DynamoDB type: "12" for 12, or "true" for True."""
    value = image.get(name)
    if not isinstance(value, Mapping) or (isinstance(wanted, str) and "S" in value):
        return False
    written = text_of(image, name)  # "": the attribute is missing, or is not text, a number or a Boolean
    return written != "" and written.casefold() == str(wanted).casefold() and not has_value(image, name, wanted)
