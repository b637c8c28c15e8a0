"""Unique visitors: each one counts once in a period, whatever is sent again, and when."""

from __future__ import annotations

from tally.counter import Counter
from tally.counting import periods
from tests import faults
from tests.invariants.counting import ITEM, Counting
from tests.invariants.simulation import Clock
from tests.invariants.test_periods import evening as evening
from tests.invariants.world import persist

KEYED = Counter(
    "readers", prefix="BOOK", sort_key="READERS", attribute="readers",
    delta=1, period="day", visible="soon", receipt_days=2,
)  # fmt: skip
DAY_S = 24 * 3600


def test_a_key_of_visitor_and_period_counts_each_once_but_for_one_that_comes_late_over_an_edge(
    counting: Counting, evening: Clock
) -> None:
    today, tomorrow = (periods.tally_id(KEYED, ITEM, evening() + later_s) for later_s in (0, DAY_S))
    proxy = counting.world.proxy
    proxy.plan = faults.seeded(5, {"PutItem": {faults.LOSE_RESPONSE: 0.3, faults.FAIL_AFTER: 0.2}})

    def visit(visitor: str, tally: str) -> None:
        persist(lambda: counting.increment(KEYED, key=f"{visitor}-{tally[-10:]}"))

    for visitor in ("ann", "bob") * 5:
        visit(visitor, today)
    assert counting.world.rolled_up(KEYED, today) == 2
    evening.pass_s(600)
    visit("cid", today)  # it was on its way at midnight
    for visitor in ("bob", "cid") * 5:
        visit(visitor, tomorrow)
    assert (counting.world.rolled_up(KEYED, today), counting.world.rolled_up(KEYED, tomorrow)) == (2, 3)
    assert proxy.injected(faults.LOSE_RESPONSE) + proxy.injected(faults.FAIL_AFTER) > 5
