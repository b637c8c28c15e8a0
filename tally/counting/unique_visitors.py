"""Unique visitors: each visitor counts once in a period.

A visitor has one receipt in a period. Its key is a pseudonym of the visitor (pseudonyms.py), which does not reveal who
the visitor is. Otherwise a visit is a change like any other. The number stays after the receipt has expired.
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

VISIT_LATE_MAX_S = DAY_S  # a visit may be counted until so long after the client first tried to count it


def count(call: Call, counter: Counter, id_: str, visitor: str, at_s: float | None = None) -> ChangeAnswer:
    """Counts a visitor in the period of `at_s`, when the client first tried to count the visit; None: now.

    The body says whether the visitor is `new` in that period. If the client repeats the call, the visitor is not new.
    A visit costs 1 WCU if the counter is visible soon, else 4 WCU and 1 RCU if the visitor is new, or 1 RCU if not.

    Raises InvalidInputError for a time that is too old or in the future, and the errors of increments.count.
    """
    now_s = clock.now_s()
    if at_s is not None and not -clock.CLOCK_DIFFERENCE_S_MAX <= now_s - at_s <= VISIT_LATE_MAX_S:
        raise InvalidInputError("at must be the time of the first attempt, within the last day.", field="at")
    tally = periods.tally_id(counter, id_, now_s if at_s is None else at_s)
    return _count(call, counter, tally, pseudonyms.pseudonym(pseudonyms.stack_secret(call), visitor))


def count_on_page(call: Call, counter: Counter, page: str, *visitor: str) -> ChangeAnswer:
    """Counts a visitor of a page today, for 1 WCU. `visitor`: what the request says of the visitor. Raises as `count`.

    The pseudonym is a hash under the salt of the day. When the salt is deleted, nobody can tell who the visitor was, or
    whether the same visitor came on another day.
    """
    now_s = clock.now_s()
    pseudonym = pseudonyms.pseudonym(pseudonyms.salt_of_day(call, now_s), " ".join(visitor))
    return _count(call, counter, periods.tally_id(counter, page, now_s), pseudonym)


def _count(call: Call, counter: Counter, tally: str, pseudonym: str) -> ChangeAnswer:
    lives_s = periods.ends_s(counter, tally) + PENDING_KEPT_S - clock.now_s()  # no visit of the period counts later
    body = {"counter": counter.name, **periods.answer_members(tally)}
    target, days = f"{counter.name}/{tally}", int(-(-lives_s // DAY_S))
    change = Increment(counter, tally, 1, "add_visitor", pseudonym, body, receipt_target=target, receipt_days=days)
    anybody = replace(call, caller=None)  # a visitor counts once, whichever service sends the visit
    body, replayed = increments.count(anybody, change)
    return ChangeAnswer({**body, "new": not replayed}, replayed)
