"""The limits of a tally: those that its counter declares, or the override of its id.

A DynamoDB condition has no arithmetic: it cannot say `number + amount <= ceiling` if the ceiling is an attribute. So
each process caches the override of a tally and compares with the cached limit. The write also expects that the item
still has this override. If the condition fails, DynamoDB returns the old item, which shows whether the limit is reached
or the cache is stale.

    PREFIX#id         SORT   own#plan, own#ceiling or own#floor   the override; without periods beside the number
    PREFIX#id#period  SORT   the same                           the copy of a period, beside the number
                             own#plan, `?…`                     a mark: a reader of the mark then reads the override.
                                                                The limit of the last copy stays, for events alone

The first limited write of a period copies the override that it read, and expects the item as it was. A change of the
override writes into every period that a call may be in (overrides.py), so no write can use an override that was
replaced.
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

OVERRIDE, OVERRIDE_FLOOR, OVERRIDE_CEILING = "own#plan", "own#floor", "own#ceiling"
"""The attributes of an override: its name, which is unique, and its limits. No counter has such attributes."""
NO_OVERRIDE: Item = {OVERRIDE: {"S": "-"}}
"""The attributes of an item whose override was deleted, or of a copy without an override."""
STALE_COPY_PREFIX = "?"
"""The start of the override's name in an item whose copy is stale."""
CACHED_TALLIES_MAX = 10_000  # tallies of one process: each takes 300 bytes, and saves a read


class Limits(NamedTuple):
    """The limits of a number, and the override that they come from.

    `override`: the attributes of the override; empty without one. `copy_id`: the name of an override, or the mark, in
    the tally's item.
    """

    floor: int | None
    ceiling: int | None
    override: Mapping[str, Any] = MappingProxyType({})
    copy_id: Item | None = None

    @property
    def limit(self) -> int | None:
        """The limit that an override replaces: the ceiling; without a ceiling the floor."""
        return self.floor if self.ceiling is None else self.ceiling

    @property
    def is_override(self) -> bool:
        """Whether the limits come from an override."""
        return OVERRIDE_FLOOR in self.override or OVERRIDE_CEILING in self.override

    def with_debt(self, debt: int) -> Limits:
        """Returns these limits, widened by a `debt`."""
        floor = None if self.floor is None else self.floor - debt
        return self._replace(floor=floor, ceiling=None if self.ceiling is None else self.ceiling + debt)

    def fits(self, value: int) -> bool:
        """Returns whether `value` is within floor and ceiling."""
        return (self.floor is None or value >= self.floor) and (self.ceiling is None or value <= self.ceiling)

    def allows(self, value: int, amount: int) -> bool:
        """Returns whether `value` may move by `amount`. A move away from a limit is always allowed."""
        limit, _ = self.condition_for(0, amount)
        return limit is None or (value >= limit if amount < 0 else value <= limit)

    def condition_for(self, start: int, amount: int) -> tuple[int | None, str]:
        """Returns the limit of the number before the change, and the condition; None and "" if every number fits."""
        if amount < 0 and self.floor is not None:
            limit, comparison = self.floor - amount, ">="
            fresh_fits = start >= limit
        elif amount > 0 and self.ceiling is not None:
            limit, comparison = self.ceiling - amount, "<="
            fresh_fits = start <= limit
        else:
            return None, ""
        return limit, f"#number {comparison} :limit" + (" OR attribute_not_exists(#number)" if fresh_fits else "")


def override_attribute(counter: Counter) -> str:
    """Returns the attribute that holds an override."""
    return OVERRIDE_FLOOR if counter.ceiling is None else OVERRIDE_CEILING


def attributes_to_remove(override: Mapping[str, Any]) -> list[str]:
    """Returns the limits that an override lacks. An item that gets this override loses them."""
    return [name for name in (OVERRIDE_FLOOR, OVERRIDE_CEILING) if name not in override]


def declared_limits(counter: Counter) -> Limits:
    """Returns the limits that hold without an override."""
    return Limits(counter.floor, counter.ceiling)


def cached_limits(call: Call, counter: Counter, id_: str) -> Limits:
    """Returns the limits of a tally as this process has cached them. Reads an override that is not cached."""
    if not counter.limit_overrides:
        return declared_limits(counter)
    return call.store.limit_cache.get((counter.name, id_)) or read_limits(call, counter, id_)


def read_limits(call: Call, counter: Counter, id_: str) -> Limits:
    """Returns the limits of a tally, strongly consistent: 1 RCU, 2 with periods, 3 at a mark."""
    if not counter.limit_overrides:
        return declared_limits(counter)
    wanted = dict.fromkeys((id_, periods.answer_members(id_)["id"]))
    first, *overrides = _read_items(call, [key(counter, one) for one in wanted])
    if overrides and OVERRIDE not in first:
        return _limits_of_override(counter, overrides[0], first)
    # at a mark, this answer may have an override that is older than the mark
    return limits_after_refusal(call, counter, id_, first)


def limits_after_refusal(call: Call, counter: Counter, id_: str, item: Mapping[str, Any]) -> Limits:
    """Returns the limits of a tally whose `item` was just read, or has just refused a write."""
    return limits_of_each(call, {(counter, id_): item})[counter, id_]


def limits_of_each(
    call: Call, items_read: Mapping[tuple[Counter, str], Mapping[str, Any]]
) -> dict[tuple[Counter, str], Limits]:
    """Returns the limits of tallies, by their items, which were just read.

    An item names its override. If the item of a period has no copy, the override is read after the item: 1 RCU. If an
    override changes between the two reads, it puts its copy there, or it comes after the second read.
    """
    known: dict[tuple[Counter, str], Limits] = {}
    uncopied: list[tuple[Counter, str]] = []
    for (counter, id_), item in items_read.items():
        copy = item.get(OVERRIDE)
        if not counter.limit_overrides:
            known[counter, id_] = declared_limits(counter)
        elif counter.period is None or (copy and not str(copy["S"]).startswith(STALE_COPY_PREFIX)):
            known[counter, id_] = _cache(call, counter, id_, item)
        else:
            call.store.limit_cache.pop((counter.name, id_), None)
            uncopied.append((counter, id_))
    ids = [key(counter, periods.answer_members(id_)["id"]) for counter, id_ in uncopied]
    for tally, override in zip(uncopied, _read_items(call, ids) if ids else [], strict=True):
        known[tally] = _limits_of_override(tally[0], override, items_read[tally])
    return known


def answer_members(counter: Counter, id_: str, value: int, within: Limits) -> dict[str, int]:
    """Returns what an answer says of the limit of a tally at `value`: nothing, if its counter has no limit.

    `left`: how much more it takes; below 0 if `value` is beyond the limit, and then `over` is true. `resets_at`: when
    the period ends.
    """
    if within.limit is None:
        return {}
    left = value - within.limit if within.ceiling is None else within.limit - value
    more: dict[str, int] = {"over": True} if left < 0 else {}
    more |= {"resets_at": periods.ends_s(counter, id_)} if counter.period else {}
    return {"limit": within.limit, "left": left, **more}


def with_limit_condition(call: Call, write: Write, counter: Counter, id_: str, amount: int, debt: int) -> Write:
    """Returns the update that moves a tally by `amount`, on condition that the amount fits, or is beyond by a `debt` at
    most. If the condition fails, DynamoDB returns the old item."""
    if not declared_limits(counter).condition_for(counter.start, amount)[1]:
        return write  # every number takes this amount
    within = cached_limits(call, counter, id_).with_debt(debt)
    limit, condition = within.condition_for(counter.start, amount)
    write["ExpressionAttributeValues"] |= {":limit": {"N": str(limit)}}
    write |= {"ConditionExpression": condition, "ReturnValuesOnConditionCheckFailure": "ALL_OLD"}
    if not counter.limit_overrides:
        return write
    if within.override.get(OVERRIDE) != within.copy_id:  # the item has no copy yet
        write = items.extend_update(write, sets=within.override, remove=attributes_to_remove(within.override))
    return items.with_expected(write, {OVERRIDE: within.copy_id})


def key(counter: Counter, id_: str) -> Item:
    """Returns the key of the item that has the limits of a tally; of an id without a period, the override's key."""
    return keys.key(counter.partition_start + id_, counter.sort_key)


def _read_items(call: Call, wanted: list[Item]) -> list[Item]:
    return queries.get_each(call, call.store.settings.counts_table, wanted)


def _limits_of_override(counter: Counter, override: Mapping[str, Any], item: Mapping[str, Any]) -> Limits:
    """Returns the limits of an override, for the `item` of a period that has no copy of it. They are not cached,
    because the next write is to copy them."""
    override = override if OVERRIDE in override else NO_OVERRIDE
    return parse_limits(counter, override)._replace(copy_id=item.get(OVERRIDE))


def parse_limits(counter: Counter, item: Mapping[str, Any]) -> Limits:
    """Returns the limits of an item. If the counter has a ceiling now, a stored floor does not hold."""
    override = {name: item[name] for name in (OVERRIDE, override_attribute(counter)) if name in item}
    return Limits(
        None if counter.floor is None else items.int_attribute(override, OVERRIDE_FLOOR, counter.floor),
        None if counter.ceiling is None else items.int_attribute(override, OVERRIDE_CEILING, counter.ceiling),
        override,
    )


def _cache(call: Call, counter: Counter, id_: str, item: Mapping[str, Any]) -> Limits:
    """Returns the limits of a tally by its own item, and caches them for the next write of this process."""
    known, within = call.store.limit_cache, parse_limits(counter, item)._replace(copy_id=item.get(OVERRIDE))
    if len(known) >= CACHED_TALLIES_MAX:
        known.clear()
    known[counter.name, id_] = within
    return within
