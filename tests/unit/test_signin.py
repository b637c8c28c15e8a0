"""Signing out of the console, and signing in with a pasted token: tally/console/signin.js in Node.

tests/e2e/test_console.py tests signing in with a user pool, in a browser.
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
# The parts of a browser that Node lacks. `opened`: the addresses that the page opened. `refusal`: an error's message.
BROWSER = """
const stored = new Map(), opened = [];
globalThis.location = { search: "", hash: "#/tally/plays/9f3a", pathname: "/console" };
location.assign = (to) => opened.push(to);
globalThis.history = { replaceState: () => {} };
globalThis.sessionStorage = {
  getItem: (key) => stored.get(key) ?? null,
  setItem: (key, value) => stored.set(key, value),
  removeItem: (key) => stored.delete(key),
};
const { signIn, signOut, token } = await import(%s);
const config = { sign_in: %s };
const refusal = (promise) => promise.then(() => "", (error) => error.message);
%s
console.log(JSON.stringify({ opened, result, stored: [...stored.values()] }));
"""


def run(script: str, sign_in: dict[str, str]) -> dict[str, Any]:
    """Returns the `result` of the script, the stored values, and the addresses that the page opened."""
    program = BROWSER % (json.dumps(SIGN_IN.as_uri()), json.dumps(sign_in), script)
    process = subprocess.run(
        ["node", "--input-type=module"], input=program, capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert process.returncode == 0, process.stderr
    outcome: dict[str, Any] = json.loads(process.stdout)
    return outcome


def test_signing_out_of_the_console_forgets_the_token_and_signs_out_of_the_pool() -> None:
    pool = {"kind": "pkce", "domain": "https://pool.example.com", "client_id": "console", "redirect": REDIRECT}
    script = f"await signIn({{ sign_in: {{ kind: 'token' }} }}, '{TOKEN}'); const before = token(); signOut(config);"
    outcome = run(f"{script} const result = [before, token()];", pool)
    assert outcome["result"] == [TOKEN, None]
    return_url = "https%3A%2F%2Fapi.example.com%2Fconsole"
    assert outcome["opened"] == [f"https://pool.example.com/logout?client_id=console&logout_uri={return_url}"]


def test_a_token_of_another_issuer_can_be_pasted() -> None:
    script = (
        f"await signIn(config, ' {TOKEN}\\n'); const result = [token(), await refusal(signIn(config, 'x')), token()];"
    )
    outcome = run(script, {"kind": "token"})
    assert outcome["result"] == [TOKEN, "This is not a token: a token has three parts, separated by dots.", TOKEN]
    assert (outcome["stored"], outcome["opened"]) == ([], []), "the page keeps the pasted token in memory only"
