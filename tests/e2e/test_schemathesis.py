"""Compares the answers of `make dev` with the OpenAPI document, with every check of schemathesis.

Each run sends the same requests. `make fuzz` sends thousands of random requests.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from counters import COUNTERS
from tally.contract.declarations import OPERATIONS
from tests.e2e.dev import Dev
from tests.e2e.schemathesis_run import SCOPES, prepare, run

EXAMPLES = 5  # random requests for each operation; schemathesis also sends the bounds of each input
CASES_MIN = 900  # if there are fewer, schemathesis has skipped operations
SEED = 3


@pytest.mark.long
def test_documented_and_real_answers_agree(start: Callable[..., Dev]) -> None:
    dev = start().wait_until_ready()
    token = dev.token("schemathesis", scope=SCOPES)
    prepare(dev.url, token)
    result = run(dev.url, token, examples=EXAMPLES, seed=SEED)
    assert (result.failures, result.is_complete) == (0, True), result.output
    assert result.cases >= CASES_MIN, result.line
    routes = [route for operation in OPERATIONS for route in operation.routes(COUNTERS)]
    never_accepted = {route.key for route in routes if not result.accepted.get(route.key)}
    assert not never_accepted, f"no request for {never_accepted} was accepted: {result.line}"


def test_each_read_that_answers_200_after_a_delete_is_listed() -> None:
    """schemathesis expects 404 after a DELETE. Not each seed sends such a read, so a run may miss an unlisted read."""
    from tests.e2e.schemathesis_hooks import READS_OF_NOTHING  # the import takes a second, and registers hooks

    routes = [route for operation in OPERATIONS for route in operation.routes(COUNTERS)]
    deletes, gets = ([one for one in routes if one.key.startswith(method)] for method in ("DELETE ", "GET "))
    reads = {get.operation.name for get in gets for delete in deletes if _is_below(get.key, delete.key)}
    assert reads == READS_OF_NOTHING | {"get_post"}, "only a deleted post answers 404"


def _is_below(read: str, deleted: str) -> bool:
    """Returns whether the path of a read equals or extends the path of a DELETE."""
    read_parts, deleted_parts = (key.partition(" ")[2].split("/") for key in (read, deleted))
    same = all(part == other or "{" in part + other for part, other in zip(read_parts, deleted_parts, strict=False))
    return same and len(read_parts) >= len(deleted_parts)
