"""docs/examples/tokens.py gets a token once for all threads, and a new token before the old one expires."""

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


def test_the_example_gets_a_token_from_cognito_once_and_a_new_one_shortly_before_it_expires(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    requests: list[urllib.request.Request] = []

    def cognito(request: urllib.request.Request, timeout: float) -> BytesIO:
        requests.append(request)
        return BytesIO(json.dumps({"access_token": f"token-{len(requests)}", "expires_in": 3600}).encode())

    monkeypatch.setattr(urllib.request, "urlopen", cognito)
    now = [1000.0]
    Tokens = runpy.run_path(str(EXAMPLE))["Tokens"]
    tokens = Tokens("https://pool.example.com/oauth2/token", "machine", "s3cret", clock=lambda: now[0])
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(lambda _: tokens.get(), range(50))) == ["token-1"] * 50
    [request] = requests
    assert base64.b64decode((request.get_header("Authorization") or "").removeprefix("Basic ")) == b"machine:s3cret"
    assert isinstance(request.data, bytes)
    assert parse_qs(request.data.decode()) == {
        "grant_type": ["client_credentials"], "scope": ["tally/read tally/write"],
    }  # fmt: skip
    # The example replaces a token of 3600 s after 90 % of this time, 3240 s. The second token begins at 3300 s.
    for passed_s, token in ((3200, "token-1"), (3300, "token-2"), (3300 + 3200, "token-2")):
        now[0] = 1000.0 + passed_s
        assert tokens.get() == token
