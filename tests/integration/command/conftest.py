"""Runs the command `tally` on the test's tables, as on the tables of `make dev`."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from tally.cli import scan
from tally.counter import Counter
from tally.dev.base.engine import Engine
from tally.dynamo.client import Store
from tests.commands import run_command
from tests.e2e.servers import Reply, Server
from tests.integration.command.numbers import Run
from tests.integration.command.team import Team
from tests.sync_wire import SyncWire


@pytest.fixture
def dev_stack(engine: Engine, store: Store) -> dict[str, Any]:
    """Returns what `make dev` answers to /dev/stack."""
    settings = store.settings
    return {
        "dynamodb": engine.endpoint, "s3": engine.endpoint, "counts": settings.counts_table,
        "receipts": settings.receipts_table, "ledger": settings.ledger_table, "bucket": "dead-letters", "minute_s": 60,
        "outputs": {},
    }  # fmt: skip


@pytest.fixture
def port(dev_stack: dict[str, Any]) -> Iterator[int]:
    """Runs a server that answers /dev/stack as `make dev` does, and returns its port."""
    server = Server(
        lambda _, path, *__: Reply(200 if path == "/dev/stack" else 404, json.dumps(dev_stack).encode(), {})
    )
    with server.running():
        yield int(server.origin.rpartition(":")[2])


@pytest.fixture
def make_team(
    store: Store, engine: Engine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[Mapping[str, Counter]], Team]]:
    """Returns a function that makes a team for these counters. The team's command does not wait: it calls `Team.sleep`,
    which runs the consumer and the sweep."""
    with contextlib.closing(SyncWire(engine.port)) as wire:

        def make(counters: Mapping[str, Counter]) -> Team:
            team = Team(store, wire, counters, "shop", engine.endpoint, capsys=capsys)
            monkeypatch.setattr(scan, "time", SimpleNamespace(time=scan.time.time, sleep=team.sleep))
            return team

        yield make


@pytest.fixture
def run(port: int, capsys: pytest.CaptureFixture[str]) -> Run:
    """Returns a function that runs the command on the test's tables, and returns exit status, output and errors."""
    return lambda *arguments: run_command(capsys, *arguments, "--local", "--port", str(port))
