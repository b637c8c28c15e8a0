"""/dev/lost/…: the work is done, and its answer is lost, as when a connection breaks at the wrong moment."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiohttp import web
from yarl import URL

PREFIX = "/dev/lost"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def losing(handle: Handler) -> Handler:
    """A handler that lets `handle` answer the request of the path behind PREFIX, and then hangs up."""

    async def answer(request: web.Request) -> web.StreamResponse:
        path, _, query = request.raw_path.partition(PREFIX)[2].partition("?")
        inner = URL.build(path=path, query_string=query, encoded=True)  # as it was sent: the gateway decodes it
        response = await handle(request.clone(rel_url=inner))
        if request.transport is not None:
            request.transport.abort()
        return response  # to a connection that is gone

    return answer
