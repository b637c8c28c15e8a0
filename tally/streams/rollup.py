"""The rollup: receipts and children that were written alone are added to their tallies.

The rollup stamps the tally with the minute that the bookkeeper books the receipt or the child on: both halves meet. It
also notes on the tally by how much it moved it for the receipts of each day (drift/rebuild.py).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ..counter import Counter
from ..counting import periods, tallies
from ..counting.children import CREATED_AT
from ..counting.tallies import TOMBSTONE
from ..dynamo.client import Call
from ..dynamo.keys import minute_of
from ..dynamo.transactions import Write
from .fold import BatchContext, Effect, Run, StreamConsumer
from .record import (
    INSERT,
    TRUE_ATTRIBUTE,
    CounterIndex,
    Image,
    PoisonRecordError,
    Record,
    accepted_receipt,
    amounts_of,
    booking_minute_of,
    event_name,
)

ITEMS_MAX = 99  # DynamoDB takes 100 in a transaction; one is the checkpoint


def read_receipt(declared: CounterIndex, record: Record) -> Sequence[Effect]:
    """A receipt of what was written alone: its amounts, on its minute. One that replaces an expired one (MODIFY) is
    new. A declaration may have changed since it was written."""
    image = accepted_receipt(record)
    if image is None or image.get("rollup") != TRUE_ATTRIBUTE:
        return ()
    amounts = amounts_of(image, alone=True)
    for name, id_, _ in amounts:
        if not require_declared(declared, name, id_).may_roll_up:
            raise PoisonRecordError(f"{name} is not rolled up, as it is declared now")
    return receipt_effects(declared, amounts, record, image)


def require_declared(declared: CounterIndex, name: str, id_: str) -> Counter:
    """The counter of a tally. Raises PoisonRecordError if there is none, or it has no such period."""
    counter = declared.by_name.get(name)
    if counter is None:
        raise PoisonRecordError(f"the counter {name[:64]!r} is not declared")
    if not periods.is_valid_tally_id(counter, id_):
        raise PoisonRecordError(f"{name} has no such period, as it is declared now")
    return counter


def receipt_effects(
    declared: CounterIndex,
    amounts: Iterable[tuple[str, str, int]],
    record: Record,
    image: Image,
    day: int | None = None,
) -> tuple[Effect, ...]:
    """The amounts of a receipt, on its minute. `day`: of the effects; None: the day of the receipt's stamp."""
    stamped = minute_of(image)
    if stamped is None:
        raise PoisonRecordError(f"at cannot be {image.get('at', 'missing')}")
    at = booking_minute_of(image, declared.minute_made(record))
    day = stamped // tallies.MINUTES_PER_DAY if day is None else day
    return tuple([Effect(name, id_, at, amount, day=day) for name, id_, amount in amounts])


def read_count(declared: CounterIndex, record: Record) -> Sequence[Effect]:
    """A child that was written alone: one, on its minute."""
    if event_name(record) != INSERT:
        return ()
    image = record["dynamodb"]["NewImage"]
    if image.get("rollup") != TRUE_ATTRIBUTE or TOMBSTONE in image:
        return ()
    prefix, _, id_ = record["dynamodb"]["Keys"]["PK"]["S"].partition("#")
    sort_key = record["dynamodb"]["Keys"]["SK"]["S"]
    owners = [counter for start, counter in declared.children.get(prefix, ()) if sort_key.startswith(start)]
    if not owners:
        refuse_orphan(image)
    at = declared.minute_made(record)
    for counter in owners:
        if not counter.may_roll_up or counter.max_shards == 1:
            raise PoisonRecordError(f"{counter.name} is not rolled up, as it is declared now")
    return tuple(Effect(counter.name, id_, at, 1) for counter in owners)


def refuse_orphan(image: Image) -> None:
    """Raise PoisonRecordError for a child that was written alone. An item of the team's own is no child."""
    if image.get("rollup") == TRUE_ATTRIBUTE and CREATED_AT in image:
        raise PoisonRecordError("no counter is declared that counts this child")


def shard_of(counter: Counter, place: BatchContext) -> int:
    """The tally shard that a stream shard adds to. For children never the first: that would make a post."""
    children = place.table == "counts"
    return 1 + place.bucket % (counter.max_shards - 1) if children else place.bucket % counter.max_shards


@dataclass
class TallyRun(Run):
    """A run that adds to tallies. It ends where one item would need two minutes. Around midnight it notes two days,
    because the clocks of writers differ."""

    days: dict[tuple[str, str], dict[int, int]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(int)))
    """By tally, what is for the receipts of which day."""

    def has_room_for(self, effects: Sequence[Effect]) -> bool:
        new = 0
        for effect in effects:
            there = self.sums.get((effect.counter, effect.id))
            new += there is None
            if there is not None and (there.minute != effect.minute or self._skips_a_day(effect)):
                return False
        return len(self.sums) + len(self.dead_letters) + new <= ITEMS_MAX

    def _skips_a_day(self, effect: Effect) -> bool:
        """Whether its day does not follow those that its tally has."""
        return any(abs(day - effect.day) > 1 for day in self.days[effect.counter, effect.id])

    def add(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            self._add((effect.counter, effect.id), effect)
            self.days[effect.counter, effect.id][effect.day] += effect.expected

    @property
    def is_full(self) -> bool:
        return super().is_full or len(self.sums) + len(self.dead_letters) >= ITEMS_MAX

    def writes(self, call: Call, declared: CounterIndex) -> list[Write]:
        updates: list[Write] = []
        for effect in self.sums.values():
            counter = declared.by_name[effect.counter]
            days = {day: amount for day, amount in self.days[effect.counter, effect.id].items() if amount}
            assert counter.may_roll_up, "its changes depend on its number"
            assert sum(days.values()) == effect.expected
            if days:
                shard = shard_of(counter, self.place)
                assert 0 <= shard < counter.max_shards
                assert shard or not counter.counts_children, "it would make a post"
                by = tallies.REPAIR_NONCE_START if self.place.is_drift_exempt else tallies.ROLLUP_NONCE_START
                add = tallies.add_write(
                    call, counter, effect.id, shard, effect.expected, effect.minute, nonce_prefix=by
                )
                updates.append({"Update": add if -1 in days else tallies.with_day_notes(add, days)})
        return updates


CONSUMER = StreamConsumer("rollup", {"receipts": read_receipt, "counts": read_count}, TallyRun)
