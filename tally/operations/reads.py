"""Read numbers: one, many at once, or one as a picture."""

import functools
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypedDict

from tally import fields
from tally.api import badge, kinds, needs
from tally.api.kind import list_of
from tally.api.kinds import TALLY_OF_LISTED_HOST, DeclaredCounter, Period, ReadId
from tally.api.operation import RATE_100_PER_S, READS, Access, Answer, Call, operation
from tally.api.shapes import Unreadable, Value
from tally.api.texts import Text
from tally.counter import MAX_AGE_DEFAULT_S, Counter
from tally.counting import limits, periods, read_many, tallies
from tally.counting.tallies import Tally
from tally.dynamo import clock
from tally.errors import (
    CallerError,
    ForbiddenError,
    InvalidInputError,
    NotCountedError,
    NotFoundError,
    problem_document,
)
from tally.streams import watermark
from tally.team import scan_state

CounterAndId = tuple[str, str]
CountersAndIds = Annotated[list[CounterAndId], list_of(TALLY_OF_LISTED_HOST, 100)]


class Values(TypedDict):
    """Numbers, in the order of the request. Tally reads each number by itself, so they are not a snapshot."""

    tallies: list[Value | Unreadable]


def _refusal_of_pages(counter: Counter) -> CallerError | None:
    """Returns why this counter cannot be read by an id in a path; None if it can."""
    if not counter.pages:
        return None
    return InvalidInputError(f"{counter.name} counts pages: GET /visits reads them by their URL.", field="counter")


@operation(
    "GET /counters/{counter}/{id}",
    access=Access.READ,
    audience_field="read",
    throttle=READS,
    throttle_if_opened=RATE_100_PER_S,  # each counter that anyone may read has a route with a rate of its own
    short_route="GET {path}",
    has_short_route=lambda counter: not counter.counts_children,  # the same route reads the caller's own child
    refusal_for=_refusal_of_pages,
    needs=lambda counters: (
        needs.on_counts(counters, "Query") | needs.to_read_as_of(counters) | needs.to_read_limits(counters)
    ),
    raises=[NotFoundError, NotCountedError],
    example={"counter": "stock", "id": "7c20", "value": 98, "version": 7, "limit": 0, "left": 98},
    is_cacheable=True,
)
def get_counter(call: Call, *, counter: DeclaredCounter, id: ReadId, period: Period | None = None) -> Answer[Value]:
    """The value of a counter

    A counter with periods answers 404 for a period that is no longer kept. A counter of items answers 409 until the
    existing items are counted (`tally scan`).
    """
    tally = Tally(counter, periods.tally_id(counter, id, clock.now_s(), period))
    # `as_of` is read before the number, because the number may be newer than `as_of`, and must not be older.
    as_of_member = _as_of_member(call, counter, lambda: watermark.as_of(call))
    if isinstance(as_of_member, CallerError):
        raise as_of_member
    shards = tallies.read_shards(call, *tally)
    first_shard = next((item for item in shards if item["SK"]["S"] == counter.sort_key), {})
    value = tallies.sum_of_shards(counter, shards)
    body: dict[str, Any] = {"counter": counter.name, **periods.answer_members(tally.id), "value": value}
    if counter.may_be_set:
        body["version"] = tallies.state_of(counter, first_shard).version
    body |= as_of_member | limits.answer_members(*tally, value, limits.limits_from_item(call, *tally, first_shard))
    return Answer(body, max_age_s=counter.cache_s)


@operation(
    "GET /counters/{counter}/{id}/badge.svg",
    access=Access.ANYONE,
    throttle=RATE_100_PER_S,
    refusal_for=lambda counter: fields.refusal_of_public_read(counter) or _refusal_of_pages(counter),
    needs=lambda counters: needs.on_counts(counters, "Query") | needs.to_read_scan(counters),
    raises=[ForbiddenError, NotFoundError, NotCountedError],
    example=badge.EXAMPLE,
    media_type=badge.MEDIA_TYPE,
    is_cacheable=True,
)
def get_counter_badge(call: Call, *, counter: DeclaredCounter, id: ReadId) -> Answer[Text]:
    """The value of a counter, as a picture

    For a counter that anyone may read. With periods, it is the value of the current period.
    """
    if counter.items is not None:
        scan_state.as_of(call.store, counter)  # raises NotCountedError until a scan has counted the items
    picture = badge.svg(counter.name, tallies.read(call, counter, periods.tally_id(counter, id, clock.now_s())))
    return Answer(Text(picture, badge.MEDIA_TYPE, counter.cache_s))


@operation(
    "GET /tallies",
    access=Access.ANYONE,
    throttle=RATE_100_PER_S,  # a request reads up to 100 numbers
    refusal_for=fields.refusal_of_public_read,
    needs=needs.to_read_tallies,
    example={
        "tallies": [
            {"counter": "likes", "id": "a91f", "value": 51},
            {"counter": "visits", "id": kinds.PAGE_EXAMPLE, "value": 1204, "as_of": 1785542401},
        ]
    },
    is_cacheable=True,
)
def get_tallies(call: Call, *, of: CountersAndIds) -> Answer[Values]:
    """Many numbers that anyone may read

    1 to 100 numbers, in the order of the request; `start` or 0 where nothing was counted. If an entry cannot be read,
    it has an `error`, and the other entries have their values. Send fewer long ids: URL and headers may have 10 KB.
    """
    resolved = {pair: _resolve_tally(call, *pair, must_be_public=True) for pair in of}
    ages_s = [one.counter.cache_s for one in resolved.values() if isinstance(one, Tally)]
    return Answer(_read_answer(call, of, resolved), max_age_s=min(ages_s, default=MAX_AGE_DEFAULT_S))


@operation(
    "GET /tallies/any",
    access=Access.READ,
    throttle=RATE_100_PER_S,
    needs=needs.to_read_tallies,
    example={"tallies": [{"counter": "stock", "id": "7c20", "value": 98, "limit": 0, "left": 98}]},
)
def get_any_tallies(call: Call, *, of: CountersAndIds) -> Answer[Values]:
    """Many numbers of any counters

    As `GET /tallies`, also for counters that are not public.
    """
    resolved = {pair: _resolve_tally(call, *pair, must_be_public=False) for pair in of}
    return Answer(_read_answer(call, of, resolved))


def _resolve_tally(call: Call, name: str, id_: str, *, must_be_public: bool) -> Tally | CallerError:
    """Returns the tally that `name:id_` names, or the error if the caller cannot read it."""
    try:
        if not id_:
            raise InvalidInputError("of must be COUNTER:ID, such as plays:9f3a.", field="of")
        counter = fields.declared_counter(name, "of", call.counters)
        if must_be_public and (refusal := fields.refusal_of_public_read(counter)):
            return refusal
        canonical_id = fields.counted_id(counter, id_, "of", call.pages, call.store.settings.page_hosts)
        return Tally(counter, periods.tally_id(counter, canonical_id, clock.now_s()))
    except CallerError as error:
        return error


def _read_answer(
    call: Call, of: list[CounterAndId], resolved: Mapping[CounterAndId, Tally | CallerError]
) -> dict[str, Any]:
    """Returns the answer. Each tally is read once, however often the request names it."""
    wanted = {one for one in resolved.values() if isinstance(one, Tally)}
    # `as_of` is read before the numbers, because a number may be newer than `as_of`, and must not be older.
    rollup_as_of = functools.cache(lambda: watermark.as_of(call))
    as_ofs = {counter: _as_of_member(call, counter, rollup_as_of) for counter in {tally.counter for tally in wanted}}
    numbers = read_many.read(call, [tally for tally in wanted if not isinstance(as_ofs[tally.counter], CallerError)])

    def entry(name: str, id_: str) -> dict[str, Any]:
        names, tally = {"counter": name, "id": id_}, resolved[name, id_]
        if isinstance(tally, CallerError):
            return {**names, "error": problem_document(tally)}
        as_of = as_ofs[tally.counter]
        if isinstance(as_of, CallerError):
            return {**names, "error": problem_document(as_of)}
        return {**names, **periods.answer_members(tally.id), **numbers[tally], **as_of}

    return {"tallies": [entry(*pair) for pair in of]}


def _as_of_member(call: Call, counter: Counter, rollup_as_of: Callable[[], int | None]) -> dict[str, Any] | CallerError:
    """Returns the member `as_of` of an answer, and `about` if it is approximate; nothing for a counter that is visible
    now. Until a scan has counted a counter's items, returns the error. `rollup_as_of`: reads the rollup's watermark."""
    if counter.items is not None:
        try:
            as_of = scan_state.as_of(call.store, counter)
            return {"as_of": as_of} if counter.items.heartbeats else {"as_of": as_of, "about": True}
        except NotCountedError as error:
            return error
    return {"as_of": rollup_as_of()} if counter.visible == "soon" else {}
