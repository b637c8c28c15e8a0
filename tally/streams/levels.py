"""The thresholds of numbers that are spread over shards, or rolled up: nobody sees such a sum move.

So the ledger has the level of each: the highest threshold that it has reached. After a run of records that saw one move
upwards, the bookkeeper reads the level, and then the sum. What the sum has reached above the level is an event, which
commits with the new level, on condition that the level is as it was. A level never falls, so a threshold is one event
for good. It rises before the checkpoint moves: a run that is done again finds it risen.
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

PERIOD_KEPT_S = 376 * 24 * 3600  # after it rose last: the longest period is over, and what was written late is read
TURNS_MAX = 8  # each time another run was first: it has read the same sum, or a larger one


def raise_levels(call: Call, declared: CounterIndex, effects: Iterable[Effect]) -> list[Event]:
    """Raise the levels of what these effects saw move upwards, and return the events. Raises StoreBusyError, or what
    botocore's errors map to: then the run is done again."""
    seen = dict.fromkeys((effect.counter, effect.id) for effect in effects if effect.observed > 0)
    of_sums = [
        (counter, id_)
        for name, id_ in seen
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
            value = tallies.read(call, counter, id_)  # after the level: it has all that earlier runs have seen
        except MALFORMED_ERRORS:  # somebody edited one of its items: no other number waits for it
            observe.logger.exception("the sum was not read", extra={"tally": f"{counter.name}/{id_}"})
            return []
        crossed = crossings.crossings_between(counter.notify, level, value) if value > level else []
        if not crossed:
            return []
        events = [
            crossings.crossing_event(counter, id_, one, f"{one.threshold:040}", clock.now_s(), value) for one in crossed
        ]
        values: items.Values = {"level": crossed[-1].threshold, "target": id_, **_expiration(counter)}
        raised = items.update_write(settings.ledger_table, key, values, expected={"level": item.get("level")})
        if try_commit(call.store, [raised, *(event.as_write(settings) for event in events)]):
            return events
    raise StoreBusyError("The level of a number keeps moving.")


def _expiration(counter: Counter) -> items.Values:
    """The TTL of the level of a period; every other one stays."""
    return {} if counter.period is None else {"expiration": end_of_day_s(int(clock.now_s()) + PERIOD_KEPT_S)}
