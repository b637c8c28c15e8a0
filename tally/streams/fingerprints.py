"""The schema fingerprint of a counter: the part of its declaration that its stored items depend on.

The bookkeeper notes a counter's fingerprint with the first change that it books. Until then each declaration fits. If
a declaration had another fingerprint than the noted one, Tally would read, limit or compare stored numbers wrongly. A
deploy refuses such a declaration (`check`). A consumer that would book records wrongly waits, while the records stay in
the streams, until the declaration fits.

While a declaration does not fit, Tally accepts callers' changes, because a refusal would be an outage. Each change has
a receipt, so an amount that goes to other keys shows as drift. If a number in several shards is declared as one item,
reads return the sum, except reads of many numbers, and limits see the first shard alone.

The fingerprint of a counter of items is its table. A scan notes the fingerprint before it sets the first number,
because no change explains that number. A fingerprint never changes, except that `keep_periods` may shrink. After the
rollback of a deploy that lowered `keep_periods`, the old declaration may not fit, but consumers do not wait.
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

Fingerprint = dict[str, Any]
ONE, MANY = "one", "many"  # `shards` in a fingerprint: how many items a tally has
BOOKING_FIELDS = ("prefix", "sort_key", "attribute", "child", "period")
"""The fields that a record's effect depends on."""
ITEMS = "items"  # the table, in the fingerprint of a counter of items
_FIELDS = (*BOOKING_FIELDS, "timezone", "keep_periods", "pages")
# Why another number of shards does not fit, by `shards` of the present declaration.
_SHARDS_DIFFER = {
    ONE: "has counted in many shards: it can have no start, floor, ceiling, numbered or max_shards=1",
    MANY: "has counted in one shard: it needs visible='now', and max_shards=1 or what implies it",
}
WHAT_TO_DO = (
    "take that back, or declare a new counter and import the numbers (docs/operate.md, Change what a counter is)"
)


class Mismatch(NamedTuple):
    """Why a declaration does not fit the stored items. `misbooks`: records would be booked wrongly."""

    counter: str
    why: str
    misbooks: bool = False

    def __str__(self) -> str:
        return f"counter {self.counter!r} {self.why}"


def fingerprint_of(counter: Counter) -> Fingerprint:
    """Returns the fingerprint of a declared counter."""
    if counter.items is not None:
        return {ITEMS: counter.items.table}
    fields = {field: getattr(counter, field) for field in _FIELDS}
    return fields | {"shards": ONE if counter.has_version else MANY, "numbered": counter.numbered}


def read_all(store: Store) -> dict[str, Fingerprint]:
    """Returns the fingerprints in the ledger, by the name of the counter."""
    stored = queries.partition_items(store, store.settings.ledger_table, keys.FINGERPRINT_KEY)
    return {item["SK"]["S"]: json.loads(item["fingerprint"]["S"]) for item in stored}


def mismatches(stored: Mapping[str, Fingerprint], counters: Mapping[str, Counter]) -> list[Mismatch]:
    """Returns what does not fit. No counter may use the keys of a counter that has counted and is not declared now."""
    why = [one for name, old in stored.items() if name in counters for one in _mismatches_of(counters[name], old)]
    for name, undeclared in undeclared_counters(stored, counters).items():
        try:
            declared([*counters.values(), undeclared])
        except ConfigurationError as error:
            why.append(Mismatch(name, f"has counted and is not declared any more, but {error}", misbooks=True))
    return why


def undeclared_counters(stored: Mapping[str, Fingerprint], counters: Mapping[str, Counter]) -> dict[str, Counter]:
    """Returns the counters that have counted and are not declared any more, with what a record's effect depends on."""
    return {
        name: Counter(name, max_shards=1 if old["shards"] == ONE else 2, **{field: old[field] for field in _FIELDS})
        for name, old in stored.items()
        if name not in counters and ITEMS not in old
    }


def check(stored: Mapping[str, Fingerprint], counters: Mapping[str, Counter], *, only_misbooking: bool = False) -> None:
    """Raises ConfigurationError if a declaration does not fit; `only_misbooking`: if it would book records wrongly."""
    why = [str(one) for one in mismatches(stored, counters) if one.misbooks or not only_misbooking]
    if why:
        raise ConfigurationError(f"{'; '.join(why)}: {WHAT_TO_DO}")


def _mismatches_of(counter: Counter, old: Fingerprint) -> Iterator[Mismatch]:
    new = fingerprint_of(counter)
    if ITEMS in old or ITEMS in new:
        if not (ITEMS in old and ITEMS in new):  # another table or another `where` fits, because a scan follows
            why = f"has counted {_counted_things(old)}, and counts {_counted_things(new)} now"
            yield Mismatch(counter.name, why, misbooks=True)
        return
    for field in BOOKING_FIELDS:
        if new[field] != old[field]:
            yield Mismatch(counter.name, _why_field_differs(field, old, new), misbooks=True)
    if new["shards"] != old["shards"]:
        yield Mismatch(counter.name, _SHARDS_DIFFER[new["shards"]])
    if new["period"] != old["period"]:  # a mismatch of BOOKING_FIELDS; the other fields count in periods
        return
    if _periods_kept(new) > _periods_kept(old):
        yield Mismatch(counter.name, _why_field_differs("keep_periods", old, new))
    for field in ("timezone", "pages", "numbered"):  # a hold from before `numbered` would give numbers back
        if new[field] != old.get(field, new[field]):  # an older fingerprint lacks `numbered`
            yield Mismatch(counter.name, _why_field_differs(field, old, new))


def _counted_things(fingerprint: Fingerprint) -> str:
    return f"items of {fingerprint[ITEMS]!r}" if ITEMS in fingerprint else "changes"


def _periods_kept(fingerprint: Fingerprint) -> float:
    """Returns for how many periods after its own a tally is kept."""
    return math.inf if fingerprint["keep_periods"] is None else fingerprint["keep_periods"]


def _why_field_differs(field: str, old: Fingerprint, new: Fingerprint) -> str:
    return f"has counted with {field}={old[field]!r}, which is {new[field]!r} now"


def note_for_scan(store: Store, counter: Counter) -> None:
    """Notes the fingerprint of a counter of items, whose declaration `check` has passed."""
    if counter.name not in read_all(store):
        _try_note(store, counter.name, fingerprint_of(counter), None)


def _try_note(store: Store, name: str, new: Fingerprint, old: Fingerprint | None) -> bool:
    """Notes a fingerprint in place of `old` (None: no fingerprint). Returns False if another process was first."""
    key, values = keys.key(keys.FINGERPRINT_KEY, name), {"fingerprint": json.dumps(new)}
    expected: items.Expected = {"fingerprint": None if old is None else json.dumps(old)}
    return try_commit(store, [items.update_write(store.settings.ledger_table, key, values, expected=expected)])


class FingerprintCache:
    """The fingerprints that one process has cached. The process reads the ledger once a minute."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._stored: dict[str, Fingerprint] = {}
        self._read_s = 0.0
        self._checked: CounterIndex | None = None
        self._all_counted = CounterIndex({})

    def all_counted(self, present: CounterIndex) -> CounterIndex:
        """Returns the declared counters, and the counters that have counted and are not declared any more.

        `present`: the declared counters. Raises ConfigurationError while a declaration would book records wrongly.
        """
        if present is not self._checked or abs(clock.now_s() - self._read_s) >= self._store.settings.minute_s:
            self._checked, self._stored, self._read_s = None, read_all(self._store), clock.now_s()
            check(self._stored, present.by_name, only_misbooking=True)
            undeclared = undeclared_counters(self._stored, present.by_name)
            self._all_counted = CounterIndex({**undeclared, **present.by_name}, present.minute_s)
            self._checked = present
        return self._all_counted

    def note(self, present: CounterIndex, names: Iterable[str]) -> None:
        """Notes the fingerprints of counters that are booked. Raises ConfigurationError if an earlier note differs."""
        for name in sorted({*names} & present.by_name.keys()):
            old, new = self._stored.get(name), fingerprint_of(present.by_name[name])
            if old is not None and _periods_kept(new) >= _periods_kept(old):
                continue
            noted = new if old is None else {**old, "keep_periods": new["keep_periods"]}
            if _try_note(self._store, name, noted, old):
                self._stored[name] = noted
            else:
                self._checked = None
                self.all_counted(present)
