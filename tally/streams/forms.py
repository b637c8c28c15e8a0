"""The form of a counter: the part of its declaration that its stored items depend on.

The bookkeeper notes the form of a counter with the first change that it books. Before, the counter may take any form.
Under a declaration of another form, Tally would read, limit or compare stored numbers wrongly. So a deploy refuses such
a declaration (`check`). A consumer that would book records wrongly waits, with the records in the streams, until the
declaration fits again.

While a declaration does not fit, callers' changes are accepted. To refuse them would be an outage, and each change has
a receipt: an amount under other keys is drift of the old number. A number in several shards is still read as their sum,
except in a read of many numbers. A limit then sees the first shard alone.

The form of a counter of items is its table. A scan notes the form before it sets the first number, because no change
explains that number. If a ledger has no form of a counter, each declaration fits. A form never changes, except that
`keep_periods` may shrink: code from before a deploy still fits the form that it noted.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from ..counter import Counter, declared
from ..dynamo import clock, items, keys, queries
from ..dynamo.client import Store
from ..dynamo.transactions import try_commit
from ..errors import ConfigurationError
from .record import CounterIndex

Form = dict[str, Any]
ONE, MANY = "one", "many"
BOOKED = ("prefix", "sort_key", "attribute", "child", "period")
"""The fields that a record's effect depends on."""
ITEMS = "items"
_FIELDS = (*BOOKED, "timezone", "keep_periods", "pages")
_NEEDS = {
    ONE: "has counted in many shards: it can have no start, floor, ceiling, numbered or max_shards=1",
    MANY: "has counted in one shard: it needs visible='now', and max_shards=1 or what implies it",
}
WHAT_TO_DO = (
    "take that back, or declare a new counter and import the numbers (docs/operate.md, Change what a counter is)"
)


class Refused(NamedTuple):
    """Why a declaration does not fit the stored items. `booked`: records would be booked wrongly."""

    counter: str
    why: str
    booked: bool = False

    def __str__(self) -> str:
        return f"counter {self.counter!r} {self.why}"


def form(counter: Counter) -> Form:
    """Returns the form of a declared counter."""
    if counter.items is not None:
        return {ITEMS: counter.items.table}
    fields = {field: getattr(counter, field) for field in _FIELDS}
    return fields | {"shards": ONE if counter.has_version else MANY, "numbered": counter.numbered}


def noted(store: Store) -> dict[str, Form]:
    """Returns the forms in the ledger, by the name of the counter."""
    form_items = queries.partition_items(store, store.settings.ledger_table, keys.FORM_KEY)
    return {item["SK"]["S"]: json.loads(item["form"]["S"]) for item in form_items}


def refused(forms: Mapping[str, Form], counters: Mapping[str, Counter]) -> list[Refused]:
    """Returns what does not fit. The keys of a counter that is not declared any more stay taken: it keeps its items."""
    refusals = [why for name, was in forms.items() if name in counters for why in _changed(counters[name], was)]
    for name, gone in removed(forms, counters).items():
        try:
            declared([*counters.values(), gone])
        except ConfigurationError as error:
            refusals.append(Refused(name, f"has counted and is not declared any more, but {error}", booked=True))
    return refusals


def removed(forms: Mapping[str, Form], counters: Mapping[str, Counter]) -> dict[str, Counter]:
    """Returns the counters that have counted and are not declared any more, with what a record's effect depends on."""
    return {
        name: Counter(name, max_shards=1 if was["shards"] == ONE else 2, **{field: was[field] for field in _FIELDS})
        for name, was in forms.items()
        if name not in counters and ITEMS not in was
    }


def check(forms: Mapping[str, Form], counters: Mapping[str, Counter], *, booked: bool = False) -> None:
    """Raises ConfigurationError if a declaration does not fit. `booked`: only if records would be booked wrongly."""
    refusals = [str(one) for one in refused(forms, counters) if one.booked or not booked]
    if refusals:
        raise ConfigurationError(f"{'; '.join(refusals)}: {WHAT_TO_DO}")


def _changed(counter: Counter, was: Form) -> Iterator[Refused]:
    now = form(counter)
    if ITEMS in was or ITEMS in now:
        if not (ITEMS in was and ITEMS in now):  # another table or another `where` is allowed: a scan follows
            yield Refused(counter.name, f"has counted {_what(was)}, and counts {_what(now)} now", booked=True)
        return
    for field in BOOKED:
        if now[field] != was[field]:
            yield Refused(counter.name, _differs(field, was, now), booked=True)
    if now["shards"] != was["shards"]:
        yield Refused(counter.name, _NEEDS[now["shards"]])
    if now["period"] != was["period"]:
        return
    if _kept(now) > _kept(was):
        yield Refused(counter.name, _differs("keep_periods", was, now))
    for field in ("timezone", "pages", "numbered"):  # if `numbered` began now, a released hold would repeat numbers
        if now[field] != was.get(field, now[field]):  # an older form lacks `numbered`
            yield Refused(counter.name, _differs(field, was, now))


def _what(one: Form) -> str:
    return f"items of {one[ITEMS]!r}" if ITEMS in one else "changes"


def _kept(one: Form) -> float:
    """Returns for how many more periods a tally is kept."""
    return math.inf if one["keep_periods"] is None else one["keep_periods"]


def _differs(field: str, was: Form, now: Form) -> str:
    return f"has counted with {field}={was[field]!r}, which is {now[field]!r} now"


def note_items(store: Store, counter: Counter) -> None:
    """Notes the form of a counter of items, whose declaration `check` has passed."""
    if counter.name not in noted(store):
        _put(store, counter.name, form(counter), None)


def _put(store: Store, name: str, after: Form, was: Form | None) -> bool:
    """Notes a form in place of the form that `was` (None: no form). Returns False if another process was first."""
    key, values = keys.key(keys.FORM_KEY, name), {"form": json.dumps(after)}
    expected: items.Expected = {"form": None if was is None else json.dumps(was)}
    return try_commit(store, [items.update_write(store.settings.ledger_table, key, values, expected=expected)])


class Forms:
    """The cached forms of one process, which reads them again each minute."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[str, Form] = {}
        self._read_s = 0.0
        self._given: CounterIndex | None = None
        self._every = CounterIndex({})

    def fitting(self, given: CounterIndex) -> CounterIndex:
        """Returns the declared counters, and the counters that have counted and are not declared any more.

        Raises ConfigurationError while a declaration does not fit.
        """
        if given is not self._given or abs(clock.now_s() - self._read_s) >= self._store.settings.minute_s:
            self._given, self._known, self._read_s = None, noted(self._store), clock.now_s()
            check(self._known, given.by_name, booked=True)
            self._every = CounterIndex({**removed(self._known, given.by_name), **given.by_name}, given.minute_s)
            self._given = given
        return self._every

    def note(self, given: CounterIndex, names: Iterable[str]) -> None:
        """Notes the forms of counters that count. Raises ConfigurationError if another process noted another form."""
        for name in sorted({*names} & given.by_name.keys()):
            was, now = self._known.get(name), form(given.by_name[name])
            if was is not None and _kept(now) >= _kept(was):
                continue
            after = now if was is None else {**was, "keep_periods": now["keep_periods"]}
            if _put(self._store, name, after, was):
                self._known[name] = after
            else:
                self._given = None
                self.fitting(given)
