"""Reads across counters: many numbers at once, and one as a badge."""

import time
from collections.abc import Mapping
from typing import Any

import counters
import operations
from tally import fields, pages
from tally.api import badge
from tally.api.entry import Answer, Entry
from tally.api.texts import Text
from tally.counter import MAX_AGE_DEFAULT_S, Counter
from tally.counting import many, periods, tallies
from tally.counting.tallies import Tally
from tally.dynamo.client import Call
from tally.errors import CallerError, ForbiddenError, NotFoundError, problem
from tally.fields import Kind
from tally.streams import watermark

Asked = tuple[str, str]


def get_tallies(call: Call, *, of: list[Asked]) -> Answer:
    """The numbers that anyone may read, in the order asked; an error in the place of any other."""
    found = {asked: _tally(call, *asked, anyone=True) for asked in of}
    ages_s = [one.counter.kept_s for one in found.values() if isinstance(one, Tally)]
    return Answer(_read(call, of, found), max_age_s=min(ages_s, default=MAX_AGE_DEFAULT_S))


def get_any_tallies(call: Call, *, of: list[Asked]) -> Answer:
    """The numbers of any counters, in the order asked; an error in the place of one that there cannot be."""
    return Answer(_read(call, of, {asked: _tally(call, *asked, anyone=False) for asked in of}))


def get_counter_badge(call: Call, *, counter: Counter, id: str) -> Answer:
    """The value of a counter that anyone may read, as a picture; in the current period, if it has periods."""
    if not counter.public:
        raise _private(counter)
    picture = badge.svg(counter.name, tallies.read(call, counter, periods.tally_id(counter, id, time.time())))
    return Answer(Text(picture, operations.GET_COUNTER_BADGE.media_type, counter.kept_s))


def _tally(call: Call, name: str, id_: str, *, anyone: bool) -> Tally | CallerError:
    """The tally that `name:id_` names; the reason if the caller cannot read it."""
    counter = handler.counters.get(name)
    if counter is None:
        return NotFoundError(f"There is no counter {name[:64]!r}.", field="of")
    if anyone and not counter.public:
        return _private(counter)
    kind = Kind.LISTED_PAGE if counter.pages else Kind.ID
    context = fields.Context(call.caller is None, call.store.settings.page_hosts, handler.counters, handler.pages)
    try:
        return Tally(counter, periods.tally_id(counter, fields.check(kind, id_, "of", context), time.time()))
    except CallerError as error:
        return error


def _private(counter: Counter) -> ForbiddenError:
    return ForbiddenError(f"Only callers with the scope tally/read may read {counter.name}.")


def _read(call: Call, of: list[Asked], found: Mapping[Asked, Tally | CallerError]) -> dict[str, Any]:
    """The answer. Each tally is read once, however often it was asked for."""
    wanted = {one for one in found.values() if isinstance(one, Tally)}
    rolled_up = any(tally.counter.soon for tally in wanted)
    as_of = watermark.as_of(call) if rolled_up else None  # before the numbers, which may then be newer but never older
    numbers = many.read(call, wanted)

    def entry(name: str, id_: str) -> dict[str, Any]:
        made, tally = {"counter": name, "id": id_}, found[name, id_]
        if isinstance(tally, CallerError):
            return {**made, "error": problem(tally)}
        dated = {"as_of": as_of} if tally.counter.soon else {}
        return {**made, **periods.shown(tally.id), "value": numbers[tally], **dated}

    return {"tallies": [entry(*asked) for asked in of]}


handler = Entry(
    {
        operations.GET_TALLIES: get_tallies,
        operations.GET_ANY_TALLIES: get_any_tallies,
        operations.GET_COUNTER_BADGE: get_counter_badge,
    },
    counters=counters.COUNTERS,
    pages=pages.declared(vars(counters)),
)
