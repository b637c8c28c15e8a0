"""Fetches the DynamoDB engine from its npm registry without npm, once, into the user's cache."""

from __future__ import annotations

import base64
import configparser
import contextlib
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
# The checksum of the package, by npm's name of the platform: the checksum in package-lock.json.
INTEGRITY = {
    "linux-x64": "sha512-sBHqlxJ9ANkLluFkYRfd5r8Y0ApFew4FhOrlhgRAgD4XzEoFOukEo1nuBTQ1+jTtofqwn4NWQ2k0Tn5mNTjgUg==",
}
REGISTRY_DEFAULT = "https://registry.npmjs.org/"
BYTES_MAX = 64 * 1024 * 1024  # a package has 3.5 MB; a wrong answer must not fill the memory
ANSWER_S_MAX = 30.0  # for each wait; the whole download may take longer
_SCOPE = "@dynoxide"


def fetch_engine(platform: str, fallback_folder: Path) -> Path:
    """Returns the engine of a platform in INTEGRITY, from the user's cache or `fallback_folder`. If both lack the
    engine, fetches and checks the package. Raises LocalError."""
    name = f"dynoxide-{VERSION}-{platform}"
    for path in (cache_folder() / name, fallback_folder / name):
        if path.is_file():
            return path
    url = f"{registry(os.environ)}/{_SCOPE}/{platform}/-/{platform}-{VERSION}.tgz"
    print(f"tally: fetching the DynamoDB engine, once, from {url}", flush=True)
    content, (algorithm, _, digest) = _fetch(url), INTEGRITY[platform].partition("-")
    if base64.b64encode(hashlib.new(algorithm, content).digest()).decode() != digest:
        raise LocalError(f"{url} is not the engine that Tally was made with: its {algorithm} differs")
    with contextlib.suppress(OSError):
        return _unpack(content, cache_folder() / name)
    try:
        return _unpack(content, fallback_folder / name)
    except OSError as error:
        folders, reason = f"{cache_folder()} or {fallback_folder}", error.strerror or error
        raise LocalError(f"the engine cannot be kept in {folders}: {reason}; set XDG_CACHE_HOME") from None


def registry(environment: Mapping[str, str]) -> str:
    """Returns the registry that npm would use, in npm's order: the scope's registry in ~/.npmrc, `npm_config_registry`,
    the registry in ~/.npmrc, the default."""
    variables = {name.lower(): value for name, value in environment.items() if value}
    file = Path(variables.get("npm_config_userconfig") or Path(environment.get("HOME") or Path.home(), ".npmrc"))
    parser = configparser.RawConfigParser(strict=False, delimiters=["="], allow_no_value=True)
    try:
        parser.read_string("[npm]\n" + file.read_text(encoding="utf-8"))
        settings = {name: os.path.expandvars((value or "").strip(" \"'")) for name, value in parser["npm"].items()}
    except (OSError, ValueError, configparser.Error):
        settings = {}
    url = settings.get(f"{_SCOPE}:registry") or variables.get("npm_config_registry") or settings.get("registry")
    return (url or REGISTRY_DEFAULT).rstrip("/")


def cache_folder() -> Path:
    """Returns Tally's folder in the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tally"


def _fetch(url: str) -> bytes:
    """Returns the content at `url`, through the proxies that the environment names. Raises LocalError."""
    try:
        with urllib.request.urlopen(url, timeout=ANSWER_S_MAX) as answer:
            content: bytes = answer.read(BYTES_MAX)
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        advice = "Put `dynoxide` on the PATH, or set ENGINE=dynamodb-local"
        raise LocalError(f"the DynamoDB engine cannot be fetched from {url}: {reason}. {advice}") from None
    return content


def _unpack(package: bytes, path: Path) -> Path:
    """Write the program in a package to `path`, whole or not at all. Returns the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder, tarfile.open(fileobj=io.BytesIO(package)) as files:
        program = files.extractfile("package/dynoxide")
        assert program is not None, "the package was checked"
        fresh = Path(folder, "dynoxide")
        fresh.write_bytes(program.read())
        fresh.chmod(0o755)
        fresh.rename(path)
    return path
