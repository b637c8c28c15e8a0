"""Makes items and writes from Python values, and reads items back.

A value is a string, a number, or an attribute in DynamoDB's wire form, as a read returns it. `expected`: what the
attributes of an item must be for the write to commit; None: the attribute must be missing.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from .keys import Item

Write = dict[str, Any]
"""One entry of TransactItems: `{"Put": {…}}`, `{"Update": {…}}` …"""

Values = Mapping[str, str | float | Item]
Expected = Mapping[str, str | float | Item | None]

EXPECT_NO_ITEM: Expected = {"PK": None}
"""The write commits only if the item does not exist."""


def to_wire(values: Values) -> Item:
    """Returns the attributes in DynamoDB's wire form."""
    return {name: _to_wire(value) for name, value in values.items()}


def _to_wire(value: str | float | Item) -> Item:
    if isinstance(value, str):
        return {"S": value}
    return value if isinstance(value, dict) else {"N": str(value)}


def compress(body: object) -> Item:
    """Returns a JSON body as a compressed attribute."""
    return {"B": zlib.compress(json.dumps(body, separators=(",", ":")).encode())}


def decompress(value: Item) -> Any:
    """Returns the JSON body of an attribute that `compress` made."""
    return json.loads(zlib.decompress(value["B"]))


def int_attribute(item: Item, name: str, missing: int = 0) -> int:
    """Returns an attribute as an int; `missing` if the item lacks the attribute."""
    return int(item[name]["N"]) if name in item else missing


def from_wire(item: Item) -> dict[str, Any]:
    """Returns the attributes of an item as Python values, without its key. Each is a str, an int or a bool."""
    return {
        name: int(value["N"]) if "N" in value else value["S"] if "S" in value else value["BOOL"]
        for name, value in item.items()
        if name not in ("PK", "SK")
    }


def put_write(table: str, key: Item, values: Values) -> Write:
    """Returns the write that puts an item, in place of any item with the same key."""
    return {"Put": {"TableName": table, "Item": key | to_wire(values)}}


def update_write(table: str, key: Item, values: Values, *, remove: Iterable[str] = (), expected: Expected) -> Write:
    """Returns the write that sets `values` and removes the attributes `remove`. The write makes a missing item."""
    names, removed = _placeholders("set", values), _placeholders("removed", remove)
    sets = "SET " + ", ".join(f"#{at} = :{at}" for at in names)
    parameters = {
        "TableName": table,
        "Key": key,
        "UpdateExpression": sets + (f" REMOVE {', '.join(f'#{at}' for at in removed)}" if removed else ""),
        "ExpressionAttributeNames": {f"#{at}": name for at, name in (names | removed).items()},
        "ExpressionAttributeValues": {f":{at}": _to_wire(values[name]) for at, name in names.items()},
    }
    return {"Update": with_expected(parameters, expected)}


def remove_attributes_write(table: str, key: Item, names: Iterable[str]) -> Write:
    """Returns the write that removes attributes of an item, if the item exists."""
    removed = _placeholders("removed", names)
    return {"Update": {
        "TableName": table,
        "Key": key,
        "UpdateExpression": f"REMOVE {', '.join(f'#{at}' for at in removed)}",
        "ConditionExpression": "attribute_exists(PK)",
        "ExpressionAttributeNames": {f"#{at}": name for at, name in removed.items()},
    }}  # fmt: skip


def extend_update(
    update: Item,
    *,
    sets: Values = MappingProxyType({}),
    if_missing: Values = MappingProxyType({}),
    adds: Mapping[str, int] = MappingProxyType({}),
    remove: Iterable[str] = (),
) -> Item:
    """Returns the parameters of `update` with further attributes to set, add to or remove. `if_missing`: values to set
    only where the attribute is missing. The expression of `update` must begin with SET and end with ADD."""
    expression: str = update["UpdateExpression"]
    names, values = dict(update["ExpressionAttributeNames"]), dict(update["ExpressionAttributeValues"])

    def placeholder(name: str, value: str | float | Item | None = None) -> str:
        alias = f"extra{len(names)}"
        names[f"#{alias}"] = name
        if value is not None:
            values[f":{alias}"] = _to_wire(value)
        return alias

    setting = [f"#{at} = :{at}" for at in (placeholder(*item) for item in sets.items())]
    setting += [f"#{at} = if_not_exists(#{at}, :{at})" for at in (placeholder(*item) for item in if_missing.items())]
    adding = "".join(f", #{at} :{at}" for at in (placeholder(*item) for item in adds.items()))
    removed = ", ".join(f"#{placeholder(name)}" for name in remove)
    expression = f"SET {', '.join([*setting, expression.removeprefix('SET ')])}{adding}"
    return update | {
        "UpdateExpression": f"{expression} REMOVE {removed}" if removed else expression,
        "ExpressionAttributeNames": names,
        "ExpressionAttributeValues": values,
    }


def check_write(table: str, key: Item, expected: Expected) -> Write:
    """Returns the check that an item is as expected. If not, no write of the check's transaction commits."""
    return {"ConditionCheck": with_expected({"TableName": table, "Key": key}, expected)}


def with_expected(parameters: Item, expected: Expected) -> Item:
    """Returns the parameters of a write with one more condition: the attributes must be as expected."""
    assert expected, "the write expects nothing"
    own_names = parameters.get("ExpressionAttributeNames", {})
    names = _placeholders("expected", expected, first=len(own_names))
    expected_values = {f":{at}": _to_wire(value) for at, name in names.items() if (value := expected[name]) is not None}
    same = [f"#{at} = :{at}" if f":{at}" in expected_values else f"attribute_not_exists(#{at})" for at in names]
    own = [f"({parameters['ConditionExpression']})"] if "ConditionExpression" in parameters else []
    values = parameters.get("ExpressionAttributeValues", {}) | expected_values
    return parameters | {
        "ConditionExpression": " AND ".join(own + same),
        "ExpressionAttributeNames": own_names | {f"#{at}": name for at, name in names.items()},
        **({"ExpressionAttributeValues": values} if values else {}),
    }


def _placeholders(kind: str, names: Iterable[str], first: int = 0) -> dict[str, str]:
    """Returns the names by placeholder: `kind` and a number, from `first` on. Any name may be a reserved word."""
    return {f"{kind}{number}": name for number, name in enumerate(names, first)}
