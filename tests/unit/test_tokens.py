"""The token of docs/examples/tokens.py is asked for once, and again before it expires."""

from __future__ import annotations

import base64
import importlib.util
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import parse_qs

import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "docs/examples/tokens.py"
VALID_S = 3600


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("example_tokens", EXAMPLE)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Pool(ThreadingHTTPServer):
    """Gives out tokens as Cognito does, and counts them."""

    asked: list[tuple[str, dict[str, list[str]]]]


class Handler(BaseHTTPRequestHandler):
    server: Pool

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.server.asked.append((self.headers["Authorization"], parse_qs(body)))
        token = {"access_token": f"token-{len(self.server.asked)}", "expires_in": VALID_S, "token_type": "Bearer"}
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(token).encode())

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def pool() -> Iterator[Pool]:
    with Pool(("127.0.0.1", 0), Handler) as server:
        server.asked = []
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server
        server.shutdown()


def url(pool: Pool) -> str:
    return f"http://127.0.0.1:{pool.server_address[1]}/oauth2/token"


def test_a_token_is_asked_for_as_cognito_wants_it_once_and_again_shortly_before_it_expires(
    example: ModuleType, pool: Pool
) -> None:
    now = [1000.0]
    tokens = example.Tokens(url(pool), "machine", "s3cret", clock=lambda: now[0])
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: tokens.get(), range(50)))
    assert found == ["token-1"] * 50
    [(authorization, body)] = pool.asked
    assert base64.b64decode(authorization.removeprefix("Basic ")) == b"machine:s3cret"
    assert body == {"grant_type": ["client_credentials"], "scope": ["tally/read tally/write"]}
    for passed_s, token in ((3200, "token-1"), (3300, "token-2"), (3300 + 3200, "token-2")):
        now[0] = 1000.0 + passed_s
        assert tokens.get() == token
