"""The console: its files, their headers, and the people who may read with its tokens."""

from __future__ import annotations

import base64
import gzip
from dataclasses import replace
from typing import Any

import pytest

from tally.api import console
from tally.dynamo.client import Store
from tests import events
from tests.integration.conftest import Invoke

POOL_URL = "https://tally.auth.example.com"


def text_of(answer: dict[str, Any]) -> str:
    body: str = answer["body"]
    return gzip.decompress(base64.b64decode(body)).decode() if answer["isBase64Encoded"] else body


def test_the_page_may_run_and_load_only_files_of_this_stack(invoke: Invoke) -> None:
    answer = invoke.http("get_console")
    assert answer["headers"]["content-type"] == "text/html; charset=utf-8"
    assert answer["headers"]["content-security-policy"] == (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:;"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    assert answer["headers"]["referrer-policy"] == "no-referrer"
    assert answer["headers"]["x-content-type-options"] == "nosniff"
    assert f"connect-src 'self' {POOL_URL};" in console.content_security_policy(POOL_URL)
    for inline in ("<style", " style=", "<script>", " onclick="):  # a browser with this policy ignores these
        assert inline not in text_of(answer)


def test_every_module_and_style_is_served_and_revalidated_at_each_use(invoke: Invoke) -> None:
    names = {path.name for path in console.CONSOLE_FOLDER.iterdir()}
    names = names - {"index.html"} | {"uPlot.esm.js", "uPlot.min.css"}
    assert {"app.js", "signin.js"} < names
    for name in names:
        answer = invoke.http("get_console_file", file=name)
        media_type = "text/css" if name.endswith(".css") else "text/javascript"
        assert (answer["statusCode"], answer["headers"]["content-type"]) == (200, f"{media_type}; charset=utf-8"), name
        assert answer["headers"]["cache-control"] == "public, max-age=0"
        assert answer["headers"]["x-content-type-options"] == "nosniff"
        assert answer["headers"]["cross-origin-resource-policy"] == "same-origin"
        headers = {"if-none-match": answer["headers"]["etag"]}
        revalidated = invoke.http("get_console_file", file=name, headers=headers)
        assert (revalidated["statusCode"], revalidated["body"]) == (304, "")


@pytest.mark.parametrize(
    ("file", "status"),
    [
        ("overview.mjs", 404),
        ("index.html", 404),
        ("uPlot.LICENSE", 404),
        ("..", 400),
        ("../counters.py", 400),
        ("app.js\0", 400),
    ],
)
def test_other_files_are_not_served(invoke: Invoke, file: str, status: int) -> None:
    answer = invoke.http("get_console_file", file=file)
    assert (answer["statusCode"], answer["headers"]["content-type"]) == (status, "application/problem+json")
    assert answer["headers"]["x-content-type-options"] == "nosniff"


CONSOLE_CLIENT = "4h57kl2example"


@pytest.fixture
def invoke_with_pool(store: Store) -> Invoke:
    """Invokes functions of a stack whose user pool has the client CONSOLE_CLIENT for the console."""
    return Invoke(replace(store, settings=store.settings._replace(console_client=CONSOLE_CLIENT)))


def read_by(invoke: Invoke, **claims: object) -> dict[str, Any]:
    """Returns the answer to a GET of a private counter, with a token that has the scope tally/read and these claims."""
    event = events.http("get_counter")
    event["requestContext"]["authorizer"]["jwt"]["claims"].update(claims)
    return invoke(event)


@pytest.mark.parametrize(
    "groups", [None, "", "[staff]", "[operators-2]", "[[operators]]", "operators,staff", ["staff"], 7]
)
def test_a_person_outside_the_group_operators_reads_no_private_counter_with_a_token_of_the_console(
    invoke_with_pool: Invoke, groups: object
) -> None:
    claims = {"client_id": CONSOLE_CLIENT} | ({} if groups is None else {"cognito:groups": groups})
    answer = read_by(invoke_with_pool, **claims)
    assert answer["statusCode"] == 403
    assert events.body_of(answer)["detail"] == "You are not in the group operators of this stack's user pool."


@pytest.mark.parametrize("groups", ["[operators]", "[staff operators]", "operators", ["staff", "operators"]])
def test_an_operator_reads_private_counters_with_a_token_of_the_console(
    invoke_with_pool: Invoke, groups: object
) -> None:
    """API Gateway writes a list of groups as `[a b]`."""
    answer = read_by(invoke_with_pool, **{"client_id": CONSOLE_CLIENT, "cognito:groups": groups})
    assert answer["statusCode"] == 200


def test_only_a_token_of_the_console_needs_the_group_operators(invoke_with_pool: Invoke, invoke: Invoke) -> None:
    assert read_by(invoke_with_pool, client_id="a-program")["statusCode"] == 200
    assert read_by(invoke_with_pool)["statusCode"] == 200, "another issuer's token may have no client_id"
    assert read_by(invoke, client_id=CONSOLE_CLIENT)["statusCode"] == 200, "this deployment has no user pool"


def test_a_group_outside_the_claims_of_the_token_does_not_make_a_caller_an_operator(invoke_with_pool: Invoke) -> None:
    event = events.http("get_counter", headers={"cognito:groups": "[operators]"})
    context = event["requestContext"]
    context["authorizer"]["jwt"]["claims"]["client_id"] = CONSOLE_CLIENT
    context["authorizer"]["cognito:groups"] = "[operators]"
    assert invoke_with_pool(event)["statusCode"] == 403
