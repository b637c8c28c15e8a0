"""Tests what the gateway of `make dev` answers itself (routes, tokens, CORS), and what the gateway passes on."""

from __future__ import annotations

import http.client
import json
import socket
import time
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.e2e.dev import KEY, Dev
from tests.patience import PATIENCE_S

ORIGIN = "https://app.example.com"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/nothing"),
        ("PATCH", "/posts/a"),
        ("HEAD", "/openapi.json"),
        ("GET", "/health/"),
        ("GET", "/videos//plays"),
        ("GET", "/nothing%0Aat%0Dall"),
    ],
)
def test_an_unknown_route_gets_the_gateways_404(dev: Dev, method: str, path: str) -> None:
    answer = dev.call(method, path)
    assert (answer.status, answer.headers["content-type"]) == (404, "application/json")
    assert answer.raw == (b"" if method == "HEAD" else b'{"message":"Not Found"}')


def test_head_health_answers_200_without_a_body(dev: Dev) -> None:
    answer = dev.call("HEAD", "/health")
    assert (answer.status, answer.headers["content-type"], answer.raw) == (200, "application/json", b"")


def sign_token(
    dev: Dev, *, key: Any = None, algorithm: str = "RS256", headers: dict[str, str] | None = None, **changes: Any
) -> str:
    """Returns a token of the issuer with changed claims; None removes a claim. `key`: signs the token; None: the key of
    the issuer. `headers`: changed headers of the token."""
    token = dev.token()
    claims = jwt.decode(token, options={"verify_signature": False}) | changes
    claims = {name: value for name, value in claims.items() if value is not None}
    kid = {"kid": jwt.get_unverified_header(token)["kid"]}
    if algorithm == "RS256" and key is None:
        key = (dev.data / "issuer.pem").read_bytes()
    return jwt.encode(claims, key, algorithm, headers=kid | (headers or {}))


def like(dev: Dev, authorization: str | None) -> Any:
    """Likes a missing post. Returns the answer. `authorization`: the value of the header; None: no header."""
    return dev.call("PUT", "/posts/p/like", **({} if authorization is None else {"authorization": authorization}))


def test_a_token_is_accepted_with_or_without_bearer(dev: Dev) -> None:
    # An access token of Cognito has `client_id` in place of `aud`.
    for token in (dev.token(), sign_token(dev), sign_token(dev, aud=None, client_id=audience(dev))):
        for authorization in (token, f"Bearer {token}", f"bearer {token}"):
            assert like(dev, authorization).status == 404  # from the function, which the gateway called


def audience(dev: Dev) -> str:
    """Returns the audience of people's tokens. `aud` lists this audience, and then the audience of programs."""
    return str(jwt.decode(dev.token(), options={"verify_signature": False})["aud"][0])


def test_a_request_without_a_token_gets_401(dev: Dev) -> None:
    answer = like(dev, None)
    assert (answer.status, answer.raw) == (401, b'{"message":"Unauthorized"}')
    assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"exp": 1}, "the token has expired"),
        ({"aud": "another"}, "the token does not have a valid audience"),
        ({"aud": None}, "the token does not have a valid audience"),
        ({"iss": "https://issuer.example.com"}, "Invalid issuer"),
        ({"exp": None}, 'missing the "exp" claim'),
        ({"iat": int(time.time()) + 3600}, "not yet valid"),
        ({"headers": {"kid": "another"}}, "kid is unknown"),
        ({"key": rsa.generate_private_key(65537, 2048)}, "Signature verification failed"),
    ],
)
def test_a_wrong_token_gets_401_with_the_reason(dev: Dev, changes: dict[str, Any], reason: str) -> None:
    answer = like(dev, f"Bearer {sign_token(dev, **changes)}")
    assert (answer.status, answer.raw) == (401, b'{"message":"Unauthorized"}')
    challenge = answer.headers["www-authenticate"]
    assert challenge.startswith('Bearer scope="" error="invalid_token" error_description="')
    assert reason.replace('"', "'") in challenge


def test_a_token_that_has_another_algorithm_or_is_not_a_jwt_gets_401(dev: Dev) -> None:
    tokens = sign_token(dev, algorithm="none"), sign_token(dev, algorithm="HS256", key="0" * 64)
    for token in (*tokens, "x", "a.b.c", "Bearer", "Bearer "):
        assert like(dev, token).status == 401, token


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({}, "sub must be"),
        ([], "must be a JSON object"),
        ({"sub": "a", "admin": 1}, "no field 'admin'"),
    ],
)
def test_a_wrong_request_for_a_token_gets_400_with_the_reason(dev: Dev, body: object, reason: str) -> None:
    answer = dev.call("POST", "/dev/token", body)
    assert answer.status == 400
    assert reason in answer.body["message"]


def test_a_preflight_is_answered_by_the_gateway(dev: Dev) -> None:
    preflight = {
        "origin": ORIGIN,
        "access_control_request_method": "PUT",
        "access_control_request_headers": "authorization",
    }
    answer = dev.call("OPTIONS", "/posts/a/like", **preflight)
    assert (answer.status, answer.raw) == (204, b"")
    assert answer.headers["access-control-allow-origin"] == "*"
    assert "PUT" in answer.headers["access-control-allow-methods"].split(",")
    assert {"authorization", "idempotency-key"} <= set(answer.headers["access-control-allow-headers"].split(","))
    assert int(answer.headers["access-control-max-age"]) > 0
    assert "access-control-allow-credentials" not in answer.headers


INVOKE = "/2015-03-31/functions/increments/invocations"
EDIT = {"pk": "VID#foreign", "sk": "STATS#TOTAL", "attribute": "play_count", "by": 50}
DIRECT_PLAY = {"operation": "increment", "counter": "plays", "id": "foreign", "idempotency_key": KEY + "-direct"}


@pytest.mark.parametrize(
    "headers",
    [{"origin": ORIGIN}, {"origin": "null"}, {"sec_fetch_site": "cross-site"}, {"sec_fetch_site": "same-site"}],
)
def test_a_page_of_another_origin_changes_numbers_by_the_api_only(dev: Dev, headers: dict[str, str]) -> None:
    # A browser sends text/plain without a preflight.
    by_the_api = dev.call("POST", "/videos/foreign/plays", idempotency_key=KEY, content_type="text/plain", **headers)
    assert by_the_api.status == 200
    refused = [
        dev.call("POST", INVOKE, DIRECT_PLAY, content_type="text/plain", **headers),
        dev.call("PATCH", "/dev/edit", EDIT, **headers),
        dev.call("PATCH", "/dev/mappings/rollup/receipts", {"enabled": False}, **headers),
        dev.call("POST", "/dev/token", {"sub": "ann"}, content_type="text/plain", **headers),
    ]
    assert [answer.status for answer in refused] == [403] * len(refused)
    assert dev.plays("foreign") == 1


@pytest.mark.parametrize(
    "headers", [{"sec_fetch_site": "same-origin", "origin": ORIGIN}, {"sec_fetch_site": "none"}, {}]
)
def test_a_page_of_make_dev_and_a_program_may_get_a_token(dev: Dev, headers: dict[str, str]) -> None:
    assert dev.call("POST", "/dev/token", {"sub": "ann"}, **headers).status == 200
    own = {"origin": f"http://127.0.0.1:{dev.port}"}  # an old browser sends Origin without Sec-Fetch-Site
    assert dev.call("POST", "/dev/token", {"sub": "ann"}, **own).status == 200


def test_an_answer_to_another_origin_exposes_its_headers(dev: Dev) -> None:
    answer = dev.call("GET", "/videos/cors/plays", origin=ORIGIN)
    assert answer.headers["access-control-allow-origin"] == "*"
    assert "Idempotency-Replayed" in answer.headers["access-control-expose-headers"].split(",")
    assert "access-control-allow-origin" not in dev.call("GET", "/videos/cors/plays").headers


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"PUT /posts/a/like HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer \xff\xfe.\xff.\xff\r\n\r\n",
        b"GET /videos/\xff\xfe/plays HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /visits?url=\xff HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /visits HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n\xff\xfe",
        b"POST /visits HTTP/1.1\r\nHost: x\r\nContent-Length: nonsense\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",  # the start of a TLS handshake
    ],
)
def test_bytes_that_are_not_text_never_give_a_500(dev: Dev, request_bytes: bytes) -> None:
    with socket.create_connection(("127.0.0.1", dev.port), timeout=PATIENCE_S) as connection:
        connection.sendall(request_bytes)
        status_line = connection.recv(65536).split(b"\r\n")[0]
    assert status_line.split()[1].startswith(b"4"), status_line
    assert "Traceback" not in dev.text


def test_the_root_redirects_to_the_console_which_asks_for_a_name(dev: Dev) -> None:
    assert dev.call("GET", dev.call("GET", "/").headers["location"]).status == 200
    config = dev.call("GET", "/console/config.json").body
    assert (config["sign_in"], config["try_it"]) == ({"kind": "name"}, True)


def test_the_operators_group_of_a_token_gives_access_and_a_forged_header_does_not(dev: Dev) -> None:
    # The function gets the groups of a token as one text, such as `[staff operators]`. The header imitates this text.
    operator, stranger = (
        dev.token("ann", scope="tally/read", groups=groups) for groups in (["staff", "operators"], ["staff"])
    )
    assert dev.call("GET", "/drift", token=operator).status == 200
    assert dev.call("GET", "/drift", token=stranger, cognito_groups="[operators]").status == 403


def test_dev_lost_runs_the_request_and_drops_the_answer(dev: Dev) -> None:
    for path in ("/videos/lost%2D1/plays?a=b", "/videos/lost-1/plays", "//["):  # the last path is not a URL
        with pytest.raises(http.client.RemoteDisconnected):
            dev.call("POST", f"/dev/lost{path}", idempotency_key=KEY)
    assert dev.plays("lost-1") == 1
    assert dev.play("lost-1", KEY).headers["idempotency-replayed"] == "true"


def test_requests_are_in_the_access_log(dev: Dev) -> None:
    request_id = dev.call("GET", "/videos/logged/plays").headers["apigw-requestid"]
    lines = [json.loads(line) for line in (dev.data / "logs/access.log").read_text().splitlines()]
    [line] = [line for line in lines if line["requestId"] == request_id]
    assert (line["route"], line["status"]) == ("GET /videos/{id}/plays", "200")
    assert request_id in (dev.data / "logs/reads.log").read_text()  # the function logs the same id


@pytest.mark.parametrize(
    ("path", "raw", "status", "reason"),
    [
        ("sweep/counts", b'{"enabled": false}', 404, "there is no mapping sweep/counts: there are bookkeeper/counts, "),
        ("rollup/counts", b"[" * 100_000, 400, "the body must be"),
        ("rollup/counts", b'{"enabled": "false"}', 400, "the body must be"),
    ],
)
def test_a_wrong_request_to_switch_a_mapping_is_refused_with_the_reason(
    dev: Dev, path: str, raw: bytes, status: int, reason: str
) -> None:
    answer = dev.call("PATCH", f"/dev/mappings/{path}", raw=raw)
    assert answer.status == status
    assert answer.body["message"].startswith(reason)
    assert all(mapping["enabled"] for mapping in dev.call("GET", "/dev/mappings").body["mappings"])
