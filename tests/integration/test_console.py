"""The console as its function serves it: which files, with which headers."""

from __future__ import annotations

import base64
import gzip
from collections.abc import Callable
from typing import Any

import pytest

from tally.api import console
from tests import events

Invoke = Callable[..., dict[str, Any]]
POOL = "https://tally.auth.example.com"


def got(invoke: Invoke, file: str, **headers: str) -> dict[str, Any]:
    """The answer to a GET of one file."""
    event = events.http("beacon/http-get-console-file", headers=headers)
    return invoke("beacon", event | {"pathParameters": {"file": file}, "rawPath": f"/console/{file}"})


def text(answer: dict[str, Any]) -> str:
    body: str = answer["body"]
    return gzip.decompress(base64.b64decode(body)).decode() if answer["isBase64Encoded"] else body


def test_the_page_may_run_and_load_only_what_this_stack_serves(invoke: Invoke) -> None:
    answer = invoke("beacon", events.sample("beacon/http-get-console"))
    assert answer["headers"]["content-type"] == "text/html; charset=utf-8"
    assert answer["headers"]["content-security-policy"] == (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:;"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    assert answer["headers"]["referrer-policy"] == "no-referrer"
    assert answer["headers"]["x-content-type-options"] == "nosniff"
    assert f"connect-src 'self' {POOL};" in console.policy(POOL)
    for dropped in ("<style", " style=", "<script>", " onclick="):  # by this policy
        assert dropped not in text(answer)


def test_the_page_comes_whatever_its_query_is(invoke: Invoke) -> None:
    event = events.http("beacon/http-get-console") | {"rawQueryString": "code=4%2F0A&state=x&state=%ff"}
    assert invoke("beacon", event)["statusCode"] == 200  # a user pool sends people back with a code


def test_every_module_and_style_is_served_and_the_browser_asks_each_time_whether_it_has_changed(
    invoke: Invoke,
) -> None:
    names = {path.name for path in console.FOLDER.iterdir()} - {"index.html"} | {"uPlot.esm.js", "uPlot.min.css"}
    assert {"app.js", "signin.js"} < names
    for name in names:
        answer = got(invoke, name)
        kind = "text/css" if name.endswith(".css") else "text/javascript"
        assert (answer["statusCode"], answer["headers"]["content-type"]) == (200, f"{kind}; charset=utf-8"), name
        assert answer["headers"]["cache-control"] == "public, max-age=0"
        assert answer["headers"]["x-content-type-options"] == "nosniff"
        assert answer["headers"]["cross-origin-resource-policy"] == "same-origin"
        again = got(invoke, name, **{"if-none-match": answer["headers"]["etag"]})
        assert (again["statusCode"], again["body"]) == (304, "")


def test_the_charts_are_one_module_of_uplot_without_what_a_browser_skips(invoke: Invoke) -> None:
    answer = got(invoke, "uPlot.esm.js", **{"accept-encoding": "gzip"})
    assert text(answer).startswith("/*! https://github.com/leeoniya/uPlot")
    assert text(answer).endswith("\nexport default uPlot;\n")
    assert len(base64.b64decode(answer["body"])) < 25_000


@pytest.mark.parametrize(
    ("file", "status"),
    [
        ("overview.mjs", 404),
        ("index.html", 404),
        ("uPlot.iife.min.js", 404),
        ("uPlot.LICENSE", 404),
        ("...", 404),
        ("..", 400),
        (".", 400),
        ("../counters.py", 400),
        ("../functions/beacon.js", 400),
        ("..\\counters.py", 400),
        ("/etc/passwd", 400),
        ("app.js/", 400),
        ("app.js\0", 400),
        ("", 400),
    ],
)
def test_nothing_else_is_served(invoke: Invoke, file: str, status: int) -> None:
    answer = got(invoke, file)
    assert (answer["statusCode"], answer["headers"]["content-type"]) == (status, "application/problem+json")


def test_what_the_console_knows_is_not_kept_and_says_how_to_sign_in(invoke: Invoke) -> None:
    answer = invoke("beacon", events.sample("beacon/http-get-console-config"))
    assert answer["headers"]["cache-control"] == "no-store"
    direct = invoke("beacon", events.sample("beacon/direct-get-console-config"))
    assert direct["body"]["sign_in"] == {"kind": "token"}
