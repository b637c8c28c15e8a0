"""Whether all is well, as far as the store says: one look for each part.

`tally status` shows these beside what only it can know, and `GET /status` beside the alarms. A look that finds no
evidence says so, and calls nothing well.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import islice
from typing import Any, NamedTuple

from ..counting import expired
from ..dynamo import items
from ..dynamo.client import Call, Store
from ..settings import Settings
from ..streams import evidence, set_aside
from ..streams.evidence import Evidence
from . import rows

BEHIND = 10  # minutes without evidence: when the alarm `evidence-age` goes off
UNJUDGED = 20  # minutes: a minute is judged about four minutes after its end, and `unjudged` waits for fifteen
UNRETURNED = 5  # minutes after a hold has expired: when the alarm `holds` goes off
SHOWN_MAX = 5  # names in a line: `tally drift` and CloudWatch list them all


class Seen(NamedTuple):
    """What one look found: a line for people and facts for programs. `wrong`: None if nobody can tell."""

    line: str
    facts: Mapping[str, Any]
    wrong: bool | None = False

    @property
    def word(self) -> str:
        """How it is: `ok`, `wrong` or `unknown`."""
        return {False: "ok", True: "wrong", None: "unknown"}[self.wrong]


def lag(store: Store) -> Seen:
    """How far behind numbers that are rolled up are, and the evidence of each consumer."""
    now_s, minute_s = time.time(), store.settings.minute_s
    found = evidence.read(store, now_s)
    as_of = found.as_of(store.settings)
    passed = {"rollup": items.number(found.item, "rolled"), "drift": items.number(found.item, "known")}
    ages = {consumer: int(now_s - time_s) if time_s else None for consumer, time_s in passed.items()}
    age_s = int(now_s - as_of) if as_of else None
    facts = {"as_of": as_of, "as_of_age_s": age_s, "evidence_age_s": ages}
    if not found.item:
        return Seen("no sweep has run yet: a new stack needs some minutes", facts, None)
    rolled_up = f"rolled up as of {_ago(age_s)}"
    line = f"{rolled_up}; evidence: {', '.join(f'{consumer} {_ago(age)}' for consumer, age in ages.items())}"
    late = any(age is not None and age > BEHIND * minute_s for age in ages.values())
    return Seen(line, facts, late or (None if None in ages.values() else False))


def judged(store: Store) -> Seen:
    """The end of the last judged minute."""
    until_s = judged_up_to(store.settings, evidence.read(store, time.time()))
    if until_s is None:
        return Seen("nothing yet: a new stack needs some minutes", {"until": None}, None)
    age_s = int(time.time() - until_s)
    late = age_s > UNJUDGED * store.settings.minute_s
    return Seen(f"until {moment(until_s)}, {_ago(age_s)}", {"until": until_s, "age_s": age_s}, late)


def judged_up_to(settings: Settings, seen: Evidence) -> int | None:
    """The end of the last judged minute, epoch seconds; None before judging starts."""
    return None if seen.judged < 0 else (seen.judged + 1) * settings.minute_s


def drift(store: Store, most: int | None = None) -> Seen:
    """The tallies that drift. One that is not confirmed may come to 0 by itself. `most`: it reads no more of them."""
    seen = evidence.read(store, time.time())
    found = list(islice(rows.every(store), most))
    confirmed = [f"{row.counter} {row.target} {row.drift:+d}" for row in found if row.confirmed(seen)]
    facts = {"confirmed": len(confirmed), "unconfirmed": len(found) - len(confirmed)}
    least = "at least " if len(found) == most else ""
    line = f"{least}{facts['confirmed']} confirmed, {facts['unconfirmed']} not yet"
    return Seen(line + _listed(confirmed), facts, bool(confirmed))


def aside(store: Store, most: int | None = None) -> Seen:
    """The records that no consumer could apply. `most`: it reads no more of them."""
    markers = list(islice(set_aside.listed(Call(store)), most))
    oldest_s = min((marker.at_s for marker in markers), default=None)
    since = f", the oldest since {moment(oldest_s)}" if oldest_s is not None else ""
    least = "at least " if len(markers) == most else ""
    return Seen(f"{least}{len(markers)}{since}", {"records": len(markers), "oldest": oldest_s}, bool(markers))


def holds(store: Store) -> Seen:
    """The holds that expired some minutes ago, and whose amount is not given back."""
    number = expired.left(store, time.time() - UNRETURNED * store.settings.minute_s)
    return Seen(f"{number} expired and not given back", {"not_returned": number}, number > 0)


def alarms(states: Mapping[str, str]) -> Seen:
    """The alarms of the stack: their states by name. A stack has some, so none at all says nothing."""
    if not states:
        return Seen("CloudWatch lists none of this stack", {"alarms": {}}, None)
    on = sorted(name for name, state in states.items() if state == "ALARM")
    silent = sum(state == "INSUFFICIENT_DATA" for state in states.values())
    line = f"{len(on)} of {len(states)} in alarm" + (f", {silent} without data" if silent else "")
    return Seen(line + _listed(on), {"alarms": dict(states), "in_alarm": on}, bool(on))


def no_alarms() -> Seen:
    """Those of a stack that runs on this machine."""
    return Seen("`make dev` has none", {"alarms": None})


def moment(epoch_s: int) -> str:
    """A time as people read it."""
    return datetime.fromtimestamp(epoch_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN_MAX} more" if len(names) > SHOWN_MAX else ""
    return f": {', '.join(names[:SHOWN_MAX])}{more}" if names else ""


def _ago(age_s: int | None) -> str:
    if age_s is None:
        return "never"
    return next(
        (f"{age_s // unit_s} {unit} ago" for unit, unit_s in _UNITS.items() if age_s >= 2 * unit_s), f"{age_s} s ago"
    )


_UNITS = {"days": 86400, "hours": 3600, "minutes": 60}
