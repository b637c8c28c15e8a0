"""Fixtures: one `make dev` that most tests share, and `start` for a test that needs another `make dev`.

Tests in Chromium have the marker `long`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Playwright, sync_playwright

from tests.e2e import chromium
from tests.e2e.dev import Dev


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks tests in Chromium as long, because Chromium and its pages cost as much as a hundred other tests."""
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.long)


@pytest.fixture(scope="package")  # not "session": an idle `make dev` would take a tenth of a core from other tests
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    started = Dev(tmp_path_factory.mktemp("dev") / "data")
    try:
        yield started.wait_until_ready()
    finally:
        started.stop()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Dev]]:
    """Returns a function that starts a `make dev` with the data folder `name`. Each `make dev` ends with the test.
    `environment`: variables, and the arguments `app` and `warnings` of Dev."""
    all_started: list[Dev] = []

    def start_one(*arguments: str, name: str = "data", **environment: Any) -> Dev:
        all_started.append(Dev(tmp_path / name, *arguments, **environment))
        return all_started[-1]

    yield start_one
    for started in all_started:
        started.stop()


@pytest.fixture(scope="module")
def playwright() -> Iterator[Playwright]:
    # The scope is one module: while Playwright runs, nothing else in this thread can run an event loop.
    with sync_playwright() as running:
        yield running


@pytest.fixture(scope="module")
def browser(playwright: Playwright) -> Iterator[Browser]:
    with chromium.launch(playwright) as running:
        yield running
