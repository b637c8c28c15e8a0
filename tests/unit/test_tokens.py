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
from urllib.error import HTTPError
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
    """Gives out tokens as Cognito does, and counts them. `refuses`: with 400."""

    asked: list[tuple[str, dict[str, list[str]]]]
    refuses = False


class Handler(BaseHTTPRequestHandler):
    server: Pool

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.server.asked.append((self.headers["Authorization"], parse_qs(body)))
        token = {"access_token": f"token-{len(self.server.asked)}", "expires_in": VALID_S, "token_type": "Bearer"}
        self.send_response(400 if self.server.refuses else 200)
        self.end_headers()
        self.wfile.write(json.dumps({"error": "invalid_client"} if self.server.refuses else token).encode())

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


def test_a_token_is_asked_for_as_cognito_wants_it_and_once(example: ModuleType, pool: Pool) -> None:
    tokens = example.Tokens(url(pool), "machine", "s3cret")
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: tokens.get(), range(50)))
    assert found == ["token-1"] * 50
    [(authorization, body)] = pool.asked
    assert base64.b64decode(authorization.removeprefix("Basic ")) == b"machine:s3cret"
    assert body == {"grant_type": ["client_credentials"], "scope": ["tally/read tally/write"]}


def test_it_is_renewed_shortly_before_it_expires(example: ModuleType, pool: Pool) -> None:
    now = [1000.0]
    tokens = example.Tokens(url(pool), "machine", "s3cret", clock=lambda: now[0])
    for passed_s, token in ((0, "token-1"), (3200, "token-1"), (3300, "token-2"), (3300 + 3200, "token-2")):
        now[0] = 1000.0 + passed_s
        assert tokens.get() == token


def test_a_refused_token_is_an_error_and_the_next_call_asks_again(example: ModuleType, pool: Pool) -> None:
    tokens = example.Tokens(url(pool), "machine", "wrong")
    pool.refuses = True
    with pytest.raises(HTTPError, match="400") as refused:
        tokens.get()
    refused.value.close()
    pool.refuses = False
    assert tokens.get() == "token-2"
