"""The documented and the real answers agree: every check of schemathesis over the whole document.

Each run sends the same requests. `make fuzz` sends thousands of others.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from counters import COUNTERS
from tally.contract.declarations import OPERATIONS
from tests.e2e.dev import Dev
from tests.e2e.schemathesis_run import SCOPES, prepare, run

EXAMPLES = 5  # made up for each operation, beside the bounds of every input: more than 1,000 requests
CASES_MIN = 900
SEED = 3


@pytest.mark.long
def test_documented_and_real_answers_agree(start: Callable[..., Dev]) -> None:
    dev = start().wait_until_ready()
    token = dev.token("schemathesis", scope=SCOPES)
    prepare(dev.url, token)
    result = run(dev.url, token, examples=EXAMPLES, seed=SEED)
    assert (result.failures, result.whole) == (0, True), result.output
    assert result.cases >= CASES_MIN, result.line
    routes = [route for operation in OPERATIONS for route in operation.routes(COUNTERS)]
    never = {route.key for route in routes if not result.accepted.get(route.key)}
    assert not never, f"no request for {never} was accepted: {result.line}"
