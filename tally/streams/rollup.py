"""The rollup: it adds spilled changes, from their receipts and children, to their tallies.

The rollup stamps the tally with the minute on which the bookkeeper books the receipt or child, so both halves meet. On
the tally it also notes how much it added for the receipts of each day, so that a rebuild finds lost receipts.
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

ITEMS_MAX = 99  # a transaction takes 100 items; one of them is the checkpoint


def read_receipt(declared: CounterIndex, record: Record) -> Sequence[Effect]:
    """Returns the amounts of a spilled receipt, on its booking minute.

    Raises PoisonRecordError if the counter is not declared, or is now declared so that the rollup adds nothing to it.
    """
    image = accepted_receipt(record)
    if image is None or image.get("rollup") != TRUE_ATTRIBUTE:
        return ()
    amounts = amounts_of(image, only_spilled=True)
    for name, id_, _ in amounts:
        if not require_declared(declared, name, id_).may_roll_up:
            raise PoisonRecordError(f"the rollup does not add to {name}, as it is declared now")
    return receipt_effects(declared, amounts, record, image)


def require_declared(declared: CounterIndex, name: str, id_: str) -> Counter:
    """Returns the counter `name`. Raises PoisonRecordError if it is not declared, or `id_` does not fit its periods."""
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
    """Returns the amounts of a receipt, on its booking minute. `day`: the day in the effects; None: the day of `at`."""
    stamped = minute_of(image)
    if stamped is None:
        raise PoisonRecordError(f"at cannot be {image.get('at', 'missing')}")
    minute = booking_minute_of(image, declared.minute_made(record))
    day = stamped // tallies.MINUTES_PER_DAY if day is None else day
    return tuple([Effect(name, id_, minute, amount, day=day) for name, id_, amount in amounts])


def read_count(declared: CounterIndex, record: Record) -> Sequence[Effect]:
    """Returns 1 for a spilled child, on the minute of its record."""
    if event_name(record) != INSERT:  # a child that replaces a tombstone does not spill
        return ()
    image = record["dynamodb"]["NewImage"]
    if image.get("rollup") != TRUE_ATTRIBUTE or TOMBSTONE in image:
        return ()
    prefix, _, id_ = record["dynamodb"]["Keys"]["PK"]["S"].partition("#")
    sort_key = record["dynamodb"]["Keys"]["SK"]["S"]
    counters = [counter for start, counter in declared.children.get(prefix, ()) if sort_key.startswith(start)]
    if not counters:
        refuse_orphan(image)
    for counter in counters:
        if not counter.may_roll_up or counter.max_shards == 1:  # the rollup does not write the first shard (shard_of)
            raise PoisonRecordError(f"the rollup does not add to {counter.name}, as it is declared now")
    return tuple(Effect(counter.name, id_, declared.minute_made(record), 1) for counter in counters)


def refuse_orphan(image: Image) -> None:
    """Raises PoisonRecordError for a spilled child that no counter counts. Only Tally's children have CREATED_AT."""
    if image.get("rollup") == TRUE_ATTRIBUTE and CREATED_AT in image:
        raise PoisonRecordError("no declared counter counts this child")


def shard_of(counter: Counter, context: BatchContext) -> int:
    """Returns the tally shard that a stream shard adds to. A child never goes to the first shard, because that item is
    the post itself, which the rollup must not make."""
    is_for_children = context.table == "counts"  # receipts have their own table
    return 1 + context.bucket % (counter.max_shards - 1) if is_for_children else context.bucket % counter.max_shards


@dataclass
class TallyRun(Run):
    """A run that adds to tallies. A write stores one minute in a tally, so a tally's second minute needs another run.

    A write also notes on the tally the amounts of each day. Around midnight it notes two days, because writers' clocks
    differ. Days further apart need another run, because a write removes old notes."""

    days: dict[tuple[str, str], dict[int, int]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(int)))
    """By tally and day, the amount for the receipts of the day, or for children (day -1)."""

    def has_room_for(self, effects: Sequence[Effect]) -> bool:
        new = 0
        for effect in effects:
            tally = effect.counter, effect.id
            sum_ = self.sums.get(tally)
            if sum_ is None:
                new += 1
            elif sum_.minute != effect.minute or any(abs(day - effect.day) > 1 for day in self.days[tally]):
                return False
        return len(self.sums) + len(self.dead_letters) + new <= ITEMS_MAX

    def add(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            self._add((effect.counter, effect.id), effect)
            self.days[effect.counter, effect.id][effect.day] += effect.expected

    @property
    def has_room_for_dead_letter(self) -> bool:
        return super().has_room_for_dead_letter and len(self.sums) + len(self.dead_letters) < ITEMS_MAX

    def writes(self, call: Call, declared: CounterIndex) -> list[Write]:
        """Returns the writes that add. A drift-exempt write has a repair's nonce: the bookkeeper does not book it."""
        updates: list[Write] = []
        for effect in self.sums.values():
            counter = declared.by_name[effect.counter]
            days = {day: amount for day, amount in self.days[effect.counter, effect.id].items() if amount}
            assert counter.may_roll_up, "a change of this counter cannot spill"
            assert sum(days.values()) == effect.expected
            if days:
                shard = shard_of(counter, self.context)
                assert 0 <= shard < counter.max_shards
                assert shard or not counter.counts_children, "the write would make a post"
                prefix = tallies.REPAIR_NONCE_PREFIX if self.context.is_drift_exempt else tallies.ROLLUP_NONCE_PREFIX
                tally_change = call, counter, effect.id, shard, effect.expected, effect.minute
                add = tallies.add_write(*tally_change, nonce_prefix=prefix)
                updates.append({"Update": add if -1 in days else tallies.with_day_notes(add, days)})
        return updates


CONSUMER = StreamConsumer("rollup", {"receipts": read_receipt, "counts": read_count}, TallyRun)
