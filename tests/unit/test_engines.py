"""The tests that fail on DynamoDB Local are listed, and CI runs the files that have one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.engines.dynamodb_local import KNOWN_FAILURES

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", KNOWN_FAILURES)
def test_what_fails_on_dynamodb_local_is_a_test_that_ci_runs_on_it(name: str) -> None:
    """A test that is renamed is not known to fail; and a file that CI leaves out begins to fail unnoticed."""
    file, _, test = name.partition("::")
    defined = f"def {test.partition('[')[0]}("
    (path,) = (path for path in (ROOT / "tests").glob(f"in*/{file}") if defined in path.read_text())
    assert path.parent.name in ("invariants", "integration")
    on_local = (ROOT / "Makefile").read_text().partition("\nON_LOCAL := ")[2].partition("\n#")[0]
    assert re.search(rf"[ ,]{re.escape(file.removeprefix('test_'))}[ )]", on_local)
