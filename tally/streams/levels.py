"""The thresholds of numbers that are spread over shards, or rolled up.

No record shows the sum of several shards. So the ledger has a level for each number: the highest threshold that the
number has reached. If a run of records moves a number upwards, the bookkeeper reads the level, and then the sum. Each
threshold between the level and the sum is an event. The events commit with the new level, on condition that the level
has not changed. A level never falls, so each threshold is one event. The level rises before the checkpoint moves, so a
run that is repeated makes no second event.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from itertools import chain

from .. import observe
from ..counter import Counter
from ..counting import tallies
from ..counting.receipts import end_of_day_s
from ..dynamo import clock, items, keys, queries
from ..dynamo.client import Call, map_in_threads
from ..dynamo.transactions import try_commit
from ..errors import StoreBusyError
from . import crossings
from .events import Event
from .fold import Effect
from .record import MALFORMED_ERRORS, CounterIndex

LEVEL_KEPT_S = 376 * 24 * 3600  # a year, which is the longest period, and 10 days more
TURNS_MAX = 8  # tries to raise a level; a try fails only if another run raises the level at the same time


def raise_levels(call: Call, declared: CounterIndex, effects: Iterable[Effect]) -> list[Event]:
    """Raises the levels of the numbers that these effects move upwards, and returns the events.

    If it raises StoreBusyError, or what botocore's errors map to, the consumer repeats the run.
    """
    moved_up = dict.fromkeys((effect.counter, effect.id) for effect in effects if effect.observed > 0)
    of_sums = [
        (counter, id_)
        for name, id_ in moved_up
        if (counter := declared.by_name[name]).notify is not None and not counter.has_version
    ]
    return list(chain.from_iterable(map_in_threads(partial(_raise_level, call), of_sums)))


def _raise_level(call: Call, tally: tuple[Counter, str]) -> list[Event]:
    counter, id_ = tally
    assert counter.notify is not None
    settings = call.store.settings
    key = keys.key(f"LEVEL#{counter.name}", keys.tally_digest(counter.name, id_))
    for _ in range(TURNS_MAX):
        item = queries.get(call.store.client, settings.ledger_table, key)
        try:
            level = items.int_attribute(item, "level", counter.start)
            value = tallies.read(call, counter, id_)  # read after the level, so the sum is not older than the level
        except MALFORMED_ERRORS:  # somebody broke an item of this sum by hand; the run goes on with other numbers
            observe.logger.exception("the sum was not read", extra={"tally": f"{counter.name}/{id_}"})
            return []
        crossed = crossings.crossings_between(counter.notify, level, value) if value > level else []
        if not crossed:
            return []
        events = [  # a threshold in 40 digits, so that the texts sort as the numbers do
            crossings.crossing_event(counter, id_, one, f"{one.threshold:040}", clock.now_s(), value) for one in crossed
        ]
        until_s = end_of_day_s(int(clock.now_s()) + LEVEL_KEPT_S)
        expiration: items.Values = {} if counter.period is None else {"expiration": until_s}
        values: items.Values = {"level": crossed[-1].threshold, "target": id_, **expiration}
        raised = items.update_write(settings.ledger_table, key, values, expected={"level": item.get("level")})
        if try_commit(call.store, [raised, *(event.as_write(settings) for event in events)]):
            return events
    raise StoreBusyError("The level of a number keeps moving.")
