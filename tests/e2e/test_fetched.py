"""Tests how `make dev` fetches the engine: from which registry, with which hash, to where, and after which errors."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import json
import os
import platform
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tally.dev.base import engine_package
from tally.dev.base.engine import find_or_fetch
from tally.dev.base.errors import LocalError
from tests.e2e.dev import ROOT
from tests.e2e.servers import Reply, Server

FETCHING_LINE = "tally: fetching the DynamoDB engine, once, from "
PACKAGE_PATH = f"/@dynoxide/linux-x64/-/linux-x64-{engine_package.VERSION}.tgz"


def package(program: bytes) -> bytes:
    """Returns an npm package that has this program as the engine."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as files:
        file = tarfile.TarInfo("package/dynoxide")
        file.size = len(program)
        files.addfile(file, io.BytesIO(program))
    return archive.getvalue()


def sha512(content: bytes) -> str:
    """Returns the hash of a package as npm's lock file has it."""
    return f"sha512-{base64.b64encode(hashlib.sha512(content).digest()).decode()}"


@contextlib.contextmanager
def serving(content: bytes) -> Iterator[str]:
    """Runs a registry that serves this package, and yields its URL."""

    def answer(method: str, target: str, headers: dict[str, str], body: bytes) -> Reply:
        return Reply(200, content, {}) if target == PACKAGE_PATH else Reply(404, b"", {})

    server = Server(answer)
    with server.running():
        yield server.origin


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home folder on Linux, without npm and without an engine."""
    for name in [name for name in os.environ if name.lower().startswith("npm_")]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_engine_is_fetched_once(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = package(b"the engine")
    monkeypatch.setitem(engine_package.INTEGRITY, "linux-x64", sha512(archive))
    with serving(archive) as url:
        (home / ".npmrc").write_text(f"; mine\nfund=false\nregistry = {url}/\n//registry.example.com/:_authToken=x\n")
        engine = find_or_fetch(home / "data")
    assert capsys.readouterr().out == f"{FETCHING_LINE}{url}{PACKAGE_PATH}\n"
    assert engine.read_bytes() == b"the engine"
    assert os.access(engine, os.X_OK)
    assert find_or_fetch(home / "data") == engine, "the stored engine: the registry has stopped"
    assert capsys.readouterr().out == ""


def test_the_engine_is_stored_beside_the_data_if_the_cache_is_not_writable(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = package(b"the engine")
    monkeypatch.setitem(engine_package.INTEGRITY, "linux-x64", sha512(archive))
    monkeypatch.setenv("HOME", os.devnull)  # /dev/null is not a folder, so nothing can be stored below it
    with serving(archive) as url:
        monkeypatch.setenv("npm_config_registry", url)
        engine = find_or_fetch(home / "data")
        with pytest.raises(LocalError, match=r"cannot be kept in .*; set XDG_CACHE_HOME$"):
            find_or_fetch(Path(os.devnull))  # the data folder cannot store the engine, either
    assert engine.parent == home / "data"
    assert find_or_fetch(home / "data") == engine, "the stored engine: the registry has stopped"


def test_an_engine_with_another_hash_is_refused_and_not_stored(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(package(b"another engine")) as url:
        monkeypatch.setenv("npm_config_registry", url)
        with pytest.raises(LocalError, match="is not the engine that Tally was made with: its sha512 differs"):
            find_or_fetch(home / "data")
    assert not [path for path in home.rglob("*") if path.is_file()]


def test_a_registry_without_the_engine_and_a_registry_that_has_stopped_cause_one_line(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(b"") as url:
        monkeypatch.setenv("npm_config_registry", f"{url}/npm")
        with pytest.raises(LocalError, match=r"cannot be fetched from http.*: Not Found\. Put `dynoxide` on the PATH"):
            find_or_fetch(home / "data")
    with pytest.raises(LocalError, match=r"cannot be fetched from .*Connection refused") as offline:
        find_or_fetch(home / "data")
    assert "\n" not in str(offline.value)
    assert not [path for path in home.rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    ("environment", "npmrc", "expected"),
    [
        ({}, "", "https://registry.npmjs.org"),
        ({"npm_config_registry": "https://b.example.com"}, "registry=https://a.example.com", "https://b.example.com"),
        ({}, "@dynoxide:registry='https://c.example.com'\nregistry=https://a.example.com", "https://c.example.com"),
        ({}, "no setting\n[section]\n", "https://registry.npmjs.org"),
    ],
)
def test_the_engine_is_fetched_from_the_registry_of_npms_configuration(
    home: Path, environment: dict[str, str], npmrc: str, expected: str
) -> None:
    (home / ".npmrc").write_text(npmrc)
    assert engine_package.registry({"HOME": str(home), **environment}) == expected


def test_engine_package_pins_the_engines_of_the_lock_file() -> None:
    locked = json.loads((ROOT / "package-lock.json").read_text())["packages"]
    pins = {
        f"node_modules/@dynoxide/{name}": (engine_package.VERSION, pinned)
        for name, pinned in engine_package.INTEGRITY.items()
    }
    assert pins == {
        name: (entry["version"], entry["integrity"]) for name, entry in locked.items() if "@dynoxide/" in name
    }
