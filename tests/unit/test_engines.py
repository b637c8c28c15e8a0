"""Each test that is listed as failing on DynamoDB Local exists, and CI runs its file on DynamoDB Local."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.engines.dynamodb_local import KNOWN_FAILURES

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", KNOWN_FAILURES)
def test_a_known_failure_is_a_test_that_ci_runs_on_dynamodb_local(name: str) -> None:
    """A renamed test must be renamed in the list, too. If CI left the file out, nobody would notice a new failure."""
    file, _, test = name.partition("::")
    defined = f"def {test.partition('[')[0]}("
    (path,) = (path for path in (ROOT / "tests").glob(f"in*/{file}") if defined in path.read_text())
    assert path.parent.name in ("invariants", "integration")
    # ON_LOCAL names the files without `test_`.
    on_local = (ROOT / "Makefile").read_text().partition("\nON_LOCAL := ")[2].partition("\n#")[0]
    assert re.search(rf"[ ,]{re.escape(file.removeprefix('test_'))}[ )]", on_local)
