"""Gets a machine's token for calls of Tally over HTTP, and keeps the token until shortly before it expires.

Cognito bills each token that it gives out. Make one `Tokens` for a process: its threads may share the object.
"""

from __future__ import annotations

import base64
import json
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable

EARLY = 0.1  # a token is renewed after 90 % of its life, so that it does not expire before a request arrives
TIMEOUT_S = 5


class Tokens:
    """The token of one program. `url`: the stack's output TokenUrl. `clock`: returns seconds."""

    def __init__(
        self,
        url: str,
        client_id: str,
        secret: str,
        scope: str = "tally/read tally/write",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        pair = base64.b64encode(f"{client_id}:{secret}".encode()).decode()
        body = urllib.parse.urlencode({"grant_type": "client_credentials", "scope": scope})
        self._request = urllib.request.Request(url, body.encode(), {"Authorization": f"Basic {pair}"})
        self._clock = clock
        self._lock = threading.Lock()
        self._token, self._until_s = "", 0.0

    def get(self) -> str:
        """Return the token, for the header `Authorization: Bearer …`. Raises OSError if Cognito gives no token."""
        with self._lock:  # one thread requests a token, and the other threads wait
            if self._clock() >= self._until_s:
                requested_s = self._clock()
                with urllib.request.urlopen(self._request, timeout=TIMEOUT_S) as answer:
                    granted = json.load(answer)
                self._token = granted["access_token"]
                self._until_s = requested_s + granted["expires_in"] * (1 - EARLY)
            return self._token
