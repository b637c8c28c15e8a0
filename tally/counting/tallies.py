"""Reads the tally of one id, and makes the writes that move the tally."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ..counter import Counter
from ..dynamo import clock
from ..dynamo.client import REQUEST_S_MAX, Call
from ..dynamo.items import extend_update
from ..dynamo.keys import Item
from ..dynamo.queries import partition_items
from ..dynamo.transactions import Write, commit_change, sleep_or_raise_busy
from ..errors import ChangeRefusedError, LimitReachedError, TallyError
from ..observe import logger
from . import limits, periods
from .limits import Limits

ROLLUP_NONCE_PREFIX, REPAIR_NONCE_PREFIX, REMOVAL_NONCE_PREFIX = "+", "~", "-"
"""The start of the nonce of a tally item that the rollup, a repair or the removal of a child moved."""
TOMBSTONE = "gone"
"""The attribute of a tombstone: the tally of a removed parent, or the item of a spilled child that was removed."""
START_ATTRIBUTE = "start"
"""The attribute of a tally item with the start that was declared at its first write; missing if this start was 0."""
MINUTES_PER_DAY = 24 * 60
DAY_NOTES_KEPT = 9  # a tally has a `day_note` of so many days: a spilled receipt's 8 days lie in 9 days of UTC
OLD_DAY_NOTES_REMOVED = 12  # a write also removes the notes of so many earlier days; older notes stay


class Tally(NamedTuple):
    """One tally: a counter and an id."""

    counter: Counter
    id: str

    @property
    def partition(self) -> str:
        """The partition key of all shards, such as `VID#9f3a`. Spread and breaker know a tally by this key."""
        return self.counter.partition_start + self.id


class State(NamedTuple):
    """The number of an unsharded counter, and the version that each write of the item increments (0: no write yet)."""

    value: int
    version: int
    has_number: bool = True
    """Whether the item has a number. If False, only writes of an override have incremented the version."""


def read(call: Call, counter: Counter, id_: str) -> int:
    """Returns the number of `id_` by a strongly consistent read; the counter's `start` if nothing was counted."""
    return sum_of_shards(counter, read_shards(call, counter, id_))


def read_shards(call: Call, counter: Counter, id_: str) -> list[Item]:
    """Returns the items of a tally: its shards, and what a person may have put between them, such as `META#3x`."""
    table, partition = call.store.settings.counts_table, counter.partition_start + id_
    return list(partition_items(call.store, table, partition, *counter.shard_range))


def read_numbered_shards(call: Call, counter: Counter, id_: str) -> dict[int, Item]:
    """Returns the shards of a tally by shard number, without other items that lie between the shards."""
    numbered = ((counter.shard_of(item["SK"]["S"]), item) for item in read_shards(call, counter, id_))
    return {shard: item for shard, item in numbered if shard is not None}


def read_counters(call: Call, counters: Sequence[Counter], id_: str) -> list[int]:
    """Returns the number of `id_` in each counter, in order. The counters share a prefix, so one Query is enough."""
    ranges = [counter.shard_range for counter in counters]
    low, high = min(low for low, _ in ranges), max(high for _, high in ranges)
    table, partition = call.store.settings.counts_table, counters[0].partition_start + id_
    in_range = list(partition_items(call.store, table, partition, low, high))
    return [
        sum_of_shards(counter, (item for item in in_range if first <= item["SK"]["S"] <= last))
        for counter, (first, last) in zip(counters, ranges, strict=True)
    ]


def sum_of_shards(counter: Counter, items: Iterable[Item]) -> int:
    """Returns the sum over all shards; `start` if no shard has a number, 0 if the parent is removed.

    Shards above the present `max_shards` count, too: an earlier declaration may have had more. The sum is not a
    snapshot, so changes during the read may be missing. If a sum of children is below 0 for that reason, returns 0.
    """
    shards = [item for item in items if counter.shard_of(item["SK"]["S"]) is not None]
    numbers = [stored_number(counter, item, 0) for item in shards if counter.attribute in item]
    number = 0 if any(TOMBSTONE in item for item in shards) else sum(numbers) if numbers else counter.start
    return max(0, number) if counter.counts_children else number


def stored_number(counter: Counter, item: Mapping[str, Any], missing: int) -> int:
    """Returns the number in an item; `missing` if the item has no number. Cuts off a fraction, which only an edit by
    hand stores, so that the number can be read while drift reports the edit."""
    number = item.get(counter.attribute)
    return missing if number is None else int(number["N"].partition(".")[0])


def read_state(call: Call, counter: Counter, id_: str) -> State:
    """Returns the number (as `sum_of_shards`) and the version of an unsharded counter by a strongly consistent read."""
    shards = read_shards(call, counter, id_)
    first = next((item for item in shards if item["SK"]["S"] == counter.sort_key), {})
    return state_of(counter, first)._replace(value=sum_of_shards(counter, shards))


def state_of(counter: Counter, item: Mapping[str, Any]) -> State:
    """Returns number and version in an item of an unsharded counter. An empty item has the number `start` and version
    0. The tally of a removed parent has the number 0."""
    number = 0 if TOMBSTONE in item else stored_number(counter, item, counter.start)
    return State(number, int(item.get("version", {"N": "0"})["N"]), counter.attribute in item)


def with_value(call: Call, counter: Counter, id_: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the answer to a change with `value`: the number after the change, by a strongly consistent read.

    The read costs 1 RCU for each 4 KB of shards. The number is of the period in which the change counted, even if the
    next period has begun. It may lack spilled changes, and changes during the read. The change is counted, so this
    function raises no error. It leaves `value` out if the change is visible soon, if the period is no longer kept, or
    if the read fails or has no time left.
    """
    tally_id = periods.tally_id_of_answer(id_, body)
    has_time = call.deadline_s - call.store.clock() >= REQUEST_S_MAX
    if body.get("visible") != "now" or not has_time or not periods.is_kept(counter, tally_id, clock.now_s()):
        return dict(body)
    try:
        return {**body, "value": read(call, counter, tally_id)}
    except TallyError as error:
        logger.info("value not read", exc_info=error)
        return dict(body)


def minute_now(call: Call) -> int:
    """Returns the current minute, counted since 1970. Each change stores its minute."""
    return int(clock.now_s() // call.store.settings.minute_s)  # as settings.minute_of, which would cost a call


def add_write(
    call: Call,
    counter: Counter,
    id_: str,
    shard: int,
    amount: int,
    minute: int,
    *,
    nonce_prefix: str = "",
    debt: int = 0,
) -> Write:
    """Returns the update that adds `amount` to one shard, within the counter's limits, or beyond the limits by `debt`.

    The update stores the minute, and a new nonce, by which the bookkeeper distinguishes the update from an edit by
    hand. `nonce_prefix`: ROLLUP_NONCE_PREFIX, REPAIR_NONCE_PREFIX, `removal_nonce(pair)`, or "" for any other change.
    After REPAIR_NONCE_PREFIX the nonce has the amount (is_repair_nonce). The update makes a missing shard. If a limit
    refuses the update, DynamoDB returns the old item.
    """
    nonce_start = f"{nonce_prefix}{amount}." if nonce_prefix == REPAIR_NONCE_PREFIX else nonce_prefix
    write = _move_write(call, counter, id_, shard, amount, minute, nonce_start)
    return limits.with_limit_condition(call, write, counter, id_, amount, debt) if counter.is_conditional else write


def commit_within_limits(
    call: Call,
    counter: Counter,
    id_: str,
    amount: int,
    writes: Callable[[int], Sequence[Write]],
    receipt: Write | None = None,
    *,
    index: int = 0,
    may_spill: bool = False,
    debt: int = 0,
    same_period: bool = False,
) -> None:
    """Commits `writes(shard)` as commit_change does, and repeats this with new limits if the cached limits were stale.

    `index`: the index in `writes` of the write that moves the tally by `amount`. `debt`, `same_period`: as in
    `limit_error`. Raises LimitReachedError, ChangeRefusedError for a write before `index`, and as commit_change does.
    """
    retries = None
    while True:
        try:
            return commit_change(call, counter, id_, writes, receipt, may_spill=may_spill)
        except ChangeRefusedError as refused:
            if any(old is not None for old in refused.old_items[:index]):
                raise
            old = refused.old_items[index] or {}
            error = limit_error_after(call, counter, id_, old, amount, debt, same_period=same_period)
            if error:
                raise error from None
        retries = retries or call.retries()
        sleep_or_raise_busy(retries)


def _move_write(
    call: Call, counter: Counter, id_: str, shard: int, amount: int, minute: int, nonce_start: str = ""
) -> Write:
    """Returns the update that adds `amount`, without a condition. The first write also stores the start that it added.
    The bookkeeper subtracts the stored start from the number, because a deploy may change the declared start."""
    assert nonce_start in ("", ROLLUP_NONCE_PREFIX) or (
        nonce_start[0] in (REMOVAL_NONCE_PREFIX, REPAIR_NONCE_PREFIX) and nonce_start[-1] == "."
    ), "unknown nonce"
    nonce = nonce_start + secrets.token_urlsafe(6)  # has no `+`, `~` or `.`, which mark a start (`-` only with a `.`)
    write: Write = {
        "TableName": call.store.settings.counts_table,
        "Key": key(counter, id_, shard),
        "UpdateExpression": "SET #at = :at, nonce = :nonce ADD #number :amount",
        "ExpressionAttributeNames": {"#at": "at", "#number": counter.attribute},
        "ExpressionAttributeValues": {":at": {"N": str(minute)}, ":nonce": {"S": nonce}, ":amount": {"N": str(amount)}},
    }
    if counter.has_version:
        write["UpdateExpression"] = (
            "SET #at = :at, nonce = :nonce, #number = if_not_exists(#number, :start) + :amount ADD version :one"
        )
        write["ExpressionAttributeValues"] |= {":start": {"N": str(counter.start)}, ":one": {"N": "1"}}
    assert counter.has_version or not counter.start, "each shard would have the start"
    if counter.start:
        write["UpdateExpression"] = f"SET #start = if_not_exists(#start, :start), {write['UpdateExpression'][4:]}"
        write["ExpressionAttributeNames"] |= {"#start": START_ATTRIBUTE}
    return with_expiry(write, counter, id_)


def with_day_notes(write: Write, amounts_by_day: Mapping[int, int]) -> Write:
    """Returns an update of `add_write` that also notes what is added for the receipts of each day, and removes old
    notes. `amounts_by_day`: by the day of the receipts since 1970."""
    last = max(amounts_by_day)
    assert last - DAY_NOTES_KEPT < min(amounts_by_day), "the write would remove a note that it sets"
    old = [last - DAY_NOTES_KEPT - days_ago for days_ago in range(OLD_DAY_NOTES_REMOVED)]
    amounts = {day_note(day): amount for day, amount in amounts_by_day.items()}
    return extend_update(write, adds=amounts, remove=map(day_note, old))


def day_note(day: int) -> str:
    """Returns the attribute that tells a rebuild what was added for a day's receipts. No counter may declare it."""
    return f"day#{day}"


def limit_error(
    counter: Counter, bounds: Limits, id_: str, value: int, amount: int, debt: int = 0, *, same_period: bool = False
) -> LimitReachedError:
    """Makes the error for an `amount` that does not fit at `value`, the present number, with the amount that is left.

    The amount left includes `debt`: how far the amount may go beyond the limit. The amount left is below 0 if
    `value` is further beyond the limit. If the amount would fit into an empty period, the error says in how many
    seconds the next period begins, but not if `same_period`: the amount counts only in the period of `id_` (a void).
    """
    members: dict[str, int] = {}
    if not same_period and counter.period is not None and bounds.with_debt(debt).fits(counter.start + amount):
        members["retry_after_s"] = periods.seconds_to_next(counter, id_, clock.now_s())
    down = amount < 0 and bounds.floor is not None
    limit = (bounds.floor if down else bounds.ceiling) or 0
    left = (value - limit if down else limit - value) + debt
    if counter.limit_overrides:
        members["limit"] = limit
    detail = f"{left} left." if down else f"There is room for {left} more."
    detail = detail if left >= 0 else f"It is {-left} beyond its limit."
    return LimitReachedError(f"{detail} Nothing was counted.", left=left, **members)


def limit_error_after(
    call: Call, counter: Counter, id_: str, old: Mapping[str, Any], amount: int, debt: int, *, same_period: bool
) -> LimitReachedError | None:
    """Returns the error for an `add_write` whose condition failed on the item `old`. Returns None if the limits of
    `old` allow the amount: the cached limits were stale, and this call has removed or replaced them."""
    bounds, value = limits.limits_from_item(call, counter, id_, old), state_of(counter, old).value
    if counter.limit_overrides and bounds.with_debt(debt).allows(value, amount):
        return None
    return limit_error(counter, bounds, id_, value, amount, debt, same_period=same_period)


def receipt_facts(counter: Counter, id_: str, amount: int, minute: int) -> dict[str, Item]:
    """Returns the attributes of a receipt that describe its change to the consumers of the receipts' stream."""
    return {
        "counter": {"S": counter.name}, "target": {"S": id_}, "amount": {"N": str(amount)}, "at": {"N": str(minute)},
    }  # fmt: skip


def batch_receipt_facts(moved: Mapping[Tally, int], pending: Mapping[Tally, int], minute: int) -> dict[str, Item]:
    """Returns a batch receipt's attributes: in `changes` what its transaction moves, in `soon` what the rollup adds."""
    attributes: dict[str, Item] = {"at": {"N": str(minute)}}
    for name, sums in (("changes", moved), ("soon", pending)):
        if sums:
            attributes[name] = {"M": {
                counter: {"M": {id_: {"N": str(amount)} for id_, amount in ids.items()}}
                for counter, ids in by_counter(sums).items()
            }}  # fmt: skip
    return attributes


def by_counter(sums: Mapping[Tally, int]) -> dict[str, dict[str, int]]:
    """Returns the amounts by the name of the counter, and for each counter by id."""
    amounts: dict[str, dict[str, int]] = {}
    for (counter, id_), amount in sums.items():
        amounts.setdefault(counter.name, {})[id_] = amount
    return amounts


def assign_write(
    call: Call, counter: Counter, id_: str, state: State, value: int, minute: int, bounds: Limits
) -> Write:
    """Returns the update that sets the number of an unsharded counter to `value`, on condition that the item has the
    version of `state`. Each write of the number or of the override increments the version. So if the condition holds,
    `bounds`, the limits that the caller read after the state, are still valid."""
    assert counter.has_version, "shards 1, 2 … would keep their numbers"
    assert bounds.fits(value)
    write = _move_write(call, counter, id_, 0, value - state.value, minute)
    if state.version:
        write["ExpressionAttributeValues"] |= {":expected": {"N": str(state.version)}}
    condition = "version = :expected" if state.version else "attribute_not_exists(version)"
    return write | {"ConditionExpression": condition, "ReturnValuesOnConditionCheckFailure": "ALL_OLD"}


def with_expiry(write: Write, counter: Counter, id_: str) -> Write:
    """Returns the update with an expiration, if the counter keeps its tallies only for some periods. If TTL has removed
    a tally and a late update makes its item again, TTL removes the new item, too."""
    if counter.keep_periods is not None:
        write["UpdateExpression"] = write["UpdateExpression"].replace("SET ", "SET expiration = :expires, ", 1)
        write["ExpressionAttributeValues"] |= {":expires": {"N": str(periods.expires_s(counter, id_))}}
    return write


def key(counter: Counter, id_: str, shard: int) -> Item:
    """Returns the key of one shard's item."""
    sort_key = counter.shard_key(shard) if shard else counter.sort_key  # saves a call for shard 0, the usual shard
    return {"PK": {"S": counter.partition_start + id_}, "SK": {"S": sort_key}}


def removal_nonce(pair: str) -> str:
    """Returns the start of the nonce of a tally item that a removal moved. `pair`: the pair name (children.py)."""
    return f"{REMOVAL_NONCE_PREFIX}{pair}."


def is_repair_nonce(nonce: str, moved: int) -> bool:
    """Returns whether a repair wrote this nonce and moved a tally by `moved`. If somebody put an old item back by hand,
    the nonce may be a repair's, but has another amount."""
    return nonce.startswith(f"{REPAIR_NONCE_PREFIX}{moved}.")
