"""Items: declares which items of a team's own table a counter counts, in which group, and the amount of each item."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from decimal import Context, Decimal, InvalidOperation
from typing import Any, NamedTuple
from urllib.parse import unquote

from . import images
from .errors import ConfigurationError
from .ids import encode_id
from .images import Image

AMOUNT_LIMIT = 10**15
"""The amount of an item, without its sign and in units of the scale, is less than this."""
SCALE_MAX = 6
_EXACT = Context(prec=50)  # DynamoDB's numbers have up to 38 digits; Python's own context rounds to 28
RECOUNT_GENERATION, TEAM_NUMBER, EXAMPLE = "recounted", "team_number", "example"
"""The attributes that the consumer and scans store beside the number of a tally: which scan set the number last, the
team's number, and, if the group is that of a fault, the newest item with the fault."""
RESERVED_GROUP_PREFIX = "~-"
"""The prefix of Tally's own groups: groups of faults, and TEAM_NUMBERS_GROUP. No id of `encode_id` begins with it."""
TEAM_NUMBERS_GROUP = f"{RESERVED_GROUP_PREFIX}numbers"
"""The group that counts the items that have a team number."""
UNREADABLE_GROUP = f"{RESERVED_GROUP_PREFIX}unreadable"
"""The group that counts the items whose team number cannot be read."""
HEARTBEAT_PREFIX = "HEARTBEAT#"
WITHIN_MAX_S = 3600
GROUP_CHARACTERS_MAX = 128  # of the text in the item, before `encode_id`
GROUP_ID_CHARACTERS_MAX = 12 * GROUP_CHARACTERS_MAX  # a character has up to 4 bytes, each 3 characters in an id
_TABLE_PATTERN = re.compile(r"[A-Za-z0-9_.-]{1,255}")  # what DynamoDB allows; the name becomes part of a key
_RESERVED_TABLES = frozenset({"counts", "receipts", "ledger"})


class Contribution(NamedTuple):
    """The group and the amount that one item adds to a count. `group`: an id (`ids.encode_id`)."""

    group: str
    amount: int

    @property
    def is_reserved(self) -> bool:
        """Whether the group begins with RESERVED_GROUP_PREFIX."""
        return self.group.startswith(RESERVED_GROUP_PREFIX)


class Fault(NamedTuple):
    """The reason why Tally cannot count an item that `Items` selects. `kind`: a key of FAULT_KINDS."""

    kind: str
    why: str

    @property
    def group(self) -> str:
        """The group that counts the items with this fault."""
        return f"{RESERVED_GROUP_PREFIX}{self.kind}"


FAULT_KINDS = {
    "type": "an attribute of `where` has the value as another type",
    "group": "a group that no id can be made of",
    "amount": "an amount that is not a number",
    "decimals": "an amount with more decimals than `scale`",
    "large": f"an amount of {AMOUNT_LIMIT:.0e} or more".replace("e+", "e"),
    "unreadable": "a team number that cannot be read",
}
"""The faults. If an item lacks an attribute, that is not a fault: the item does not count, as with NULL in SQL."""


@dataclass(frozen=True)
class Watch:
    """A number that the team's own code keeps of a group, in an item of the same partition. Tally never writes it."""

    attribute: str
    """The attribute that has the number."""
    at: str
    """The sort key of the item that has the number. Tally does not count this item."""
    within_s: int = 60
    """The seconds that the number may be behind its items or ahead of them, 1 to 3,600."""
    same_transaction: bool = False
    """Whether one transaction always writes item and number."""

    def __post_init__(self) -> None:
        if not isinstance(self.attribute, str) or not self.attribute:
            raise ConfigurationError(f"watch: attribute is {self.attribute!r}, but must be the name of an attribute")
        if not isinstance(self.at, str) or not self.at:
            must = f"must be the sort key of the item that has {self.attribute}, such as 'META'"
            raise ConfigurationError(f"watch: at is {self.at!r}, but {must}")
        if type(self.within_s) is not int or not 1 <= self.within_s <= WITHIN_MAX_S:
            raise ConfigurationError(f"watch: within_s is {self.within_s!r}, but must be 1 to {WITHIN_MAX_S} seconds")
        if not isinstance(self.same_transaction, bool):
            raise ConfigurationError(f"watch: same_transaction is {self.same_transaction!r}, but must be True or False")


@dataclass(frozen=True)
class Items:
    """The items that a counter counts: `COUNT` or `SUM … WHERE … GROUP BY`, for a table of the team's own.

        Items("shop", partition_prefix="CUSTOMER#", sort_key="SK", sort_prefix="ORDER#", where={"status": "open"})

    A wrong field raises ConfigurationError.
    """

    table: str
    """The name that `Tally(tables={…})` gives the table."""
    partition_key: str = "PK"
    """The name of the partition key."""
    partition_prefix: str = ""
    """The start of the partition keys of items that count. The rest of the key is the group."""
    sort_key: str | None = None
    """The name of the sort key. None: each item of the partition counts."""
    sort_prefix: str = ""
    """The start of the sort keys of items that count."""
    where: Mapping[str, str | int | bool] = field(default_factory=dict, hash=False)
    """The attributes and values of items that count: texts, whole numbers, `True`, `False`."""
    group_by: str | None = None
    """The attribute that names the group. None: the rest of the partition key."""
    amount: int | str = 1
    """The amount of each item: a whole number other than 0, or the attribute that has the amount."""
    scale: int = 0
    """The decimals of amounts, 0 to 6. With 2 the number of 12.50 is 1250."""
    heartbeats: bool = False
    """Whether Tally may write items `HEARTBEAT#…` into the table. They prove `as_of`, which is otherwise an estimate.
    All counters of a table must agree."""
    watch: Watch | None = None
    """The number of your own code to compare with the count (`Watched`)."""

    def __post_init__(self) -> None:
        for name in ("table", "partition_key", "partition_prefix", "sort_prefix"):
            if not isinstance(getattr(self, name), str):
                raise self._error(name, "must be text")
        self._check_names()
        is_number = type(self.amount) is int and self.amount != 0 and abs(self.amount) < AMOUNT_LIMIT
        if not is_number and not _is_name(self.amount):
            raise self._error("amount", "must be a whole number other than 0, or the name of an attribute")
        if type(self.scale) is not int or not 0 <= self.scale <= SCALE_MAX:
            raise self._error("scale", f"must be a whole number from 0 to {SCALE_MAX}")
        if self.scale and not isinstance(self.amount, str):
            raise self._error("scale", "goes with an attribute as the amount")
        if not isinstance(self.heartbeats, bool):
            raise self._error("heartbeats", "must be True or False")
        if self.watch is not None and self.group_by is not None:
            raise self._error("group_by", "must be left out: the number is in the partition of the items")
        if self.watch is not None and self.sort_key is None:
            why = f"must name the sort key: the number is in the item with {self.watch.at!r} there"
            raise self._error("sort_key", why)

    def _check_names(self) -> None:
        for name in ("table", "partition_key"):
            if not getattr(self, name):
                raise self._error(name, "must have a name")
        if not _TABLE_PATTERN.fullmatch(self.table):
            raise self._error("table", f"must have the form {_TABLE_PATTERN.pattern}")
        if self.table in _RESERVED_TABLES:
            raise self._error("table", "is a table of Tally itself")
        for name in ("sort_key", "group_by"):
            if not (getattr(self, name) is None or _is_name(getattr(self, name))):
                raise self._error(name, "must be the name of an attribute, or left out")
        if self.sort_key == self.partition_key:
            raise self._error("sort_key", "is the partition key")
        if self.sort_key is None and self.sort_prefix:
            raise self._error("sort_prefix", "goes with sort_key")
        if not isinstance(self.where, Mapping) or not all(
            _is_name(name) and isinstance(one, str | int) for name, one in self.where.items()
        ):
            raise self._error("where", "must have a text, a whole number, True or False for each name of an attribute")

    def _error(self, name: str, why: str) -> ConfigurationError:
        return ConfigurationError(f"items of {self.table!r}: {name} is {getattr(self, name)!r}, but {why}")

    @property
    def needs_images(self) -> bool:
        """Whether the contribution of an item depends on more than its keys, so that the stream must have images."""
        by_image = bool(self.where) or self.group_by is not None or isinstance(self.amount, str)
        return by_image or self.watch is not None

    @property
    def digest_fields(self) -> dict[str, Any]:
        """The fields of `Counter.items_digest`: what contributions depend on, and which item has the team's number."""
        fields = asdict(self)
        if self.watch is not None:  # without `within_s` and `same_transaction`, on which no count depends
            fields["watch"] = [self.watch.attribute, self.watch.at]
        if not (
            HEARTBEAT_PREFIX.startswith(self.partition_prefix) or self.partition_prefix.startswith(HEARTBEAT_PREFIX)
        ):
            # No heartbeat has such a partition key, so contributions do not depend on `heartbeats`.
            del fields["heartbeats"]
        return fields

    def contribution(self, image: Image) -> Contribution | None:
        """Returns what `contribution_or_fault` does, but an item with a fault adds 1 to the group of its fault."""
        result = self.contribution_or_fault(image)
        return Contribution(result.group, 1) if isinstance(result, Fault) else result

    def contribution_or_fault(self, image: Image) -> Contribution | Fault | None:
        """Returns the contribution of an item, or its fault; None if it does not count. The item with the team's number
        adds 1 to TEAM_NUMBERS_GROUP. An item that lacks an attribute does not count, as with NULL in SQL."""
        if self.may_have_team_number(image):
            number = self._team_number_or_fault(image)
            return Contribution(TEAM_NUMBERS_GROUP, 1) if isinstance(number, Contribution) else number
        if not self.may_count(image):
            return None
        for name, wanted in self.where.items():
            if images.has_value_as_other_type(image, name, wanted):
                return Fault("type", f"{name} is {wanted} as another type")
            if not images.has_value(image, name, wanted):
                return None
        amount = self.amount if isinstance(self.amount, int) else self._number(image, self.amount)
        if isinstance(amount, Fault):
            return amount
        group = self._group(image)
        if isinstance(group, Fault):
            return group
        return Contribution(group, amount) if group and amount else None

    def team_number(self, image: Image) -> Contribution | None:
        """Returns the group and the team's number in this item; None if it has no number, or Tally cannot read it."""
        number = self._team_number_or_fault(image) if self.may_have_team_number(image) else None
        return number if isinstance(number, Contribution) else None

    def may_have_team_number(self, keys: Image) -> bool:
        """Returns whether an item of these keys may have the team's number. Such an item does not count."""
        if self.watch is None or not self._is_in_partitions(keys):
            return False
        return images.text_of(keys, str(self.sort_key)) == self.watch.at

    def may_count(self, keys: Image) -> bool:
        """Returns whether an item of these keys may count."""
        if not self._is_in_partitions(keys):
            return False
        if self.sort_key is None:
            return True
        return self.sort_key in keys and images.text_of(keys, self.sort_key).startswith(self.sort_prefix)

    def _is_in_partitions(self, keys: Image) -> bool:
        key = images.text_of(keys, self.partition_key)  # "": the key is missing, or binary
        is_heartbeat = self.heartbeats and key.startswith(HEARTBEAT_PREFIX)
        return key != "" and key.startswith(self.partition_prefix) and not is_heartbeat

    def partition_key_of(self, group: str) -> str:
        """Returns the partition key that all items of a group share. Call it only without `group_by`."""
        assert self.group_by is None, "an attribute says the group, so its items may have many partition keys"
        return self.partition_prefix + unquote(group.replace("~", "%"))  # the reverse of `encode_id`

    def _team_number_or_fault(self, image: Image) -> Contribution | Fault | None:
        """Returns the group and the team's number in this item, or its fault; None if the item has no number."""
        assert self.watch is not None
        number = self._number(image, self.watch.attribute)
        if isinstance(number, Fault):
            return Fault("unreadable", number.why)
        group = self._group(image)
        return group if isinstance(group, Fault) else None if number is None else Contribution(group, number)

    def _group(self, image: Image) -> str | Fault:
        """Returns the id of the group of an item; "" if it has no group."""
        attribute = self.group_by or self.partition_key
        name = images.text_of(image, attribute)
        if self.group_by is None:
            name = name[len(self.partition_prefix) :]
        if len(name) > GROUP_CHARACTERS_MAX:
            why = f"and a group has at most {GROUP_CHARACTERS_MAX} characters"
        elif not name and images.is_present(image, attribute):
            why = "which names no group"
        else:
            return encode_id(name)
        return Fault("group", f"{attribute} is {images.excerpt_of(image, attribute)}, {why}")

    def format(self, amount: int, sign: str = "-") -> str:
        """Returns an amount as text in the unit of the team's table: 1250 with a scale of 2 is `12.50`. `sign`: with
        `+`, an amount above 0 has a plus sign."""
        return f"{Decimal(amount).scaleb(-self.scale):{sign}f}"

    def _number(self, image: Image, name: str) -> int | Fault | None:
        """Returns the number in an attribute, in units of the scale; None if the item lacks the attribute."""
        if not images.is_present(image, name):
            return None
        try:
            number = Decimal(image[name]["N"])
            scaled = number.scaleb(self.scale, _EXACT)
            whole = scaled == scaled.to_integral_value()
        except (InvalidOperation, KeyError, TypeError, ValueError):
            return Fault("amount", f"{name} is {images.excerpt_of(image, name)}, and not a number")
        if not whole:
            decimals = -int(number.normalize(_EXACT).as_tuple().exponent)
            advice = f"declare scale={decimals}" if decimals <= SCALE_MAX else f"no scale has {decimals} decimals"
            return Fault("decimals", f"{name} is {number}: {advice}")
        if abs(scaled) >= AMOUNT_LIMIT:
            return Fault("large", f"{name} is {number}, which is too large to add up")
        return int(scaled)


def key_names(key_schema: Sequence[Mapping[str, str]]) -> list[str]:
    """Returns the names of the keys in a schema, as DynamoDB describes it: the partition key first."""
    by_type = {key["KeyType"]: key["AttributeName"] for key in key_schema}
    return [by_type[kind] for kind in ("HASH", "RANGE") if kind in by_type]


def key_types(table: Mapping[str, Any]) -> dict[str, str]:
    """Returns the types of the keys of a described table by name, the partition key first."""
    types = {part["AttributeName"]: part["AttributeType"] for part in table["AttributeDefinitions"]}
    return {name: types[name] for name in key_names(table["KeySchema"])}


def short_digest(*facts: object) -> str:
    """Returns 16 hexadecimal digits, which differ if one of these facts differs."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def _is_name(value: object) -> bool:
    return isinstance(value, str) and value != ""
