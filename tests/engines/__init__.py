"""The engines that the tests run on: the embedded one, or with ENGINE=dynamodb-local AWS's own DynamoDB Local."""

from __future__ import annotations

import os

import pytest

from dev.base.engine import Engine
from tests.engines.dynamodb_local import FAILS, DynamoDBLocal

ENGINES: dict[str, type[Engine]] = {"": Engine, "dynamodb-local": DynamoDBLocal}
NAME = os.environ.get("ENGINE", "")


def new_engine() -> Engine:
    """An engine of the kind that the variable ENGINE names, in memory. It is not started yet."""
    return ENGINES[NAME]()


def expect_failures(items: list[pytest.Item]) -> None:
    """Mark the tests that are known to fail on this engine: they must fail."""
    known = FAILS if NAME == "dynamodb-local" else {}
    for item in items:
        if reason := known.get(f"{item.path.name}::{item.name}"):
            item.add_marker(pytest.mark.xfail(reason=reason, strict=True))
