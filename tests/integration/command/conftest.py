"""The command `tally` on the test's tables, as if they were those of `make dev`."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from dev.base.engine import Engine
from tally.dynamo.client import Store
from tests.commands import ran
from tests.integration.command.numbers import Run


@pytest.fixture
def where(engine: Engine, store: Store) -> dict[str, Any]:
    """What `make dev` says of its tables."""
    settings = store.settings
    return {
        "dynamodb": engine.endpoint, "s3": engine.endpoint, "counts": settings.counts_table,
        "receipts": settings.receipts_table, "ledger": settings.ledger_table, "bucket": "aside", "minute_s": 60,
        "outputs": {},
    }  # fmt: skip


@pytest.fixture
def port(where: dict[str, Any]) -> Iterator[int]:
    """The port of a server that answers /dev/stack, as `make dev` does."""

    class Dev(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(where).encode()
            self.send_response(200 if self.path == "/dev/stack" else 404)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Dev) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


@pytest.fixture
def run(port: int, capsys: pytest.CaptureFixture[str]) -> Run:
    return lambda *arguments: ran(capsys, *arguments, "--local", "--port", str(port))
