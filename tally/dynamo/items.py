"""Items made from Python values and read back, and the writes of them.

A value is a string, a number, or an attribute in DynamoDB's wire form, as a read returns it. `expected`: the attributes
as they were read, None for an attribute that was missing. If an attribute has another value now, the condition of the
write fails.
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
"""That there was no item."""


def to_wire(values: Values) -> Item:
    """The attributes in DynamoDB's wire form."""
    return {name: _to_wire(value) for name, value in values.items()}


def _to_wire(value: str | float | Item) -> Item:
    if isinstance(value, str):
        return {"S": value}
    return value if isinstance(value, dict) else {"N": str(value)}


def compress(body: object) -> Item:
    """Something that JSON can hold, compressed, as an attribute."""
    return {"B": zlib.compress(json.dumps(body, separators=(",", ":")).encode())}


def decompress(value: Item) -> Any:
    """What `compress` made an attribute of."""
    return json.loads(zlib.decompress(value["B"]))


def int_attribute(item: Item, name: str, missing: int = 0) -> int:
    """A whole number of an item; `missing` if it has none."""
    return int(item[name]["N"]) if name in item else missing


def from_wire(item: Item) -> dict[str, Any]:
    """The strings, whole numbers and booleans of an item by name, without its key."""
    return {
        name: int(value["N"]) if "N" in value else value["S"] if "S" in value else value["BOOL"]
        for name, value in item.items()
        if name not in ("PK", "SK")
    }


def put_write(table: str, key: Item, values: Values) -> Write:
    """The write that puts an item, over an older one of its key."""
    return {"Put": {"TableName": table, "Item": key | to_wire(values)}}


def update_write(table: str, key: Item, values: Values, *, remove: Iterable[str] = (), expected: Expected) -> Write:
    """The write that sets some attributes of an item and removes others. It makes the item if there is none."""
    names, gone = _placeholders("set", values), _placeholders("removed", remove)
    sets = "SET " + ", ".join(f"#{at} = :{at}" for at in names)
    parameters = {
        "TableName": table,
        "Key": key,
        "UpdateExpression": sets + (f" REMOVE {', '.join(f'#{at}' for at in gone)}" if gone else ""),
        "ExpressionAttributeNames": {f"#{at}": name for at, name in (names | gone).items()},
        "ExpressionAttributeValues": {f":{at}": _to_wire(values[name]) for at, name in names.items()},
    }
    return {"Update": with_expected(parameters, expected)}


def remove_attributes_write(table: str, key: Item, names: Iterable[str]) -> Write:
    """The write that removes attributes of an item, if it is there."""
    gone = _placeholders("removed", names)
    return {"Update": {
        "TableName": table,
        "Key": key,
        "UpdateExpression": f"REMOVE {', '.join(f'#{at}' for at in gone)}",
        "ConditionExpression": "attribute_exists(PK)",
        "ExpressionAttributeNames": {f"#{at}": name for at, name in gone.items()},
    }}  # fmt: skip


def extend_update(
    update: Item,
    *,
    sets: Values = MappingProxyType({}),
    unless_there: Values = MappingProxyType({}),
    adds: Mapping[str, int] = MappingProxyType({}),
    remove: Iterable[str] = (),
) -> Item:
    """The parameters of an update that sets, adds to or removes other attributes, too. Its own expression begins with
    SET, and ends with ADD. `unless_there`: what is set if the item has no such attribute."""
    expression: str = update["UpdateExpression"]
    names, values = dict(update["ExpressionAttributeNames"]), dict(update["ExpressionAttributeValues"])

    def placed(name: str, value: str | float | Item | None = None) -> str:
        place = f"beside{len(names)}"
        names[f"#{place}"] = name
        if value is not None:
            values[f":{place}"] = _to_wire(value)
        return place

    setting = [f"#{at} = :{at}" for at in (placed(*one) for one in sets.items())]
    setting += [f"#{at} = if_not_exists(#{at}, :{at})" for at in (placed(*one) for one in unless_there.items())]
    adding = "".join(f", #{at} :{at}" for at in (placed(*one) for one in adds.items()))
    gone = ", ".join(f"#{placed(name)}" for name in remove)
    expression = f"SET {', '.join([*setting, expression.removeprefix('SET ')])}{adding}"
    return update | {
        "UpdateExpression": f"{expression} REMOVE {gone}" if gone else expression,
        "ExpressionAttributeNames": names,
        "ExpressionAttributeValues": values,
    }


def check_write(table: str, key: Item, expected: Expected) -> Write:
    """The check of an item that the other writes of a transaction rest on."""
    return {"ConditionCheck": with_expected({"TableName": table, "Key": key}, expected)}


def with_expected(parameters: Item, expected: Expected) -> Item:
    """The parameters of a write with one more condition beside its own: that the attributes are as they were."""
    assert expected, "the write rests on nothing"
    own_names = parameters.get("ExpressionAttributeNames", {})
    names = _placeholders("was", expected, first=len(own_names))
    seen = {f":{at}": _to_wire(value) for at, name in names.items() if (value := expected[name]) is not None}
    same = [f"#{at} = :{at}" if f":{at}" in seen else f"attribute_not_exists(#{at})" for at in names]
    own = [f"({parameters['ConditionExpression']})"] if "ConditionExpression" in parameters else []
    values = parameters.get("ExpressionAttributeValues", {}) | seen
    return parameters | {
        "ConditionExpression": " AND ".join(own + same),
        "ExpressionAttributeNames": own_names | {f"#{at}": name for at, name in names.items()},
        **({"ExpressionAttributeValues": values} if values else {}),
    }


def _placeholders(kind: str, names: Iterable[str], first: int = 0) -> dict[str, str]:
    """The names by placeholders: a name may be one of DynamoDB's words, or have signs that an expression may not."""
    return {f"{kind}{number}": name for number, name in enumerate(names, first)}
