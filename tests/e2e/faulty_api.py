"""A server between pages and `make dev`. The server fails as networks, gateways and captive portals do.

Only changes and requests for receipts meet faults, at random. The server forwards every other request.
"""

from __future__ import annotations

import http.client
import random
import threading
from collections import Counter
from collections.abc import Mapping
from contextlib import closing

from tests.e2e.dev import Dev
from tests.e2e.servers import LOST, Reply, Server
from tests.patience import PATIENCE_S

CORS = {"access-control-allow-origin": "*", "access-control-expose-headers": "Date,Idempotency-Replayed,Retry-After"}
FAULT_SHARES: Mapping[str, float] = {
    "answer lost": 0.20, "request lost": 0.05, "503": 0.05, "429": 0.03, "portal": 0.02,
}  # fmt: skip
"""The probability of each fault. A request without a fault is forwarded, and so is a request whose answer is lost."""
FAULT_REPLIES = {
    "503": Reply(503, b'{"message":"Service Unavailable"}', {**CORS, "content-type": "application/json"}),
    "429": Reply(429, b'{"message":"Too Many Requests"}', {**CORS, "content-type": "application/json"}),
    "portal": Reply(200, b"<!doctype html><h1>Sign in to the Wi-Fi</h1>", {**CORS, "content-type": "text/html"}),
    "request lost": Reply(LOST, b"", {}),
}
CHANGE_METHODS = ("POST", "PUT", "DELETE")
# Headers that belong to the connection with `make dev`, or that the server writes itself.
_OWN_HEADERS = ("connection", "content-length", "transfer-encoding", "keep-alive", "server", "date")


class FaultyApi:
    """The API of `dev` at `server.origin`. `faults`: the probability of each fault while `failing` is true.

    `gate`: if there is a gate when a change arrives, the answer waits until the gate is set. `fault_counts`: how many
    changes and requests for receipts met each fault; "none": no fault.
    """

    def __init__(self, dev: Dev, seed: int, faults: Mapping[str, float] = FAULT_SHARES) -> None:
        self._dev, self.faults = dev, faults
        self._random, self._lock = random.Random(seed), threading.Lock()
        self.failing = True
        self.gate: threading.Event | None = None
        self.fault_counts: Counter[str] = Counter()
        self.server = Server(self._answer)

    def _answer(self, method: str, target: str, headers: dict[str, str], body: bytes) -> Reply:
        fault = self._fault(method, target)
        if fault in FAULT_REPLIES:
            return FAULT_REPLIES[fault]
        gate = self.gate if method in CHANGE_METHODS else None
        sent = {name: value for name, value in headers.items() if name not in ("host", "connection")}
        with closing(http.client.HTTPConnection("127.0.0.1", self._dev.port, timeout=PATIENCE_S)) as connection:
            connection.request(method, target, body or None, sent)
            answer = connection.getresponse()
            received = {name.lower(): value for name, value in answer.getheaders() if name.lower() not in _OWN_HEADERS}
            reply = Reply(answer.status, answer.read(), received)
        if gate:
            gate.wait(PATIENCE_S)
        return Reply(LOST, b"", {}) if fault == "answer lost" else reply

    def _fault(self, method: str, target: str) -> str:
        """Returns the fault of a request, or "none"; "" if the request is neither a change nor for a receipt."""
        if not (method in CHANGE_METHODS or target.startswith("/receipts")):
            return ""
        with self._lock:
            remainder, fault = self._random.random(), "none"
            for name, chance in self.faults.items() if self.failing else ():
                remainder -= chance
                if remainder < 0:
                    fault = name
                    break
            self.fault_counts[fault] += 1
            return fault
