"""The HTTP server: the API, Lambda's Invoke API, and the local extras under /dev."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib.resources import files

from aiohttp import web
from aiohttp.typedefs import Middleware
from yarl import URL

from ..base import objects
from ..base.engine import stop_listening
from ..base.objects import Buckets
from ..base.wire import Wire, WireError
from ..base.words import Say
from ..functions import invoke, metrics
from ..functions.metrics import Metrics
from ..functions.workers import Workers
from ..stack.prepared import AUDIENCE, BUCKET, CONSOLE_CLIENT, TABLES, PreparedStack, open_log
from ..streams.pump import Pump
from . import console, tokens
from .bus import LocalBus
from .gateway import BODY_BYTES_MAX, Gateway

MAPPINGS, LOST, EDIT = "/dev/mappings", "/dev/lost", "/dev/edit"
LINE_BYTES_MAX = 1_000_000  # of a request line or a header; the gateway rejects far shorter ones
STOP_S_MAX = 3.0  # lets requests end when the server stops
_ANY = "/{path:(?s:.*)}"  # any path, even with a line break in it
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@contextlib.asynccontextmanager
async def site(stack: PreparedStack, workers: Workers, logged: Metrics, pump: Pump, say: Say) -> AsyncIterator[Gateway]:
    """Serve while the block runs. Yields the gateway of the API."""
    issuer = tokens.Issuer(stack.url, AUDIENCE, stack.options.data / "issuer.pem", CONSOLE_CLIENT)
    invoker = invoke.Invoke(workers, say)
    with open_log(stack.logs / "access.log") as access_log:
        gateway = Gateway(stack.template, workers, issuer, access_log, say)
        lose_answer = _lose_answer(gateway)
        refuse = _refuse_other_origins(except_for=(gateway.handle, lose_answer))
        app = web.Application(client_max_size=BODY_BYTES_MAX, middlewares=[refuse])
        app.router.add_post(invoke.PATH, invoker.handle)
        app.router.add_routes(_dev_routes(stack, gateway, issuer, logged))
        app.router.add_routes(_Mappings(stack, pump, say).routes())
        app.router.add_routes(LocalBus(say).routes())
        app.router.add_patch(EDIT, _edit_number(stack))
        app.router.add_route("*", LOST + _ANY, lose_answer)
        app.router.add_route("*", _ANY, gateway.handle)
        runner = web.AppRunner(
            app,
            access_log=None,
            handle_signals=False,
            shutdown_timeout=STOP_S_MAX,
            max_line_size=LINE_BYTES_MAX,  # so that the gateway rejects long lines with its own answer
            max_field_size=LINE_BYTES_MAX,
            auto_decompress=False,  # API Gateway passes a compressed body on as it is
        )
        await runner.setup()
        try:
            await web.SockSite(runner, stack.listener).start()
            yield gateway
        finally:
            await stop_listening(stack.listener)
            await runner.cleanup()
            await invoker.close()


def _lose_answer(gateway: Gateway) -> Handler:
    """Serves `/dev/lost/PATH` as the API serves `/PATH`, but breaks the connection instead of sending the answer."""

    async def answer(request: web.Request) -> web.StreamResponse:
        path, _, query = request.raw_path.partition(LOST)[2].partition("?")
        inner = URL.build(path=path, query_string=query, encoded=True)  # as it was sent: the gateway decodes it
        response = await gateway.handle(request.clone(rel_url=inner))
        if request.transport is not None:
            request.transport.abort()
        return response  # to a closed connection

    return answer


def _refuse_other_origins(except_for: tuple[Handler, ...]) -> Middleware:
    """Refuses changes by a page of another origin, except through the API (`except_for`). Otherwise a website that a
    developer visits could invoke functions and edit numbers. Source: Go 1.25, net/http.CrossOriginProtection."""

    @web.middleware
    async def refuse(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.method in {"GET", "HEAD", "OPTIONS"} or request.match_info.handler in except_for:
            return await handler(request)
        # A browser sends Origin or Sec-Fetch-Site. A request with neither is a program's, and counts as same-origin.
        origin = request.headers.get("origin", request.host).rpartition("://")[2]
        site_of_origin = "same-origin" if origin == request.host else "cross-site"
        if request.headers.get("sec-fetch-site", site_of_origin) in {"same-origin", "none"}:
            return await handler(request)
        return _error_response(403, f"a page of another origin may use only the API, not {request.path}")

    return refuse


def _edit_number(stack: PreparedStack) -> Handler:
    """Adds to a stored number without Tally, as a script might: see docs/tutorial.md, and the console's "Try it"."""

    async def answer(request: web.Request) -> web.StreamResponse:
        match await _document(request):
            case {"pk": str(pk), "sk": str(sk), "attribute": str(attribute), "by": int(by), **others} if not others:
                edit = {
                    "TableName": TABLES["counts"],
                    "Key": {"PK": {"S": pk}, "SK": {"S": sk}},
                    "UpdateExpression": "ADD #number :by",
                    "ConditionExpression": "attribute_exists(#number)",
                    "ExpressionAttributeNames": {"#number": attribute},
                    "ExpressionAttributeValues": {":by": {"N": str(int(by))}},
                }
                try:
                    async with Wire(stack.endpoint, stack.endpoint) as wire:
                        await wire.call("dynamodb", "UpdateItem", **edit)
                except WireError as error:
                    return _error_response(404 if error.kind == "ConditionalCheckFailedException" else 400, str(error))
                return web.json_response({"edited": True})
        return _error_response(400, 'the body must be {"pk": "…", "sk": "…", "attribute": "…", "by": 50}')

    return answer


def _dev_routes(stack: PreparedStack, gateway: Gateway, issuer: tokens.Issuer, logged: Metrics) -> list[web.RouteDef]:
    async def root(_: web.Request) -> web.Response:
        raise web.HTTPFound("/console")

    async def token(request: web.Request) -> web.Response:
        try:
            return web.json_response(issuer.token(tokens.token_request(await request.read())))
        except tokens.TokenRequestError as error:
            return _error_response(400, str(error))

    async def read_metrics(_: web.Request) -> web.Response:
        logged.read_new_lines()
        return web.json_response(logged.document())

    object_store = Buckets(stack.options.data / "objects", (BUCKET,))

    # These pages load nothing from other hosts. Swagger UI would be 8 MB, and its newest package is of 2022.
    def page(name: str) -> Handler:
        text, head, header = (
            files(__package__).joinpath(f"{one}.html").read_text("utf-8") for one in (name, "head", "header")
        )
        text = text.replace("<!-- head -->\n", head).replace("<!-- header -->", header)
        return _handler_of(lambda: web.Response(text=text, content_type="text/html"))

    return [
        web.route("*", objects.PREFIX + _ANY, object_store.handle),
        web.get(metrics.PATH, read_metrics),
        web.get("/dev/stack", _handler_of(lambda: web.json_response(stack.describe_parts()))),
        web.get("/", root),
        web.get("/dev", _handler_of(lambda: web.Response(text=console.page(gateway.template, stack.url)))),
        web.get("/dev/openapi", page("openapi")),
        web.get("/dev/elements", page("elements")),
        web.get("/.well-known/openid-configuration", _handler_of(lambda: web.json_response(issuer.configuration()))),
        web.get("/dev/jwks.json", _handler_of(lambda: web.json_response(issuer.jwks))),
        web.post("/dev/token", token),
    ]


async def _document(request: web.Request) -> object:
    """Returns the JSON of the body; None if the body is not JSON."""
    try:
        return json.loads(await request.read())
    except (ValueError, RecursionError):
        return None


def _handler_of(make_response: Callable[[], web.Response]) -> Handler:
    async def answer(_: web.Request) -> web.StreamResponse:
        return make_response()

    return answer


def _error_response(status: int, message: str) -> web.Response:
    return web.json_response({"message": message}, status=status)


class _Mappings:
    """Lists the event source mappings, and disables or enables a mapping, so that a person can try what a stalled
    consumer does to the numbers. `say` gets a line for each change."""

    def __init__(self, stack: PreparedStack, pump: Pump, say: Say) -> None:
        self._stack, self._pump, self._say = stack, pump, say

    @property
    def _mappings(self) -> dict[str, str]:  # the names in the template, by short names such as `rollup/counts`
        short = {table: name for name, table in TABLES.items()}
        mappings = self._stack.template.mappings
        return {f"{one.function}/{short.get(one.table, one.table)}": one.name for one in mappings}

    def routes(self) -> list[web.RouteDef]:
        """GET lists the mappings. PATCH enables or disables a mapping."""
        return [web.get(MAPPINGS, self._list), web.patch(MAPPINGS + "/{consumer}/{table}", self._change)]

    async def _list(self, _: web.Request) -> web.Response:
        return web.json_response({"mappings": [self._describe(short_name) for short_name in sorted(self._mappings)]})

    async def _change(self, request: web.Request) -> web.Response:
        """Enables or disables a mapping. 404: there is no such mapping; 400: the body is not valid."""
        short_name = f"{request.match_info['consumer']}/{request.match_info['table']}"
        if (mapping := self._mappings.get(short_name)) is None:
            names = ", ".join(sorted(self._mappings))
            return _error_response(404, f"there is no mapping {short_name[:128]}: there are {names}")
        match await _document(request):
            case {"enabled": bool(enabled), **others} if not others:
                if enabled == (mapping in self._pump.disabled):  # otherwise nothing changes
                    self._pump.switch(mapping, enabled)
                    how = "enabled" if enabled else "disabled, until PATCH or a restart enables it"
                    self._say(f"the mapping {short_name} is {how}")
                return web.json_response(self._describe(short_name))
        return _error_response(400, 'the body must be {"enabled": true} or {"enabled": false}')

    def _describe(self, short_name: str) -> dict[str, object]:
        consumer, _, table = short_name.partition("/")
        return {"consumer": consumer, "table": table, "enabled": self._mappings[short_name] not in self._pump.disabled}
