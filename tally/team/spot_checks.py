"""Spot checks of what counters of items count: some groups, again and again, chosen by chance.

A sweep chooses groups, and counts their items again; a later one, when the consumer has passed that, compares. What
differs is drift. Groups that would take more units than the deployment allows are left out.
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
from .scan_state import Scan

GROUPS_MAX = 5  # in a check
SAMPLE_ITEMS = 20  # to find them
ABANDON_AFTER_MIN = 60  # a check that is not settled by then is given up: the consumer stalled


def run_spot_checks(store: Store, counters: Mapping[str, Counter], now_s: float, until_s: float) -> dict[str, int]:
    """Go on with the check of each counter, or begin one, as far as the time goes (`until_s`, on the store's clock).
    How many groups were compared, and how many numbers were off."""
    done = {"groups_checked": 0, "groups_off": 0}
    for counter in counters.values():
        if counter.items is None or counter.items.group_by is not None or not store.settings.spot_check_units:
            continue  # one group of many that an attribute names would take a scan of the table
        if store.clock() >= until_s:
            break
        try:
            off = list(_check(Recount(store, counter, scan_state.read_scan(store, counter.name), lambda: now_s)))
        except TallyError as error:
            observe.logger.warning("a spot check failed", exc_info=error, extra={"counter": counter.name})
            continue
        done = {"groups_checked": done["groups_checked"] + len(off), "groups_off": done["groups_off"] + sum(off)}
    return done


def _check(recount: Recount) -> Iterator[bool]:
    """Whether each group that is compared was off."""
    scan, store, now_s = recount.scan, recount.store, recount.now_s()
    if scan.counted != recount.counter.items_digest or not (scan.closed or scan.spot):
        return  # its items are not counted yet, or somebody counts them again
    if scan.closed:
        _begin_check(recount, now_s)
    elif scan.ended_s and not scan.may_lack_markers(now_s) and recount.is_complete():
        for group in scan.groups:
            difference = recount.difference(group)
            settle = recount.report_drift if recount.counter.watch is None else recount.set_number
            settle(difference)
            if difference.has_stale_recounts:
                recount.remove_stale(group)
            yield difference.excess != 0
        recount.close()
    elif not scan.ended_s or now_s > scan.began_s + ABANDON_AFTER_MIN * store.settings.minute_s:
        recount.close()


def _begin_check(recount: Recount, now_s: float) -> None:
    """Choose groups that have items, at a place in the table that chance chooses, and count their items, if that is not
    too much."""
    store, units = recount.store, 0.0
    begun: Scan | None = None
    values = (recount.items_declaration.contribution(item) for item in random_items(recount, SAMPLE_ITEMS))
    # What a group of ASIDE counts is anywhere in the table.
    groups = list(dict.fromkeys(value.group for value in values if value and not value.aside))[:GROUPS_MAX]
    if groups:
        begun = scan_state.begin(store, recount.counter, now_s, groups, spot=True)
    if begun is None:
        return
    counting = replace(recount, scan=begun, page_items=SAMPLE_ITEMS)
    for step in counting.run_steps():
        units += step.units
        if units > store.settings.spot_check_units:
            counting.close()
            return


def random_items(recount: Recount, most: int) -> Page:
    """Up to `most` items that follow a place in the table that chance chooses."""

    def page(after: Item | None) -> Page:
        return next(queries.team_pages(recount.store, recount.table, after=after, Limit=most))

    return page({name: _random_key(kind) for name, kind in recount.key_types.items()}) or page(None)


def _random_key(kind: str) -> Item:
    """A key attribute of this type, by chance."""
    text = secrets.token_hex(8)
    return {"N": str(int(text, 16) % 10**9)} if kind == "N" else {kind: text.encode() if kind == "B" else text}
