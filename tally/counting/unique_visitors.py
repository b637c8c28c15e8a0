"""Unique visitors: each visitor counts once in a period.

A visitor and a period have one receipt, which is written with the tally, or alone for the rollup to add. So retries,
spilling and lost stream records have the same effect as for any change. The number stays when the receipt has expired.

The receipt does not name the visitor. It has a pseudonym, under the secret of the stack.
"""

from __future__ import annotations

from dataclasses import replace

from ..counter import Counter
from ..dynamo import clock
from ..dynamo.client import Call
from ..errors import InvalidInputError
from . import increments, periods, pseudonyms
from .increments import Increment
from .receipts import DAY_S, PENDING_KEPT_S, ChangeAnswer

VISIT_LATE_MAX_S = DAY_S  # the greatest age of a visit's first attempt


def count(call: Call, counter: Counter, id_: str, visitor: str, at_s: float | None = None) -> ChangeAnswer:
    """Counts a visitor in the period of `at_s`, the time of the visit's first attempt; None: now.

    The body says whether the visitor is `new` in that period. A retry whose first answer was lost gets that answer,
    with `new`. 1 WCU if the counter is visible soon; else 4 WCU and 1 RCU, and 1 RCU for a visitor who was counted
    before.

    Raises InvalidInputError for a time that is too old or in the future, and the errors of increments.count.
    """
    now_s = clock.now_s()
    if at_s is not None and not -clock.CLOCK_DIFFERENCE_S_MAX <= now_s - at_s <= VISIT_LATE_MAX_S:
        raise InvalidInputError("at must be the time of the first attempt, within the last day.", field="at")
    tally = periods.tally_id(counter, id_, now_s if at_s is None else at_s)
    return _count(call, counter, tally, pseudonyms.pseudonym(pseudonyms.stack_secret(call), visitor))


def count_on_page(call: Call, counter: Counter, page: str, *visitor: str) -> ChangeAnswer:
    """Counts a visitor of a page today, by what the request says of the visitor. 1 WCU. Raises as increments.count.

    The pseudonym is a hash under the salt of the day. When the salt is deleted, nobody can tell who the visitor was, or
    whether a visitor of another day is the same.
    """
    now_s = clock.now_s()
    pseudonym = pseudonyms.pseudonym(pseudonyms.salt_of_day(call, now_s), " ".join(visitor))
    return _count(call, counter, periods.tally_id(counter, page, now_s), pseudonym)


def _count(call: Call, counter: Counter, tally: str, pseudonym: str) -> ChangeAnswer:
    lives_s = periods.ends_s(counter, tally) + PENDING_KEPT_S - clock.now_s()  # no first attempt comes later
    body = {"counter": counter.name, **periods.answer_members(tally)}
    target, days = f"{counter.name}/{tally}", int(-(-lives_s // DAY_S))
    change = Increment(counter, tally, 1, "add_visitor", pseudonym, body, receipt_target=target, receipt_days=days)
    anybody = replace(call, caller=None)  # a visitor counts once, whichever service sends the visit
    body, replayed = increments.count(anybody, change)
    return ChangeAnswer({**body, "new": not replayed}, replayed)
