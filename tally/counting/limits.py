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
override writes into every period that a call may be in (plans.py), so no write can use an override that was replaced.
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

PLAN, FLOOR, CEILING = "own#plan", "own#floor", "own#ceiling"
"""The attributes of an override: its name, which no other one has, and its limits. No counter has such attributes."""
NO_PLAN: Item = {PLAN: {"S": "-"}}
"""The attributes of an item whose override was deleted, or of a copy without an override."""
MARK = "?"
"""How the name begins in an item whose copy is stale."""
REMEMBERED_MAX = 10_000  # tallies of one process: each is 300 bytes, and a read when it is needed again


class Limits(NamedTuple):
    """The limits of a number, and the override that they come from.

    `plan`: the attributes of the override; empty without one. `there`: the name of an override, or the mark, in the
    tally's item.
    """

    floor: int | None
    ceiling: int | None
    plan: Mapping[str, Any] = MappingProxyType({})
    there: Item | None = None

    @property
    def limit(self) -> int | None:
        """The limit that an override replaces: the ceiling; without a ceiling the floor."""
        return self.floor if self.ceiling is None else self.ceiling

    @property
    def own(self) -> bool:
        """Whether they come from an override."""
        return FLOOR in self.plan or CEILING in self.plan

    def beyond(self, debt: int) -> Limits:
        """These limits, for what may go beyond them by a `debt`."""
        floor = None if self.floor is None else self.floor - debt
        return self._replace(floor=floor, ceiling=None if self.ceiling is None else self.ceiling + debt)

    def fits(self, value: int) -> bool:
        """Whether `value` is within floor and ceiling."""
        return (self.floor is None or value >= self.floor) and (self.ceiling is None or value <= self.ceiling)

    def takes(self, value: int, amount: int) -> bool:
        """Whether `value` may move by `amount`. What leads back from a limit, every number takes."""
        limit, _ = self.bound(0, amount)
        return limit is None or (value >= limit if amount < 0 else value <= limit)

    def bound(self, start: int, amount: int) -> tuple[int | None, str]:
        """The limit that the number must keep for `amount` to fit, and the condition; None if every number fits."""
        if amount < 0 and self.floor is not None:
            limit, comparison = self.floor - amount, ">="
            fresh_fits = start >= limit
        elif amount > 0 and self.ceiling is not None:
            limit, comparison = self.ceiling - amount, "<="
            fresh_fits = start <= limit
        else:
            return None, ""
        return limit, f"#number {comparison} :limit" + (" OR attribute_not_exists(#number)" if fresh_fits else "")


def own_name(counter: Counter) -> str:
    """Returns the attribute that holds an override."""
    return FLOOR if counter.ceiling is None else CEILING


def not_of(plan: Mapping[str, Any]) -> list[str]:
    """Returns the limits that an override lacks: an item that gets the override loses those of an earlier one."""
    return [name for name in (FLOOR, CEILING) if name not in plan]


def declared(counter: Counter) -> Limits:
    """Returns the limits of every id without an override."""
    return Limits(counter.floor, counter.ceiling)


def of(call: Call, counter: Counter, id_: str) -> Limits:
    """Returns the limits of a tally as this process has cached them. Reads an override that is not cached."""
    if not counter.own_limits:
        return declared(counter)
    return call.store.limits.get((counter.name, id_)) or read(call, counter, id_)


def read(call: Call, counter: Counter, id_: str) -> Limits:
    """The limits of a tally, strongly consistent: 1 RCU, 2 with periods, 3 at a mark."""
    if not counter.own_limits:
        return declared(counter)
    wanted = dict.fromkeys((id_, periods.shown(id_)["id"]))
    first, *plans = _items(call, [key(counter, one) for one in wanted])
    if plans and PLAN not in first:
        return _of_plan(counter, plans[0], first)
    return learn(call, counter, id_, first)  # at a mark, one answer may have an override from before the mark


def learn(call: Call, counter: Counter, id_: str, item: Mapping[str, Any]) -> Limits:
    """Returns the limits of a tally whose item was just read, or has just refused a write."""
    return learn_each(call, {(counter, id_): item})[counter, id_]


def learn_each(call: Call, found: Mapping[tuple[Counter, str], Mapping[str, Any]]) -> dict[tuple[Counter, str], Limits]:
    """Returns the limits of tallies, by the items that were just read of them.

    An item names its override. If the item of a period has no copy, the override is read after the item: 1 RCU. An
    override that changes in between has put its copy there, or comes after this read.
    """
    known: dict[tuple[Counter, str], Limits] = {}
    asks: list[tuple[Counter, str]] = []
    for (counter, id_), item in found.items():
        there = item.get(PLAN)
        if not counter.own_limits:
            known[counter, id_] = declared(counter)
        elif counter.period is None or (there and not _is_mark(there)):
            known[counter, id_] = _remember(call, counter, id_, item)
        else:
            call.store.limits.pop((counter.name, id_), None)
            asks.append((counter, id_))
    plans = _items(call, [key(counter, periods.shown(id_)["id"]) for counter, id_ in asks]) if asks else []
    return known | {one: _of_plan(one[0], plan, found[one]) for one, plan in zip(asks, plans, strict=True)}


def members(counter: Counter, id_: str, value: int, within: Limits) -> dict[str, int]:
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


def judged(call: Call, write: Write, counter: Counter, id_: str, amount: int, debt: int) -> Write:
    """The update that moves a tally by `amount`, on condition that it fits, or goes beyond by a `debt` at most. A
    refusal returns the old item."""
    if not declared(counter).bound(counter.start, amount)[1]:
        return write  # nothing is looked at for what every number takes
    within = of(call, counter, id_).beyond(debt)
    limit, condition = within.bound(counter.start, amount)
    write["ExpressionAttributeValues"] |= {":limit": {"N": str(limit)}}
    write |= {"ConditionExpression": condition, "ReturnValuesOnConditionCheckFailure": "ALL_OLD"}
    if not counter.own_limits:
        return write
    if within.plan.get(PLAN) != within.there:  # the item has no copy yet
        write = items.beside(write, sets=within.plan, removed=not_of(within.plan))
    return items.only_if(write, {PLAN: within.there})


def key(counter: Counter, id_: str) -> Item:
    """Returns the key of the item that has the limits of a tally; of an id without a period, the override's key."""
    return keys.key(counter.partition_start + id_, counter.sort_key)


def _items(call: Call, wanted: list[Item]) -> list[Item]:
    """The items of these keys, in order; each empty if there is none."""
    return queries.get_each(call, call.store.settings.counts_table, wanted)


def _of_plan(counter: Counter, plan: Mapping[str, Any], item: Mapping[str, Any]) -> Limits:
    """Returns the limits by the override, for the `item` of a period that has no copy of it. They are not cached: the
    next write is to copy them."""
    return said(counter, plan if PLAN in plan else NO_PLAN)._replace(there=item.get(PLAN))


def _is_mark(there: Item) -> bool:
    return str(there["S"]).startswith(MARK)


def said(counter: Counter, item: Mapping[str, Any]) -> Limits:
    """Returns the limits of an item. If the counter was given a ceiling since, the floor of an id does not hold."""
    plan = {name: item[name] for name in (PLAN, own_name(counter)) if name in item}
    return Limits(
        None if counter.floor is None else items.number(plan, FLOOR, counter.floor),
        None if counter.ceiling is None else items.number(plan, CEILING, counter.ceiling),
        plan,
    )


def _remember(call: Call, counter: Counter, id_: str, item: Mapping[str, Any]) -> Limits:
    """What the tally's own item says: the next write of this process goes by it."""
    known, within = call.store.limits, said(counter, item)._replace(there=item.get(PLAN))
    if len(known) >= REMEMBERED_MAX:
        known.clear()
    known[counter.name, id_] = within
    return within
