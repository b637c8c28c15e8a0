"""One `make dev` for the tests that only call it. The others start their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.dev import Dev


@pytest.fixture(scope="session")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    started = Dev(tmp_path_factory.mktemp("dev") / "data")
    try:
        yield started.wait_until_ready()
    finally:
        started.stop()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Dev]]:
    """Start a `make dev` for one test, on the data folder `name`. The end of the test stops it."""
    all_started: list[Dev] = []

    def start_one(*arguments: str, name: str = "data", **environment: str) -> Dev:
        all_started.append(Dev(tmp_path / name, *arguments, **environment))
        return all_started[-1]

    yield start_one
    for started in all_started:
        started.stop()
