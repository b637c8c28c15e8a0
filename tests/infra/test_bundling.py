"""The bundle of the functions."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

from app import LAMBDAS
from counters import COUNTERS
from declarations import Declarations
from openapi.document import document
from stacks.bundling import Bundle, BundlingError

BUNDLE = Bundle(LAMBDAS, Declarations.load(LAMBDAS / "counters.py"), kept_in=LAMBDAS.parent / ".build")
BYTES_MAX = 6_000_000  # unpacked; Powertools alone is 4 MB, pydantic would add 6, boto3 100


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("bundle") / "bundle"
    BUNDLE.write(target)
    return target


def contents(folder: Path) -> dict[str, tuple[int, str]]:
    """Mode and hash of each file, by its path."""
    return {
        path.relative_to(folder).as_posix(): (path.stat().st_mode, hashlib.sha256(path.read_bytes()).hexdigest())
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_handlers_core_and_packages_are_there(bundle: Path) -> None:
    for name, path in BUNDLE.sources.items():
        assert (bundle / name).read_bytes() == path.read_bytes()
    assert (bundle / "functions" / "plays.py").is_file()
    assert (bundle / "tally" / "dynamo" / "transactions.py").is_file()
    assert (bundle / "functions" / "beacon.js").is_file()
    assert json.loads((bundle / "functions" / "openapi.json").read_text(encoding="utf-8")) == document(COUNTERS)
    for package in ("aws_lambda_powertools", "url_normalize", "idna", "jmespath", "typing_extensions.py"):
        assert (bundle / package).exists(), package


def test_slow_packages_and_those_of_the_runtime_are_not_there(bundle: Path) -> None:
    for package in ("pydantic", "pydantic_core", "boto3", "botocore", "aws_xray_sdk", "bin", "requirements.txt"):
        assert not (bundle / package).exists(), package
    assert not list(bundle.rglob("__pycache__"))


def test_it_is_small(bundle: Path) -> None:
    assert sum(path.stat().st_size for path in bundle.rglob("*") if path.is_file()) <= BYTES_MAX


def test_everything_can_be_read_by_lambda_and_its_licence_by_people(bundle: Path) -> None:
    assert {mode & 0o777 for mode, _ in contents(bundle).values()} == {0o644}
    assert list(bundle.glob("aws_lambda_powertools-*.dist-info/licenses/*"))


def test_it_is_the_same_each_time_and_names_no_machine(bundle: Path, tmp_path: Path) -> None:
    BUNDLE.write(tmp_path / "again")
    assert contents(tmp_path / "again") == contents(bundle)
    assert not {"RECORD", "INSTALLER", "direct_url.json"} & {path.name for path in bundle.rglob("*")}
    here = str(LAMBDAS.parent).encode()
    assert not [path for path in bundle.rglob("*") if path.is_file() and here in path.read_bytes()]


def test_digest_follows_sources_and_pins(tmp_path: Path) -> None:
    made = replace(BUNDLE, lambdas=tmp_path)
    (tmp_path / "requirements.txt").write_text("idna==3.20\n")
    (tmp_path / "plays.py").write_text("a")
    first = made.digest()
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "plays.pyc").write_text("compiled")
    assert made.digest() == first
    (tmp_path / "plays.py").write_text("b")
    second = made.digest()
    (tmp_path / "requirements.txt").write_text("idna==3.21\n")
    assert len({first, second, made.digest()}) == 3


def test_packages_that_cannot_be_installed_are_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "empty"))
    with pytest.raises(BundlingError, match="uv could not install") as failed:
        BUNDLE.write(tmp_path / "bundle")
    assert "\n" not in str(failed.value)


def test_a_bundle_is_kept_for_the_next_synth_and_older_ones_go(tmp_path: Path) -> None:
    made = replace(BUNDLE, kept_in=tmp_path)
    (tmp_path / "lambdas-old").mkdir()
    made.code(bundled=True)
    [kept] = tmp_path.iterdir()
    assert kept.name == f"lambdas-{made.digest()[:16]}"
    written = kept.stat().st_mtime_ns
    made.code(bundled=True)
    assert kept.stat().st_mtime_ns == written


def test_a_teams_own_counters_replace_those_in_the_sources(tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text((LAMBDAS / "counters.py").read_text() + "# ours\n")
    made = replace(BUNDLE, declarations=Declarations.load(own))
    assert made.sources["counters.py"] == own
    assert made.sources.keys() == BUNDLE.sources.keys()
    assert made.digest() != BUNDLE.digest()
