"""The tally of one id: its name, its reads, and the write that moves it."""

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

ROLLUP_NONCE_START, REPAIR_NONCE_START = "+", "~"
"""How the nonce of a tally item begins that the rollup or a repair moved."""
TOMBSTONE = "gone"
"""The attribute that marks what is there no more: the tally of a removed parent, and what the removal of a child leaves
of one that was written alone."""
START_ATTRIBUTE = "start"
"""The attribute of a tally item that says with which start its number began; none if that was 0."""
MINUTES_PER_DAY = 24 * 60  # minutes
DAY_NOTES_KEPT = 9  # days of notes on a tally: receipts that are written alone live 8
OLD_DAY_NOTES_REMOVED = 12  # notes that a write removes beyond those, whether they are there or not


class Tally(NamedTuple):
    """One tally: what is counted, and of which id."""

    counter: Counter
    id: str

    @property
    def partition(self) -> str:
        """The partition key that all its shards share: `VID#9f3a`. Its contention is remembered under this name."""
        return self.counter.partition_start + self.id


class State(NamedTuple):
    """The number of an unsharded counter, and the version that every write of it increments (0: never written)."""

    value: int
    version: int
    has_number: bool = True
    """Whether it has a number: an override makes a version, too."""


def read(call: Call, counter: Counter, id_: str) -> int:
    """The tally of `id_`, strongly consistent; `start` if nothing was counted. One Query while its items fit into 1 MB,
    however many shards it has."""
    return sum_of_shards(counter, read_shards(call, counter, id_))


def read_shards(call: Call, counter: Counter, id_: str) -> list[Item]:
    """The items of a tally: its shards, and whatever somebody put between them."""
    table, partition = call.store.settings.counts_table, counter.partition_start + id_
    return list(partition_items(call.store, table, partition, *counter.shard_range))


def read_together(call: Call, counters: Sequence[Counter], id_: str) -> list[int]:
    """The tallies of `id_` under counters that share a prefix, in order: one Query over all their shards."""
    ranges = [counter.shard_range for counter in counters]
    low, high = min(low for low, _ in ranges), max(high for _, high in ranges)
    table, partition = call.store.settings.counts_table, counters[0].partition_start + id_
    in_range = list(partition_items(call.store, table, partition, low, high))
    return [
        sum_of_shards(counter, (item for item in in_range if first <= item["SK"]["S"] <= last))
        for counter, (first, last) in zip(counters, ranges, strict=True)
    ]


def sum_of_shards(counter: Counter, items: Iterable[Item]) -> int:
    """Returns the sum over all shards, also of a counter that had more of them before; `start` if none has a number.

    It is no snapshot: while changes race it may be off by those in flight.

    A tally that counts children is never shown below zero. That of a removed parent is 0.
    """
    shards = [item for item in items if counter.shard_of(item["SK"]["S"]) is not None]
    numbers = [stored_number(counter, item, 0) for item in shards if counter.attribute in item]
    number = 0 if any(TOMBSTONE in item for item in shards) else sum(numbers) if numbers else counter.start
    return max(0, number) if counter.counts_children else number


def stored_number(counter: Counter, item: Mapping[str, Any], missing: int) -> int:
    """The number in an item, `missing` if it has none.

    A fraction, which only a manual edit can bring, is cut off: the number stays readable, and drift reports the edit.
    """
    number = item.get(counter.attribute)
    return missing if number is None else int(number["N"].partition(".")[0])


def read_state(call: Call, counter: Counter, id_: str) -> State:
    """Number and version of a counter that has one shard."""
    of_tally = read_shards(call, counter, id_)
    first = next((item for item in of_tally if item["SK"]["S"] == counter.sort_key), {})
    return state_of(counter, first)._replace(value=sum_of_shards(counter, of_tally))


def state_of(counter: Counter, item: Mapping[str, Any]) -> State:
    """Number and version in an item of an unsharded counter; those of a fresh one if the item is empty. The number of a
    removed parent is 0."""
    number = 0 if TOMBSTONE in item else stored_number(counter, item, counter.start)
    return State(number, int(item.get("version", {"N": "0"})["N"]), counter.attribute in item)


def with_value(call: Call, counter: Counter, id_: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """The answer to a change with `value`: what a strongly consistent read says right after it, 1 RCU.

    It is the number of the tally that the answer names: a replay after midnight reads the period that its change was
    counted in. Changes that wait for the rollup are missing from it, and so may be some that raced with the read.

    The change is counted before the read begins, so nothing here fails it: the answer has no `value` if the change is
    visible soon, if the period is kept no more, or if the number cannot be read or could come too late.
    """
    tally = periods.tally_id_of_answer(id_, body)
    in_time = call.deadline_s - call.store.clock() >= REQUEST_S_MAX
    if body.get("visible") != "now" or not in_time or not periods.is_kept(counter, tally, clock.now_s()):
        return dict(body)
    try:
        return {**body, "value": read(call, counter, tally)}
    except TallyError as error:
        logger.info("the value was not read", exc_info=error)
        return dict(body)


def minute_now(call: Call) -> int:
    """The current minute, which labels a change: whole minutes since 1970."""
    return int(clock.now_s() // call.store.settings.minute_s)  # settings.minute, without a step into another module


def add_write(
    call: Call, counter: Counter, id_: str, shard: int, amount: int, at: int, *, nonce_prefix: str = "", debt: int = 0
) -> Write:
    """The update that adds `amount` to one shard, within the counter's limits, or beyond them by a `debt`.

    It stamps the shard with the minute `at`, and with a nonce that distinguishes it from a manual edit. The nonce
    begins with `nonce_prefix`: ROLLED_UP, REPAIRED, `unliked(pair)`, or nothing; that of a repair has the amount too.
    It makes the shard if there is none. A refusal at a limit returns the old item.
    """
    write = _move_write(
        call,
        counter,
        id_,
        shard,
        amount,
        at,
        f"{nonce_prefix}{amount}." if nonce_prefix == REPAIR_NONCE_START else nonce_prefix,
    )
    return limits.with_limit_condition(call, write, counter, id_, amount, debt) if counter.is_conditional else write


def commit_within_limits(
    call: Call,
    counter: Counter,
    id_: str,
    amount: int,
    writes: Callable[[int], Sequence[Write]],
    receipt: Write | None = None,
    *,
    place: int = 0,
    spills: bool = False,
    debt: int = 0,
    stays: bool = False,
) -> None:
    """Commit `writes(shard)` as transactions.transact does; again, if limits refused them that the tally has not.

    `place`: of the write that moves the tally, by `amount`. `debt`, `stays`: as `limit_error` takes them. Raises
    LimitReachedError, ChangeRefusedError if another write was refused, and what transact raises.
    """
    retries = None
    while True:
        try:
            return commit_change(call, counter, id_, writes, receipt, may_spill=spills)
        except ChangeRefusedError as refused:
            if any(old is not None for old in refused.old_items[:place]):
                raise
            error = limit_error_after(call, counter, id_, refused.old_items[place] or {}, amount, debt, stays=stays)
            if error:
                raise error from None
        retries = retries or call.retries()
        sleep_or_raise_busy(retries)


def _move_write(call: Call, counter: Counter, id_: str, shard: int, amount: int, at: int, by: str = "") -> Write:
    """The update without a condition. Where a number begins with a start, the item says with which: the bookkeeper may
    know another one, as the counter is declared by then."""
    write: Write = {
        "TableName": call.store.settings.counts_table,
        "Key": key(counter, id_, shard),
        "UpdateExpression": "SET #at = :at, nonce = :nonce ADD #number :amount",
        "ExpressionAttributeNames": {"#at": "at", "#number": counter.attribute},
        "ExpressionAttributeValues": {":at": {"N": str(at)}, ":nonce": _nonce(by), ":amount": {"N": str(amount)}},
    }
    if counter.has_version:
        write["UpdateExpression"] = (
            "SET #at = :at, nonce = :nonce, #number = if_not_exists(#number, :start) + :amount ADD version :one"
        )
        write["ExpressionAttributeValues"] |= {":start": {"N": str(counter.start)}, ":one": {"N": "1"}}
    assert counter.has_version or not counter.start, "each shard would begin with the start"
    if counter.start:
        write["UpdateExpression"] = f"SET #start = if_not_exists(#start, :start), {write['UpdateExpression'][4:]}"
        write["ExpressionAttributeNames"] |= {"#start": START_ATTRIBUTE}
    return with_expiry(write, counter, id_)


def with_day_notes(write: Write, days: Mapping[int, int]) -> Write:
    """An update of `add_write` that also notes how much of it is for the receipts of each day; old notes go.

    `days`: amounts by day, in days of DAY minutes since 1970.
    """
    last = max(days)
    assert last - DAY_NOTES_KEPT < min(days), "it would remove its own note"
    old = [last - DAY_NOTES_KEPT - ago for ago in range(OLD_DAY_NOTES_REMOVED)]
    amounts = {day_note(day): amount for day, amount in days.items()}
    return extend_update(write, adds=amounts, remove=map(day_note, old))


def day_note(day: int) -> str:
    """The attribute of a tally item that says what the rollup added for the receipts of a day. No counter has it."""
    return f"day#{day}"


def limit_error(
    counter: Counter, within: Limits, id_: str, value: int, amount: int, debt: int = 0, *, stays: bool = False
) -> LimitReachedError:
    """The refusal of `amount` at `value`, with how much is left; below 0 if the limit came later. `debt`: how far the
    amount may go beyond the limits.

    If the amount fits into a period, it says in how many seconds the next one begins. `stays`: the amount never counts
    in another period, as that of a hold that is settled, and of a void.
    """
    members: dict[str, int] = {}
    if not stays and counter.period is not None and within.with_debt(debt).fits(counter.start + amount):
        members["retry_after_s"] = periods.seconds_to_next(counter, id_, clock.now_s())
    down = amount < 0 and within.floor is not None
    limit = (within.floor if down else within.ceiling) or 0
    left = (value - limit if down else limit - value) + debt
    if counter.own_limits:
        members["limit"] = limit
    said = f"{left} left." if down else f"There is room for {left} more."
    said = said if left >= 0 else f"It is {-left} beyond its limit."
    return LimitReachedError(f"{said} Nothing was counted.", left=left, **members)


def limit_error_after(
    call: Call, counter: Counter, id_: str, old: Mapping[str, Any], amount: int, debt: int = 0, *, stays: bool = False
) -> LimitReachedError | None:
    """Return the refusal of an `add_write` that found the item `old`; None if the cached limits were stale."""
    within, value = limits.limits_after_refusal(call, counter, id_, old), state_of(counter, old).value
    if counter.own_limits and within.with_debt(debt).allows(value, amount):
        return None
    return limit_error(counter, within, id_, value, amount, debt, stays=stays)


def receipt_facts(counter: Counter, id_: str, amount: int, at: int) -> dict[str, Item]:
    """The attributes of a receipt that describe its change to the consumers of the receipts' stream."""
    return {
        "counter": {"S": counter.name},
        "target": {"S": id_},
        "amount": {"N": str(amount)},
        "at": {"N": str(at)},
    }


def batch_receipt_facts(moved: Mapping[Tally, int], waiting: Mapping[Tally, int], at: int) -> dict[str, Item]:
    """The attributes of a receipt of many changes: amounts by counter and id. `waiting`: those that the rollup adds."""
    attributes: dict[str, Item] = {"at": {"N": str(at)}}
    for name, sums in (("changes", moved), ("soon", waiting)):
        if sums:
            attributes[name] = {"M": {
                counter: {"M": {id_: {"N": str(amount)} for id_, amount in ids.items()}}
                for counter, ids in by_counter(sums).items()
            }}  # fmt: skip
    return attributes


def by_counter(sums: Mapping[Tally, int]) -> dict[str, dict[str, int]]:
    """Amounts by the counter's name and the id."""
    amounts: dict[str, dict[str, int]] = {}
    for (counter, id_), amount in sums.items():
        amounts.setdefault(counter.name, {})[id_] = amount
    return amounts


def assign_write(call: Call, counter: Counter, id_: str, seen: State, value: int, at: int, within: Limits) -> Write:
    """The update that moves an unsharded counter to `value` on condition that it has not moved since it was `seen`, nor
    got other limits than those that the value is `within`: an override increments the version, too."""
    assert counter.has_version, "its other shards would keep their numbers"
    assert within.fits(value)
    write = _move_write(call, counter, id_, 0, value - seen.value, at)
    if seen.version:
        write["ExpressionAttributeValues"] |= {":seen": {"N": str(seen.version)}}
    unmoved = "version = :seen" if seen.version else "attribute_not_exists(version)"
    return write | {"ConditionExpression": unmoved, "ReturnValuesOnConditionCheckFailure": "ALL_OLD"}


def with_expiry(write: Write, counter: Counter, id_: str) -> Write:
    """The update, with the TTL of a tally that is kept for some periods: one that comes after DynamoDB has removed the
    tally makes no item that stays."""
    if counter.keep_periods is not None:
        write["UpdateExpression"] = write["UpdateExpression"].replace("SET ", "SET expiration = :expires, ", 1)
        write["ExpressionAttributeValues"] |= {":expires": {"N": str(periods.expires_s(counter, id_))}}
    return write


def key(counter: Counter, id_: str, shard: int) -> Item:
    """The key of one shard's item."""
    sort_key = counter.shard_key(shard) if shard else counter.sort_key  # nearly every write is of shard 0
    return {"PK": {"S": counter.partition_start + id_}, "SK": {"S": sort_key}}


def removal_nonce(pair: str) -> str:
    """The start of the nonce of a tally item that an unlike moved. `pair`: the name that both its halves share."""
    return f"-{pair}."


def is_repair_nonce(nonce: str, moved: int) -> bool:
    """Whether a repair moved a tally item by this, and gave it this nonce. An old image that is put back is none."""
    return nonce.startswith(f"{REPAIR_NONCE_START}{moved}.")


def _nonce(by: str = "") -> Item:
    """A value that no other write of a tally item carries. After `by` it has letters, digits, `-` and `_` only."""
    assert by in ("", ROLLUP_NONCE_START) or (by[0] in f"-{REPAIR_NONCE_START}" and by[-1] == "."), "nobody reads it"
    return {"S": by + secrets.token_urlsafe(6)}
