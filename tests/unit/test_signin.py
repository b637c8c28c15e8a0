"""Leaving the console, and a token that is pasted: tally/console/signin.js in Node.

Signing in with a pool is tested in a browser: tests/e2e/test_console.py.
"""

from __future__ import annotations

import base64
import json
import subprocess
from pathlib import Path
from typing import Any

from tests.patience import PATIENCE_S

SIGN_IN = Path(__file__).parents[2] / "tally" / "console" / "signin.js"
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
const { signIn, signOut, token } = await import(%s);
const config = { sign_in: %s };
const refused = (asked) => asked.then(() => "", (error) => error.message);
%s
console.log(JSON.stringify({ ...seen, said, kept: [...kept.values()] }));
"""


def run(script: str, way: dict[str, str]) -> dict[str, Any]:
    """What the script said and did with the module, in a browser that is not there."""
    whole = BROWSER % (json.dumps(SIGN_IN.as_uri()), json.dumps(way), script)
    ended = subprocess.run(
        ["node", "--input-type=module"], input=whole, capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def test_who_signs_out_is_signed_out_of_the_pool_too() -> None:
    pool = {"kind": "pkce", "domain": "https://pool.example.com", "client_id": "console", "redirect": REDIRECT}
    found = run("signOut(config); const said = token();", pool)
    back = "https%3A%2F%2Fapi.example.com%2Fconsole"
    assert found["went"] == [f"https://pool.example.com/logout?client_id=console&logout_uri={back}"]


def test_a_token_of_another_issuer_is_pasted() -> None:
    script = (
        f"await signIn(config, ' {TOKEN}\\n'); const said = [token(), await refused(signIn(config, 'x')), token()];"
    )
    found = run(script, {"kind": "token"})
    assert found["said"] == [TOKEN, "This is not a token: a token has three parts, separated by dots.", TOKEN]
    assert (found["kept"], found["went"]) == ([], [])
