"""The engines that the tests run on: the embedded engine, or AWS's DynamoDB Local if ENGINE=dynamodb-local."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from tally.dev.base.dynamodb_local import DynamoDBLocal
from tally.dev.base.engine import Engine
from tests.engines.dynamodb_local import KNOWN_FAILURES

MEMORY_FOLDER = Path("/dev/shm")
FREE_BYTES_MIN = 1 << 30  # with less, the engines of all workers might fill the memory


class IndexedEngine(Engine):
    """The embedded engine on a file in memory.

    The file has an index. Without the index, writes and reads of a stream take time in proportion to all its records.
    """

    def start(self) -> Engine:
        self.db_path = Path(tempfile.mkdtemp(prefix="tally-test-", dir=MEMORY_FOLDER)) / "engine.db"
        return super().start()

    def stop(self) -> None:
        super().stop()
        if self.db_path is not None:
            shutil.rmtree(self.db_path.parent, ignore_errors=True)


def _embedded() -> type[Engine]:
    has_room = MEMORY_FOLDER.is_dir() and shutil.disk_usage(MEMORY_FOLDER).free >= FREE_BYTES_MIN
    return IndexedEngine if has_room else Engine


ENGINES: dict[str, type[Engine]] = {"": _embedded(), "dynamodb-local": DynamoDBLocal}
ENGINE_NAME = os.environ.get("ENGINE", "")


def new_engine() -> Engine:
    """Returns an engine in memory, not started, of the kind that the variable ENGINE names."""
    return ENGINES[ENGINE_NAME]()


def expect_failures(items: list[pytest.Item]) -> None:
    """Mark the tests that must fail on the present engine."""
    reasons = KNOWN_FAILURES if ENGINE_NAME == "dynamodb-local" else {}
    for item in items:
        if reason := reasons.get(f"{item.path.name}::{item.name}"):
            item.add_marker(pytest.mark.xfail(reason=reason, strict=True))
