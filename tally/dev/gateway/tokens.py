"""A local issuer of tokens, and the checks of API Gateway's JWT authorizer."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any, NamedTuple

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

from ..base.errors import LocalError
from ..base.words import DEV

LIFETIME_DEFAULT_S = 3600  # as Cognito's
LIFETIME_S_MAX = 365 * 24 * 3600
KEY_BITS = 2048
CLAIM_CHARACTERS_MAX = 2048  # of `sub` and of `scope`: a longer text would not fit into a request's headers
_BEARER = "bearer "


class TokenRefusedError(Exception):
    """The authorizer does not accept the token. The message is API Gateway's `error_description`."""


class TokenRequestError(Exception):
    """The request for a token is not valid. The message says why."""


class TokenRequest(NamedTuple):
    """What a token shall say: its user, its scopes (separated by spaces) and its lifetime."""

    subject: str
    scope: str = ""
    lifetime_s: int = LIFETIME_DEFAULT_S
    groups: list[str] | None = None
    """The groups of a person who signs in to the console; None: the token is for a program."""


class Issuer:
    """Signs and verifies tokens. Keeps the key in a file, so that tokens stay valid after a restart."""

    def __init__(self, url: str, audience: tuple[str, ...], key_path: Path, console_client: str = "") -> None:
        self.url = url
        self._console_client = console_client  # the `client_id` of a token for a person
        self.audience = audience  # the `aud` of a token: a text if there is one audience, else a list
        self._key = _read_or_make_key(key_path)
        self._public = self._key.public_key()
        jwk = RSAAlgorithm.to_jwk(self._public, as_dict=True)
        thumbprint = json.dumps({name: jwk[name] for name in ("e", "kty", "n")}, separators=(",", ":"))  # RFC 7638
        self.key_id = base64.urlsafe_b64encode(hashlib.sha256(thumbprint.encode()).digest()).decode().rstrip("=")
        self.jwks = {"keys": [{"kty": "RSA", "n": jwk["n"], "e": jwk["e"]}]}
        self.jwks["keys"][0] |= {"use": "sig", "alg": "RS256", "kid": self.key_id}

    def configuration(self) -> dict[str, Any]:
        """Returns the OpenID configuration of this issuer."""
        return {
            "issuer": self.url,
            "jwks_uri": f"{self.url}/dev/jwks.json",
            "token_endpoint": f"{self.url}/dev/token",
            "id_token_signing_alg_values_supported": ["RS256"],
        }

    def token(self, request: TokenRequest) -> dict[str, Any]:
        """Returns a signed token as a token endpoint answers it."""
        now = int(time.time())
        claims: dict[str, Any] = {"sub": request.subject, "iss": self.url, "iat": now, "exp": now + request.lifetime_s}
        if self.audience:
            claims["aud"] = self.audience[0] if len(self.audience) == 1 else list(self.audience)
        if request.scope:
            claims["scope"] = request.scope
        if request.groups is not None:
            claims["client_id"] = self._console_client
        if request.groups:  # for a user without groups, Cognito leaves the claim out
            claims["cognito:groups"] = request.groups
        signed = jwt.encode(claims, self._key, algorithm="RS256", headers={"kid": self.key_id})
        return {"access_token": signed, "token_type": "Bearer", "expires_in": request.lifetime_s}

    def verify(self, header: str) -> dict[str, Any]:
        """Returns the claims of the token in an Authorization header. Raises TokenRefusedError."""
        token = header[len(_BEARER) :] if header.lower().startswith(_BEARER) else header
        try:
            kid = jwt.get_unverified_header(token.strip()).get("kid")
            if kid != self.key_id:
                raise TokenRefusedError("the token's kid is unknown to its issuer")
            claims: dict[str, Any] = jwt.decode(
                token.strip(),
                self._public,
                algorithms=["RS256"],
                issuer=self.url,
                options={"verify_aud": False, "verify_sub": False, "require": ["exp", "iss"]},
            )
        except jwt.ExpiredSignatureError:
            raise TokenRefusedError("the token has expired") from None
        except (jwt.InvalidTokenError, UnicodeError) as error:
            raise TokenRefusedError(f"the token is not valid: {error}") from None
        # Without aud, API Gateway checks client_id: Cognito's access tokens have no aud.
        audiences = claims["aud"] if "aud" in claims else claims.get("client_id")
        if not any(entry in self.audience for entry in (audiences if isinstance(audiences, list) else [audiences])):
            raise TokenRefusedError("the token does not have a valid audience")
        return claims


def claim_text(value: object) -> str:
    """Returns a claim as API Gateway passes it to functions: text, and a list as `[a b]`."""
    if isinstance(value, list):
        return f"[{' '.join(claim_text(entry) for entry in value)}]"
    return value if isinstance(value, str) else json.dumps(value)


def token_request(body: bytes) -> TokenRequest:
    """Read `{"sub": "alice", "scope": "…", "expires_in": 3600, "groups": […]}`. Raises TokenRequestError."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise TokenRequestError('the body must be a JSON object: {"sub": "alice"}')
    unknown = sorted(document.keys() - {"sub", "scope", "expires_in", "groups"})
    if unknown:
        raise TokenRequestError(f"there is no field {unknown[0][:64]!r}: there are sub, scope, expires_in and groups")
    subject, scope = document.get("sub"), document.get("scope", "")
    lifetime_s = document.get("expires_in", LIFETIME_DEFAULT_S)
    if not isinstance(subject, str) or not 1 <= len(subject) <= CLAIM_CHARACTERS_MAX:
        raise TokenRequestError(f"sub must be the user: text of 1 to {CLAIM_CHARACTERS_MAX} characters")
    if not isinstance(scope, str) or len(scope) > CLAIM_CHARACTERS_MAX:
        raise TokenRequestError("scope must be text: the scopes, separated by spaces")
    is_whole = isinstance(lifetime_s, int) and not isinstance(lifetime_s, bool)
    if not is_whole or not 1 <= lifetime_s <= LIFETIME_S_MAX:
        raise TokenRequestError(f"expires_in must be whole seconds, 1 to {LIFETIME_S_MAX}")
    groups = document.get("groups")
    if groups is not None and not (isinstance(groups, list) and all(isinstance(group, str) for group in groups)):
        raise TokenRequestError("groups must be a list of texts: the groups of a person who signs in to the console")
    return TokenRequest(subject, scope, lifetime_s, groups)


def _read_or_make_key(path: Path) -> rsa.RSAPrivateKey:
    """Returns the key in the file. If there is no file, makes a key. Raises LocalError."""
    if not path.exists():
        new_key = rsa.generate_private_key(public_exponent=65537, key_size=KEY_BITS)
        key_format = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        pem = new_key.private_bytes(*key_format)
        fresh = path.with_suffix(".new")
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(pem)
        fresh.rename(path)
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except ValueError:
        raise LocalError(f"{path} is not a private key: delete it, and {DEV} makes a new one") from None
    assert isinstance(key, rsa.RSAPrivateKey)
    return key
