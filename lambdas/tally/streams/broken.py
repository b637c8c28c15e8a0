"""Describes the fault of a stream record that a reader could not read. Only such a record is examined."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .record import CHANGES, MALFORMED, REMOVE, SOON, Declared

_SHOWN_CHARACTERS_MAX = 64
_RECEIPT = {"counter": "S", "target": "S", "amount": "N", "at": "N"}


def reason(declared: Declared, table: str, record: Any, error: Exception) -> str:
    """The fault of a record of this table; the error itself if there is no other."""
    return next(_faults(declared, table, record), "") or f"malformed: {type(error).__name__}: {error}"[:200]


def _faults(declared: Declared, table: str, record: Any) -> Iterator[str]:
    change = record.get("dynamodb") if isinstance(record, dict) else None
    if not isinstance(change, dict):
        yield "the record has no dynamodb"
        return
    if "eventName" not in record:
        yield "the record has no eventName"
    try:
        float(change["ApproximateCreationDateTime"])
    except (KeyError, TypeError, ValueError):
        yield "ApproximateCreationDateTime is no time"
    yield from _of_receipt(change) if table == "receipts" else _of_count(declared, record.get("eventName"), change)


def _of_receipt(change: dict[str, Any]) -> Iterator[str]:
    image = change.get("NewImage")
    if not isinstance(image, dict):
        yield "the record has no NewImage"
        return
    many = [name for name in (CHANGES, SOON) if name in image]
    for name in many:
        if not _lists(image[name]):
            yield f"{name} is no map of counters and amounts"
    for name, kind in {"at": "N"}.items() if many else _RECEIPT.items():
        if name not in image:
            yield f"NewImage has no {name}"
        yield from _of_value(image[name], name, kind)


def _lists(value: Any) -> bool:
    """Whether an attribute has whole numbers by counter and id."""
    try:
        return all(int(number["N"]) is not None for ids in value["M"].values() for number in ids["M"].values())
    except MALFORMED:
        return False


def _of_count(declared: Declared, event: object, change: dict[str, Any]) -> Iterator[str]:
    keys = change.get("Keys")
    if not isinstance(keys, dict):
        yield "the record has no Keys"
        return
    for name in ("PK", "SK"):
        if name not in keys:
            yield f"Keys has no {name}"
        yield from _of_value(keys[name], name, "S")
    images = {name: change[name] for name in ("NewImage", "OldImage") if change.get(name) is not None}
    if "NewImage" not in images and event != REMOVE:
        yield "the record has no NewImage"
    counter = declared.tally(keys["PK"]["S"].partition("#")[0], keys["SK"]["S"])
    for name, image in images.items():
        if not isinstance(image, dict):
            yield f"{name} is no item"
        elif counter is not None and counter.attribute in image:
            yield from _of_value(image[counter.attribute], f"{counter.attribute} in {name}", "N")


def _of_value(value: Any, name: str, kind: str) -> Iterator[str]:
    """What is wrong with an attribute value that is to be a string (`S`) or a whole number (`N`)."""
    held = value.get(kind) if isinstance(value, dict) else None
    if kind == "S":
        if not isinstance(held, str):
            yield f"{name} is no string, but {_shown(value)}"
        return
    try:
        int(held)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        yield f"{name} is no {'whole ' if held else ''}number, but {_shown(value)}"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS_MAX else text[: _SHOWN_CHARACTERS_MAX - 1] + "…"
