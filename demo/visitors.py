"""Many visitors of a Tally server at once, some of whom ask twice, and some of whom hang up before they are answered.

All of them come again with the same key when the server is busy or gives no answer, a bounded number of times.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, TypeVar

import aiohttp

from local.base.errors import LocalError

TWICE_EVERY = 10
"""Every tenth visit is sent twice, at the same moment."""
LOST_EVERY, LOST_AT = 20, 5
"""Every twentieth visit, none of those above, loses its answer and is sent again."""
BROWSER = "Mozilla/5.0 (X11; Linux x86_64) tally-demo"  # what visits pages is a browser: programs are counted apart
REQUEST_S_MAX = 30.0  # what API Gateway allows an integration
ATTEMPTS_MAX = 30  # of a request that is answered 429 or 5xx: with the pauses half a minute and more
UNANSWERED_MAX = 5  # attempts without any answer: the server is gone
PAUSE_FIRST_S = 0.1
PAUSE_MAX_S = 2.0
_COME_AGAIN = frozenset({429, 500, 502, 503, 504})

Progress = Callable[[int], object]
"""Told how many steps were made since it was last told."""
_Job = TypeVar("_Job")
Drifting = tuple[str, str, int]
"""A tally that drifts, and by how much: counter, id, observed less expected."""


@dataclass(frozen=True)
class Response:
    """An answer: its JSON document, whether it is a replay of an earlier one, and when to come again if it says so."""

    status: int
    document: dict[str, Any]
    replayed: bool = False
    retry_after_s: float = 0.0


@dataclass
class Sent:
    """What was sent, and what came of it."""

    requests: int = 0
    """Every attempt."""
    first_answers: int = 0
    replays: int = 0
    sent_twice: int = 0
    answers_lost: int = 0
    """Of visitors who hung up. Their visits may have been counted by then or not."""
    come_agains: int = 0
    """Answers 429 and 5xx, and attempts without an answer: sent again."""


@dataclass
class Server:
    """A Tally server on this machine; an asynchronous context manager."""

    port: int
    sent: Sent = field(default_factory=Sent)
    _session: aiohttp.ClientSession | None = None
    _token: str = ""

    async def __aenter__(self) -> Server:
        timeout = aiohttp.ClientTimeout(total=REQUEST_S_MAX)
        agent = {"user-agent": BROWSER}
        self._session = aiohttp.ClientSession(f"http://127.0.0.1:{self.port}", timeout=timeout, headers=agent)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session:
            await self._session.close()

    async def is_there(self) -> bool:
        """Whether a Tally server listens. Raises LocalError if it is another one."""
        try:
            answer = await self._once("GET", "/health", {})
        except aiohttp.ClientConnectorError:
            return False
        except (aiohttp.ClientError, TimeoutError, ValueError):
            answer = Response(0, {})
        if answer.document.get("status") == "ok" or "tally" in str(answer.document.get("type")):
            return True
        raise LocalError(f"what listens on port {self.port} is no Tally server: set PORT to another port")

    async def visits(self, page: str) -> int:
        """How often the page was visited."""
        answer = await self._ask("GET", "/visits", {"params": {"url": page}})
        return int(answer.document["visits"])

    async def drift(self) -> frozenset[Drifting]:
        """Every tally that drifts, as far as it was judged."""
        if not self._token:
            asked = {"sub": "demo", "scope": "tally/read"}
            given = await self._ask("POST", "/dev/token", {"json": asked})
            self._token = str(given.document["access_token"])
        found: set[Drifting] = set()
        params: dict[str, str] = {}
        while True:
            options = {"params": params, "headers": {"authorization": f"Bearer {self._token}"}}
            page = (await self._ask("GET", "/drift", options)).document
            found.update((row["counter"], row["id"], int(row["drift"])) for row in page["drift"])
            if page["cursor"] is None:
                return frozenset(found)
            params = {"cursor": page["cursor"]}

    async def visit(self, url: str, key: str) -> None:
        """Visit, until there is an answer."""
        answer = await self._ask("POST", "/visits", {"json": {"url": url, "key": key}})
        if answer.replayed:
            self.sent.replays += 1
        else:
            self.sent.first_answers += 1

    async def hang_up(self, url: str, key: str, *, at_once: bool) -> None:
        """Send a visit and close the connection: at once, or when the answer begins to come. It is not read."""
        body = json.dumps({"url": url, "key": key}).encode()
        head = (
            f"POST /visits HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nUser-Agent: {BROWSER}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self.sent.requests += 1
        self.sent.answers_lost += 1
        with contextlib.suppress(OSError, TimeoutError):  # lost earlier than meant
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            try:
                writer.write(head.encode() + body)
                await writer.drain()
                if not at_once:
                    await asyncio.wait_for(reader.read(1), REQUEST_S_MAX)
            finally:
                writer.close()
                await writer.wait_closed()

    async def _ask(self, method: str, path: str, options: Mapping[str, Any]) -> Response:
        """The answer, sooner or later. Raises LocalError if none comes, or one that sending again does not mend."""
        unanswered = 0
        for attempt in range(ATTEMPTS_MAX):
            pause_s = random.uniform(0.5, 1.0) * min(PAUSE_MAX_S, PAUSE_FIRST_S * 2**attempt)
            try:
                answer = await self._once(method, path, options)
                if answer.status not in _COME_AGAIN:
                    return self._checked(answer, path)
                pause_s = max(pause_s, min(answer.retry_after_s, PAUSE_MAX_S))
            except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
                unanswered += 1
            if unanswered == UNANSWERED_MAX:
                raise LocalError(f"the server on port {self.port} answers no longer")
            self.sent.come_agains += 1
            await asyncio.sleep(pause_s)
        raise LocalError(f"the server on port {self.port} is too busy: {ATTEMPTS_MAX} attempts were refused")

    async def _once(self, method: str, path: str, options: Mapping[str, Any]) -> Response:
        assert self._session is not None
        self.sent.requests += path == "/visits" and method == "POST"
        async with self._session.request(method, path, **options) as response:
            document = json.loads(await response.read())
            if not isinstance(document, dict):
                raise ValueError("no JSON object")
            headers = response.headers
            replayed = headers.get("Idempotency-Replayed") == "true"
            return Response(response.status, document, replayed, float(headers.get("Retry-After", 0)))

    def _checked(self, answer: Response, path: str) -> Response:
        if answer.status == 403 and path == "/visits":
            raise LocalError("the server does not count the demo's pages: start it without TALLY_PAGE_HOSTS")
        if answer.status >= 400:
            reason = answer.document.get("detail") or answer.document.get("message") or ""
            what = "a visit" if path == "/visits" else path
            raise LocalError(f"the server refused {what} with {answer.status}: {reason}")
        return answer


async def send(server: Server, visits: Iterable[tuple[str, str]], concurrency: int, progress: Progress) -> None:
    """Send visits, each a URL and its key, so many at a time. Raises LocalError."""

    async def one(job: tuple[int, tuple[str, str]]) -> None:
        number, (url, key) = job
        if number % LOST_EVERY == LOST_AT:
            await server.hang_up(url, key, at_once=number % (2 * LOST_EVERY) == LOST_AT)
        if number % TWICE_EVERY == 0:
            server.sent.sent_twice += 1
            await asyncio.gather(server.visit(url, key), server.visit(url, key))
        else:
            await server.visit(url, key)
        progress(1)

    await _spread(enumerate(visits, 1), one, concurrency)


async def counts(server: Server, pages: Iterable[str], concurrency: int, progress: Progress) -> dict[str, int]:
    """How often each page was visited, by the server's count. Raises LocalError."""
    found: dict[str, int] = {}

    async def one(page: str) -> None:
        found[page] = await server.visits(page)
        progress(1)

    await _spread(pages, one, concurrency)
    return found


async def _spread(jobs: Iterable[_Job], work: Callable[[_Job], Awaitable[None]], concurrency: int) -> None:
    """Work on so many jobs at a time, until all are done or one raises; then the others are given up."""
    left = iter(jobs)

    async def worker() -> None:
        for job in left:
            await work(job)

    workers = [asyncio.ensure_future(worker()) for _ in range(concurrency)]
    try:
        await asyncio.gather(*workers)
    finally:
        for task in workers:
            task.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
