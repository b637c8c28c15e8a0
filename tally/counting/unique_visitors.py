"""Unique visitors: each one counts once in a period.

A visitor and a period are one receipt, which is written with the tally, or alone for the rollup to add. So retries,
spilling and what a stream loses are as for any change. The number stays when the receipt has expired.

The receipt has no visitor. Its name is the hash of one, under the secret of the stack.
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

VISIT_LATE_MAX_S = DAY_S  # how long ago a visit may have been tried first


def count(call: Call, counter: Counter, id_: str, visitor: str, at_s: float | None = None) -> ChangeAnswer:
    """Count a visitor in the period of `at_s`, when the visit was tried first; None: now.

    The body says whether the visitor is `new` in that period: every answer to the first visit says so, also one that is
    sent again because it was lost on its way to the process. 1 WCU where it is visible soon; else 4 WCU and 1 RCU,
    and 1 RCU for a visitor who is counted.

    Raises InvalidInputError for a time that is too old or to come, and what increments.count raises.
    """
    tally = _tally(counter, id_, clock.now_s(), at_s)
    return _count(call, counter, tally, pseudonyms.pseudonym(pseudonyms.stack_secret(call), visitor))


def count_on_page(call: Call, counter: Counter, page: str, *visitor: str) -> ChangeAnswer:
    """Count a visitor of a page today, by what the request says of one. 1 WCU. Raises what increments.count raises.

    The name is a hash under the salt of the day: when that is forgotten, nobody can tell who it was, nor that one of
    another day is the same.
    """
    now_s = clock.now_s()
    name = pseudonyms.pseudonym(pseudonyms.salt_of_day(call, now_s), " ".join(visitor))
    return _count(call, counter, periods.tally_id(counter, page, now_s), name)


def _count(call: Call, counter: Counter, tally: str, name: str) -> ChangeAnswer:
    lives_s = periods.ends_s(counter, tally) + PENDING_KEPT_S - clock.now_s()  # a first try is never that late
    change = Increment(
        counter,
        tally,
        1,
        "add_visitor",
        name,
        {"counter": counter.name, **periods.answer_members(tally)},
        receipt_target=f"{counter.name}/{tally}",
        receipt_days=int(-(-lives_s // DAY_S)),
    )
    anybody = replace(call, caller=None)  # a visitor is one, whichever service says so
    body, seen = increments.count(anybody, change)
    return ChangeAnswer({**body, "new": not seen}, seen)


def _tally(counter: Counter, id_: str, now_s: float, at_s: float | None) -> str:
    """The tally of the period in which the visit was tried first."""
    if at_s is None:
        return periods.tally_id(counter, id_, now_s)
    if not -clock.OFF_S_MAX <= now_s - at_s <= VISIT_LATE_MAX_S:
        raise InvalidInputError("at must be within the last day: when the visit was tried first.", field="at")
    return periods.tally_id(counter, id_, at_s)
