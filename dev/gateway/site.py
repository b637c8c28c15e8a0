"""The HTTP server: the API, Lambda's Invoke API, and the local extras under /dev."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping

from aiohttp import web

from ..base import objects
from ..base.objects import Objects
from ..functions import invoke, metrics
from ..functions.metrics import Metrics
from ..functions.pool import Pool
from ..stack.prepared import Stack, open_log
from ..streams.switches import Switches
from . import console, lost, mappings, openapi_page, tokens
from .gateway import BODY_BYTES_MAX, Gateway

LINE_BYTES_MAX = 1_000_000  # read of a request line or a header; the gateway refuses far shorter ones
STOP_S_MAX = 3.0  # lets requests end when the server stops


@contextlib.asynccontextmanager
async def site(
    stack: Stack, pools: Mapping[str, Pool], gathered: Metrics, switches: Switches, say: Callable[[str], None]
) -> AsyncIterator[None]:
    """Serve while the block runs."""
    audience = {
        entry: None for route in stack.template.routes if route.authorizer for entry in route.authorizer.audience
    }
    issuer = tokens.Issuer(stack.url, tuple(audience), stack.options.data / "issuer.pem", stack.console_client)
    invoker = invoke.Invoke(pools, say)
    with open_log(stack.logs / "access.log") as access_log:
        gateway = Gateway(stack.template, pools, issuer, access_log, say)
        app = web.Application(client_max_size=BODY_BYTES_MAX)
        app.router.add_post(invoke.PATH, invoker.handle)
        _add_dev_routes(app, stack, issuer, gathered)
        shown = mappings.Mappings(stack, switches, say)
        app.router.add_get(mappings.PATH, shown.list)
        app.router.add_patch(mappings.PATH + "/{consumer}/{table}", shown.change)
        app.router.add_route("*", lost.PREFIX + "/{path:(?s:.*)}", lost.losing(gateway.handle))
        app.router.add_route("*", "/{path:(?s:.*)}", gateway.handle)  # any path, even with a line break in it
        runner = web.AppRunner(
            app,
            access_log=None,
            handle_signals=False,
            shutdown_timeout=STOP_S_MAX,
            max_line_size=LINE_BYTES_MAX,  # so that the gateway refuses, in its own form
            max_field_size=LINE_BYTES_MAX,
            auto_decompress=False,  # API Gateway passes a compressed body on as it is
        )
        await runner.setup()
        try:
            await web.SockSite(runner, stack.listener).start()
            yield
        finally:
            await runner.cleanup()
            await invoker.close()


def _add_dev_routes(app: web.Application, stack: Stack, issuer: tokens.Issuer, gathered: Metrics) -> None:
    async def page(_: web.Request) -> web.Response:
        return web.Response(text=console.page(stack.template, stack.url), content_type="text/html")

    async def root(_: web.Request) -> web.Response:
        raise web.HTTPFound("/console")

    async def configuration(_: web.Request) -> web.Response:
        return web.json_response(issuer.configuration())

    async def jwks(_: web.Request) -> web.Response:
        return web.json_response(issuer.jwks)

    async def token(request: web.Request) -> web.Response:
        try:
            return web.json_response(issuer.token(tokens.token_request(await request.read())))
        except tokens.TokenRequestError as error:
            return web.json_response({"message": str(error)}, status=400)

    async def api(_: web.Request) -> web.Response:
        return web.Response(text=openapi_page.page(), content_type="text/html")

    async def numbers(request: web.Request) -> web.Response:
        gathered.look()
        if request.query.get("format") == "json":
            return web.json_response(gathered.document())
        return web.Response(text=gathered.page(), content_type="text/html")

    async def where(_: web.Request) -> web.Response:
        return web.json_response(stack.where())

    store = Objects(stack.options.data / "objects", stack.template.buckets)
    app.router.add_route("*", objects.PREFIX + "/{path:(?s:.*)}", store.handle)
    app.router.add_get(metrics.PATH, numbers)
    app.router.add_get("/dev/stack", where)
    app.router.add_get("/", root)
    app.router.add_get("/dev", page)
    app.router.add_get(openapi_page.PATH, api)
    app.router.add_get("/.well-known/openid-configuration", configuration)
    app.router.add_get("/dev/jwks.json", jwks)
    app.router.add_post("/dev/token", token)
