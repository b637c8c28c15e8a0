"""The two tiers of test cases: `make test` runs the short tier, and `make test-all` the long tier, too."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def marked_long(cases: Iterable[Any]) -> list[Any]:
    """Puts these cases of a parametrized test into the long tier. A tuple is a case of several parameters."""
    values = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [pytest.param(*parameters, marks=pytest.mark.long) for parameters in values]
