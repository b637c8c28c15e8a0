"""Many visitors of a Tally server at once. Some visitors send a visit twice, and some visitors get no answer.

When the server is busy or gives no answer, a visitor retries with the same key, a bounded number of times.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import aiohttp

from tally.dev.base.errors import LocalError

TWICE_EVERY = 10
"""Every tenth visit is sent twice, at the same moment."""
LOST_EVERY, LOST_AT = 20, 5
"""The answer of the 5th, 25th, 45th … visit is lost, and the visitor sends this visit again."""
BROWSER = "Mozilla/5.0 (X11; Linux x86_64) tally-demo"  # a browser's, because another counter counts programs' visits
REQUEST_S_MAX = 30.0  # API Gateway's limit
ATTEMPTS_MAX = 30  # of one request, which take half a minute or more
UNANSWERED_MAX = 5  # after so many attempts without an answer, the demo takes the server for ended
PAUSE_FIRST_S, PAUSE_MAX_S = 0.1, 2.0  # before the second attempt, and before any attempt
_RETRYABLE = frozenset({429, 500, 502, 503, 504})

Progress = Callable[[int], object]
"""Is called with the number of visits or reads that ended since the last call."""
_Job = TypeVar("_Job")


class DriftingTally(NamedTuple):
    """A tally that drifts. `drift` is observed less expected."""

    counter: str
    id: str
    drift: int


@dataclass
class RequestsSent:
    """How many visits were sent, and how."""

    requests: int = 0  # every attempt to send a visit
    replays: int = 0  # answers that repeated the answer to an earlier request
    sent_twice: int = 0
    answers_lost: int = 0
    """Visits that Tally counted, and whose visitors got no answer."""
    retries: int = 0
    """Attempts after an answer 429 or 5xx, or after no answer."""


@dataclass
class Server:
    """A Tally server on this machine; an asynchronous context manager."""

    port: int
    sent: RequestsSent = field(default_factory=RequestsSent)
    _session: aiohttp.ClientSession | None = None
    _token: str = ""

    async def __aenter__(self) -> Server:
        timeout = aiohttp.ClientTimeout(total=REQUEST_S_MAX)
        agent = {"user-agent": BROWSER}
        self._session = aiohttp.ClientSession(f"http://127.0.0.1:{self.port}", timeout=timeout, headers=agent)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session:
            await self._session.close()

    async def is_running(self) -> bool:
        """Whether a Tally server listens. Raises LocalError if another program listens."""
        try:
            _, document, _ = await self._request_once("GET", "/health")
        except aiohttp.ClientConnectorError:
            return False
        except (aiohttp.ClientError, TimeoutError, ValueError):
            document = {}
        if document.get("status") == "ok" or "tally" in str(document.get("type")):
            return True
        raise LocalError(f"port {self.port} belongs to another program, not to Tally: set PORT to another port")

    async def read_visits(self, page: str) -> int:
        """Returns the number of visits of a page."""
        return int((await self._request_with_retries("GET", "/visits", params={"url": page}))["value"])

    async def read_series(self, page: str) -> tuple[int, float]:
        """Returns the sum of a page's days in the last month, and the time up to which it is complete (0: never)."""
        body = await self._request_with_retries("GET", "/series", params={"of": f"visits:{page}", "by": "day"})
        return sum(point["value"] for point in body["series"]), float(body["as_of"] or 0)

    async def read_top(self, month: str) -> tuple[dict[str, int], float]:
        """Returns the most visited pages of a month (`2026-11`), and the time up to which the list is complete."""
        params = {"counter": "visits", "by": "month", "span": month, "limit": "100"}
        body = await self._request_with_retries("GET", "/top/any", params=params, headers=await self._reader_headers())
        return {row["id"]: int(row["value"]) for row in body["top"]}, float(body["as_of"] or 0)

    async def read_minute_s(self) -> int:
        """Returns the length of a minute of the ledger in seconds."""
        return int((await self._request_with_retries("GET", "/dev/stack"))["minute_s"])

    async def read_drift(self) -> frozenset[DriftingTally]:
        """Returns every tally that drifts in the judged minutes."""
        drifting: set[DriftingTally] = set()
        params: dict[str, str] = {}
        while True:
            headers = await self._reader_headers()
            page = await self._request_with_retries("GET", "/drift", params=params, headers=headers)
            drifting.update(DriftingTally(row["counter"], row["id"], int(row["drift"])) for row in page["drift"])
            if page["cursor"] is None:
                return frozenset(drifting)
            params = {"cursor": page["cursor"]}

    async def _reader_headers(self) -> dict[str, str]:
        """Returns the headers of a caller with the scope tally/read."""
        if not self._token:
            token = await self._request_with_retries("POST", "/dev/token", json={"sub": "demo", "scope": "tally/read"})
            self._token = str(token["access_token"])
        return {"authorization": f"Bearer {self._token}"}

    async def visit(self, url: str, key: str) -> None:
        """Send a visit until the server answers."""
        await self._request_with_retries("POST", "/visits", json={"url": url, "key": key})

    async def lose_the_answer(self, url: str, key: str) -> None:
        """Send a visit whose answer is lost. On this path, the server counts the visit and closes the connection."""
        self.sent.answers_lost += 1
        with contextlib.suppress(aiohttp.ClientError, TimeoutError, ValueError):
            await self._request_once("POST", "/dev/lost/visits", json={"url": url, "key": key})

    async def _request_with_retries(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        """Returns the answer, after retries. If there is no answer, or a retry cannot help, raises LocalError."""
        unanswered = 0
        for attempt in range(ATTEMPTS_MAX):
            pause_s = random.uniform(0.5, 1.0) * min(PAUSE_MAX_S, PAUSE_FIRST_S * 2**attempt)
            try:
                status, document, headers = await self._request_once(method, path, **options)
                if status not in _RETRYABLE:
                    self._check(status, document, path)
                    self.sent.replays += method == "POST" and headers.get("Idempotency-Replayed") == "true"
                    return document
                pause_s = max(pause_s, min(float(headers.get("Retry-After", 0)), PAUSE_MAX_S))
            except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
                unanswered += 1
            if unanswered == UNANSWERED_MAX:
                raise LocalError(f"the server on port {self.port} stopped answering")
            self.sent.retries += 1
            await asyncio.sleep(pause_s)
        raise LocalError(f"the server on port {self.port} is too busy: it refused {ATTEMPTS_MAX} attempts")

    async def _request_once(
        self, method: str, path: str, **options: Any
    ) -> tuple[int, dict[str, Any], Mapping[str, str]]:
        assert self._session is not None
        self.sent.requests += path.endswith("/visits") and method == "POST"
        async with self._session.request(method, path, **options) as response:
            document = json.loads(await response.read())
            if not isinstance(document, dict):
                raise ValueError("not a JSON object")
            return response.status, document, response.headers

    def _check(self, status: int, document: Mapping[str, Any], path: str) -> None:
        """Raise LocalError if the server refused a request, and a retry cannot help."""
        if status == 403 and path == "/visits":
            raise LocalError("the server does not count the demo's pages: start it without TALLY_PAGE_HOSTS")
        if status == 404 and path == "/visits":
            advice = "counters.py must list VISITS and BOT_VISITS of tally.builtin"
            raise LocalError(f"the server counts no visits: {advice}")
        if status >= 400:
            reason = document.get("detail") or document.get("message") or ""
            request = "a visit" if path == "/visits" else path
            raise LocalError(f"the server refused {request} with {status}: {reason}")


async def send(server: Server, visits: Iterable[tuple[str, str]], concurrency: int, progress: Progress) -> None:
    """Send visits (URL and key), `concurrency` at a time. Raises LocalError."""

    async def visit(job: tuple[int, tuple[str, str]]) -> None:
        number, (url, key) = job
        if number % LOST_EVERY == LOST_AT:
            await server.lose_the_answer(url, key)
        if number % TWICE_EVERY == 0:
            server.sent.sent_twice += 1
            await asyncio.gather(server.visit(url, key), server.visit(url, key))
        else:
            await server.visit(url, key)
        progress(1)

    await _run_concurrently(enumerate(visits, 1), visit, concurrency)


async def read_counts(server: Server, pages: Iterable[str], concurrency: int, progress: Progress) -> dict[str, int]:
    """Returns the server's count of each page. Raises LocalError."""
    by_page: dict[str, int] = {}

    async def read_one(page: str) -> None:
        by_page[page] = await server.read_visits(page)
        progress(1)

    await _run_concurrently(pages, read_one, concurrency)
    return by_page


async def _run_concurrently(jobs: Iterable[_Job], work: Callable[[_Job], Awaitable[None]], concurrency: int) -> None:
    """Run `concurrency` jobs at a time until all are done. If a job raises, cancel the other jobs."""
    jobs_left = iter(jobs)

    async def worker() -> None:
        for job in jobs_left:
            await work(job)

    workers = [asyncio.ensure_future(worker()) for _ in range(concurrency)]
    try:
        await asyncio.gather(*workers)
    finally:
        for task in workers:
            task.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
