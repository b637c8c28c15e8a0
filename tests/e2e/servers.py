"""Servers for browser tests: a site, the API that gets the site's visits, and a user pool."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlencode

from counters import PAGES
from tally import fields
from tally.api import scripts

LOST = -1
"""A status for `Reply`: the server handles the request, and hangs up without an answer."""


@dataclass(frozen=True)
class Reply:
    """A server's answer. With the status LOST, the server hangs up."""

    status: int
    body: bytes
    headers: Mapping[str, str]


class Server:
    """An HTTP server on 127.0.0.1. `answer` takes method, target (path and query), headers (lower case) and body."""

    def __init__(self, answer: Callable[[str, str, dict[str, str], bytes], Reply]) -> None:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                headers = {name.lower(): value for name, value in self.headers.items()}
                body = self.rfile.read(int(headers.get("content-length", 0)))
                reply = answer(self.command, self.path, headers, body)
                if reply.status == LOST:
                    self.close_connection = True
                    return
                self.send_response(reply.status)
                for name, value in {**reply.headers, "content-length": str(len(reply.body))}.items():
                    self.send_header(name, value)
                with suppress(ConnectionError):  # the page has closed
                    self.end_headers()
                    self.wfile.write(reply.body)

            do_POST = do_PUT = do_DELETE = do_OPTIONS = do_GET

            def log_message(self, format: str, *args: Any) -> None:
                """Logs nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.origin = f"http://127.0.0.1:{self._server.server_port}"

    @contextmanager
    def running(self) -> Iterator[None]:
        """Serve in the background."""
        thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield
        finally:
            self._server.shutdown()
            thread.join()
            self._server.server_close()


class Api:
    """An API that serves the beacon and stores visits. `faults`: the next visits get these statuses, or LOST."""

    def __init__(self) -> None:
        self.faults: list[int] = []
        self.visits: list[dict[str, str]] = []
        """The bodies of the visits, in the order of their arrival."""
        self.content_types: set[str] = set()
        self.server = Server(self._answer)

    def _answer(self, method: str, target: str, headers: dict[str, str], body: bytes) -> Reply:
        cors = {"access-control-allow-origin": "*"}
        if method == "GET":
            return Reply(
                200, scripts.read_script("beacon.js").text.encode(), {**cors, "content-type": "text/javascript"}
            )
        self.visits.append(json.loads(body))
        self.content_types.add(headers["content-type"])
        return Reply(self.faults.pop(0) if self.faults else 202, b"{}", cors)

    def count_of(self, url: str) -> int:
        """Returns how many visits of a page are counted. Visits with the same key count once."""
        pages = {visit["key"]: fields.page(visit["url"], "url", PAGES) for visit in tuple(self.visits)}
        return list(pages.values()).count(url)


class Site:
    """A web site. Every path is a page that embeds the beacon, unless `heads` or `replies` has the path.

    `heads`: by path, what a page has in its HTML head instead of the beacon's tag. `replies`: by path, what the site
    answers instead of a page.
    """

    def __init__(self, api_origin: str) -> None:
        self.tag = f'<script src="{api_origin}/client/beacon.js" async></script>'
        self.heads: dict[str, str] = {}
        self.replies: dict[str, Reply] = {}
        self.server = Server(self._answer)

    def _answer(self, method: str, target: str, headers: dict[str, str], body: bytes) -> Reply:
        path = target.partition("?")[0]
        if path in self.replies:
            return self.replies[path]
        head = self.heads.get(path, self.tag)
        page = f"<!doctype html><html lang=en><title>{path}</title>{head}<link rel=icon href=data:,><p>{path}"
        return Reply(200, page.encode(), {"content-type": "text/html", "cache-control": "no-cache"})


@dataclass
class Pool:
    """A user pool with PKCE (RFC 7636): a sign-in page, which has a link instead of a form, and a token endpoint."""

    make_token: Callable[[], str]
    client_id: str = "console-client"
    state: str = ""
    """The state that the pool returns; empty: the state of the request."""
    challenge: str = ""
    redirect: str = ""
    code: str = ""
    """The last code that the pool gave for `challenge` and `redirect`; empty: there is none, or a token was issued."""
    tokens_issued: int = 0

    def __post_init__(self) -> None:
        self.server = Server(self._answer)

    def _answer(self, method: str, target: str, headers: dict[str, str], body: bytes) -> Reply:
        path, _, query = target.partition("?")
        fields_sent = dict(parse_qsl(query or body.decode()))
        if path == "/oauth2/authorize":
            assert (fields_sent["response_type"], fields_sent["code_challenge_method"]) == ("code", "S256")
            assert (fields_sent["client_id"], fields_sent["scope"]) == (self.client_id, "openid tally/read")
            self.challenge, self.redirect = fields_sent["code_challenge"], fields_sent["redirect_uri"]
            self.code = secrets.token_urlsafe(16)
            answer = urlencode({"code": self.code, "state": self.state or fields_sent["state"]})
            page = f"<!doctype html><title>Pool</title><a href='{self.redirect}?{escape(answer)}'>Sign in as ann</a>"
            return Reply(200, page.encode(), {"content-type": "text/html"})
        digest = hashlib.sha256(fields_sent.get("code_verifier", "").encode()).digest()
        is_verified = base64.urlsafe_b64encode(digest).decode().rstrip("=") == self.challenge
        expected = (self.code, self.redirect, self.client_id, "authorization_code")
        sent = tuple(fields_sent.get(name) for name in ("code", "redirect_uri", "client_id", "grant_type"))
        cors = {"access-control-allow-origin": "*", "content-type": "application/json"}
        if path != "/oauth2/token" or not (is_verified and sent == expected and self.code):
            return Reply(400, b'{"error": "invalid_grant"}', cors)
        self.code, self.tokens_issued = "", self.tokens_issued + 1
        return Reply(200, json.dumps({"access_token": self.make_token(), "expires_in": 3600}).encode(), cors)
