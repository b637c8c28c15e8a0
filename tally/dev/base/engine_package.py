"""The DynamoDB engine from its npm registry, for those who have no npm: fetched once into a folder of the user."""

from __future__ import annotations

import base64
import configparser
import hashlib
import http.client
import io
import os
import tarfile
import tempfile
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from .errors import LocalError

VERSION = "1.2.1"
# What the registry serves, by npm's name of the platform; package-lock.json has the same.
INTEGRITY = {
    "linux-x64": "sha512-sBHqlxJ9ANkLluFkYRfd5r8Y0ApFew4FhOrlhgRAgD4XzEoFOukEo1nuBTQ1+jTtofqwn4NWQ2k0Tn5mNTjgUg==",
}
REGISTRY_DEFAULT = "https://registry.npmjs.org/"
BYTES_MAX = 64 * 1024 * 1024  # a package has 3.5 MB; another page that answers must not fill the memory
ANSWER_S_MAX = 30.0  # for each wait; a slow line takes longer for all of it
_SCOPE = "@dynoxide"


def fetch_engine(platform: str, fallback_folder: Path) -> Path:
    """The engine of a platform in INTEGRITY. Fetches and checks it if it is not there. Raises LocalError.

    It is kept in the user's cache; where that cannot be written, in the folder `fallback_folder`, which has the data.
    """
    name = f"dynoxide-{VERSION}-{platform}"
    for kept in (cache_folder() / name, fallback_folder / name):
        if kept.is_file():
            return kept
    url = f"{registry(os.environ)}/{_SCOPE}/{platform}/-/{platform}-{VERSION}.tgz"
    print(f"tally: fetching the DynamoDB engine, once, from {url}", flush=True)
    content = _verify(_fetch(url), INTEGRITY[platform], url)
    try:
        return _unpack(content, cache_folder() / name)
    except OSError:
        pass
    try:
        return _unpack(content, fallback_folder / name)
    except OSError as error:
        raise LocalError(
            f"the engine cannot be kept in {cache_folder()} or {fallback_folder}: {error.strerror or error};"
            " XDG_CACHE_HOME names another folder"
        ) from None


def registry(environment: Mapping[str, str]) -> str:
    """The registry that npm would ask, without a slash at its end: its variables, then ~/.npmrc, then its default."""
    named = {name.lower(): value for name, value in environment.items() if value}
    file = Path(named.get("npm_config_userconfig") or Path(environment.get("HOME") or Path.home(), ".npmrc"))
    parser = configparser.RawConfigParser(strict=False, delimiters=["="], allow_no_value=True)
    try:
        parser.read_string("[npm]\n" + file.read_text(encoding="utf-8"))
        written = {name: os.path.expandvars((value or "").strip(" \"'")) for name, value in parser["npm"].items()}
    except (OSError, ValueError, configparser.Error):
        written = {}
    registry_url = written.get(f"{_SCOPE}:registry") or named.get("npm_config_registry") or written.get("registry")
    return (registry_url or REGISTRY_DEFAULT).rstrip("/")


def cache_folder() -> Path:
    """The user's cache, for what is fetched once."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tally"


def _fetch(url: str) -> bytes:
    """The content at `url`, through the proxies that the environment names. Raises LocalError."""
    try:
        with urllib.request.urlopen(url, timeout=ANSWER_S_MAX) as answer:
            content: bytes = answer.read(BYTES_MAX)
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise LocalError(
            f"the DynamoDB engine cannot be fetched from {url}: {reason}. Put `dynoxide` on the PATH, or set"
            " ENGINE=dynamodb-local"
        ) from None
    return content


def _verify(content: bytes, integrity: str, url: str) -> bytes:
    """The content, if it is what `integrity` says. Raises LocalError."""
    kind, _, wanted = integrity.partition("-")
    if base64.b64encode(hashlib.new(kind, content).digest()).decode() != wanted:
        raise LocalError(f"{url} is not the engine that Tally was made with: its {kind} is another one")
    return content


def _unpack(package: bytes, kept: Path) -> Path:
    """Write the program in a package to `kept`, whole or not at all. Returns it."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent) as folder, tarfile.open(fileobj=io.BytesIO(package)) as files:
        program = files.extractfile("package/dynoxide")
        assert program is not None, "the package was checked"
        fresh = Path(folder, "dynoxide")
        fresh.write_bytes(program.read())
        fresh.chmod(0o755)
        fresh.rename(kept)
    return kept
