"""Spot checks of counters of items: the sweep recounts random groups.

A sweep chooses groups and recounts their items in a scan. After the consumer has passed the end of this scan, a later
sweep compares the recounts with the numbers. A difference is drift. If the scan of a check takes more than
`spot_check_units`, the sweep abandons the check.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from dataclasses import replace

from .. import observe
from ..counter import Counter
from ..dynamo import queries
from ..dynamo.client import Store
from ..dynamo.keys import Item
from ..dynamo.queries import Page
from ..errors import TallyError
from . import scan_state
from .recounts import Recount

GROUPS_MAX = 5  # in one check
SAMPLE_ITEMS = 20  # read at a random place, to choose their groups
ABANDON_AFTER = 60  # minutes from the start of a check; later, a stalled consumer has not passed the scan's end


def run_spot_checks(store: Store, counters: Mapping[str, Counter], now_s: float, until_s: float) -> dict[str, int]:
    """Continues or starts the check of each counter, until `until_s` on the store's clock. Returns how many groups were
    compared, and how many numbers were wrong."""
    results = {"groups_checked": 0, "groups_wrong": 0}
    for counter in counters.values():
        if counter.items is None or counter.items.group_by is not None or not store.settings.spot_check_units:
            continue  # if an attribute names the groups, a check of one group would read the whole table
        if store.clock() >= until_s:
            break
        try:
            are_wrong = list(_check(Recount(store, counter, scan_state.read_scan(store, counter.name), lambda: now_s)))
        except TallyError as error:
            observe.logger.warning("a spot check failed", exc_info=error, extra={"counter": counter.name})
            continue
        results["groups_checked"] += len(are_wrong)
        results["groups_wrong"] += sum(are_wrong)
    return results


def _check(recount: Recount) -> Iterator[bool]:
    """Continues or starts a check. Yields for each compared group whether its number was wrong."""
    scan, store, now_s = recount.scan, recount.store, recount.now_s()
    if scan.counted_by != recount.counter.items_digest or not (scan.closed or scan.is_spot_check):
        return  # the items are not counted, or a person's scan is open
    if scan.closed:
        _begin_check(recount, now_s)
    elif scan.ended_s and not scan.may_lack_markers(now_s) and recount.is_complete():
        for group in scan.groups:
            difference = recount.difference(group)
            # With a watch, the drift row has the excess of the team's number, so a wrong count is corrected at once.
            resolve = recount.report_drift if recount.counter.watch is None else recount.set_number
            resolve(difference)
            if difference.has_stale_recounts:
                recount.remove_stale(group)
            yield difference.excess != 0
        recount.close()
    # The sweep that begins a check also ends its scan. If the scan has not ended, that sweep has failed.
    elif not scan.ended_s or now_s > scan.began_s + ABANDON_AFTER * store.settings.minute_s:
        recount.close()


def _begin_check(recount: Recount, now_s: float) -> None:
    """Chooses the groups of some items at a random place in the table, and recounts them within the allowed units."""
    store, units = recount.store, 0.0
    values = (recount.items_declaration.contribution(item) for item in random_items(recount, SAMPLE_ITEMS))
    # No reserved group, because its items may be anywhere in the table.
    groups = list(dict.fromkeys(value.group for value in values if value and not value.is_reserved))[:GROUPS_MAX]
    scan = scan_state.begin(store, recount.counter, now_s, groups, is_spot_check=True) if groups else None
    if scan is None:
        return
    check = replace(recount, scan=scan, page_items=SAMPLE_ITEMS)
    for step in check.run_steps():
        units += step.units
        if units > store.settings.spot_check_units:
            check.close()
            return


def random_items(recount: Recount, most: int) -> Page:
    """Returns up to `most` items that follow a random place in the table, or else the first items of the table."""

    def page(after: Item | None) -> Page:
        return next(queries.team_table_pages(recount.store, recount.table, after=after, Limit=most))

    return page({name: _random_key(kind) for name, kind in recount.key_types.items()}) or page(None)


def _random_key(kind: str) -> Item:
    """Returns a random key attribute of this type."""
    text = secrets.token_hex(8)
    return {"N": str(int(text, 16) % 10**9)} if kind == "N" else {kind: text.encode() if kind == "B" else text}
