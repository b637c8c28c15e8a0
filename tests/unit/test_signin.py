"""Signing in to the console: lambdas/console/signin.js runs in Node, against a pool that checks as Cognito does."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.patience import PATIENCE_S

SIGN_IN = Path(__file__).parents[2] / "lambdas" / "console" / "signin.js"
REDIRECT = "https://api.example.com/console"
CLAIMS = {"sub": "7c20", "username": "ann"}
TOKEN = f"e30.{base64.urlsafe_b64encode(json.dumps(CLAIMS).encode()).decode().rstrip('=')}.signature"
# What a browser has and Node has not. `went`: where the page sent the browser; `address`: what it showed afterwards.
BROWSER = """
const kept = new Map(), seen = { went: [], address: [] };
globalThis.location = { search: "", hash: "#/tally/plays/9f3a", pathname: "/console" };
location.assign = (to) => seen.went.push(to);
globalThis.history = { replaceState: (state, title, to) => seen.address.push(to) };
globalThis.sessionStorage = {
  getItem: (key) => kept.get(key) ?? null,
  setItem: (key, value) => kept.set(key, value),
  removeItem: (key) => kept.delete(key),
};
const { signIn, signOut, finish, forget, token, name } = await import(%s);
const config = { sign_in: %s };
const refused = (asked) => asked.then(() => "", (error) => error.message);
const back = (query) => { location.search = `?${new URLSearchParams(query)}`; return refused(finish(config)); };
const state = () => new URL(seen.went.at(-1)).searchParams.get("state");
%s
console.log(JSON.stringify({ ...seen, said, kept: [...kept.values()] }));
"""


class Pool(ThreadingHTTPServer):
    """A token endpoint: it gives a token for the code `good`, to who has the verifier of `challenge`."""

    challenge = ""
    asked = 0


class Handler(BaseHTTPRequestHandler):
    server: Pool

    def do_POST(self) -> None:
        self.server.asked += 1
        sent = {
            name: value[0]
            for name, value in parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode()).items()
        }
        digest = hashlib.sha256(sent.pop("code_verifier", "").encode()).digest()
        expected = {
            "grant_type": "authorization_code",
            "client_id": "console",
            "redirect_uri": REDIRECT,
            "code": "good",
        }
        fits = base64.urlsafe_b64encode(digest).decode().rstrip("=") == self.server.challenge
        good = self.path == "/oauth2/token" and sent == expected and fits
        body = {"access_token": TOKEN, "expires_in": 3600} if good else {"error": "invalid_grant"}
        self.send_response(200 if good else 400)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def do_GET(self) -> None:
        """Not Cognito's: the page that signs people in, which notes the challenge."""
        self.server.challenge = parse_qs(urlsplit(self.path).query)["code_challenge"][0]
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def pool() -> Iterator[Pool]:
    with Pool(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def run(script: str, way: dict[str, str]) -> dict[str, Any]:
    """What the script said and did with the module, in a browser that is not there."""
    whole = BROWSER % (json.dumps(SIGN_IN.as_uri()), json.dumps(way), script)
    ended = subprocess.run(
        ["node", "--input-type=module"], input=whole, capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def pkce(pool: Pool) -> dict[str, str]:
    domain = f"http://127.0.0.1:{pool.server_address[1]}"
    return {"kind": "pkce", "domain": domain, "client_id": "console", "redirect": REDIRECT}


def test_a_code_becomes_a_token_that_is_nowhere_but_in_memory(pool: Pool) -> None:
    way = pkce(pool)
    found = run(
        """
        await signIn(config);
        await fetch(seen.went[0]);
        const before = [...kept.values()].join();
        const error = await back({ code: "good", state: state() });
        const said = { error, token: token(), name: name(), before };
        Date.now = ((now) => () => now + 3_580_000)(Date.now());
        said.later = [token(), name()];
        forget();
        said.forgotten = [token(), name()];
        """,
        way,
    )
    asked = urlsplit(found["went"][0])
    assert f"{asked.scheme}://{asked.netloc}{asked.path}" == f"{way['domain']}/oauth2/authorize"
    query = {name: value[0] for name, value in parse_qs(asked.query).items()}
    assert len(query.pop("state")) == len(query.pop("code_challenge")) == 43
    assert query == {
        "response_type": "code",
        "client_id": "console",
        "redirect_uri": REDIRECT,
        "scope": "openid tally/read",
        "code_challenge_method": "S256",
    }
    said = found["said"]
    assert (said["error"], said["token"], said["name"]) == ("", TOKEN, "ann")
    assert json.loads(said["before"]).keys() == {"state", "verifier", "hash"}
    assert found["kept"] == []
    assert found["address"] == ["/console#/tally/plays/9f3a"], "the page that the person was on, without the code"
    assert said["later"] == [None, "ann"], "an expired token is none, and the page still knows who looked"
    assert said["forgotten"] == [None, ""]


@pytest.mark.parametrize(
    ("script", "reason", "asks"),
    [
        ('await back({ code: "good", state: "another" })', "This sign-in did not begin here. Try again.", 0),
        ('await back({ code: "good" })', "This sign-in did not begin here. Try again.", 0),
        ('(kept.clear(), await back({ code: "good", state: "" }))', "This sign-in did not begin here. Try again.", 0),
        ('await back({ code: "stolen", state: state() })', "invalid_grant", 1),
        ('await back({ error: "access_denied", error_description: "No.", state: state() })', "No.", 0),
        (
            '(await back({ code: "good", state: state() }), await back({ code: "good", state: state() }))',
            "This sign-in did not begin here. Try again.",
            1,
        ),
    ],
)
def test_an_answer_to_no_request_of_this_tab_is_refused(pool: Pool, script: str, reason: str, asks: int) -> None:
    found = run(f"await signIn(config); await fetch(seen.went[0]); const said = {script};", pkce(pool))
    assert (found["said"], pool.asked, found["kept"]) == (reason, asks, [])


def test_who_signs_out_is_signed_out_of_the_pool_too(pool: Pool) -> None:
    found = run("signOut(config); const said = token();", pkce(pool))
    assert found["went"] == [
        f"{pkce(pool)['domain']}/logout?client_id=console&logout_uri=https%3A%2F%2Fapi.example.com%2Fconsole"
    ]


def test_a_token_of_another_issuer_is_pasted() -> None:
    script = (
        f"await signIn(config, ' {TOKEN}\\n'); const said = [token(), await refused(signIn(config, 'x')), token()];"
    )
    found = run(script, {"kind": "token"})
    assert found["said"] == [TOKEN, "This is no token: it has three parts, separated by dots.", TOKEN]
    assert (found["kept"], found["went"]) == ([], [])
