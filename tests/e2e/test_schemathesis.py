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


def test_each_read_that_answers_200_after_a_delete_is_listed() -> None:
    """schemathesis expects 404, and no seed should be the first one to ask."""
    from tests.e2e.schemathesis_hooks import READS_OF_NOTHING  # it takes a second, and registers hooks

    routes = [route for operation in OPERATIONS for route in operation.routes(COUNTERS)]
    deletes, gets = ([one for one in routes if one.key.startswith(method)] for method in ("DELETE ", "GET "))
    reads = {get.operation.name for get in gets for delete in deletes if _is_below(get.key, delete.key)}
    assert reads == READS_OF_NOTHING | {"get_post"}, "and a post that was deleted is 404"


def _is_below(read: str, deleted: str) -> bool:
    """Whether a read may be of what was deleted, or of a part of it."""
    parts, of = (key.partition(" ")[2].split("/") for key in (read, deleted))
    same = all(part == one or "{" in part + one for part, one in zip(parts, of, strict=False))
    return same and len(parts) >= len(of)
