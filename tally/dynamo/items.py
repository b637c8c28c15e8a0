"""Items made from Python values and read back, and the writes of them.

A value is a string, a number, or what was read: an attribute in DynamoDB's wire form. `was` says what attributes were
when the item was read, None for one that was missing. The write goes through only if they still are.
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
Was = Mapping[str, str | float | Item | None]

NO_ITEM: Was = {"PK": None}
"""That there was no item."""


def wire(values: Values) -> Item:
    """The attributes in DynamoDB's wire form."""
    return {name: _wire(value) for name, value in values.items()}


def _wire(value: str | float | Item) -> Item:
    if isinstance(value, str):
        return {"S": value}
    return value if isinstance(value, dict) else {"N": str(value)}


def packed(body: object) -> Item:
    """Something that JSON can hold, compressed, as an attribute."""
    return {"B": zlib.compress(json.dumps(body, separators=(",", ":")).encode())}


def unpacked(value: Item) -> Any:
    """What `packed` made an attribute of."""
    return json.loads(zlib.decompress(value["B"]))


def number(item: Item, name: str, missing: int = 0) -> int:
    """A whole number of an item; `missing` if it has none."""
    return int(item[name]["N"]) if name in item else missing


def plain(item: Item) -> dict[str, Any]:
    """The strings, whole numbers and booleans of an item by name, without its key."""
    return {
        name: int(value["N"]) if "N" in value else value["S"] if "S" in value else value["BOOL"]
        for name, value in item.items()
        if name not in ("PK", "SK")
    }


def put(table: str, key: Item, values: Values) -> Write:
    """The write that puts an item, over an older one of its key."""
    return {"Put": {"TableName": table, "Item": key | wire(values)}}


def update(table: str, key: Item, values: Values, *, removed: Iterable[str] = (), was: Was) -> Write:
    """The write that sets some attributes of an item and removes others. It makes the item if there is none."""
    names, gone = _placed("set", values), _placed("removed", removed)
    sets = "SET " + ", ".join(f"#{at} = :{at}" for at in names)
    parameters = {
        "TableName": table,
        "Key": key,
        "UpdateExpression": sets + (f" REMOVE {', '.join(f'#{at}' for at in gone)}" if gone else ""),
        "ExpressionAttributeNames": {f"#{at}": name for at, name in (names | gone).items()},
        "ExpressionAttributeValues": {f":{at}": _wire(values[name]) for at, name in names.items()},
    }
    return {"Update": only_if(parameters, was)}


def removing(table: str, key: Item, names: Iterable[str]) -> Write:
    """The write that removes attributes of an item, if it is there."""
    gone = _placed("removed", names)
    return {"Update": {
        "TableName": table,
        "Key": key,
        "UpdateExpression": f"REMOVE {', '.join(f'#{at}' for at in gone)}",
        "ConditionExpression": "attribute_exists(PK)",
        "ExpressionAttributeNames": {f"#{at}": name for at, name in gone.items()},
    }}  # fmt: skip


def beside(
    update: Item,
    *,
    sets: Values = MappingProxyType({}),
    unless_there: Values = MappingProxyType({}),
    adds: Mapping[str, int] = MappingProxyType({}),
    removed: Iterable[str] = (),
) -> Item:
    """The parameters of an update that sets, adds to or removes other attributes, too. Its own expression begins with
    SET, and ends with ADD. `unless_there`: what is set if the item has no such attribute."""
    expression: str = update["UpdateExpression"]
    names, values = dict(update["ExpressionAttributeNames"]), dict(update["ExpressionAttributeValues"])

    def placed(name: str, value: str | float | Item | None = None) -> str:
        place = f"beside{len(names)}"
        names[f"#{place}"] = name
        if value is not None:
            values[f":{place}"] = _wire(value)
        return place

    setting = [f"#{at} = :{at}" for at in (placed(*one) for one in sets.items())]
    setting += [f"#{at} = if_not_exists(#{at}, :{at})" for at in (placed(*one) for one in unless_there.items())]
    adding = "".join(f", #{at} :{at}" for at in (placed(*one) for one in adds.items()))
    gone = ", ".join(f"#{placed(name)}" for name in removed)
    expression = f"SET {', '.join([*setting, expression.removeprefix('SET ')])}{adding}"
    return update | {
        "UpdateExpression": f"{expression} REMOVE {gone}" if gone else expression,
        "ExpressionAttributeNames": names,
        "ExpressionAttributeValues": values,
    }


def check(table: str, key: Item, was: Was) -> Write:
    """The check of an item that the other writes of a transaction rest on."""
    return {"ConditionCheck": only_if({"TableName": table, "Key": key}, was)}


def only_if(parameters: Item, was: Was) -> Item:
    """The parameters of a write with one more condition beside its own: that the attributes are as they were."""
    assert was, "the write rests on nothing"
    own_names = parameters.get("ExpressionAttributeNames", {})
    names = _placed("was", was, first=len(own_names))
    seen = {f":{at}": _wire(value) for at, name in names.items() if (value := was[name]) is not None}
    same = [f"#{at} = :{at}" if f":{at}" in seen else f"attribute_not_exists(#{at})" for at in names]
    own = [f"({parameters['ConditionExpression']})"] if "ConditionExpression" in parameters else []
    values = parameters.get("ExpressionAttributeValues", {}) | seen
    return parameters | {
        "ConditionExpression": " AND ".join(own + same),
        "ExpressionAttributeNames": own_names | {f"#{at}": name for at, name in names.items()},
        **({"ExpressionAttributeValues": values} if values else {}),
    }


def _placed(kind: str, names: Iterable[str], first: int = 0) -> dict[str, str]:
    """The names by placeholders: a name may be one of DynamoDB's words, or have signs that an expression may not."""
    return {f"{kind}{number}": name for number, name in enumerate(names, first)}
