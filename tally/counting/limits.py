"""The limits of a tally: the limits that its counter declares, or the override of its id.

A DynamoDB condition has no arithmetic: it cannot say `number + amount <= ceiling` if the ceiling is an attribute. So
each process caches the override of a tally and compares with the cached limit. The write also expects that the item
still has this override. If the condition fails, DynamoDB returns the old item, which shows whether the limit is reached
or the cache is stale.

    PREFIX#id         SORT   override#name, override#ceiling or override#floor: the override. Without periods, the item
                             also has the number
    PREFIX#id#period  SORT   a copy of these attributes, in the item of the period's number. If override#name begins
                             with `?` (a stale mark), the copy is out of date: writes read the override, and only
                             events of thresholds still use the limit of the copy

The first write in a period that a limit may refuse copies the override into the period's item. The write expects that
`override#name` is as it was read. A change of the override also writes into each period that a call may be in
(overrides.py), so no write can use an override that was replaced.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from ..counter import Counter
from ..dynamo import items, keys, queries
from ..dynamo.client import Call
from ..dynamo.keys import Item
from ..dynamo.transactions import Write
from . import periods

OVERRIDE, OVERRIDE_FLOOR, OVERRIDE_CEILING = "override#name", "override#floor", "override#ceiling"
"""The attributes of an override: its name (new after each change), floor and ceiling. No counter may have them."""
NO_OVERRIDE: Item = {OVERRIDE: {"S": "-"}}
"""The attributes of a deleted override, and of the copy in a period whose id has no override."""
STALE_COPY_PREFIX = "?"
"""The start of a stale mark, which replaces the name of the override in `override#name`."""
CACHED_TALLIES_MAX = 10_000  # tallies in the cache of a process, at 300 bytes each; each saves a read


class Limits(NamedTuple):
    """The limits of a tally, and the override that they come from.

    `override`: the attributes of the override; empty if there is no override. `stored_name`: `override#name` as the
    tally's item has it: the name of an override, `-` or a stale mark; None if the item lacks the attribute.
    """

    floor: int | None
    ceiling: int | None
    override: Mapping[str, Any] = MappingProxyType({})
    stored_name: Item | None = None

    @property
    def limit(self) -> int | None:
        """The limit that an override replaces: the ceiling; without a ceiling the floor."""
        return self.floor if self.ceiling is None else self.ceiling

    @property
    def is_override(self) -> bool:
        """Whether the limits come from an override."""
        return OVERRIDE_FLOOR in self.override or OVERRIDE_CEILING in self.override

    def with_debt(self, debt: int) -> Limits:
        """Returns these limits, widened by `debt`: how far a change may go beyond a limit."""
        floor = None if self.floor is None else self.floor - debt
        return self._replace(floor=floor, ceiling=None if self.ceiling is None else self.ceiling + debt)

    def fits(self, value: int) -> bool:
        """Returns whether `value` is within floor and ceiling."""
        return (self.floor is None or value >= self.floor) and (self.ceiling is None or value <= self.ceiling)

    def allows(self, value: int, amount: int) -> bool:
        """Returns whether a number of `value` may move by `amount`. A number may always move away from a limit."""
        limit, _ = self.condition_for(0, amount)  # the start matters only for the condition
        return limit is None or (value >= limit if amount < 0 else value <= limit)

    def condition_for(self, start: int, amount: int) -> tuple[int | None, str]:
        """Returns the value of `:limit` and the condition of a change by `amount`.

        DynamoDB compares the number before the change: `number <= ceiling - amount`. Returns None and "" if no limit
        can refuse the change. `start`: the number of a tally that is not stored.
        """
        if amount < 0 and self.floor is not None:
            limit, comparison = self.floor - amount, ">="
            new_item_fits = start >= limit
        elif amount > 0 and self.ceiling is not None:
            limit, comparison = self.ceiling - amount, "<="
            new_item_fits = start <= limit
        else:
            return None, ""
        return limit, f"#number {comparison} :limit" + (" OR attribute_not_exists(#number)" if new_item_fits else "")


def override_attribute(counter: Counter) -> str:
    """Returns the attribute with the limit of an override of this counter."""
    return OVERRIDE_FLOOR if counter.ceiling is None else OVERRIDE_CEILING


def attributes_to_remove(override: Mapping[str, Any]) -> list[str]:
    """Returns the limit attributes that an override lacks. Its write removes what an older override may have stored."""
    return [name for name in (OVERRIDE_FLOOR, OVERRIDE_CEILING) if name not in override]


def declared_limits(counter: Counter) -> Limits:
    """Returns the limits that the counter declares. They hold for each id without an override."""
    return Limits(counter.floor, counter.ceiling)


def cached_limits(call: Call, counter: Counter, id_: str) -> Limits:
    """Returns the limits of a tally from the cache of this process. If the cache lacks them, reads them."""
    if not counter.limit_overrides:
        return declared_limits(counter)
    return call.store.limit_cache.get((counter.name, id_)) or read_limits(call, counter, id_)


def read_limits(call: Call, counter: Counter, id_: str) -> Limits:
    """Returns the limits of a tally after a strongly consistent read.

    The read costs 1 RCU, with periods 2 RCU, and 3 RCU if the item of the period has a stale mark.
    """
    if not counter.limit_overrides:
        return declared_limits(counter)
    ids = dict.fromkeys((id_, periods.answer_members(id_)["id"]))  # without periods, both are one id
    first, *overrides = _read_items(call, [key(counter, read_id) for read_id in ids])
    if overrides and OVERRIDE not in first:
        return _limits_without_copy(counter, overrides[0], first)
    # If the item has a stale mark, `overrides` may be older than the mark, so the override is read again.
    return limits_from_item(call, counter, id_, first)


def limits_from_item(call: Call, counter: Counter, id_: str, item: Mapping[str, Any]) -> Limits:
    """Returns the limits of a tally. `item`: the tally's item, just read, or returned by a failed condition."""
    return limits_from_items(call, {(counter, id_): item})[counter, id_]


def limits_from_items(
    call: Call, items_read: Mapping[tuple[Counter, str], Mapping[str, Any]]
) -> dict[tuple[Counter, str], Limits]:
    """Returns the limits of tallies from their items, which were just read.

    If the item of a period has no valid copy of the override, the override is read after the item, for 1 RCU. The
    override may change between or after the two reads. The change also writes into the item of the period, so a write
    that expects the item as it was read fails.
    """
    limits_of, cache = dict[tuple[Counter, str], Limits](), call.store.limit_cache
    without_copy: list[tuple[Counter, str]] = []
    for (counter, id_), item in items_read.items():
        copy = item.get(OVERRIDE)
        if not counter.limit_overrides:
            limits_of[counter, id_] = declared_limits(counter)
        elif counter.period is None or (copy and not str(copy["S"]).startswith(STALE_COPY_PREFIX)):
            if len(cache) >= CACHED_TALLIES_MAX:
                cache.clear()
            limits_of[counter, id_] = parse_limits(counter, item)._replace(stored_name=copy)
            cache[counter.name, id_] = limits_of[counter, id_]
        else:
            cache.pop((counter.name, id_), None)
            without_copy.append((counter, id_))
    ids = [key(counter, periods.answer_members(id_)["id"]) for counter, id_ in without_copy]
    for tally, override in zip(without_copy, _read_items(call, ids) if ids else [], strict=True):
        limits_of[tally] = _limits_without_copy(tally[0], override, items_read[tally])
    return limits_of


def answer_members(counter: Counter, id_: str, value: int, bounds: Limits) -> dict[str, int]:
    """Returns the members of an answer about the limit of a tally whose number is `value`; {} without a limit.

    `left`: the amount that still fits. If `value` is beyond the limit, `left` is below 0, and `over` is true.
    `resets_at`: when the period ends, in epoch seconds.
    """
    if bounds.limit is None:
        return {}
    left = value - bounds.limit if bounds.ceiling is None else bounds.limit - value
    members: dict[str, int] = {"over": True} if left < 0 else {}
    members |= {"resets_at": periods.ends_s(counter, id_)} if counter.period else {}
    return {"limit": bounds.limit, "left": left, **members}


def with_limit_condition(call: Call, write: Write, counter: Counter, id_: str, amount: int, debt: int) -> Write:
    """Returns `write`, the update of a tally by `amount`, with the condition that the amount fits.

    The amount may go beyond the limit by up to `debt`. If the condition fails, DynamoDB returns the old item.
    """
    if not declared_limits(counter).condition_for(counter.start, amount)[1]:
        return write  # no limit can refuse this amount: an override replaces only a declared limit
    bounds = cached_limits(call, counter, id_).with_debt(debt)
    limit, condition = bounds.condition_for(counter.start, amount)
    write["ExpressionAttributeValues"] |= {":limit": {"N": str(limit)}}
    write |= {"ConditionExpression": condition, "ReturnValuesOnConditionCheckFailure": "ALL_OLD"}
    if not counter.limit_overrides:
        return write
    if bounds.override.get(OVERRIDE) != bounds.stored_name:  # the item has no copy or a stale mark: make the copy
        write = items.extend_update(write, sets=bounds.override, remove=attributes_to_remove(bounds.override))
    return items.with_expected(write, {OVERRIDE: bounds.stored_name})


def key(counter: Counter, id_: str) -> Item:
    """Returns the key of the item with a tally's limits. If `id_` has no period, the item has the override itself."""
    return keys.key(counter.partition_start + id_, counter.sort_key)


def _read_items(call: Call, item_keys: list[Item]) -> list[Item]:
    return queries.get_each(call, call.store.settings.counts_table, item_keys)


def _limits_without_copy(counter: Counter, override: Mapping[str, Any], item: Mapping[str, Any]) -> Limits:
    """Returns the limits of an `override`. The `item` of the period has no copy of the override, or a stale mark.

    These limits are not cached, because the next write copies the override into the item, and so changes `stored_name`.
    """
    override = override if OVERRIDE in override else NO_OVERRIDE
    return parse_limits(counter, override)._replace(stored_name=item.get(OVERRIDE))


def parse_limits(counter: Counter, item: Mapping[str, Any]) -> Limits:
    """Returns the limits in an item. Ignores the floor of an override if the counter now has a ceiling instead."""
    override = {name: item[name] for name in (OVERRIDE, override_attribute(counter)) if name in item}
    return Limits(
        None if counter.floor is None else items.int_attribute(override, OVERRIDE_FLOOR, counter.floor),
        None if counter.ceiling is None else items.int_attribute(override, OVERRIDE_CEILING, counter.ceiling),
        override,
    )
