"""Every test runs on an engine (tests/engines): a fresh process for each module, fresh tables for each test."""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import os
import signal
import time
from collections.abc import Iterator
from email.utils import formatdate
from typing import TYPE_CHECKING

os.environ.setdefault("AWS_ACCESS_KEY_ID", "local")
os.environ.setdefault("AWS_SECRET_ACCESS_KEY", "local")
os.environ.setdefault("AWS_DEFAULT_REGION", "eu-west-1")
os.environ["TALLY_COUNTS_TABLE"] = "tally-test-counts"
os.environ["TALLY_RECEIPTS_TABLE"] = "tally-test-receipts"
os.environ["TALLY_LEDGER_TABLE"] = "tally-test-ledger"
os.environ["TALLY_PAGE_HOSTS"] = "*"
os.environ["TALLY_DEAD_LETTER_BUCKET"] = "tally-test-dead-letters"

# A shell starts a background process with SIGINT ignored, and child processes inherit this. Tests stop these by SIGINT.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import boto3
import hypothesis
import pytest
from botocore.config import Config

from bench import clients
from tally.dev.base.engine import Engine
from tally.dynamo import client as dynamo
from tally.dynamo.client import Call, Store, dynamodb_client
from tally.settings import Settings
from tests.engines import expect_failures, new_engine
from tests.patience import PATIENCE_S
from tests.sync_wire import SyncWire

# The same examples in each run, without a time limit, because a busy machine is not a failure.
hypothesis.settings.load_profile("ci")

# On a busy machine the engine answers late. A test of late answers has a client with a shorter timeout.
dynamo.CLIENT_CONFIG = dynamo.CLIENT_CONFIG.merge(Config(read_timeout=PATIENCE_S))
dynamo.CALL_TIME_DEFAULT_S = PATIENCE_S

# Tests move `time.time`. With the engine's own time, an answer would correct the clock, and undo the move.
dynamo._date = functools.wraps(dynamo._date)(lambda answer: formatdate(time.time(), usegmt=True))

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

_numbers = itertools.count()  # of the tests that have tables, for the tables' names


@pytest.hookimpl(optionalhook=True)  # mutations run without xdist
def pytest_xdist_auto_num_workers() -> int:
    """One worker more than cores, up to 7, because end-to-end tests mostly wait. Two more would be slower."""
    return min(os.cpu_count() or 2, 6) + 1


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let each worker begin with tests that share a costly fixture, so that only one worker makes the fixture.

    xdist gives each worker an equal part of the list, in order. An idle worker takes tests from the end of
    another worker's part.
    """
    expect_failures(items)
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if workers == 1:
        return
    first_tests: list[list[pytest.Item]] = [[] for _ in range(workers)]
    other_tests: list[pytest.Item] = []
    for item in items:
        worker = _worker_to_begin_with(item)
        (other_tests if worker is None else first_tests[worker % workers]).append(item)
    spare = iter(other_tests)
    length = len(items) // workers
    parts = [[*tests, *itertools.islice(spare, max(0, length - len(tests)))] for tests in first_tests]
    items[:] = [*itertools.chain(*parts), *spare]


def pytest_collection_finish() -> None:
    """Freeze modules and tests, which live as long as the process, so that no garbage collection scans them."""
    gc.freeze()


def _worker_to_begin_with(item: pytest.Item) -> int | None:
    """Returns the worker that begins with this test; None: any worker may run it."""
    match item.path.parent.name:
        case "e2e":
            return 0 if "dev" in getattr(item, "fixturenames", ()) else 2
        case "emulator" | "infra" | "wheel":
            return 1
        case _:
            return None


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with new_engine() as running:
        yield running
        assert not (ended := running.end_reason()), f"the engine died in this module: {ended}"


def create_tables(endpoint: str | None, settings: Settings, streamed: tuple[str, ...] = ()) -> None:
    """Create the tables that functions write to. `endpoint`: None for AWS's own (moto).

    A fresh engine may be slow. SyncWire sends each request once, because a repeated CreateTable would fail.
    """
    if endpoint is None:
        clients.create_tables(boto3.client("dynamodb"), settings, streamed)
        return
    with contextlib.closing(SyncWire(int(endpoint.rpartition(":")[2]))) as wire:
        clients.create_tables(wire, settings, streamed)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def client(engine: Engine) -> Iterator[DynamoDBClient]:
    client = dynamodb_client(endpoint_url=engine.endpoint)
    yield client
    client.close()


@pytest.fixture(scope="session")
def streamed() -> tuple[str, ...]:
    """The tables of a test that have a stream."""
    return ()


@pytest.fixture
def settings(client: DynamoDBClient, streamed: tuple[str, ...]) -> Settings:
    """The settings of a test, with empty tables of its own."""
    return fresh_tables(client.meta.endpoint_url, streamed)


def fresh_tables(endpoint: str, streamed: tuple[str, ...] = ()) -> Settings:
    """Create empty tables, and return their settings."""
    number = next(_numbers)
    settings = Settings.from_environment(
        {
            "TALLY_COUNTS_TABLE": f"tally-test-counts-{number}",
            "TALLY_RECEIPTS_TABLE": f"tally-test-receipts-{number}",
            "TALLY_LEDGER_TABLE": f"tally-test-ledger-{number}",
            "TALLY_PAGE_HOSTS": "*",
        }
    )
    create_tables(endpoint, settings, streamed)
    return settings


@pytest.fixture
def store(engine: Engine, settings: Settings, request: pytest.FixtureRequest) -> Iterator[Store]:
    """A store with SyncWire, which takes a fifth of the SDK's time. With `pytest.mark.sdk`: the SDK's client."""
    if request.node.get_closest_marker("sdk"):
        yield Store(dynamodb_client(endpoint_url=engine.endpoint), settings)
        return
    with contextlib.closing(SyncWire(engine.port)) as wire:
        yield Store(wire, settings)  # type: ignore[arg-type]


@pytest.fixture
def midday(monkeypatch: pytest.MonkeyPatch) -> None:
    """Starts the clock at 12:30 UTC of today, so that the last minutes and the test are in one hour and one day."""
    now, day_s = time.time, 24 * 3600
    shift_s = 12.5 * 3600 - now() % day_s
    monkeypatch.setattr(time, "time", lambda: now() + shift_s)


@pytest.fixture
def call(store: Store) -> Call:
    return Call(store)
