"""The token of docs/examples/tokens.py is asked for once, and again before it expires."""

from __future__ import annotations

import base64
import json
import runpy
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from urllib.parse import parse_qs

import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "docs/examples/tokens.py"


def test_a_token_is_asked_for_as_cognito_wants_it_once_and_again_shortly_before_it_expires(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[urllib.request.Request] = []

    def cognito(request: urllib.request.Request, timeout: float) -> BytesIO:
        asked.append(request)
        return BytesIO(json.dumps({"access_token": f"token-{len(asked)}", "expires_in": 3600}).encode())

    monkeypatch.setattr(urllib.request, "urlopen", cognito)
    now = [1000.0]
    made = runpy.run_path(str(EXAMPLE))["Tokens"]
    tokens = made("https://pool.example.com/oauth2/token", "machine", "s3cret", clock=lambda: now[0])
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(lambda _: tokens.get(), range(50))) == ["token-1"] * 50
    [request] = asked
    assert base64.b64decode((request.get_header("Authorization") or "").removeprefix("Basic ")) == b"machine:s3cret"
    assert isinstance(request.data, bytes)
    assert parse_qs(request.data.decode()) == {
        "grant_type": ["client_credentials"], "scope": ["tally/read tally/write"],
    }  # fmt: skip
    for passed_s, token in ((3200, "token-1"), (3300, "token-2"), (3300 + 3200, "token-2")):
        now[0] = 1000.0 + passed_s
        assert tokens.get() == token
